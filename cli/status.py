"""`mooncake-store status`."""

from __future__ import annotations

from typing import Any

import click

from mooncake_store.cli.exit_codes import ExitCode
from mooncake_store.cli.options import Access, client_options
from mooncake_store.cli.output import Output, printable
from mooncake_store.client import Client
from mooncake_store.config import format_size


def read_status(store: Client) -> dict[str, Any]:
    """Return the cluster as a document: servers and the master's counters."""
    members = store.members()
    return {
        "servers": [
            {
                "name": member.name, "server": member.server, "state": member.state,
                "node_id": member.node_id, "incarnation": member.incarnation,
                "addresses": list(member.addresses), "size_bytes": member.size_bytes,
                "ready_bytes": member.ready_bytes,
            }
            for member in members
        ],
        "counters": store.counters(),
    }  # fmt: skip


@click.command("status")
@client_options
def command(output: Output, access: Access) -> int:
    r"""Show master, store servers and what they have done.

    \b
    mooncake-store status
    mooncake-store status --json
    """
    with access.client() as store:
        document = {"master": access.target.master, **read_status(store)}
    if output.is_json:
        output.document(document)
        return ExitCode.OK
    print(f"master  {access.target.master}  (from {access.target.origin})")
    rows = [
        [printable(server["name"]), server["state"], format_size(server["size_bytes"]),
         format_size(server["ready_bytes"]), ", ".join(server["addresses"])]
        for server in document["servers"]
    ]  # fmt: skip
    if rows:
        output.table(rows, ["SERVER", "STATE", "SIZE", "READY", "ADDRESSES"])
    else:
        output.note("no store server has joined: start one with mooncake-store server")
    for name, value in document["counters"].items():
        print(f"{name}  {value}")
    return ExitCode.OK
