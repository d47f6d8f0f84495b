"""What a command writes: keys that do harm, errors in four lines, JSON in ASCII."""

from __future__ import annotations

import io
import json
import os
from pathlib import Path

import click
import pytest

from mooncake_store import errors
from mooncake_store.cli.app import run
from mooncake_store.cli.exit_codes import ExitCode
from mooncake_store.cli.output import Output, aligned, approximate_size, printable
from mooncake_store.errors import Status, StoreError, error_from_status

HOSTILE = "red\x1b[31m\n\r\x07\x9b2J\u202egnirts\ud800\u2028end"
GOLDEN = Path(__file__).parents[2] / "golden/messages.txt"


def said(error: BaseException, capsys: pytest.CaptureFixture[str], **settings: object) -> str:
    output = Output(**settings)  # type: ignore[arg-type]
    output.target = "127.0.0.1:7700 (default)"
    output.error(error)
    captured = capsys.readouterr()
    assert captured.out == ""
    return captured.err


def test_hostile_text_is_shown_harmlessly_on_one_line() -> None:
    shown = printable(HOSTILE)
    assert shown.isprintable()
    assert shown.startswith(r"red\x1b[31m\n\r\x07\x9b2J\u202egnirts\ud800\u2028end")


def test_ordinary_text_is_shown_as_it_is() -> None:
    for text in ("model-a/layer.0@12", "größe/键/ключ", "🥮 moon cake"):
        assert printable(text) == text


def test_hostile_text_is_harmless_in_json(capsys: pytest.CaptureFixture[str]) -> None:
    Output(is_json=True).document({"key": HOSTILE})
    line = capsys.readouterr().out
    assert line.isascii()
    assert line.rstrip("\n").isprintable()
    assert json.loads(line) == {"key": HOSTILE}


@pytest.mark.parametrize(
    ("size_bytes", "text"),
    [
        (0, "0 B"), (1, "1 B"), (1023, "1023 B"), (1024, "1 KiB"), (1536, "1.5 KiB"),
        (1000 * 1024, "0.977 MiB"), (2**20, "1 MiB"), (5 * 2**30, "5 GiB"), (2**40, "1 TiB"),
        (2500 * 2**40, "2,500 TiB"),
    ],
)  # fmt: skip
def test_sizes_for_people_have_three_digits(size_bytes: int, text: str) -> None:
    assert approximate_size(size_bytes) == text


def test_columns_are_aligned() -> None:
    assert aligned([["A", "LONG"], ["wider", "x"]]) == ["A      LONG", "wider  x"]


def test_a_table_in_a_pipe_has_tabs_and_no_header(capsys: pytest.CaptureFixture[str]) -> None:
    Output().table([["1", "a"], ["2", "b"]], ["N", "NAME"])
    assert capsys.readouterr().out == "1\ta\n2\tb\n"


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize(
    ("environment", "flag", "expected"),
    [
        ({"TERM": "xterm"}, False, True),
        ({"TERM": "xterm"}, True, False),
        ({"TERM": "xterm", "NO_COLOR": "1"}, False, False),
        ({"TERM": "xterm", "NO_COLOR": ""}, False, True),
        ({"TERM": "dumb"}, False, False),
    ],
)
def test_colour_is_for_terminals_that_want_it(
    environment: dict[str, str], flag: bool, expected: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("NO_COLOR", "TERM"):
        monkeypatch.delenv(name, raising=False)
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    assert Output(no_color=flag).has_color(Terminal()) is expected
    assert Output(no_color=flag).has_color(io.StringIO()) is False


def test_notes_are_for_stderr_and_only_for_those_who_want_them(
    capsys: pytest.CaptureFixture[str],
) -> None:
    Output().note("a hint")
    Output(is_quiet=True).note("no hint")
    captured = capsys.readouterr()
    assert (captured.out, captured.err) == ("", "a hint\n")


def messages() -> list[tuple[str, BaseException]]:
    """One error of each kind that a command can end with."""
    found: list[tuple[str, BaseException]] = [
        (
            f"status {status.name}",
            error_from_status(status, key="model-a/1", node="node-a", stage="read", elapsed_s=0.25),
        )
        for status in Status
        if status is not Status.OK
    ]
    below = ConnectionRefusedError(111, "Connection refused")
    found += [
        ("config", errors.ConfigError("unknown setting 'prot': did you mean 'port'?")),
        ("in use", errors.InUseError("port 7700 of 127.0.0.1 is in use by pid 12 (python)")),
        ("with a cause", errors.UnavailableError("no master answers", cause=below)),
        ("cause in the message", errors.DeviceError("cannot: Connection refused", cause=below)),
        ("hostile key", errors.ObjectNotFoundError("there is no such object", key=HOSTILE)),
        ("an OSError", PermissionError(13, "Permission denied", "/data/x")),
        ("a defect", ZeroDivisionError("division by zero")),
    ]
    return found


def test_messages_are_those_of_the_golden_file(capsys: pytest.CaptureFixture[str]) -> None:
    text = "".join(f"== {name}\n{said(error, capsys)}" for name, error in messages())
    if os.environ.get("UPDATE_GOLDEN"):
        GOLDEN.write_text(text)
    assert text == GOLDEN.read_text()


@pytest.mark.parametrize(("name", "error"), messages(), ids=[name for name, _ in messages()])
def test_an_error_has_at_most_four_lines_a_code_and_a_next_step(
    name: str, error: BaseException, capsys: pytest.CaptureFixture[str]
) -> None:
    lines = said(error, capsys).splitlines()
    assert len(lines) <= 4
    assert lines[0].startswith("error: ")
    assert lines[0].endswith("]") and "[MS-1" in lines[0]
    assert lines[-1].startswith("  next:  ")
    assert all(line.isprintable() for line in lines)


def test_an_error_in_json_is_one_document(capsys: pytest.CaptureFixture[str]) -> None:
    error = error_from_status(Status.TIMEOUT, key=HOSTILE, node="node-a", elapsed_s=5.0)
    document = json.loads(said(error, capsys, is_json=True))
    assert document == {
        "error": "the deadline passed", "code": "MS-1301", "key": HOSTILE, "node": "node-a",
        "stage": None, "elapsed_seconds": 5.0, "cause": "", "target": "127.0.0.1:7700 (default)",
        "retryable": True, "hint": error.hint, "exit_code": 3,
    }  # fmt: skip


def test_a_traceback_is_for_those_who_ask_twice(capsys: pytest.CaptureFixture[str]) -> None:
    error = StoreError("it failed", cause=OSError("below"))
    assert "Traceback" not in said(error, capsys, verbosity=1)
    assert "OSError: below" in said(error, capsys, verbosity=2)


def test_a_foreign_exception_is_a_defect_and_an_operating_system_s_is_not() -> None:
    assert Output(is_quiet=True).error(KeyError("x")) == ExitCode.FAILED
    assert Output(is_quiet=True).error(OSError(28, "No space left on device")) == ExitCode.FAILED


@pytest.mark.parametrize("group", [[], ["bench"], ["config"]])
def test_a_group_without_a_command_shows_its_help_line_by_line(
    group: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    if not hasattr(click.exceptions, "NoArgsIsHelpError"):
        pytest.skip("this click shows a group's help by itself, on standard output")
    assert run(group) == ExitCode.USAGE
    captured = capsys.readouterr()
    assert captured.out == ""
    lines = captured.err.splitlines()
    assert lines[0] == " ".join(["Usage: mooncake-store", *group, "[OPTIONS] COMMAND [ARGS]..."])
    assert len(lines) > 5
