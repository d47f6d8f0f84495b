"""In which order an instance computes what waits for it."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from mooncake_store._native import ffi, lib
from mooncake_store.errors import RequestError

__all__ = ["Target", "Waiting", "plan_queue"]


@dataclass(frozen=True, slots=True)
class Waiting:
    """A request that waits.

    Attributes:
        waited_s: Since it arrived.
        work_s: That its computation is predicted to take.
        promised_s: What its first token would have taken in the order of arrival, from then on.
    """

    waited_s: float
    work_s: float
    promised_s: float = math.inf


def plan_queue(
    waiting: Sequence[Waiting],
    *,
    target_s: float,
    slo_s: float,
    free_s: float = 0.0,
    least_s: float = 0.0,
) -> list[int]:
    """Return the places of requests in the order in which to compute them.

    As many as possible end within `target_s` of their arrival, or within what they were promised if
    that is less, but not less than `least_s`: where one would be late, the longest before it gives
    way (Moore and Hodgson, 1968).  Who gives way has `slo_s` as its deadline, then twice that, and
    so on.  Within their deadlines the short ones go first (Smith, 1956).

    Args:
        waiting: In the order of arrival.
        target_s: What a first token should take, from arrival.
        slo_s: What it may take.
        free_s: Until the instance can begin.
        least_s: What anybody may be let wait for, whatever was promised.

    Raises:
        RequestError: They are not in order, or a time is below 0.
    """
    if not 0 < target_s <= slo_s:
        raise RequestError(f"a target above 0 and within the SLO ({slo_s} s), not {target_s} s")
    times = [free_s, least_s]
    for one in waiting:
        times += (one.work_s, one.waited_s, one.promised_s)
    if not all(value >= 0 for value in times):
        raise RequestError("times are 0 or more")
    if any(a.waited_s < b.waited_s for a, b in pairwise(waiting)):
        raise RequestError("requests wait in the order of their arrival")
    count = len(waiting)
    rows: Any = ffi.new(
        "cd_waiting[]", [(one.waited_s, one.work_s, one.promised_s) for one in waiting]
    )
    sequence: Any = ffi.new("uint32_t[]", count)
    room: list[Any] = [
        ffi.new(f"{kind}[]", count) for kind in ("uint32_t", "uint32_t", "double", "uint8_t")
    ]
    plan: Any = ffi.new("cd_plan *", [rows, sequence, *room])
    deadlines: Any = ffi.new("cd_deadlines *", [target_s, slo_s, least_s])
    lib.cd_plan_queue(plan, deadlines, count, free_s)
    return list(sequence)


class Target:
    """The time within which first tokens are aimed at, as it follows what is possible.

    It begins at its most, falls while fewer than a share of requests miss it, and rises else:
    an aim that nobody misses says nothing about who should give way, and one that many miss lets
    too many give way.

    Args:
        slo_s: What a first token may take.
        most: Of the SLO, above 0.
        miss_share: So many of all may miss it.
        gain: How far one miss moves it (of its logarithm).

    Raises:
        RequestError: A number that cannot be.
    """

    def __init__(
        self, slo_s: float, *, most: float = 0.6, miss_share: float = 0.01, gain: float = 0.1
    ) -> None:
        if not (slo_s > 0 and 0 < most <= 1 and 0 <= miss_share <= 1 and gain >= 0):
            raise RequestError("an SLO above 0, shares from 0 to 1, a gain of 0 or more")
        self._slo_s = slo_s
        self._rule: Any = ffi.new("cd_target *", [most, miss_share, gain])
        self.target_s = most * slo_s

    def note(self, ttft_s: float) -> None:
        """Take notice of one more first token."""
        self.target_s = float(lib.cd_next_target_s(self._rule, self._slo_s, self.target_s, ttft_s))
