"""From a seed to a plan: which faults, when, and under which settings."""

from __future__ import annotations

import random

from .faults import AMOUNTS, KINDS, Fault, Plan

_FIRST_S = 2.0
_LAST_S = 2.0
"""Without a fault, before the end."""
_DURATIONS_S = ((6, 0.2, 1.0), (6, 1.0, 4.0), (1, 4.0, 8.0))
_PAUSES_S = ((3, 0.0, 0.5), (4, 3.5, 5.5))
"""After some faults all settles before the next one, as the checker needs to say more; others
overlap with it."""
_CHANGING = ("m0,c2", "m1,c3", "s0,c4", "m0,s1", "m1,s2", "leader,c4", "e0,m0", "e1,m1", "s1,s2")
"""Hosts that are cut off together."""


def matrix() -> list[tuple[str, str]]:
    """Every kind of fault with every target that it has."""
    pairs = [(name, target) for name, kind in KINDS.items() for target in kind.targets]
    return pairs + [(kind, group) for kind in ("partition", "deaf", "mute") for group in _CHANGING]


def subset(part: int, parts: int) -> list[tuple[str, str]]:
    """Part k of n of the matrix, k from 1; all parts together are all of it.

    Raises:
        ValueError: There is no such part.
    """
    if not 1 <= part <= parts:
        raise ValueError(f"part {part} of {parts}: parts are numbered from 1")
    pairs = matrix()
    random.Random(0).shuffle(pairs)  # neighbours are alike, and each part should have of all
    return pairs[part - 1 :: parts]


def make_plan(
    seed: int,
    seconds: float,
    *,
    pairs: list[tuple[str, str]] | None = None,
    planted: str = "",
) -> Plan:
    """Return the plan of a seed.

    Args:
        seed: Of everything.
        seconds: How long there is load; faults end a little earlier.
        pairs: Kinds and targets to choose from, each once before any comes again; None: all.
        planted: A rule that the test build leaves out.
    """
    choose = random.Random(seed)
    every = list(pairs or matrix())
    left: list[tuple[str, str]] = []
    faults: list[Fault] = []
    at_s = _FIRST_S
    while True:
        if not left:
            left = list(every)
            choose.shuffle(left)
        kind, target = left.pop()
        duration_s = round(_between(choose, _DURATIONS_S), 2)
        if at_s + duration_s > seconds - _LAST_S:
            break
        amount = choose.choice(AMOUNTS.get(kind, (0.0,)))
        faults.append(
            Fault(kind, target, round(at_s, 2), duration_s, amount, choose.randrange(1 << 32))
        )
        pause_s = _between(choose, _PAUSES_S)
        at_s += duration_s + pause_s if choose.random() < 0.7 else choose.uniform(0.2, 1.0)
    return Plan(
        seed=seed,
        seconds=seconds,
        faults=tuple(faults),
        evicts=choose.random() < 0.4,
        relay=choose.random() < 0.3,
        checksums=choose.choice(("off", "put", "verify")),
        planted=planted,
    )


def _between(choose: random.Random, ranges: tuple[tuple[int, float, float], ...]) -> float:
    (found,) = choose.choices(ranges, [weight for weight, _, _ in ranges])
    return choose.uniform(found[1], found[2])
