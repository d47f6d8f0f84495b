"""`mooncake-store status`."""

from __future__ import annotations

import time

import click

from mooncake_store.cli.exit_codes import ExitCode
from mooncake_store.cli.interrupts import raise_if_interrupted
from mooncake_store.cli.options import DURATION, Access, client_options
from mooncake_store.cli.output import Output, aligned, approximate_size, printable
from mooncake_store.cli.snapshot import Snapshot, take


def text_of(snapshot: Snapshot, target: str, *, is_verbose: bool) -> str:
    """Return a snapshot for people."""
    size = approximate_size
    used = f" ({snapshot.used_bytes / snapshot.ready_bytes:.0%})" if snapshot.ready_bytes else ""
    growing = (
        f", {size(snapshot.size_bytes - snapshot.ready_bytes)} being prepared"
        if snapshot.ready_bytes < snapshot.size_bytes
        else ""
    )
    ratio = snapshot.hit_ratio
    hits = "no key was looked up yet"
    if ratio is not None:
        hits = f"{ratio:.1%} of {snapshot.count('lookup_keys_total'):,} keys that were looked up"
    left = ", ".join(f"{count:,} {reason}" for reason, count in snapshot.left.items() if count)
    lines = [
        f"master   {printable(target)}",
        f"pool     {size(snapshot.used_bytes)} used{used}, {size(snapshot.free_bytes)} free, "
        f"{size(snapshot.pinned_bytes)} pinned, of {size(snapshot.size_bytes)}{growing}",
        f"objects  {snapshot.count('objects'):,} of {size(snapshot.count('object_bytes'))}",
        f"hits     {hits}",
        f"left     {left or 'none'}",
        f"clients  {snapshot.count('sessions'):,}",
    ]
    if snapshot.count("tasks_running") or snapshot.count("replicas_short"):
        lines.append(
            f"tasks    {snapshot.count('tasks_running'):,} at work, "
            f"{snapshot.count('replicas_short'):,} replicas are missing"
        )
    rows = [["SERVER", "STATE", "USED", "FREE", "PINNED", "SIZE", "OBJECTS", "ADDRESSES"]]
    rows += [
        [
            printable(server.name), server.state, size(server.used_bytes), size(server.free_bytes),
            size(server.pinned_bytes), size(server.size_bytes), f"{server.objects:,}",
            printable(", ".join(server.addresses)),
        ]
        for server in snapshot.servers
    ]  # fmt: skip
    if snapshot.servers:
        lines += ["", *aligned(rows)]
    if is_verbose:
        counters = [[name, f"{value:,}"] for name, value in snapshot.counters.items()]
        lines += ["", *aligned([["COUNTER", "VALUE"], *counters])]
    return "\n".join(lines)


@click.command("status")
@click.option("--watch", type=DURATION, metavar="TIME", help="again and again, so far apart")
@client_options
def command(output: Output, access: Access, watch: float | None) -> int:
    """Show master, store servers, space and what happened to objects; -v: every counter.

    \b
    mooncake-store status
    mooncake-store status --watch 2s --json
    """
    if watch is not None and watch <= 0:
        raise click.UsageError("--watch is above 0")
    with access.client() as store:
        while True:
            snapshot = take(store, time.monotonic())
            if output.is_json:
                master = {"address": access.target.shown, "origin": access.target.origin}
                output.document({"master": master, **snapshot.document()})
            else:
                print(text_of(snapshot, output.target, is_verbose=output.verbosity > 0), flush=True)
                if not snapshot.servers:
                    output.note("no store server has joined: start one with mooncake-store server")
            if watch is None:
                return ExitCode.OK
            time.sleep(watch)
            raise_if_interrupted()
            if not output.is_json:
                print()
