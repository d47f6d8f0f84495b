"""How long a prefill takes: a polynomial in prompt and cached prefix, fitted to measurements."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

from mooncake_store.conductor.fitting import FitError, fit_terms
from mooncake_store.errors import RequestError

__all__ = ["LLAMA3_70B_A800", "PrefillFit", "PrefillSample", "PrefillTime", "fit_prefill_time"]


@dataclass(frozen=True, slots=True)
class PrefillTime:
    """T(n, p) = c0 + c1 (n - p) + c2 (n^2 - p^2), seconds.

    The papers fit a polynomial and do not give its degree.  This form has the degrees of
    equation 1, so that it extrapolates as the work grows; coefficients are not negative, so that a
    longer prompt never takes less.  At least one token is computed: a prefix counts up to n - 1.

    Attributes:
        base_s: c0, paid once a prefill.
        per_token_s: c1.
        per_token_pair_s: c2, of attention.
    """

    base_s: float = 0.0
    per_token_s: float = 1.15e-4
    per_token_pair_s: float = 7.33e-10

    def __post_init__(self) -> None:
        values = (self.base_s, self.per_token_s, self.per_token_pair_s)
        if not all(math.isfinite(value) and value >= 0 for value in values) or not any(values):
            raise RequestError(f"the coefficients of a prefill time are 0 or more, not {values}")

    def __call__(self, num_tokens: int, prefix_tokens: int = 0) -> float:
        """Return the seconds of a prefill.

        Raises:
            RequestError: No tokens, or a negative prefix.
        """
        if num_tokens < 1 or prefix_tokens < 0:
            raise RequestError(
                f"a prefill has tokens, and a prefix of 0 or more of them: "
                f"{num_tokens} and {prefix_tokens} were asked for"
            )
        n, p = num_tokens, min(prefix_tokens, num_tokens - 1)
        return self.base_s + self.per_token_s * (n - p) + self.per_token_pair_s * (n * n - p * p)


LLAMA3_70B_A800 = PrefillTime()
"""LLaMA3-70B on 8 A800: a fit to what figure 14a of the FAST'25 paper shows."""


@dataclass(frozen=True, slots=True)
class PrefillSample:
    """One measured prefill."""

    num_tokens: int
    prefix_tokens: int
    time_s: float


@dataclass(frozen=True, slots=True)
class PrefillFit:
    """A fitted model and how well it fits its samples.

    Attributes:
        model: The polynomial.
        error: How well.
        num_samples: How many there were.
    """

    model: PrefillTime
    error: FitError
    num_samples: int


def fit_prefill_time(samples: Iterable[PrefillSample], *, degree: int = 2) -> PrefillFit:
    """Fit the polynomial to measured prefills.

    Args:
        samples: At least one more than the degree, of different lengths.
        degree: Of the polynomial, which the papers do not give.  2 as in equation 1: attention
            grows with the square.  1 leaves that out (c2 = 0), for engines whose attention looks at
            a window, or where all prompts are so short that noise would decide about c2.

    Raises:
        RequestError: Too few samples, one that makes no sense, or none that tell the coefficients
            apart: all with as many tokens to compute, say.
    """
    taken = list(samples)
    for sample in taken:
        if (
            sample.num_tokens < 1
            or not 0 <= sample.prefix_tokens < sample.num_tokens
            or not (math.isfinite(sample.time_s) and sample.time_s > 0)
        ):
            raise RequestError(f"{sample} is no measured prefill: 0 <= prefix < tokens, time > 0")
    if degree not in (1, 2):
        raise RequestError(f"the degree of a prefill time is 1 or 2, not {degree}")
    if len({(sample.num_tokens, sample.prefix_tokens) for sample in taken}) <= degree:
        least = ("two", "three")[degree - 1]
        raise RequestError(f"a fit needs samples of at least {least} different lengths")
    coefficients, error = fit_terms(
        [
            (
                1.0,
                float(sample.num_tokens - sample.prefix_tokens),
                float(sample.num_tokens**2 - sample.prefix_tokens**2),
            )[: degree + 1]
            for sample in taken
        ],
        [sample.time_s for sample in taken],
        ("c0 (a prefill)", "c1 (a computed token)", "c2 (attention)")[: degree + 1],
    )
    c0, c1, c2 = [*coefficients, 0.0][:3]
    return PrefillFit(PrefillTime(c0, c1, c2), error, len(taken))
