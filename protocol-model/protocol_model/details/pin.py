"""What the master counts of a session's pins of one key, and what the client believes.

A client pins and unpins over several connections. A master that is slow, or was frozen, handles
what lies in them as late as it likes and in any order, also what nobody waits for any more; frames
and answers are lost with their connections. Pins end with their session, which the master may end
at any time; another thread of the client may open the next one in the middle of a call.

The client keeps a count of what it holds. A call that was not answered leaves it unsure: its keeper
then states that count (PINS). Pins nest: two threads may hold the same key.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import NamedTuple

__all__ = ["RULES", "START", "successors"]

RULES = {
    "pins_stated": (
        "a PIN or UNPIN that was not answered is followed by a PINS, repeated until it is answered"
    ),
    "pins_exact": "PINS states how often a key is pinned; twice is as good as once",
    "pins_floor": (
        "PIN, UNPIN and PINS are numbered in their session; what comes after a PINS with a higher "
        "number is refused"
    ),
    "pins_alone": (
        "while a PINS is under way the client sends no PIN and no UNPIN, nor waits for one"
    ),
    "pins_session": "a call during which the client's session was replaced counts as not answered",
}
CALLERS = 2
CALLS_MAX = 3
NUMBERS_MAX = 5
SESSIONS = 2


class Frame(NamedTuple):
    """On its way to the master."""

    method: str  # pin, unpin, pins
    number: int
    session: int
    times: int  # pins: how many
    caller: int  # who waits for the answer; the last is the keeper


class Call(NamedTuple):
    at: str = "idle"  # idle, waiting, answered, refused
    method: str = ""
    number: int = 0
    session: int = 0  # of the client when it began
    times: int = 0


class State(NamedTuple):
    calls: tuple[Call, ...] = (Call(),) * (CALLERS + 1)
    frames: frozenset[Frame] = frozenset()
    number: int = 0
    begun: int = 0
    held: int = 0  # the client's times
    is_unsure: bool = False
    session: int = 1  # the client's
    times: int = 0  # the master's
    floor: int = 0
    alive: int = 1  # the session that the master knows
    losses: int = 1

    def with_call(self, caller: int, call: Call) -> State:
        return self._replace(calls=(*self.calls[:caller], call, *self.calls[caller + 1 :]))


START = State()
Steps = Iterator[tuple[str, State, str | None]]
KEEPER = CALLERS


def _judged(state: State) -> str | None:
    is_quiet = all(call.at == "idle" for call in state.calls)
    if not is_quiet or state.is_unsure or state.session != state.alive:
        return None
    if state.times < state.held:
        return "S3: what the client was told is pinned is not"
    if state.times > state.held:
        return "L1: the master keeps a pin that nobody holds"
    return None


def successors(rules: frozenset[str]) -> Callable[[State], Steps]:
    def send(state: State, caller: int, method: str, times: int = 0) -> State:
        number = state.number + 1
        frame = Frame(method, number, state.session, times, caller)
        call = Call("waiting", method, number, state.session, times)
        sent = state._replace(number=number, frames=state.frames | {frame})
        return sent.with_call(caller, call)

    def ask(state: State) -> Iterator[tuple[str, State]]:
        is_stating = state.calls[KEEPER].at != "idle"
        if state.begun >= CALLS_MAX or (is_stating and "pins_alone" in rules):
            return
        for caller in range(CALLERS):
            if state.calls[caller].at != "idle":
                continue
            fewer = state._replace(begun=state.begun + 1)
            yield f"caller {caller} pins", send(fewer, caller, "pin")
            leaving = sum(c.method == "unpin" for c in state.calls[:CALLERS] if c.at != "idle")
            if state.held > leaving:
                yield f"caller {caller} unpins", send(fewer, caller, "unpin")

    def ask_nobody(state: State) -> Iterator[tuple[str, State]]:
        leaving = sum(c.method == "unpin" for c in state.calls[:CALLERS] if c.at != "idle")
        if state.begun < CALLS_MAX and state.held > leaving and "pins_stated" in rules:
            unpinned = state._replace(begun=state.begun + 1, held=state.held - 1, is_unsure=True)
            yield "a caller unpins, and cannot ask", unpinned

    def state_pins(state: State) -> Iterator[tuple[str, State]]:
        is_alone = all(call.at == "idle" for call in state.calls[:CALLERS])
        if state.calls[KEEPER].at != "idle" or state.number >= NUMBERS_MAX:
            return
        if state.is_unsure and (is_alone or "pins_alone" not in rules):
            yield f"the keeper states {state.held}", send(state, KEEPER, "pins", state.held)

    def hear(state: State, caller: int, call: Call) -> Iterator[tuple[str, State]]:
        idle = state.with_call(caller, Call())
        is_same = call.session == state.session or "pins_session" not in rules
        if call.at == "waiting":
            yield f"caller {caller} waits no longer", unheard(idle, call)
        elif call.at == "lost":
            # Nothing of it was done, and the session is replaced; the call fails here.
            yield f"caller {caller} hears that its session is lost", unheard(renewed(idle), call)
        elif call.at == "refused" or not is_same:
            yield f"caller {caller} hears what is too late", unheard(idle, call)
        elif call.method == "pins":
            is_sure = state.held == call.times
            yield "the keeper hears", idle._replace(is_unsure=state.is_unsure and not is_sure)
        else:
            one = 1 if call.method == "pin" else -1
            yield f"caller {caller} hears", idle._replace(held=max(0, state.held + one))

    def unheard(state: State, call: Call) -> State:
        # Who unpins is done with it, whatever the master heard; who pins is told that it failed.
        held = max(0, state.held - 1) if call.method == "unpin" else state.held
        is_unsure = state.is_unsure or "pins_stated" in rules
        return state._replace(held=held, is_unsure=is_unsure)

    def renewed(state: State) -> State:
        if state.session == state.alive:
            return state
        return state._replace(session=state.alive, is_unsure=True)

    def handle(state: State, frame: Frame) -> Iterator[tuple[str, State]]:
        call = state.calls[frame.caller]
        is_waited_for = call.at == "waiting" and call.number == frame.number

        def answered(after: State, at: str) -> State:
            after = after._replace(frames=state.frames - {frame})
            return after.with_call(frame.caller, call._replace(at=at)) if is_waited_for else after

        what = f"the master handles {frame.method} {frame.number}"
        if frame.session != state.alive:
            yield f"{what}: no such session", answered(state, "lost")
        elif frame.number <= state.floor and "pins_floor" in rules:
            yield f"{what}: too late", answered(state, "refused")
        elif frame.method == "pins":
            times = frame.times if "pins_exact" in rules else state.times + frame.times
            yield what, answered(state._replace(times=times, floor=frame.number), "answered")
        else:
            one = 1 if frame.method == "pin" else -1
            after = state._replace(times=max(0, state.times + one))
            yield what, answered(after, "answered")

    def moves(state: State) -> Iterator[tuple[str, State]]:
        yield from ask(state)
        yield from ask_nobody(state)
        yield from state_pins(state)
        for caller, call in enumerate(state.calls):
            if call.at != "idle":
                yield from hear(state, caller, call)
        for frame in state.frames:
            yield from handle(state, frame)
            if state.losses:
                lost = state._replace(losses=state.losses - 1, frames=state.frames - {frame})
                yield f"{frame.method} {frame.number} is lost", lost
        if state.alive < SESSIONS:
            yield (
                "the session ends by silence",
                state._replace(alive=state.alive + 1, times=0, floor=0),
            )
        if state.session != state.alive:
            yield "another thread finds the session lost, and opens the next", renewed(state)

    def following(state: State) -> Steps:
        for label, after in moves(state):
            yield label, after, _judged(after)

    return following
