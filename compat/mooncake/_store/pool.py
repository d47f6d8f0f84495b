"""Buffers that are registered once and used again and again."""

from __future__ import annotations

import threading
import time
from typing import Any

from mooncake._store.memory import MooncakeHostMemAllocator, view_at

__all__ = ["BufferLease", "BufferPool"]

_MAX_BYTES_DEFAULT = 1 << 30  # of a pool that is told no bound
_WAIT_STEP_S = 1.0


class BufferLease:
    """A buffer of a pool, until `release` or the end of its `with`.

    Attributes:
        buffer: `size` bytes, writable.
        ptr: Its address.
    """

    def __init__(self, pool: BufferPool, address: int, size: int, room: int) -> None:
        self._pool: BufferPool | None = pool
        self._address, self._size, self._room = address, size, room
        self._view: memoryview | None = None

    def _open(self) -> None:
        if self._pool is None:
            raise RuntimeError("buffer lease is closed")

    @property
    def buffer(self) -> memoryview:
        """The bytes.

        Raises:
            RuntimeError: The lease has ended.
        """
        self._open()
        if self._view is None:
            self._view = view_at(self._address, self._size)
        return self._view

    @property
    def ptr(self) -> int:
        """The address.

        Raises:
            RuntimeError: The lease has ended.
        """
        self._open()
        return self._address

    @property
    def size(self) -> int:
        """The bytes that were asked for."""
        self._open()
        return self._size

    def release(self) -> None:
        """Give the buffer back; more than once is harmless."""
        pool, self._pool = self._pool, None
        if pool is not None:
            self._view = None
            pool._give_back(self._address, self._room)

    def __enter__(self) -> BufferLease:
        return self

    def __exit__(self, *_: object) -> None:
        self.release()

    def __del__(self) -> None:
        self.release()


class BufferPool:
    """Registered buffers in classes of sizes that double.

    Args:
        store: Where they are registered.
        max_bytes: Of all buffers; 0: 1 GiB.
        min_size_class: The smallest buffer.
        max_size_class: The largest one; None: `max_bytes`.
        alignment: Of the addresses; more than a page is rounded down to one.
        block_on_exhaustion: `acquire` waits for a buffer that is given back.
        default_timeout: Seconds that it waits; None: as long as it takes.
        max_regions: Buffers at most; None: any number.
        prewarm_size: With `prewarm_count` buffers of this size to begin with.
    """

    def __init__(
        self,
        store: Any,
        max_bytes: int = 0,
        min_size_class: int = 65536,
        max_size_class: int | None = None,
        alignment: int = 8388608,
        block_on_exhaustion: bool = True,
        default_timeout: float | None = None,
        max_regions: int | None = None,
        prewarm_size: int | None = None,
        prewarm_count: int = 0,
    ) -> None:
        if min_size_class <= 0 or alignment <= 0 or max_bytes < 0:
            raise ValueError("min_size_class and alignment are above 0, max_bytes not below")
        self._store = store
        self._bytes_max = max_bytes or _MAX_BYTES_DEFAULT
        self._class_least = min_size_class
        self._class_most = max_size_class or self._bytes_max
        self._blocks, self._timeout_s = block_on_exhaustion, default_timeout
        self._regions_max = max_regions
        self._allocator = MooncakeHostMemAllocator()
        self._free: dict[int, list[int]] = {}
        self._bytes = self._count = 0
        self._is_closed = False
        self._changed = threading.Condition()
        if prewarm_size:
            self.prewarm(prewarm_size, prewarm_count)

    def acquire(
        self, size: int, block: bool | None = None, timeout: float | None = None
    ) -> BufferLease:
        """Return a buffer of at least `size` bytes.

        Raises:
            RuntimeError: The pool is closed, can never have so large a one, or has none now (and
                does not wait, or has waited `timeout` seconds).
            ValueError: `size` is not above 0.
        """
        room = self._class_of(size)
        is_waiting = self._blocks if block is None else bool(block)
        limit = self._timeout_s if timeout is None else timeout
        end = float("inf") if limit is None else time.monotonic() + limit
        with self._changed:
            while True:
                if self._is_closed:
                    raise RuntimeError("buffer pool is closed")
                address = self._take(room)
                if address:
                    return BufferLease(self, address, size, room)
                left_s = end - time.monotonic()
                if not is_waiting or left_s <= 0:
                    raise RuntimeError("buffer pool is exhausted")
                self._changed.wait(min(left_s, _WAIT_STEP_S))

    buffer = acquire
    """The same: `with pool.buffer(size) as lease`."""

    def prewarm(self, size: int, count: int) -> None:
        """Make `count` buffers of a size now.

        Raises:
            RuntimeError: The pool has no room for so many.
        """
        leases = [self.acquire(size, block=False) for _ in range(count)]
        for lease in leases:
            lease.release()

    def close(self) -> None:
        """Give back all buffers that are not in use; the others follow when they are released."""
        with self._changed:
            self._is_closed = True
            for room, addresses in self._free.items():
                for address in addresses:
                    self._unmake(address, room)
            self._free.clear()
            self._changed.notify_all()

    def _class_of(self, size: int) -> int:
        if size <= 0:
            raise ValueError("size is above 0")
        room = self._class_least
        while room < size:
            room *= 2
        if room > self._class_most:
            room = size  # between the last class and the bound
        if room > self._class_most or room > self._bytes_max:
            raise RuntimeError("requested buffer size exceeds pool capacity")
        return room

    def _take(self, room: int) -> int:
        """Return a free buffer, or a new one; 0: neither is there."""
        if self._free.get(room):
            return self._free[room].pop()
        if self._bytes + room > self._bytes_max or self._count == self._regions_max:
            self._shrink(room)
        if self._bytes + room > self._bytes_max or self._count == self._regions_max:
            return 0
        address = self._allocator.alloc(room)
        if self._store.register_buffer(address, room) != 0:
            self._allocator.free(address)
            raise RuntimeError("the store refuses to register a buffer: is it set up?")
        self._bytes += room
        self._count += 1
        return address

    def _shrink(self, room: int) -> None:
        """Give up free buffers of other sizes, until there is room."""
        for other, addresses in self._free.items():
            while addresses and (
                self._bytes + room > self._bytes_max or self._count == self._regions_max
            ):
                self._unmake(addresses.pop(), other)

    def _unmake(self, address: int, room: int) -> None:
        self._store.unregister_buffer(address)
        self._allocator.free(address)
        self._bytes -= room
        self._count -= 1

    def _give_back(self, address: int, room: int) -> None:
        with self._changed:
            if self._is_closed:
                self._unmake(address, room)
            else:
                self._free.setdefault(room, []).append(address)
            self._changed.notify_all()
