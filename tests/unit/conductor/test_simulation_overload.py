"""Who is refused, when, and what that leaves behind."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from mooncake_store.conductor.prefill_time import LLAMA3_70B_A800
from mooncake_store.conductor.report import report
from mooncake_store.conductor.simulation import Outcome, Replay, State, simulate
from mooncake_store.conductor.trace import Trace
from tests.unit.conductor.replays import column, configure, make, tight


def without_refused(sample: Trace, replay: Replay) -> tuple[list[int], Trace]:
    """Return who was not refused at arrival, and the trace of those alone."""
    refused = (State.REJECTED_PREFILL, State.REJECTED_DECODE)
    kept = [i for i, state in enumerate(replay.column(Outcome.STATE)) if state not in refused]
    fewer = make([
        (sample.arrival_s[i], sample.tokens[i], sample.output[i],
         list(sample.blocks[sample.first_block[i] : sample.first_block[i + 1]]))
        for i in kept
    ])  # fmt: skip
    return kept, fewer


def test_a_refused_request_changes_nothing(sample: Trace) -> None:
    """Whoever is refused at arrival might as well not have come."""
    config = tight(admission="early", policy="global")
    replay = simulate(sample, config)
    kept, fewer = without_refused(sample, replay)
    assert 0 < len(kept) < 1000
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
    kept, fewer = without_refused(sample, replay)
    assert 100 < len(kept) < 1000
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


def test_with_one_length_for_all_nobody_is_refused_for_his(sample: Trace) -> None:
    nodes = {"decode_nodes": 1, "decode_capacity_tokens": 200_000, "admission": "forecast"}
    own, mean = (
        report(simulate(sample, configure("global", speed=2.0, admit_length=length, **nodes)))
        for length in ("own", "mean")
    )
    assert own.rejected_decode > 50 and mean.rejected_decode > 50
    assert abs(mean.rejected_length - 1) < 0.3 < abs(own.rejected_length - 1)


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
