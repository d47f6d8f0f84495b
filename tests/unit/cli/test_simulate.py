"""`mooncake-store sim`: what it prints, what it refuses, and its pictures."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from mooncake_store.cli.app import run
from mooncake_store.cli.exit_codes import ExitCode
from mooncake_store.conductor.figures import FIGURES


def output(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    assert run(["sim", *arguments]) == ExitCode.OK
    return capsys.readouterr().out


def test_run_replays_the_sample(capsys: pytest.CaptureFixture[str]) -> None:
    text = output(capsys, "run", "--policy", "ours")
    assert "1,000 finished" in text
    assert "TTFT" in text and "policy ours" in text


def test_run_gives_one_document(capsys: pytest.CaptureFixture[str]) -> None:
    arguments = (
        "run",
        "--json",
        "--limit",
        "200",
        "--speed",
        "2",
        "--set",
        "cluster.prefill_nodes=3",
    )
    found = json.loads(output(capsys, *arguments))
    assert found["requests"] == 200
    assert found["config"]["cluster"]["prefill_nodes"] == 3
    assert found["config"]["replay"]["speed"] == 2
    assert found["ttft_s"]["mean"] > 0
    assert found["samples"] is None
    samples = json.loads(output(capsys, *arguments, "-v"))["samples"]
    assert len(samples[0]) == 2 + 3 + 8 + 100


def test_compare_has_a_row_for_each_case(capsys: pytest.CaptureFixture[str]) -> None:
    text = output(
        capsys, "compare", "--limit", "300", "--policies", "random,global", "--speeds", "1,2",
        "--admissions", "all,early", "--seeds", "2",
    )  # fmt: skip
    rows = [line.split("\t") for line in text.splitlines()]
    assert len(rows) == 8
    assert [row[1] for row in rows[:4]] == ["random", "random", "global", "global"]
    assert "±" in rows[0][3]


def test_compare_gives_every_run_as_json(capsys: pytest.CaptureFixture[str]) -> None:
    found = json.loads(
        output(capsys, "compare", "--json", "--limit", "100", "--policies", "ours", "--seeds", "3")
    )
    assert [len(case["runs"]) for case in found] == [3]


def test_compare_obeys_what_is_set_beside_the_policies(capsys: pytest.CaptureFixture[str]) -> None:
    def reports(*settings: str) -> list[object]:
        arguments = ("compare", "--json", "--limit", "300", "--speeds", "3", *settings)
        found = json.loads(output(capsys, *arguments, "--policies", "global,ours"))
        return [case["runs"][0]["ttft_s"] for case in found]

    plain, ordered = reports(), reports("--set", "scheduler.order=fcfs")
    assert ordered[0] == plain[0], "that is its order"
    assert ordered[1] != plain[1]


def test_size_names_the_smallest_cluster(capsys: pytest.CaptureFixture[str]) -> None:
    found = json.loads(
        output(capsys, "size", "--json", "--limit", "300", "--caches", "500000,3000000")
    )
    assert [one["cache_tokens"] for one in found] == [500_000, 3_000_000]
    assert all(one["attainment"] >= 0.99 for one in found)
    assert found[1]["dram_bytes"] == 3_000_000 * 327_680


def test_settings_are_a_file_that_is_read_back(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    path = tmp_path / "cluster.toml"
    path.write_text(output(capsys, "settings"))
    assert output(capsys, "run", "--json", "--limit", "50", "--cluster", str(path))


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["run", "absent.jsonl"], "cannot be read"),
        (["run", "--policy", "best"], "least-load"),
        (["run", "--admission", "nobody"], "admission"),
        (["run", "--set", "cluster"], "TABLE.NAME=VALUE"),
        (["run", "--set", "clustre.prefill_nodes=1"], "cluster"),
        (["run", "--set", "cluster.prefil_nodes=1"], "prefill_nodes"),
        (["run", "--speed", "0"], "speed"),
        (["run", "--set", "cluster.foo=1"], "error: --set cluster: unknown setting 'foo'"),
        (["run", "--set", "slo.ttft=5"], "error: --set slo.ttft: '5' has no unit"),
        (["run", "--set", "slo.ttft=5"], "mooncake-store sim settings"),
        (["run", "--set", "cluster.nic=" + "9" * 400], "nic is at most 8,388,607 TiB"),
        (["run", "--speed", "nan"], "error: --speed: speed is a number of at least 0.001"),
        (["size", "--speed", "nan"], "error: --speed: speed"),
        (["run", "--set", "replay.speed=nan"], "error: --set replay.speed: speed is a number"),
        (["run", "--admission", "nobody"], "error: --admission: "),
        (["run", "--set", "replay.sample=0.0001s"], "replay.sample = 0.1ms is 3,300,000 times"),
        (["run", "--set", "model.prefill_token_us=nan"], "prefill_token_us is a number"),
        (["run", "--set", "scheduler.error_sigma=nan"], "--set scheduler.error_sigma"),
        (["run", "--set", "cluster.cache_tokens=99999999999999999999"], "cache_tokens is at most"),
        (["run", "--seed", "99999999999999999999"], "seed is at most"),
        (["run", "--set", "scheduler.admission_threshold=0"], "admission_threshold is at least"),
        (["run", "--cluster", "absent.toml"], "does not exist"),
        (["compare", "--speeds", "fast"], "numbers"),
        (["compare", "--policies", "best"], "best"),
        (["compare", "--policies", ",,"], "names none"),
        (["run", "--limit", "99999999999999999999"], "limit"),
        (["size", "--caches", "99999999999999999999"], "--caches"),
        (["compare", "--admissions", "nobody"], "nobody"),
        (["size", "--target", "2"], "error: --target is a share above 0 and at most 1, not 2.0"),
        (["size", "--target", "nan"], "error: --target"),
        (["run", "--set", "a.b"], "mooncake-store sim settings"),
        (["run", "--set", "a.b=1"], "mooncake-store sim settings"),
        (["size", "--caches", "much"], "whole numbers"),
    ],
)
def test_what_cannot_be_is_refused_in_words(
    capsys: pytest.CaptureFixture[str], arguments: list[str], says: str
) -> None:
    assert run(["sim", *arguments]) == ExitCode.USAGE
    assert says in capsys.readouterr().err


def test_what_would_last_for_ever_is_given_up(capsys: pytest.CaptureFixture[str]) -> None:
    for arguments in (["run"], ["compare", "--policies", "global"]):
        code = run(["sim", *arguments, "--limit", "100", "--set", "cluster.nic=1"])
        told = capsys.readouterr().err
        assert code == ExitCode.REFUSED, told
        assert "after the last arrival" in told and "replay.drain_max" in told


def test_pictures_are_drawn(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    pytest.importorskip("matplotlib", reason="needs matplotlib (extra plots)")
    one, many = tmp_path / "run.png", tmp_path / "compare.png"
    output(capsys, "run", "--limit", "60", "--plot", str(one))
    output(capsys, "compare", "--limit", "60", "--policies", "global,ours", "--plot", str(many))
    for path in (one, many):
        assert path.read_bytes().startswith(b"\x89PNG")
        assert path.stat().st_size > 20_000


def test_the_papers_figures_are_drawn(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    pytest.importorskip("matplotlib", reason="needs matplotlib (extra plots)")
    output(capsys, "figures", "layers", "--plots", str(tmp_path / "new"))
    assert (tmp_path / "new" / "layers.png").stat().st_size > 20_000


def test_the_speed_of_a_cluster_file_is_the_speed_of_a_comparison(
    capsys: pytest.CaptureFixture[str],
) -> None:
    arguments = ("compare", "--json", "--limit", "50", "--policies", "ours")
    (plain,) = json.loads(output(capsys, *arguments))
    (set_so,) = json.loads(output(capsys, *arguments, "--set", "replay.speed=4"))
    (asked,) = json.loads(output(capsys, *arguments, "--set", "replay.speed=4", "--speeds", "2"))
    assert [plain["speed"], set_so["speed"], asked["speed"]] == [1, 4, 2]
    assert set_so["runs"][0]["ttft_s"]["mean"] > plain["runs"][0]["ttft_s"]["mean"]


def test_pictures_without_matplotlib_say_what_to_install(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(__import__("sys").modules, "matplotlib", None)
    assert run(["sim", "run", "--limit", "20", "--plot", "x.png"]) == ExitCode.USAGE
    assert "mooncake-store[plots]" in capsys.readouterr().err


def test_the_help_of_figures_names_all_of_them(capsys: pytest.CaptureFixture[str]) -> None:
    told = output(capsys, "figures", "--help")
    names = told.split("Without names all of them:")[1].split(".")[0]
    assert [name.strip() for name in names.split(",")] == list(FIGURES)


def test_samples_are_what_the_help_says(capsys: pytest.CaptureFixture[str]) -> None:
    assert "`samples`" in output(capsys, "run", "--help")
    arguments = ("run", "--json", "-v", "--limit", "300", "--set", "replay.sample=5s",
                 "--set", "cluster.prefill_nodes=4", "--set", "cluster.group_nodes=2",
                 "--set", "replay.top_keys=7")  # fmt: skip
    found = json.loads(output(capsys, *arguments))
    rows = found["samples"]
    assert {len(row) for row in rows} == {1 + 2 + 8 + 1 + 7}
    assert [row[0] for row in rows[:4]] == [0, 5, 10, 15]
    shown = [row for row in rows if row[0] <= 300]
    assert any(0 < load < 10 for row in shown for load in row[1:3])
    assert any(0 < load < 1 for row in shown for load in row[3:11])
    assert any(row[11] > 1e6 for row in shown)
    assert all(0 <= replicas <= 2 for row in rows for replicas in row[12:])
    assert max(rows[-1][12:]) >= 1


def test_figures_without_a_trace_are_shown_and_given_as_json(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    text = output(capsys, "figures", "pipeline", "layers")
    assert "131072" not in text and "128k" in text and "0.87 s" in text
    (found,) = json.loads(output(capsys, "figures", "layers", "--json"))
    assert [row[0] for row in found["rows"]] == ["8k", "16k", "32k", "64k", "128k"]
    # 128k tokens of 320 KiB at 48 GB/s, serial; layer by layer a layer's share of it.
    assert found["rows"][-1][1] == "0.895 s"
    assert found["rows"][-1][3] == "0.011 s"


@pytest.mark.parametrize(
    ("arguments", "says"),
    [(["figures", "99"], "ablation"), (["figures", "policies"], "conversation_trace.jsonl")],
)
def test_figures_that_cannot_be_are_refused(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, arguments: list[str], says: str
) -> None:
    assert run(["sim", *arguments, "--traces", str(tmp_path)]) == ExitCode.USAGE
    assert says in capsys.readouterr().err


def test_a_picture_that_cannot_be_written_is_refused_before_the_replay(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    pytest.importorskip("matplotlib", reason="needs matplotlib (extra plots)")
    for path, says in (
        (tmp_path / "run.foo", "names no format"),
        (tmp_path / "absent" / "run.png", "there is no folder"),
    ):
        assert run(["sim", "run", "--limit", "20", "--plot", str(path)]) == ExitCode.USAGE
        told = capsys.readouterr().err
        assert says in told and "replay" not in told
    assert not list(tmp_path.iterdir())
    folder = tmp_path / "absent" / "new"
    assert run(["sim", "figures", "layers", "--plots", str(folder)]) == ExitCode.USAGE
    assert not list(tmp_path.iterdir())


def test_a_target_out_of_reach_says_how_far_off_it_is(capsys: pytest.CaptureFixture[str]) -> None:
    wanted = ("sim", "size", "--caches", "250000,1000000", "--set", "slo.ttft=10s")
    assert run([*wanted]) == ExitCode.FAILED
    told = capsys.readouterr().err
    assert told.count("no number of nodes reaches 99.00%") == 2
    assert "requests take longer than the 10 s" in told
    assert "--target of at most" in told and "group_nodes" in told and "slo.ttft=" in told
    assert run([*wanted, "--json"]) == ExitCode.FAILED
    first, _ = json.loads(capsys.readouterr().out)
    assert first["prefill_nodes"] is None and first["too_long_requests"] > 10


@pytest.mark.parametrize(
    "arguments",
    [
        ["run", "--limit", "1"],
        ["run", "--limit", "20", "--admission", "early", "--set", "slo.ttft=1ms"],
        ["compare", "--limit", "20", "--admissions", "early", "--set", "slo.ttft=1ms"],
        ["size", "--limit", "1", "--caches", "1000"],
    ],
)
def test_what_there_is_no_number_of_is_a_dash(
    capsys: pytest.CaptureFixture[str], arguments: list[str]
) -> None:
    text = output(capsys, *arguments)
    assert "nan" not in text and "0000%" not in text and "-" in text
    assert "nodes - busy" in text if arguments == ["run", "--limit", "1"] else True


_LOAD = ("plan", "--rate", "20", "--prompt-tokens", "12000", "--output-tokens", "343")


def test_plan_tells_nodes_and_what_binds_them(capsys: pytest.CaptureFixture[str]) -> None:
    text = output(capsys, *_LOAD, "--cached-tokens", "4800")
    assert "prefill    27 nodes, 68% busy" in text
    assert "bound by   cluster.decode_capacity_tokens" in text
    found = json.loads(output(capsys, *_LOAD, "--json"))
    assert found["prefill_nodes"] > 27
    # Cluster, model, SLOs and bounds count.
    grouped = json.loads(output(capsys, *_LOAD, "--json", "--set", "cluster.group_nodes=4"))
    assert grouped["prefill_nodes"] % 4 == 0
    small = json.loads(output(capsys, *_LOAD, "--json", "--set", "cluster.decode_batch_max=8"))
    assert small["decode_bound"] == "batch" and small["decode_nodes"] > found["decode_nodes"]
    idler = json.loads(output(capsys, *_LOAD, "--json", "--prefill-load", "0.3"))
    assert idler["prefill_nodes"] > 2 * found["prefill_nodes"]


def test_plan_refuses_what_no_number_of_nodes_meets(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["sim", *_LOAD, "--set", "slo.tbt=20ms"]) == ExitCode.USAGE
    assert "no number of decode nodes meets 0.02 s a token" in capsys.readouterr().err
    late = ["sim", *_LOAD, "--set", "slo.ttft=1s"]
    assert run(late) == ExitCode.USAGE
    said = (
        "no number of prefill nodes meets 1 s until the first token: one prefill alone takes 1.49 s"
    )
    assert said in capsys.readouterr().err
    assert run([*late, "--json"]) == ExitCode.USAGE
    assert said in json.loads(capsys.readouterr().err)["error"]
    load = ["--rate", "20", "--prompt-tokens", "12000", "--output-tokens", "343"]
    # 0.8 of 0.1 s is a little more than 80 ms, by rounding.
    assert run(["sim", "plan", *load, "--set", "model.decode_base=80ms"]) == ExitCode.USAGE
    assert "no number of decode nodes meets" in capsys.readouterr().err
    for absurd in (["--rate", "1e308"], ["--prompt-tokens", "1e300"]):
        assert run(["sim", "plan", *load, *absurd]) == ExitCode.USAGE
        assert "beyond what can be planned" in capsys.readouterr().err
    assert run(["sim", *_LOAD, "--cached-tokens", "12000"]) == ExitCode.USAGE
    assert "fewer than it has" in capsys.readouterr().err
