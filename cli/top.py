"""`mooncake-store top`."""

from __future__ import annotations

import importlib.util
import sys
import time
from collections.abc import Iterator
from typing import TYPE_CHECKING

import click

from mooncake_store.cli.exit_codes import ExitCode
from mooncake_store.cli.interrupts import raise_if_interrupted
from mooncake_store.cli.options import DURATION, Access, client_options
from mooncake_store.cli.output import Output, aligned, approximate_size, printable
from mooncake_store.cli.snapshot import Snapshot, take

if TYPE_CHECKING:
    from mooncake_store.client import Client

BAR_WIDTH = 20


def bar(share: float) -> str:
    """Return a share of 1 as a bar: `[#####...............]`."""
    full = round(min(max(share, 0.0), 1.0) * BAR_WIDTH)
    return "[" + "#" * full + "." * (BAR_WIDTH - full) + "]"


def pool_lines(snapshot: Snapshot) -> list[str]:
    """Return how full the pool is, and of what."""
    size = approximate_size
    ready = snapshot.ready_bytes
    share = snapshot.used_bytes / ready if ready else 0.0
    kinds = [
        f"{size(snapshot.count(f'pool_{kind}_bytes'))} {kind.replace('_', ' ')}"
        for kind in ("complete", "writing", "freeing", "pinned", "leased", "hard_pinned")
    ]
    return [
        f"space    {bar(share)} {share:4.0%}  {size(snapshot.used_bytes)} of {size(ready)} used",
        f"         {', '.join(kinds)}",
    ]


def funnel_lines(snapshot: Snapshot, rates: dict[str, float]) -> list[str]:
    """Return what became of the keys that were asked for: now, and since the master's start."""
    asked, hits = rates["lookups"], rates["hits"]
    now = f"{hits / asked:.1%}" if asked else "-"
    ratio = snapshot.hit_ratio
    return [
        f"lookups  {asked:,.0f}/s -> {hits:,.0f}/s found ({now} now, "
        f"{'-' if ratio is None else f'{ratio:.1%}'} of {snapshot.count('lookup_keys_total'):,} "
        "in all)",
        f"calls    {rates['puts']:,.0f} puts/s, {rates['exists']:,.0f} exists/s, "
        f"{rates['removals']:,.0f} removals/s, {rates['frames']:,.0f} frames/s",
    ]


def left_line(snapshot: Snapshot, rates: dict[str, float]) -> str:
    """Return why objects left."""
    parts = ", ".join(f"{count:,} {reason}" for reason, count in snapshot.left.items())
    return (
        f"left     {parts}; evicting {rates['evictions']:,.0f}/s "
        f"({approximate_size(rates['evicted_bytes'])}/s)"
    )


def server_rows(snapshot: Snapshot) -> list[list[str]]:
    """Return a header and one row a store server."""
    size = approximate_size
    rows = [["SERVER", "STATE", "TIER", "USED", "", "FREE", "PINNED", "OBJECTS"]]
    for server in snapshot.servers:
        share = server.used_bytes / server.ready_bytes if server.ready_bytes else 0.0
        rows.append([
            printable(server.name), server.state, "dram", f"{share:4.0%}", bar(share),
            size(server.free_bytes), size(server.pinned_bytes), f"{server.objects:,}",
        ])  # fmt: skip
    return rows


def text_of(snapshot: Snapshot, rates: dict[str, float], target: str) -> str:
    """Return one picture of the store for people."""
    lines = [
        f"master   {printable(target)}",
        f"objects  {snapshot.count('objects'):,} "
        f"of {approximate_size(snapshot.count('object_bytes'))}, "
        f"{snapshot.count('sessions'):,} sessions, {snapshot.count('pins'):,} pins",
        *pool_lines(snapshot),
        *funnel_lines(snapshot, rates),
        left_line(snapshot, rates),
        "",
        *aligned(server_rows(snapshot)),
    ]
    return "\n".join(lines)


def pictures(store: Client, interval_s: float) -> Iterator[tuple[Snapshot, dict[str, float]]]:
    """Yield the store and its rates, again and again; the first after one interval."""
    before = take(store, time.monotonic())
    while True:
        time.sleep(interval_s)
        raise_if_interrupted()
        now = take(store, time.monotonic())
        yield now, now.per_second(before)
        before = now


@click.command("top")
@click.option("--once", is_flag=True, help="one picture, as plain text, then end")
@click.option("--interval", type=DURATION, default=1.0, metavar="TIME", help="between two (1s)")
@client_options
def command(output: Output, access: Access, once: bool, interval: float) -> int:
    """Watch the store: space, hits, what leaves and why, servers; q ends it.

    The live screen needs textual: pip install 'mooncake-store[top]'.

    \b
    mooncake-store top
    mooncake-store top --once
    """
    if interval <= 0:
        raise click.UsageError("--interval is above 0")
    is_plain = once or output.is_json or not sys.stdout.isatty()
    if not is_plain and importlib.util.find_spec("textual") is None:
        output.note("plain text: pip install 'mooncake-store[top]' gives the live screen")
        is_plain = True
    with access.client() as store:
        if not is_plain:
            from mooncake_store.cli.top_screen import TopScreen

            failure = TopScreen(store, output.target, interval).run()
            if failure is not None:
                raise failure
            return ExitCode.OK
        for snapshot, rates in pictures(store, interval):
            if output.is_json:
                output.document({
                    "master": {"address": access.target.shown, "origin": access.target.origin},
                    **snapshot.document(), "per_second": rates,
                })  # fmt: skip
            else:
                print(text_of(snapshot, rates, output.target), flush=True)
            if once:
                break
            if not output.is_json:
                print()
    return ExitCode.OK
