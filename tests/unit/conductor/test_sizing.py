"""The smallest cluster for a target, and targets out of reach."""

from __future__ import annotations

from dataclasses import replace

import pytest

from mooncake_store.conductor.report import report
from mooncake_store.conductor.simulation import Outcome, least_prefill_s, simulate
from mooncake_store.conductor.sizing import OutOfReach, Size, sizes
from mooncake_store.conductor.trace import Trace
from tests.unit.conductor.replays import column, configure, make


def test_a_target_that_no_cluster_reaches_is_not_searched(sample: Trace) -> None:
    config = configure("ours", ttft_s=10.0)
    tried: list[str] = []
    (found,) = sizes(sample, config, target=0.99, cache_tokens=(1_000_000,), progress=tried.append)
    assert isinstance(found, OutOfReach) and not tried
    assert found.attainment_best is None and found.attainment_max < 0.99
    assert found.too_long == round((1 - found.attainment_max) * len(sample))
    enough = replace(config, slo=replace(config.slo, ttft_s=found.ttft_s_least * 1.05))
    (found,) = sizes(sample, enough, target=0.99, cache_tokens=(0,), progress=tried.append)
    assert isinstance(found, Size) and tried
    # A TBT that no decode node has: searched, and the best is told.
    slow = replace(config, slo=replace(config.slo, ttft_s=60.0, tbt_s=0.001))
    (found,) = sizes(sample, slow, target=0.99, cache_tokens=(0,))
    assert isinstance(found, OutOfReach) and found.attainment_best is not None
    assert found.attainment_best < 0.99 <= found.attainment_max


@pytest.mark.parametrize("group_nodes", [1, 2])
def test_what_bounds_a_size_is_what_the_simulator_takes(group_nodes: int) -> None:
    """One prompt, and again with a prefix of it: a node's share of the work, and no more."""
    prompt = list(range(8))
    config = configure(
        prefill_nodes=group_nodes, group_nodes=group_nodes, prefill_base_s=0.25,
        hop_bytes_per_token=0, chunks="equal", chunk_tokens=64,
    )  # fmt: skip
    for trace in (
        make([(0.0, 4096, 1, prompt)]),
        make([(0.0, 4096, 1, prompt), (50.0, 6000, 1, [*prompt, 8, 9, 10])]),
    ):
        replay = simulate(trace, config)
        work_s = column(replay, Outcome.PREFILL_WORK)
        assert least_prefill_s(trace, config) == [one / group_nodes for one in work_s]
        for least, ttft in zip(work_s, column(replay, Outcome.TTFT), strict=True):
            assert least / group_nodes <= ttft + 1e-9
        never = replace(config, slo=replace(config.slo, ttft_s=0.001))
        (found,) = sizes(trace, never, target=1.0, cache_tokens=(0,))
        assert isinstance(found, OutOfReach)
        assert found.ttft_s_least == max(work_s) / group_nodes


def test_sizes_are_found_also_where_small_clusters_take_for_ever(sample: Trace) -> None:
    config = configure("ours", nic_bytes_per_s=1.0)
    (found,) = sizes(sample, config, target=0.9, cache_tokens=(100_000,))
    assert isinstance(found, OutOfReach)


def test_a_size_is_the_smallest_that_meets_the_target(sample: Trace) -> None:
    config = configure("ours", ttft_s=20.0)
    (found,) = sizes(sample, config, target=0.99, cache_tokens=(1_000_000,))
    assert isinstance(found, Size) and found.attainment >= 0.99
    fewer = replace(
        config,
        cluster=replace(
            config.cluster, prefill_nodes=found.prefill_nodes - 1,
            decode_nodes=found.decode_nodes, cache_tokens=1_000_000,
        ),
    )  # fmt: skip
    below = report(simulate(sample, fewer))
    assert below.good / below.requests < 0.99
