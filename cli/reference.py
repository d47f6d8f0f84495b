"""docs/command.md, made from the commands themselves: `python -m mooncake_store.cli.reference`."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Iterator

import click

from mooncake_store.cli.app import GROUPS, cli
from mooncake_store.cli.exit_codes import MEANINGS
from mooncake_store.cli.options import SHARED_OPTIONS

__all__ = ["page"]

_HEAD = """\
# The command

Made from the commands by `python -m mooncake_store.cli.reference > docs/command.md`; a test
compares. `mooncake-store help SUBJECT` tells the same on a terminal, `--help-all` all of it.

Standard output has the result only; hints, progress and errors go to standard error. Every command
takes these, unless its own section says otherwise:

"""

_EXIT_CODES = """
## Exit codes

| code | meaning |
|---|---|
"""


def _usage(command: click.Command, path: str) -> str:
    arguments = " ".join(
        _argument(parameter)
        for parameter in command.params
        if isinstance(parameter, click.Argument)
    )
    tail = "COMMAND" if isinstance(command, click.Group) else "[OPTIONS]"
    return f"{path} {tail} {arguments}".rstrip()


def _argument(argument: click.Argument) -> str:
    # Not click's own make_metavar: its looks are those of click's version.
    if argument.metavar:
        return argument.metavar
    name = (argument.name or "").upper()
    if isinstance(argument.type, click.Choice):
        name = "|".join(argument.type.choices)
    if argument.nargs != 1:
        name += "..."
    return name if argument.required else f"[{name}]"


def _option(option: click.Option) -> str:
    metavar = ""
    if not option.is_flag and not option.count:
        is_number = isinstance(option.type, click.types.IntParamType)
        metavar = option.metavar or ("N" if is_number else option.type.name.upper())
    names = ", ".join([*option.opts, *option.secondary_opts])
    default = option.default
    shown = f" ({default})" if option.show_default and default is not None else ""
    return f"- `{f'{names} {metavar}'.rstrip()}`: {option.help or ''}{shown}"


def _options(command: click.Command) -> Iterator[click.Option]:
    for parameter in command.params:
        if isinstance(parameter, click.Option) and not parameter.hidden:
            yield parameter


def _section(command: click.Command, path: str, depth: int) -> Iterator[str]:
    text, _, examples = inspect.cleandoc(command.help or "").partition("\b\n")
    yield f"{'#' * depth} {path}\n\n    {_usage(command, path)}\n\n{text.strip()}\n"
    if examples:
        yield "\n".join(f"    {line}" for line in examples.strip().splitlines()) + "\n"
    own = [_option(option) for option in _options(command) if option.name not in SHARED_OPTIONS]
    if own:
        yield "\n".join(own) + "\n"
    if path == "mooncake-store bench":
        yield "See [benchmarks.md](benchmarks.md).\n"
    elif isinstance(command, click.Group):
        context = click.Context(command)
        for name in command.list_commands(context):
            inner = command.get_command(context, name)
            assert inner is not None
            yield from _section(inner, f"{path} {name}", depth + 1)


def _shared(command: click.Command) -> list[str]:
    return [_option(option) for option in _options(command) if option.name in SHARED_OPTIONS]


def page() -> str:
    """Return the whole page."""
    context = click.Context(cli)
    stat = cli.get_command(context, "stat")  # one that has all that is shared
    assert stat is not None
    parts = [_HEAD + "\n".join(_shared(stat)) + "\n"]
    parts.append(
        "`--master`, `--context` and `--timeout` are for commands that talk to a master; "
        "`mooncake-store help contexts` says which one that is.\n"
    )
    for title, names in GROUPS.items():
        parts.append(f"## {title}\n")
        for name in names:
            command = cli.get_command(context, name)
            assert command is not None
            parts += _section(command, f"mooncake-store {name}", 3)
    rows = "\n".join(f"| {int(code)} | {meaning} |" for code, meaning in MEANINGS.items())
    return "\n".join(parts) + _EXIT_CODES + rows + "\n"


if __name__ == "__main__":
    sys.stdout.write(page())
