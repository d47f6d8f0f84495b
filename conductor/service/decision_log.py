"""The last decisions, with what each was made from."""

from __future__ import annotations

import itertools
from collections import OrderedDict, deque
from dataclasses import asdict, dataclass
from typing import Any

from mooncake_store.conductor.service.considered import Considered, Seen
from mooncake_store.conductor.service.decision import (
    Candidate,
    Decision,
    DecodeCandidate,
    Refusal,
)
from mooncake_store.conductor.service.extra_replicas import TakenBack

__all__ = ["DecisionLog", "Logged"]


@dataclass(frozen=True, slots=True)
class CopiesGone:
    """Copies that a request wanted and that were taken back: how many, and the last of them."""

    count: int
    unix_s: float
    idle_s: float

    def what(self) -> str:
        """Say it as a line of what became of the request."""
        return f"{self.count} of its copies taken back, nobody asked for {self.idle_s:.0f} s"


@dataclass(slots=True)
class Logged:
    """A decision as it is kept.

    Attributes:
        wall_s: When, by the clock of this host.
        took_s: What deciding took.
        seen: What was known; None: it was not looked at.
        became: What was reported of it since.
        gone: Of the copies that it wanted; None: all are still there.
    """

    decided: Decision | Refusal
    wall_s: float
    took_s: float
    num_tokens: int
    num_blocks: int
    seen: Seen | None
    became: list[tuple[float, str]]
    gone: CopiesGone | None = None


class DecisionLog:
    """A bounded log by request, and of replicas that were taken back; the oldest leave.

    Args:
        decisions_max: How many are kept of each.
        considered: What computes the terms of a decision again.
    """

    def __init__(self, decisions_max: int, considered: Considered) -> None:
        self._considered = considered
        self._max = decisions_max
        self._logged: OrderedDict[str, Logged] = OrderedDict()
        self._taken_back: deque[TakenBack] = deque(maxlen=decisions_max)

    def __len__(self) -> int:
        return len(self._logged)

    def add(self, logged: Logged) -> None:
        """Keep a decision; an earlier one about the same request goes."""
        name = logged.decided.request_id
        self._logged.pop(name, None)
        self._logged[name] = logged
        if len(self._logged) > self._max:
            self._logged.popitem(last=False)

    def note(self, request_id: str, wall_s: float, what: str) -> None:
        """Add what became of a request."""
        found = self._logged.get(request_id)
        if found is not None and len(found.became) < 16:
            found.became.append((wall_s, what))

    def add_taken_back(self, one: TakenBack) -> None:
        """Keep what became of a replica, with the request that it was made for too."""
        self._taken_back.append(one)
        found = self._logged.get(one.extra.wanted_by)
        if found is None or one.outcome != "done":
            return
        count = 1 if found.gone is None else found.gone.count + 1
        found.gone = CopiesGone(count, one.unix_s, one.idle_s)  # a prompt has many blocks: one line

    def taken_back(self, count_max: int) -> list[dict[str, Any]]:
        """Return the last replicas that were to be taken back as JSON documents, newest first."""
        return [
            {
                "unix_s": one.unix_s,
                "key": one.extra.key,
                "server": one.extra.server,
                "outcome": one.outcome,
                "idle_seconds": one.idle_s,
                "replicas_without": one.extra.had,
                "size_bytes": one.extra.size_bytes,
                "request_id": one.extra.wanted_by or None,
            }
            for one in itertools.islice(reversed(self._taken_back), count_max)
        ]

    def find(self, request_id: str) -> dict[str, Any] | None:
        """Return all about a decision as a JSON document, or None."""
        found = self._logged.get(request_id)
        if found is None:
            return None
        decided, became, seen = found.decided, list(found.became), found.seen
        candidates: list[Candidate] = []
        decode: list[DecodeCandidate] = []
        if seen is not None:
            candidates = self._considered.prefill(seen, found.num_tokens, decided)
            decode = self._considered.decode(seen, found.num_tokens, decided)
        if found.gone is not None:
            became.append((found.gone.unix_s, found.gone.what()))
            became.sort(key=lambda one: one[0])
        return {
            "request_id": decided.request_id,
            "accepted": isinstance(decided, Decision),
            "decided_unix_s": found.wall_s,
            "decision_seconds": found.took_s,
            "num_tokens": found.num_tokens,
            "num_blocks": found.num_blocks,
            "decision": {name: value for name, value in asdict(decided).items() if name != "move"},
            "moved_blocks": len(decided.move) if isinstance(decided, Decision) else 0,
            "candidates": [asdict(one) for one in candidates],
            "decode_candidates": [asdict(one) for one in decode],
            "became": [{"unix_s": when_s, "what": what} for when_s, what in became],
        }
