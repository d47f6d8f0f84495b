"""remove: the entry leaves, the holder clears the word, then the client is answered."""

from __future__ import annotations

from protocol_model.extent.configuration import Configuration
from protocol_model.extent.state import (
    Entry,
    Free,
    LateRemove,
    Leader,
    Message,
    Slot,
    State,
    Steps,
    Tombstone,
    Wait,
    changed,
    version_of,
)

__all__ = ["is_leaving", "is_out_of_reach", "late_remove", "remove"]


def is_leaving(state: State, config: Configuration, leader: Leader, key: int) -> bool:
    """Is an extent of the key being freed?  Known by its version; counters do not tell."""
    versions = {
        version_of(state, value)
        for value in range(len(state.values))
        if config.key_of(value) == key
    }
    waited_for = "Q" if "cleared_leaves" in config.rules else "QV"
    return any(slot.code in waited_for and slot.generation in versions for slot in leader.slots)


def is_out_of_reach(config: Configuration, leader: Leader) -> bool:
    """Must a tombstone stand in for a member that is not adopted and may hold the key?"""
    return "tombstone" in config.rules and not all(leader.adopted)


def remove(state: State, config: Configuration, i: int, key: int) -> Steps:
    leader, rules = state.leaders[i], config.rules
    budget = state.budget._replace(removes=state.budget.removes - 1)
    entry = leader.objects[key]
    stones: set[Message] = set()
    if "remove_waits" in rules and is_leaving(state, config, leader, key):
        return  # answered later
    if is_out_of_reach(config, leader):
        if leader.epoch != state.epoch:
            return  # the transaction fails: another leader has the key
        stones.add(Tombstone(0, key, entry.version if entry else (leader.epoch, 0)))
    if entry is None:
        values = tuple(
            (4 if stones else 3) if status in (1, 2) and config.key_of(value) == key else status
            for value, status in enumerate(state.values)
        )
        note = ", a member is absent: tombstone" if stones else ""
        yield (
            f"leader {leader.epoch} acknowledges remove(key {key}): not there" + note,
            state.sending(*stones)._replace(values=values, budget=budget),
            None,
        )
        return
    values = tuple(
        2 if status == 1 and config.key_of(value) == key else status
        for value, status in enumerate(state.values)
    )
    leaving = _without(leader, key, entry)
    messages = {*stones, _free(config, leader, entry)}
    if "dedupe" not in rules and state.budget.duplicates:
        messages.add(LateRemove(leader.epoch, key))
    if "strict_remove" in rules:
        wait = Wait(entry.extent, entry.generation, entry.value, 0, entry.version)
        leaving = leaving._replace(waits=leader.waits | {wait})
        status = max(values[entry.value], 2)
        label = f"takes remove(key {key}), sends FREE(extent {entry.extent}, {entry.generation})"
    else:
        status = 3
        label = f"acknowledges remove(key {key}), FREE(extent {entry.extent}) is under way"
    after = state.with_leader(i, leaving).sending(*messages)
    values = changed(values, entry.value, status)
    yield f"leader {leader.epoch} {label}", after._replace(values=values, budget=budget), None


def late_remove(state: State, config: Configuration, i: int, key: int) -> State | None:
    """Execute a late copy of a remove; None when there is nothing to remove."""
    leader = state.leaders[i]
    entry = leader.objects[key]
    if entry is None:
        return None
    return state.with_leader(i, _without(leader, key, entry)).sending(_free(config, leader, entry))


def _without(leader: Leader, key: int, entry: Entry) -> Leader:
    return leader._replace(
        objects=changed(leader.objects, key, None),
        slots=changed(leader.slots, entry.extent, Slot("Q", entry.generation, -1)),
    )


def _free(config: Configuration, leader: Leader, entry: Entry) -> Free:
    incarnation = leader.adopted[config.extents[entry.extent].server]
    return Free(leader.epoch, entry.extent, entry.generation, -1, incarnation)
