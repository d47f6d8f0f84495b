"""One write over two rails: the slower attempt, and a buffer that is used again."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import NamedTuple

__all__ = ["RULES", "START", "successors"]

RULES = {
    "drain": (
        "a request is finished only when no attempt of it can touch its buffer or target any more"
    ),
}


class State(NamedTuple):
    """A slice's bytes are read out of the buffer when they leave the NIC."""

    attempts: tuple[str, ...]  # per rail: none, sent, landed, cut
    page: str
    buffer: str
    is_finished: bool


START = State(("none", "none"), "old", "data", False)
Steps = Iterator[tuple[str, State, str | None]]


def successors(rules: frozenset[str]) -> Callable[[State], Steps]:
    drains = "drain" in rules

    def rails(state: State) -> Steps:
        for rail, at in enumerate(state.attempts):
            before, behind = state.attempts[:rail], state.attempts[rail + 1 :]
            if at == "none" and not state.is_finished:
                sent = state._replace(attempts=(*before, "sent", *behind))
                yield f"the slice is posted on rail {rail}", sent, None
            if at == "sent":
                landed = state._replace(attempts=(*before, "landed", *behind), page=state.buffer)
                bad = None
                if state.is_finished and state.buffer != "data":
                    bad = "S1: a late attempt writes other bytes into an object that is committed"
                yield f"rail {rail} writes what the buffer holds now", landed, bad

    def following(state: State) -> Steps:
        yield from rails(state)
        is_pending = "sent" in state.attempts
        if state.is_finished:
            if state.buffer == "data":
                used = state._replace(buffer="something else")
                yield "the application uses its buffer for something else", used, None
            return
        if "landed" in state.attempts and not (is_pending and drains):
            finished = state._replace(is_finished=True)
            yield "the request is finished, the put is acknowledged", finished, None
        if is_pending and drains:
            cut = tuple("cut" if at == "sent" else at for at in state.attempts)
            yield (
                "the slow rail's queue pair is put in error and drained",
                state._replace(attempts=cut),
                None,
            )

    return following
