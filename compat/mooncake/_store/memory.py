"""Memory as engines name it: by address."""

from __future__ import annotations

import bisect
import ctypes
import mmap
import threading
from array import array
from typing import Any

__all__ = ["BufferHandle", "MooncakeHostMemAllocator", "RegisteredMemory", "view_at"]


def view_at(address: int, size: int) -> memoryview:
    """Return `size` bytes at an address; the caller keeps them alive."""
    return memoryview((ctypes.c_char * size).from_address(address)).cast("B")


class BufferHandle(array):  # type: ignore[type-arg]
    """The bytes of one object, in memory of its own that may be written.

    It has the buffer protocol (format `b`), `len()`, `ptr()` and `size()`.
    """

    def __new__(cls, size: int) -> BufferHandle:
        """Return room for so many bytes."""
        made: BufferHandle = array.__new__(cls, "b", b"\0")  # type: ignore[assignment]
        made *= size  # in place: no second copy of the zeros
        return made

    def ptr(self) -> int:
        """Address of the first byte."""
        return self.buffer_info()[0]

    def size(self) -> int:
        """How many bytes there are."""
        return len(self)

    def __repr__(self) -> str:
        return f"<BufferHandle of {len(self)} bytes>"

    # An array compares and hashes by what is in it; a handle is one thing.
    def __eq__(self, other: object) -> bool:
        return self is other

    def __hash__(self) -> int:  # type: ignore[override]
        return id(self)


class RegisteredMemory:
    """Ranges that were registered; none overlaps another."""

    def __init__(self) -> None:
        self._starts: list[int] = []
        self._ends: list[int] = []
        self._lock = threading.Lock()

    def add(self, address: int, size: int) -> bool:
        """Take a range; False: it is none, or overlaps one that is known."""
        if address <= 0 or size <= 0:
            return False
        end = address + size
        with self._lock:
            at = bisect.bisect_right(self._starts, address)
            if (at > 0 and self._ends[at - 1] > address) or (
                at < len(self._starts) and self._starts[at] < end
            ):
                return False
            self._starts.insert(at, address)
            self._ends.insert(at, end)
            return True

    def remove(self, address: int) -> bool:
        """Forget the range that begins there; False: there is none."""
        with self._lock:
            at = bisect.bisect_left(self._starts, address)
            if at == len(self._starts) or self._starts[at] != address:
                return False
            del self._starts[at], self._ends[at]
            return True


class MooncakeHostMemAllocator:
    """Page-aligned memory of this process, by address."""

    def __init__(self) -> None:
        self._maps: dict[int, Any] = {}

    def alloc(self, size: int, /) -> int:
        """Return the address of `size` bytes, zeroed.

        Raises:
            RuntimeError: The system has none, or `size` is none.
        """
        if size <= 0:
            raise RuntimeError(f"memory of {size} bytes cannot be allocated")
        try:
            mapped = mmap.mmap(-1, size)
        except (OSError, OverflowError) as error:
            raise RuntimeError(f"{size} bytes could not be mapped: {error}") from error
        address = ctypes.addressof(ctypes.c_char.from_buffer(mapped))
        self._maps[address] = mapped
        return address

    def free(self, address: int, /) -> int:
        """Give back what `alloc` returned: 0; anything else: -1."""
        mapped = self._maps.pop(address, None)
        if mapped is None:
            return -1
        mapped.close()
        return 0
