"""The harness on contenders whose figures are known."""

from __future__ import annotations

import itertools
import json

import pytest

from mooncake_store.cli.bench.rounds import Bar, Comparison, Row, Spread, interleave, repeat


def test_reference_is_measured_before_and_after_each_contender():
    order: list[str] = []

    def measure(name: str):
        def run() -> float:
            order.append(name)
            return 1.0

        return run

    interleave(measure("raw"), {"a": measure("a"), "b": measure("b")}, rounds=1, warm_up=0)

    assert order == ["raw", "a", "raw", "b", "raw"]


def test_ratio_is_taken_to_the_mean_of_the_two_references_beside():
    references = iter([10.0, 30.0, 50.0])

    results = interleave(
        lambda: next(references), {"a": lambda: 40.0, "b": lambda: 20.0}, rounds=1, warm_up=0
    )

    assert results["a"].references == [20.0]
    assert results["a"].ratios == [2.0]
    assert results["b"].references == [40.0]
    assert results["b"].ratios == [0.5]


def test_warm_up_rounds_run_and_do_not_count():
    turns = itertools.count(1)

    results = interleave(lambda: 1.0, {"a": lambda: float(next(turns))}, rounds=3, warm_up=2)

    assert results["a"].figures == [3.0, 4.0, 5.0]


def test_a_machine_that_slows_down_changes_the_figures_and_not_the_ratio():
    speed = itertools.count(1)
    now = 0.0

    def raw() -> float:
        return 10.0 * (1 + now)

    def ours() -> float:
        return 13.0 * (1 + now)

    def slower(done: int, of: int) -> None:
        nonlocal now
        now = float(next(speed))

    result = interleave(raw, {"ours": ours}, rounds=5, progress=slower)["ours"]

    assert Spread.of(result.figures).high > 2 * Spread.of(result.figures).low
    assert result.ratios == pytest.approx([1.3] * 5)


def test_progress_is_told_every_round_with_the_warm_up():
    seen: list[tuple[int, int]] = []

    repeat({"a": lambda: 1.0}, rounds=2, warm_up=1, progress=lambda *turn: seen.append(turn))

    assert seen == [(1, 3), (2, 3), (3, 3)]


def test_repeat_visits_every_measure_in_every_round():
    order: list[str] = []

    def measure(name: str):
        return lambda: float(len(order)) if order.append(name) is None else 0.0

    spreads = repeat({"a": measure("a"), "b": measure("b")}, rounds=2, warm_up=0)

    assert order == ["a", "b", "a", "b"]
    assert spreads["a"] == Spread(2.0, 1.0, 3.0, 2)


@pytest.mark.parametrize(
    ("bar", "value", "ratio", "is_met"),
    [
        (Bar(1.3, "ratio", "at most"), 999.0, 1.3, True),
        (Bar(1.3, "ratio", "at most"), 0.0, 1.31, False),
        (Bar(0.9, "ratio", "at least"), 0.0, 0.9, True),
        (Bar(0.9, "ratio", "at least"), 999.0, 0.89, False),
        (Bar(6.0, "value", "at most"), 5.9, None, True),
        (Bar(2.5, "value", "at least"), 2.4, 9.0, False),
        (Bar(0.9, "ratio", "at least"), 1.0, None, False),
    ],
)
def test_bar_is_judged_on_the_figure_that_it_names(bar, value, ratio, is_met):
    assert bar.is_met(value=value, ratio=ratio) is is_met


def test_row_is_judged_on_medians_and_says_all_in_json():
    comparison = Comparison(figures=[20.0, 30.0, 100.0], references=[10.0, 20.0, 25.0])

    row = Row.compared(
        "get 4 KiB", "us", comparison, bar=Bar(2.2, "ratio", "at most"), is_pinned=True
    )
    said = json.loads(json.dumps(row.to_json()))

    assert (said["value"], said["raw"], said["ratio"]) == (30.0, 20.0, 2.0)
    assert said["met"] is True
    assert said["bar"] == "≤ 2.2 ×"
    assert said["pinned"] is True
    assert said["spread"]["ratio"] == {"median": 2.0, "low": 1.5, "high": 4.0, "rounds": 3}


def test_row_without_a_bar_is_neither_met_nor_missed():
    row = Row("copy", "GB/s", Spread.of([1.0]))

    assert row.is_met is None
    assert row.to_json()["bar"] is None
