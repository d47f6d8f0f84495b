"""Clients that are killed in the middle of puts, reads and pins: all that they held comes back."""

from __future__ import annotations

import random
import subprocess
import sys
import time

from mooncake_store import Client
from mooncake_store.cli.bench.cases import now, value_at_most
from mooncake_store.cli.bench.cluster import Cluster
from mooncake_store.cli.bench.failures.figures import one
from mooncake_store.cli.bench.report import Watcher, silent
from mooncake_store.cli.bench.rounds import Row

MIB = 1 << 20
AT_ONCE = 4
LIFE_S = 0.3
SETTLE_S = 60.0  # sessions end by silence
HELD = (
    "pins", "pool_pinned_bytes", "puts_open", "puts_waiting", "pool_writing_bytes",
    "pool_freeing_bytes", "frees_waiting", "frees_held",
)  # fmt: skip
# What a client does until it is killed: puts in pieces, reads, views and pins, each left open.
WORK = """
import os, sys, threading
from mooncake_store import Client
store = Client(sys.argv[1], use_local_paths=sys.argv[2] == "near")
name = f"killed/{os.getpid()}"
def write():
    number = 0
    while True:
        number += 1
        store.put(f"{name}/{number % 8}", os.urandom(1 << 20), replicas=2)
        store.remove(f"{name}/{(number + 4) % 8}")
threading.Thread(target=write, daemon=True).start()
views = []
print("ready", flush=True)
number = 0
while True:
    number += 1
    key = f"kept/{number % 32}"
    store.pin(key)
    store.get(key)
    if sys.argv[2] == "near" and len(views) < 4:
        views.append(store.view(key))
"""


def run(*, kills: int, watch: Watcher = silent) -> list[Row]:
    """Kill `kills` clients, and look at what the master keeps for them afterwards."""
    with (
        Cluster(pool_size_bytes=256 * MIB, servers=2) as cluster,
        Client(cluster.address, strict=True) as store,
    ):
        store.put_batch([f"kept/{n}" for n in range(32)], [b"v" * 65536] * 32, replicas=2)
        killed, held_most = 0, 0
        while killed < kills:
            children = [
                subprocess.Popen(
                    [sys.executable, "-c", WORK, cluster.address, "near" if n % 2 else "far"],
                    stdout=subprocess.PIPE,
                    env=cluster.environment,
                )
                for n in range(min(AT_ONCE, kills - killed))
            ]
            for child in children:
                assert child.stdout is not None
                child.stdout.readline()
            for child in children:
                time.sleep(random.random() * LIFE_S)
                child.kill()
                child.wait()
                assert child.stdout is not None
                child.stdout.close()
                killed += 1
            totals = store.counters().totals
            held_most = max(held_most, totals["pool_pinned_bytes"] + totals["pool_writing_bytes"])
            watch("clients killed", killed / kills)
        begun = now()
        while True:
            totals = store.counters().totals
            held = {name: totals[name] for name in HELD if totals[name]}
            if not held or now() > begun + SETTLE_S:
                break
            time.sleep(0.2)
        rest = ", ".join(f"{name} {value}" for name, value in held.items())
        return [
            one("clients killed", "clients", killed),
            one("clients killed: pinned and reserved, at most", "bytes", held_most),
            one("clients killed: held after the last one", "kinds", len(held),
                value_at_most(0), rest),
            one("clients killed: until all came back", "s", now() - begun,
                value_at_most(SETTLE_S)),
            one("clients killed: sessions left", "sessions", totals["sessions"],
                value_at_most(1)),
        ]  # fmt: skip
