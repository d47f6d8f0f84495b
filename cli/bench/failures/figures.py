"""Rows of many faults: the median, and what all but one in a hundred stay below."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import TypeVar

from mooncake_store.cli.bench.cases import now
from mooncake_store.cli.bench.rounds import Bar, Row, Spread

Value = TypeVar("Value")


def p99(figures: Sequence[float]) -> float:
    """Return the smallest figure that 99 % do not exceed: of up to 100 the largest."""
    return sorted(figures)[max(math.ceil(len(figures) * 0.99) - 1, 0)]


def rows_of(name: str, unit: str, figures: Sequence[float], bar: Bar | None) -> list[Row]:
    """Return median and p99 of one kind of fault; the bar is asked of the latter."""
    high = p99(figures)
    return [
        Row(f"{name}, median", unit, Spread.of(figures)),
        Row(f"{name}, p99 of {len(figures)}", unit, Spread.of([high]), bar=bar),
    ]


def one(name: str, unit: str, figure: float, bar: Bar | None = None, note: str = "") -> Row:
    """Return a row of a single figure."""
    return Row(name, unit, Spread.of([figure]), bar=bar, note=note)


def timed(call: Callable[[], Value]) -> tuple[float, Value]:
    """Return how many seconds a call took, and its value."""
    begun = now()
    value = call()
    return now() - begun, value
