"""What a fetch between hosts takes, learned from fetches that were measured.

A cluster file says what the network should do; what an engine sees has its own fixed cost, shares
the way with others and may be a tenth of it.  A policy that believes the file fetches too much.
"""

from __future__ import annotations

import math
import statistics
from collections import deque
from dataclasses import dataclass

from mooncake_store.errors import RequestError

__all__ = ["Fetched", "TransferFit"]

_SAMPLES_MAX = 64
_AGE_S_MAX = 60.0
_LEAST = 3  # fetches before anything is believed of them
_FEW = 8  # below, two parameters are not told apart: only what was believed is scaled
_SPREAD_LEAST = 2.0  # of the sizes, for the same reason
_ROUNDS = 10
_TRUSTED = 4.0  # a fetch that took so many times longer or shorter than fitted was something else
_BYTES_MAX = 1e15
_SECONDS_MIN, _SECONDS_MAX = 1e-9, 3600.0


@dataclass(frozen=True, slots=True)
class Fetched:
    """A fetch that was measured: from asking for the blocks until all of them were there.

    Attributes:
        size_bytes: Of the blocks that came.
        time_s: What that took.
    """

    size_bytes: float
    time_s: float

    def __post_init__(self) -> None:
        if not (0 < self.size_bytes < _BYTES_MAX and _SECONDS_MIN <= self.time_s <= _SECONDS_MAX):
            raise RequestError(
                f"a measured transfer has more than 0 bytes and takes {_SECONDS_MIN:g} to "
                f"{_SECONDS_MAX:g} seconds, not {self.size_bytes:g} and {self.time_s:g}"
            )


class TransferFit:
    """A fixed cost and a bandwidth, fitted to the last measured fetches.

    The sum of |measured - fitted| / fitted is made least, not its square: one fetch that was held
    up for a second shall not be believed to be the network.  No bandwidth is above what is
    believed at first: that is the network's, and small fetches of like sizes may look faster.

    Args:
        latency_s, bandwidth_bytes_per_s: What is believed before anything was measured.

    Attributes:
        latency_s: The fixed cost of a fetch.
        bandwidth_bytes_per_s: Of the bytes beyond it.
        measured: How many fetches were measured in all.
    """

    def __init__(self, latency_s: float, bandwidth_bytes_per_s: float) -> None:
        self._believed = (latency_s, 1 / bandwidth_bytes_per_s)
        self.latency_s, self.bandwidth_bytes_per_s = latency_s, bandwidth_bytes_per_s
        self.measured = 0
        self._samples: deque[tuple[float, Fetched]] = deque(maxlen=_SAMPLES_MAX)
        self._ratios: deque[float] = deque(maxlen=_SAMPLES_MAX)
        self._fetched: list[Fetched] = []  # of the present fit
        self._is_changed = False

    def add(self, fetched: Fetched, predicted_s: float, now_s: float) -> None:
        """Count a fetch, and what had been predicted of it."""
        self.measured += 1
        self._samples.append((now_s, fetched))
        self._ratios.append(predicted_s / fetched.time_s)
        self._is_changed = True

    @property
    def ratio(self) -> float:
        """Predicted time over measured, median of the last fetches; 1 if there was none."""
        return statistics.median(self._ratios) if self._ratios else 1.0

    def refit(self, now_s: float) -> bool:
        """Fit anew; whether something has changed.  Half a millisecond: not for each decision.

        Fetches of a minute ago count no more.  Else some that were slow would never be corrected:
        a fetch that is believed to be slow is not chosen, and so not measured again.
        """
        while self._samples and now_s - self._samples[0][0] > _AGE_S_MAX:
            self._samples.popleft()
            self._is_changed = True
        if not self._is_changed:
            return False
        self._is_changed = False
        self._fetched = [fetched for _, fetched in self._samples]
        sizes = [one.size_bytes for one in self._fetched]
        if len(sizes) < _LEAST:
            latency_s, per_byte_s = self._believed
        elif len(sizes) < _FEW or max(sizes) < _SPREAD_LEAST * min(sizes):
            latency_s, per_byte_s = self._scaled()
        else:
            latency_s, per_byte_s = self._fitted()
        self.latency_s = latency_s
        self.bandwidth_bytes_per_s = 1 / max(per_byte_s, self._believed[1])
        return True

    def _scaled(self) -> tuple[float, float]:
        latency_s, per_byte_s = self._believed
        factor = statistics.median(
            one.time_s / (latency_s + per_byte_s * one.size_bytes) for one in self._fetched
        )
        return latency_s * factor, per_byte_s * factor

    def _fitted(self) -> tuple[float, float]:
        """Least squares whose weights make them a sum of relative distances, round by round."""
        latency_s, per_byte_s = self._scaled()
        for turn in range(_ROUNDS):
            samples = [
                (one.size_bytes, one.time_s, latency_s + per_byte_s * one.size_bytes)
                for one in self._fetched
            ]
            if turn > 1:
                near = [one for one in samples if 1 / _TRUSTED < one[1] / one[2] < _TRUSTED]
                samples = near if 2 * len(near) > len(samples) else samples
            w = wx = wxx = wy = wxy = 0.0
            for x, y, fitted_s in samples:
                weight = 1 / (fitted_s * max(abs(y - fitted_s), 0.02 * fitted_s))
                w, wx, wxx = w + weight, wx + weight * x, wxx + weight * x * x
                wy, wxy = wy + weight * y, wxy + weight * x * y
            determinant = w * wxx - wx * wx
            if not determinant > 1e-9 * w * wxx:
                break
            latency_s = (wy * wxx - wxy * wx) / determinant
            per_byte_s = (w * wxy - wx * wy) / determinant
            if latency_s < 0:
                latency_s, per_byte_s = 0.0, wxy / wxx
            elif per_byte_s < 0:
                latency_s, per_byte_s = wy / w, 0.0
        assert math.isfinite(latency_s) and math.isfinite(per_byte_s)
        return latency_s, per_byte_s
