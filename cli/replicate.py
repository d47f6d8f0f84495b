"""`mooncake-store replicate`."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from mooncake_store.cli.exit_codes import ExitCode
from mooncake_store.cli.options import KEY, Access, client_options
from mooncake_store.cli.output import Output, printable
from mooncake_store.cli.progress import Waiting
from mooncake_store.errors import ConfigError

if TYPE_CHECKING:
    from mooncake_store.client import Client


def _server(store: Client, name: str | None) -> int | None:
    if name is None:
        return None
    members = store.members()
    for member in members:
        if name in (member.name, member.node_id, str(member.server)):
            return member.server
    known = ", ".join(member.name for member in members) or "none"
    raise ConfigError(f"there is no server {name!r} (known: {known})")


@click.command("replicate")
@click.argument("key", type=KEY)
@click.argument("count", type=click.IntRange(0, 16))
@click.option("--to", "target", metavar="SERVER", help="the server that gets a new replica")
@click.option("--from", "source", metavar="SERVER", help="the server whose replica goes first")
@client_options
def command(
    output: Output, access: Access, key: str, count: int, target: str | None, source: str | None
) -> int:
    """Make the object KEY have COUNT replicas; 0 moves one.

    \b
    mooncake-store replicate greeting 2
    mooncake-store replicate greeting 0 --from node-a --to node-b
    """
    with access.client() as store:
        servers = {"target": _server(store, target), "source": _server(store, source)}
        with Waiting(output, f"replicating {printable(key)}"):
            made = store.change_replica(key, count, **servers)
    output.result({"key": key, "replicas": made}, "")
    output.note(f"{printable(key)} has {made} replica{'s' if made != 1 else ''}")
    return ExitCode.OK if made >= count else ExitCode.PARTIAL
