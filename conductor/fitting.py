"""Least squares of the relative error with coefficients that are not negative, for a few terms."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations

from mooncake_store.errors import RequestError

__all__ = ["FitError", "fit_terms"]

_ALIKE = 1e-9  # of a squared sine: columns that turn from each other by less say the same
_FLAT = 1e-14  # of a squared volume: so much of it is rounding


@dataclass(frozen=True, slots=True)
class FitError:
    """How far a fitted model is from its samples: |predicted - measured| / measured.

    Attributes:
        median, mean, max: Over the samples.
    """

    median: float
    mean: float
    max: float


def fit_terms(
    rows: Sequence[Sequence[float]], times_s: Sequence[float], names: Sequence[str]
) -> tuple[list[float], FitError]:
    """Return the coefficients of a sum of two or three terms, none of them negative, and its error.

    The relative error is made least, else the slowest samples alone would decide.  With so few
    coefficients, trying all subsets of them is exact.

    Args:
        rows: The terms' values of each sample, 0 or more; the first is 1.
        times_s: What was measured, above 0.
        names: Of the coefficients, for messages.

    Raises:
        RequestError: The samples do not tell the coefficients apart.
    """
    relative = [[term / time_s for term in row] for row, time_s in zip(rows, times_s, strict=True)]
    # Columns of length 1: the normal equations are well conditioned, whatever the units.
    scales = [math.hypot(*column) or 1.0 for column in zip(*relative, strict=True)]
    scaled = [[term / scale for term, scale in zip(row, scales, strict=True)] for row in relative]
    _tell_apart(scaled, names)
    best: tuple[float, list[float]] | None = None
    for size in range(1, len(names) + 1):
        for chosen in combinations(range(len(names)), size):
            solution = _least_squares(scaled, chosen)
            if solution is None or min(solution) < 0:
                continue
            error = sum((sum(map(_product, row, solution)) - 1.0) ** 2 for row in scaled)
            if best is None or error < best[0] * (1 - 1e-12):
                best = (error, solution)
    assert best is not None  # one column of positive numbers has a positive solution
    errors = [abs(sum(map(_product, row, best[1])) - 1.0) for row in scaled]
    found = [value / scale for value, scale in zip(best[1], scales, strict=True)]
    return found, FitError(statistics.median(errors), statistics.fmean(errors), max(errors))


def _tell_apart(rows: Sequence[Sequence[float]], names: Sequence[str]) -> None:
    """Refuse samples in which a term goes with others: any share of it could be theirs.

    Args:
        rows: Their columns have length 1, or are 0.
        names: Of the columns.
    """
    columns = list(zip(*rows, strict=True))
    for name, column in zip(names, columns, strict=True):
        if not any(column):
            raise RequestError(f"the samples say nothing of {name}: its term is 0 in all of them")
    cosine = {
        pair: sum(map(_product, columns[pair[0]], columns[pair[1]]))
        for pair in combinations(range(len(names)), 2)
    }
    for (i, j), value in cosine.items():
        if 1 - value * value < _ALIKE:
            raise RequestError(
                f"the samples do not tell {names[i]} from {names[j]}: "
                "what the two stand for is in the same proportion in all of them"
            )
    if len(names) < 3:
        return
    a, b, c = cosine.values()
    if 1 + 2 * a * b * c - a * a - b * b - c * c < _FLAT:
        raise RequestError(
            f"the samples do not tell {names[0]}, {names[1]} and {names[2]} apart: more different "
            "ones are needed"
        )


def _product(a: float, b: float) -> float:
    return a * b


def _least_squares(rows: Sequence[Sequence[float]], chosen: Sequence[int]) -> list[float] | None:
    """Solve rows x = 1 for the chosen columns, the others 0; None if they depend on each other.

    The columns have length 1, so the matrix has 1 on its diagonal, and pivots are relative to that.
    """
    size = len(chosen)
    matrix = [
        [sum(row[i] * row[j] for row in rows) for j in chosen] + [sum(row[i] for row in rows)]
        for i in chosen
    ]
    for column in range(size):
        pivot = max(range(column, size), key=lambda row: abs(matrix[row][column]))
        if abs(matrix[pivot][column]) < _FLAT:
            return None
        matrix[column], matrix[pivot] = matrix[pivot], matrix[column]
        for row in range(size):
            if row != column:
                factor = matrix[row][column] / matrix[column][column]
                matrix[row] = [
                    a - factor * b for a, b in zip(matrix[row], matrix[column], strict=True)
                ]
    solution = [0.0] * len(rows[0])
    for index, column in enumerate(chosen):
        solution[column] = matrix[index][size] / matrix[index][index]
    return solution
