"""The command group: sub-commands by name, imported when they run, and how their errors end."""

from __future__ import annotations

import difflib
import importlib
import os
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import click

from mooncake_store import __version__
from mooncake_store.cli.exit_codes import ExitCode
from mooncake_store.cli.interrupts import interruptible
from mooncake_store.cli.output import Output
from mooncake_store.errors import ConfigError

__all__ = ["COMMANDS", "GROUPS", "Invocation", "cli", "run"]

# Name -> (module, what it does).  The text stands here so that --help imports none of them.
COMMANDS: dict[str, tuple[str, str]] = {
    "up": ("up", "start a complete store on this machine"),
    "demo": ("demo", "replay a real trace against a store of its own, checking every byte"),
    "put": ("put", "store a file, standard input or a text"),
    "get": ("get", "fetch an object into a file"),
    "cat": ("cat", "write objects to standard output"),
    "ls": ("ls", "list objects"),
    "stat": ("stat", "tell all about one object"),
    "explain": ("explain", "tell where an object is, or when and why it went"),
    "rm": ("rm", "remove objects"),
    "replicate": ("replicate", "change the number of an object's replicas"),
    "move": ("move", "move a replica of an object to another server"),
    "pin": ("pin", "protect objects from eviction, or stop to"),
    "master": ("master", "run a master"),
    "server": ("server", "run a store server"),
    "conductor": ("conductor", "choose instances for requests, or refuse them"),
    "status": ("status", "show master, servers and space"),
    "top": ("top", "watch the store live"),
    "drain": ("drain", "empty a store server before it goes"),
    "tasks": ("tasks", "show and stop drains, repair and other tasks"),
    "forget": ("forget", "let a store server that is gone be a member no more"),
    "ready": ("ready", "exit 0 when the store can serve"),
    "bench": ("benchmark", "measure this machine and the store"),
    "sim": ("simulate", "replay a trace against a modelled cluster"),
    "doctor": ("doctor", "check this machine for what the store needs"),
    "config": ("configuration", "show, check and explain settings"),
    "completion": ("completion", "print the completion script of a shell"),
    "help": ("help", "explain a command, a topic or an error code"),
    "version": ("version", "print the versions of command and protocol"),
}

GROUPS = {
    "Start": ("up", "demo"),
    "Objects": ("put", "get", "cat", "ls", "stat", "explain", "rm", "replicate", "move", "pin"),
    "Processes": ("master", "server", "conductor"),
    "Operate": (
        "status", "top", "drain", "tasks", "forget", "ready", "bench", "sim", "doctor", "config",
        "completion", "help", "version",
    ),
}  # fmt: skip

_COMPLETE = "_MOONCAKE_STORE_COMPLETE"


@dataclass
class Invocation:
    """One run of the command.

    Attributes:
        output: How its errors are to look; the flags of the sub-command replace the first guess.
    """

    output: Output


class _Group(click.Group):
    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in COMMANDS:
            return None
        module = importlib.import_module(f"mooncake_store.cli.{COMMANDS[cmd_name][0]}")
        command: click.Command = module.command
        return command

    def resolve_command(self, ctx: click.Context, args: list[str]) -> Any:
        if args and args[0] not in COMMANDS:
            near = difflib.get_close_matches(args[0], COMMANDS, 1)
            hint = f": did you mean {near[0]}?" if near else ""
            ctx.fail(f"there is no command {args[0]!r}{hint}")
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        for title, names in GROUPS.items():
            with formatter.section(title):
                formatter.write_dl([(name, COMMANDS[name][1]) for name in names])

    def format_epilog(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Examples"):
            formatter.write_text("mooncake-store up")
            formatter.write_text("echo hello | mooncake-store put greeting -")
        codes = ", ".join(f"{int(code)} {code.name.lower().replace('_', ' ')}" for code in ExitCode)
        formatter.write_paragraph()
        formatter.write_text(f"Exit codes: {codes} (see: help exit-codes)")


def _help_all(ctx: click.Context, parameter: click.Parameter, value: bool) -> None:
    if value and not ctx.resilient_parsing:
        from mooncake_store.cli.help import text_of_all

        click.echo(text_of_all(ctx))
        ctx.exit()


@click.group(cls=_Group, context_settings={"help_option_names": ["-h", "--help"]})
@click.option(
    "--help-all", is_flag=True, is_eager=True, expose_value=False, callback=_help_all,
    help="Show the help of every command.",
)  # fmt: skip
@click.version_option(__version__, "--version", "-V", message="mooncake-store %(version)s")
def cli() -> None:
    """A KVCache store for LLM inference: prefixes' KV caches in the memory of many machines."""


def run(arguments: Sequence[str]) -> int:
    """Run a command line and return its exit status."""
    arguments = list(arguments)
    if os.environ.get(_COMPLETE):
        cli.main(arguments, prog_name="mooncake-store", complete_var=_COMPLETE)
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):  # whatever the locale: better escaped than a traceback
            stream.reconfigure(errors="backslashreplace")
    # How errors look when the command does not come so far as to parse its flags.
    invocation = Invocation(
        Output(
            is_json="--json" in arguments,
            no_color="--no-color" in arguments,
            verbosity=2 if "-vv" in arguments else 0,
        )
    )
    try:
        with interruptible():
            with cli.make_context("mooncake-store", arguments, obj=invocation) as context:
                result = cli.invoke(context)
            sys.stdout.flush()
        return int(result) if isinstance(result, int) else int(ExitCode.OK)
    except click.exceptions.Exit as error:
        return error.exit_code
    except click.UsageError as error:
        if _is_without_command(error):
            click.echo(error.format_message(), err=True)  # the help, as it is laid out
            return int(ExitCode.USAGE)
        return int(invocation.output.error(_usage_error(error)))
    except click.ClickException as error:
        return int(invocation.output.error(ConfigError(error.format_message())))
    except (click.Abort, KeyboardInterrupt):
        if sys.stderr.isatty():
            print(file=sys.stderr)  # behind the ^C
        return int(ExitCode.INTERRUPTED)
    except BrokenPipeError:
        # Whoever read stdout has enough; Python must not complain again at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return int(ExitCode.OK)
    except Exception as error:
        return int(invocation.output.error(error))


def _is_without_command(error: click.UsageError) -> bool:
    """Say whether only a group was named: click before 8.2 shows its help by itself."""
    return isinstance(error, getattr(click.exceptions, "NoArgsIsHelpError", ()))


def _usage_error(error: click.UsageError) -> ConfigError:
    context = error.ctx
    path = context.command_path if context is not None else "mooncake-store"
    message = " ".join(error.format_message().split())
    return ConfigError(message[:1].lower() + message[1:], hint=f"{path} --help")
