"""The command group: sub-commands by name, imported when they run, and how their errors end."""

from __future__ import annotations

import difflib
import importlib
import os
import sys
from collections.abc import Sequence
from typing import Any

import click

from mooncake_store import __version__
from mooncake_store.cli.exit_codes import MEANINGS, ExitCode
from mooncake_store.cli.output import Output
from mooncake_store.errors import StoreError

__all__ = ["COMMANDS", "cli", "run"]

# Name -> (module, what it does).  The text stands here so that --help imports none of them.
COMMANDS: dict[str, tuple[str, str]] = {
    "up": ("up", "start a complete store on this machine"),
    "demo": ("demo", "replay a real trace against a store of its own, checking every byte"),
    "put": ("put", "store a file, standard input or a text"),
    "get": ("get", "fetch an object into a file"),
    "cat": ("cat", "write objects to standard output"),
    "ls": ("ls", "list objects"),
    "stat": ("stat", "tell all about one object"),
    "rm": ("rm", "remove objects"),
    "replicate": ("replicate", "change the number of an object's replicas"),
    "pin": ("pin", "protect an object from eviction, or stop to"),
    "master": ("master", "run a master"),
    "server": ("server", "run a store server"),
    "status": ("status", "show master, servers and space"),
    "top": ("top", "watch the store live"),
    "ready": ("ready", "exit 0 when the store can serve"),
    "bench": ("benchmark", "measure this machine and the store"),
    "doctor": ("doctor", "check this machine for what the store needs"),
    "config": ("configuration", "show, check and explain settings"),
    "completion": ("completion", "print the completion script of a shell"),
    "version": ("version", "print the versions of command, protocol and master"),
}

GROUPS = {
    "Start": ("up", "demo"),
    "Objects": ("put", "get", "cat", "ls", "stat", "rm", "replicate", "pin"),
    "Processes": ("master", "server"),
    "Operate": ("status", "top", "ready", "bench", "doctor", "config", "completion", "version"),
}


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
            hint = f"; did you mean {near[0]}?" if near else ""
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
        with formatter.section("Exit codes"):
            formatter.write_dl([(str(int(code)), text) for code, text in MEANINGS.items()])


@click.group(cls=_Group, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, "--version", "-V", message="mooncake-store %(version)s")
def cli() -> None:
    """A KVCache store for LLM inference: prefixes' KV caches in the memory of many machines."""


def _output_of(arguments: Sequence[str]) -> Output:
    """How errors are to look when the command did not come so far as to parse its flags."""
    return Output(
        is_json="--json" in arguments,
        no_color="--no-color" in arguments,
        verbosity=2 if "-vv" in arguments else 0,
    )


def run(arguments: Sequence[str]) -> int:
    """Run a command line and return its exit status."""
    try:
        result = cli.main(list(arguments), prog_name="mooncake-store", standalone_mode=False)
        sys.stdout.flush()
        return int(result) if isinstance(result, int) else int(ExitCode.OK)
    except click.exceptions.Exit as error:
        return error.exit_code
    except click.UsageError as error:
        error.show()
        return int(ExitCode.USAGE)
    except (click.Abort, KeyboardInterrupt):
        return int(ExitCode.INTERRUPTED)
    except BrokenPipeError:
        # Whoever read stdout has enough; Python must not complain again at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return int(ExitCode.OK)
    except StoreError as error:
        return int(_output_of(arguments).error(error))
    except OSError as error:
        return int(_output_of(arguments).error(error))
