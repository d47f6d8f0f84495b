"""One WRITE with its SEAL, sent again over another connection when the first has ended unanswered.

Nobody knows what became of the first attempt: it may lie in the server's buffers, be half copied,
or be sealed. The client learns of an answer only over a connection that is there. When its call
has ended it uses its buffer for something else, and the master frees what failed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import NamedTuple

__all__ = ["RULES", "START", "successors"]

RULES = {
    "seal_again": (
        "of an extent whose word is (version, live) a WRITE of that version places nothing, and a "
        "SEAL is only answered"
    ),
    "again_busy": "a SEAL of one attempt is answered BUSY while another one is still copying",
    "source_busy": (
        "after BUSY the SEAL alone is sent again, but what was copied from shared memory with it: "
        "a SEAL may arrive when the other attempt has copied what the client put there since"
    ),
    "source_open": (
        "what was copied from shared memory is sealed only while its connection is there: the "
        "client uses that memory for something else afterwards"
    ),
}
ATTEMPTS_MAX = 2
UNUSED, OURS, FREED, NEXT = "unused", "live", "freed", "another object's"
DATA, OTHER = "data", "other bytes"


class Attempt(NamedTuple):
    at: str  # sent, copying, copied, busy, answered, over
    is_open: bool  # its connection, as the client knows it


class State(NamedTuple):
    attempts: tuple[Attempt, ...]
    is_shared: bool  # the server copies from shared memory when it gets to it
    word: str
    page: str
    buffer: str
    call: str  # begun, stored, failed


Steps = Iterator[tuple[str, State, str | None]]
START = State((), False, UNUSED, "", DATA, "")


def _with(state: State, n: int, attempt: Attempt) -> State:
    return state._replace(attempts=(*state.attempts[:n], attempt, *state.attempts[n + 1 :]))


def _is_used_but_by(state: State, n: int) -> bool:
    return any(
        other.at in ("copying", "copied") for m, other in enumerate(state.attempts) if m != n
    )


def _client(state: State) -> Steps:
    if state.call == "":
        yield "the bytes go in the frame", state._replace(call="begun"), None
        yield "they lie in shared memory", state._replace(call="begun", is_shared=True), None
    if state.call == "begun":
        waits = any(attempt.is_open for attempt in state.attempts)
        if not waits and len(state.attempts) < ATTEMPTS_MAX:
            sent = (*state.attempts, Attempt("sent", True))
            yield f"attempt {len(sent)} is sent", state._replace(attempts=sent), None
        for n, attempt in enumerate(state.attempts):
            if attempt.is_open and attempt.at == "answered":
                yield f"attempt {n + 1} is answered: stored", state._replace(call="stored"), None
        closed = tuple(attempt._replace(is_open=False) for attempt in state.attempts)
        ended = state._replace(attempts=closed, call="failed")
        yield "the call's deadline has come: it closes its connection and fails", ended, None
    elif state.call != "" and state.buffer == DATA:
        yield "the buffer is used for something else", state._replace(buffer=OTHER), None


def _network(state: State) -> Steps:
    for n, attempt in enumerate(state.attempts):
        if attempt.is_open and state.call == "begun":
            broken = _with(state, n, attempt._replace(is_open=False))
            yield f"the connection of attempt {n + 1} breaks", broken, None


def _master(state: State) -> Steps:
    if state.call == "failed" and state.word in (UNUSED, OURS):
        yield "the master frees what failed", state._replace(word=FREED), None
    if state.word == FREED and not _is_used_but_by(state, -1):
        other = state._replace(word=NEXT, page="the other's")
        yield "nobody uses the page: another object is put there", other, None


def _begin(state: State, n: int, rules: frozenset[str]) -> Steps:
    attempt = state.attempts[n]
    if state.word == OURS and "seal_again" in rules:
        yield (
            f"attempt {n + 1} finds its version sealed: COMPLETE",
            _with(state, n, attempt._replace(at="answered")),
            None,
        )
    elif state.word in (UNUSED, OURS):
        yield (
            f"the server begins to copy attempt {n + 1}",
            _with(state, n, attempt._replace(at="copying")),
            None,
        )
    else:
        yield (
            f"attempt {n + 1} finds a higher word: GONE",
            _with(state, n, attempt._replace(at="over")),
            None,
        )


def _copy(state: State, n: int) -> Steps:
    placed = state.buffer if state.is_shared else DATA
    after = _with(state, n, state.attempts[n]._replace(at="copied"))._replace(page=placed)
    wrong = None
    if state.word == OURS and placed != state.page:
        wrong = f"S1: attempt {n + 1} changes bytes under the word of its own version"
    if state.word == NEXT:
        wrong = f"S2: attempt {n + 1} writes into the page of another object"
    yield f"attempt {n + 1} is copied: {placed}", after, wrong


def _again(state: State, n: int) -> Steps:
    if state.call == "begun" and state.attempts[n].is_open:
        sent = _with(state, n, state.attempts[n]._replace(at="sent"))
        yield f"attempt {n + 1} is sent again, with what is to be copied", sent, None


def _seal(state: State, n: int, rules: frozenset[str]) -> Steps:
    """The copy's use is given back, and the seal is looked at, in one step.

    One that is sent again after BUSY may be in the server's buffers when its connection ends.
    """
    attempt = state.attempts[n]
    is_cancelled = state.is_shared and attempt.at == "copied" and not attempt.is_open
    if is_cancelled and "source_open" in rules:
        over = _with(state, n, attempt._replace(at="over"))
        yield f"attempt {n + 1} is not sealed: its writer has gone", over, None
    elif _is_used_but_by(state, n) and "again_busy" in rules:
        if attempt.at != "busy":
            busy = _with(state, n, attempt._replace(at="busy"))
            yield f"the seal of attempt {n + 1} is answered BUSY", busy, None
    elif state.word == UNUSED:
        sealed = _with(state, n, attempt._replace(at="answered"))._replace(word=OURS)
        wrong = None
        if state.page != DATA:
            wrong = f"S1: attempt {n + 1} seals other bytes than the put's"
        yield f"attempt {n + 1} is sealed", sealed, wrong
    elif state.word == OURS:
        again = _with(state, n, attempt._replace(at="answered"))
        yield f"attempt {n + 1} is sealed already: only answered", again, None
    else:
        over = _with(state, n, attempt._replace(at="over"))
        yield f"the seal of attempt {n + 1} finds a higher word: GONE", over, None


def successors(rules: frozenset[str]) -> Callable[[State], Steps]:
    def following(state: State) -> Steps:
        yield from _client(state)
        yield from _network(state)
        yield from _master(state)
        for n, attempt in enumerate(state.attempts):
            if attempt.at == "sent":
                yield from _begin(state, n, rules)
            elif attempt.at == "copying":
                yield from _copy(state, n)
            elif attempt.at == "busy" and state.is_shared and "source_busy" in rules:
                yield from _again(state, n)
            elif attempt.at in ("copied", "busy"):
                yield from _seal(state, n, rules)

    return following
