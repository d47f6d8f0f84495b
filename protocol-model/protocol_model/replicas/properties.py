"""What must never be: S1 wrong bytes, S2 two owners, S3 a loss, S4 what was removed is back."""

from __future__ import annotations

from protocol_model.replicas.configuration import Configuration
from protocol_model.replicas.state import (
    SERVING,
    Leader,
    Replica,
    State,
    Version,
    holds,
    leads,
    newest_leader,
    value_of,
)

__all__ = ["judge", "trespass"]


def trespass(state: State, s: int, at: int, version: Version) -> str | None:
    """Somebody writes into an extent for a version: does another look at it, or own it?"""
    for held in state.servers[s].views:
        if held.extent == at:
            return f"S2: version {version} is written under an open view of {held.version}"
    serving = [x for x in state.leaders if x.status == SERVING and x.incarnations[s]]
    if not serving:
        return None
    newest = max(serving, key=lambda leader: leader.epoch)
    for owner, replicas in _owners(newest):
        is_there = any(r.server == s and at in r.extents for r in replicas)
        if is_there and owner != version:
            return f"S2: version {version} is written where leader {newest.epoch} has {owner}"
    return None


def _owners(leader: Leader) -> list[tuple[Version, tuple[Replica, ...]]]:
    owners: list[tuple[Version, tuple[Replica, ...]]] = []
    if leader.entry:
        owners.append((leader.entry.version, leader.entry.replicas))
    if leader.put:
        owners.append((leader.put.version, leader.put.replicas))
    if leader.change:
        replicas = tuple(order.replica for order in leader.change.orders)
        owners.append((leader.change.version, replicas))
    return owners


def judge(state: State, config: Configuration) -> str | None:
    return (
        _wrong_bytes(state)
        or _wrong_view(state, config)
        or _wrong_entry(state, config)
        or _missing(state)
        or _lost_note(state)
        or _back(state, config)
    )


def _wrong_bytes(state: State) -> str | None:
    for s, server in enumerate(state.servers):
        for at, extent in enumerate(server.extents):
            if not extent.is_live or extent.record is None:
                continue
            right = (value_of(state, extent.version), extent.record.part)
            if extent.content != right:
                return (
                    f"S1: extent {at} of server {s} is live with version {extent.version}"
                    f" and holds {extent.content}"
                )
    return None


def _wrong_view(state: State, config: Configuration) -> str | None:
    view = state.view
    if view is None or not view.is_whole:
        return None
    s, extents = view.replica
    value = value_of(state, view.version)
    shown = [state.servers[s].extents[at].content for at in extents]
    if shown != [(value, part) for part in range(config.parts)]:
        return f"S1: a view of value {value} shows {shown}"
    return None


def _wrong_entry(state: State, config: Configuration) -> str | None:
    """Does the leader whose lease runs point readers at what is not there?"""
    for leader in state.leaders:
        if leader.epoch != state.coordinator.holder or leader.status != SERVING:
            continue
        entry = leader.entry
        for replica in entry.replicas if entry else ():
            assert entry is not None
            if not state.is_in_touch(leader, replica.server):
                continue
            is_short = len(replica.extents) != config.parts
            if is_short or not holds(state, replica, entry.version):
                return (
                    f"S3: leader {leader.epoch} has version {entry.version} at server"
                    f" {replica.server}, which does not hold all of it"
                )
    return None


def _knows_all(state: State, leader: Leader) -> bool:
    return leader.status == SERVING and all(
        state.is_in_touch(leader, s) for s in range(len(state.servers))
    )


def _missing(state: State) -> str | None:
    """Has the newest leader, knowing every server, lost what was acknowledged?"""
    leader = newest_leader(state)
    if not _knows_all(state, leader):
        return None
    put_at = {value: version for version, value in reversed(state.versions)}
    stored = value_of(state, leader.entry.version) if leader.entry else None
    for value, status in enumerate(state.values):
        if status != 1 or value == stored:
            continue
        if stored is None or put_at[stored] < put_at[value]:
            return f"S3: value {value} was acknowledged, leader {leader.epoch} does not have it"
    return None


def _lost_note(state: State) -> str | None:
    value, ordinal = state.noted
    leader = newest_leader(state)
    if not _knows_all(state, leader) or leader.entry is None or state.values[value] != 1:
        return None  # what is being removed or evicted may be back with less
    if value_of(state, leader.entry.version) == value and leader.entry.note.ordinal < ordinal:
        return (
            f"S3: note {ordinal} was acknowledged, leader {leader.epoch} goes by"
            f" note {leader.entry.note.ordinal}"
        )
    return None


def _back(state: State, config: Configuration) -> str | None:
    for leader in state.leaders:
        if leader.entry is None or not leads(state, config, leader):
            continue
        value = value_of(state, leader.entry.version)
        if state.values[value] >= 3 and any(
            holds(state, replica, leader.entry.version) for replica in leader.entry.replicas
        ):
            return (
                f"S4: the removal of value {value} was acknowledged, leader {leader.epoch} has it"
            )
    for s, server in enumerate(state.servers):
        for extent in server.extents:
            if not extent.is_live:
                continue
            value = value_of(state, extent.version)
            if state.values[value] == 3:
                return f"S4: value {value} was cleared, it lives at server {s}"
    return None
