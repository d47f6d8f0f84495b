"""What a leader writes down: what is on its way back, what may be gone, what is used."""

from __future__ import annotations

from collections.abc import Iterable

from protocol_model.replicas.configuration import Configuration
from protocol_model.replicas.state import (
    Change,
    Free,
    Leader,
    Replica,
    State,
    Version,
    changed,
    newest_leader,
    value_of,
)

__all__ = [
    "any_holder",
    "freeing",
    "may_be_gone",
    "take_copies_back",
    "used_extents",
    "without_entry",
]


def freeing(
    leader: Leader, replicas: Iterable[Replica], version: Version, writer: int = -1
) -> Leader:
    """Return the leader with a FREE for each extent of the replicas."""
    frees = {
        Free(replica.server, extent, version, writer)
        for replica in replicas
        for extent in replica.extents
    }
    return leader._replace(frees=leader.frees | frees)


def used_extents(leader: Leader, s: int) -> set[int]:
    """Return the extents of a server that are stored in, granted, copied into or being freed."""
    replicas: list[Replica] = []
    if leader.entry:
        replicas += leader.entry.replicas
    if leader.put:
        replicas += leader.put.replicas
    if leader.change:
        replicas += [order.replica for order in leader.change.orders]
    used = {extent for replica in replicas if replica.server == s for extent in replica.extents}
    return used | {free.extent for free in leader.frees if free.server == s}


def take_copies_back(config: Configuration, leader: Leader, is_departure: bool = False) -> Leader:
    """Return the leader without the change of replicas that it is making."""
    change: Change | None = leader.change
    if change is None:
        return leader
    if is_departure and "copy_leaves" not in config.rules:
        return leader._replace(change=None)
    replicas = [order.replica for order in change.orders]
    return freeing(leader, replicas, change.version)._replace(change=None)


def without_entry(config: Configuration, leader: Leader) -> Leader:
    """Return the leader with its object on its way back, and the copies in the making too."""
    entry = leader.entry
    if entry is None:
        return leader
    leader = take_copies_back(config, leader, is_departure=True)
    return freeing(leader, entry.replicas, entry.version)._replace(entry=None)


def may_be_gone(state: State, version: Version) -> State:
    """Return the state in which nobody counts any more on the value of a version."""
    value = value_of(state, version)
    if state.values[value] > 1:
        return state
    return state._replace(values=changed(state.values, value, 2))


def any_holder(state: State, config: Configuration, value: int, without: int = -1) -> bool:
    """Is the newest version of a value whole at some server, neither in the making nor leaving?"""
    versions = [version for version, of in state.versions if of == value]
    holders = {
        version: {s for s in config.servers if _is_whole(state, config, s, version)}
        for version in versions
    }
    newest = max((version for version in versions if holders[version]), default=None)
    if newest is None or not holders[newest] - {without}:
        return False
    leader = newest_leader(state)
    is_in_making = leader.change is not None and leader.change.version == newest
    return not is_in_making and all(free.version != newest for free in leader.frees)


def _is_whole(state: State, config: Configuration, s: int, version: Version) -> bool:
    if version <= state.coordinator.condemned[s]:
        return False
    parts = {
        extent.record.part
        for extent in state.servers[s].extents
        if extent.is_live and extent.version == version and extent.record
    }
    return len(parts) == config.parts
