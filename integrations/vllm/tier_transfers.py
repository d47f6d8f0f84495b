"""Rows of a host's KV cache to the store and back, in the background; nothing here knows vLLM.

Who submits is never held up, and owns the rows until the job is among those that have ended.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

from mooncake_store.client import CacheIdentity
from mooncake_store.client.native import ffi
from mooncake_store.integrations.engine_store import EngineStore
from mooncake_store.integrations.vllm.settings import TierSettings

__all__ = ["Ended", "TierTransfers"]


@dataclass(frozen=True, slots=True)
class Ended:
    """What became of a job.

    Attributes:
        job_id: Its number.
        is_done: For each of its names whether it is stored, or in its row.
        seconds: From being submitted on.
        moved_bytes: Of those that were not there already.
    """

    job_id: int
    is_done: list[bool]
    seconds: float
    moved_bytes: int


class TierTransfers:
    """Moves rows of one memory.

    Args:
        store: Where chunks are kept.
        settings: Deadlines, replicas, threads.
        identity: Of all chunks: names are unique within it.
        memory: Rows of equal length, contiguous.
    """

    def __init__(
        self,
        store: EngineStore,
        settings: TierSettings,
        identity: CacheIdentity,
        memory: memoryview,
    ) -> None:
        if memory.strides is None or not memory.c_contiguous:
            raise ValueError("the rows do not lie together")
        self._store = store
        self._settings = settings
        self._identity = identity
        self._row_bytes = memory.strides[0]
        self._rows = len(memory)
        self._memory = ffi.from_buffer(memory)  # keeps it
        self._base = int(ffi.cast("uintptr_t", self._memory))
        self._lock = threading.Condition()
        self._ended: list[Ended] = []
        self._running = 0
        self._threads = ThreadPoolExecutor(settings.threads, thread_name_prefix="mooncake-tier")

    @property
    def is_idle(self) -> bool:
        """Whether no job runs, or has ended untold."""
        with self._lock:
            return not self._running and not self._ended

    def exists(self, names: Sequence[bytes]) -> list[bool]:
        """Return for each name whether it is stored; such a one stays for a while.  Blocks."""
        return self._store.exists(self._keys(names), lease_s=self._settings.lease_s)

    def touch(self, names: Sequence[bytes]) -> None:
        """Tell the store, soon, that chunks were used."""
        self._store.touch(self._keys(names))

    def save(self, job_id: int, names: Sequence[bytes], rows: Sequence[int]) -> None:
        """Store rows under names; what is there already stays."""
        self._submit(job_id, self._store.save, names, rows)

    def load(self, job_id: int, names: Sequence[bytes], rows: Sequence[int]) -> None:
        """Fill rows with what is stored under names."""
        self._submit(job_id, self._load, names, rows)

    def take_ended(self) -> list[Ended]:
        """Return the jobs that have ended since the last call."""
        with self._lock:
            ended, self._ended = self._ended, []
        return ended

    def drain(self) -> None:
        """Wait until all jobs have ended; each has a deadline."""
        with self._lock:
            self._lock.wait_for(lambda: self._running == 0)

    def close(self) -> None:
        """Wait for what runs, and end."""
        self._threads.shutdown()

    # ---- inside ----

    def _keys(self, names: Sequence[bytes]) -> list[str]:
        return [self._identity.key(name) for name in names]

    def _submit(self, job_id: int, move: Any, names: Sequence[bytes], rows: Sequence[int]) -> None:
        names = list(names)
        rows = [int(row) for row in rows]
        if len(rows) != len(names) or not all(0 <= row < self._rows for row in rows):
            raise ValueError(f"{len(names)} names and rows {rows} of {self._rows}")
        began = time.monotonic()
        with self._lock:
            self._threads.submit(self._run, job_id, move, names, rows, began)
            self._running += 1

    def _run(
        self, job_id: int, move: Any, names: list[bytes], rows: list[int], began: float
    ) -> None:
        addresses = [self._base + row * self._row_bytes for row in rows]
        numbers = move(self._keys(names), addresses, [self._row_bytes] * len(rows))
        moved = sum(number > 0 for number in numbers) * self._row_bytes
        is_done = [number >= 0 for number in numbers]
        with self._lock:
            self._ended.append(Ended(job_id, is_done, time.monotonic() - began, moved))
            self._running -= 1
            self._lock.notify_all()

    def _load(self, keys: list[str], addresses: list[int], sizes: list[int]) -> list[int]:
        read = self._store.load(keys, addresses, sizes)
        return [size or -1 for size in read]
