"""By which number a location names a server, over leaders, when nodes are forgotten and join.

Node X stores an object, is away, is forgotten and comes back; node Y needs the number that was
X's, for there is no other one. A client has a location or a grant of one of them. What was granted
at one node must not be used at another: the page there may hold another part of the same version,
or be open for another writer. Tombstones are another part's matter: here an object is removed
without one when the leader knows of nobody who could bring it back.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import NamedTuple

__all__ = ["RULES", "START", "successors"]

RULES = {
    "number_kept": (
        "a server is adopted only when the coordinator keeps its number and its membership; "
        "without: it hears of them later, or never"
    ),
    "number_rests": (
        "a forgotten node's number is given to another one only by a later leader than the one "
        "that forgot it"
    ),
    "number_checked": (
        "a client goes to a node with a location or grant only if leaders of its epoch or an "
        "earlier one, and of its epoch or a later one, have named the node to it by that number"
    ),
    "unknown_strikes": (
        "what a node brings that has no number at the coordinator does not count, nor does what a "
        "forgotten one had when it was forgotten"
    ),
}
EPOCHS_MAX = 3
X, Y = "x", "y"


class Location(NamedTuple):
    """Of a look-up or a put."""

    node: str  # whom the leader meant
    epoch: int  # of that leader
    is_grant: bool


class Known(NamedTuple):
    """Whom the client knows by the number, and the epochs whose leaders have told it."""

    node: str
    first: int
    last: int


class State(NamedTuple):
    epoch: int
    kept: str  # whose the number is, and ...
    has_other_kept: bool  # ... whether X has another one, and ...
    members: frozenset[str]  # ... who is a member, at the coordinator
    number: str  # the same to the leader
    has_other: bool
    expected: frozenset[str]
    adopted: frozenset[str]
    forgotten_in: int  # epoch in which X was forgotten
    is_away: bool  # X cannot be reached
    is_stored: bool  # X has an object; its put was acknowledged
    is_struck: bool  # and the coordinator says that it does not count
    is_removed: bool  # a remove was acknowledged meanwhile
    is_lost: bool  # X has been forgotten since: the object may be missing
    location: Location | None
    client: Known | None


START = State(
    1,
    "",
    False,
    frozenset(),
    "",
    False,
    frozenset(),
    frozenset(),
    0,
    False,
    False,
    False,
    False,
    False,
    None,
    None,
)
Moves = Iterator[tuple[str, State, "str | None"]]


def successors(rules: frozenset[str]) -> Callable[[State], Moves]:
    def kept(state: State) -> State:
        return state._replace(
            kept=state.number, has_other_kept=state.has_other, members=state.expected
        )

    def join(state: State) -> Moves:
        if X not in state.adopted and not state.is_away:
            is_known = state.number == X or state.has_other
            is_struck = state.is_struck if is_known else "unknown_strikes" in rules
            after = state._replace(
                # When the number is Y's, X gets another one, of which nobody has locations here.
                number=state.number or X,
                has_other=state.has_other or state.number == Y,
                expected=state.expected | {X},
                adopted=state.adopted | {X},
                is_stored=state.is_stored and not is_struck,
                is_struck=False,
            )
            wrong = None
            if after.is_stored and state.is_removed:
                wrong = "S4: what was removed is there again"
            if state.is_stored and is_struck and not (state.is_removed or state.is_lost):
                wrong = "S3: an acknowledged put does not count"
            if "number_kept" in rules:
                after = kept(after)
            yield f"X joins under leader {state.epoch}", after, wrong
        is_free = state.number == X and X not in state.expected
        if is_free and "number_rests" in rules:
            is_free = state.forgotten_in < state.epoch
        if Y not in state.adopted and (state.number in ("", Y) or is_free):
            after = state._replace(
                number=Y,
                expected=state.expected | {Y},
                adopted=state.adopted | {Y},
                is_struck=state.is_struck and state.number != X,
            )
            if "number_kept" in rules:
                after = kept(after)
            yield f"Y joins under leader {state.epoch}", after, None

    def lead(state: State) -> Moves:
        if kept(state) != state:
            yield "the coordinator is told, late", kept(state), None
        if state.epoch < EPOCHS_MAX:
            after = state._replace(
                epoch=state.epoch + 1,
                number=state.kept,
                has_other=state.has_other_kept,
                expected=state.members,
                adopted=frozenset(),
            )
            yield f"leader {after.epoch} is elected", after, None
        if X in state.expected and X not in state.adopted:
            after = state._replace(
                expected=state.expected - {X},
                is_struck=state.is_stored and "unknown_strikes" in rules,
                is_lost=True,
                forgotten_in=state.epoch,
            )
            yield f"leader {state.epoch} forgets X", kept(after), None

    def work(state: State) -> Moves:
        if X in state.adopted:
            after = state._replace(is_stored=True, is_struck=False, is_removed=False, is_lost=False)
            yield "an object is put at X", after, None
            gone = state._replace(is_away=True, adopted=state.adopted - {X})
            yield "X is away", gone, None
        if state.is_away:
            yield "X can be reached again", state._replace(is_away=False), None
        if state.is_stored and X not in state.expected:
            yield "the object is removed", state._replace(is_removed=True), None

    def ask(state: State) -> Moves:
        if state.number not in state.adopted:
            return
        if state.location is None:
            for is_grant in (False, True):
                location = Location(state.number, state.epoch, is_grant)
                what = "grant" if is_grant else "location"
                yield (
                    f"the client gets a {what} at {state.number}",
                    state._replace(location=location),
                    None,
                )
        told = Known(state.number, state.epoch, state.epoch)
        if state.client is not None and state.client.node == state.number:
            told = state.client._replace(last=state.epoch)
        if told != state.client:
            yield f"the client learns of {told.node}", state._replace(client=told), None

    def use(state: State) -> Moves:
        location, client = state.location, state.client
        if location is None:
            return
        yield "it is done with", state._replace(location=None), None
        if client is None or (location.is_grant and location.epoch < state.epoch):
            return  # of the second the server says: write_epoch
        is_named = client.first <= location.epoch <= client.last
        if is_named or "number_checked" not in rules:
            wrong = None
            if client.node != location.node:
                rule = "S2: a grant" if location.is_grant else "S1: a location"
                wrong = f"{rule} at {location.node} is used at {client.node}"
            yield f"the client goes to {client.node}", state, wrong

    def moves(state: State) -> Moves:
        for part in (join, lead, work, ask, use):
            yield from part(state)

    return moves
