"""`mooncake-store pin`."""

from __future__ import annotations

import click

from mooncake_store.cli.exit_codes import ExitCode, worst_of
from mooncake_store.cli.options import KEY, Access, client_options
from mooncake_store.cli.output import Output
from mooncake_store.errors import StoreError


@click.command("pin")
@click.argument("keys", nargs=-1, required=True, type=KEY)
@click.option("--off", is_flag=True, help="stop protecting them")
@client_options
def command(output: Output, access: Access, keys: tuple[str, ...], off: bool) -> int:
    """Set the hard pin of objects: they are never evicted, and removed by force only.

    \b
    mooncake-store pin system-prompt
    mooncake-store pin system-prompt --off
    """
    failures: list[ExitCode] = []
    done = 0
    with access.client() as store:
        for key in keys:
            try:
                store.annotate(key, hard_pin=not off)
                done += 1
            except StoreError as error:
                error.key = error.key or key
                failures.append(output.error(error))
    output.result({"changed": done, "hard_pinned": not off}, "")
    return worst_of(done, failures)
