"""How a leader takes servers over: ADOPT and INVENTORY in one step; and lets silent ones go.

Nothing but the end of a copy could happen at a server between the two, and that is refused by
epoch.
"""

from __future__ import annotations

from protocol_model.replicas.configuration import Configuration
from protocol_model.replicas.ledger import (
    freeing,
    may_be_gone,
    take_copies_back,
    without_entry,
)
from protocol_model.replicas.state import (
    ABSENT,
    JOINING,
    SERVING,
    Entry,
    Leader,
    Record,
    Replica,
    Server,
    State,
    Steps,
    Version,
    changed,
    holds,
    value_of,
)

__all__ = ["takeover_steps"]


def takeover_steps(state: State, config: Configuration) -> Steps:
    for i, leader in enumerate(state.leaders):
        if leader.status == ABSENT:
            continue
        if leader.status == JOINING and any(leader.incarnations):
            serving = leader._replace(status=SERVING)
            yield f"leader {leader.epoch} serves", state.with_leader(i, serving), None
        for s, server in enumerate(state.servers):
            is_known = leader.has_adopted(s) and leader.incarnations[s] == server.incarnation
            if leader.epoch >= server.epoch and not is_known:
                yield f"leader {leader.epoch} adopts server {s}", _adopt(state, config, i, s), None
            if state.budget.losses and leader.status == SERVING and leader.has_adopted(s):
                after = _let_go(state.spending("losses"), config, i, s)
                yield f"leader {leader.epoch} gives server {s} up for lost", after, None


def _adopt(state: State, config: Configuration, i: int, s: int) -> State:
    server = state.servers[s]
    if server.epoch < state.leaders[i].epoch:
        server = server._replace(epoch=state.leaders[i].epoch, fenced=frozenset())
        state = state.with_server(s, server)
    known = state.leaders[i].incarnations[s]
    if known not in (0, server.incarnation):
        state = state.with_leader(i, _forget_grants(config, state.leaders[i], s))
    for found in _live_replicas(state.leaders[i], server, s):
        state = _take_in(state, config, i, found)
    leader = _still_in_use(state.leaders[i], server, s)
    leader = _sweep(state, config, leader, s)
    return state.with_leader(
        i,
        leader._replace(
            incarnations=changed(leader.incarnations, s, server.incarnation),
            lost=leader.lost - {s},
            condemned=leader.condemned - {s},
        ),
    )


def _forget_grants(config: Configuration, leader: Leader, s: int) -> Leader:
    """Those of a server's former life are void; their extents are freed in this one."""
    leader = _end_requests(config, leader, s)
    if leader.put is None:
        return leader
    gone = [replica for replica in leader.put.replicas if replica.server == s]
    left = tuple(replica for replica in leader.put.replicas if replica.server != s)
    put = leader.put._replace(replicas=left) if left else None
    return freeing(leader, gone, leader.put.version)._replace(put=put)


def _end_requests(config: Configuration, leader: Leader, s: int) -> Leader:
    """Copies from or to a server fail with it, and notes that it should answer."""
    if leader.change is not None:
        places = {order.replica.server for order in leader.change.orders}
        if leader.entry is not None:
            places |= {replica.server for replica in leader.entry.replicas}
        if s in places:
            leader = take_copies_back(config, leader)
    if leader.request is not None and any(
        replica.server == s for replica in leader.request.waits_for
    ):
        leader = leader._replace(request=None)
    return leader


def _live_replicas(leader: Leader, server: Server, s: int) -> list[Entry]:
    """Return what the server's inventory names, by version, extents in the order of the parts."""
    freed = {free.extent for free in leader.frees if free.server == s}
    found: dict[Version, dict[int, tuple[int, Record]]] = {}
    for at, extent in enumerate(server.extents):
        if extent.is_live and extent.record is not None and at not in freed:
            found.setdefault(extent.version, {})[extent.record.part] = (at, extent.record)
    return [
        Entry(
            version,
            max(record.note for _, record in parts.values()),
            (Replica(s, tuple(parts[part][0] for part in sorted(parts))),),
            any(record.is_copy for _, record in parts.values()),
        )
        for version, parts in sorted(found.items())
    ]


def _take_in(state: State, config: Configuration, i: int, found: Entry) -> State:
    leader, version = state.leaders[i], found.version
    (replica,) = found.replicas
    if leader.put is not None and leader.put.version == version:
        return state  # sealed, and its put is open: that decides
    stone = leader.stone
    if "stone_asked" in config.rules:
        stone = max([stone, *(wait.stone for wait in leader.waits if wait.is_absent)])
    stone = max(stone, leader.bounds[replica.server])
    is_whole = len(replica.extents) == config.parts or "whole_replica" not in config.rules
    if not is_whole or version <= stone:
        return state.with_leader(i, freeing(leader, [replica], version))
    entry = leader.entry
    if entry is not None and version == entry.version:
        replicas = entry.replicas if replica in entry.replicas else (*entry.replicas, replica)
        known = entry._replace(note=max(entry.note, found.note), replicas=replicas)
        return state.with_leader(i, leader._replace(entry=known))
    if entry is not None and _ranks_below(config, found, entry):
        state = _replaced(state, version, entry.version)
        return state.with_leader(i, freeing(leader, [replica], version))
    if entry is not None:
        state = _replaced(state, entry.version, version)
        leader = without_entry(config, leader)
    return state.with_leader(i, leader._replace(entry=found))


def _replaced(state: State, loser: Version, winner: Version) -> State:
    """An older put may go for a later one, but not the other way round."""
    put_at = {value: version for version, value in reversed(state.versions)}
    if put_at[value_of(state, loser)] < put_at[value_of(state, winner)]:
        return may_be_gone(state, loser)
    return state


def _ranks_below(config: Configuration, one: Entry, other: Entry) -> bool:
    """Of two versions the higher counts, unless it is a copy and the lower one has a later note."""
    lower, higher = (one, other) if one.version < other.version else (other, one)
    gives_way = (
        "note_ranks" in config.rules
        and higher.is_copy
        and lower.note.number > max(higher.version, higher.note.number)
    )
    return (one is lower) != gives_way


def _still_in_use(leader: Leader, server: Server, s: int) -> Leader:
    """Views and copies of what has no live word: freed again, and waited for (busy_inventory)."""
    freed = {free.extent for free in leader.frees if free.server == s}
    used = [(held.extent, held.version) for held in server.views]
    for task in server.copies:
        if task.got >= 0:
            used += [(at, task.version) for at in task.extents]
    for at, version in used:
        extent = server.extents[at]
        if at not in freed and not (extent.is_live and extent.version == version):
            leader = freeing(leader, [Replica(s, (at,))], version)
    return leader


def _sweep(state: State, config: Configuration, leader: Leader, s: int) -> Leader:
    """Replicas that the inventory did not name leave the index: the server does not have them."""
    entry = leader.entry
    if entry is None:
        return leader
    left = tuple(r for r in entry.replicas if r.server != s or holds(state, r, entry.version))
    if len(left) == len(entry.replicas):
        return leader
    if not left:
        leader = take_copies_back(config, leader, is_departure=True)
    return leader._replace(entry=entry._replace(replicas=left) if left else None)


def _let_go(state: State, config: Configuration, i: int, s: int) -> State:
    """Its objects leave the index with it, and come back with it; open puts and FREEs stay."""
    leader = _end_requests(config, state.leaders[i], s)
    entry = leader.entry
    if entry is not None:
        left = tuple(replica for replica in entry.replicas if replica.server != s)
        if not left:
            leader = take_copies_back(config, leader, is_departure=True)
            state = may_be_gone(state, entry.version)
        leader = leader._replace(entry=entry._replace(replicas=left) if left else None)
    return state.with_leader(i, leader._replace(lost=leader.lost | {s}))
