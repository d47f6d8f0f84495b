"""`mooncake-store status`."""

from __future__ import annotations

import time
from collections import Counter
from dataclasses import asdict
from typing import TYPE_CHECKING

import click

from mooncake_store.cli.exit_codes import ExitCode
from mooncake_store.cli.interrupts import raise_if_interrupted
from mooncake_store.cli.options import DURATION, Access, client_options
from mooncake_store.cli.output import Output, aligned, approximate_size, printable
from mooncake_store.cli.snapshot import Snapshot, take
from mooncake_store.errors import ClusterError

if TYPE_CHECKING:
    from mooncake_store.client import Client, Task
    from mooncake_store.coordination import Standby

LEADER_TIMEOUT_S = 2.0


def leader_of(master: str, timeout_s: float) -> str | None:
    """Return where the master is that leads a cluster; None: its coordinator does not say now."""
    from mooncake_store.coordination.discovery import SCHEMES, open_discovery

    if not master.startswith(SCHEMES):
        return master
    try:
        leader = open_discovery(master)(timeout_s)
    except ClusterError:  # the master answers all the same
        return None
    return leader.address if leader is not None else None


def standbys_of(master: str, timeout_s: float) -> tuple[Standby, ...] | None:
    """Return the masters that would take over; None: nobody can tell (now)."""
    from mooncake_store.coordination.discovery import SCHEMES, find_standbys

    if not master.startswith(SCHEMES):
        return None
    try:
        return find_standbys(master, timeout_s)
    except ClusterError:
        return None


def standby_lines(standbys: tuple[Standby, ...] | None, target: str) -> list[str]:
    """Return what is to be said of masters that stand by, in a cluster that can have them."""
    if standbys is None or not target.startswith("etcd://"):
        return []
    if not standbys:
        return ["standby  none: when this master ends, nobody takes over until another is started"]
    return [
        f"standby  {printable(each.address)} (process {each.pid} of {printable(each.host)})"
        for each in standbys
    ]


def storage_lines(snapshot: Snapshot) -> list[str]:
    """Return what is to be said of file systems that are full, or soon will be."""
    lines = []
    for server in snapshot.servers:
        if not server.is_storage_nearly_full:
            continue
        left = approximate_size(server.storage_free_bytes or 0)
        refused = f"; {server.storage_full:,} puts were refused" if server.storage_full else ""
        lines.append(
            f"warning  {printable(server.name)}: {left} are left in the file system under its "
            f"memory (/dev/shm, or its --segment-dir){refused}: make room there"
        )
    return lines


def stuck_repair(store: Client, snapshot: Snapshot) -> Task | None:
    """Return the last repair, if it has ended and could not make or spread all replicas."""
    if not snapshot.count("replicas_short") and not snapshot.count("replicas_share_host_total"):
        return None
    repairs = [task for task in store.tasks() if task.kind == "repair"]  # the newest first
    if not repairs or not repairs[0].has_ended or not repairs[0].objects_failed:
        return None
    return store.task(repairs[0].id)


def repair_line(repair: Task) -> str:
    """Return what is to be said of a repair that could not do all."""
    reasons = Counter(failure.reason for failure in repair.failures)
    why = ", ".join(reason for reason, _ in reasons.most_common(3)) or "nobody said why"
    return (
        f"warning  repair could not help {repair.objects_failed:,} objects ({printable(why)}): it "
        f"tries again when servers come or go, and every ten minutes; `tasks show {repair.id}`"
    )


def text_of(
    snapshot: Snapshot,
    target: str,
    *,
    is_verbose: bool,
    leader: str | None = None,
    epoch: int = 0,
    standbys: tuple[Standby, ...] | None = None,
    repair: Task | None = None,
) -> str:
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
    leading = f", {printable(leader)} leads" if leader and leader not in target else ""
    lines = [
        f"master   {printable(target)}{leading}{f', epoch {epoch}' if epoch else ''}",
        *standby_lines(standbys, target),
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
    lines += storage_lines(snapshot)
    if repair is not None:
        lines.append(repair_line(repair))
    if is_verbose:
        counters = [[name, f"{value:,}"] for name, value in snapshot.counters.items()]
        lines += ["", *aligned([["COUNTER", "VALUE"], *counters])]
    return "\n".join(lines)


@click.command("status")
@click.option("--watch", type=DURATION, metavar="TIME", help="again and again, so far apart")
@client_options
def command(output: Output, access: Access, watch: float | None) -> int:
    """Show masters, store servers, space and what happened to objects; -v: every counter.

    \b
    mooncake-store status
    mooncake-store status --watch 2s --json
    """
    if watch is not None and watch <= 0:
        raise click.UsageError("--watch is above 0")
    with access.client() as store:
        while True:
            snapshot = take(store, time.monotonic())
            leader = leader_of(access.target.master, LEADER_TIMEOUT_S)
            standbys = standbys_of(access.target.master, LEADER_TIMEOUT_S)
            epoch = store.statistics().epoch
            repair = stuck_repair(store, snapshot)
            if output.is_json:
                master = {
                    "address": access.target.shown, "origin": access.target.origin,
                    "leader": leader, "epoch": epoch,
                    "standbys": standbys if standbys is None else [asdict(one) for one in standbys],
                }  # fmt: skip
                stuck = None
                if repair is not None:
                    reasons = sorted({failure.reason for failure in repair.failures})
                    stuck = {
                        "task": repair.id, "objects": repair.objects_failed, "reasons": reasons,
                    }  # fmt: skip
                output.document({"master": master, **snapshot.document(), "repair_stuck": stuck})
            else:
                verbose = output.verbosity > 0
                text = text_of(
                    snapshot,
                    output.target,
                    is_verbose=verbose,
                    leader=leader,
                    epoch=epoch,
                    standbys=standbys,
                    repair=repair,
                )
                print(text, flush=True)
                if not snapshot.servers:
                    output.note("no store server has joined: start one with mooncake-store server")
            if watch is None:
                return ExitCode.OK
            time.sleep(watch)
            raise_if_interrupted()
            if not output.is_json:
                print()
