"""The inventory file of one server: killed at any step, a record torn, compaction under way."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import NamedTuple

__all__ = ["RULES", "START", "successors"]

RULES = {
    "generation_first": (
        "FREE clears the word before it appends its record: the words are the truth, not the log"
    ),
    "truncate": "a restart cuts the log at the first record whose length or checksum is wrong",
    "compact_alone": "nothing is appended between a compaction's snapshot and its rename",
    "answer_last": "a record is whole in the log before the request is answered",
}

Word = tuple[int, bool]  # version, live


class Record(NamedTuple):
    kind: str  # commit or free
    extent: int
    version: int
    is_whole: bool = True


class Operation(NamedTuple):
    """A request in progress: at its next step, word, append or answer; "" when all are done."""

    kind: str
    extent: int
    version: int
    at: str


class State(NamedTuple):
    """Promised: per extent the version of an answered commit, or minus that of an answered free."""

    words: tuple[Word, Word]
    log: tuple[Record, ...]
    compacted: tuple[Record, ...] | None
    operation: Operation | None
    promised: tuple[int, int]
    version_next: int
    operations: int
    kills: int


START = State(((0, False), (0, False)), (), None, None, (0, 0), 1, 5, 2)
Steps = Iterator[tuple[str, State, str | None]]


def _good(log: tuple[Record, ...]) -> tuple[Record, ...]:
    """Return the records up to the first torn one."""
    torn = next((n for n, record in enumerate(log) if not record.is_whole), len(log))
    return log[:torn]


def _held(words: tuple[Word, Word], log: tuple[Record, ...]) -> dict[int, int]:
    """Return what a rebuild believes: extents and their versions."""
    held: dict[int, int] = {}
    for kind, extent, version, _ in _good(log):
        if kind == "commit":
            held[extent] = version
        elif held.get(extent) == version:
            del held[extent]
    return {extent: version for extent, version in held.items() if words[extent] == (version, True)}


def _judged(state: State) -> str | None:
    """Return what a leader that rebuilds from this file now would get wrong."""
    held = _held(state.words, state.log)
    for extent, promised in enumerate(state.promised):
        word = state.words[extent]
        if promised > 0 and word == (promised, True) and held.get(extent) != promised:
            return (
                f"S1, S3: extent {extent} looks free, its word says that version {promised} lives"
            )
        if promised < 0 and (word == (-promised, True) or held.get(extent) == -promised):
            return f"S1: extent {extent} was answered free, version {-promised} still lives there"
        if promised > 0 and word[0] < promised:
            return f"S3: the answered commit of extent {extent} has no live word"
    return None


def _set(pair: tuple[int, int], at: int, value: int) -> tuple[int, int]:
    return (value, pair[1]) if at == 0 else (pair[0], value)


def _set_word(words: tuple[Word, Word], at: int, word: Word) -> tuple[Word, Word]:
    return (word, words[1]) if at == 0 else (words[0], word)


def successors(rules: frozenset[str]) -> Callable[[State], Steps]:
    order = {"commit": ("word", "append", "answer"), "free": ("word", "append", "answer")}
    if "generation_first" not in rules:
        order["free"] = ("append", "word", "answer")

    def kill(state: State) -> Steps:
        if not state.kills:
            return
        log, operation, note = state.log, state.operation, ""
        if operation and operation.at == "append":
            log = (*log, Record(*operation[:3], is_whole=False))
            note = " while a record is half written"
        if "truncate" in rules:
            log = _good(log)
        after = state._replace(log=log, compacted=None, operation=None, kills=state.kills - 1)
        yield "kill and restart" + note, after, _judged(after)

    def begin(state: State) -> Steps:
        if state.operation is not None or not state.operations:
            return
        fewer = state._replace(operations=state.operations - 1)
        for extent, promised in enumerate(state.promised):
            kind = "free" if promised > 0 else "commit"
            version = promised if promised > 0 else state.version_next
            operation = Operation(kind, extent, version, order[kind][0])
            version_next = state.version_next + (kind == "commit")
            after = fewer._replace(operation=operation, version_next=version_next)
            yield f"{kind}({extent}, {version}) begins", after, None
        if state.compacted is None and state.log:
            held = sorted(_held(state.words, state.log).items())
            packed = tuple(Record("commit", extent, version) for extent, version in held)
            yield "compaction takes its snapshot", fewer._replace(compacted=packed), None

    def go_on(state: State) -> Steps:
        operation = state.operation
        if operation is None:
            return
        kind, extent, version, at = operation
        names = (*order[kind], "")
        if at in names[:-1]:
            after = state._replace(operation=operation._replace(at=names[names.index(at) + 1]))
        if at == "append" and not (state.compacted is not None and "compact_alone" in rules):
            appended = after._replace(log=(*state.log, Record(kind, extent, version)))
            yield f"the record {kind}({extent}, {version}) is appended", appended, None
        if at == "word":
            word = (version, kind == "commit")
            written = after._replace(words=_set_word(state.words, extent, word))
            yield f"the word of {extent} becomes {word}", written, None
        if at == "answer" or "answer_last" not in rules:
            told = _set(state.promised, extent, version if kind == "commit" else -version)
            ended = None if at == "answer" else operation
            answered = state._replace(operation=ended, promised=told)
            yield f"{kind}({extent}, {version}) is answered", answered, None

    def following(state: State) -> Steps:
        yield from kill(state)
        yield from begin(state)
        yield from go_on(state)
        if state.compacted is not None:
            renamed = state._replace(log=state.compacted, compacted=None)
            yield "compaction renames its file", renamed, None

    return following
