"""More replicas of an object, or elsewhere: all of the new ones are copies under a new version.

Words only grow, so a page that has held a later version cannot name the object's own.  Servers
without the object copy it from a holder; those that keep it copy it from the first of these.  Then
the entry switches, and the old extents leave, as in an upsert.
"""

from __future__ import annotations

from protocol_model.replicas.configuration import Configuration
from protocol_model.replicas.ledger import freeing, may_be_gone, take_copies_back
from protocol_model.replicas.properties import trespass
from protocol_model.replicas.put import place
from protocol_model.replicas.state import (
    Change,
    CopyTask,
    Entry,
    Extent,
    Note,
    NoteRequest,
    Order,
    Record,
    Replica,
    State,
    Steps,
    changed,
    holds,
    leads,
    value_of,
)

__all__ = ["copy_steps"]

NOT_ASKED, ASKED, COPIED = range(3)


def copy_steps(state: State, config: Configuration) -> Steps:
    for i, leader in enumerate(state.leaders):
        if state.budget.copies and leads(state, config, leader) and leader.entry is not None:
            yield from _begin_change(state, config, i, leader.entry)
        if leader.change is not None:
            yield from _go_on(state, config, i, leader.change)
    for s, server in enumerate(state.servers):
        for task in server.copies:
            yield from _run(state, config, s, task)


# ---- at the leader -------------------------------------------------------------------------------
def _begin_change(state: State, config: Configuration, i: int, entry: Entry) -> Steps:
    leader = state.leaders[i]
    if leader.change is not None or (leader.put is not None and "copy_alone" in config.rules):
        return
    holders = [replica.server for replica in entry.replicas]
    for s in config.servers:
        room = place(leader, config, s)
        if s in holders or room is None:
            continue
        yield _ask(state, i, entry, (room,), f"moves the object to server {s}")
        kept = [place(leader, config, holder) for holder in holders]
        again = tuple(replica for replica in kept if replica is not None)
        if len(again) == len(holders):
            yield _ask(state, i, entry, (room, *again), f"copies the object to server {s} too")


def _ask(
    state: State, i: int, entry: Entry, replicas: tuple[Replica, ...], what: str
) -> tuple[str, State, None]:
    leader = state.leaders[i]
    version = leader.version_next
    orders = tuple(Order(replica, NOT_ASKED, entry.note) for replica in replicas)
    leader = leader._replace(
        sequence=leader.sequence + 1, change=Change(version, orders, 1, entry.note)
    )
    versions = (*state.versions, (version, value_of(state, entry.version)))
    after = state.spending("copies").with_leader(i, leader)._replace(versions=versions)
    return f"leader {leader.epoch} {what}, as version {version}", _send_copy(after, i, 0), None


def _send_copy(state: State, i: int, at: int) -> State:
    """The order waits in the server's queue; it says what the record will say."""
    leader = state.leaders[i]
    change, entry = leader.change, leader.entry
    assert change is not None and entry is not None
    order = change.orders[at]
    if at < change.first_count:
        source, source_version = entry.replicas[0], entry.version
    else:
        source, source_version = change.orders[0].replica, change.version
    asked = order._replace(at=ASKED, note=entry.note)
    change = change._replace(orders=changed(change.orders, at, asked))
    state = state.with_leader(i, leader._replace(change=change))
    s = order.replica.server
    if not state.is_in_touch(leader, s):
        return state  # the frame goes astray
    task = CopyTask(
        leader.epoch, change.version, order.replica.extents, source, source_version, entry.note, -1
    )
    server = state.servers[s]
    return state.with_server(s, server._replace(copies=server.copies | {task}))


def _go_on(state: State, config: Configuration, i: int, change: Change) -> Steps:
    leader = state.leaders[i]
    for at, order in enumerate(change.orders):
        s = order.replica.server
        is_sealed = order.at == ASKED and holds(state, order.replica, change.version)
        if is_sealed and state.is_in_touch(leader, s):
            orders = changed(change.orders, at, order._replace(at=COPIED))
            known = leader._replace(change=change._replace(orders=orders))
            label = f"leader {leader.epoch} learns that server {s} has sealed its copy"
            yield label, state.with_leader(i, known), None
        has_source = all(o.at == COPIED for o in change.orders[: change.first_count])
        if order.at == NOT_ASKED and has_source and leader.entry is not None:
            label = f"leader {leader.epoch} has server {s} copy it as well"
            yield label, _send_copy(state, i, at), None
    if state.budget.timeouts:
        failed = take_copies_back(config, leader)
        label = f"leader {leader.epoch} gives the copies up"
        yield label, state.spending("timeouts").with_leader(i, failed), None
    copied = [order for order in change.orders if order.at == COPIED]
    if len(copied) == len(change.orders) or (copied and "copy_all" not in config.rules):
        yield from _all_copied(state, config, i, change)


def _all_copied(state: State, config: Configuration, i: int, change: Change) -> Steps:
    leader, entry = state.leaders[i], state.leaders[i].entry
    if entry is None or change.request is not None:
        return
    if change.noted != entry.note and "note_copied" in config.rules:
        note = Note(leader.version_next, entry.note.ordinal)
        holders = frozenset(order.replica for order in change.orders)
        request = NoteRequest(note, change.version, holders)
        change = change._replace(noted=entry.note, request=request)
        after = leader._replace(change=change, sequence=leader.sequence + 1)
        label = f"leader {leader.epoch} sends the new holders note {note.ordinal}"
        yield label, state.with_leader(i, after), None
        return
    replicas = tuple(order.replica for order in change.orders)
    if not any(holds(state, replica, change.version) for replica in replicas):
        state = may_be_gone(state, entry.version)  # their nodes have lost their memory since
    now = freeing(leader, entry.replicas, entry.version)
    now = now._replace(entry=Entry(change.version, entry.note, replicas, is_copy=True), change=None)
    label = f"leader {leader.epoch}: the entry switches to version {change.version}"
    yield label, state.with_leader(i, now), None


# ---- at the server -------------------------------------------------------------------------------
def _run(state: State, config: Configuration, s: int, task: CopyTask) -> Steps:
    if task.got < 0:
        yield _begin(state, config, s, task)
    elif task.got < config.parts:
        yield _pull(state, config, s, task)
    else:
        yield _end(state, config, s, task)


def _with_task(state: State, s: int, task: CopyTask, now: CopyTask | None) -> State:
    server = state.servers[s]
    copies = server.copies - {task} | (frozenset({now}) if now else frozenset())
    return state.with_server(s, server._replace(copies=copies))


def _begin(state: State, config: Configuration, s: int, task: CopyTask) -> tuple[str, State, None]:
    server = state.servers[s]
    is_current = task.epoch == server.epoch or "copy_epoch" not in config.rules
    is_open = all(server.extents[at].version < task.version for at in task.extents)
    if not is_current or not is_open:
        return (
            f"server {s} refuses a copy, version {task.version}",
            _with_task(state, s, task, None),
            None,
        )
    return (
        f"server {s} begins its copy, version {task.version}",
        _with_task(state, s, task, task._replace(got=0)),
        None,
    )


def _pull(
    state: State, config: Configuration, s: int, task: CopyTask
) -> tuple[str, State, str | None]:
    """One part, and then the source's word."""
    part = task.got
    source = state.servers[task.source.server].extents[task.source.extents[part]]
    is_there = source.is_live and source.version == task.source_version
    if not is_there and "copy_checked" in config.rules:
        return (
            f"server {s} finds the source of version {task.version} gone",
            _with_task(state, s, task, None),
            None,
        )
    at = task.extents[part]
    bad = trespass(state, s, at, task.version)
    state = _with_task(state, s, task, task._replace(got=part + 1))
    server = state.servers[s]
    extent = server.extents[at]._replace(content=source.content)
    return (
        f"server {s} has copied part {part} of version {task.version}",
        state.with_server(s, server.with_extent(at, extent)),
        bad,
    )


def _end(state: State, config: Configuration, s: int, task: CopyTask) -> tuple[str, State, None]:
    state = _with_task(state, s, task, None)
    server = state.servers[s]
    versions = [server.extents[at].version for at in task.extents]
    is_open = all(version < task.version for version in versions)
    if "copy_open" not in config.rules:
        is_open = all(version <= task.version for version in versions)
    if (task.epoch != server.epoch and "copy_epoch" in config.rules) or not is_open:
        return f"server {s} drops its copy, version {task.version}: it was taken back", state, None
    for part, at in enumerate(task.extents):
        record = Record(part, Note(task.version, task.note.ordinal), is_copy=True)
        sealed = Extent(task.version, True, record, server.extents[at].content)
        server = server.with_extent(at, sealed)
    return f"server {s} seals its copy, version {task.version}", state.with_server(s, server), None
