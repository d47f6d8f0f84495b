"""`mooncake-store conductor instances`."""

from __future__ import annotations

from typing import Any

import click

from mooncake_store.cli.conductor_access import ConductorAccess, as_conductors, conductor_options
from mooncake_store.cli.exit_codes import ExitCode
from mooncake_store.cli.options import output_options
from mooncake_store.cli.output import Output, printable

__all__ = ["instances"]


@click.command("instances")
@conductor_options
@output_options
def instances(output: Output, access: ConductorAccess) -> int:
    """Show the instances that a conductor knows, and how loaded they are.

    \b
    mooncake-store conductor instances --conductor 127.0.0.1:7710
    """
    found = access.ask("GET", "/v1/instances")
    with as_conductors(access):
        rows = [_row(one) for one in found["instances"]]
    if output.is_json:
        output.document(found)
        return ExitCode.OK
    if not rows:
        output.note("no instance is registered")
    output.table(rows, ("NAME", "ROLE", "STATE", "SERVER", "QUEUE", "BATCH", "HEARD"))
    return ExitCode.OK


def _row(one: dict[str, Any]) -> list[str]:
    prefill, decode = one["prefill"], one["decode"]
    return [
        printable(one["name"]),
        one["role"],
        one["state"],
        printable(one["server"]) or "-",
        "-" if prefill is None else f"{prefill['queue_s']:.2f} s ({prefill['requests']})",
        "-" if decode is None else f"{decode['batch']:.0f}",
        f"{one['heard_s_ago']:.1f} s ago",
    ]
