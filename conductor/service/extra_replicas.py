"""The replicas that a conductor has had made, until nobody asks for their blocks any more."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Iterable
from dataclasses import dataclass

__all__ = ["Extra", "ExtraReplicas"]


@dataclass(frozen=True, slots=True)
class Extra:
    """A replica that was not there before.

    Attributes:
        key: Of the object.
        server: By name: who holds it.
        had: Replicas that there were without it; so many stay, whatever happens.
        size_bytes: Of the object.
    """

    key: str
    server: str
    had: int
    size_bytes: int


@dataclass(slots=True)
class _Block:
    asked_s: float
    extras: list[Extra]


class ExtraReplicas:
    """By block, the longest not asked for first; for several threads.

    Args:
        cold_s: A block that nobody has asked for so long is cold.
        blocks_max: That are remembered; replicas of a block that is forgotten stay until its object
            is evicted.
    """

    def __init__(self, *, cold_s: float, blocks_max: int = 65_536) -> None:
        self._cold_s = cold_s
        self._blocks_max = blocks_max
        self._blocks: OrderedDict[str, _Block] = OrderedDict()
        self._lock = threading.Lock()
        self._count = 0

    def __len__(self) -> int:
        """How many replicas are remembered."""
        return self._count

    def made(self, digest: str, extra: Extra, now_s: float) -> None:
        """Remember a replica; that it was wanted is a use of its block."""
        with self._lock:
            block = self._blocks.get(digest)
            if block is None:
                block = self._blocks[digest] = _Block(now_s, [])
            block.asked_s = now_s
            self._blocks.move_to_end(digest)
            block.extras.append(extra)
            self._count += 1
            while len(self._blocks) > self._blocks_max:
                _, oldest = self._blocks.popitem(last=False)
                self._count -= len(oldest.extras)

    def asked(self, digests: Iterable[str], now_s: float) -> None:
        """A prompt has these blocks."""
        if not self._blocks:
            return
        with self._lock:
            for digest in digests:
                block = self._blocks.get(digest)
                if block is not None:
                    block.asked_s = now_s
                    self._blocks.move_to_end(digest)

    def take_cold(self, now_s: float, replicas_max: int) -> list[Extra]:
        """Return replicas of blocks that are cold, and forget them; about so many at the most."""
        found: list[Extra] = []
        with self._lock:
            while self._blocks and len(found) < replicas_max:
                digest, block = next(iter(self._blocks.items()))
                if now_s - block.asked_s < self._cold_s:
                    break
                del self._blocks[digest]
                self._count -= len(block.extras)
                # The last one that was made is the first to go: `had` holds for each then.
                found += reversed(block.extras)
        return found
