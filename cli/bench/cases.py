"""A case is a row to be: what is measured, against what, on which cores, and what it must reach."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from mooncake_store.cli.bench.environment import LEFT_ALONE, Placement, placed
from mooncake_store.cli.bench.report import Watcher, silent
from mooncake_store.cli.bench.rounds import Bar, Comparison, Measure, Row, Spread, interleave

now = time.perf_counter


@dataclass(frozen=True, slots=True)
class Case:
    """One row, measured apart (where two cores allow it) and left alone, or only left alone.

    The bar is asked of the first placement; the figure left alone stands beside it without one.
    """

    name: str
    unit: str
    ours: Measure
    raw: Measure | None = None
    bar: Bar | None = None
    is_placed: bool = True
    note: str = ""
    prepare: Callable[[], object] | None = None  # untimed, before each placement is measured


def run_cases(
    cases: Iterable[Case],
    server_pids: Sequence[int],
    *,
    rounds: int,
    watch: Watcher = silent,
) -> list[Row]:
    """Measure the cases one after the other, each in alternating rounds with its limit."""
    rows: list[Row] = []
    apart = Placement.apart()
    for case in cases:
        places = [apart] if case.is_placed and apart.is_pinned else []
        for index, where in enumerate([*places, LEFT_ALONE]):
            if case.prepare is not None:
                case.prepare()
            with placed(where, server_pids):
                compared = interleave(
                    case.raw or _nothing,
                    {"ours": case.ours},
                    rounds=rounds,
                    progress=lambda done, of, case=case: watch(case.name, done / of),  # type: ignore[misc]
                )["ours"]
            rows.append(_row(case, compared, where, is_first=index == 0))
    return rows


def is_wanted(name: str, only: Sequence[str]) -> bool:
    """Whether a row of this name was asked for; nothing asked for is everything."""
    return not only or any(text in name for text in only)


def _nothing() -> float:
    return 1.0


def _row(case: Case, compared: Comparison, where: Placement, *, is_first: bool) -> Row:
    bar, note = (case.bar, case.note) if is_first else (None, "")
    if case.raw is None:
        figures = Spread.of(compared.figures)
        return Row(case.name, case.unit, figures, bar=bar, is_pinned=where.is_pinned, note=note)
    return Row.compared(
        case.name, case.unit, compared, bar=bar, is_pinned=where.is_pinned, note=note
    )


def at_most(limit: float) -> Bar:
    """Ask that the ratio to raw stay below."""
    return Bar(limit, "ratio", "at most")


def at_least(limit: float) -> Bar:
    """Ask that the ratio to raw stay above."""
    return Bar(limit, "ratio", "at least")


def value_at_most(limit: float) -> Bar:
    """Ask that the figure itself stay below."""
    return Bar(limit, "value", "at most")


def value_at_least(limit: float) -> Bar:
    """Ask that the figure itself stay above."""
    return Bar(limit, "value", "at least")


def durations_of(call: Callable[..., object], *columns: Sequence[object]) -> list[float]:
    """Time each call by itself; arguments are ready before the clock runs."""
    durations: list[float] = []
    for arguments in zip(*columns, strict=True):
        begun = now()
        call(*arguments)
        durations.append(now() - begun)
    return durations


def over(connections: int) -> str:
    """Say how many connections a raw transfer uses."""
    return f"raw: over {connections} connection{'s' * (connections > 1)}, as ours"
