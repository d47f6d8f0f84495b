"""Who has joined the decode pool lately, as a sign of who will."""

from __future__ import annotations

import math

__all__ = ["Joins"]

_MEMORY_S = 30.0  # of the rate, as in the simulator
_WEIGHT = 0.02  # of one request


class Joins:
    """How many requests are accepted a second, and what they are like.

    Attributes:
        per_s: Accepted lately.
        delay_s: What one takes from its arrival to its decoding, as predicted.
        tokens: Its context.
    """

    def __init__(self) -> None:
        self.per_s = self.delay_s = self.tokens = 0.0
        self._count = self._noted = 0
        self._looked_s = -math.inf

    def note(self, tokens: int, delay_s: float) -> None:
        """Count a request that was accepted."""
        self._count += 1
        self._noted += 1
        weight = max(_WEIGHT, 1 / self._noted)
        self.delay_s += (delay_s - self.delay_s) * weight
        self.tokens += (tokens - self.tokens) * weight

    def look(self, now_s: float) -> None:
        """Let the rate follow what was counted since the last look."""
        elapsed_s = now_s - self._looked_s
        if elapsed_s <= 0:
            return
        keep = math.exp(-elapsed_s / _MEMORY_S)
        self.per_s = keep * self.per_s + (1 - keep) * self._count / elapsed_s
        self._count, self._looked_s = 0, now_s
