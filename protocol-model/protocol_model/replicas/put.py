"""A client's put of several parts and replicas: grant, a SEAL each, put_end."""

from __future__ import annotations

from itertools import product

from protocol_model.replicas.configuration import Configuration
from protocol_model.replicas.ledger import (
    any_holder,
    freeing,
    take_copies_back,
    used_extents,
    without_entry,
)
from protocol_model.replicas.properties import trespass
from protocol_model.replicas.state import (
    Entry,
    Extent,
    Grant,
    Leader,
    Note,
    Record,
    Replica,
    State,
    Steps,
    Version,
    Wait,
    Writer,
    changed,
    leads,
)

__all__ = ["put_steps"]

IDLE, WRITING, ENDED, GAVE_UP = range(4)


def put_steps(state: State, config: Configuration) -> Steps:
    for w, writer in enumerate(state.writers):
        if writer.phase == IDLE:
            yield from _start(state, config, w)
        elif writer.phase == WRITING:
            yield from _seal(state, config, w)
            yield from _end(state, config, w)
    for i, leader in enumerate(state.leaders):
        if leader.put is not None and state.budget.abandons:
            put = leader.put
            dead = freeing(leader, put.replicas, put.version, put.writer)._replace(put=None)
            yield (
                f"leader {leader.epoch} declares writer {put.writer} dead",
                state.spending("abandons").with_leader(i, dead),
                None,
            )


def place(leader: Leader, config: Configuration, s: int) -> Replica | None:
    """Return room for a replica at a server, None: there is none."""
    used = used_extents(leader, s)
    free = [at for at in range(config.extents[s]) if at not in used]
    if not leader.has_adopted(s) or len(free) < config.parts:
        return None
    return Replica(s, tuple(free[: config.parts]))


def _start(state: State, config: Configuration, w: int) -> Steps:
    for i, leader in enumerate(state.leaders):
        if not leads(state, config, leader) or leader.put is not None:
            continue
        if leader.entry is not None and not config.puts[w]:
            continue
        if "copy_alone" in config.rules:
            leader = take_copies_back(config, leader)
        rooms = [room for s in config.servers if (room := place(leader, config, s))]
        replicas = tuple(rooms[: config.replicas])
        if not replicas:
            continue
        version = leader.version_next
        granted = leader._replace(sequence=leader.sequence + 1, put=Grant(w, version, replicas))
        incarnations = tuple(leader.incarnations[replica.server] for replica in replicas)
        writer = Writer(WRITING, version, replicas, incarnations)
        after = state.with_leader(i, granted).with_writer(w, writer)
        yield (
            f"leader {leader.epoch} grants version {version} to writer {w}:"
            f" {' and '.join(f'server {r.server} {r.extents}' for r in replicas)}",
            after._replace(versions=(*state.versions, (version, w + 1))),
            None,
        )


def _seal(state: State, config: Configuration, w: int) -> Steps:
    """Write and SEAL of one part at one replica."""
    writer = state.writers[w]
    for r, part in product(range(len(writer.replicas)), range(config.parts)):
        s, extents = writer.replicas[r]
        server = state.servers[s]
        at = extents[part]
        if (r, part) in writer.sealed or w in server.fenced:
            continue
        if (server.epoch, server.incarnation) != (writer.version[0], writer.incarnations[r]):
            continue
        if server.extents[at].version >= writer.version:
            continue
        record = Record(part, Note(writer.version, 0))
        sealed = server.with_extent(at, Extent(writer.version, True, record, (w + 1, part)))
        after = state.with_server(s, sealed)
        yield (
            f"server {s} seals part {part} of writer {w} in extent {at}",
            after.with_writer(w, writer._replace(sealed=writer.sealed | {(r, part)})),
            trespass(state, s, at, writer.version),
        )


def _end(state: State, config: Configuration, w: int) -> Steps:
    writer = state.writers[w]
    for i, leader in enumerate(state.leaders):
        put = leader.put
        if put is None or (put.writer, put.version) != (w, writer.version):
            continue
        if not leads(state, config, leader):
            continue
        sealed = _sealed_replicas(config, writer)
        kept = tuple(replica for replica in put.replicas if replica in sealed)
        if not kept:
            continue
        yield from _complete(state, config, i, w, kept)


def _sealed_replicas(config: Configuration, writer: Writer) -> list[Replica]:
    found = []
    for r, replica in enumerate(writer.replicas):
        parts = [part for part in range(config.parts) if (r, part) in writer.sealed]
        if len(parts) == config.parts or (parts and "seal_all" not in config.rules):
            found.append(replica)
    return found


def _complete(
    state: State, config: Configuration, i: int, w: int, kept: tuple[Replica, ...]
) -> Steps:
    leader = state.leaders[i]
    put, old = leader.put, leader.entry
    assert put is not None
    others = [replica for replica in put.replicas if replica not in kept]
    change = leader.change
    leader = without_entry(config, leader._replace(put=None))
    if "copy_alone" not in config.rules and old is not None:
        leader = leader._replace(change=change)  # which goes on
    leader = freeing(leader, others, put.version)
    leader = leader._replace(entry=Entry(put.version, Note(put.version, 0), kept))
    values, value = state.values, w + 1
    put_at = {of: version for version, of in reversed(state.versions)}
    struck = frozenset(
        other
        for other, status in enumerate(values)
        if status in (1, 2) and put_at[other] < put.version
    )
    for other in struck:
        values = changed(values, other, 2)
    if config.puts[w]:
        wait = Wait(
            "upsert",
            put.version,
            _before(put.version),
            struck,
            value,
            leader.is_short_of_members,
            False,
        )
        leader = leader._replace(waits=leader.waits | {wait})
        label = f"leader {leader.epoch} takes put_end of writer {w}"
    else:
        values = changed(values, value, 1 if any_holder(state, config, value) else 2)
        label = f"leader {leader.epoch} acknowledges put_end of writer {w}"
    ended = state.writers[w]._replace(phase=ENDED)
    after = state.with_leader(i, leader).with_writer(w, ended)
    yield label, after._replace(values=values), None


def _before(version: Version) -> Version:
    return (version[0], version[1] - 1)
