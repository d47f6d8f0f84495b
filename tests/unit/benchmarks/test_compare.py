"""How the comparison with the peer chooses and counts; the peer itself is not needed."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from mooncake_store.cli.bench.rounds import Comparison

BENCHMARKS = Path(__file__).resolve().parents[3] / "benchmarks"


@pytest.fixture
def compare(monkeypatch):
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    import compare

    yield compare
    for name in ("compare", "peer", "processes"):
        sys.modules.pop(name, None)


def result(compare, unit: str, ours: list[float], peers: dict[str, list[float]]):
    task = compare.Task("row", unit, "get", {}, "figure")
    raw = [1.0] * len(ours)
    return compare.Result(
        task,
        True,
        Comparison(ours, raw),
        {name: Comparison(figures, raw) for name, figures in peers.items()},
    )


def test_latency_is_compared_with_the_peer_that_is_quicker(compare):
    row = result(compare, "us", [10.0, 20.0], {"tcp": [100.0, 100.0], "local": [50.0, 60.0]})

    assert row.best_peer == "local"
    assert row.gain.median == pytest.approx((5 + 3) / 2)
    assert row.to_json()["ahead"] is True


def test_rate_is_compared_with_the_peer_that_moves_more(compare):
    row = result(compare, "GB/s", [2.0, 2.0], {"tcp": [1.0, 1.0], "local": [4.0, 4.0]})

    assert row.best_peer == "local"
    assert row.gain.median == pytest.approx(0.5)
    assert row.to_json()["ahead"] is False


def test_every_pool_that_a_row_reads_is_stored_for_it(compare):
    for is_quick in (True, False):
        for group in compare.groups(10, is_quick=is_quick):
            stored = {pool.name: pool for pool in group.pools}
            for task in group.tasks:
                if "name" in task.arguments:
                    pool = stored[task.arguments["name"]]
                    assert task.arguments.get("size", pool.size) == pool.size


@pytest.mark.parametrize("rounds", [2, 10, 25])
def test_fresh_keys_last_for_all_rounds_of_both_placements(compare, rounds):
    asked = 0
    for group in compare.groups(rounds, is_quick=False):
        for task in group.tasks:
            if task.arguments.get("is_fresh"):
                pool = next(p for p in group.pools if p.name == task.arguments["name"])
                assert pool.count >= task.arguments["calls"] * 2 * (rounds + 1)
                asked += 1
    assert asked


def test_what_is_stored_at_once_fits_the_segments(compare):
    from mooncake_store.cli.bench.operations import PUT_BYTES_HELD

    for group in compare.groups(10, is_quick=False):
        held = sum(pool.size * pool.count for pool in group.pools)
        assert held + 2 * PUT_BYTES_HELD < compare.SEGMENT_BYTES
