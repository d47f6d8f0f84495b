"""Alternating rounds: what makes two figures of a busy machine comparable.

A shared machine changes speed by the second, so one contender is never measured to its end before
the next begins.  A round measures the reference, a contender, the reference, the next contender,
..., the reference; a contender's ratio in that round is its figure over the mean of the two
references beside it.  What is quoted is the median of the rounds' ratios, and their spread.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

# Runs one round's worth of calls and returns its figure in the row's unit (a median, a rate).
Measure = Callable[[], float]
# Told (rounds done, rounds in all), warm-up included.
Progress = Callable[[int, int], None]


@dataclass(frozen=True, slots=True)
class Spread:
    """Median and reach of one figure over the rounds."""

    median: float
    low: float
    high: float
    rounds: int

    @classmethod
    def of(cls, figures: Sequence[float]) -> Spread:
        """Sum up the figures of at least one round."""
        return cls(statistics.median(figures), min(figures), max(figures), len(figures))

    def to_json(self) -> dict[str, float]:
        return {"median": self.median, "low": self.low, "high": self.high, "rounds": self.rounds}


@dataclass(frozen=True, slots=True)
class Comparison:
    """One contender beside the reference: three lists with one entry a round."""

    figures: list[float]
    references: list[float]

    @property
    def ratios(self) -> list[float]:
        """The contender's figure over the reference's, round by round."""
        return [f / r for f, r in zip(self.figures, self.references, strict=True)]


@dataclass(frozen=True, slots=True)
class Bar:
    """What a row must reach.  A claim about the product, never a test's assertion."""

    limit: float
    of: Literal["ratio", "value"]
    direction: Literal["at most", "at least"]

    def is_met(self, *, value: float, ratio: float | None) -> bool:
        """Say whether a row's medians reach the bar."""
        figure = value if self.of == "value" else ratio
        if figure is None:
            return False
        return figure <= self.limit if self.direction == "at most" else figure >= self.limit

    def __str__(self) -> str:
        sign = "≤" if self.direction == "at most" else "≥"
        return f"{sign} {self.limit:g}{' ×' if self.of == 'ratio' else ''}"


@dataclass(frozen=True, slots=True)
class Row:
    """One line of a benchmark's result."""

    name: str
    unit: str
    value: Spread
    raw: Spread | None = None
    ratio: Spread | None = None
    bar: Bar | None = None
    is_pinned: bool | None = None
    note: str = ""

    @classmethod
    def compared(
        cls,
        name: str,
        unit: str,
        comparison: Comparison,
        *,
        bar: Bar | None = None,
        is_pinned: bool | None = None,
        note: str = "",
    ) -> Row:
        """Make the row of a contender that was measured beside a reference."""
        return cls(
            name=name,
            unit=unit,
            value=Spread.of(comparison.figures),
            raw=Spread.of(comparison.references),
            ratio=Spread.of(comparison.ratios),
            bar=bar,
            is_pinned=is_pinned,
            note=note,
        )

    @property
    def is_met(self) -> bool | None:
        """Whether the bar is reached; None without a bar."""
        if self.bar is None:
            return None
        return self.bar.is_met(
            value=self.value.median, ratio=self.ratio.median if self.ratio else None
        )

    def to_json(self) -> dict[str, object]:
        """Return the row as `--json` prints it."""
        return {
            "name": self.name,
            "unit": self.unit,
            "value": self.value.median,
            "raw": self.raw.median if self.raw else None,
            "ratio": self.ratio.median if self.ratio else None,
            "bar": str(self.bar) if self.bar else None,
            "met": self.is_met,
            "pinned": self.is_pinned,
            "note": self.note,
            "spread": {
                "value": self.value.to_json(),
                "raw": self.raw.to_json() if self.raw else None,
                "ratio": self.ratio.to_json() if self.ratio else None,
            },
        }


def interleave(
    reference: Measure,
    contenders: Mapping[str, Measure],
    *,
    rounds: int,
    warm_up: int = 1,
    progress: Progress | None = None,
) -> dict[str, Comparison]:
    """Measure contenders and a reference in turns.

    Args:
        reference: The limit of the machine, measured before and after each contender.
        contenders: By name, in the order in which a round visits them.
        rounds: Rounds that count, at least 1.
        warm_up: Rounds before them that do not: caches fill, connections open.
        progress: Called after each round.

    Returns:
        One comparison a contender, each with `rounds` entries.
    """
    results = {name: Comparison([], []) for name in contenders}
    for turn in range(warm_up + rounds):
        before = reference()
        for name, measure in contenders.items():
            figure = measure()
            after = reference()
            if turn >= warm_up:
                results[name].figures.append(figure)
                results[name].references.append((before + after) / 2)
            before = after
        if progress is not None:
            progress(turn + 1, warm_up + rounds)
    return results


def repeat(
    measures: Mapping[str, Measure],
    *,
    rounds: int,
    warm_up: int = 1,
    progress: Progress | None = None,
) -> dict[str, Spread]:
    """Measure several things that have no reference, one after the other in every round."""
    figures: dict[str, list[float]] = {name: [] for name in measures}
    for turn in range(warm_up + rounds):
        for name, measure in measures.items():
            figure = measure()
            if turn >= warm_up:
                figures[name].append(figure)
        if progress is not None:
            progress(turn + 1, warm_up + rounds)
    return {name: Spread.of(values) for name, values in figures.items()}
