"""One client process of the demo: replays its share of the trace, checks every byte it reads."""

from __future__ import annotations

import json
import random
import sys
import time
from collections import OrderedDict

from mooncake_store import Client
from mooncake_store.cli.trace_file import Request, read_trace
from mooncake_store.errors import CapacityError

REPORT_EVERY_S = 0.2


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


class Replayer:
    """Replays requests and measures what they cost."""

    def __init__(self, store: Client, blocks: Blocks) -> None:
        self._store = store
        self._blocks = blocks
        self._buffer = bytearray(blocks.block_bytes)
        self.requests = self.asked = self.hits = 0
        self.read_s: list[float] = []
        self.store_s: list[float] = []

    def replay(self, request: Request) -> None:
        """Read the stored prefix of one request, store the rest.

        Raises:
            ValueError: A block came back with other bytes than were stored.
        """
        keys = [self._blocks.key(hash_id) for hash_id in request.hash_ids]
        now = time.perf_counter
        with self._store.match_prefix(keys, pin=True, pin_timeout_s=30) as match:
            for hash_id, key in zip(request.hash_ids, match.keys, strict=False):
                started = now()
                size = self._store.get_into(key, self._buffer)
                self.read_s.append(now() - started)
                if size != self._blocks.block_bytes or self._buffer != self._blocks.value(hash_id):
                    raise ValueError(f"block {hash_id} is pinned, but its bytes are not its own")
            self.asked += len(keys)
            self.hits += match.count
            parent = keys[match.count - 1] if match.count else None
            for hash_id, key in zip(
                request.hash_ids[match.count :], keys[match.count :], strict=True
            ):
                value = self._blocks.value(hash_id)
                started = now()
                try:
                    self._store.put(key, value, parent=parent)
                except CapacityError:  # what is left is pinned: the rest stays uncached
                    break
                self.store_s.append(now() - started)
                parent = key
        self.requests += 1

    def report(self) -> dict[str, float]:
        """What it came to."""
        size = self._blocks.block_bytes

        def rate(times: list[float]) -> float:
            return len(times) * size / sum(times) if times else 0.0

        def percentile(times: list[float], share: float) -> float:
            return sorted(times)[min(len(times) - 1, int(len(times) * share))] if times else 0.0

        return {
            "requests": self.requests, "blocks": self.asked, "hits": self.hits,
            "bytes_read": len(self.read_s) * size, "bytes_stored": len(self.store_s) * size,
            "read_bytes_per_s": rate(self.read_s), "store_bytes_per_s": rate(self.store_s),
            "read_p50_s": percentile(self.read_s, 0.5), "read_p99_s": percentile(self.read_s, 0.99),
            "store_p50_s": percentile(self.store_s, 0.5),
            "store_p99_s": percentile(self.store_s, 0.99),
        }  # fmt: skip


def main() -> None:
    """Arguments: master, number of this worker, number of workers, requests in all, block bytes."""
    master = sys.argv[1]
    number, workers, requests, block_bytes = (int(text) for text in sys.argv[2:])
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
                print(json.dumps({"requests": replayer.requests}), flush=True)
        print(json.dumps({"requests": replayer.requests, "report": replayer.report()}), flush=True)


if __name__ == "__main__":
    main()
