"""Notes (ANNOTATE) of one stored object with a holder on each of two servers.

What is noted (flags, expiry) is the ordinal of the request.  Any NOTE may come late, twice or
never, leaders follow each other, a server may be killed and compacts its log.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import NamedTuple, TypeVar

__all__ = ["RULES", "START", "successors"]

RULES = {
    "note_order": (
        "a server takes a NOTE only if its number is above the one it has; else it only answers"
    ),
    "note_number": (
        "the number is the leader's next version; without: a counter that begins anew with each "
        "leader"
    ),
    "note_logged": "the record is in the log before NOTE is answered",
    "note_compact": "compaction keeps the note and its number",
    "note_all": "ANNOTATE is answered when all holders have answered",
}
REQUESTS_MAX = 2
T = TypeVar("T")


class Note(NamedTuple):
    number: tuple[int, int]
    ordinal: int


class Request(NamedTuple):
    note: Note
    waits_for: frozenset[int]


class Leader(NamedTuple):
    epoch: int
    note: Note
    sequence: int
    adopted: frozenset[int]
    request: Request | None


class Server(NamedTuple):
    epoch: int
    note: Note
    logged: Note


class Frame(NamedTuple):
    is_answer: bool
    epoch: int
    server: int
    note: Note


class State(NamedTuple):
    leaders: tuple[Leader, ...]
    servers: tuple[Server, ...]
    network: frozenset[Frame]
    told: int  # ordinal that was acknowledged
    asked: int
    elections: int
    kills: int
    duplicates: int


FIRST = Note((1, 0), 0)
NOBODY = Leader(0, FIRST, 0, frozenset(), None)
START = State(
    (Leader(1, FIRST, 0, frozenset({0, 1}), None), NOBODY),
    (Server(1, FIRST, FIRST), Server(1, FIRST, FIRST)),
    frozenset(),
    0,
    0,
    1,
    1,
    1,
)
Moves = Iterator[tuple[str, State]]
Steps = Iterator[tuple[str, State, str | None]]


def _put(items: tuple[T, ...], at: int, now: T) -> tuple[T, ...]:
    return (*items[:at], now, *items[at + 1 :])


def _judged(state: State) -> str | None:
    """A leader that takes over may find any one of the holders only."""
    for s, server in enumerate(state.servers):
        if server.note.ordinal < state.told:
            return (
                f"S3: server {s} has note {server.note.ordinal}, note {state.told} was acknowledged"
            )
    return None


def successors(rules: frozenset[str]) -> Callable[[State], Steps]:
    def lead(state: State, i: int, leader: Leader) -> Moves:
        newest = max(other.epoch for other in state.leaders)
        for s, server in enumerate(state.servers):
            if leader.epoch and leader.epoch >= server.epoch and s not in leader.adopted:
                note = max(leader.note, server.note)
                told = leader._replace(note=note, adopted=leader.adopted | {s})
                raised = server._replace(epoch=leader.epoch)
                yield (
                    f"leader {leader.epoch} adopts server {s}",
                    state._replace(
                        leaders=_put(state.leaders, i, told), servers=_put(state.servers, s, raised)
                    ),
                )
            if s in leader.adopted and server.note.number < leader.note.number:
                again = state.network | {Frame(False, leader.epoch, s, leader.note)}
                if again != state.network:
                    yield (
                        f"leader {leader.epoch} tells server {s}, which is behind",
                        state._replace(network=again),
                    )
        request = leader.request
        if request is None:
            if leader.adopted and state.asked < REQUESTS_MAX:
                yield ask(state, i, leader)
            return
        idle = state._replace(leaders=_put(state.leaders, i, leader._replace(request=None)))
        is_done = not request.waits_for or (len(request.waits_for) == 1 and "note_all" not in rules)
        if is_done and leader.epoch == newest:  # leader_clock
            yield (
                f"leader {leader.epoch} acknowledges request {request.note.ordinal}",
                idle._replace(told=max(state.told, request.note.ordinal)),
            )
        yield f"leader {leader.epoch} gives request {request.note.ordinal} up: it fails", idle

    def ask(state: State, i: int, leader: Leader) -> tuple[str, State]:
        epoch = leader.epoch if "note_number" in rules else 1
        note = Note((epoch, leader.sequence + 1), state.asked + 1)
        asking = leader._replace(
            note=note, sequence=leader.sequence + 1, request=Request(note, frozenset({0, 1}))
        )
        frames = {Frame(False, leader.epoch, s, note) for s in (0, 1)}
        after = state._replace(
            leaders=_put(state.leaders, i, asking),
            network=state.network | frames,
            asked=state.asked + 1,
        )
        return f"leader {leader.epoch} takes request {note.ordinal}", after

    def elect(state: State) -> Moves:
        if state.elections:
            epoch = max(leader.epoch for leader in state.leaders) + 1
            slot = 0 if state.leaders[1].epoch == epoch - 1 else 1
            leaders = _put(state.leaders, slot, NOBODY._replace(epoch=epoch))
            after = state._replace(leaders=leaders, elections=state.elections - 1)
            yield f"leader {epoch} is elected", after

    def deliver(state: State, frame: Frame) -> Moves:
        """The frame is no longer in the network, or is there once more."""
        s, note = frame.server, frame.note
        if frame.is_answer:
            for i, leader in enumerate(state.leaders):
                request = leader.request
                if leader.epoch == frame.epoch and request and request.note == note:
                    left = request._replace(waits_for=request.waits_for - {s})
                    leaders = _put(state.leaders, i, leader._replace(request=left))
                    label = f"leader {leader.epoch} has the answer of server {s} to {note.ordinal}"
                    yield label, state._replace(leaders=leaders)
            return
        server = state.servers[s]
        if frame.epoch != server.epoch:
            return
        if note.number > server.note.number or "note_order" not in rules:
            server = server._replace(note=note)
        if "note_logged" in rules:
            server = server._replace(logged=server.note)
        after = state._replace(
            servers=_put(state.servers, s, server),
            network=state.network | {frame._replace(is_answer=True)},
        )
        yield f"server {s} handles NOTE {note.ordinal}, has {server.note.ordinal}", after

    def fail(state: State, s: int, server: Server) -> Moves:
        if state.kills:
            restarted = server._replace(note=server.logged)
            after = state._replace(servers=_put(state.servers, s, restarted), kills=state.kills - 1)
            yield f"server {s} is killed and restarted", after
        if server.logged != FIRST and "note_compact" not in rules:
            compacted = _put(state.servers, s, server._replace(logged=FIRST))
            yield f"server {s} compacts its log", state._replace(servers=compacted)

    def moves(state: State) -> Moves:
        for i, leader in enumerate(state.leaders):
            yield from lead(state, i, leader)
        yield from elect(state)
        for frame in state.network:
            yield from deliver(state._replace(network=state.network - {frame}), frame)
            if state.duplicates and not frame.is_answer:
                yield from deliver(state._replace(duplicates=state.duplicates - 1), frame)
        for s, server in enumerate(state.servers):
            yield from fail(state, s, server)

    def following(state: State) -> Steps:
        for label, after in moves(state):
            yield label, after, _judged(after)

    return following
