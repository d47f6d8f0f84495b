"""`mooncake-store completion`."""

from __future__ import annotations

import click
from click.shell_completion import get_completion_class

from mooncake_store.cli.exit_codes import ExitCode
from mooncake_store.cli.options import output_options
from mooncake_store.cli.output import Output


@click.command("completion")
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
@output_options
def command(output: Output, shell: str) -> int:
    """Print the script that completes commands, flags and keys in a shell.

    \b
    mooncake-store completion bash > ~/.local/share/bash-completion/completions/mooncake-store
    """
    from mooncake_store.cli.app import cli

    kind = get_completion_class(shell)
    if kind is None:
        raise click.UsageError(f"there is no completion for {shell}")
    script = kind(cli, {}, "mooncake-store", "_MOONCAKE_STORE_COMPLETE").source()
    output.result({"shell": shell, "script": script}, script)
    return ExitCode.OK
