"""How views of one object begin and end while their server is killed and messages are lost.

One process has several views of the same object. The server's table of views outlives it
(*views_persist*), and pages under a view of the table are not granted again (*freed_waits*); so a
view that only the table knows costs its pages for as long as the process lives, and one that only
the process knows is of pages that may become another object's. A message and its answer are on a
connection of their own; what is on it ends with it, and the process sees that it has ended.
Messages on two connections are handled in any order, and those of a frozen server as late as it
likes: it looks at a connection, counts a view, and answers, each at its time.

The process's client closes at some time: then nobody waits for late answers, but what is owed is
told until it is answered. Only a server that dies after it counted a view whose connection the
closing client has ended, and before it took it back, leaves one as long as the process lives. That
is known (*is_left*), and the only way.
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
    "end_then_look": (
        "a client that closes ends the connection of a late VIEW_OPEN before it looks for the last "
        "time whether the answer is there"
    ),
    "open_answered": "a view whose answer cannot be given, its connection has ended, is ended",
    "close_repeated": "VIEW_CLOSE is repeated until it is answered, to the server's next life too",
    "close_tagged": (
        "a VIEW_CLOSE names the tag of its view, and ends no other view of the same object"
    ),
}
VIEWS = 2
CLOSES_MAX = 2  # of one view under way at a time
WORKING = ("sent", "seen", "counted")  # the server has a VIEW_OPEN and has not answered


class View(NamedTuple):
    """One view: what its process knows, and what is under way."""

    # idle, asking; late: nobody waits for the answer any more; leaving: nor will look for it;
    # open: somebody looks at it; owed: VIEW_CLOSE is to be sent; closing: it has been; ended
    at: str = "idle"
    # its VIEW_OPEN: sent, seen (by a server that found its connection there), counted, or answered
    # with opened or gone; "": none
    opening: str = ""
    is_cut: bool = False  # the client has ended its connection, and the server has yet to see that
    is_left: bool = False  # the client closed, and the server died before it took it back
    closes: int = 0  # VIEW_CLOSEs not yet handled
    is_answered: bool = False  # the answer to one is under way


class State(NamedTuple):
    views: tuple[View, ...]
    table: frozenset[int]  # the views that the server counts
    page: str  # live; freed; granted: it is another object's
    is_up: bool
    kills: int
    losses: int
    is_closed: bool = False  # the client

    def with_view(self, number: int, view: View) -> State:
        return self._replace(views=(*self.views[:number], view, *self.views[number + 1 :]))


START = State((View(),) * VIEWS, frozenset(), "live", True, 2, 2)
Steps = Iterator[tuple[str, State, str | None]]


def _judged(state: State) -> str | None:
    if state.page == "granted" and any(view.at == "open" for view in state.views):
        return "S2: a page that somebody looks at is granted to another object"
    is_over = all(
        view.at in ("idle", "ended") and view.opening not in WORKING and not view.closes
        for view in state.views
    )
    if is_over and any(not state.views[n].is_left for n in state.table):
        return "L1: nobody looks any more, and the page is never free"
    return None


def successors(rules: frozenset[str]) -> Callable[[State], Steps]:
    def ask(state: State, n: int, view: View) -> Iterator[tuple[str, State]]:
        """What the process does to have a view."""
        # Views are alike: the first ones go first.
        is_next = n == 0 or state.views[n - 1].at != "idle"
        if view.at == "idle" and is_next and state.is_up and not state.is_closed:
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
            is_repeated = "close_repeated" in rules
            unheard = view._replace(at="owed" if is_repeated else "ended", is_answered=False)
            yield f"the close of view {n} is not answered in time", state.with_view(n, unheard)
        if view.at == "leaving":
            yield (
                f"the connection of view {n} is ended",
                state.with_view(n, cut(view)._replace(at="ended")),
            )

    def cut(view: View) -> View:
        """The client ends the connection of its VIEW_OPEN, and does not look at it again."""
        is_working = view.opening in WORKING
        return view._replace(opening=view.opening if is_working else "", is_cut=is_working)

    def last_look(view: View) -> View:
        """What the client, which closes, makes of a VIEW_OPEN that nobody waits for."""
        if view.opening == "gone":
            return view._replace(at="ended", opening="")
        if view.opening not in WORKING:
            return view._replace(at=unknown(), opening="")
        if "end_then_look" not in rules:
            return view._replace(at="leaving")
        return cut(view)._replace(at="ended")

    def close(state: State) -> Iterator[tuple[str, State]]:
        if state.is_closed or any(view.at == "asking" for view in state.views):
            return  # closing waits for who asks
        views = tuple(last_look(view) if view.at == "late" else view for view in state.views)
        yield "the client closes", state._replace(views=views, is_closed=True)

    def serve(state: State, n: int, view: View) -> Iterator[tuple[str, State]]:
        if view.opening == "sent":
            # It opens no view for a connection that has ended.
            seen = view._replace(opening="" if view.is_cut else "seen", is_cut=False)
            yield f"the server looks at the connection of view {n}", state.with_view(n, seen)
        if view.opening == "seen":
            is_opened = state.page == "live"
            counted = view._replace(opening="counted" if is_opened else "gone")
            if view.is_cut and not is_opened:
                counted = counted._replace(opening="", is_cut=False)
            yield (
                f"the server handles the open of view {n}",
                state.with_view(n, counted)._replace(
                    table=state.table | {n} if is_opened else state.table
                ),
            )
        if view.opening == "counted":
            answered = view._replace(opening="" if view.is_cut else "opened", is_cut=False)
            is_undone = view.is_cut and "open_answered" in rules
            yield (
                f"the server answers the open of view {n}",
                state.with_view(n, answered)._replace(
                    table=state.table - {n} if is_undone else state.table
                ),
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
        if view.opening not in ("", "seen", "counted") and not view.is_cut:
            # While the server is at work for a Unix connection, only the process can end it.
            unheard = fewer.with_view(n, view._replace(opening=""))
            yield f"the connection of view {n}'s open is cut", unheard
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

    def killed(view: View, is_closed: bool) -> View:
        is_left = view.is_left or (is_closed and view.is_cut and view.opening == "counted")
        return view._replace(opening="", closes=0, is_answered=False, is_cut=False, is_left=is_left)

    def moves(state: State) -> Iterator[tuple[str, State]]:
        for n, view in enumerate(state.views):
            yield from ask(state, n, view)
            yield from end(state, n, view)
            if state.is_up:
                yield from serve(state, n, view)
            if state.losses:
                yield from lose(state, n, view)
        yield from close(state)
        if not state.is_up:
            yield "the server is there again, with its table", state._replace(is_up=True)
            return
        yield from free(state)
        if state.kills:
            views = tuple(killed(view, state.is_closed) for view in state.views)
            yield (
                "the server is killed",
                state._replace(views=views, is_up=False, kills=state.kills - 1),
            )

    def following(state: State) -> Steps:
        for label, after in moves(state):
            yield label, after, _judged(after)

    return following
