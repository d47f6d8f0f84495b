"""L1 and S6: when faults stop, everything ends, and nothing is lost for ever."""

from __future__ import annotations

from collections.abc import Callable

from protocol_model.extent.configuration import Budget, Configuration
from protocol_model.extent.leader import newest_leader
from protocol_model.extent.remove import remove
from protocol_model.extent.state import ENDED, GAVE_UP, NO_READER, SERVING, State, Steps, Use
from protocol_model.extent.stored import missing_value

__all__ = ["heal"]

AllSteps = Callable[[State, Configuration], Steps]


def heal(state: State, config: Configuration, steps: AllSteps) -> str | None:
    """Stop all faults, deliver everything, in the end close all views; say what stays wrong."""
    servers = tuple(  # copies under way come to their end
        server._replace(uses=server.uses & {Use(v.extent, v.generation) for v in server.views})
        for server in state.servers
    )
    state = state._replace(
        writers=tuple(w if w.phase == ENDED else w._replace(phase=GAVE_UP) for w in state.writers),
        servers=servers,
        budget=Budget(abandons=99),
        reader=NO_READER,
    )
    state = _deliver(state, config, steps, ("does not answer", "closes its view"))
    leader = newest_leader(state)
    if leader.waits:
        return "L1: a remove or upsert is never acknowledged"
    newest = state.leaders.index(leader)
    if leader.status == SERVING and not any(remove(state, config, newest, config.reader_key)):
        return "L1: a remove would never be answered"
    state = _deliver(state, config, steps, ("does not answer",))
    leader = newest_leader(state)
    if leader.status != SERVING or any(
        leader.adopted[s] != server.incarnation for s, server in enumerate(state.servers)
    ):
        return "L1: the newest leader never comes to know all servers"
    missing = missing_value(state, config)
    if missing:
        return "L1: " + missing
    used = {entry.extent for entry in leader.objects if entry}
    for extent, slot in enumerate(leader.slots):
        if slot.code not in "CF" or (slot.code == "C") != (extent in used):
            return f"S6: extent {extent} stays in state {slot.code}"
    return None


def _deliver(
    state: State, config: Configuration, steps: AllSteps, without: tuple[str, ...]
) -> State:
    """Take steps, none twice to the same state, until there are no more."""
    seen = {state}
    while True:
        for label, after, _ in steps(state, config):
            if after not in seen and not any(words in label for words in without):
                state = after
                seen.add(state)
                break
        else:
            return state
