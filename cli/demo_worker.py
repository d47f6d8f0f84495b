"""One client process of the demo: replays its share of the trace, checks every byte it reads."""

from __future__ import annotations

import json
import os
import random
import sys
import time
from collections import OrderedDict
from collections.abc import Sequence
from itertools import pairwise

from mooncake_store import Client
from mooncake_store.cli.trace_file import Request, read_trace
from mooncake_store.errors import CapacityError, ObjectBusyError, StoreError

REPORT_EVERY_S = 0.2
BATCH_BYTES = 2 * 2**20


class WrongBytesError(Exception):
    """A block came back with other bytes than were stored."""


class Blocks:
    """The bytes of each block, made from its hash id: what is read proves what it is."""

    def __init__(self, block_bytes: int, *, kept: int = 256) -> None:
        self.block_bytes = block_bytes
        self._kept = kept
        self._made: OrderedDict[int, bytes] = OrderedDict()

    def key(self, hash_id: int) -> str:
        """The key under which the block is stored."""
        return f"demo@conversation@{self.block_bytes}@{hash_id:016x}"

    def value(self, hash_id: int) -> bytes:
        """The block's bytes."""
        made = self._made.get(hash_id)
        if made is None:
            made = self._made[hash_id] = random.Random(hash_id).randbytes(self.block_bytes)
            if len(self._made) > self._kept:
                self._made.popitem(last=False)
        return made


class Times:
    """How long calls took, and how much they moved."""

    def __init__(self) -> None:
        self.moved_bytes = 0
        self.alone_s: list[float] = []  # of calls about one block
        self._total_s = 0.0

    def add(self, elapsed_s: float, moved_bytes: int, *, is_alone: bool) -> None:
        """Count one call."""
        self.moved_bytes += moved_bytes
        self._total_s += elapsed_s
        if is_alone:
            self.alone_s.append(elapsed_s)

    @property
    def bytes_per_s(self) -> float:
        return self.moved_bytes / self._total_s if self._total_s else 0.0

    def percentile_s(self, share: float) -> float:
        """Of a call about one block."""
        times = sorted(self.alone_s)
        return times[min(len(times) - 1, int(len(times) * share))] if times else 0.0


class Replayer:
    """Replays requests and measures what they cost.

    The first block of each prefix goes alone, so that its latency is seen; the others in batches,
    as an engine moves them.
    """

    def __init__(self, store: Client, blocks: Blocks) -> None:
        self._store = store
        self._blocks = blocks
        size = blocks.block_bytes
        self._batch = max(1, BATCH_BYTES // size)
        # Memory that a server on this host copies from by itself, as an engine's buffers would be.
        self._memory = store.alloc(self._batch * size)
        self._places = [self._memory[i * size : (i + 1) * size] for i in range(self._batch)]
        self.requests = self.asked = self.hits = 0
        self.reads, self.stores = Times(), Times()

    def replay(self, request: Request) -> None:
        """Read the stored prefix of one request, store the rest.

        Raises:
            WrongBytesError: A block came back with other bytes than were stored.
        """
        keys = [self._blocks.key(hash_id) for hash_id in request.hash_ids]
        with self._store.match_prefix(keys, pin=True, pin_timeout_s=30) as match:
            count = match.count
            for part in self._parts(0, count):
                self._read(keys[part], request.hash_ids[part])
            for part in self._parts(count, len(keys)):
                parent = keys[part.start - 1] if part.start else None
                if not self._write(keys[part], request.hash_ids[part], parent):
                    break
        self.asked += len(keys)
        self.hits += count
        self.requests += 1

    def _parts(self, start: int, end: int) -> list[slice]:
        """The first alone, then batches."""
        cuts = [start, *range(start + 1, end, self._batch), end] if start < end else []
        return [slice(a, b) for a, b in pairwise(cuts) if a < b]

    def _read(self, keys: Sequence[str], hash_ids: Sequence[int]) -> None:
        places = self._places[: len(keys)]
        started = time.perf_counter()
        sizes: Sequence[object]
        if len(keys) == 1:
            sizes = [self._store.get_into(keys[0], places[0])]
        else:
            sizes = self._store.get_batch_into(keys, places)
        elapsed_s = time.perf_counter() - started
        size = self._blocks.block_bytes
        self.reads.add(elapsed_s, len(keys) * size, is_alone=len(keys) == 1)
        for got, place, hash_id in zip(sizes, places, hash_ids, strict=True):
            if isinstance(got, StoreError):
                raise got
            if got != size or place != self._blocks.value(hash_id):
                raise WrongBytesError(f"block {hash_id} is pinned, but its bytes are not its own")

    def _write(self, keys: Sequence[str], hash_ids: Sequence[int], parent: str | None) -> bool:
        """Store blocks that follow `parent`; False: what is left of the pool is pinned."""
        places = self._places[: len(keys)]
        for place, hash_id in zip(places, hash_ids, strict=True):
            place[:] = self._blocks.value(hash_id)
        started = time.perf_counter()
        results: Sequence[object]
        try:
            if len(keys) == 1:
                results = [self._store.put(keys[0], places[0], parent=parent)]
            else:
                results = self._store.put_batch(keys, places, parent=parent, chain=True)
        except StoreError as error:
            results = [error]
        elapsed_s = time.perf_counter() - started
        stored = sum(result is True for result in results)
        if stored:
            moved_bytes = stored * self._blocks.block_bytes
            self.stores.add(elapsed_s, moved_bytes, is_alone=len(keys) == 1)
        for result in results:
            if isinstance(result, CapacityError):
                return False
            # Busy: the other client stores the same block at this moment.
            if isinstance(result, StoreError) and not isinstance(result, ObjectBusyError):
                raise result
        return True

    def report(self) -> dict[str, float]:
        """What it came to."""
        return {
            "requests": self.requests, "blocks": self.asked, "hits": self.hits,
            "bytes_read": self.reads.moved_bytes, "bytes_stored": self.stores.moved_bytes,
            "read_bytes_per_second": self.reads.bytes_per_s,
            "store_bytes_per_second": self.stores.bytes_per_s,
            "read_p50_seconds": self.reads.percentile_s(0.5),
            "read_p99_seconds": self.reads.percentile_s(0.99),
            "store_p50_seconds": self.stores.percentile_s(0.5),
            "store_p99_seconds": self.stores.percentile_s(0.99),
        }  # fmt: skip


def _tell(**fields: object) -> None:
    print(json.dumps(fields), flush=True)


def _replay(master: str, number: int, workers: int, requests: int, block_bytes: int) -> None:
    # Number 0 takes shared memory and Unix sockets, the others TCP as if they were elsewhere.
    with Client(master, strict=True, use_local_paths=number == 0) as store:
        replayer = Replayer(store, Blocks(block_bytes))
        told = 0.0
        for index, request in enumerate(read_trace(limit=requests)):
            if index % workers != number:
                continue
            replayer.replay(request)
            if time.monotonic() - told > REPORT_EVERY_S:
                told = time.monotonic()
                _tell(requests=replayer.requests)
        _tell(requests=replayer.requests, report=replayer.report())


def main() -> None:
    """Arguments: master, number of this worker, number of workers, requests in all, block bytes.

    Writes JSON lines: {"requests": N} now and then, at the end {"report": ...} or {"failed": ...}.
    """
    try:
        try:
            _replay(sys.argv[1], *(int(text) for text in sys.argv[2:]))
        except (StoreError, WrongBytesError) as error:
            _tell(failed=str(error))
            sys.exit(1)
    except BrokenPipeError:  # nobody waits for us any more
        os._exit(1)


if __name__ == "__main__":
    main()
