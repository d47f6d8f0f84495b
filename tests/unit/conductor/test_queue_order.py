"""The order of a queue: against every other order, where there are few enough."""

from __future__ import annotations

import math
import random
from itertools import permutations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mooncake_store.conductor.queue_order import Target, Waiting, plan_queue
from mooncake_store.errors import RequestError

QUEUES = st.lists(st.tuples(st.integers(0, 20), st.integers(1, 12)), min_size=1, max_size=6).map(
    lambda rows: [Waiting(float(a), float(b)) for a, b in sorted(rows, reverse=True)]
)


def ends(waiting: list[Waiting], order: list[int], free_s: float) -> list[float]:
    """When each is through, counted from its arrival, by place."""
    at, found = free_s, [0.0] * len(waiting)
    for place in order:
        at += waiting[place].work_s
        found[place] = at + waiting[place].waited_s
    return found


@settings(max_examples=150, deadline=None)
@given(QUEUES, st.integers(0, 5))
def test_no_order_has_more_within_the_deadline(waiting: list[Waiting], free_s: int) -> None:
    def in_time(order: list[int]) -> int:
        return sum(end <= 24 for end in ends(waiting, order, free_s))

    planned = plan_queue(waiting, target_s=24, slo_s=24, free_s=free_s)
    assert sorted(planned) == list(range(len(waiting)))
    assert in_time(planned) == max(in_time(list(o)) for o in permutations(range(len(waiting))))


@settings(max_examples=150, deadline=None)
@given(QUEUES)
def test_of_all_orders_in_time_it_has_the_least_mean(waiting: list[Waiting]) -> None:
    def late(order: list[int]) -> bool:
        return any(end > 30 for end in ends(waiting, order, 0))

    every = [list(order) for order in permutations(range(len(waiting)))]
    good = [sum(ends(waiting, order, 0)) for order in every if not late(order)]
    planned = plan_queue(waiting, target_s=30, slo_s=30)
    if good:
        assert not late(planned)
        assert sum(ends(waiting, planned, 0)) == min(good)


def test_without_deadlines_in_sight_the_shortest_goes_first() -> None:
    waiting = [Waiting(0, 5), Waiting(0, 1), Waiting(0, 3)]
    assert plan_queue(waiting, target_s=100, slo_s=100) == [1, 2, 0]


def test_who_has_waited_long_goes_before_shorter_ones() -> None:
    waiting = [Waiting(25, 5), Waiting(0, 1), Waiting(0, 1)]
    assert plan_queue(waiting, target_s=30, slo_s=30) == [0, 1, 2]
    assert plan_queue(waiting, target_s=30, slo_s=30, free_s=0.5)[-1] == 0  # too late anyway


def test_who_gives_way_still_has_the_slo() -> None:
    # In 10 s the long one is too much; in 30 s there is room for it, but not behind both others.
    waiting = [Waiting(0, 9), Waiting(0, 4), Waiting(0, 5)]
    assert plan_queue(waiting, target_s=10, slo_s=30) == [1, 2, 0]
    older = [Waiting(16, 9), Waiting(0, 4), Waiting(0, 5)]
    assert plan_queue(older, target_s=19, slo_s=30) == [1, 0, 2]


def promised(waiting: list[Waiting], free_s: float) -> list[Waiting]:
    """The same, each with what it would take in the order of arrival."""
    found, at = [], free_s
    for one in waiting:
        at += one.work_s
        found.append(Waiting(one.waited_s, one.work_s, at + one.waited_s))
    return found


@settings(max_examples=150, deadline=None)
@given(QUEUES, st.integers(0, 5), st.sampled_from([0.0, 6.0, 15.0]))
def test_nobody_is_later_than_promised_but_below_what_does_not_matter(
    waiting: list[Waiting], free_s: int, least_s: float
) -> None:
    queue = promised(waiting, free_s)
    order = plan_queue(queue, target_s=1000, slo_s=1000, free_s=free_s, least_s=least_s)
    for end, one in zip(ends(queue, order, free_s), queue, strict=True):
        assert end <= max(one.promised_s, least_s) + 1e-9


def test_what_was_promised_bounds_how_far_short_ones_overtake() -> None:
    long = Waiting(0, 6, 8)  # 2 s were before it when it came, and two short ones have come since
    waiting = [long, Waiting(0, 1, 9), Waiting(0, 1, 10)]
    assert plan_queue(waiting, target_s=20, slo_s=30, free_s=2) == [0, 1, 2]
    assert plan_queue(waiting, target_s=20, slo_s=30, free_s=2, least_s=9) == [1, 0, 2]
    assert plan_queue(waiting, target_s=20, slo_s=30, free_s=2, least_s=12) == [1, 2, 0]
    # The target is the most that anybody may be let wait for, and it is of use to all of them.
    late = [Waiting(0, 6, 40), Waiting(0, 1, 41), Waiting(0, 1, 42)]
    assert plan_queue(late, target_s=10, slo_s=30, free_s=2) == [1, 2, 0]


def test_long_queues_are_whole_and_the_hopeless_come_last() -> None:
    draw = random.Random(4)
    waited = sorted((draw.uniform(0, 5000) for _ in range(800)), reverse=True)
    waiting = [Waiting(at, draw.expovariate(0.5) + 0.01) for at in waited]
    order = plan_queue(waiting, target_s=10, slo_s=30)
    assert sorted(order) == list(range(800))
    hopeless = [place for place in order if waiting[place].waited_s > 30 * 16]
    assert 300 < len(hopeless) < 800
    tail = order[min(order.index(place) for place in hopeless) :]
    works = [waiting[place].work_s for place in tail]
    assert works == sorted(works)  # behind all that have a deadline, and the shortest first


def test_the_aim_settles_where_its_share_misses() -> None:
    draw = random.Random(1)
    target = Target(30.0, most=1.0, miss_share=0.05, gain=0.1)
    assert target.target_s == 30.0
    seen = []
    for _ in range(20_000):
        ttft_s = draw.uniform(0, 10)
        seen.append(ttft_s > target.target_s)
        target.note(ttft_s)
    assert sum(seen[5000:]) / 15_000 == pytest.approx(0.05, rel=0.2)
    for _ in range(1000):
        target.note(math.inf)
    assert target.target_s == pytest.approx(30.0)


def test_what_cannot_be_is_refused() -> None:
    assert plan_queue([], target_s=1, slo_s=1) == []
    for waiting, target_s in (
        ([Waiting(0, 1), Waiting(2, 1)], 10),
        ([Waiting(0, -1)], 10),
        ([Waiting(0, math.nan)], 10),
        ([Waiting(0, 1, -1)], 10),
        ([Waiting(0, 1)], 31),
        ([Waiting(0, 1)], 0),
    ):
        with pytest.raises(RequestError):
            plan_queue(waiting, target_s=target_s, slo_s=30)
    with pytest.raises(RequestError):
        Target(0)
