"""What a client that reads does: look up, read page by page, compare the word; or open a view."""

from __future__ import annotations

from protocol_model.extent.configuration import Configuration
from protocol_model.extent.leader import leads
from protocol_model.extent.state import (
    NO_READER,
    Location,
    Reader,
    State,
    Steps,
    Use,
    View,
    lives,
    version_of,
)

__all__ = ["reader_steps"]

EXPIRED = (-1, 0)  # among what was removed before a read: its location had no lifetime any more


def reader_steps(state: State, config: Configuration) -> Steps:
    if state.reader.is_reading:
        yield from _read(state, config)
        return
    if state.reader.location is None:
        if state.budget.reads:
            yield from _look_up(state, config)
        return
    yield from _begin(state, config, state.reader.location)
    yield from _open_view(state, config, state.reader.location)
    if state.reader.is_leased:
        ended = state.reader._replace(is_leased=False, removed=frozenset())
        yield "the reader's location lifetime ends", state._replace(reader=ended), None
    else:
        yield "the reader drops its location", state._replace(reader=NO_READER), None


def _removed(state: State) -> frozenset[tuple[int, int]]:
    return frozenset((v, status) for v, status in enumerate(state.values) if status >= 3)


def _look_up(state: State, config: Configuration) -> Steps:
    for leader in state.leaders:
        entry = leader.objects[config.reader_key]
        if entry is None or not leads(state, config, leader):
            continue
        location = Location(entry.extent, entry.generation, _removed(state), leader.epoch)
        yield (
            f"the reader looks up key {config.reader_key} at leader {leader.epoch}:"
            f" extent {entry.extent} generation {entry.generation}",
            state._replace(reader=Reader(False, location, (), True)),
            None,
        )


def _begin(state: State, config: Configuration, location: Location) -> Steps:
    is_leased = state.reader.is_leased
    if not state.budget.reads or not (is_leased or "loc_expiry" not in config.rules):
        return
    removed = _removed(state) if is_leased else _removed(state) | {EXPIRED}
    budget = state.budget._replace(reads=state.budget.reads - 1)
    reader = Reader(True, location, (), is_leased, removed)
    yield "the reader starts a read", state._replace(reader=reader, budget=budget), None


def _open_view(state: State, config: Configuration, location: Location) -> Steps:
    extent, generation, removed, _ = location
    s, pages = config.extents[extent]
    server = state.servers[s]
    if not state.budget.views or not state.reader.is_leased:
        return
    if not lives(server.words[pages[0]], generation):
        return
    shown = [server.payload[page] for page in pages]
    value, bad = shown[0], None
    if _is_wrong(config, shown) or generation != version_of(state, value):
        bad = f"S1: a view of version {generation} shows {shown}"
    elif (value, 3) in _removed(state) or value in dict(removed):
        bad = f"S4: a view of value {value} opens after its removal was acknowledged"
    opened = server._replace(views=server.views | {View(extent, generation, value)})
    if "view_atomic" in config.rules:
        opened = opened._replace(uses=server.uses | {Use(extent, generation)})
    budget = state.budget._replace(views=state.budget.views - 1)
    yield (
        f"a process opens a view of extent {extent} generation {generation}",
        state.with_server(s, opened)._replace(budget=budget),
        bad,
    )


def _read(state: State, config: Configuration) -> Steps:
    reader = state.reader
    assert reader.location is not None
    s, pages = config.extents[reader.location.extent]
    server, got = state.servers[s], reader.got
    if len(got) == len(pages):
        yield from _end(state, config, reader.location)
        return
    page = pages[len(got)]
    more = reader._replace(got=(*got, server.payload[page]))
    yield f"the reader reads page {page}", state._replace(reader=more), None
    is_last = len(got) == len(pages) - 1
    if "read_order" not in config.rules and reader.early is None and is_last:
        early = reader._replace(early=server.words[pages[0]])
        label = "the reader's read of the word overtakes that of its last page"
        yield label, state._replace(reader=early), None
    if reader.is_leased:
        ended = reader._replace(is_leased=False)
        yield "the reader's lifetime ends during the read", state._replace(reader=ended), None


def _end(state: State, config: Configuration, location: Location) -> Steps:
    reader, rules = state.reader, config.rules
    s, pages = config.extents[location.extent]
    word = state.servers[s].words[pages[0]] if reader.early is None else reader.early
    is_unchecked = reader.is_leased and "check_always" not in rules
    if not is_unchecked and not lives(word, location.generation):
        yield "the reader finds another word: a miss", state._replace(reader=NO_READER), None
        return
    kept = Reader(False, location, (), reader.is_leased)
    bad = _judge(state, config, location, is_unchecked)
    yield f"the reader returns {reader.got}", state._replace(reader=kept), bad


def _judge(
    state: State, config: Configuration, location: Location, is_unchecked: bool
) -> str | None:
    got, removed = state.reader.got, state.reader.removed
    if _is_wrong(config, got):
        return f"S1: the reader returns pages {got} for key {config.reader_key}"
    value = got[0]
    if isinstance(location.generation, tuple) and location.generation != version_of(state, value):
        return f"S1: the reader returns value {value}, looked up was version {location.generation}"
    if value in dict(location.removed):
        return f"S4: the removal of value {value} was acknowledged before the look-up that finds it"
    if EXPIRED in removed and value in dict(removed):
        return f"S4: the reader returns value {value}, removed long before its location"
    if (value, 3) in removed and not is_unchecked and "strict_remove" in config.rules:
        return f"S4: the reader returns value {value} although its removal waited for the holder"
    return None


def _is_wrong(config: Configuration, pages: tuple[int, ...] | list[int]) -> bool:
    """Are these pages other than one value of the reader's key?"""
    return len(set(pages)) != 1 or pages[0] < 0 or config.key_of(pages[0]) != config.reader_key
