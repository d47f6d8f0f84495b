"""`mooncake-store completion`."""

from __future__ import annotations

import click
from click.shell_completion import get_completion_class

from mooncake_store.cli.exit_codes import ExitCode


@click.command("completion")
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
def command(shell: str) -> int:
    r"""Print the script that completes commands, flags and keys in a shell.

    \b
    mooncake-store completion bash > ~/.local/share/bash-completion/completions/mooncake-store
    """
    from mooncake_store.cli.app import cli

    kind = get_completion_class(shell)
    if kind is None:
        raise click.UsageError(f"there is no completion for {shell}")
    print(kind(cli, {}, "mooncake-store", "_MOONCAKE_STORE_COMPLETE").source())
    return ExitCode.OK
