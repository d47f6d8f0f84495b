"""`bench soak`: mixed load for long, and what it leaves behind in memory, descriptors and threads.

A process may grow while caches and pools fill; from a sixth of the time on (at most 5 minutes) its
memory is looked at every second, and the slope of a straight line through it is what is quoted.
"""

from __future__ import annotations

import contextlib
import os
import random
import time
from collections.abc import Sequence
from pathlib import Path
from statistics import median

from mooncake_store import Client
from mooncake_store.cli.bench.cases import now, value_at_most
from mooncake_store.cli.bench.cluster import Cluster
from mooncake_store.cli.bench.failures.figures import one
from mooncake_store.cli.bench.report import Watcher, silent
from mooncake_store.cli.bench.rounds import Row
from mooncake_store.errors import ObjectError, StoreError

MIB = 1 << 20
SLOPE_MIB_PER_HOUR = 1.0
WARM_S_MAX = 300.0
RECONNECT_S = 5.0  # a client is closed and opened again
SIZES = (16, 4096, 65536, 262144)
KEYS = 4096  # more than the pool holds: puts evict
# Histories of bounded length, so short that they are full before the memory is looked at.
MASTER_FLAGS = ("--events-max", "4096", "--fates-max", "4096")


def resident_bytes(pid: int) -> int:
    """Memory of its own: what it maps of the pool is shared, and counted elsewhere."""
    fields = dict(
        line.split(":", 1) for line in Path(f"/proc/{pid}/status").read_text().splitlines()
    )
    return int(fields["RssAnon"].split()[0]) * 1024


def descriptors(pid: int) -> int:
    return len(os.listdir(f"/proc/{pid}/fd"))


def threads(pid: int) -> int:
    return len(os.listdir(f"/proc/{pid}/task"))


def slope_per_hour(times_s: Sequence[float], values: Sequence[float]) -> float:
    """Return the slope of the line that fits best, an hour."""
    middle_s, middle = sum(times_s) / len(times_s), sum(values) / len(values)
    spread = sum((t - middle_s) ** 2 for t in times_s)
    if not spread:
        return 0.0
    together = sum((t - middle_s) * (v - middle) for t, v in zip(times_s, values, strict=True))
    return together / spread * 3600


def growth(counts: Sequence[int]) -> float:
    """Return by how much the second half's median is above the first one's."""
    half = len(counts) // 2
    return median(counts[half:]) - median(counts[:half]) if half else 0.0


class Watched:
    """One process: its memory over time, and how many descriptors and threads it had."""

    def __init__(self, name: str, pid: int) -> None:
        self.name, self.pid = name, pid
        self.times_s: list[float] = []
        self.bytes: list[float] = []
        self.descriptors: list[int] = []
        self.threads: list[int] = []

    def look(self, at_s: float) -> None:
        self.times_s.append(at_s)
        self.bytes.append(float(resident_bytes(self.pid)))
        self.descriptors.append(descriptors(self.pid))
        self.threads.append(threads(self.pid))

    def rows(self) -> list[Row]:
        """Slope, and by how much descriptors and threads have grown from half to half.

        By the median: one that is there for a moment, while a client is opened, is no growth.
        """
        slope = slope_per_hour(self.times_s, self.bytes) / MIB
        return [
            one(f"{self.name}: memory at the end", "MiB", self.bytes[-1] / MIB),
            one(f"{self.name}: memory grows by", "MiB/h", slope,
                value_at_most(SLOPE_MIB_PER_HOUR)),
            one(f"{self.name}: descriptors grow by", "descriptors",
                growth(self.descriptors), value_at_most(2)),
            one(f"{self.name}: threads grow by", "threads",
                growth(self.threads), value_at_most(0)),
        ]  # fmt: skip


class Work:
    """Calls of all kinds, on objects that come and go."""

    def __init__(self, address: str) -> None:
        self._address = address
        self._values = [os.urandom(size) for size in SIZES]
        self._buffer = bytearray(max(SIZES))
        self.near = Client(address)
        self.far = Client(address, use_local_paths=False)
        self.calls = self.failures = 0

    def close(self) -> None:
        self.near.close()
        self.far.close()

    def reconnect(self) -> None:
        """Open a client in place of one that is closed."""
        self.far.close()
        self.far = Client(self._address, use_local_paths=False)

    def warm(self) -> None:
        """Have every part of the master's index once hold what any of them will hold.

        It is 256 shards, each with pages of its own; at a few calls a second the last of them is
        met for the first time after a quarter of an hour.
        """
        for number in range(KEYS):
            key = f"soak/{number}"
            self.near.upsert(key, self._values[0])
            self.near.change_replica(key, 2)

    def step(self) -> None:
        """Make one call."""
        client = random.choice((self.near, self.far))
        key = f"soak/{random.randrange(KEYS)}"
        keys = [f"soak/{random.randrange(KEYS)}" for _ in range(8)]
        kind = random.randrange(11)
        self.calls += 1
        try:
            if kind < 3:
                client.put(key, random.choice(self._values), replicas=random.choice((1, 2)))
            elif kind < 5:
                client.get(key)
            elif kind == 5:
                client.get_batch_into(keys, [bytearray(max(SIZES)) for _ in keys])
            elif kind == 6:
                client.match_prefix(keys, pin=True).unpin()
            elif kind == 7:
                with self.near.view(key) as memory:
                    assert memory is None or len(memory) >= 0
            elif kind == 8:
                client.upsert(key, random.choice(self._values))
            elif kind == 9:
                client.remove(key)
            else:
                # Not there, or somebody else's at this moment: answers, not faults.
                with contextlib.suppress(ObjectError):
                    client.change_replica(key, random.choice((1, 2)))
        except StoreError:
            self.failures += 1


def run(*, minutes: float = 30.0, rate: float = 200.0, watch: Watcher = silent) -> list[Row]:
    """Work at `rate` calls a second for so long, with a client reopened every 5 s."""
    with Cluster(pool_size_bytes=64 * MIB, servers=2, master_flags=MASTER_FLAGS) as cluster:
        work = Work(cluster.address)
        watched = [
            Watched("master", cluster.master.pid),
            *(Watched(f"server {n}", server.pid) for n, server in enumerate(cluster.servers)),
            Watched("client", os.getpid()),
        ]
        work.warm()
        begun = now()
        length_s = minutes * 60
        warm_s = min(length_s / 6, WARM_S_MAX)
        next_look_s, next_open_s, done = warm_s, RECONNECT_S, 0
        while (at_s := now() - begun) < length_s:
            while done < at_s * rate:
                work.step()
                done += 1
            if at_s >= next_look_s:
                for each in watched:
                    each.look(at_s)
                next_look_s += 1.0
            if at_s >= next_open_s:
                work.reconnect()
                next_open_s += RECONNECT_S
                watch("soak", at_s / length_s)
            time.sleep(0.005)
        work.close()
    rows = [
        one("calls", "calls", work.calls),
        one("calls that raised", "calls", work.failures, value_at_most(0)),
    ]
    for each in watched:
        rows += each.rows()
    return rows
