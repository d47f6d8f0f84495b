"""`mooncake-store help`."""

from __future__ import annotations

import difflib
from collections.abc import Iterator

import click

from mooncake_store.cli.app import COMMANDS, GROUPS, cli
from mooncake_store.cli.exit_codes import ExitCode
from mooncake_store.cli.options import ParamType, output_options
from mooncake_store.cli.output import Output
from mooncake_store.cli.topics import TOPICS, text_of_code, text_of_topic
from mooncake_store.errors import ERROR_CODES


class _Subject(ParamType):
    name = "SUBJECT"

    def shell_complete(
        self, ctx: click.Context, param: click.Parameter, incomplete: str
    ) -> list[click.shell_completion.CompletionItem]:
        return [
            click.shell_completion.CompletionItem(name)
            for name in (*TOPICS, *COMMANDS, *ERROR_CODES)
            if name.startswith(incomplete)
        ]


def text_of_command(context: click.Context, path: tuple[str, ...]) -> str | None:
    """Return the help of a command, of `config show` too; None when there is none."""
    command: click.Command = cli
    here = context.find_root()
    for name in path:
        found = command.get_command(here, name) if isinstance(command, click.Group) else None
        if found is None:
            return None
        command, here = found, click.Context(found, info_name=name, parent=here)
    return command.get_help(here)


def text_of_all(context: click.Context) -> str:
    """Return the help of every command, group by group."""
    root = context.find_root()
    parts = [root.get_help()]
    for title, names in GROUPS.items():
        parts.append(f"==== {title} " + "=" * (60 - len(title)))
        for name in names:
            command = cli.get_command(root, name)
            assert command is not None
            parts += [text_of_command(root, path) or "" for path in _paths(root, command, (name,))]
    return "\n\n".join(parts)


def _paths(
    parent: click.Context, command: click.Command, path: tuple[str, ...]
) -> Iterator[tuple[str, ...]]:
    """Yield the path of a command and of those below it."""
    yield path
    if isinstance(command, click.Group):
        inner = click.Context(command, info_name=path[-1], parent=parent)
        for name in command.list_commands(inner):
            below = command.get_command(inner, name)
            assert below is not None
            yield from _paths(inner, below, (*path, name))


def _overview() -> str:
    topics = "\n".join(f"  {name:12}{about}" for name, (about, _) in TOPICS.items())
    return (
        "mooncake-store help SUBJECT, where SUBJECT is a command, an error code (MS-1203) or\n\n"
        f"{topics}\n\nmooncake-store --help lists the commands, --help-all explains them all."
    )


@click.command("help")
@click.argument("subject", nargs=-1, type=_Subject())
@output_options
def command(output: Output, subject: tuple[str, ...]) -> int:
    """Explain a command, a topic or an error code.

    \b
    mooncake-store help put
    mooncake-store help errors MS-1203
    """
    words = tuple(word for word in subject if word != "errors") or subject[:1]
    name = " ".join(words)
    code = name.upper().removeprefix("MS-")
    row = ERROR_CODES.get(f"MS-{code}")
    if row is not None:
        output.result({"subject": row.code, **row._asdict()}, text_of_code(row))
        return ExitCode.OK
    if not words:
        text: str | None = _overview()
    elif name in TOPICS:
        text = text_of_topic(name)
    else:
        text = text_of_command(click.get_current_context(), words)
    if text is None:
        near = difflib.get_close_matches(name, [*TOPICS, *COMMANDS, *ERROR_CODES], 1)
        hint = f": did you mean {near[0]}?" if near else ""
        raise click.UsageError(f"there is no help about {name!r}{hint}")
    output.result({"subject": name, "text": text}, text)
    return ExitCode.OK
