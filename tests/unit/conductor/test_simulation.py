"""The simulator against arithmetic, on traces made of a few requests."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest

from mooncake_store.conductor.pipeline import balanced_chunks, equal_chunks, pipeline_times
from mooncake_store.conductor.prefill_time import LLAMA3_70B_A800
from mooncake_store.conductor.report import correlation, report
from mooncake_store.conductor.simulation import Outcome, State, simulate
from tests.unit.conductor.replays import BLOCK, column, configure, make


def test_a_request_alone_takes_what_the_cost_models_say() -> None:
    replay = simulate(make([(1.0, 4096, 11, [])]), configure())
    assert column(replay, Outcome.TTFT)[0] == pytest.approx(LLAMA3_70B_A800(4096))
    gaps = [0.027 + 4e-8 * (4096 + i) for i in range(10)]
    assert column(replay, Outcome.TBT_MEAN)[0] == pytest.approx(sum(gaps) / 10, rel=1e-4)
    assert column(replay, Outcome.TBT)[0] == pytest.approx(max(gaps), rel=1e-4)
    end = 1 + LLAMA3_70B_A800(4096) + sum(gaps)
    assert column(replay, Outcome.END)[0] == pytest.approx(end, rel=1e-6)


def test_one_instance_serves_in_order() -> None:
    trace = make([(0.0, 4096, 1, []), (0.0, 8192, 1, []), (0.5, 1024, 1, [])])
    replay = simulate(trace, configure(prefill_nodes=1))
    first, second, third = (LLAMA3_70B_A800(n) for n in (4096, 8192, 1024))
    assert column(replay, Outcome.TTFT) == pytest.approx(
        [first, first + second, first + second + third - 0.5]
    )
    assert column(replay, Outcome.TTFT_PREDICTED) == pytest.approx(column(replay, Outcome.TTFT))


def test_a_cached_prefix_is_not_computed_again() -> None:
    trace = make([(0.0, 2048, 1, [0, 1, 2, 3]), (10.0, 4096, 1, [0, 1, 2, 3, 4, 5, 6, 7])])
    replay = simulate(trace, configure("local", prefill_nodes=1))
    assert column(replay, Outcome.PREFIX_TOKENS) == [0, 2048]
    assert column(replay, Outcome.TTFT)[1] == pytest.approx(LLAMA3_70B_A800(4096, 2048))


def test_a_prompt_that_is_cached_as_a_whole_computes_its_last_token() -> None:
    trace = make([(0.0, 1024, 1, [0, 1]), (9.0, 1024, 1, [0, 1])])
    replay = simulate(trace, configure(prefill_nodes=1))
    assert column(replay, Outcome.PREFIX_TOKENS)[1] == 1023


def test_a_hole_ends_the_prefix() -> None:
    trace = make([(0.0, 2048, 1, [0, 1, 2, 3]), (9.0, 2048, 1, [0, 9, 2, 3])])
    replay = simulate(trace, configure(prefill_nodes=1))
    assert column(replay, Outcome.PREFIX_TOKENS)[1] == 512


def test_a_fetch_takes_its_bytes_over_the_network_and_leaves_a_copy() -> None:
    # While the holder is busy with a long prompt, the second instance fetches.
    trace = make([
        (0.0, 8192, 1, list(range(16))),
        (5.0, 60_000, 1, list(range(16))),
        (5.0, 8192, 1, list(range(16))),
        (30.0, 8192, 1, list(range(16))),
    ])  # fmt: skip
    replay = simulate(trace, configure(prefill_nodes=2, nic_bytes_per_s=10e9, sample_s=1.0))
    seconds = 8192 * 327_680 / 10e9
    assert column(replay, Outcome.FETCH_BYTES)[1:3].count(8192 * 327_680) == 1
    fetched = 1 if column(replay, Outcome.FETCH_BYTES)[1] else 2
    assert column(replay, Outcome.FETCH)[fetched] == pytest.approx(seconds)
    assert column(replay, Outcome.FETCH_BYTES)[3] == 0
    assert replay.samples[-1][2 + 2 + 8] == 2  # block 0 is on both


def test_flows_share_a_nic_fairly() -> None:
    # Two KV caches on their way to one decode node take twice as long as to two.
    trace = make([(0.0, 8192, 2, []), (0.0, 8192, 2, [])])
    alone_s = 8192 * 327_680 / 1e9
    for decode_nodes, factor in ((2, 1), (1, 2)):
        replay = simulate(
            trace, configure(prefill_nodes=2, decode_nodes=decode_nodes, nic_bytes_per_s=1e9)
        )
        expected = factor * alone_s - LLAMA3_70B_A800(8192)
        # One of them joins an iteration later than the other.
        assert column(replay, Outcome.DECODE_WAIT) == pytest.approx([expected] * 2, rel=0.02)


def test_bytes_arrive_also_when_the_clock_is_late() -> None:
    # A month from the start, a double of seconds steps by hundreds of bytes' time.
    trace = make([(3e6 + 0.37 * i, 4096 + 13 * i, 3, []) for i in range(50)])
    found = report(simulate(trace, configure(prefill_nodes=2, decode_nodes=1)))
    assert found.finished == 50


def test_a_clock_of_centuries_stands_still_for_no_flow() -> None:
    trace = make([(0.37 * i, 4096 + 13 * i, 3, []) for i in range(50)])
    config = configure(
        prefill_nodes=2, decode_nodes=1, nic_bytes_per_s=1.0, drain_max_s=1e18, events_max=10**6
    )
    replay = simulate(trace, replace(config, replay=replace(config.replay, sample_s=0)))
    assert report(replay).finished == 50
    assert replay.end_s == pytest.approx(sum(trace.tokens) * 327_680, rel=1e-3)


def test_a_fetched_copy_can_be_fetched_on_before_its_request_has_run() -> None:
    prompt = list(range(16))
    trace = make([
        (0.0, 8192, 1, prompt),
        (5.0, 100_000, 1, prompt),
        (5.0, 20_000, 1, prompt),
        (5.0, 20_000, 1, prompt),
    ])  # fmt: skip
    replay = simulate(trace, configure(prefill_nodes=3, nic_bytes_per_s=10e9))
    fetch_s = 8192 * 327_680 / 10e9
    own_s = LLAMA3_70B_A800(20_000, 8192)
    waited = sorted(ttft - own_s for ttft in column(replay, Outcome.TTFT)[2:])
    assert waited == pytest.approx([fetch_s, 2 * fetch_s])


def test_requests_decode_together_in_one_batch() -> None:
    trace = make([(0.0, 1024, 101, []), (0.0, 1024, 101, [])])
    one_node = simulate(trace, configure(prefill_nodes=2, decode_nodes=1, decode_request_us=1000.0))
    apart = simulate(trace, configure(prefill_nodes=2, decode_nodes=2, decode_request_us=1000.0))
    together = column(one_node, Outcome.TBT_MEAN)[0]
    assert together == pytest.approx(
        column(apart, Outcome.TBT_MEAN)[0] + 0.001 + 4e-8 * 1074, rel=0.01
    )


def test_a_full_decode_node_lets_requests_wait_or_rejects_them_late() -> None:
    trace = make([(0.0, 1024, 500, []), (0.0, 1024, 500, [])])
    setup = {"prefill_nodes": 2, "decode_nodes": 1, "decode_batch_max": 1}
    waiting = simulate(trace, configure(**setup))
    assert column(waiting, Outcome.STATE) == [State.FINISHED, State.FINISHED]
    assert max(column(waiting, Outcome.DECODE_WAIT)) > 10
    # That wait is a gap between tokens, the longest of them.
    assert max(column(waiting, Outcome.TBT)) > max(column(waiting, Outcome.DECODE_WAIT)) / 50
    strict = simulate(trace, configure(**setup, admission="baseline"))
    assert sorted(column(strict, Outcome.STATE)) == [State.FINISHED, State.REJECTED_LATE]
    assert report(strict).wasted_gpu_s == pytest.approx(LLAMA3_70B_A800(1024))


def test_memory_of_a_decode_node_bounds_its_batch() -> None:
    trace = make([(0.0, 1000, 100, []), (0.0, 1000, 100, [])])
    replay = simulate(
        trace, configure(prefill_nodes=2, decode_nodes=1, decode_capacity_tokens=1500)
    )
    assert max(column(replay, Outcome.DECODE_WAIT)) > 2


def test_a_group_of_nodes_is_the_pipeline_of_the_formulas() -> None:
    n = 100_000
    for chunks in ("equal", "balanced"):
        replay = simulate(
            make([(0.0, n, 1, [])]),
            configure(prefill_nodes=4, group_nodes=4, chunks=chunks, hop_bytes_per_token=0),
        )
        ends = (
            equal_chunks(n)
            if chunks == "equal"
            else balanced_chunks(n, prefill_time=LLAMA3_70B_A800)
        )
        times = pipeline_times(ends, nodes=4, prefill_time=LLAMA3_70B_A800)
        assert column(replay, Outcome.TTFT)[0] == pytest.approx(times.first_token_s, rel=1e-4)
        assert column(replay, Outcome.TTFT_PREDICTED)[0] == pytest.approx(
            times.first_token_s, rel=0.01
        )


def test_a_group_has_the_throughput_of_its_nodes() -> None:
    trace = make([(0.0, 65_536, 1, [])] * 12)
    replay = simulate(trace, configure(prefill_nodes=4, group_nodes=4, hop_bytes_per_token=0))
    ideal = 12 * LLAMA3_70B_A800(65_536) / 4
    assert max(column(replay, Outcome.TTFT)) == pytest.approx(ideal, rel=0.05)


def test_loads_and_stores_add_what_the_layer_formula_says() -> None:
    trace = make([(0.0, 65_536, 1, [])])
    plain, layers, serial = (
        column(simulate(trace, configure(loading=loading)), Outcome.TTFT)[0]
        for loading in ("hidden", "layerwise", "serial")
    )
    assert serial - plain == pytest.approx(65_536 * 327_680 / 48e9)
    assert layers - plain == pytest.approx(65_536 * 327_680 / 48e9 / 80)


def test_short_ones_pass_where_all_have_time() -> None:
    trace = make([(0.0, 50_000, 1, []), (0.1, 50_000, 1, []), (0.2, 500, 1, [])])
    ttft = column(simulate(trace, configure("ours", prefill_nodes=1)), Outcome.TTFT)
    assert ttft[2] < ttft[1]
    in_order = column(simulate(trace, configure("global", prefill_nodes=1)), Outcome.TTFT)
    assert in_order[2] > in_order[1] - 0.2


def test_a_stream_of_short_ones_keeps_no_long_one_from_its_slo() -> None:
    # They take more than all of the node; ordered by length alone the long one would be the last.
    short = [(0.1 * i, 900, 1, []) for i in range(1, 600)]
    trace = make([(0.0, 2000, 1, []), (0.05, 50_000, 1, []), *short])
    ttft = column(simulate(trace, configure("ours", prefill_nodes=1)), Outcome.TTFT)
    assert 10 < ttft[1] < 30
    assert sum(value > 30 for value in ttft) <= 6  # the share that may miss the target


def test_eviction_takes_the_tail_of_the_oldest_prefix() -> None:
    trace = make([
        (0.0, 2048, 1, [0, 1, 2, 3]),
        (9.0, 1024, 1, [4, 5]),
        (20.0, 2048, 1, [0, 1, 2, 3]),
    ])  # fmt: skip
    replay = simulate(trace, configure(prefill_nodes=1, cache_tokens=4 * BLOCK))
    assert replay.evicted_blocks >= 2
    assert column(replay, Outcome.PREFIX_TOKENS)[2] == 1024  # the head stayed


def test_without_pins_a_promised_prefix_may_go_and_is_computed_and_counted() -> None:
    trace = make([
        (0.0, 2048, 1, [0, 1, 2, 3]),
        (5.0, 100_000, 1, []),
        (5.1, 2048, 1, [0, 1, 2, 3]),
        (5.2, 2048, 1, [4, 5, 6, 7]),
    ])  # fmt: skip
    setup = {"prefill_nodes": 1, "cache_tokens": 4 * BLOCK}
    pinned = simulate(trace, configure(**setup))
    assert column(pinned, Outcome.MISPREDICTED_TOKENS) == [0, 0, 0, 0]
    loose = simulate(trace, configure(**setup, pin_queued=False))
    assert column(loose, Outcome.MISPREDICTED_TOKENS)[2] > 0
    assert column(loose, Outcome.PREFILL)[2] > column(pinned, Outcome.PREFILL)[2]


def test_streams_that_begin_together_go_to_decode_nodes_with_idle_nics() -> None:
    # Three prompts are cached but for their last token: their KV caches stream for 0.33 s each, and
    # nothing is computed meanwhile.  Who decodes already, and so is busier, has the idle NIC.
    nodes = {"prefill_nodes": 3, "decode_nodes": 3, "nic_bytes_per_s": 4096 * 327_680 / 0.33}
    first = [(0.1 * i, 4096, 2, list(range(8 * i, 8 * i + 8))) for i in range(3)]
    busy = [(10.0, 20_000, 400, list(range(100, 139))), (10.0, 20_000, 400, list(range(200, 239)))]
    again = [(20.0, 4096, 3, list(range(8 * i, 8 * i + 8))) for i in range(3)]
    trace = make([*first, *busy, *again])

    def waits(weight: float) -> list[float]:
        config = configure("earliest", **nodes, stream_weight=weight)
        return list(column(simulate(trace, config), Outcome.DECODE_WAIT)[-3:])

    # By load alone two go to the node that decodes nothing, and share its NIC.
    assert max(waits(0.0)) > 1.5 * max(waits(1.0))
    assert max(waits(1.0)) < 0.45


def test_copies_ahead_of_demand_shorten_the_wait_at_a_busy_sender() -> None:
    # A prompt is asked for again and again where it is; then eight long requests want it at once.
    prompt = list(range(16))
    calm = [(0.4 * i, 8192 + 100, 1, prompt) for i in range(100)]
    rush = [(60.0, 16_384 + i, 1, prompt) for i in range(8)]
    trace = make([*calm, *rush])
    setup: dict[str, Any] = {"nic_bytes_per_s": 4e9, "prefill_nodes": 8}
    alone = report(simulate(trace, configure("global", **setup)))
    ahead = report(
        simulate(
            trace, configure("global", **setup, replicate_interval_s=1.0, replicate_share=0.01)
        )
    )
    assert alone.replicated_bytes == 0 < ahead.replicated_bytes
    assert alone.fetch_wait_s.max > 1
    assert not ahead.fetch_wait_s.max > 0.1
    assert ahead.ttft_s.max < alone.ttft_s.max - 1


def test_a_fetch_passes_what_streams_to_decoding() -> None:
    # 60,000 tokens stream for 5 s from where the prompt is, when it is wanted elsewhere.
    prompt = list(range(16))
    trace = make([(0.0, 8192, 1, prompt), (5.0, 60_000, 2, prompt), (5.1, 8500, 1, prompt)])
    setup: dict[str, Any] = {
        "prefill_nodes": 2, "nic_bytes_per_s": 4e9, "balancing_threshold": 1.0,
    }  # fmt: skip
    waits = []
    for weight in (1.0, 4.0):
        replay = simulate(trace, configure(**setup, fetch_weight=weight))
        assert column(replay, Outcome.FETCH_BYTES)[2] == 16 * BLOCK * 327_680
        waits.append(column(replay, Outcome.FETCH)[2] / column(replay, Outcome.FETCH_ALONE)[2])
    assert waits == pytest.approx([2.0, 1.25], rel=1e-3)
    found = report(simulate(trace, configure(**setup)))
    assert found.nic_wait_s.max == found.fetch_wait_s.max > 0 == found.nic_wait_s.p50


def test_a_block_that_is_wanted_everywhere_comes_everywhere() -> None:
    trace = make([(i * 1.0, 600, 1, [0]) for i in range(3)] + [(30.0, 600, 1, [])])
    setup: dict[str, Any] = {
        "prefill_nodes": 8, "top_keys": 1, "sample_s": 1.0, "replicate_interval_s": 1.0,
        "replicate_share": 1e-5,
    }  # fmt: skip
    replicas = [row[-1] for row in simulate(trace, configure("local", **setup)).samples]
    assert replicas[2] < 4 < replicas[-1] == 8  # one a round, also when nobody asks any more


def test_who_decodes_on_a_coupled_node_waits_while_it_prefills() -> None:
    trace = make([(0.0, 4096, 400, []), (3.0, 16_384, 2, []), (3.5, 16_384, 2, [])])
    nodes = {"prefill_nodes": 1, "decode_nodes": 1}
    split = simulate(trace, configure(**nodes))
    coupled = simulate(trace, configure(**nodes, coupled=True))
    prefill_s = LLAMA3_70B_A800(16_384)
    step_s = 0.027 + 4e-8 * 16_384 * 3
    end = [column(one, Outcome.END)[0] for one in (split, coupled)]
    assert end[1] - end[0] == pytest.approx(2 * prefill_s, rel=0.05)
    # An iteration between two prompts; who waits to prefill waits for at most that.
    ttft = column(coupled, Outcome.TTFT)
    assert prefill_s < ttft[1] <= prefill_s + step_s
    assert 2 * prefill_s - 0.5 < ttft[2] <= 2 * prefill_s - 0.5 + 3 * step_s
    gaps = [column(one, Outcome.TBT)[0] for one in (split, coupled)]
    assert gaps[0] < 0.03
    assert gaps[1] == pytest.approx(2 * prefill_s / 40 + 0.027, rel=0.1)  # the longest tenth
    # Its KV cache goes nowhere.
    assert column(coupled, Outcome.DECODE_INSTANCE) == column(coupled, Outcome.PREFILL_INSTANCE)


def test_who_goes_by_late_reports_alone_sends_all_to_the_same() -> None:
    # When instances tell, at 0.5 s, three of four compute for 2 s more; then come eight short ones.
    long = [(0.0, 24_000, 2, []) for _ in range(3)]
    trace = make([*long, *[(0.6 + 0.001 * i, 4096, 2, []) for i in range(8)]])

    def found(**changes: Any) -> tuple[int, float]:
        config = configure("least-load", prefill_nodes=4, decode_nodes=4, **changes)
        replay = simulate(trace, config)
        used = set(column(replay, Outcome.PREFILL_INSTANCE)[3:])
        return len(used), max(column(replay, Outcome.TTFT)[3:])

    known, counted = found(), found(report_interval_s=0.5)
    late = found(report_interval_s=0.5, count_decided=False)
    assert known[0] > 1 and counted[0] > 1
    assert counted[1] == pytest.approx(known[1], rel=0.2)
    assert late[0] == 1 and late[1] > 1.2 * known[1]


def test_who_wins_a_tie_is_a_setting() -> None:
    """Idle instances are all equal: nothing is cached, and each request is through by the next."""
    trace = make([(100.0 * i, 512, 1, []) for i in range(40)])

    def chosen(**changes: Any) -> list[float]:
        return column(
            simulate(trace, configure(prefill_nodes=4, **changes)), Outcome.PREFILL_INSTANCE
        )

    assert chosen(tie_order="first") == [0] * 40
    assert chosen() == [(1 + i) % 4 for i in range(40)]
    drawn = chosen(tie_order="drawn")
    assert set(drawn) == {0, 1, 2, 3} and drawn != chosen()
    assert drawn == chosen(tie_order="drawn") != chosen(tie_order="drawn", seed=2)


def test_correlation_is_pearsons() -> None:
    assert correlation([1, 2, 3], [2, 4, 6]) == pytest.approx(1)
    assert correlation([1, 2, 3], [3, 2, 1]) == pytest.approx(-1)
    assert math.isnan(correlation([1, 1], [1, 2]))
