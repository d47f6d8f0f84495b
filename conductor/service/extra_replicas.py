"""The replicas that a conductor has had made, until nobody asks for their blocks any more."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Iterable
from dataclasses import dataclass

__all__ = ["Extra", "ExtraReplicas", "TakenBack"]


@dataclass(frozen=True, slots=True)
class Extra:
    """A replica that was not there before.

    Attributes:
        key: Of the object.
        server: By name: who holds it.
        had: Replicas that there were without it; so many stay, whatever happens.
        size_bytes: Of the object.
        wanted_by: The request that it was made for; empty: a hot block, for nobody in particular.
    """

    key: str
    server: str
    had: int
    size_bytes: int
    wanted_by: str = ""


@dataclass(frozen=True, slots=True)
class TakenBack:
    """A replica that was to be taken back, and the terms that this was decided by.

    Attributes:
        extra: The replica.
        unix_s: When.
        idle_s: How long nobody had asked for its block, when it was decided.
        outcome: `done`; `needless`: it was not there any more, or no more than `had` were left;
            `gone`: the object or the server is; `failed`: it stays until its object is evicted.
    """

    extra: Extra
    unix_s: float
    idle_s: float
    outcome: str


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

    def has_cold(self, now_s: float) -> bool:
        """Whether a replica would be given out."""
        with self._lock:
            return self._coldest(now_s) is not None

    def take_cold(self, now_s: float) -> tuple[Extra, float] | None:
        """Return one replica of the coldest block and how long that is idle, and forget it.

        One at a time, and only by who drops it at once: a block that is asked for meanwhile keeps
        those that are left.  None: no block is cold.
        """
        with self._lock:
            digest = self._coldest(now_s)
            if digest is None:
                return None
            block = self._blocks[digest]
            # The last one that was made is the first to go: `had` holds for each then.
            extra = block.extras.pop()
            self._count -= 1
            if not block.extras:
                del self._blocks[digest]
            return extra, now_s - block.asked_s

    def _coldest(self, now_s: float) -> str | None:
        if not self._blocks:
            return None
        digest, block = next(iter(self._blocks.items()))
        return digest if now_s - block.asked_s >= self._cold_s else None
