"""L1: when faults stop, everything ends: answers come, extents are free again, tombstones go."""

from __future__ import annotations

from collections.abc import Callable

from protocol_model.replicas.configuration import Budget, Configuration
from protocol_model.replicas.ledger import used_extents
from protocol_model.replicas.properties import judge
from protocol_model.replicas.state import NEVER, SERVING, State, Steps, newest_leader

__all__ = ["heal"]

AllSteps = Callable[[State, Configuration], Steps]
# Faults, and what only ends a wait by giving it up.
WITHOUT = ("the lease of", "out of reach", "gives the copies up", "gives note")


def heal(state: State, config: Configuration, steps: AllSteps) -> str | None:
    """Stop all faults, give clients up, deliver everything; say what stays wrong."""
    views = tuple(server._replace(views=frozenset()) for server in state.servers)
    leaders = state.leaders
    if "pin_ends" in config.rules:
        leaders = (leaders[0]._replace(pins=frozenset()), leaders[1]._replace(pins=frozenset()))
    state = state._replace(
        coordinator=state.coordinator._replace(is_up=True),
        leaders=leaders,
        servers=views,
        view=None,
        pinned=0,
        writers=tuple(writer._replace(phase=3) for writer in state.writers),
        budget=Budget(elections=0 if state.coordinator.holder else 1, abandons=99),
    )
    state = _deliver(state, config, steps)
    leader = newest_leader(state)
    if leader.status != SERVING or not leader.has_adopted_all:
        return "L1: the newest leader never comes to know all servers"
    if leader.waits:
        return "L1: a remove or upsert is never answered"
    if leader.request or leader.change or leader.put:
        return "L1: a note, copies or a put never end"
    if leader.frees:
        return "L1: an extent is never free again"
    if leader.pins:
        return "L1: an object stays pinned by a session that has ended"
    stones = (state.coordinator.stone, *state.coordinator.condemned)
    if any(stone != NEVER for stone in stones):
        return "L1: a tombstone stays for ever"
    for s, server in enumerate(state.servers):
        used = used_extents(leader, s)
        if any(extent.is_live != (at in used) for at, extent in enumerate(server.extents)):
            return f"L1: leader {leader.epoch} and server {s} never agree about an extent"
    wrong = judge(state, config)
    return "L1: " + wrong if wrong else None


def _deliver(state: State, config: Configuration, steps: AllSteps) -> State:
    """Take steps, none twice to the same state, until there are no more."""
    seen = {state}
    while True:
        for label, after, _ in steps(state, config):
            if after not in seen and not any(words in label for words in WITHOUT):
                state = after
                seen.add(state)
                break
        else:
            return state
