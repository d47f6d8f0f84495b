"""Keys, sizes and times on the command line; keys that complete."""

from __future__ import annotations

import socket
import time

import click
import pytest

from mooncake_store.cli import key_completion
from mooncake_store.cli.app import run
from mooncake_store.cli.options import DURATION, KEY, SIZE


@pytest.mark.parametrize("text", ["", "k" * 1025, "é" * 513, "\udcff", "a\ud800"])
def test_a_bad_key_is_refused_before_anybody_is_asked(
    text: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["stat", "--master", "127.0.0.1:1", text]) == 2
    assert "[MS-1102]" in capsys.readouterr().err


def test_a_key_may_be_anything_of_1_to_1024_bytes() -> None:
    for text in ("a", "k" * 1024, "é" * 512, "\x1b[31m\n", "--", " "):
        assert KEY.convert(text, None, None) == text


@pytest.mark.parametrize("text", ["4G", "4g", "1k", "10M", "1.5T"])
def test_a_bare_letter_is_refused_with_both_readings(
    text: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["up", "--port", "0", "--size", text]) == 2
    error = capsys.readouterr().err
    letter, number = text[-1].upper(), text[:-1]
    assert f"write {number}{letter}iB" in error and f"{number}{letter}B" in error


def test_sizes_and_times_are_written_with_units() -> None:
    assert SIZE.convert("64KiB", None, None) == 65536
    assert SIZE.convert("2GB", None, None) == 2_000_000_000
    assert DURATION.convert("500ms", None, None) == 0.5
    for bad in ("5", "5 parsecs", "-1s"):
        with pytest.raises(click.UsageError):
            DURATION.convert(bad, None, None)


def test_completion_gives_up_within_its_budget_when_nobody_answers() -> None:
    """A master that accepts and then says nothing: the worst of all."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        address = f"127.0.0.1:{server.getsockname()[1]}"
        key_completion.complete({"master": "127.0.0.1:1"}, "")  # what it imports is not its budget
        started = time.monotonic()
        assert key_completion.complete({"master": address}, "a") == []
        elapsed_s = time.monotonic() - started
    assert elapsed_s < key_completion.BUDGET_S + 0.3  # 0.3: a busy machine


def test_completion_never_complains(tmp_path: object) -> None:
    assert key_completion.complete({"master": "no such host:x:y"}, "a") == []
    assert key_completion.complete({"config": f"{tmp_path}/none"}, "a") == []
    assert key_completion.complete({"context": "none"}, "a") == []


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completion_scripts_are_printed(shell: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["completion", shell]) == 0
    script = capsys.readouterr().out
    assert "_MOONCAKE_STORE_COMPLETE" in script
    assert "mooncake-store" in script
    assert run(["completion", "csh"]) == 2
