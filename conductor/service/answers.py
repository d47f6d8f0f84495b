"""What answers have looked like so far: how long they were and how long decoding them took."""

from __future__ import annotations

from typing import Any

from mooncake_store._native import ffi as _ffi

__all__ = ["Answers"]

ffi: Any = _ffi

_BINS = 256
_FORGET = 0.999  # of an old answer, with each new one: some thousand answers count


class Answers:
    """Running means, and the distribution of lengths.

    Args:
        output_initial: Tokens of an answer before any has finished.
        decode_s_initial: What decoding one takes until then.

    Attributes:
        output: Mean tokens of an answer.
        decode_s: Mean time of decoding: the t_d of the papers' prediction.
        survival: `double[]`: share of answers that are longer than i bins.
    """

    BIN_TOKENS = 16.0

    def __init__(self, output_initial: float, decode_s_initial: float) -> None:
        self.output = output_initial
        self.decode_s = decode_s_initial
        self.survival: Any = ffi.new("double[]", _BINS)
        self.survival_bins = _BINS
        # One made-up answer of each length up to twice the expected one, until there are real ones.
        span = max(1, min(_BINS, round(2 * output_initial / self.BIN_TOKENS)))
        self._counts = [1.0 / span if index < span else 0.0 for index in range(_BINS)]
        self._weight = 0.0
        self.refresh()

    def add(self, output_tokens: float, decode_s: float) -> None:
        """Count an answer that has ended."""
        self._weight = self._weight * _FORGET + 1.0
        self.output += (output_tokens - self.output) / min(self._weight, 1000.0)
        self.decode_s += (decode_s - self.decode_s) / min(self._weight, 1000.0)
        self._counts[min(int(output_tokens / self.BIN_TOKENS), _BINS - 1)] += 1.0

    def refresh(self) -> None:
        """Make `survival` anew; some time after answers were added will do."""
        total = sum(self._counts)
        left = total
        for index, count in enumerate(self._counts):
            self.survival[index] = left / total
            left -= count
            self._counts[index] = count * (0.5 if total > 4000 else 1.0)
