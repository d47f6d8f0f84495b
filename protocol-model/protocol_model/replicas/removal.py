"""remove and eviction; and the answers that wait until what leaves is CLEARED, or struck."""

from __future__ import annotations

from protocol_model.replicas.configuration import Configuration
from protocol_model.replicas.ledger import any_holder, may_be_gone, without_entry
from protocol_model.replicas.state import (
    ABOVE_ALL,
    SERVING,
    Leader,
    State,
    Steps,
    Version,
    Wait,
    changed,
    leads,
)

__all__ = ["removal_steps"]


def removal_steps(state: State, config: Configuration) -> Steps:
    for i, leader in enumerate(state.leaders):
        if leader.status != SERVING:
            continue
        if state.budget.removes and leads(state, config, leader):
            yield _remove(state.spending("removes"), config, i)
        if state.budget.evictions and leader.entry is not None:
            yield from _evict(state, config, i)
        for wait in leader.waits:
            yield from _answer(state, config, i, wait)


def _remove(state: State, config: Configuration, i: int) -> tuple[str, State, None]:
    leader = state.leaders[i]
    complete = {wait.value for wait in leader.waits if wait.kind == "upsert"}
    struck = frozenset(
        value for value, status in enumerate(state.values) if status in (1, 2) or value in complete
    )
    values = tuple(2 if value in struck else status for value, status in enumerate(state.values))
    is_absent = leader.is_short_of_members and "stone_absent" in config.rules
    stone = _tombstone_version(config, leader)
    wait = Wait("remove", ABOVE_ALL, stone, struck, 0, is_absent, False)
    leaving = without_entry(config, leader)
    leaving = leaving._replace(waits=leaving.waits | {wait})
    label = f"leader {leader.epoch} takes remove" + ("" if leader.entry else ": not there")
    return label, state.with_leader(i, leaving)._replace(values=values), None


def _tombstone_version(config: Configuration, leader: Leader) -> Version:
    if "stone_above" not in config.rules:
        return leader.entry.version if leader.entry else (leader.epoch, 0)
    if leader.put is not None and "stone_below" in config.rules:
        return (leader.put.version[0], leader.put.version[1] - 1)
    return (leader.epoch, leader.sequence)


def _evict(state: State, config: Configuration, i: int) -> Steps:
    leader = state.leaders[i]
    entry = leader.entry
    assert entry is not None
    is_pinned = None in leader.pins or entry.version in leader.pins
    if is_pinned and "pin_spares" in config.rules:
        return
    bad = None
    if state.pinned == leader.epoch:
        bad = "S3: what a live session has pinned is evicted"
    after = may_be_gone(state.spending("evictions"), entry.version)
    yield (
        f"leader {leader.epoch} evicts version {entry.version}",
        after.with_leader(i, without_entry(config, leader)),
        bad,
    )


def _answer(state: State, config: Configuration, i: int, wait: Wait) -> Steps:
    leader = state.leaders[i]
    if not leads(state, config, leader):
        return
    is_written = wait.is_written or "stone_written" not in config.rules
    if wait.is_absent and not is_written:
        return
    left = [f for f in leader.frees if f.version < wait.below and not f.is_cleared]
    if left and not (is_written and all(free.version <= wait.stone for free in left)):
        return
    status = 4 if left or wait.is_absent or not leader.has_adopted_all else 3
    values = state.values
    for value in wait.struck:
        values = changed(values, value, max(values[value], status))
    if wait.kind == "upsert" and values[wait.value] == 0:
        is_there = any_holder(state, config, wait.value)
        values = changed(values, wait.value, 1 if is_there else 2)
    answered = leader._replace(waits=leader.waits - {wait})
    yield (
        f"leader {leader.epoch} acknowledges {wait.kind}"
        + (" on the strength of a tombstone" if status == 4 else ""),
        state.with_leader(i, answered)._replace(values=values),
        None,
    )
