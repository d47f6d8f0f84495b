"""`mooncake-store sim fit`: known parameters come back, and bad files are told by line."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from mooncake_store.cli.app import run
from mooncake_store.cli.exit_codes import ExitCode
from mooncake_store.conductor.decode_time import DecodeTime
from mooncake_store.conductor.prefill_time import PrefillTime
from mooncake_store.conductor.service.config import ConductorConfig
from mooncake_store.conductor.service.core import costs_of

PREFILL = PrefillTime(0.02, 9e-5, 5e-10)
DECODE = DecodeTime(0.025, 2e-4, 3e-8)


def prefill_file(folder: Path) -> Path:
    file = folder / "prefill.csv"
    lines = [
        f"{n},{p},{PREFILL(n, p)!r}"
        for n in (500, 2000, 8000, 30_000, 100_000)
        for p in (0, n // 2)
    ]
    file.write_text("\n".join(["prompt_tokens,cached_tokens,seconds", *lines]))
    return file


def decode_file(folder: Path) -> Path:
    file = folder / "decode.csv"
    lines = [
        f"run {b},{DECODE(b, b * c)!r},{b * c},{b}" for b in (1, 8, 64) for c in (500, 2000, 9000)
    ]
    text = "\n".join(["name, seconds, context_tokens, batch", "", "# idle node", *lines])
    file.write_bytes(b"\xef\xbb\xbf" + text.encode())  # as a spreadsheet writes it
    return file


def test_what_made_the_samples_is_found_and_sim_and_conductor_take_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    files = [str(prefill_file(tmp_path)), str(decode_file(tmp_path))]
    assert run(["sim", "fit", *files]) == ExitCode.OK
    written = capsys.readouterr()
    assert written.err == ""
    assert "# 10 samples; relative error: median 0.00%, max 0.00%" in written.out
    assert "# c1: microseconds a computed token" in written.out
    cluster = tmp_path / "cluster.toml"
    cluster.write_text(written.out)
    assert run(["sim", "run", "--json", "--limit", "20", "--cluster", str(cluster)]) == 0
    model = json.loads(capsys.readouterr().out)["config"]["model"]
    assert model["prefill_base_s"] == pytest.approx(0.02)
    assert model["prefill_token_us"] == pytest.approx(90)
    assert model["prefill_pair_ns"] == pytest.approx(0.5)
    assert model["decode_base_s"] == pytest.approx(0.025)
    assert model["decode_request_us"] == pytest.approx(200)
    assert model["decode_token_ns"] == pytest.approx(30)
    costs = costs_of(ConductorConfig(cluster=str(cluster)).model())
    assert costs.prefill(40_000, 7000) == pytest.approx(PREFILL(40_000, 7000))
    assert costs.decode(30, 90_000) == pytest.approx(DECODE(30, 90_000))


def test_one_kind_alone_leaves_the_other_as_it_is(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["sim", "fit", "--json", str(decode_file(tmp_path))]) == ExitCode.OK
    found = json.loads(capsys.readouterr().out)
    assert set(found) == {"decode", "model"}
    assert found["decode"]["samples"] == 9
    assert found["decode"]["relative_error"]["max"] < 1e-9
    assert found["decode"]["coefficients"]["kc_seconds"] == pytest.approx(3e-8)
    assert set(found["model"]) == {"decode_base", "decode_request_us", "decode_token_ns"}


def test_the_degree_can_be_said(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["sim", "fit", "--degree", "1", str(prefill_file(tmp_path))]) == ExitCode.OK
    assert "prefill_pair_ns = 0.0" in capsys.readouterr().out
    two = tmp_path / "two.csv"
    two.write_text("prompt_tokens,cached_tokens,seconds\n1000,0,0.11\n3000,0,0.29\n")
    assert run(["sim", "fit", "--degree", "1", "--json", str(two)]) == ExitCode.OK
    assert json.loads(capsys.readouterr().out)["prefill"]["samples"] == 2


def test_a_fit_that_is_far_off_or_of_few_samples_says_so(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "prefill.csv"
    text = prefill_file(tmp_path).read_text()
    file.write_text(text + "\n40000,0,40.0\n")
    assert run(["sim", "fit", str(file)]) == ExitCode.OK
    assert "does not have this form" in capsys.readouterr().err
    file.write_text("\n".join(text.splitlines()[:5]))
    assert run(["sim", "fit", str(file)]) == ExitCode.OK
    assert "the error says little" in capsys.readouterr().err
    lines = ["prompt_tokens,cached_tokens,seconds", "1000,0,1", "2000,0,9", "4000,0,2", "8000,0,30"]
    file.write_text("\n".join(lines))
    assert run(["sim", "fit", str(file)]) == ExitCode.OK
    told = capsys.readouterr().err
    assert "the error says little" in told and "does not have this form" in told


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("", "has no lines"),
        ("a,b,c\n1,2,3", "line 1 of"),
        ("batch,context_tokens,seconds\n", "there are no samples"),
        ("batch,context_tokens,seconds\n1,2,0.1\n\n1,2\n", "line 4 of"),
        ("batch,context_tokens,seconds\n1.5,20,0.1", "batch is a whole number of 1 or more"),
        ("batch,context_tokens,seconds\n4,3,0.1", "of all 4 requests of the batch together"),
        ("batch,context_tokens,seconds\n1,3,0", "seconds is a number from 1e-9"),
        ("batch,context_tokens,seconds\n1,3,1e-200", "seconds is a number from 1e-9"),
        ("batch,context_tokens,seconds\n1,3,nan", "seconds is a number from 1e-9"),
        ("batch,context_tokens,seconds\n1,3,1,15", "4 values for 3 columns"),
        ("prompt_tokens,cached_tokens,seconds\n9,9,1", "cached_tokens is below prompt_tokens, 9"),
        ("prompt_tokens,cached_tokens,seconds\n9,-1,1", "cached_tokens is a whole number of 0"),
        ("prompt_tokens,cached_tokens,seconds\n9,1,1\n8,1,1", "at least three different"),
        ("batch,context_tokens,seconds\n1,9,1\n2,18,1\n3,27,1", "do not tell kb"),
    ],
)
def test_a_file_that_is_none_is_told_with_its_line(
    text: str, told: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "samples.csv"
    file.write_text(text)
    assert run(["sim", "fit", str(file)]) == ExitCode.USAGE
    shown = capsys.readouterr()
    assert told in shown.err
    assert shown.out == ""


def test_a_file_that_is_not_there_is_told(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["sim", "fit", str(tmp_path / "none.csv")]) == ExitCode.USAGE
    assert "none.csv cannot be read" in capsys.readouterr().err
