"""`bench trace`: the requests of a real service, replayed with real bytes as fast as they go.

For each request the client asks for its longest stored prefix (pinned), reads those blocks into
its memory, and stores the blocks that a prefill would have computed.  Each page of a block says
which block it belongs to; what was read is checked outside the measured time.
"""

from __future__ import annotations

import struct
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from mooncake_store import Client
from mooncake_store.cli.bench.cluster import Cluster
from mooncake_store.cli.bench.operations import private_memory
from mooncake_store.cli.bench.raw import KIB, MIB
from mooncake_store.cli.bench.report import Watcher, silent
from mooncake_store.cli.bench.rounds import Row, Spread
from mooncake_store.cli.bench.ticker import percentile
from mooncake_store.cli.trace_file import SAMPLE, Request, read_trace

PAGE = 4096
STAMP = struct.Struct("<QQ")  # hash id of the block, number of the page in it
WIPED = (1 << 64) - 1  # no block's hash id


@dataclass(slots=True)
class Replay:
    """What one replay did."""

    blocks: int = 0
    hits: int = 0
    bytes_read: int = 0
    bytes_stored: int = 0
    match_s: list[float] = field(default_factory=list)
    read_s: list[float] = field(default_factory=list)
    store_s: list[float] = field(default_factory=list)


def block_key(hash_id: int, block_bytes: int) -> str:
    """Return the key of a trace's block."""
    return f"trace@conversation@{block_bytes}@{hash_id:016x}"


def stamp(block: memoryview, hash_id: int) -> None:
    """Write into each page of the block which block it is of."""
    for page in range(0, len(block) - STAMP.size + 1, PAGE):
        STAMP.pack_into(block, page, hash_id, page // PAGE)


def is_stamped(block: memoryview, hash_id: int) -> bool:
    """Say whether every page of the block is of that block."""
    return all(
        STAMP.unpack_from(block, page) == (hash_id, page // PAGE)
        for page in range(0, len(block) - STAMP.size + 1, PAGE)
    )


def replay(
    client: Client,
    requests: Sequence[Request],
    memory: memoryview,
    block_bytes: int,
    watch: Watcher = silent,
) -> Replay:
    """Replay the requests one after the other.

    Raises:
        RuntimeError: A block that was read has other bytes than were stored.
    """
    done = Replay()
    now = time.perf_counter
    slots = [memory[at : at + block_bytes] for at in range(0, len(memory), block_bytes)]
    for number, request in enumerate(requests):
        keys = [block_key(hash_id, block_bytes) for hash_id in request.hash_ids]
        buffers = slots[: len(keys)]
        for buffer in buffers:
            stamp(buffer, WIPED)
        begun = now()
        match = client.match_prefix(keys, pin=True)
        matched = now()
        with match:
            count = match.count
            if count:
                sizes = client.get_batch_into(keys[:count], buffers[:count])
                done.read_s.append(now() - matched)
                done.bytes_read += count * block_bytes
                _check(request, buffers, sizes, block_bytes)
        done.match_s.append(matched - begun)
        for hash_id, buffer in zip(request.hash_ids[count:], buffers[count:], strict=True):
            stamp(buffer, hash_id)
        if count < len(keys):
            parent = keys[count - 1] if count else None
            begun = now()
            client.put_batch(keys[count:], buffers[count:], parent=parent, chain=True)
            done.store_s.append(now() - begun)
            done.bytes_stored += (len(keys) - count) * block_bytes
        done.blocks += len(keys)
        done.hits += count
        watch("replay", (number + 1) / len(requests))
    return done


def _check(
    request: Request, buffers: Sequence[memoryview], sizes: Sequence[object], block_bytes: int
) -> None:
    for hash_id, buffer, size in zip(request.hash_ids, buffers, sizes, strict=False):
        if size != block_bytes or not is_stamped(buffer, hash_id):
            raise RuntimeError(f"block {hash_id} came back wrong: {size!r}")


def ideal_hit_ratio(requests: Sequence[Request]) -> float:
    """Return the hit ratio of a store that never evicts."""
    seen: set[int] = set()
    blocks = hits = 0
    for request in requests:
        blocks += len(request.hash_ids)
        for hash_id in request.hash_ids:
            if hash_id not in seen:
                break
            hits += 1
        seen.update(request.hash_ids)
    return hits / blocks if blocks else 0.0


def _rows(title: str, done: Replay, ideal: float) -> list[Row]:
    def single(name: str, unit: str, value: float, raw: float | None = None) -> Row:
        limit = None if raw is None else Spread.of([raw])
        ratio = Spread.of([value / raw]) if raw else None
        return Row(f"{name}, {title}", unit, Spread.of([value]), raw=limit, ratio=ratio)

    rows = [single("block hits", "ratio", done.hits / max(done.blocks, 1), ideal)]
    for name, durations, moved in (
        ("match_prefix", done.match_s, 0),
        ("read", done.read_s, done.bytes_read),
        ("store", done.store_s, done.bytes_stored),
    ):
        if not durations:
            continue
        if moved:
            rows.append(single(name, "GB/s", moved / sum(durations) / 1e9))
        for share in (0.5, 0.99):
            latency_ms = percentile(durations, share) * 1e3
            rows.append(single(f"{name} a request, p{share * 100:.0f}", "ms", latency_ms))
    return rows


def run(
    *,
    path: Path = SAMPLE,
    requests: int = 300,
    block_bytes: int = 64 * KIB,
    pool_bytes: int | None = None,
    is_quick: bool = False,
    watch: Watcher = silent,
) -> list[Row]:
    """Replay a trace over shared memory and over TCP, each into an empty store.

    Args:
        path: The trace; the shipped sample by default.
        requests: How many, from the first.
        block_bytes: Bytes of KV cache in a block of the trace.
        pool_bytes: Of the store; by default all distinct blocks fit.
        is_quick: 30 requests: for trying the command, not for quoting.
        watch: Told what is being measured.
    """
    chosen = list(read_trace(path, limit=30 if is_quick else requests))
    distinct = len({hash_id for request in chosen for hash_id in request.hash_ids})
    pool = pool_bytes or distinct * (block_bytes + PAGE) * 5 // 4 + 64 * MIB
    most = max(len(request.hash_ids) for request in chosen)
    memory = private_memory(most * block_bytes)
    ideal = ideal_hit_ratio(chosen)
    rows: list[Row] = []
    for title, is_local in (("same host", True), ("TCP", False)):
        with (
            Cluster(pool_size_bytes=pool) as cluster,
            Client(cluster.address, use_local_paths=is_local) as client,
        ):
            rows += _rows(title, replay(client, chosen, memory, block_bytes, watch), ideal)
    return rows
