"""The policies: what the papers' algorithms must do, and where ours differ on purpose."""

from __future__ import annotations

import math
import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mooncake_store._native import lib
from mooncake_store.conductor.admission import DecodePool, Flight, Forecast, ForecastRule, PoolLoad
from mooncake_store.conductor.costs import Costs
from mooncake_store.conductor.decode_choice import DecodeSelector, DecodeView
from mooncake_store.conductor.decode_time import DecodeTime
from mooncake_store.conductor.prefill_choice import (
    HolderTies,
    PrefillRule,
    PrefillSelector,
    PrefillView,
)
from mooncake_store.conductor.prefill_time import PrefillTime
from mooncake_store.conductor.replication import wanted_replicas
from mooncake_store.conductor.transfer_time import TransferTime
from mooncake_store.errors import RequestError

COSTS = Costs(
    prefill=PrefillTime(),
    decode=DecodeTime(),
    transfer=TransferTime(kv_bytes_per_token=327_680, bandwidth_bytes_per_s=100e9),
)

VIEWS = st.lists(
    st.builds(
        PrefillView,
        queue_s=st.floats(0, 60),
        prefix_tokens=st.sampled_from([0, 512, 1024, 4096, 8192]),
        requests=st.integers(0, 20),
        egress_bytes=st.floats(0, 1e11),
    ),
    min_size=1,
    max_size=12,
)


@settings(max_examples=200, deadline=None)
@given(VIEWS, st.integers(1, 20_000), st.integers(0, 50))
def test_an_infinite_threshold_is_the_local_policy(
    views: list[PrefillView], tokens: int, turn: int
) -> None:
    endless = PrefillSelector(PrefillRule.GLOBAL, COSTS, balancing_threshold=math.inf)
    local = PrefillSelector(PrefillRule.LOCAL, COSTS)
    chosen = local.choose(tokens, views, turn=turn)
    assert chosen is not None and chosen.source is None
    assert endless.choose(tokens, views, turn=turn) == chosen


def test_with_no_prefix_at_all_an_infinite_threshold_stays_local_too() -> None:
    views = [PrefillView(queue_s=0), PrefillView(queue_s=9, prefix_tokens=512)]
    endless = PrefillSelector(PrefillRule.GLOBAL, COSTS, balancing_threshold=math.inf)
    local = PrefillSelector(PrefillRule.LOCAL, COSTS)
    assert endless.choose(4096, views) == local.choose(4096, views)


@pytest.mark.parametrize("rule", list(PrefillRule))
def test_one_instance_leaves_no_choice(rule: PrefillRule) -> None:
    view = PrefillView(queue_s=3, prefix_tokens=1024, requests=2)
    choice = PrefillSelector(rule, COSTS).choose(4096, [view], turn=17)
    assert choice is not None
    assert (choice.instance, choice.source, choice.prefix_tokens) == (0, None, 1024)
    assert choice.ttft_s == pytest.approx(3 + PrefillTime()(4096, 1024))


def test_threshold_1_and_no_cost_of_transfer_gives_everybody_the_best_prefix() -> None:
    costs = Costs(
        prefill=PrefillTime(),
        decode=DecodeTime(),
        transfer=TransferTime(
            kv_bytes_per_token=1, bandwidth_bytes_per_s=1e18, latency_s=0, load_bytes_per_s=1e18
        ),
    )
    selector = PrefillSelector(PrefillRule.GLOBAL, costs, balancing_threshold=1)
    for lucky in range(4):
        views = [
            PrefillView(queue_s=0 if i == lucky else 5, prefix_tokens=512 * i) for i in range(4)
        ]
        choice = selector.choose(4096, views)
        assert choice is not None
        assert choice.instance == lucky
        assert choice.prefix_tokens == 512 * 3
        assert choice.source == (None if lucky == 3 else 3)


@settings(max_examples=100, deadline=None)
@given(st.lists(st.floats(0, 60), min_size=1, max_size=10), st.integers(1, 50_000))
def test_without_shared_blocks_the_least_predicted_ttft_wins(queues: list[float], n: int) -> None:
    views = [PrefillView(queue_s=queue) for queue in queues]
    for rule in (PrefillRule.LOCAL, PrefillRule.GLOBAL, PrefillRule.EARLIEST):
        choice = PrefillSelector(rule, COSTS).choose(n, views)
        assert choice is not None
        assert choice.ttft_s == pytest.approx(min(queues) + PrefillTime()(n))


def test_equality_with_the_threshold_stays_local() -> None:
    views = [
        PrefillView(queue_s=0, prefix_tokens=1024),
        PrefillView(queue_s=50, prefix_tokens=2048),
    ]
    at = PrefillSelector(PrefillRule.GLOBAL, COSTS, balancing_threshold=2).choose(4096, views)
    below = PrefillSelector(PrefillRule.GLOBAL, COSTS, balancing_threshold=1.99).choose(4096, views)
    assert at is not None and (at.instance, at.source) == (0, None)
    assert below is not None and (below.instance, below.source) == (0, 1)
    assert below.transfer_tokens == 1024


def test_of_equal_holders_the_one_with_the_shorter_queue_is_the_source() -> None:
    views = [
        PrefillView(queue_s=0),
        PrefillView(queue_s=40, prefix_tokens=2048),
        PrefillView(queue_s=30, prefix_tokens=2048),
        PrefillView(queue_s=30, prefix_tokens=2048),
    ]
    choice = PrefillSelector(PrefillRule.GLOBAL, COSTS).choose(4096, views)
    assert choice is not None and (choice.instance, choice.source) == (0, 2)


def test_comparing_costs_keeps_algorithm_1_from_fetching_over_a_slow_network() -> None:
    slow = Costs(
        prefill=PrefillTime(),
        decode=DecodeTime(),
        transfer=TransferTime(kv_bytes_per_token=327_680, bandwidth_bytes_per_s=1e9),
    )
    views = [PrefillView(queue_s=0), PrefillView(queue_s=100, prefix_tokens=4096)]
    published = PrefillSelector(PrefillRule.GLOBAL, slow).choose(8192, views)
    comparing = PrefillSelector(PrefillRule.GLOBAL, slow, compares_costs=True).choose(8192, views)
    assert published is not None and published.source == 1
    assert comparing is not None and comparing.source is None
    assert comparing.ttft_s < published.ttft_s


def test_ties_go_round() -> None:
    views = [PrefillView(queue_s=0) for _ in range(5)]
    for rule in set(PrefillRule) - {PrefillRule.RANDOM}:
        selector = PrefillSelector(rule, COSTS)
        chosen = [selector.choose(100, views, turn=turn) for turn in range(10)]
        assert {choice.instance for choice in chosen if choice} == set(range(5))


def test_random_spreads_evenly_over_the_open_ones() -> None:
    selector = PrefillSelector(PrefillRule.RANDOM, COSTS)
    views = [PrefillView(queue_s=0, is_closed=i == 1) for i in range(4)]
    draw = random.Random(3)
    counts = [0] * 4
    for _ in range(3000):
        choice = selector.choose(100, views, turn=draw.getrandbits(60))
        assert choice is not None
        counts[choice.instance] += 1
    assert counts[1] == 0
    assert all(850 < counts[i] < 1150 for i in (0, 2, 3))


def test_least_time_and_least_count_look_at_different_things() -> None:
    views = [PrefillView(queue_s=9, requests=1), PrefillView(queue_s=1, requests=30)]
    by_time = PrefillSelector(PrefillRule.LEAST_TIME, COSTS).choose(100, views)
    by_count = PrefillSelector(PrefillRule.LEAST_COUNT, COSTS).choose(100, views)
    assert by_time is not None and by_time.instance == 1
    assert by_count is not None and by_count.instance == 0


@pytest.mark.parametrize("rule", list(PrefillRule))
def test_closed_instances_get_nothing(rule: PrefillRule) -> None:
    selector = PrefillSelector(rule, COSTS)
    views = [PrefillView(queue_s=0, is_closed=True), PrefillView(queue_s=99)]
    choice = selector.choose(100, views)
    assert choice is not None and choice.instance == 1
    assert selector.choose(100, views[:1]) is None
    assert selector.choose(100, []) is None


def test_earliest_takes_a_free_sender_before_a_busy_one() -> None:
    views = [
        PrefillView(queue_s=0),
        PrefillView(queue_s=50, prefix_tokens=4096, egress_bytes=5e11),
        PrefillView(queue_s=60, prefix_tokens=4096),
    ]
    published = PrefillSelector(PrefillRule.GLOBAL, COSTS).choose(8192, views)
    ours = PrefillSelector(PrefillRule.EARLIEST, COSTS, overlaps=True).choose(8192, views)
    assert published is not None and published.source == 1
    assert ours is not None and ours.source == 2
    assert ours.ttft_s < published.ttft_s


def test_earliest_takes_the_shorter_prefix_when_the_longer_one_is_not_computed_yet() -> None:
    views = [
        PrefillView(queue_s=0),
        PrefillView(queue_s=50, prefix_tokens=8192, ready_s=30),
        PrefillView(queue_s=60, prefix_tokens=4096),
    ]
    choice = PrefillSelector(PrefillRule.EARLIEST, COSTS, overlaps=True).choose(10_000, views)
    assert choice is not None and (choice.instance, choice.source) == (0, 2)


def test_a_transfer_hides_behind_the_queue_only_where_that_is_counted_on() -> None:
    views = [PrefillView(queue_s=2), PrefillView(queue_s=60, prefix_tokens=8192)]
    serial = PrefillSelector(PrefillRule.EARLIEST, COSTS).choose(10_000, views)
    hidden = PrefillSelector(PrefillRule.EARLIEST, COSTS, overlaps=True).choose(10_000, views)
    assert serial is not None and hidden is not None
    assert serial.ttft_s == pytest.approx(hidden.ttft_s + hidden.transfer_s)


def test_who_would_make_others_wait_goes_where_nobody_does() -> None:
    views = [PrefillView(queue_s=1.0, behind=5), PrefillView(queue_s=1.5)]
    choice = PrefillSelector(PrefillRule.EARLIEST, COSTS).choose(8192, views)
    assert choice is not None and choice.instance == 1


def test_predictions_agree_with_the_cost_models() -> None:
    costs = Costs(
        prefill=PrefillTime(0.1, 1e-4, 7e-10),
        decode=DecodeTime(),
        transfer=TransferTime(kv_bytes_per_token=1000, bandwidth_bytes_per_s=1e8, latency_s=0.25),
    )
    views = [
        PrefillView(queue_s=7), PrefillView(queue_s=90, prefix_tokens=5000, egress_bytes=3e7)
    ]  # fmt: skip
    choice = PrefillSelector(PrefillRule.GLOBAL, costs).choose(9000, views)
    assert choice is not None
    assert choice.transfer_s == pytest.approx(costs.transfer(5000, 3e7))
    assert choice.prefill_s == pytest.approx(costs.prefill(9000, 5000))
    assert choice.ttft_s == pytest.approx(7 + choice.transfer_s + choice.prefill_s)


def test_what_cannot_be_is_refused() -> None:
    with pytest.raises(RequestError):
        PrefillSelector(PrefillRule.GLOBAL, COSTS, balancing_threshold=0.5)
    with pytest.raises(RequestError):
        PrefillSelector(PrefillRule.GLOBAL, COSTS, balancing_threshold=math.nan)
    with pytest.raises(RequestError):
        PrefillSelector(PrefillRule.GLOBAL, COSTS).choose(0, [PrefillView(queue_s=0)])
    with pytest.raises(RequestError):
        DecodePool(COSTS, tbt_slo_s=0, capacity_tokens=1, batch_max=1)
    with pytest.raises(RequestError):
        DecodeSelector(COSTS, tbt_slo_s=1, capacity_tokens=0, batch_max=1)


# ---- decoding ------------------------------------------------------------------------------------

_LIMITS = {"tbt_slo_s": 0.1, "capacity_tokens": 1_300_000, "batch_max": 64}
POOL, SELECTOR = DecodePool(COSTS, **_LIMITS), DecodeSelector(COSTS, **_LIMITS)


def test_the_least_loaded_decode_instance_is_chosen_with_what_is_promised() -> None:
    views = [
        DecodeView(batch=1, context_tokens=10_000, promised=9, promised_tokens=900_000),
        DecodeView(batch=5, context_tokens=60_000),
    ]
    choice = SELECTOR.choose(8000, views, expected_output=300)
    assert choice is not None and choice.instance == 1
    assert choice.tbt_s == pytest.approx(DecodeTime()(6, 68_000))
    assert choice.load < 1


def test_a_nic_that_is_busy_counts_among_those_that_have_room() -> None:
    """The KV cache of a cached prompt takes longer to arrive than the rest does to compute."""
    weighed = DecodeSelector(COSTS, **_LIMITS, stream_weight=1.0)
    nic = COSTS.transfer.bandwidth_bytes_per_s
    views = [
        DecodeView(batch=4, context_tokens=40_000, ingress_bytes=0.1 * nic),
        DecodeView(batch=6, context_tokens=60_000),
        DecodeView(batch=64),
    ]
    assert SELECTOR.choose(1000, views, expected_output=100).instance == 0
    chosen = weighed.choose(1000, views, expected_output=100)
    assert chosen.instance == 1
    assert chosen.load == SELECTOR.choose(1000, views[1:2], expected_output=100).load
    # 5 s of other streams are still better than no room.
    views[:2] = [DecodeView(batch=4, ingress_bytes=5 * nic), DecodeView(batch=64)]
    assert weighed.choose(1000, views, expected_output=100).instance == 0
    with pytest.raises(RequestError):
        DecodeSelector(COSTS, **_LIMITS, stream_weight=-1.0)


@pytest.mark.parametrize(
    "view",
    [
        DecodeView(batch=64),
        DecodeView(batch=1, reserved_tokens=1_299_000),
        DecodeView(batch=1, context_tokens=1_900_000),
    ],
)
def test_batch_memory_and_tbt_each_can_be_the_scarce_one(view: DecodeView) -> None:
    choice = SELECTOR.choose(8000, [view], expected_output=300)
    assert choice is not None and choice.load > 1


def test_no_open_decode_instance_is_no_choice() -> None:
    assert SELECTOR.choose(1, [], expected_output=1) is None
    assert SELECTOR.choose(1, [DecodeView(is_closed=True)], expected_output=1) is None


def test_the_pools_load_counts_the_arriving_request() -> None:
    assert POOL.load(8000, [DecodeView(batch=64)]) > 1


def _flights(count: int, **facts: float) -> list[Flight]:
    values = {"begin_s": 0.0, "tokens": 1000.0, **facts}
    return [Flight(instance=i % 2, **values) for i in range(count)]


def _load(rule: ForecastRule, flights: list[Flight], **facts: object) -> float:
    forecast = Forecast(now_s=10, at_s=15, **facts)  # type: ignore[arg-type]
    load, _ = POOL.load_at(
        rule, 1000, [DecodeView(), DecodeView()], flights, forecast, expected_output=0
    )
    return load


def test_a_decode_time_of_nothing_leaves_only_future_joins() -> None:
    old, future = _flights(40), _flights(6, begin_s=15.0)
    assert _load(ForecastRule.PREDICTED, old, decode_s=0) == _load(ForecastRule.PREDICTED, [])
    # Those that join at that very moment are in.
    assert _load(ForecastRule.PREDICTED, [*old, *future], decode_s=1e-9) == pytest.approx(
        DecodeTime()(0, 4000) / 0.1
    )


def test_an_endless_decode_time_never_removes_anybody() -> None:
    flights = _flights(126)
    assert _load(ForecastRule.PREDICTED, flights, decode_s=math.inf) == pytest.approx(1.0)


def test_requests_still_in_prefill_then_do_not_count() -> None:
    late = _flights(100, begin_s=20.0)
    for rule in ForecastRule:
        assert _load(rule, late, decode_s=math.inf) == _load(rule, [], decode_s=math.inf)


def test_the_oracle_knows_who_is_through() -> None:
    short = _flights(40, generated=10.0, output=12.0)
    long = _flights(40, generated=10.0, output=5000.0)
    assert _load(ForecastRule.ORACLE, short) == _load(ForecastRule.ORACLE, [])
    assert _load(ForecastRule.ORACLE, long) > _load(ForecastRule.ORACLE, short)


def test_the_forecast_lies_between_nobody_leaves_and_everybody_left() -> None:
    flights = _flights(60, generated=16.0)
    survival = [0.5**i for i in range(64)]  # half are through after every 16 tokens
    some = _load(ForecastRule.FORECAST, flights, survival=survival, margin=0)
    nobody = _load(ForecastRule.FORECAST, flights, survival=[1.0] * 64, margin=0)
    everybody = _load(ForecastRule.FORECAST, flights, survival=[1.0, 1.0, 0.0], margin=0)
    assert everybody <= some < nobody
    careful = _load(
        ForecastRule.FORECAST, _flights(60), survival=[1 - i / 64 for i in range(64)], margin=2
    )
    careless = _load(
        ForecastRule.FORECAST, _flights(60), survival=[1 - i / 64 for i in range(64)], margin=0
    )
    assert careful > careless


def test_the_forecast_counts_requests_that_have_not_arrived() -> None:
    far = Forecast(
        now_s=0, at_s=60, survival=[1.0] * 512, margin=0, joins_per_s=2, join_tokens=1000
    )
    near = Forecast(now_s=0, at_s=0.1, survival=[1.0] * 512, margin=0, joins_per_s=2)
    views = [DecodeView(), DecodeView()]
    args = (ForecastRule.FORECAST, 1000, views, [])
    assert (
        POOL.load_at(*args, far, expected_output=0)[0]
        > POOL.load_at(*args, near, expected_output=0)[0] + 0.5
    )


def test_a_request_goes_where_it_is_not_in_the_way_of_a_long_one_that_is_promised_a_place() -> None:
    def where(promised: Flight, view: DecodeView, **facts: object) -> tuple[float, int | None]:
        forecast = Forecast(now_s=0, at_s=1, margin=0, **facts)  # type: ignore[arg-type]
        flights = [promised, Flight(begin_s=0, tokens=20_000, instance=1)]
        return POOL.load_at(
            ForecastRule.FORECAST, 1000, [DecodeView(), view], flights, forecast, expected_output=0
        )

    stays, through = [1.0] * 512, [1.0, 0.0]
    promised = Flight(begin_s=20, tokens=120_000, instance=0)
    load, instance = where(promised, DecodeView(), survival=stays)
    assert instance == 1
    # It is not refused for its sake, and goes there where nobody else has room.
    assert where(promised, DecodeView(is_closed=True), survival=stays) == (load, 0)
    assert where(promised, DecodeView(), survival=stays, threshold=load * 1.01) == (load, 0)
    # It is through before the other comes; or the other is no longer than those that are there.
    assert where(promised, DecodeView(), survival=through) == (load, 0)
    short = Flight(begin_s=20, tokens=1000, instance=0)
    assert where(short, DecodeView(), survival=stays) == (load, 0)


def test_a_flight_to_nowhere_is_refused() -> None:
    with pytest.raises(RequestError):
        POOL.load_at(
            ForecastRule.ORACLE, 1, [DecodeView()], [Flight(begin_s=0, tokens=1, instance=1)],
            Forecast(now_s=0, at_s=1), expected_output=1,
        )  # fmt: skip


def test_hot_blocks_want_more_replicas() -> None:
    def wanted(reads: float) -> int:
        return wanted_replicas(
            reads, block_bytes=160e6, nic_bytes_per_s=1e9, share=0.1, instances=8
        )

    assert [wanted(reads) for reads in (0, 0.5, 1, 2, 1000)] == [1, 1, 2, 4, 8]
    with pytest.raises(RequestError):
        wanted(-1)


# ---- what the papers leave open ------------------------------------------------------------------


@pytest.mark.parametrize(
    ("ties", "source"), [(HolderTies.QUEUE, 2), (HolderTies.EGRESS, 1), (HolderTies.FIRST, 0)]
)
def test_of_several_best_holders_the_one_that_the_ties_say_sends(
    ties: HolderTies, source: int
) -> None:
    views = [
        PrefillView(queue_s=50, prefix_tokens=8192, egress_bytes=5e9),
        PrefillView(queue_s=40, prefix_tokens=8192, egress_bytes=0),
        PrefillView(queue_s=30, prefix_tokens=8192, egress_bytes=9e9),
        PrefillView(queue_s=0),
    ]
    selector = PrefillSelector(PrefillRule.GLOBAL, COSTS, holder_ties=ties)
    choice = selector.choose(9000, views)
    assert choice is not None
    assert (choice.instance, choice.source) == (3, source)


def test_a_transfer_may_be_predicted_as_if_its_sender_were_idle() -> None:
    blind = TransferTime(kv_bytes_per_token=327_680, counts_queued=False)
    assert blind(1000, 1e11) == TransferTime(kv_bytes_per_token=327_680)(1000)
    costs = Costs(prefill=PrefillTime(), decode=DecodeTime(), transfer=blind)
    views = [PrefillView(queue_s=50, prefix_tokens=8192, egress_bytes=1e11), PrefillView(queue_s=0)]
    assert PrefillSelector(PrefillRule.GLOBAL, costs).choose(9000, views).transfer_s == (  # type: ignore[union-attr]
        pytest.approx(blind(8192))
    )
    assert PrefillSelector(PrefillRule.GLOBAL, COSTS).choose(9000, views).transfer_s > 1  # type: ignore[union-attr]


@pytest.mark.parametrize("rule", list(ForecastRule))
def test_which_load_is_the_pools_can_be_said(rule: ForecastRule) -> None:
    views = [
        DecodeView(batch=2, context_tokens=20_000, reserved_tokens=20_600),
        DecodeView(batch=20, context_tokens=200_000, reserved_tokens=206_000),
        DecodeView(batch=40, context_tokens=900_000, reserved_tokens=912_000),
    ]
    flights = [
        Flight(begin_s=0, tokens=view.context_tokens / view.batch, output=1e6, instance=number)
        for number, view in enumerate(views)
        for _ in range(int(view.batch))
    ]

    def at(pool: PoolLoad) -> tuple[float, int | None]:
        forecast = Forecast(now_s=0, at_s=1, decode_s=1e6, pool=pool)
        return POOL.load_at(rule, 1000, views, flights, forecast, expected_output=300)

    least, mean, most = (at(pool)[0] for pool in (PoolLoad.LEAST, PoolLoad.MEAN, PoolLoad.MOST))
    assert least < mean < most
    assert at(PoolLoad.RULE)[0] == (mean if rule is ForecastRule.PREDICTED else least)
    # Whose load counts does not change where the request goes.
    named = None if rule is ForecastRule.PREDICTED else 0
    assert {at(pool)[1] for pool in PoolLoad} == {named}
    now = [POOL.load(1000, views, pool) for pool in (PoolLoad.LEAST, PoolLoad.MEAN, PoolLoad.MOST)]
    assert now == sorted(set(now))
    assert POOL.load(1000, views) == POOL.load(1000, views, PoolLoad.RULE) == now[1]
    assert now[1] == pytest.approx(
        sum(POOL.load(1000, [view]) for view in views) / len(views), rel=1e-12
    )


def test_a_ttft_is_the_sum_of_its_waits_or_the_longer_of_them() -> None:
    assert lib.cd_ttft_s(2.0, 5.0, 1.0, False) == 8.0
    assert lib.cd_ttft_s(2.0, 5.0, 1.0, True) == 6.0
    assert lib.cd_ttft_s(7.0, 5.0, 1.0, True) == 8.0
