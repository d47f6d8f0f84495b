"""`bench evict`: a pool that is too small for what is put, and nothing pinned.

A put evicts for itself, so none is refused while bytes that may leave suffice.  A pool is filled
with objects of one size, with and without readers that keep the first ones in use.
"""

from __future__ import annotations

import time
from dataclasses import dataclass

from mooncake_store import Client
from mooncake_store.cli.bench.cases import value_at_most
from mooncake_store.cli.bench.cluster import Cluster
from mooncake_store.cli.bench.operations import pool_key, private_memory
from mooncake_store.cli.bench.raw import KIB, MIB, size_text
from mooncake_store.cli.bench.report import Watcher, silent
from mooncake_store.cli.bench.rounds import Row, Spread
from mooncake_store.errors import CapacityError

POOL_BYTES = 256 * MIB


@dataclass(frozen=True, slots=True)
class Overfill:
    """One pool filled past its size."""

    size: int
    count: int


OVERFILLS = (Overfill(MIB, 1500), Overfill(16 * MIB, 200), Overfill(64 * KIB, 12_000))


def overfill(
    client: Client, memory: memoryview, work: Overfill, *, is_read: bool
) -> tuple[int, float]:
    """Put the objects and return how many puts were refused, and how many a second there were.

    Args:
        client: Of an empty pool.
        memory: Source and target, at least `work.size` bytes.
        work: What to put.
        is_read: Each new object is read at once, and so are the first ones while they are there.
    """
    piece = memory[: work.size]
    keys = [pool_key(f"evict{work.size}{is_read}", number) for number in range(work.count)]
    first = max(1, POOL_BYTES // work.size // 8)
    refused, spent = 0, 0.0
    for number, key in enumerate(keys):
        begun = time.perf_counter()
        try:
            client.put_from(key, piece)
        except CapacityError:
            refused += 1
        spent += time.perf_counter() - begun
        if is_read:
            client.get_into(key, piece)
            client.get_into(keys[number % min(first, number + 1)], piece)
    client.remove_matching("")
    return refused, work.count / spent


def run(*, policy: str = "lru", is_quick: bool = False, watch: Watcher = silent) -> list[Row]:
    """Overfill a pool of 256 MiB.

    Args:
        policy: Of the master.
        is_quick: A tenth of the puts, which still is more than the pool holds.
        watch: Told what is being measured.
    """
    rows: list[Row] = []
    memory = private_memory(16 * MIB)
    flags = ["--eviction", policy]
    with (
        Cluster(pool_size_bytes=POOL_BYTES, master_flags=flags) as cluster,
        Client(cluster.address) as client,
    ):
        works = [(work, is_read) for work in OVERFILLS for is_read in (False, True)]
        for number, (work, is_read) in enumerate(works):
            least = 2 * POOL_BYTES // work.size
            chosen = Overfill(work.size, least) if is_quick else work
            refused, per_s = overfill(client, memory, chosen, is_read=is_read)
            name = f"{chosen.count:,} puts of {size_text(work.size)}"
            name += ", keys just read" if is_read else ""
            bar = value_at_most(0)
            rows.append(Row(f"{name}: refused", "puts", Spread.of([float(refused)]), bar=bar))
            rows.append(Row(f"{name}: rate", "puts/s", Spread.of([per_s])))
            watch("overfill", (number + 1) / len(works))
    return rows
