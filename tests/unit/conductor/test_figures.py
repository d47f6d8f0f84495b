"""The papers' figures: what is computed for them, on the trace that ships."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from mooncake_store.cli.trace_file import SAMPLE
from mooncake_store.conductor.figures import FIGURES, Traces, hit_blocks, lru_hit_blocks
from mooncake_store.conductor.plots import series
from mooncake_store.conductor.sim_config import EVICTIONS, SimConfig
from mooncake_store.conductor.trace import Trace, load_trace


@pytest.fixture(scope="module")
def sample() -> Trace:
    return load_trace(SAMPLE, limit=300)


@pytest.fixture(scope="module")
def traces(tmp_path_factory: pytest.TempPathFactory) -> Traces:
    folder = tmp_path_factory.mktemp("traces")
    for name in ("conversation", "synthetic"):
        shutil.copy(SAMPLE, folder / f"{name}_trace{''.join(SAMPLE.suffixes)}")
    return Traces(folder)


def test_a_cache_without_bound_hits_every_leading_block_seen_before(sample: Trace) -> None:
    seen: set[int] = set()
    hits = 0
    for index in range(len(sample)):
        blocks = sample.blocks[sample.first_block[index] : sample.first_block[index + 1]]
        is_leading = True
        for block in blocks:
            is_leading = is_leading and block in seen
            hits += is_leading
        seen.update(blocks)
    assert lru_hit_blocks(sample, 1 << 30) == hits / len(sample.blocks)


def test_hits_grow_with_the_cache_and_none_are_without_one(sample: Trace) -> None:
    found = [lru_hit_blocks(sample, blocks) for blocks in (0, 10, 100, 1000, 10_000)]
    assert found[0] == 0
    assert found == sorted(found)
    assert found[-1] > found[1]


def test_each_eviction_hits_by_its_own_rule(sample: Trace) -> None:
    capacities = (0, 3000, 1000, 300)
    found = {
        eviction: [hit_blocks(sample, eviction, capacity) for capacity in capacities]
        for eviction in EVICTIONS
    }
    everything = lru_hit_blocks(sample, 1 << 30)
    for hits in found.values():
        assert hits[0] == everything
        assert hits == sorted(hits, reverse=True)
    for capacity, hit in zip(capacities[1:], found["lru"][1:], strict=True):
        assert hit == lru_hit_blocks(sample, capacity)
    assert len({tuple(hits) for hits in found.values()}) == len(EVICTIONS)


def test_the_arxiv_papers_trace_is_used_where_it_is(traces: Traces, tmp_path: Path) -> None:
    names = [row[0] for row in FIGURES["eviction"](traces, SimConfig(), lambda step: None).rows]
    assert set(names) == {"conversation", "synthetic"}
    for name in ("conversation", "synthetic", "mooncake"):
        shutil.copy(SAMPLE, tmp_path / f"{name}_trace{''.join(SAMPLE.suffixes)}")
    with_it = Traces(tmp_path)
    for figure, first in (("eviction", "mooncake"), ("arxiv", "mooncake 1x")):
        rows = FIGURES[figure](with_it, SimConfig(), lambda step: None).rows
        assert rows[0][0] == first
        assert len({len(row) for row in rows}) == 1


@pytest.mark.parametrize("name", ["policies", "global", "split", "overload", "work"])
def test_every_figure_fills_its_columns(traces: Traces, name: str) -> None:
    found = FIGURES[name](traces, SimConfig(), lambda step: None)
    assert found.rows
    assert {len(row) for row in found.rows} == {len(found.header)}


def test_figures_obey_what_is_set_beside_their_policies(traces: Traces) -> None:
    def rows(order: str) -> list[list[str]]:
        base = SimConfig.read(
            None, {"scheduler": {"order": order}, "cluster": {"prefill_nodes": 1}}
        )
        return FIGURES["policies"](traces, base, lambda step: None).rows

    assert rows("fcfs") != rows("planned")


def test_figures_obey_the_speed_that_is_set(traces: Traces) -> None:
    fast = SimConfig.read(None, {"replay": {"speed": 3.0}, "cluster": {"prefill_nodes": 2}})
    slow = SimConfig.read(None, {"cluster": {"prefill_nodes": 2}})
    found = [FIGURES["policies"](traces, base, lambda step: None) for base in (slow, fast)]
    assert "2P+8D, 1x" in found[0].title and "2P+8D, 3x" in found[1].title
    assert found[0].rows != found[1].rows


def test_every_charts_columns_have_numbers(traces: Traces) -> None:
    for name in ("policies", "pipeline", "layers", "cache", "arxiv", "eviction", "work"):
        figure = FIGURES[name](traces, SimConfig(), lambda step: None)
        assert figure.charts
        for chart in figure.charts:
            lines = series(figure, chart)
            assert len(lines) >= len(chart.ys)
            assert all(points for points in lines.values())
    figure = FIGURES["layers"](traces, SimConfig(), lambda step: None)
    assert series(figure, figure.charts[0])["serial, published"][-1] == ("128k", 0.87)


def test_a_trace_that_is_missing_says_where_it_is_from(tmp_path: Path) -> None:
    with pytest.raises(Exception, match="conversation_trace"):
        Traces(tmp_path)["conversation"]
