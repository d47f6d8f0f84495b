"""All that can happen next, judged."""

from __future__ import annotations

from collections.abc import Callable

from protocol_model.replicas.configuration import Configuration
from protocol_model.replicas.coordinator import coordinator_steps
from protocol_model.replicas.copying import copy_steps
from protocol_model.replicas.free import free_steps
from protocol_model.replicas.healing import heal
from protocol_model.replicas.note import note_steps
from protocol_model.replicas.properties import judge
from protocol_model.replicas.put import put_steps
from protocol_model.replicas.removal import removal_steps
from protocol_model.replicas.server import fault_steps
from protocol_model.replicas.session import pin_steps, view_steps
from protocol_model.replicas.state import State, Steps
from protocol_model.replicas.takeover import takeover_steps

__all__ = ["steps", "successors"]

PARTIES: tuple[Callable[[State, Configuration], Steps], ...] = (
    coordinator_steps,
    takeover_steps,
    free_steps,
    put_steps,
    removal_steps,
    copy_steps,
    note_steps,
    pin_steps,
    view_steps,
    fault_steps,
)


def steps(state: State, config: Configuration) -> Steps:
    for party in PARTIES:
        yield from party(state, config)


def successors(config: Configuration) -> Callable[[State], Steps]:
    """Return the steps of a scenario, with the properties that it asks for."""
    judges_end = "L1" in config.properties

    def following(state: State) -> Steps:
        for label, after, bad in steps(state, config):
            if after == state and not bad:
                continue
            bad = (
                bad or judge(after, config) or (heal(after, config, steps) if judges_end else None)
            )
            yield label, after, bad if bad and bad[:2] in config.properties else None

    return following
