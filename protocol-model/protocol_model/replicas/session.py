"""Sessions' pins, and views of what is stored."""

from __future__ import annotations

from protocol_model.replicas.configuration import Configuration
from protocol_model.replicas.state import Held, State, Steps, View, leads

__all__ = ["pin_steps", "view_steps"]


def pin_steps(state: State, config: Configuration) -> Steps:
    for i, leader in enumerate(state.leaders):
        if leader.entry is not None and state.budget.pins and leads(state, config, leader):
            pin = None if "pin_by_key" in config.rules else leader.entry.version
            pinned = leader._replace(pins=leader.pins | {pin})
            after = state.spending("pins").with_leader(i, pinned)
            if state.coordinator.holder == leader.epoch:
                after = after._replace(pinned=leader.epoch)
            yield f"leader {leader.epoch} pins the key for a session", after, None
        if leader.pins and "pin_ends" in config.rules:
            ended = state.with_leader(i, leader._replace(pins=frozenset()))
            if state.pinned == leader.epoch:
                ended = ended._replace(pinned=0)
            yield f"the session of a pin at leader {leader.epoch} ends", ended, None


def view_steps(state: State, config: Configuration) -> Steps:
    view = state.view
    if view is None:
        if state.budget.views:
            yield from _locate(state, config)
        return
    if not view.is_whole or view.opened < config.parts:
        yield _open(state, config, view)
    yield "the process closes its view", _closed(state, view), None


def _locate(state: State, config: Configuration) -> Steps:
    for leader in state.leaders:
        if leader.entry is None or not leads(state, config, leader):
            continue
        for replica in leader.entry.replicas:
            view = View(replica, leader.entry.version, 0, False)
            label = f"a process looks up version {view.version} at server {replica.server}"
            yield label, state.spending("views")._replace(view=view), None


def _open(state: State, config: Configuration, view: View) -> tuple[str, State, None]:
    """The next extent: the server compares its word and counts the view in one step."""
    s, extents = view.replica
    if view.opened >= len(extents):
        return "the view is of less than the object", _closed(state, view), None
    server, at = state.servers[s], extents[view.opened]
    extent = server.extents[at]
    if not extent.is_live or extent.version != view.version:
        return "the process finds an extent of its view gone", _closed(state, view), None
    server = server._replace(views=server.views | {Held(at, view.version)})
    opened = view.opened + 1
    is_whole = opened == config.parts or "view_whole" not in config.rules
    now = view._replace(opened=opened, is_whole=is_whole)
    label = f"the process opens its view of extent {at} of server {s}"
    return label, state.with_server(s, server)._replace(view=now), None


def _closed(state: State, view: View) -> State:
    s, extents = view.replica
    held = {Held(at, view.version) for at in extents}
    server = state.servers[s]
    return state.with_server(s, server._replace(views=server.views - held))._replace(view=None)
