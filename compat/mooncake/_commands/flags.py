"""Flags as users of these commands write them: `--name=value`, `-name value`, `--noname`."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from typing import NoReturn

__all__ = ["parse", "refuse"]


def refuse(command: str, problem: str) -> NoReturn:
    """Say what is wrong with the command line, and exit with 2."""
    print(f"{command}: {problem}", file=sys.stderr)
    sys.exit(2)


def parse(
    command: str,
    arguments: Sequence[str],
    known: Mapping[str, object],
    ignored: Sequence[str],
) -> dict[str, str]:
    """Return the flags that were given, as text; booleans are `true` and `false`.

    Args:
        command: For messages.
        arguments: Of the command line.
        known: Flags that count, with their defaults; those of a bool need no value.
        ignored: Flags that are taken and have no effect; `x*` stands for all that begin with x.
    """
    given: dict[str, str] = {}
    rest = list(arguments)
    while rest:
        argument = rest.pop(0)
        if argument in ("-h", "--help", "-help"):
            print(f"{command}: takes {', '.join('--' + name for name in known)}")
            print("Other flags of the command that it stands in for are taken and have no effect.")
            sys.exit(0)
        if not argument.startswith("-"):
            refuse(command, f"{argument!r} is no flag")
        name, has_value, value = argument.lstrip("-").partition("=")
        name = name.replace("-", "_")
        if name not in known and name.startswith("no") and name[2:] in known:
            name, has_value, value = name[2:], "=", "false"
        if name not in known:
            if not _is_ignored(name, ignored) and not _is_ignored(name.removeprefix("no"), ignored):
                refuse(command, f"there is no flag --{name}")
            if not has_value and rest and not rest[0].startswith("-"):
                rest.pop(0)
            print(f"{command}: --{name} has no effect here", file=sys.stderr)
            continue
        if not has_value:
            if isinstance(known[name], bool):
                is_given = rest and rest[0].lower() in ("true", "false", "1", "0")
                value = rest.pop(0) if is_given else "true"
            elif rest:
                value = rest.pop(0)
            else:
                refuse(command, f"--{name} needs a value")
        given[name] = value.lower() if isinstance(known[name], bool) else value
    return given


def _is_ignored(name: str, ignored: Sequence[str]) -> bool:
    return any(
        name.startswith(each[:-1]) if each.endswith("*") else name == each for each in ignored
    )
