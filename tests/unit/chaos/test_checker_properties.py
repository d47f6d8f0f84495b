"""What a correct store does is never a finding; what is planted in its history always is one.

The store here is a model: operations take effect one after the other, each at a moment of its own
between its times, with everything that the protocol allows around it (old values read until a
remove is answered, answers that are lost, eviction, TTL, nodes that are away or lost).
"""

from __future__ import annotations

import random
import sys
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from chaos.checker import Bounds, Finding, Rule, check
from chaos.history import (
    STORING,
    Eviction,
    Fault,
    History,
    Loss,
    Op,
    Operation,
    Outcome,
)

NS_PER_S = 1_000_000_000
KEYS = ["a", "b"]
BOUNDS = Bounds(cut_off_s=30e-9, settle_s=20e-9, unknown_s=84e-9)
"""In the model a moment is a nanosecond."""


@dataclass
class Intent:
    """An operation before it has met the store. It takes effect within 84 moments."""

    op: Op
    key: str
    invoked: int
    effect: int
    answered: int
    fate: str
    """answered, timed out, killed, never (no effect, no answer), refused."""
    ttl: int | None = None
    reads_cache: bool = False
    token: int | None = None


@dataclass
class Stored:
    token: int
    expires: float
    node: str


class Model:
    """A correct store of two nodes without replicas."""

    def __init__(self, history: History, clues: dict[str, list[tuple[int, int]]]) -> None:
        self.history = history
        self.away = clues["away"]
        self.cut = clues["cut"]
        self.stored: dict[str, Stored] = {}
        self.old: dict[str, list[tuple[int, int]]] = {key: [] for key in KEYS}
        """Per key, values that left, and until when they may be read from a cached location."""
        self.cleared: dict[str, int] = dict.fromkeys(KEYS, 0)

    def find(self, key: str, now: int) -> Stored | None:
        stored = self.stored.get(key)
        if stored is not None and stored.expires <= now:
            del self.stored[key]
            return None
        return stored

    def leave(self, key: str, intent: Intent) -> None:
        """Take what is stored away for a remove or upsert, which waits for what still leaves."""
        answered = max(intent.answered, self.cleared[key])
        self.cleared[key] = answered
        until = answered
        if any(since <= answered and intent.invoked <= end for since, end in self.cut):
            until += 30  # The holder has not heard of it.
        stored = self.find(key, intent.effect)
        if stored is not None:
            self.old[key].append((stored.token, until))
            del self.stored[key]
        intent.answered = answered

    def step(self, intent: Intent) -> tuple[Outcome, int | None]:
        """Let it take effect; what the answer says, and the token that was read."""
        key, now = intent.key, intent.effect
        stored = self.find(key, now)
        is_away = any(since <= now <= until for since, until in self.away)
        match intent.op:
            case Op.PUT:
                if stored is not None:
                    return Outcome.FALSE, None
                self.store(intent)
                return Outcome.OK, None
            case Op.UPSERT:
                self.leave(key, intent)
                self.store(intent)
                return Outcome.OK, None
            case Op.REMOVE:
                self.leave(key, intent)
                return (Outcome.FALSE if stored is None else Outcome.OK), None
            case Op.EXISTS:
                is_there = stored is not None and not is_away
                return (Outcome.OK if is_there else Outcome.MISS), None
            case _:
                olds = [token for token, until in self.old[key] if intent.invoked <= until]
                if intent.reads_cache and olds and intent.answered <= self._old_until(key, olds[0]):
                    return Outcome.OK, olds[0]
                if stored is None or is_away:
                    return Outcome.MISS, None
                return Outcome.OK, stored.token

    def _old_until(self, key: str, token: int) -> int:
        return next(until for other, until in self.old[key] if other == token)

    def store(self, intent: Intent) -> None:
        assert intent.token is not None
        expires = float("inf") if intent.ttl is None else intent.effect + intent.ttl
        self.stored[intent.key] = Stored(intent.token, expires, f"n{intent.token % 2}")


FATES = ["answered"] * 12 + ["timed out", "killed", "never", "refused"]


@st.composite
def intents(draw: st.DrawFn, *, is_hurt: bool) -> list[Intent]:
    """Operations that overlap, a few dozen, after a quiet beginning."""
    result = []
    now = 100
    for _ in range(draw(st.integers(0, 40))):
        now += draw(st.integers(0, 8))
        op = draw(st.sampled_from([Op.PUT, Op.UPSERT, Op.GET, Op.GET, Op.EXISTS, Op.REMOVE]))
        effect = now + draw(st.integers(0, 12))
        answered = effect + draw(st.integers(0, 12))
        intent = Intent(op, draw(st.sampled_from(KEYS)), now, effect, answered, "answered")
        intent.fate = draw(st.sampled_from(FATES))
        if intent.fate == "timed out":
            intent.effect += draw(st.integers(0, 60))
        if is_hurt and op in STORING:
            intent.ttl = draw(st.none() | st.integers(1, 40))
        if op is Op.GET:
            intent.reads_cache = draw(st.booleans())
        result.append(intent)
    return result


@st.composite
def histories(draw: st.DrawFn, *, is_hurt: bool) -> History:
    """What a correct store may have answered, with all that explains it when it is hurt."""
    plan = draw(intents(is_hurt=is_hurt))
    # Each key begins with all that the planted faults need.
    for index, key in enumerate(KEYS):
        at = 10 + 40 * index
        for op in (Op.PUT, Op.GET, Op.REMOVE, Op.PUT, Op.PUT, Op.GET, Op.UPSERT, Op.GET):
            plan.append(Intent(op, key, at, at + 1, at + 2, "answered"))
            at += 4
    windows = st.lists(st.tuples(st.integers(90, 300), st.integers(0, 60)), max_size=2)
    clues: dict[str, list[tuple[int, int]]] = {}
    for name in ("away", "cut", "evicting", "lost"):
        drawn = draw(windows) if is_hurt else []
        clues[name] = sorted((since, since + length) for since, length in drawn)
    history = History()
    for index, (since, until) in enumerate(clues["away"]):
        is_settling = draw(st.booleans())
        healed = max(since, until - 20) if is_settling else until
        history.faults.append(Fault(0, f"away {index}", since, healed, False, True))
    for index, (since, until) in enumerate(clues["cut"]):
        history.faults.append(Fault(0, f"cut {index}", since, until, True, False))
    model = Model(history, clues)
    # What happens by itself: at these moments an object leaves.
    moments: list[tuple[int, int, str]] = []
    last = 0
    for since, until in clues["evicting"]:
        if since > last:
            history.evictions.append(Eviction(0, since, True))
            history.evictions.append(Eviction(0, until, False))
            last = until
            moments.append((draw(st.integers(since, until)), 0, draw(st.sampled_from(KEYS))))
    for since, until in clues["lost"]:
        node = draw(st.sampled_from(["n0", "n1"]))
        history.losses.append(Loss(0, node, since, until))
        moments.append((draw(st.integers(since, until)), 1, node))

    for token, intent in enumerate(plan, start=1):
        if intent.op in STORING:
            intent.token = token
    events: list[tuple[int, int, object]] = [(moment, 0, (k, x)) for moment, k, x in moments]
    events += [(intent.effect, 1, intent) for intent in plan]
    events.sort(key=lambda event: event[:2])
    for now, _, event in events:
        if isinstance(event, Intent):
            _record(model, event)
        else:
            kind, name = event
            for key in KEYS:
                stored = model.find(key, now)
                if stored is not None and name == (stored.node if kind else key):
                    del model.stored[key]
    history.operations.sort(key=lambda operation: operation.invoked_ns)
    history.operations = [
        replace(operation, line=line) for line, operation in enumerate(history.operations, start=1)
    ]
    return history


def _record(model: Model, intent: Intent) -> None:
    """Let an operation happen, and write down what its client saw of it."""
    timed_out_at = intent.answered
    outcome, read = Outcome.ERROR, None
    if intent.fate not in ("never", "refused"):
        outcome, read = model.step(intent)
    answered: int | None = intent.answered
    if intent.fate in ("timed out", "never"):
        outcome, answered = Outcome.UNKNOWN, timed_out_at
    elif intent.fate == "killed":
        outcome, answered = Outcome.UNKNOWN, None
    if outcome is Outcome.UNKNOWN and intent.op in (Op.GET, Op.EXISTS):
        read = None
    model.history.operations.append(
        Operation(
            line=0,
            client="model",
            op=intent.op,
            key=intent.key,
            invoked_ns=intent.invoked,
            answered_ns=answered,
            outcome=outcome,
            token=intent.token if intent.op in STORING else read,
            ttl_s=None if intent.ttl is None else intent.ttl / NS_PER_S,
        )
    )


@settings(max_examples=25)
@given(histories(is_hurt=False))
def test_correct_history_has_no_finding(history):
    assert list(map(str, check(history))) == []


@settings(max_examples=25)
@given(histories(is_hurt=True))
def test_correct_history_of_a_hurt_cluster_has_no_finding(history):
    assert list(map(str, check(history, BOUNDS))) == []


Choose = Callable[[list[Operation]], Operation]


def plant(history: History, **facts) -> Operation:
    """Add an operation that did not happen, between the moments of those that did."""
    facts = {"client": "planted", "outcome": Outcome.OK, **facts}
    operation = Operation(line=len(history.operations) + 1, **facts)
    history.operations.append(operation)
    return operation


def acknowledged(history: History, *ops: Op) -> list[Operation]:
    return [
        operation
        for operation in history.operations
        if operation.op in ops and operation.outcome is Outcome.OK
    ]


def hits(history: History) -> list[Operation]:
    return acknowledged(history, Op.GET)


def read_of_the_old(history: History, choose: Choose, op: Op) -> Operation:
    """A get, after a change was answered, of what had been stored before it began."""

    def before(change: Operation) -> list[Operation]:
        return [
            write
            for write in acknowledged(history, Op.PUT, Op.UPSERT)
            if write.key == change.key and write.answered_ns < change.invoked_ns
        ]

    change = choose([change for change in acknowledged(history, op) if before(change)])
    write = choose(before(change))
    return plant(
        history,
        op=Op.GET,
        key=change.key,
        invoked_ns=change.answered_ns + 1,
        answered_ns=change.answered_ns + 2,
        token=write.token,
    )


def stale_read_after_remove(history, choose):
    return read_of_the_old(history, choose, Op.REMOVE)


def old_value_after_upsert(history, choose):
    return read_of_the_old(history, choose, Op.UPSERT)


def undisturbed(history: History) -> list[Operation]:
    """Acknowledged writes after which, for a moment, nobody was changing their key."""

    def is_alone(write: Operation) -> bool:
        return not any(
            other.key == write.key
            and other is not write
            and other.op in (Op.PUT, Op.UPSERT, Op.REMOVE)
            and other.invoked_ns <= write.answered_ns + 2
            and (
                other.outcome is Outcome.UNKNOWN
                or other.answered_ns is None
                or other.answered_ns >= write.invoked_ns
            )
            for other in history.operations
        )

    return list(filter(is_alone, acknowledged(history, Op.PUT, Op.UPSERT)))


def vanished_put(history, choose):
    write = choose(undisturbed(history))
    return plant(
        history,
        op=choose([Op.GET, Op.EXISTS]),
        key=write.key,
        invoked_ns=write.answered_ns + 1,
        answered_ns=write.answered_ns + 2,
        outcome=Outcome.MISS,
    )


def double_commit(history, choose):
    write = choose(undisturbed(history))
    return plant(
        history,
        op=Op.PUT,
        key=write.key,
        invoked_ns=write.answered_ns + 1,
        answered_ns=write.answered_ns + 2,
        token=1_000_000,
    )


def double_commit_at_once(history, choose):
    write = choose([write for write in undisturbed(history) if write.op is Op.PUT])
    return plant(
        history,
        op=Op.PUT,
        key=write.key,
        invoked_ns=write.invoked_ns,
        answered_ns=write.answered_ns,
        token=1_000_000,
    )


def change_read(history: History, hit: Operation, **changes) -> Operation:
    changed = replace(hit, **changes)
    history.operations[hit.line - 1] = changed
    return changed


def foreign_bytes(history, choose):
    hit = choose(hits(history))
    others = [write.token for write in acknowledged(history, Op.PUT) if write.key != hit.key]
    return change_read(history, hit, token=choose([*others, 2_000_000, None]), is_whole=False)


def torn_value(history, choose):
    return change_read(history, choose(hits(history)), is_whole=False)


PLANTED = {
    stale_read_after_remove: {Rule.STALE_READ},
    old_value_after_upsert: {Rule.STALE_READ},
    vanished_put: {Rule.VANISHED_PUT},
    double_commit: {Rule.DOUBLE_COMMIT},
    double_commit_at_once: {Rule.DOUBLE_COMMIT},
    foreign_bytes: {Rule.FOREIGN_BYTES},
    torn_value: {Rule.TORN_VALUE},
}


@pytest.mark.parametrize("fault", PLANTED, ids=lambda fault: fault.__name__)
@settings(max_examples=25)
@given(history=histories(is_hurt=False), data=st.data())
def test_planted_fault_is_found(fault, history, data):
    planted = fault(history, lambda items: data.draw(st.sampled_from(items)))
    assert any(
        finding.rule in PLANTED[fault] and planted.line in finding.lines
        for finding in check(history)
    )


def long_history(operation_count: int, seed: int) -> History:
    """A correct history of eight clients and a few keys, most of it on one of them."""
    choose = random.Random(seed)
    history = History()
    model = Model(history, {"away": [], "cut": []})
    ops = [Op.PUT, Op.UPSERT, Op.GET, Op.GET, Op.GET, Op.EXISTS, Op.REMOVE]
    for number in range(operation_count):
        now = 10 * number + 1000
        intent = Intent(
            choose.choice(ops),
            choose.choice("aaaab"),
            now - choose.randrange(80),
            now,
            now + choose.randrange(9),
            "answered" if choose.randrange(10_000) else "killed",
            token=number,
        )
        model.old[intent.key].clear()  # No locations are cached here.
        _record(model, intent)
    history.operations = [
        replace(operation, line=line) for line, operation in enumerate(history.operations, start=1)
    ]
    return history


def test_one_fault_among_two_hundred_thousand_operations():
    history = long_history(200_000, seed=5)
    assert check(history) == []
    removes = acknowledged(history, Op.REMOVE)
    remove = removes[len(removes) // 2]
    write = next(
        write
        for write in reversed(acknowledged(history, Op.UPSERT))
        if write.key == remove.key and write.answered_ns < remove.invoked_ns
    )
    at = remove.answered_ns
    planted = plant(
        history,
        op=Op.GET,
        key=remove.key,
        invoked_ns=at + 1,
        answered_ns=at + 2,
        token=write.token,
    )
    findings: list[Finding] = check(history)
    assert [(finding.rule, finding.lines[0]) for finding in findings] == [
        (Rule.STALE_READ, planted.line)
    ]
