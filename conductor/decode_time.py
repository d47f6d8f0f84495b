"""How long a decode iteration of a batch takes, and how many tokens a decode node has room for."""

from __future__ import annotations

import math
from dataclasses import dataclass

from mooncake_store.errors import RequestError

__all__ = ["LLAMA3_70B_A800_DECODE", "DecodeTime", "kv_capacity_tokens"]


@dataclass(frozen=True, slots=True)
class DecodeTime:
    """TBT = t0 + kb batch + kc context tokens, seconds a token.

    The papers say only that decoding is bound by memory and grows less than the batch.  A term for
    the weights (read once an iteration) and one for the KV cache (read for every token of context)
    say that much; it meets figure 14 (27 ms at 8k, 31 ms at 128k, alone) and figure 2 of the
    arXiv paper (16 requests of 8k take 1.25 times as long as one).

    Attributes:
        base_s: t0: the weights' pass through memory, launches.
        per_request_s: kb.
        per_context_token_s: kc; the bound by memory bandwidth alone is 2e-8 on 8 A800.
    """

    base_s: float = 0.027
    per_request_s: float = 0.0
    per_context_token_s: float = 4e-8

    def __post_init__(self) -> None:
        values = (self.base_s, self.per_request_s, self.per_context_token_s)
        if not all(math.isfinite(value) and value >= 0 for value in values) or not any(values):
            raise RequestError(f"the coefficients of a decode time are 0 or more, not {values}")

    def __call__(self, batch: int, context_tokens: int) -> float:
        """Return the seconds of one iteration of a batch with so many tokens of context in all."""
        return self.base_s + self.per_request_s * batch + self.per_context_token_s * context_tokens


LLAMA3_70B_A800_DECODE = DecodeTime()


def kv_capacity_tokens(
    memory_bytes: float, weights_bytes: float, kv_bytes_per_token: int, usable: float = 0.9
) -> int:
    """Return how many tokens of KV cache fit beside the weights.

    Args:
        memory_bytes: Of all accelerators of the node: 8 x 80e9.
        weights_bytes: 140e9 for 70 B parameters in BF16.
        kv_bytes_per_token: 327,680 for LLaMA3-70B.
        usable: Share of memory that the engine takes; 0.9 is the usual default of engines.

    Raises:
        RequestError: The weights alone do not fit.
    """
    room = memory_bytes * usable - weights_bytes
    if room <= 0:
        raise RequestError("the weights do not fit into that memory")
    return int(room / kv_bytes_per_token)
