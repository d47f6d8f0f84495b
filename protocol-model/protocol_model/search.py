"""Search through the states of a model: breadth first, and random walks.

A model is a start state and a function from a state to its steps.  The search knows nothing else
about it.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Hashable, Iterable
from dataclasses import dataclass
from operator import itemgetter
from typing import TypeVar

__all__ = ["Found", "Limits", "breadth_first", "walk"]

S = TypeVar("S", bound=Hashable)
# (what happens, the state after it, what is wrong with that or None)
Step = tuple[str, S, "str | None"]
Successors = Callable[[S], Iterable[Step[S]]]


@dataclass(frozen=True, slots=True)
class Limits:
    """When a search ends although it has not seen everything."""

    states: int = 120_000
    seconds: float = 60.0


@dataclass(frozen=True, slots=True)
class Found:
    """What a search came to know.

    Attributes:
        violation: What is wrong, or None: nothing was found.
        labels: The steps that lead to it, a shortest sequence.
        states: How many states were seen.
        is_complete: All reachable states were seen, so that "nothing found" is a proof for this
            scenario.
    """

    violation: str | None
    labels: tuple[str, ...]
    states: int
    is_complete: bool


def breadth_first(start: S, successors: Successors[S], limits: Limits) -> Found:
    """Return the nearest violation, or how much was seen without one."""
    deadline = time.monotonic() + limits.seconds
    came_from: dict[S, tuple[S, str] | None] = {start: None}
    frontier = [start]
    while frontier:
        found: list[S] = []
        for state in frontier:
            for label, after, violation in successors(state):
                if violation:
                    labels = (*_labels_to(state, came_from), label)
                    return Found(violation, labels, len(came_from), False)
                if after not in came_from:
                    came_from[after] = (state, label)
                    found.append(after)
            if len(came_from) > limits.states or time.monotonic() > deadline:
                return Found(None, (), len(came_from), False)
        frontier = found
    return Found(None, (), len(came_from), True)


def _labels_to(state: S, came_from: dict[S, tuple[S, str] | None]) -> list[str]:
    labels: list[str] = []
    before = came_from[state]
    while before is not None:
        state, label = before
        labels.append(label)
        before = came_from[state]
    return labels[::-1]


def walk(
    start: S,
    successors: Successors[S],
    heal: Callable[[S], str | None],
    seed: int,
    steps_max: int,
) -> tuple[str | None, list[str]]:
    """Take random steps, then let all faults stop; return what is wrong or None, and the steps."""
    chance = random.Random(seed)
    state, labels = start, []
    for _ in range(steps_max):
        # In an order that does not depend on the interpreter's hashes: a seed repeats its walk.
        options = sorted(successors(state), key=itemgetter(0))
        if not options:
            break
        label, state, violation = chance.choice(options)
        labels.append(label)
        if violation:
            return violation, labels
    return heal(state), [*labels, "the faults stop"]
