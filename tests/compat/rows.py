"""The table of behaviour: one row a call, with what comes before it and what it answers."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

from mooncake.store import MooncakeDistributedStore

MEMORY = ctypes.create_string_buffer(1 << 16)
AT = ctypes.addressof(MEMORY)
TEXT = b"abcdefghijklmnopqrstuvwxyz"

Step = tuple[Any, ...]
Test = TypeVar("Test")


@dataclass(frozen=True)
class Row:
    """One call of the table.

    Attributes:
        before: Calls that come first, and must succeed: name and arguments.
        answer: Compared with what the call returns, or an exception type that it raises.
        after: What is true then: calls and their answers.
        memory: What the test's memory begins with afterwards; None: not looked at.
    """

    method: str
    arguments: Sequence[Any]
    answer: Any
    before: Sequence[Step] = ()
    after: Sequence[tuple[Step, Any]] = ()
    memory: bytes | None = None
    named: dict[str, Any] = field(default_factory=dict)
    note: str = ""

    def __str__(self) -> str:
        note = self.note or ", ".join(map(_short, (*self.arguments, *self.named)))
        return f"{self.method}-{note}"


def _short(argument: Any) -> str:
    if isinstance(argument, int) and argument >= AT:
        return f"at+{argument - AT}"
    if isinstance(argument, list | tuple):
        return "[" + ",".join(map(_short, argument)) + "]"
    text = repr(argument) if isinstance(argument, str | bytes | int) else type(argument).__name__
    return text[:24]


def row(method: str, *arguments: Any, gives: Any, **facts: Any) -> Row:
    return Row(method, arguments, gives, **facts)


def run(store: MooncakeDistributedStore, each: Row) -> None:
    """Do what a row says."""
    ctypes.memset(AT, 0, len(MEMORY))
    ctypes.memmove(AT, TEXT, len(TEXT))
    for name, *arguments in each.before:
        answer = getattr(store, name)(*arguments)
        assert not _has_failed(answer), (name, arguments, answer)
    call = getattr(store, each.method)
    if isinstance(each.answer, type) and issubclass(each.answer, Exception):
        try:
            answer = call(*each.arguments, **each.named)
        except each.answer:
            return
        raise AssertionError(f"{each.method} answered {answer!r}")
    answer = call(*each.arguments, **each.named)
    if callable(each.answer):
        assert each.answer(answer), answer
    else:
        assert answer == each.answer
        assert type(answer) is type(each.answer)
    for (name, *arguments), expected in each.after:
        assert getattr(store, name)(*arguments) == expected, (name, arguments)
    if each.memory is not None:
        assert MEMORY.raw[: len(each.memory)] == each.memory


def _has_failed(answer: Any) -> bool:
    if isinstance(answer, list):
        return any(isinstance(each, int) and each < 0 for each in answer)
    return isinstance(answer, int) and answer < 0


COVERED: set[str] = set()
"""Calls that a test of its own is about, beside those of the rows."""


def covers(*names: str) -> Callable[[Test], Test]:
    """Say which calls a test is about."""

    def keep(test: Test) -> Test:
        COVERED.update(names)
        return test

    return keep
