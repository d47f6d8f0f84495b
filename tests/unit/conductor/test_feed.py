"""Following a stream: nothing is missed, nothing is applied twice."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mooncake_store.conductor.feed import Feed, FeedResult


class Follower:
    """A feed and the events that it applied."""

    def __init__(self) -> None:
        self.feed = Feed("node-1")
        self.applied: list[int] = []

    def offer(self, epoch: int, first: int, count: int) -> FeedResult:
        def apply(skip: int) -> None:
            self.applied += range(first + skip, first + count)

        return self.feed.offer(epoch, first, count, apply)

    def load(self, epoch: int, sequence: int) -> FeedResult:
        return self.feed.load_snapshot(
            epoch,
            sequence,
            self.applied.clear,
            [lambda: self.applied.extend(range(1, sequence + 1))],
        )


def test_nothing_is_applied_before_the_first_snapshot() -> None:
    follower = Follower()
    assert follower.offer(1, 1, 5) is FeedResult.REFUSED
    assert follower.applied == []
    assert follower.load(1, 0) is FeedResult.APPLIED
    assert follower.offer(1, 1, 5) is FeedResult.APPLIED
    assert follower.applied == [1, 2, 3, 4, 5]


def test_the_tail_overlaps_the_snapshot() -> None:
    follower = Follower()
    follower.load(1, 7)
    assert follower.offer(1, 3, 3) is FeedResult.DUPLICATE
    assert follower.offer(1, 6, 4) is FeedResult.APPLIED
    assert follower.applied == list(range(1, 10))


def test_a_gap_stops_the_stream_until_a_snapshot() -> None:
    follower = Follower()
    follower.load(1, 0)
    follower.offer(1, 1, 2)
    assert follower.offer(1, 5, 1) is FeedResult.REFUSED
    assert (follower.feed.gaps, follower.feed.missed) == (1, 2)
    assert follower.offer(1, 3, 2) is FeedResult.REFUSED  # too late: what came after is lost
    assert follower.load(1, 5) is FeedResult.APPLIED
    assert follower.offer(1, 6, 1) is FeedResult.APPLIED
    assert follower.applied == [1, 2, 3, 4, 5, 6]


def test_a_new_epoch_begins_with_a_snapshot_and_ends_the_old_one() -> None:
    follower = Follower()
    follower.load(3, 9)
    assert follower.offer(4, 1, 1) is FeedResult.REFUSED
    assert follower.offer(3, 10, 1) is FeedResult.OUTDATED
    assert follower.load(3, 12) is FeedResult.OUTDATED
    assert follower.load(4, 1) is FeedResult.APPLIED
    assert follower.offer(4, 2, 1) is FeedResult.APPLIED


def test_a_snapshot_that_fails_half_way_is_asked_for_again() -> None:
    follower = Follower()
    follower.load(1, 3)

    def broken() -> None:
        raise OSError("cut off")

    with pytest.raises(OSError):
        follower.feed.load_snapshot(1, 9, follower.applied.clear, [broken])
    assert follower.feed.needs_snapshot
    assert follower.offer(1, 4, 1) is FeedResult.REFUSED


@settings(max_examples=200, deadline=None)
@given(st.lists(st.tuples(st.integers(1, 30), st.integers(1, 6), st.booleans()), max_size=30))
def test_what_is_applied_is_always_a_prefix_of_the_stream(
    steps: list[tuple[int, int, bool]],
) -> None:
    follower = Follower()
    for first, count, is_snapshot in steps:
        if is_snapshot:
            follower.load(1, first)
        else:
            follower.offer(1, first, count)
        assert follower.applied == list(range(1, len(follower.applied) + 1))
