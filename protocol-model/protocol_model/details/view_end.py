"""How views of one object begin and end while their server is killed and messages are lost.

One process has several views of the same object. The server's table of views outlives it
(*views_persist*), and pages under a view of the table are not granted again (*freed_waits*); so a
view that only the table knows costs its pages for as long as the process lives, and one that only
the process knows is of pages that may become another object's. A message and its answer are on a
connection of their own; what is on it ends with it, and the process sees that it has ended.
Messages on two connections are handled in any order, and those of a frozen server as late as it
likes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import NamedTuple

__all__ = ["RULES", "START", "successors"]

RULES = {
    "open_settled": (
        "a VIEW_OPEN whose answer comes late, or whose connection ends without one, is followed "
        "by a VIEW_CLOSE: the view may be open"
    ),
    "close_follows": (
        "no VIEW_CLOSE is sent for a VIEW_OPEN that may still be handled: its connection is kept "
        "until the answer, or its end"
    ),
    "close_repeated": "VIEW_CLOSE is repeated until it is answered, to the server's next life too",
    "close_tagged": (
        "a VIEW_CLOSE names the tag of its view, and ends no other view of the same object"
    ),
}
VIEWS = 2
CLOSES_MAX = 2  # of one view under way at a time


class View(NamedTuple):
    """One view: what its process knows, and what is under way."""

    # idle, asking; late: nobody waits for the answer any more; open: somebody looks at it;
    # owed: VIEW_CLOSE is to be sent; closing: it has been; ended
    at: str = "idle"
    opening: str = ""  # its VIEW_OPEN: sent, or answered with opened or gone; "": none
    closes: int = 0  # VIEW_CLOSEs not yet handled
    is_answered: bool = False  # the answer to one is under way


class State(NamedTuple):
    views: tuple[View, ...]
    table: frozenset[int]  # the views that the server counts
    page: str  # live; freed; granted: it is another object's
    is_up: bool
    kills: int
    losses: int

    def with_view(self, number: int, view: View) -> State:
        return self._replace(views=(*self.views[:number], view, *self.views[number + 1 :]))


START = State((View(),) * VIEWS, frozenset(), "live", True, 2, 2)
Steps = Iterator[tuple[str, State, str | None]]


def _judged(state: State) -> str | None:
    if state.page == "granted" and any(view.at == "open" for view in state.views):
        return "S2: a page that somebody looks at is granted to another object"
    is_over = all(
        view.at in ("idle", "ended") and view.opening != "sent" and not view.closes
        for view in state.views
    )
    if is_over and state.table:
        return "L1: nobody looks any more, and the page is never free"
    return None


def successors(rules: frozenset[str]) -> Callable[[State], Steps]:
    def ask(state: State, n: int, view: View) -> Iterator[tuple[str, State]]:
        """What the process does to have a view."""
        # Views are alike: the first ones go first.
        is_next = n == 0 or state.views[n - 1].at != "idle"
        if view.at == "idle" and is_next and state.is_up:
            asking = view._replace(at="asking", opening="sent")
            yield f"view {n} is asked for", state.with_view(n, asking)
        if view.at not in ("asking", "late"):
            return
        if view.opening == "opened":
            after = "open" if view.at == "asking" else unknown()
            yield f"the process hears that view {n} is {after}", told(state, n, after)
        elif view.opening == "gone":
            yield f"the process hears that view {n} is not there", told(state, n, "ended")
        elif not view.opening:
            yield f"the connection of view {n} has ended", told(state, n, unknown())
        if view.at == "asking" and view.opening:
            after = "late" if "close_follows" in rules else unknown()
            yield f"view {n} is waited for no longer", state.with_view(n, view._replace(at=after))

    def unknown() -> str:
        return "owed" if "open_settled" in rules else "ended"

    def told(state: State, n: int, at: str) -> State:
        return state.with_view(n, state.views[n]._replace(at=at, opening=""))

    def end(state: State, n: int, view: View) -> Iterator[tuple[str, State]]:
        """What the process does to be rid of a view."""
        if view.at == "open":
            yield f"nobody looks at view {n} any more", told(state, n, "owed")
        if view.at == "owed" and state.is_up and view.closes < CLOSES_MAX:
            sent = view._replace(at="closing", closes=view.closes + 1, is_answered=False)
            yield f"a close of view {n} is sent", state.with_view(n, sent)
        if view.at == "closing":
            if view.is_answered:
                ended = view._replace(at="ended", is_answered=False)
                yield f"the process hears that view {n} has ended", state.with_view(n, ended)
            at = "owed" if "close_repeated" in rules else "ended"
            unheard = view._replace(at=at, is_answered=False)
            yield f"the close of view {n} is not answered in time", state.with_view(n, unheard)

    def serve(state: State, n: int, view: View) -> Iterator[tuple[str, State]]:
        if view.opening == "sent":
            is_opened = state.page == "live"
            answered = view._replace(opening="opened" if is_opened else "gone")
            counted = state.table | {n} if is_opened else state.table
            yield (
                f"the server handles the open of view {n}",
                state.with_view(n, answered)._replace(table=counted),
            )
        if view.closes:
            handled = state.with_view(
                n,
                view._replace(closes=view.closes - 1, is_answered=view.at == "closing"),
            )
            named = {n} if "close_tagged" in rules else set(range(VIEWS))
            for one in sorted(state.table & named):
                yield (
                    f"the server handles a close of view {n}, and ends view {one}",
                    handled._replace(table=state.table - {one}),
                )
            if not state.table & named:
                yield f"the server handles a close of view {n}, and finds none", handled

    def lose(state: State, n: int, view: View) -> Iterator[tuple[str, State]]:
        fewer = state._replace(losses=state.losses - 1)
        if view.opening:
            # A server opens no view for a connection that has ended.
            yield (
                f"the connection of view {n}'s open is cut",
                fewer.with_view(n, view._replace(opening="")),
            )
        if view.closes:
            yield (
                f"a close of view {n} is lost",
                fewer.with_view(n, view._replace(closes=view.closes - 1)),
            )
        if view.is_answered:
            yield (
                f"the answer to a close of view {n} is lost",
                fewer.with_view(n, view._replace(is_answered=False)),
            )

    def free(state: State) -> Iterator[tuple[str, State]]:
        if state.page == "live":
            yield "the object is removed, FREE clears its word", state._replace(page="freed")
        if state.page == "freed" and not state.table:
            yield "no view counts, and the page is granted", state._replace(page="granted")

    def moves(state: State) -> Iterator[tuple[str, State]]:
        for n, view in enumerate(state.views):
            yield from ask(state, n, view)
            yield from end(state, n, view)
            if state.is_up:
                yield from serve(state, n, view)
            if state.losses:
                yield from lose(state, n, view)
        if not state.is_up:
            yield "the server is there again, with its table", state._replace(is_up=True)
            return
        yield from free(state)
        if state.kills:
            cut = tuple(
                view._replace(opening="", closes=0, is_answered=False) for view in state.views
            )
            yield (
                "the server is killed",
                state._replace(views=cut, is_up=False, kills=state.kills - 1),
            )

    def following(state: State) -> Steps:
        for label, after in moves(state):
            yield label, after, _judged(after)

    return following
