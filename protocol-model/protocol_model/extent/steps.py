"""All that can happen next, judged."""

from __future__ import annotations

from collections.abc import Callable

from protocol_model.extent.configuration import Configuration
from protocol_model.extent.frames import network_steps
from protocol_model.extent.healing import heal
from protocol_model.extent.leader import election, leader_steps
from protocol_model.extent.reader import reader_steps
from protocol_model.extent.server import fault_steps, use_steps
from protocol_model.extent.state import State, Steps
from protocol_model.extent.stored import missing_value
from protocol_model.extent.writer import writer_steps

__all__ = ["steps", "successors"]

PARTIES: tuple[Callable[[State, Configuration], Steps], ...] = (
    election,
    network_steps,
    leader_steps,
    writer_steps,
    fault_steps,
    use_steps,
    reader_steps,
)


def steps(state: State, config: Configuration) -> Steps:
    for party in PARTIES:
        yield from party(state, config)


def successors(config: Configuration) -> Callable[[State], Steps]:
    """Return the steps of a scenario, with the properties that it asks for."""
    judges_stored, judges_end = "S3" in config.properties, "L1" in config.properties

    def following(state: State) -> Steps:
        for label, after, bad in steps(state, config):
            if after == state and not bad:
                continue
            if not bad and judges_stored:
                bad = missing_value(after, config)
            if not bad and judges_end:
                bad = heal(after, config, steps)
            yield label, after, bad if bad and bad[:2] in config.properties else None

    return following
