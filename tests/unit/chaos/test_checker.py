"""Histories written by hand, right and wrong, for each promise."""

from __future__ import annotations

import sys
from itertools import count
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from chaos.checker import Bounds, Rule, check
from chaos.history import (
    Eviction,
    Fault,
    History,
    HistoryError,
    Loss,
    Op,
    Operation,
    Outcome,
)

S = 1_000_000_000


def story(*steps, faults=(), losses=(), evictions=()):
    """Each step is "op outcome begin end [token]", times in seconds; `-`: never answered."""
    operations = []
    for line, step in enumerate(steps, start=1):
        text, changes = step if isinstance(step, tuple) else (step, {})
        facts = dict(changes)
        op, outcome, begin, end, *token = text.split()
        operations.append(
            Operation(
                line=line,
                client="a",
                op=Op(op),
                key=facts.pop("key", "k"),
                invoked_ns=int(begin) * S,
                answered_ns=None if end == "-" else int(end) * S,
                outcome=Outcome(outcome),
                token=int(token[0]) if token else None,
                **facts,
            )
        )
    return History(operations, list(faults), list(losses), list(evictions))


def fault(since, until, *, cuts_off=False, hides=False):
    until_ns = None if until is None else until * S
    return Fault(0, f"{since}", since * S, until_ns, cuts_off, hides)


def found(history, bounds=None):
    return [(finding.rule, finding.lines) for finding in check(history, bounds)]


def torn(text):
    return (text, {"is_whole": False})


RIGHT = {
    "nothing": [],
    "put, get, remove, miss": [
        "put ok 1 2 1",
        "get ok 3 4 1",
        "remove ok 5 6",
        "get miss 7 8",
        "exists miss 7 8",
        "put ok 9 10 2",
        "exists ok 11 12",
        "put false 13 14 3",
    ],
    "a read beside the put may see it or not": [
        "put ok 1 5 1",
        "get miss 2 3",
        "get ok 2 3 1",
        "get miss 4 5",
    ],
    "a read beside the remove may see it or not": [
        "put ok 1 2 1",
        "remove ok 3 9",
        "get ok 8 10 1",
        "get miss 4 5",
    ],
    "a read beside the upsert may see either, and even miss": [
        "put ok 1 2 1",
        "upsert ok 3 9 2",
        "get ok 4 5 1",
        "get ok 4 5 2",
        "get ok 8 9 1",
        "get miss 8 9",
    ],
    "a put of unknown outcome may come late": [
        "put unknown 1 - 1",
        "get miss 2 3",
        "remove false 4 5",
        "get miss 6 7",
        "get ok 8 9 1",
    ],
    "a timed out remove may come late": [
        "put ok 3 4 1",
        "remove unknown 1 2",
        "get ok 5 6 1",
        "get miss 7 8",
    ],
    "an unknown upsert may hide what was put": [
        "put ok 1 2 1",
        "upsert unknown 3 - 2",
        "get miss 5 6",
    ],
    "what failed or found nothing changes nothing": [
        "put error 1 2 1",
        "get miss 3 4",
        "put ok 5 6 2",
        "remove error 7 8",
        "get ok 9 10 2",
        "upsert error 11 12 3",
        "get ok 13 14 2",
        "get error 13 14",
        "get unknown 13 14",
    ],
    "two upserts in either order": [
        "upsert ok 1 5 1",
        "upsert ok 2 6 2",
        "get ok 7 8 1",
    ],
    "a remove between two puts that run at once": [
        "put ok 1 9 1",
        "put ok 2 8 2",
        "remove ok 4 5",
    ],
    "TTL": [
        ("put ok 1 2 1", {"ttl_s": 10.0}),
        "get miss 12 13",
        "put ok 14 15 2",
    ],
    "an upsert with TTL that ran at once with another one": [
        ("upsert ok 1 5 1", {"ttl_s": 10.0}),
        "upsert ok 2 5 2",
        "get miss 12 13",
    ],
    "a put after an unknown upsert with TTL": [
        "put ok 1 2 1",
        ("upsert unknown 3 - 2", {"ttl_s": 1.0}),
        "put ok 8 9 3",
    ],
}


@pytest.mark.parametrize("steps", RIGHT.values(), ids=RIGHT)
def test_right_history(steps):
    assert found(story(*steps)) == []


WRONG = {
    "a value that nobody put": (
        ["put ok 1 2 1", "get ok 3 4 9"],
        (Rule.FOREIGN_BYTES, (2,)),
    ),
    "bytes that say nothing": (
        ["put ok 1 2 1", torn("get ok 3 4")],
        (Rule.FOREIGN_BYTES, (2,)),
    ),
    "another key's value": (
        [("put ok 1 2 1", {"key": "other"}), torn("get ok 3 4 1")],
        (Rule.FOREIGN_BYTES, (2, 1)),
    ),
    "the value of a put that changed nothing": (
        ["put ok 1 2 1", "put false 3 4 2", "get ok 5 6 2"],
        (Rule.FOREIGN_BYTES, (3, 2)),
    ),
    "a value before its put": (
        ["get ok 1 2 1", "put ok 3 4 1"],
        (Rule.FOREIGN_BYTES, (1, 2)),
    ),
    "something where nothing was put": (
        ["exists ok 1 2", "put ok 3 4 1"],
        (Rule.FOREIGN_BYTES, (1,)),
    ),
    "torn": (
        ["put ok 1 2 1", torn("get ok 3 4 1")],
        (Rule.TORN_VALUE, (2, 1)),
    ),
    "removed": (
        ["put ok 1 2 1", "remove ok 3 4", "get ok 5 6 1"],
        (Rule.STALE_READ, (3, 1, 2)),
    ),
    "removed, and the remove found nothing": (
        ["put ok 1 2 1", "remove false 3 4", "get ok 5 6 1"],
        (Rule.STALE_READ, (3, 1, 2)),
    ),
    "removed, and still there": (
        ["put ok 1 2 1", "remove ok 3 4", "exists ok 5 6"],
        (Rule.STALE_READ, (3, 1, 2)),
    ),
    "removed, and there for a put": (
        ["put ok 1 2 1", "remove ok 3 4", "put false 5 6 2"],
        (Rule.STALE_READ, (3, 1, 2)),
    ),
    "replaced": (
        ["put ok 1 2 1", "upsert ok 3 4 2", "get ok 5 6 1"],
        (Rule.STALE_READ, (3, 1, 2)),
    ),
    "an unknown put that was read has come, and was removed": (
        ["put unknown 1 - 1", "get ok 2 3 1", "remove ok 4 5", "get ok 6 7 1"],
        (Rule.STALE_READ, (4, 1, 3)),
    ),
    "vanished": (
        ["put ok 1 2 1", "get miss 3 4"],
        (Rule.VANISHED_PUT, (2, 1)),
    ),
    "vanished for exists, after a remove and a second put": (
        ["put ok 1 2 1", "remove ok 3 4", "put ok 5 6 2", "exists miss 7 8"],
        (Rule.VANISHED_PUT, (4, 3)),
    ),
    "vanished after an upsert": (
        ["put ok 1 2 1", "upsert ok 3 4 2", "get miss 5 6"],
        (Rule.VANISHED_PUT, (3, 2)),
    ),
    "vanished before its TTL": (
        [("put ok 1 2 1", {"ttl_s": 10.0}), "get miss 9 10"],
        (Rule.VANISHED_PUT, (2, 1)),
    ),
    "two puts": (
        ["put ok 1 2 1", "put ok 3 4 2"],
        (Rule.DOUBLE_COMMIT, (2, 1)),
    ),
    "two puts at once": (
        ["put ok 1 4 1", "put ok 3 6 2"],
        (Rule.DOUBLE_COMMIT, (2, 1)),
    ),
    "a put after an upsert, beside another one": (
        ["upsert ok 1 2 1", "upsert ok 3 9 2", "put ok 4 5 3"],
        (Rule.DOUBLE_COMMIT, (3, 1)),
    ),
}


@pytest.mark.parametrize(("steps", "expected"), WRONG.values(), ids=WRONG)
def test_wrong_history(steps, expected):
    assert found(story(*steps)) == [expected]


def test_finding_names_its_lines_and_says_why():
    (finding,) = check(story("put ok 1 2 1", "remove ok 3 4", "get ok 6 7 1"))
    assert str(finding) == (
        "STALE_READ of 'k', lines 3, 1, 2: value 1 was read by a get that began 2.000000 s after "
        "the remove that took it away was answered"
    )


STALE = ["put ok 1 2 1", "remove ok 3 4", "get ok 9 10 1"]


@pytest.mark.parametrize(
    ("faults", "bound_s", "is_wrong"),
    [
        ([fault(3, 3, cuts_off=True)], 5.0, False),
        ([fault(3, None, cuts_off=True)], 5.0, False),
        ([fault(3, 3, cuts_off=True)], 4.0, True),
        ([fault(5, 9, cuts_off=True)], 5.0, True),  # Everybody was in reach of the remove.
        ([fault(3, 3, hides=True)], 5.0, True),
        ([], 5.0, True),
    ],
)
def test_holder_out_of_reach_may_be_read_within_the_bound(faults, bound_s, is_wrong):
    findings = check(story(*STALE, faults=faults), Bounds(cut_off_s=bound_s))
    assert [finding.rule for finding in findings] == [Rule.STALE_READ] * is_wrong


UNKNOWN = ["remove unknown 10 -", "put ok 20 21 1", "get miss 22 23"]
UNKNOWN_UPSERT = ["put ok 1 2 1", "upsert unknown 10 12 2", "get miss 20 21"]
UNKNOWN_PUT = ["put unknown 1 - 1", "remove false 12 13", "get ok 20 21 1"]


@pytest.mark.parametrize("steps", [UNKNOWN, UNKNOWN_UPSERT, UNKNOWN_PUT])
def test_unknown_outcome_comes_within_its_bound_if_there_is_one(steps):
    assert not check(story(*steps))
    assert not check(story(*steps), Bounds(unknown_s=12.0))
    assert check(story(*steps), Bounds(unknown_s=9.0))


VANISHED = ["put ok 10 12 1", "get miss 20 22"]
DOUBLE = ["put ok 10 12 1", "put ok 20 22 2"]


@pytest.mark.parametrize("steps", [VANISHED, DOUBLE], ids=["vanished", "double"])
@pytest.mark.parametrize(
    ("events", "is_wrong"),
    [
        ({"evictions": [Eviction(0, 1 * S, True)]}, False),
        ({"evictions": [Eviction(0, 1 * S, True), Eviction(0, 11 * S, False)]}, False),
        ({"evictions": [Eviction(0, 1 * S, True), Eviction(0, 9 * S, False)]}, True),
        ({"evictions": [Eviction(0, 23 * S, True)]}, True),
        ({"losses": [Loss(0, "n1", 15 * S, 16 * S)]}, False),
        ({"losses": [Loss(0, "n1", 8 * S, 9 * S)]}, True),
        ({"losses": [Loss(0, "n1", 23 * S, 24 * S)]}, True),
        ({"faults": [fault(15, 21, hides=True)]}, False),
        ({"faults": [fault(15, 18, hides=True)]}, False),  # It settles until 20.
        ({"faults": [fault(15, 17, hides=True)]}, True),
        ({"faults": [fault(15, 21, cuts_off=True)]}, True),
    ],
)
def test_what_takes_an_object_away_explains_its_absence(steps, events, is_wrong):
    history = story(*steps, **events)
    assert bool(check(history, Bounds(settle_s=2.0))) == is_wrong


@pytest.mark.parametrize(
    ("facts", "lost", "is_wrong"),
    [
        ({"replicas": 2}, ["n1"], True),
        ({"replicas": 2}, ["n1", "n1"], True),
        ({"replicas": 2}, ["n1", "n2"], False),
        ({"nodes": ("n1", "n2")}, ["n1", "n3"], True),
        ({"nodes": ("n1", "n2")}, ["n2", "n1"], False),
    ],
)
def test_put_is_lost_with_the_last_of_its_nodes(facts, lost, is_wrong):
    losses = [Loss(0, node, (14 + i) * S, (14 + i) * S) for i, node in enumerate(lost)]
    history = story(("put ok 10 12 1", dict(facts)), "get miss 20 22", losses=losses)
    assert bool(check(history)) == is_wrong


def test_findings_come_in_the_order_of_their_lines():
    steps = []
    for key, at in zip("ba", count(1, 10), strict=False):
        steps += [
            (f"put ok {at} {at + 1} {at}", {"key": key}),
            (f"get miss {at + 2} {at + 3}", {"key": key}),
        ]
    assert found(story(*steps)) == [(Rule.VANISHED_PUT, (2, 1)), (Rule.VANISHED_PUT, (4, 3))]


def test_two_writes_of_one_value_are_no_history():
    with pytest.raises(HistoryError, match="lines 1 and 2"):
        check(story("put ok 1 2 1", ("put ok 1 2 1", {"key": "other"})))


# ---- pins, epochs, deadlines ---------------------------------------------------------------------


ALLOWED = Eviction(89, 0, True)


def rules(history):
    return {rule for rule, _ in found(history)}


def pinned(*steps, **kwargs):
    return story("put ok 1 2 7", "pin ok 3 4", *steps, evictions=[ALLOWED], **kwargs)


def test_a_pinned_object_is_not_missed():
    assert rules(pinned("get miss 6 7")) == {Rule.BROKEN_PIN}
    assert rules(pinned("exists miss 6 7")) == {Rule.BROKEN_PIN}


@pytest.mark.parametrize(
    "steps",
    [
        ("unpin ok 5 6", "get miss 7 8"),
        ("unpin unknown 5 -", "get miss 7 8"),
        ("get miss 4 5",),  # it began before the pin was answered
        ("remove ok 5 6", "get miss 7 8"),
        ("remove unknown 5 -", "get miss 7 8"),
        ("upsert unknown 5 - 9", "get miss 7 8"),
    ],
)
def test_a_pin_that_may_have_ended_protects_nothing(steps):
    assert rules(pinned(*steps)) == set()


def test_a_pin_taken_again_after_an_unpin_counts():
    steps = ("unpin ok 5 6", "pin ok 7 8", "get miss 9 10")
    assert rules(pinned(*steps)) == {Rule.BROKEN_PIN}


def test_a_pin_ends_with_a_fault_that_may_end_its_session():
    fault = Fault(90, "freeze", 5 * S, 6 * S, cuts_off=False, hides=False, ends_sessions=True)
    assert rules(pinned("get miss 7 8", faults=[fault])) == set()
    # A pin taken after it is as good as any, whatever became of the earlier one.
    again = ("pin ok 9 10", "get miss 11 12")
    assert rules(pinned(*again, faults=[fault])) == {Rule.BROKEN_PIN}


def test_a_ttl_may_end_what_is_pinned():
    steps = [("put ok 1 2 7", {"ttl_s": 3.0}), "pin ok 2 3", "get miss 6 7"]
    assert rules(story(*steps, evictions=[ALLOWED])) == set()


def test_a_master_answers_nobody_once_a_later_one_has():
    steps = [("put ok 1 2 7", {"epoch": 2}), ("put ok 3 4 8", {"epoch": 1, "key": "other"})]
    assert rules(story(*steps)) == {Rule.TWO_LEADERS}


def test_answers_of_two_masters_may_cross():
    steps = [("put ok 1 4 7", {"epoch": 2}), ("put ok 3 6 8", {"epoch": 1, "key": "other"})]
    assert rules(story(*steps)) == set()
    # What was not answered by it says nothing.
    steps = [("put ok 1 2 7", {"epoch": 2}), ("put unknown 3 4 8", {"epoch": 1, "key": "other"})]
    assert rules(story(*steps)) == set()


def test_a_call_returns_within_its_deadline():
    late = story("get miss 1 4")
    assert {found.rule for found in check(late, Bounds(deadline_s=2.0))} == {Rule.LATE_ANSWER}
    assert not check(late, Bounds(deadline_s=3.0))
    frozen = Fault(90, "freeze", 2 * S, 3 * S, cuts_off=False, hides=False, stops_clients=True)
    assert not check(story("get miss 1 4", faults=[frozen]), Bounds(deadline_s=2.0))


def test_a_ttl_ends_when_the_wall_clock_says_so():
    steps = [("put ok 1 2 7", {"ttl_s": 100.0}), "get miss 6 7"]
    jump = Fault(90, "clock", 3 * S, 4 * S, cuts_off=False, hides=False, moves_clocks=True)
    assert rules(story(*steps, faults=[jump])) == set()
    assert rules(story(*steps)) == {Rule.VANISHED_PUT}
