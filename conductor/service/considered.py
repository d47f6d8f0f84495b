"""What a decision compared: the terms of each candidate, computed again when somebody asks.

A decision keeps what it knew as the bytes of the tables, which costs it a microsecond; most
decisions nobody ever asks about.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from mooncake_store._native import ffi as _ffi
from mooncake_store._native import lib
from mooncake_store.conductor.service.decision import (
    Candidate,
    Decision,
    DecodeCandidate,
    Reason,
    Refusal,
)

__all__ = ["Considered", "Seen"]

ffi: Any = _ffi

_ALIKE_S = 1e-9
_DECODE_REASONS = (Reason.TBT, Reason.DECODE_LOAD)


@dataclass(frozen=True, slots=True)
class Seen:
    """What was known when a request was decided.

    Attributes:
        prefill, decode: Rows of the tables.
        decode_slots: Whose the rows of `decode` are.
        cost: The cost model; it learns what transfers take.
        shown: Slots of the prefill table in use, and whether each was closed.
        names: Of the slots.
        output: Tokens of an answer that room is reserved for.
        tbt_slo_s: What a token may take.
    """

    prefill: bytes
    decode: bytes
    decode_slots: tuple[int, ...]
    cost: bytes
    shown: tuple[tuple[int, bool], ...]
    names: dict[int, str]
    output: float
    tbt_slo_s: float


class Considered:
    """Computes the terms by the policies themselves, each candidate as if it were the only one.

    Args:
        selection: `cd_selection *` of the policy.
        limits: `cd_decode_limits *`; its TBT is not looked at.
        is_plugged: The policy is a user's: only it knows what it compares.
        instances_max: Slots from here on are store servers'.
    """

    def __init__(
        self, selection: Any, limits: Any, *, is_plugged: bool, instances_max: int
    ) -> None:
        self._selection = selection
        self._limits: Any = ffi.new("cd_decode_limits *", limits[0])
        self._is_plugged = is_plugged
        self._instances_max = instances_max

    def prefill(self, seen: Seen, num_tokens: int, decided: Decision | Refusal) -> list[Candidate]:
        """Return who could have computed the prompt, with what each would have taken."""
        count = len(seen.prefill) // ffi.sizeof("cd_prefill_view")
        views = ffi.new("cd_prefill_view[]", count)
        ffi.memmove(views, seen.prefill, len(seen.prefill))
        cost = _cost_of(seen)
        choices: dict[int, Any] = {}
        if not self._is_plugged:
            slots = [slot for slot, _ in seen.shown if slot < self._instances_max]
            choices = self._alone(slots, views, count, cost, num_tokens)
        open_slots = [slot for slot, is_closed in seen.shown if not is_closed]
        best = self._best(seen, decided, open_slots, choices, views)
        found = []
        for slot, is_closed in seen.shown:
            view, choice = views[slot], choices.get(slot)
            source = choice.source if choice is not None else -1
            # The native choice has both in one number: the wait for the source, then the fetch.
            fetch_s = choice.transfer_s if choice is not None else 0.0
            ready_s = min(views[source].ready_s, fetch_s) if source >= 0 else 0.0
            found.append(
                Candidate(
                    name=seen.names.get(slot, f"slot {slot}"),
                    prefix_tokens=view.prefix_tokens,
                    queue_s=view.queue_s,
                    is_closed=is_closed,
                    requests=view.requests,
                    source=seen.names.get(source, f"slot {source}") if source >= 0 else None,
                    used_tokens=choice.prefix_tokens if choice is not None else None,
                    ready_s=ready_s if choice is not None else None,
                    transfer_s=fetch_s - ready_s if choice is not None else None,
                    prefill_s=choice.prefill_s if choice is not None else None,
                    ttft_s=choice.ttft_s if choice is not None else None,
                    why=self._why(slot, is_closed, best, decided, choices, views),
                )
            )
        return found

    def _alone(
        self, slots: list[int], views: Any, count: int, cost: Any, num_tokens: int
    ) -> dict[int, Any]:
        """Return what the policy chooses when only that instance is open; all may be sources."""
        alone = ffi.new("cd_prefill_view[]", count)
        ffi.memmove(alone, views, count * ffi.sizeof("cd_prefill_view"))
        for slot in range(count):
            alone[slot].is_closed = True
        choices: dict[int, Any] = {}
        for slot in slots:
            choices[slot] = ffi.new("cd_prefill_choice *")
            alone[slot].is_closed = False
            lib.cd_choose_prefill(self._selection, cost, num_tokens, alone, count, 0, choices[slot])
            alone[slot].is_closed = True
        return choices

    def _score(self, choice: Any, view: Any) -> tuple[float, Callable[[float], str]]:
        """Return what the policy compares, the least wins, and how to say a difference."""
        rule, selection = self._selection.rule, self._selection
        if rule == lib.CD_LEAST_TIME:
            return view.queue_s, lambda more: f"its queue is {more:.3f} s longer"
        if rule == lib.CD_LEAST_COUNT:
            return view.requests, lambda more: f"{more:.0f} requests more are on it"
        score = choice.ttft_s
        if rule == lib.CD_EARLIEST:
            score += (selection.work_weight + view.behind) * choice.prefill_s
            score += selection.copy_weight * choice.transfer_s
        if score != choice.ttft_s:
            return score, lambda more: f"{more:.3f} s more, with work and copies weighed"
        return score, lambda more: f"its first token would be {more:.3f} s later"

    def _best(
        self, seen: Seen, decided: Decision | Refusal, open_slots: list[int],
        choices: dict[int, Any], views: Any,
    ) -> int | None:  # fmt: skip
        """Return the slot that was chosen; of a refused request that would have been."""
        if isinstance(decided, Decision):
            slots = [slot for slot in open_slots if seen.names.get(slot) == decided.prefill]
            return slots[0] if slots else None
        if self._selection.rule == lib.CD_RANDOM or not choices:
            return None
        return min(
            (slot for slot in open_slots if slot in choices),
            key=lambda slot: self._score(choices[slot], views[slot])[0],
            default=None,
        )

    def _why(
        self, slot: int, is_closed: bool, best: int | None, decided: Decision | Refusal,
        choices: dict[int, Any], views: Any,
    ) -> str:  # fmt: skip
        if slot == best:
            return "chosen" if isinstance(decided, Decision) else "the best, but refused"
        if slot >= self._instances_max:
            return "a store server: only fetched from"
        if is_closed:
            return "draining or silent"
        if self._is_plugged:
            return "not named by the policy"
        if self._selection.rule == lib.CD_RANDOM:
            return "not drawn"
        if best is None:
            return ""
        score, said = self._score(choices[slot], views[slot])
        more = score - self._score(choices[best], views[best])[0]
        return said(more) if more > _ALIKE_S else "as good, but not its turn"

    def decode(
        self, seen: Seen, num_tokens: int, decided: Decision | Refusal
    ) -> list[DecodeCandidate]:
        """Return who could have decoded, with the request; empty: that did not come so far."""
        if isinstance(decided, Refusal) and decided.reason not in _DECODE_REASONS:
            return []
        views = ffi.new("cd_decode_view[]", len(seen.decode_slots))
        ffi.memmove(views, seen.decode, len(seen.decode))
        cost, choice = _cost_of(seen), ffi.new("cd_decode_choice *")
        self._limits.tbt_slo_s = seen.tbt_slo_s
        found: list[tuple[DecodeCandidate, float]] = []
        for row, slot in enumerate(seen.decode_slots):
            view = views[row]
            is_closed, view.is_closed = bool(view.is_closed), False
            lib.cd_choose_decode(
                cost, self._limits, num_tokens, seen.output, views + row, 1, 0, choice
            )
            name = seen.names.get(slot, f"slot {slot}")
            one = DecodeCandidate(
                name=name,
                batch=view.batch + view.promised,
                context_tokens=view.context_tokens + view.promised_tokens,
                tbt_s=choice.tbt_s,
                load=choice.load,
                is_closed=is_closed,
                why="",
            )
            found.append((one, choice.load))
        chosen = decided.decode if isinstance(decided, Decision) else None
        best = [load for one, load in found if one.name == chosen]
        best = best or [load for one, load in found if not one.is_closed]
        least = min(best, default=0.0)
        for one, load in found:
            one.why = _decode_why(one, load - least, chosen)
        return [one for one, _ in found]


def _decode_why(one: DecodeCandidate, more: float, chosen: str | None) -> str:
    if one.name == chosen:
        return "chosen"
    if one.is_closed:
        return "draining or silent"
    if more > _ALIKE_S:
        return f"its load would be {more:.3f} higher"
    if chosen is None:
        return "the best, but refused"
    if more < -_ALIKE_S:
        return "less loaded now, but not when the prefill ends"
    return "as good, but not its turn"


def _cost_of(seen: Seen) -> Any:
    cost = ffi.new("cd_cost *")
    ffi.memmove(cost, seen.cost, len(seen.cost))
    return cost
