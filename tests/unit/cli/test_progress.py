"""What a terminal and a log show while a command waits."""

from __future__ import annotations

import io
import sys
import time

import pytest

from mooncake_store.cli import progress
from mooncake_store.cli.output import Output
from mooncake_store.cli.progress import Progress, Waiting


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def shown(monkeypatch: pytest.MonkeyPatch, stream: io.StringIO, *, is_quiet: bool = False) -> str:
    monkeypatch.setattr(sys, "stderr", stream)
    with Waiting(Output(is_quiet=is_quiet), "storing 4 GiB"):
        end = time.monotonic() + 10
        while not stream.getvalue() and not is_quiet and time.monotonic() < end:
            time.sleep(0.01)
        if is_quiet:
            time.sleep(0.1)
    return stream.getvalue()


def test_a_terminal_gets_a_line_that_vanishes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(progress, "_AFTER_S", 0.02)
    text = shown(monkeypatch, Terminal())
    assert text.startswith("\rstoring 4 GiB: 0 s")
    assert text.endswith("\r" + " " * len("storing 4 GiB: 0 s") + "\r")
    assert "\n" not in text


def test_a_log_gets_whole_lines(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(progress, "_LINE_EVERY_S", 0.02)
    text = shown(monkeypatch, io.StringIO())
    assert text.startswith("storing 4 GiB: 0 s\n")
    assert "\r" not in text


def test_who_wants_quiet_gets_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(progress, "_AFTER_S", 0.01)
    assert shown(monkeypatch, Terminal(), is_quiet=True) == ""


def test_what_is_quick_shows_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    stream = Terminal()
    monkeypatch.setattr(sys, "stderr", stream)
    with Waiting(Output(), "storing 1 B"):
        pass
    assert stream.getvalue() == ""


def test_work_that_says_how_far_it_is_is_shown_after_a_moment(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for stream, is_quiet in ((Terminal(), False), (io.StringIO(), False), (Terminal(), True)):
        monkeypatch.setattr(sys, "stderr", stream)
        monkeypatch.setattr(progress, "_AFTER_S", 60.0)
        tells = Progress(is_quiet=is_quiet)
        tells("replay", 0.5)
        assert stream.getvalue() == ""
        monkeypatch.setattr(progress, "_AFTER_S", 0.0)
        monkeypatch.setattr(progress, "_LINE_EVERY_S", 0.0)
        tells("replay", 0.5)
        tells.clear()
        cleared = "\r" + " " * len("replay: 50%") + "\r"
        moving = "\rreplay: 50%" + cleared
        expected = "" if is_quiet else moving if stream.isatty() else "replay: 50%\n"
        assert stream.getvalue() == expected
