"""The simulator's promises over whole traces: ends, seeds, and the order of the policies."""

from __future__ import annotations

import json
import math
import random

import pytest

from mooncake_store.conductor.prefill_time import LLAMA3_70B_A800
from mooncake_store.conductor.report import report
from mooncake_store.conductor.sim_config import ADMISSIONS, EVICTIONS, ORDERS, POLICIES
from mooncake_store.conductor.simulation import Outcome, simulate
from mooncake_store.conductor.trace import Trace
from mooncake_store.errors import LimitError
from tests.unit.conductor.replays import BLOCK, column, configure, make, tight


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


def test_coupled_nodes_keep_the_ttft_and_miss_the_tbt(sample: Trace) -> None:
    """A's figure 13, in kind: twice as many nodes prefill, and whoever decodes there waits."""
    split = report(simulate(sample, configure(prefill_nodes=10, decode_nodes=10)))
    both = {"prefill_nodes": 20, "decode_nodes": 20, "coupled": True}
    coupled = report(simulate(sample, configure(**both)))
    assert coupled.finished == split.finished == len(sample)
    assert coupled.ttft_s.mean < 1.1 * split.ttft_s.mean
    assert coupled.good < 0.9 * split.good


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


def test_speed_squeezes_arrivals(sample: Trace) -> None:
    fast = simulate(sample, configure(speed=2.0))
    assert column(fast, Outcome.ARRIVAL)[-1] == pytest.approx(sample.arrival_s[-1] / 2)
