"""`mooncake-store forget`."""

from __future__ import annotations

import sys

import click

from mooncake_store.cli.exit_codes import ExitCode
from mooncake_store.cli.options import Access, client_options
from mooncake_store.cli.output import Output, printable


@click.command("forget")
@click.argument("node")
@click.option("--yes", "-y", is_flag=True, help="do not ask")
@client_options
def command(output: Output, access: Access, node: str, yes: bool) -> int:
    """Let the store server NODE, by name or id, be a member no more; it must be gone.

    No master waits for it then, and removes need not be remembered for it. Should it come back, it
    joins as an empty one. A master does this by itself after --forget-after.

    \b
    mooncake-store forget node-a
    """
    if not yes:
        if not sys.stdin.isatty():
            raise click.UsageError("what that node holds is given up: confirm with --yes")
        if not click.confirm(f"give up what {printable(node)} holds?", err=True):
            output.note("nothing was done")
            return ExitCode.FAILED
    with access.client() as store:
        store.forget_member(node)
    output.result({"forgotten": node}, "")
    output.note(f"{printable(node)} is a member no more")
    return ExitCode.OK
