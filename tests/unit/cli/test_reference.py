"""The page of the command, and help on a terminal."""

from __future__ import annotations

from pathlib import Path

import click
import pytest

from mooncake_store.cli.app import COMMANDS, GROUPS, cli, run
from mooncake_store.cli.reference import page
from mooncake_store.cli.topics import TOPICS, text_of_topic
from mooncake_store.errors import ERROR_CODES

PAGE = Path(__file__).parents[3] / "docs/command.md"


def test_the_page_is_what_the_commands_say() -> None:
    assert PAGE.read_text() == page(), "python -m mooncake_store.cli.reference > docs/command.md"


def test_every_command_is_in_one_group() -> None:
    assert sorted(name for names in GROUPS.values() for name in names) == sorted(COMMANDS)


def commands() -> list[tuple[str, click.Command]]:
    """Every command that does something, with its name."""
    found = []
    pending: list[tuple[str, click.Command]] = [("", cli)]
    for path, command in pending:  # grows while it is walked
        context = click.Context(command)
        if isinstance(command, click.Group):
            for name in command.list_commands(context):
                inner = command.get_command(context, name)
                assert inner is not None
                pending.append((f"{path} {name}".strip(), inner))
        else:
            found.append((path, command))
    return found


@pytest.mark.parametrize(("path", "command"), commands(), ids=[path for path, _ in commands()])
def test_every_command_takes_json_and_fits_a_screen(path: str, command: click.Command) -> None:
    options = [name for option in command.params for name in option.opts]
    assert "--json" in options
    text = command.get_help(click.Context(command, info_name=f"mooncake-store {path}"))
    assert r"\b" not in text
    # The settings of a process are as many as they are.
    assert len(text.splitlines()) <= 30 or path in ("master", "server")
    for line in text.splitlines():
        assert len(line) <= 100, line


def test_every_command_has_a_schema_of_its_document() -> None:
    schemas = {path.stem for path in (PAGE.parents[1] / "tests/golden/schemas").glob("*.json")}
    documented = {path.replace(" ", "-") for path, _ in commands() if not path.startswith("bench")}
    assert schemas - {"error"} == documented


def test_the_first_help_fits_a_tall_screen(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["--help"]) == 0
    text = capsys.readouterr().out
    assert len(text.splitlines()) <= 52
    assert text.count("mooncake-store up") == 1
    assert all(name in text for name in COMMANDS)


def test_all_help_has_every_command(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["--help-all"]) == 0
    text = capsys.readouterr().out
    for path, _ in commands():
        assert f"Usage: mooncake-store {path} " in text


@pytest.mark.parametrize("name", TOPICS)
def test_a_topic_fits_a_screen(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["help", name]) == 0
    text = capsys.readouterr().out
    assert text.rstrip("\n") == text_of_topic(name)
    assert all(len(line) <= 100 for line in text.splitlines())


@pytest.mark.parametrize("code", ERROR_CODES)
def test_every_error_code_is_explained(code: str, capsys: pytest.CaptureFixture[str]) -> None:
    row = ERROR_CODES[code]
    for words in (["errors", code], [code], [code.removeprefix("MS-")], [code.lower()]):
        assert run(["help", *words]) == 0
        text = capsys.readouterr().out
        assert code in text and row.meaning in text and row.hint in text


@pytest.mark.parametrize(
    ("arguments", "near"),
    [
        (["lst"], "ls"),
        (["stats"], "status"),
        (["put", "--jsn"], "--json"),
        (["up", "--prot", "1"], "--port"),
        (["config", "shw"], "show"),
        (["help", "exit-code"], "exit-codes"),
        (["help", "MS-1204x"], "MS-1204"),
    ],
)
def test_what_is_misspelt_brings_the_nearest_name(
    arguments: list[str], near: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(arguments) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert near in captured.err.splitlines()[0]
    assert "[MS-1109]" in captured.err
    assert len(captured.err.splitlines()) <= 4


def test_a_hostile_command_line_is_answered_harmlessly(capsys: pytest.CaptureFixture[str]) -> None:
    for arguments in (["\x1b[2J"], ["ls", "--\x1b[2J"], ["help", "a\nb"], ["completion", "\x1b"]):
        assert run(arguments) == 2
        assert capsys.readouterr().err.replace("\n", "").isprintable()
