"""ANNOTATE: what changes of a stored object without its bytes, at all of its holders."""

from __future__ import annotations

from protocol_model.replicas.configuration import Configuration
from protocol_model.replicas.state import (
    Change,
    Note,
    NoteRequest,
    State,
    Steps,
    holds,
    leads,
    value_of,
)

__all__ = ["note_steps"]


def note_steps(state: State, config: Configuration) -> Steps:
    for i, leader in enumerate(state.leaders):
        entry, change = leader.entry, leader.change
        if state.budget.notes and leads(state, config, leader) and entry and not leader.request:
            yield _annotate(state, i)
        if leader.request is not None:
            request = leader.request
            for label, after, left in _send(state, i, request):
                now = leader._replace(request=left)
                yield label, after.with_leader(i, now), None
            yield from _answer(state, config, i, request)
        if change is not None and change.request is not None:
            yield from _note_copies(state, i, change, change.request)


def _annotate(state: State, i: int) -> tuple[str, State, None]:
    leader = state.leaders[i]
    assert leader.entry is not None
    entry = leader.entry
    note = Note(leader.version_next, state.asked + 1)
    holders = frozenset(entry.replicas)
    asking = leader._replace(
        sequence=leader.sequence + 1,
        entry=entry._replace(note=note),
        request=NoteRequest(note, entry.version, holders),
    )
    after = state.spending("notes").with_leader(i, asking)._replace(asked=state.asked + 1)
    return f"leader {leader.epoch} takes note {note.ordinal}", after, None


def _send(state: State, i: int, request: NoteRequest) -> list[tuple[str, State, NoteRequest]]:
    """Return for each holder that can take the note what happens, and what is left to wait for."""
    leader, found = state.leaders[i], []
    for replica in request.waits_for:
        s, at = replica.server, replica.extents[0]  # a rebuild takes the highest note of all parts
        server = state.servers[s]
        extent = server.extents[at]
        is_there = extent.is_live and extent.version == request.version
        if not state.is_in_touch(leader, s) or not is_there:
            continue
        assert extent.record is not None
        if request.note.number > extent.record.note.number:
            record = extent.record._replace(note=request.note)
            server = server.with_extent(at, extent._replace(record=record))
        left = request._replace(waits_for=request.waits_for - {replica})
        found.append(
            (f"server {s} has note {request.note.ordinal}", state.with_server(s, server), left)
        )
    return found


def _note_copies(state: State, i: int, change: Change, request: NoteRequest) -> Steps:
    leader = state.leaders[i]
    for label, after, left in _send(state, i, request):
        now = leader._replace(change=change._replace(request=left))
        yield label, after.with_leader(i, now), None
    if not request.waits_for:
        done = leader._replace(change=change._replace(request=None))
        label = f"leader {leader.epoch} knows that the new holders have note {request.note.ordinal}"
        yield label, state.with_leader(i, done), None


def _answer(state: State, config: Configuration, i: int, request: NoteRequest) -> Steps:
    leader = state.leaders[i]
    idle = state.with_leader(i, leader._replace(request=None))
    ordinal = request.note.ordinal
    yield f"leader {leader.epoch} gives note {ordinal} up", idle, None
    if not all(holds(state, replica, request.version) for replica in request.waits_for):
        yield f"leader {leader.epoch} learns that what note {ordinal} is of is gone", idle, None
    if request.waits_for or not leads(state, config, leader):
        return
    noted = (value_of(state, request.version), ordinal)
    yield f"leader {leader.epoch} acknowledges note {ordinal}", idle._replace(noted=noted), None
