"""Ranges of memory that do not overlap, and which of them holds another one."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable

__all__ = ["Ranges"]


class Ranges:
    """A sorted set of ranges (address, length)."""

    def __init__(self, ranges: Iterable[tuple[int, int]] = ()) -> None:
        self._lengths = dict(ranges)
        self._addresses = sorted(self._lengths)

    def __len__(self) -> int:
        return len(self._addresses)

    def add(self, address: int, length: int) -> None:
        """Add a range that overlaps none."""
        self._lengths[address] = length
        self._addresses = sorted(self._lengths)

    def remove(self, address: int) -> None:
        """Remove the range that begins there, if there is one."""
        if self._lengths.pop(address, None) is not None:
            self._addresses = sorted(self._lengths)

    def overlap(self, address: int, length: int) -> bool:
        """Return whether another range has a byte in common with one of these."""
        at = bisect_right(self._addresses, address + length - 1) - 1
        if at < 0 or length <= 0:
            return False
        first = self._addresses[at]
        return first + self._lengths[first] > address

    def holder(self, address: int, length: int) -> int | None:
        """Return where the range begins that holds all of another; None: none does."""
        at = bisect_right(self._addresses, address) - 1
        if at < 0:
            return None
        first = self._addresses[at]
        return first if address + length <= first + self._lengths[first] else None

    def holds(self, address: int, length: int) -> bool:
        """Return whether one range holds all of another."""
        return self.holder(address, length) is not None
