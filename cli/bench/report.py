"""How a benchmark's rows are shown: a table for people, one JSON document for programs."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Sequence

from mooncake_store.cli.bench.environment import MachineLoad
from mooncake_store.cli.bench.rounds import Row, Spread

# Told once for each group of rows: what is measured now, how far it is (0 to 1).
Watcher = Callable[[str, float], None]


def silent(step: str, done: float) -> None:
    """Watch nothing."""


def document(
    benchmark: str,
    machine: dict[str, object],
    rows: Sequence[Row],
    load: MachineLoad,
    settings: dict[str, object],
) -> dict[str, object]:
    """Return what `--json` prints."""
    return {
        "benchmark": benchmark,
        "machine": machine,
        "machine_busy_ratio": load.busy_ratio,
        "machine_steal_ratio": load.steal_ratio,
        "settings": settings,
        "rows": [row.to_json() for row in rows],
    }


def print_json(result: dict[str, object]) -> None:
    """Print the document on stdout."""
    json.dump(result, sys.stdout, indent=1, ensure_ascii=False)
    sys.stdout.write("\n")


def number(value: float) -> str:
    """Write a figure with three significant digits, as people read it."""
    if value == 0:
        return "0"
    size = abs(value)
    if size >= 100:
        return f"{value:,.0f}"
    return f"{value:.1f}" if size >= 10 else f"{value:.2f}" if size >= 0.1 else f"{value:.3g}"


def _spread(spread: Spread | None) -> str:
    return "" if spread is None else number(spread.median)


def _reach(spread: Spread | None) -> str:
    return "" if spread is None else f"{number(spread.low)}–{number(spread.high)}"


def cells(row: Row) -> list[str]:
    """Return the row's columns, in the order of HEADINGS."""
    met = {None: "", True: "yes", False: "no"}[row.is_met]
    pinned = {None: "", True: "apart", False: "left alone"}[row.is_pinned]
    reach = row.ratio if row.ratio is not None else row.value
    return [
        row.name,
        pinned,
        f"{_spread(row.value)} {row.unit}",
        _spread(row.raw),
        _spread(row.ratio),
        _reach(reach),
        str(row.bar) if row.bar else "",
        met,
    ]


HEADINGS = ("what", "cores", "value", "raw", "ratio", "spread", "bar", "met")


def print_table(title: str, rows: Sequence[Row]) -> None:
    """Print the rows on stdout; in a pipe the same table without colours or a width limit."""
    from rich.console import Console
    from rich.table import Table

    console = Console(width=None if sys.stdout.isatty() else 160)
    table = Table(title=title, title_justify="left")
    lines = [cells(row) for row in rows]
    shown = [i for i in range(len(HEADINGS)) if any(line[i] for line in lines)]
    for index in shown:
        table.add_column(HEADINGS[index], justify="right" if 2 <= index <= 5 else "left")
    for row, line in zip(rows, lines, strict=True):
        style = {None: None, True: "green", False: "red"}[row.is_met]
        table.add_row(*(line[index] for index in shown), style=style)
    console.print(table)
    for row in rows:
        if row.note:
            console.print(f"{row.name}: {row.note}", highlight=False)
