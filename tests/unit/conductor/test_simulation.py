"""The simulator: against arithmetic where there is some, and its promises over traces."""

from __future__ import annotations

import json
import math
import random
from array import array
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from mooncake_store.cli.trace_file import SAMPLE
from mooncake_store.conductor.pipeline import balanced_chunks, equal_chunks, pipeline_times
from mooncake_store.conductor.prefill_time import LLAMA3_70B_A800
from mooncake_store.conductor.report import correlation, report
from mooncake_store.conductor.sim_config import (
    ADMISSIONS,
    EVICTIONS,
    ORDERS,
    POLICIES,
    SimConfig,
    cluster_example,
    with_policy,
)
from mooncake_store.conductor.simulation import (
    Outcome,
    Replay,
    State,
    least_prefill_s,
    simulate,
)
from mooncake_store.conductor.sizing import OutOfReach, Size, sizes
from mooncake_store.conductor.trace import Trace, load_trace
from mooncake_store.errors import ConfigError, LimitError

BLOCK = 512
LINE = '{"timestamp": %d, "input_length": %d, "output_length": 1, "hash_ids": %s}'


@pytest.fixture(scope="module")
def sample() -> Trace:
    return load_trace(SAMPLE)


def make(requests: list[tuple[float, int, int, list[int]]]) -> Trace:
    """A trace of (arrival, tokens, output, whole blocks)."""
    first, blocks = array("Q", [0]), array("I")
    for _, _, _, ids in requests:
        blocks.extend(ids)
        first.append(len(blocks))
    return Trace(
        "made",
        array("d", [arrival for arrival, _, _, _ in requests]),
        array("I", [tokens for _, tokens, _, _ in requests]),
        array("I", [output for _, _, output, _ in requests]),
        first,
        blocks,
        max(blocks, default=-1) + 1,
        BLOCK,
    )


def configure(policy: str = "global", **changes: Any) -> SimConfig:
    """A configuration with single fields changed, wherever they stand; transfers cost nothing."""
    base = with_policy(SimConfig(), policy)
    changes = {"loading": "hidden", "transfer_latency_s": 0.0, **changes}
    tables = {}
    for table in ("cluster", "model", "slo", "scheduler", "replay"):
        values = getattr(base, table)
        mine = {name: changes.pop(name) for name in list(changes) if hasattr(values, name)}
        tables[table] = replace(values, **mine)
    assert not changes
    return SimConfig(**tables)


def column(replay: Replay, outcome: Outcome) -> list[float]:
    return list(replay.column(outcome))


# ---- against arithmetic --------------------------------------------------------------------------


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


@pytest.mark.parametrize("sample_s", [0.0, 15.0])
@pytest.mark.parametrize(
    "slow",
    [{"nic_bytes_per_s": 1.0}, {"decode_base_s": 1e6}, {"transfer_latency_s": 1e9}],
)
def test_a_replay_that_would_last_for_ever_is_given_up(
    sample: Trace, slow: dict[str, float], sample_s: float
) -> None:
    with pytest.raises(LimitError, match="604,800 s after the last arrival") as told:
        simulate(sample, configure(sample_s=sample_s, **slow))
    assert "replay.drain_max" in (told.value.hint or "")


def test_events_are_bounded(sample: Trace) -> None:
    needed = simulate(sample, configure(events_max=10**6))
    with pytest.raises(LimitError, match="not through after 10 events") as told:
        simulate(sample, configure(events_max=10))
    assert "replay.events_max" in (told.value.hint or "")
    assert report(needed).finished == len(sample)


@pytest.mark.parametrize(
    ("setting", "named"),
    [
        ("sample_s", "replay.sample"),
        ("report_interval_s", "scheduler.report_interval"),
        ("replicate_interval_s", "scheduler.replicate_interval"),
    ],
)
def test_intervals_of_nearly_nothing_are_refused(sample: Trace, setting: str, named: str) -> None:
    with pytest.raises(ConfigError, match=named):
        simulate(sample, configure(**{setting: 1e-9}))


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


# ---- promises over a real trace ------------------------------------------------------------------


def tight(**changes: Any) -> SimConfig:
    """A cluster in which everything is short: cache, decode, network."""
    setup: dict[str, Any] = {
        "prefill_nodes": 4, "decode_nodes": 2, "cache_tokens": 200_000, "decode_batch_max": 20,
        "nic_bytes_per_s": 5e9, "loading": "layerwise", "transfer_latency_s": 0.001,
        "error_sigma": 0.2, "speed": 2.0,
    }  # fmt: skip
    return configure(**{**setup, **changes})


@pytest.mark.parametrize("policy", list(POLICIES))
@pytest.mark.parametrize("admission", ADMISSIONS)
def test_everybody_ends_and_is_counted_once(sample: Trace, policy: str, admission: str) -> None:
    found = report(simulate(sample, tight(policy=policy, admission=admission)))
    ended = found.finished + found.refused + found.rejected_late
    assert ended == found.requests == 1000
    if admission == "all":
        assert found.finished == 1000


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("eviction", EVICTIONS)
@pytest.mark.parametrize("pin_queued", [True, False])
def test_every_order_and_eviction_comes_to_an_end(
    sample: Trace, order: str, eviction: str, pin_queued: bool
) -> None:
    config = tight(
        order=order, eviction=eviction, pin_queued=pin_queued, replicate_interval_s=5.0,
        keep_fetched=False, group_nodes=2,
    )  # fmt: skip
    found = report(simulate(sample, config))
    assert found.finished == 1000
    assert 0 < found.hit_tokens <= found.hit_tokens_max + 1e-9


def test_the_same_seed_gives_the_same_result(sample: Trace) -> None:
    for policy in ("random", "ours"):
        runs = [simulate(sample, tight(policy=policy, seed=7)) for _ in range(2)]
        assert [list(c) for c in runs[0].columns[:2]] == [list(c) for c in runs[1].columns[:2]]
        assert report(runs[0]) == report(runs[1]) or json.dumps(
            report(runs[0]).document()
        ) == json.dumps(report(runs[1]).document())
    other = simulate(sample, tight(policy="random", seed=8))
    assert list(other.column(Outcome.TTFT)) != list(runs[0].column(Outcome.TTFT))


def test_an_infinite_threshold_is_the_local_policy_over_a_whole_trace(sample: Trace) -> None:
    endless = simulate(sample, configure("global", balancing_threshold=math.inf))
    local = simulate(sample, configure("local"))
    for outcome in (Outcome.TTFT, Outcome.PREFILL_INSTANCE, Outcome.PREFIX_TOKENS):
        assert list(endless.column(outcome)) == list(local.column(outcome))


def test_with_one_instance_all_policies_are_equal(sample: Trace) -> None:
    results = {
        policy: column(
            simulate(sample, configure(policy, prefill_nodes=1, order="fcfs")), Outcome.TTFT
        )
        for policy in POLICIES
    }
    assert all(ttft == results["global"] for ttft in results.values())


def test_global_hits_at_least_as_much_as_local(sample: Trace) -> None:
    local, everywhere = (
        report(simulate(sample, configure(policy))) for policy in ("local", "global")
    )
    assert everywhere.hit_tokens >= local.hit_tokens > 0
    assert everywhere.hit_tokens <= everywhere.hit_tokens_max


def test_the_published_order_of_policies(sample: Trace) -> None:
    means = [
        report(simulate(sample, configure(policy, speed=1.5))).ttft_s.mean
        for policy in ("random", "least-load", "local", "global", "ours")
    ]
    assert means == sorted(means, reverse=True)


def conversations(seed: int, *, requests: int = 600) -> Trace:
    """Talks that go on after a minute or more, and begin with the same four blocks."""
    draw = random.Random(seed)
    made: list[tuple[float, int, int, list[int]]] = []
    talks: list[list[int]] = []
    last_s: list[float] = []
    now_s, blocks = 0.0, 4
    while len(made) < requests:
        now_s += draw.expovariate(2.2)
        idle = [i for i, talk in enumerate(talks) if len(talk) < 250 and last_s[i] < now_s - 60]
        if idle and draw.random() < 0.7:
            chosen = draw.choice(idle)
        else:
            chosen = len(talks)
            talks.append(list(range(4)))
            last_s.append(now_s)
        last_s[chosen] = now_s
        more = min(int(draw.lognormvariate(2.3, 0.9)) + 1, 120)
        talk = talks[chosen]
        talk.extend(range(blocks, blocks + more))
        blocks += more
        tokens = len(talk) * BLOCK + draw.randrange(1, BLOCK)
        made.append((now_s, tokens, draw.randrange(20, 500), list(talk)))
    return make(made)


@pytest.mark.parametrize("seed", range(1, 7))
def test_order_and_hits_of_policies_over_seeds_speeds_and_caches(seed: int) -> None:
    """As published, where the caches hold what is asked for again: copies then displace nothing."""
    trace = conversations(seed)
    for speed in (1.0, 1.5, 2.0):
        for cache_tokens in (3_000_000, 6_000_000, 0):
            found = {
                policy: report(
                    simulate(
                        trace, configure(policy, speed=speed, cache_tokens=cache_tokens, seed=seed)
                    )
                )
                for policy in ("random", "least-load", "local", "global")
            }
            means = [one.ttft_s.mean for one in found.values()]
            told = f"seed {seed}, {speed:g}x, caches of {cache_tokens} tokens: {means}"
            assert means == sorted(means, reverse=True), told
            local, everywhere = found["local"].hit_tokens, found["global"].hit_tokens
            told = f"{told}: local hits {local}, global {everywhere}"
            assert found["global"].hit_tokens_max >= everywhere >= local > 0, told


def test_copies_into_caches_that_are_too_small_cost_hits() -> None:
    """Where hit(global) >= hit(local) ends: what is fetched displaces what is asked for again."""
    local, everywhere = (
        report(simulate(conversations(4), configure(policy, speed=2.0, cache_tokens=300_000)))
        for policy in ("local", "global")
    )
    assert everywhere.hit_tokens < local.hit_tokens


def test_a_refused_request_changes_nothing(sample: Trace) -> None:
    """Whoever is refused at arrival might as well not have come."""
    config = tight(admission="early", policy="global")
    replay = simulate(sample, config)
    refused = (State.REJECTED_PREFILL, State.REJECTED_DECODE)
    kept = [i for i, state in enumerate(replay.column(Outcome.STATE)) if state not in refused]
    assert 0 < len(kept) < 1000
    fewer = make([
        (sample.arrival_s[i], sample.tokens[i], sample.output[i],
         list(sample.blocks[sample.first_block[i] : sample.first_block[i + 1]]))
        for i in kept
    ])  # fmt: skip
    # Ties and errors are drawn by the number of the request: leave both out.
    plain = replace(config, scheduler=replace(config.scheduler, error_sigma=0.0))
    again = [i for i, s in enumerate(simulate(sample, plain).column(Outcome.STATE))]
    assert len(again) == 1000
    assert report(simulate(fewer, plain)).rejected_decode <= report(replay).rejected_decode


@pytest.mark.parametrize("admission", ["baseline", "early", "predicted", "oracle", "forecast"])
def test_without_the_refused_ones_everything_is_the_same(sample: Trace, admission: str) -> None:
    """Queues, caches, batches and what is learnt are those of the accepted ones alone."""
    # One instance of each, because whoever wins a tie depends on how many have asked.
    config = tight(
        admission=admission, policy="global", prefill_nodes=1, decode_nodes=1, speed=0.2,
        error_sigma=0.0,
    )  # fmt: skip
    replay = simulate(sample, config)
    refused = (State.REJECTED_PREFILL, State.REJECTED_DECODE)
    kept = [i for i, state in enumerate(replay.column(Outcome.STATE)) if state not in refused]
    assert 100 < len(kept) < 1000
    fewer = make([
        (sample.arrival_s[i], sample.tokens[i], sample.output[i],
         list(sample.blocks[sample.first_block[i] : sample.first_block[i + 1]]))
        for i in kept
    ])  # fmt: skip
    again = simulate(fewer, config)
    for outcome in (Outcome.STATE, Outcome.TTFT, Outcome.PREFIX_TOKENS, Outcome.END):
        expected = [replay.column(outcome)[i] for i in kept]
        assert column(again, outcome) == pytest.approx(expected, nan_ok=True)


def test_who_is_refused_in_the_queue_leaves_nothing_behind() -> None:
    # Each prompt takes 0.9 s; the first answers fill the decode node for minutes.
    block = iter(range(100))
    trace = make([
        (0.1 * i, 8192, 2000, [next(block) for _ in range(16)]) for i in range(4)
    ] + [(5.0, 8192, 2000, [48, 49])])  # fmt: skip
    setup: dict[str, Any] = {
        "prefill_nodes": 1, "decode_nodes": 1, "decode_batch_max": 2, "admission": "early",
    }  # fmt: skip
    late = simulate(trace, configure(**setup))
    assert [int(state) for state in late.column(Outcome.STATE)] == [1, 1, 4, 4, 3]
    asked = simulate(trace, configure(**setup, check_again=True))
    assert [int(state) for state in asked.column(Outcome.STATE)] == [1, 1, 5, 5, 3]
    work = column(asked, Outcome.PREFILL_WORK)
    assert work[2] == work[3] == 0 < work[1]
    assert report(asked).wasted_gpu_s == 0 < report(late).wasted_gpu_s
    # The third prompt's blocks were promised, and are not there.
    later = make([
        *[(0.1 * i, 8192, 2000, list(range(16 * i, 16 * i + 16))) for i in range(3)],
        (300.0, 8192, 2, list(range(32, 48))),
    ])  # fmt: skip
    again = simulate(later, configure(**setup, check_again=True))
    assert [int(state) for state in again.column(Outcome.STATE)] == [1, 1, 5, 1]
    assert column(again, Outcome.PREFIX_TOKENS)[3] == 0


def test_who_computes_what_others_wait_for_is_not_refused_in_the_queue() -> None:
    shared = list(range(8))
    trace = make([
        (0.0, 8192, 2000, []), (0.1, 8192, 2000, []), (0.2, 8192, 2000, shared),
        (0.3, 8192, 2000, shared),
    ])  # fmt: skip
    setup: dict[str, Any] = {
        "prefill_nodes": 1, "decode_nodes": 1, "decode_batch_max": 2, "admission": "early",
        "check_again": True,
    }  # fmt: skip
    states = [int(state) for state in simulate(trace, configure(**setup)).column(Outcome.STATE)]
    assert states == [State.FINISHED, State.FINISHED, State.REJECTED_LATE, State.REJECTED_QUEUED]


def test_a_decode_instance_is_chosen_anew_when_the_prefill_begins() -> None:
    # At arrival 60,000 tokens are promised to one of the two; when the last prefill begins they
    # are through, and the long answer of the other one is not.
    trace = make([
        (0.0, 8192, 3000, []), (0.01, 60_000, 2, []), (0.02, 8192, 2, []), (0.03, 8192, 2, []),
    ])  # fmt: skip
    setup: dict[str, Any] = {"prefill_nodes": 1, "decode_nodes": 2, "admission": "baseline"}
    fixed = column(simulate(trace, configure(**setup)), Outcome.DECODE_INSTANCE)
    anew = column(simulate(trace, configure(**setup, check_again=True)), Outcome.DECODE_INSTANCE)
    assert fixed[3] == fixed[0] != fixed[1]
    assert anew[3] == anew[1] != anew[0]


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


def test_forecasts_waste_less_than_looking_at_the_present(sample: Trace) -> None:
    for nodes, batch in ((1, 60), (4, 14)):
        setup: dict[str, Any] = {
            "speed": 2.0, "decode_nodes": nodes, "decode_batch_max": batch, "error_sigma": 0.2,
        }  # fmt: skip
        baseline, early, forecast = (
            report(simulate(sample, configure(admission=name, **setup, check_again=again)))
            for name, again in (("baseline", False), ("early", False), ("forecast", True))
        )
        assert forecast.wasted_gpu_s < early.wasted_gpu_s < baseline.wasted_gpu_s
        assert forecast.good >= early.good


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


def test_what_the_scheduler_believes_may_be_wrong(sample: Trace) -> None:
    exact = simulate(sample, configure())
    wrong = simulate(sample, configure(error_bias=3.0))
    assert report(wrong).ttft_s.mean > report(exact).ttft_s.mean
    noisy = simulate(sample, configure(error_sigma=0.5))
    ratio = [
        work / LLAMA3_70B_A800(n, int(p))
        for work, n, p in zip(
            noisy.column(Outcome.PREFILL_WORK), sample.tokens,
            noisy.column(Outcome.PREFIX_TOKENS), strict=True,
        )
    ]  # fmt: skip
    logs = [math.log(value) for value in ratio]
    mean = sum(logs) / len(logs)
    assert abs(mean) < 0.06
    assert math.sqrt(sum((v - mean) ** 2 for v in logs) / len(logs)) == pytest.approx(0.5, rel=0.1)


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


def test_coupled_nodes_keep_the_ttft_and_miss_the_tbt(sample: Trace) -> None:
    """A's figure 13, in kind: twice as many nodes prefill, and whoever decodes there waits."""
    split = report(simulate(sample, configure(prefill_nodes=10, decode_nodes=10)))
    both = {"prefill_nodes": 20, "decode_nodes": 20, "coupled": True}
    coupled = report(simulate(sample, configure(**both)))
    assert coupled.finished == split.finished == len(sample)
    assert coupled.ttft_s.mean < 1.1 * split.ttft_s.mean
    assert coupled.good < 0.9 * split.good


def test_coupled_nodes_are_the_same_ones() -> None:
    with pytest.raises(ConfigError, match="same ones twice"):
        configure(prefill_nodes=3, decode_nodes=4, coupled=True)
    with pytest.raises(ConfigError, match="group_nodes is 1"):
        configure(prefill_nodes=4, decode_nodes=4, group_nodes=2, coupled=True)


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


def test_who_is_refused_in_the_queue_is_promised_no_place_any_more_before_the_next_report() -> None:
    # Two decode; then a prompt of 70,000 tokens is promised to the first one's instance, and
    # refused after the report at 40 s.  The last one goes there, to the lesser load, and not to
    # where 60,000 were promised when the report was made.
    trace = make([
        (0.0, 45_000, 5000, []), (0.1, 40_000, 5000, []), (35.0, 60_000, 1, []),
        (36.0, 70_000, 2, []), (50.0, 8192, 2, []),
    ])  # fmt: skip
    setup: dict[str, Any] = {
        "prefill_nodes": 1, "decode_nodes": 2, "decode_capacity_tokens": 110_000, "ttft_s": 1000.0,
        "admission": "early", "check_again": True, "report_interval_s": 40.0,
    }  # fmt: skip
    replay = simulate(trace, configure(**setup))
    states = [int(state) for state in replay.column(Outcome.STATE)]
    assert states == [1, 1, 1, State.REJECTED_QUEUED, 1]
    decode = column(replay, Outcome.DECODE_INSTANCE)
    assert decode[4] == decode[0] != decode[1] == decode[2]


def test_who_is_refused_in_the_queue_takes_no_time_there_any_more_before_the_next_report() -> None:
    # Each node computes a long prompt; 30,000 tokens wait behind the shorter one when loads are
    # told at 40 s, and are refused at its end.  The next one finds that node free, the other not.
    trace = make([
        (0.0, 45_000, 5000, []), (0.1, 40_000, 5000, []), (35.0, 60_000, 1, []),
        (35.1, 66_000, 1, []), (36.0, 30_000, 2, []), (45.0, 8192, 1, []),
    ])  # fmt: skip
    setup: dict[str, Any] = {
        "prefill_nodes": 2, "decode_nodes": 1, "decode_capacity_tokens": 110_000,
        "admission": "early", "check_again": True, "report_interval_s": 40.0,
    }  # fmt: skip
    replay = simulate(trace, configure("least-load", **setup))
    states = [int(state) for state in replay.column(Outcome.STATE)]
    assert states == [1, 1, 1, 1, State.REJECTED_QUEUED, 1]
    prefill = column(replay, Outcome.PREFILL_INSTANCE)
    assert prefill[5] == prefill[4] == prefill[2] != prefill[3]


def test_reports_change_nothing_that_decisions_alone_tell(sample: Trace) -> None:
    """Counting what was decided is nearly as good as knowing; without it the mean is far worse."""
    means = [
        report(simulate(sample, configure("global", speed=2.0, **changes))).ttft_s.mean
        for changes in (
            {},
            {"report_interval_s": 1.0},
            {"report_interval_s": 1.0, "count_decided": False},
        )
    ]
    assert means[1] < 1.3 * means[0]
    assert means[2] > 1.3 * means[1]


def test_with_one_length_for_all_nobody_is_refused_for_his(sample: Trace) -> None:
    nodes = {"decode_nodes": 1, "decode_capacity_tokens": 200_000, "admission": "forecast"}
    own, mean = (
        report(simulate(sample, configure("global", speed=2.0, admit_length=length, **nodes)))
        for length in ("own", "mean")
    )
    assert own.rejected_decode > 50 and mean.rejected_decode > 50
    assert abs(mean.rejected_length - 1) < 0.3 < abs(own.rejected_length - 1)


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


def test_the_prefill_pools_load_is_that_of_the_chosen_or_the_mean() -> None:
    whole_s = LLAMA3_70B_A800(60_000)
    trace = make([(0.0, 60_000, 1, []), (0.0, 60_000, 1, [])])

    def states(prefill_load: str) -> list[float]:
        config = configure(
            prefill_nodes=2, admission="baseline", prefill_load=prefill_load, ttft_s=whole_s * 1.01
        )
        return column(simulate(trace, config), Outcome.STATE)

    # The second has an instance for itself; with half of the other's time it is too late.
    assert states("chosen") == [State.FINISHED, State.FINISHED]
    assert states("mean") == [State.FINISHED, State.REJECTED_PREFILL]


def test_the_decode_pools_load_is_a_setting(sample: Trace) -> None:
    def refused(pool_load: str) -> int:
        config = configure(
            admission="early", pool_load=pool_load, speed=8.0, decode_capacity_tokens=200_000
        )
        states = column(simulate(sample, config), Outcome.STATE)
        return states.count(State.REJECTED_DECODE)

    assert refused("least") < refused("mean") < refused("most")
    assert refused("rule") == refused("mean")


def test_speed_squeezes_arrivals(sample: Trace) -> None:
    fast = simulate(sample, configure(speed=2.0))
    assert column(fast, Outcome.ARRIVAL)[-1] == pytest.approx(sample.arrival_s[-1] / 2)


def test_blocks_of_another_size_are_refused(sample: Trace) -> None:
    with pytest.raises(ConfigError, match="512"):
        simulate(sample, configure(block_tokens=256))


# ---- sizes, reports, files -----------------------------------------------------------------------


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


def test_correlation_is_pearsons() -> None:
    assert correlation([1, 2, 3], [2, 4, 6]) == pytest.approx(1)
    assert correlation([1, 2, 3], [3, 2, 1]) == pytest.approx(-1)
    assert math.isnan(correlation([1, 1], [1, 2]))


def test_a_cluster_file_is_read_and_its_example_is_the_defaults(tmp_path: Path) -> None:
    path = tmp_path / "cluster.toml"
    uncommented = "\n".join(
        line[1:] if line.startswith("#") and " = " in line and line[1] != " " else line
        for line in cluster_example().splitlines()
    )
    path.write_text(uncommented)
    assert SimConfig.read(path) == SimConfig()
    path.write_text('[cluster]\nprefill_nodes = 3\nnic = "25GB"\n[scheduler]\npolicy = "ours"\n')
    config = SimConfig.read(path, {"slo": {"ttft": "5s"}})
    assert config.cluster.prefill_nodes == 3
    assert config.cluster.nic_bytes_per_s == 25e9
    assert config.slo.ttft_s == 5
    assert config.scheduler.selection == "earliest"
    assert config.scheduler == with_policy(SimConfig(), "ours").scheduler


def test_what_is_set_beside_a_policys_name_beats_each_policy(tmp_path: Path) -> None:
    path = tmp_path / "cluster.toml"
    path.write_text('[scheduler]\norder = "fcfs"\ntouch_source = true\n')
    # The first two are also what holds without a policy: that they were said is what counts.
    config = SimConfig.read(path, {"scheduler": {"target_most": 0.9, "overlap": None}})
    ours = with_policy(config, "ours").scheduler
    assert (ours.order, ours.touch_source, ours.target_most) == ("fcfs", True, 0.9)
    assert (ours.policy, ours.selection, ours.overlap) == ("ours", "earliest", True)
    # Naming another policy undoes the former one, not what was said.
    changed = with_policy(with_policy(config, "ours", overlap=True), "random").scheduler
    assert (changed.selection, changed.order, changed.target_most) == ("random", "fcfs", 0.9)
    assert changed.overlap is True
    assert with_policy(with_policy(SimConfig(), "ours"), "global") == SimConfig()


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("[cluster]\nprefil_nodes = 3", "prefill_nodes"),
        ("[clusters]", "cluster"),
        ('[scheduler]\npolicy = "best"', "least-load"),
        ("[cluster]\nprefill_nodes = 3\ngroup_nodes = 2", "whole groups"),
        ("[cluster]\nprefill_nodes = 0", "at least 1"),
        ("[cluster", "TOML"),
    ],
)
def test_a_cluster_file_that_cannot_be_names_what_is_wrong(
    tmp_path: Path, text: str, names: str
) -> None:
    path = tmp_path / "cluster.toml"
    path.write_text(text)
    with pytest.raises(ConfigError, match=names):
        SimConfig.read(path)


@pytest.mark.parametrize(
    ("lines", "names"),
    [
        ([LINE % (0, 0, "[]")], "0 tokens"),
        ([LINE % (0, 5, "[1, 2]")], "2 block ids"),
        ([LINE % (0, 600, "[1, 1]")], "twice"),
        ([LINE % (9, 5, "[]"), LINE % (8, 5, "[]")], "request 2"),
        (["{"], "line 1"),
        (["", '{"timestamp": "0"}'], "line 2 .* timestamp is a number of milliseconds, not \"0\""),
        (['{"timestamp": null}'], "timestamp is a number of milliseconds, not null"),
        (["[1, 2]"], "line 1 .* an object with timestamp"),
        (["{}"], "timestamp is a number of milliseconds, not left out"),
        (['{"timestamp": 0, "input_length": 1e400}'], "input_length is a number .*, not Infinity"),
        ([LINE % (0, 600, '["a"]')], "hash_ids is a list of whole numbers"),
        ([(LINE % (0, 5, "[]")).replace("0,", "1e16,", 1)], "too late"),
        ([], "no requests"),
    ],
)  # fmt: skip
def test_a_trace_that_cannot_be_names_the_request(
    tmp_path: Path, lines: list[str], names: str
) -> None:
    path = tmp_path / "trace.jsonl"
    path.write_text("\n".join(lines))
    with pytest.raises(ConfigError, match=names) as raised:
        load_trace(path)
    assert "docs/scheduling.md" in raised.value.hint


def test_blank_lines_of_a_trace_are_skipped(tmp_path: Path) -> None:
    path = tmp_path / "trace.jsonl"
    path.write_text("\n" + LINE % (0, 5, "[]") + "\n\n" + LINE % (1, 5, "[]") + "\n\n")
    assert len(load_trace(path)) == 2


def test_only_whole_blocks_can_be_shared(tmp_path: Path) -> None:
    path = tmp_path / "trace.jsonl"
    line = '{"timestamp": %d, "input_length": 1000, "output_length": 2, "hash_ids": [5, 6]}'
    path.write_text("\n".join(line % at for at in (0, 60_000)))
    trace = load_trace(path)
    assert list(trace.blocks) == [0, 0]
    assert column(simulate(trace, configure()), Outcome.PREFIX_TOKENS) == [0, 512]


def test_azure_traces_are_read(tmp_path: Path) -> None:
    path = tmp_path / "azure.csv"
    path.write_text(
        "TIMESTAMP,ContextTokens,GeneratedTokens\n"
        "2023-11-16 18:15:46.6805900,374,44\n2023-11-16 18:15:50.9951690,396,109\n"
    )
    trace = load_trace(path)
    assert list(trace.tokens) == [374, 396]
    assert trace.arrival_s[1] == pytest.approx(4.314579, abs=1e-5)
    assert report(simulate(trace, configure())).finished == 2
    path.write_text("TIMESTAMP,ContextTokens\n2023-11-16 18:15:46,3\n")
    with pytest.raises(ConfigError, match="line 2"):
        load_trace(path)


@pytest.mark.parametrize(
    ("table", "setting"),
    [("model", "prefill_token_us"), ("slo", "ttft_s"), ("scheduler", "error_sigma")],
)
def test_what_is_no_number_never_reaches_the_simulator(
    sample: Trace, table: str, setting: str
) -> None:
    config = configure("global")
    broken = replace(config, **{table: replace(getattr(config, table), **{setting: math.nan})})
    with pytest.raises(ConfigError, match=f"{table}.{setting} is a number, not nan"):
        simulate(sample, broken)
