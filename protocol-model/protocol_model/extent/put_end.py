"""put_end: a leader completes a writer's put, or refuses."""

from __future__ import annotations

from protocol_model.extent.configuration import Configuration
from protocol_model.extent.remove import is_leaving, is_out_of_reach
from protocol_model.extent.state import (
    ENDED,
    Commit,
    Entry,
    Free,
    Generation,
    Leader,
    Message,
    Slot,
    State,
    Tombstone,
    Version,
    Wait,
    changed,
    version_of,
)

__all__ = ["put_end"]


def put_end(
    state: State, config: Configuration, i: int, writer: int, extent: int, generation: Generation
) -> State | None:
    """Return the state with the put complete and its writer told, None: not now."""
    leader = state.leaders[i]
    entry = leader.objects[config.puts[writer].key]
    if entry is not None and entry[:3] == (extent, generation, writer + 1):
        return _already_complete(state, config, leader, entry, writer)
    named = _named_grant(config, leader, writer, extent, generation)
    if named is None:
        return None
    return _complete(state, config, i, writer, named)


def _already_complete(
    state: State, config: Configuration, leader: Leader, entry: Entry, writer: int
) -> State | None:
    """The entry was rebuilt from an inventory, or the put was ended another way."""
    value, key = writer + 1, config.puts[writer].key
    if any(wait.replacement == value for wait in leader.waits):
        return None
    if state.writers[writer].phase == ENDED:
        return None
    values, stones = changed(state.values, value, state.values[value] or 1), set[Message]()
    if config.puts[writer].is_upsert:
        if "remove_waits" in config.rules and is_leaving(state, config, leader, key):
            return None  # answered later
        if is_out_of_reach(config, leader):
            if leader.epoch != state.epoch:
                return None
            stones.add(Tombstone(0, key, (entry.version[0], entry.version[1] - 1)))
        for other, status in enumerate(state.values):
            if other == value or status not in (1, 2) or config.key_of(other) != key:
                continue
            if other and _version(state, other) > entry.version:
                continue
            values = changed(values, other, 4 if stones else 3)
    return _told(state, writer).sending(*stones)._replace(values=values)


def _named_grant(
    config: Configuration, leader: Leader, writer: int, extent: int, generation: Generation
) -> tuple[int, Generation, int] | None:
    slot = leader.slots[extent]
    if "end_names_grant" in config.rules:
        is_open = slot == Slot("W", generation, writer)
        return (extent, generation, writer + 1) if is_open else None
    key = config.puts[writer].key  # whatever is being written under the key
    for at, other in enumerate(leader.slots):
        if other.code == "W" and config.puts[other.writer].key == key:
            return at, other.generation, other.writer + 1
    return None


def _complete(
    state: State, config: Configuration, i: int, writer: int, named: tuple[int, Generation, int]
) -> State | None:
    leader, rules, key = state.leaders[i], config.rules, config.puts[writer].key
    extent, generation, value = named
    version, entry, values = _version(state, value), leader.objects[key], state.values
    slots, waits, messages = leader.slots, leader.waits, set[Message]()
    slots = changed(slots, extent, Slot("C", generation, -1))
    if config.puts[writer].is_upsert and is_out_of_reach(config, leader):
        if leader.epoch != state.epoch:
            return None
        messages.add(Tombstone(0, key, (version[0], version[1] - 1)))
        for other, status in enumerate(state.values):
            # What it strikes is replaced: at once, or with the answer that waits for the holder.
            if status not in (1, 2) or config.key_of(other) != key:
                continue
            if _version(state, other) < version:
                values = changed(values, other, 2 if entry else 4)
    if entry is not None:  # the old object leaves
        slots = changed(slots, entry.extent, Slot("Q", entry.generation, -1))
        incarnation = leader.adopted[config.extents[entry.extent].server]
        messages.add(Free(leader.epoch, entry.extent, entry.generation, -1, incarnation))
        if "strict_remove" in rules:
            waits |= {Wait(entry.extent, entry.generation, entry.value, value, entry.version)}
            values = changed(values, entry.value, max(values[entry.value], 2))
        else:
            values = changed(values, entry.value, 3)
    if entry is None or "strict_remove" not in rules:
        values = changed(values, value, values[value] or 1)
    if "seal" not in rules:
        messages.add(Commit(leader.epoch, extent, generation, key, value, version))
    index = changed(leader.objects, key, Entry(extent, generation, value, version))
    now = leader._replace(objects=index, slots=slots, waits=waits)
    return _told(state, writer).with_leader(i, now).sending(*messages)._replace(values=values)


def _told(state: State, writer: int) -> State:
    return state.with_writer(writer, state.writers[writer]._replace(phase=ENDED))


def _version(state: State, value: int) -> Version:
    version = version_of(state, value)
    assert version is not None
    return version
