"""Blocks that instances are believed to have, since prompts were sent there: from and until when.

An engine that tells of its blocks is believed instead; what it says never comes here.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator
from typing import NamedTuple

from mooncake_store.conductor.prefix_index import KEY_BYTES
from mooncake_store.conductor.service.prefill_table import PrefillTable

__all__ = ["Promise", "Promises"]


class Promise(NamedTuple):
    """Blocks that an instance keeps for some time.

    Attributes:
        until_s: When that is over.
        slot, incarnation: Of the instance.
        keys: Of the blocks, packed.
    """

    until_s: float
    slot: int
    incarnation: int
    keys: bytes


class Promises:
    """What is not computed yet, and what was computed and is kept."""

    def __init__(self) -> None:
        self._kept: deque[Promise] = deque()
        self._ready_s: dict[tuple[int, bytes], float] = {}
        self._is_shown = False

    # ---- not computed yet ------------------------------------------------------------------------

    def begin(self, slot: int, keys: bytes, ready_s: float) -> None:
        """An instance will have computed blocks by then."""
        for key in _each(keys):
            self._ready_s[slot, key] = ready_s

    def end(self, slot: int, keys: bytes) -> None:
        """An instance has computed them, or will not."""
        if self._ready_s:
            for key in _each(keys):
                self._ready_s.pop((slot, key), None)

    def show(
        self,
        table: PrefillTable,
        slots: Iterable[int],
        lengths: list[int],
        packed: bytes,
        now_s: float,
    ) -> None:
        """Say in the table when the last block of each slot's prefix will be there."""
        ready_s = self._ready_s
        if not ready_s and not self._is_shown:
            return
        self._is_shown = bool(ready_s)  # what was said last is taken back, too
        for slot in slots:
            length, left_s = lengths[slot], 0.0
            if length:
                last = packed[KEY_BYTES * (length - 1) : KEY_BYTES * length]
                until_s = ready_s.get((slot, last))
                if until_s is not None:
                    left_s = max(until_s - now_s, 0.0)
            table.set_ready(slot, left_s)

    # ---- kept ------------------------------------------------------------------------------------

    def keep(self, promise: Promise) -> None:
        """Blocks are believed to stay; promises are made in the order in which they end."""
        self._kept.append(promise)

    def over(self, now_s: float) -> Iterator[Promise]:
        """Yield what is believed no more, and drop it."""
        while self._kept and self._kept[0].until_s <= now_s:
            yield self._kept.popleft()

    def forget(self, slot: int) -> None:
        """Drop all that is believed of a slot."""
        for pair in [pair for pair in self._ready_s if pair[0] == slot]:
            del self._ready_s[pair]
        self._kept = deque(promise for promise in self._kept if promise.slot != slot)


def _each(keys: bytes) -> Iterator[bytes]:
    for at in range(0, len(keys), KEY_BYTES):
        yield keys[at : at + KEY_BYTES]
