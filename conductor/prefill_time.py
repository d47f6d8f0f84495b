"""How long a prefill takes: a polynomial in prompt and cached prefix, fitted to measurements."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import combinations

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
        relative_error_mean: Mean of |predicted - measured| / measured.
        relative_error_max: The worst of them.
        num_samples: How many there were.
    """

    model: PrefillTime
    relative_error_mean: float
    relative_error_max: float
    num_samples: int


def fit_prefill_time(samples: Iterable[PrefillSample]) -> PrefillFit:
    """Fit the polynomial to measured prefills.

    Least squares of the relative error (else the longest prompts alone would decide), with
    coefficients that are not negative: with three of them, trying all subsets is exact.

    Args:
        samples: At least three, of different lengths.

    Raises:
        RequestError: Too few samples, or one that makes no sense.
    """
    taken = list(samples)
    for sample in taken:
        if (
            sample.num_tokens < 1
            or not 0 <= sample.prefix_tokens < sample.num_tokens
            or not (math.isfinite(sample.time_s) and sample.time_s > 0)
        ):
            raise RequestError(f"{sample} is no measured prefill: 0 <= prefix < tokens, time > 0")
    if len({(sample.num_tokens, sample.prefix_tokens) for sample in taken}) < 3:
        raise RequestError("a fit needs samples of at least three different lengths")
    # Scaled to about 1, so that the normal equations stay well conditioned.
    longest = float(max(sample.num_tokens for sample in taken))
    scales = (1.0, longest, longest * longest)
    rows = [
        [
            term / scale / sample.time_s
            for term, scale in zip(
                (
                    1.0,
                    float(sample.num_tokens - sample.prefix_tokens),
                    float(sample.num_tokens**2 - sample.prefix_tokens**2),
                ),
                scales,
                strict=True,
            )
        ]
        for sample in taken
    ]
    best: tuple[float, list[float]] | None = None
    for size in (1, 2, 3):
        for chosen in combinations(range(3), size):
            solution = _least_squares(rows, chosen)
            if solution is None or min(solution) < 0:
                continue
            error = sum((sum(map(_product, row, solution)) - 1.0) ** 2 for row in rows)
            if best is None or error < best[0] * (1 - 1e-12):
                best = (error, solution)
    assert best is not None  # one column of positive numbers has a positive solution
    model = PrefillTime(*(value / scale for value, scale in zip(best[1], scales, strict=True)))
    errors = [
        abs(model(sample.num_tokens, sample.prefix_tokens) / sample.time_s - 1) for sample in taken
    ]
    return PrefillFit(model, sum(errors) / len(errors), max(errors), len(errors))


def _product(a: float, b: float) -> float:
    return a * b


def _least_squares(rows: Sequence[Sequence[float]], chosen: Sequence[int]) -> list[float] | None:
    """Solve rows x = 1 for the chosen columns, the others 0; None if they depend on each other."""
    size = len(chosen)
    matrix = [
        [sum(row[i] * row[j] for row in rows) for j in chosen] + [sum(row[i] for row in rows)]
        for i in chosen
    ]
    for column in range(size):
        pivot = max(range(column, size), key=lambda row: abs(matrix[row][column]))
        if abs(matrix[pivot][column]) < 1e-13:
            return None
        matrix[column], matrix[pivot] = matrix[pivot], matrix[column]
        for row in range(size):
            if row != column:
                factor = matrix[row][column] / matrix[column][column]
                matrix[row] = [
                    a - factor * b for a, b in zip(matrix[row], matrix[column], strict=True)
                ]
    solution = [0.0, 0.0, 0.0]
    for index, column in enumerate(chosen):
        solution[column] = matrix[index][size] / matrix[index][index]
    return solution
