"""How long a decode iteration of a batch takes, and how many tokens a decode node has room for."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

from mooncake_store.conductor.fitting import FitError, fit_terms
from mooncake_store.errors import RequestError

__all__ = [
    "LLAMA3_70B_A800_DECODE",
    "DecodeFit",
    "DecodeSample",
    "DecodeTime",
    "fit_decode_time",
    "kv_capacity_tokens",
]


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


@dataclass(frozen=True, slots=True)
class DecodeSample:
    """One measured iteration of decoding: a token for each request of the batch.

    Attributes:
        batch: Requests in it.
        context_tokens: Of them together, prompts and what is generated: not of each.
        time_s: Of the iteration.
    """

    batch: int
    context_tokens: int
    time_s: float


@dataclass(frozen=True, slots=True)
class DecodeFit:
    """A fitted model and how well it fits its samples.

    Attributes:
        model: t0, kb and kc.
        error: How well.
        num_samples: How many there were.
    """

    model: DecodeTime
    error: FitError
    num_samples: int


def fit_decode_time(samples: Iterable[DecodeSample]) -> DecodeFit:
    """Fit t0, kb and kc to measured iterations.

    Args:
        samples: At least three, with batches of different sizes, and contexts of different lengths
            in batches of one size.

    Raises:
        RequestError: Too few samples, one that makes no sense, or none that tell the coefficients
            apart: where each request has as many tokens, kb may be anything.
    """
    taken = list(samples)
    for sample in taken:
        if not (
            1 <= sample.batch <= sample.context_tokens
            and math.isfinite(sample.time_s)
            and sample.time_s > 0
        ):
            raise RequestError(
                f"{sample} is no measured iteration: batch 1 or more, a token of context or more "
                "for each of its requests, time > 0"
            )
    if len({(sample.batch, sample.context_tokens) for sample in taken}) < 3:
        raise RequestError("a fit needs samples of at least three different batches or contexts")
    coefficients, error = fit_terms(
        [(1.0, float(sample.batch), float(sample.context_tokens)) for sample in taken],
        [sample.time_s for sample in taken],
        ("t0 (an iteration)", "kb (a request)", "kc (a token of context)"),
    )
    return DecodeFit(DecodeTime(*coefficients), error, len(taken))


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
