"""All that is to be checked: every scenario, and every rule in the scenario that needs it."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any

from protocol_model.details import attempt, inventory_file, note, number, pin, transfer, view_end
from protocol_model.extent import healing as extent_healing
from protocol_model.extent import rules as extent_rules
from protocol_model.extent import scenarios as extent_scenarios
from protocol_model.extent import state as extent_state
from protocol_model.extent import steps as extent_steps
from protocol_model.replicas import healing as replicas_healing
from protocol_model.replicas import rules as replicas_rules
from protocol_model.replicas import scenarios as replicas_scenarios
from protocol_model.replicas import state as replicas_state
from protocol_model.replicas import steps as replicas_steps
from protocol_model.search import Found, Limits, Successors, breadth_first, walk

__all__ = ["Case", "first_design", "less_one_rule", "random_walks", "specification"]

PROPERTIES = ("S1", "S2", "S3", "S4", "S5")
DETAILS = {
    "inventory file": inventory_file,
    "transfer": transfer,
    "attempts": attempt,
    "notes": note,
    "numbers": number,
    "ends of views": view_end,
    "pins": pin,
}


@dataclass(frozen=True)
class Case:
    """One search: a start and what can follow."""

    name: str
    start: Any
    successors: Successors[Any]

    def run(self, limits: Limits) -> Found:
        return breadth_first(self.start, self.successors, limits)


def specification() -> Iterator[Case]:
    """Yield the scenarios with all rules: each must hold."""
    for name, extent in extent_scenarios.SCENARIOS.items():
        yield Case(name, extent_state.initial(extent), extent_steps.successors(extent))
    for name, replicas in replicas_scenarios.SCENARIOS.items():
        yield Case(name, replicas_state.initial(replicas), replicas_steps.successors(replicas))
    for name, detail in DETAILS.items():
        yield Case(name, detail.START, detail.successors(frozenset(detail.RULES)))


def less_one_rule() -> Iterator[Case]:
    """Yield each rule's scenario without that rule: each must break."""
    for rule in extent_rules.RULES:
        extent = extent_scenarios.SCENARIOS[extent_scenarios.NEEDED[rule]]
        extent = replace(extent, rules=extent_rules.SPECIFICATION - {rule})
        yield Case(rule, extent_state.initial(extent), extent_steps.successors(extent))
    for rule in replicas_rules.RULES:
        replicas = replicas_scenarios.SCENARIOS[replicas_scenarios.NEEDED[rule]]
        replicas = replace(replicas, rules=replicas_rules.SPECIFICATION - {rule})
        yield Case(rule, replicas_state.initial(replicas), replicas_steps.successors(replicas))
    for detail in DETAILS.values():
        for rule in detail.RULES:
            yield Case(rule, detail.START, detail.successors(frozenset(detail.RULES) - {rule}))


def first_design() -> Iterator[Case]:
    """Yield what the first design is asked, property by property."""
    for judged in PROPERTIES:
        for name, extent in extent_scenarios.SCENARIOS.items():
            extent = replace(
                extent, rules=extent_rules.FIRST_DESIGN, properties=frozenset({judged})
            )
            yield Case(
                f"{judged}: {name}", extent_state.initial(extent), extent_steps.successors(extent)
            )


# A walk of a seed: what is wrong or None, and its steps.
Walk = Callable[[int], "tuple[str | None, list[str]]"]


def _walks() -> list[Walk]:
    walks: list[Walk] = []
    for extent in extent_scenarios.MIXED:

        def walk_extents(seed: int, config: Any = extent) -> tuple[str | None, list[str]]:
            return walk(
                extent_state.initial(config),
                extent_steps.successors(config),
                lambda state: extent_healing.heal(state, config, extent_steps.steps),
                seed,
                10 + seed * 7 % 140,
            )

        walks.append(walk_extents)
    for replicas in replicas_scenarios.MIXED:

        def walk_replicas(seed: int, config: Any = replicas) -> tuple[str | None, list[str]]:
            return walk(
                replicas_state.initial(config),
                replicas_steps.successors(config),
                lambda state: replicas_healing.heal(state, config, replicas_steps.steps),
                seed,
                10 + seed * 7 % 140,
            )

        walks.append(walk_replicas)
    return walks


def random_walks(seconds: float, first_seed: int = 0) -> tuple[int, str | None, list[str]]:
    """Walk for a time; return how many walks ended well, what is wrong with the last, its steps."""
    walks, seed = _walks(), first_seed
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        wrong, labels = walks[seed % len(walks)](seed)
        if wrong:
            return seed - first_seed, f"walk {seed}: {wrong}", labels
        seed += 1
    return seed - first_seed, None, []
