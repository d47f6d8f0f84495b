"""Calls of several steps, without I/O: the sync and the async client carry the steps out.

Such a call is a generator.  It yields what is to be done next, a `Command` or a `Read`, is sent
what came of it, and returns the call's result; a failure is thrown into it.
"""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import dataclass
from typing import Any, TypeAlias, TypeVar

from mooncake_store.client import commands, tensors
from mooncake_store.client.commands import Command, HashOf
from mooncake_store.client.core import Operation
from mooncake_store.client.results import Explanation, Listed, ObjectStat
from mooncake_store.errors import BufferTooSmallError, ObjectNotFoundError

__all__ = [
    "Listing",
    "Read",
    "Steps",
    "explain",
    "get_tensor",
    "get_tensor_into",
    "remove_matching",
    "stat",
]

Result = TypeVar("Result")
Steps: TypeAlias = "Generator[Command[Any] | Read, Any, Result]"

_TENSOR_ATTEMPTS = 3  # a tensor that is replaced between its two reads is looked at again
_LIST_LIMIT = 1000


@dataclass(frozen=True, slots=True)
class Read:
    """A reading call of C for one key; a failure is None, unless the client is strict."""

    operation: Operation
    arguments: tuple[Any, ...]


def stat(key: str, hash_of: HashOf) -> Steps[ObjectStat | None]:
    """What the master knows of an object, with its servers' names."""
    names = {member.server: member.name for member in (yield commands.members())}
    try:
        found: ObjectStat = yield commands.stat(key, hash_of, names)
    except ObjectNotFoundError:
        return None
    return found


def explain(key: str, hash_of: HashOf) -> Steps[Explanation]:
    """Where an object is or what has become of it, with its servers' names."""
    members = yield commands.members()
    explanation: Explanation = yield commands.explain(key, hash_of, members)
    return explanation


def remove_matching(prefix: str, regex: str | None, *, force: bool) -> Steps[int]:
    """How many were removed."""
    cursor: int = 0
    count: int = 0
    pattern = prefix if regex is None else regex
    while True:
        cursor, removed = yield commands.remove_matching_step(
            pattern, cursor, regex=regex is not None, force=force
        )
        count += removed
        if cursor == 0:
            return count


class Listing:
    """A listing, page by page; what is stored throughout is seen once."""

    def __init__(self, prefix: str, regex: str | None, limit: int | None) -> None:
        self._pattern = prefix if regex is None else regex
        self._is_regex = regex is not None
        self._left = limit
        self._cursor = 0
        self._seen: set[str] = set()
        self._has_ended = limit == 0

    def next_page(self) -> Command[tuple[int, list[Listed]]] | None:
        """Return what to ask next; None: that was all."""
        if self._has_ended:
            return None
        limit = _LIST_LIMIT if self._left is None else min(self._left, _LIST_LIMIT)
        return commands.list_step(self._pattern, self._cursor, limit, regex=self._is_regex)

    def take(self, page: tuple[int, list[Listed]]) -> list[Listed]:
        """Return what is new in an answer."""
        self._cursor, found = page
        new = []
        for item in found:
            if item.key not in self._seen:
                self._seen.add(item.key)
                new.append(item)
        if self._left is not None:
            del new[self._left :]
            self._left -= len(new)
        self._has_ended = self._cursor == 0 or self._left == 0
        return new


# ---- tensors ------------------------------------------------------------------------------------


def get_tensor(key: str, library: str | None) -> Steps[Any]:
    """A stored tensor, or None."""
    for _ in range(_TENSOR_ATTEMPTS):
        found = yield from _tensor_header(key)
        if found is None:
            return None
        header, size = found
        made = tensors.make(header, size - tensors.HEADER_BYTES, library, key)
        if (yield from _fill_tensor(key, tensors.describe(made, is_target=True), size)):
            return made
    return None


def get_tensor_into(key: str, tensor: Any) -> Steps[bool]:
    """Whether it was read."""
    target = tensors.describe(tensor, is_target=True)
    for _ in range(_TENSOR_ATTEMPTS):
        found = yield from _tensor_header(key)
        if found is None:
            return False
        header, size = found
        tensors.check_same(header, target.header, key)
        if (yield from _fill_tensor(key, target, size)):
            return True
    return False


def _tensor_header(key: str) -> Steps[tuple[tensors.TensorHeader, int] | None]:
    """The header and the object's size, or None."""
    data = bytearray(tensors.HEADER_BYTES)
    size: int | None = yield Read(Operation.SIZES, (key,))
    if size is None:
        return None
    if (yield Read(Operation.GET_RANGE, (key, data, 0))) is None:
        return None
    return tensors.parse_header(data[: min(size, len(data))], key), size


def _fill_tensor(key: str, target: tensors.Described, size: int) -> Steps[bool]:
    """Read the elements; False: it was replaced meanwhile, look again."""
    header = bytearray(tensors.HEADER_BYTES)
    try:
        read = yield Read(Operation.GET_INTO, (key, [header, target.memory]))
    except BufferTooSmallError:
        return False
    return bool(read == size and bytes(header) == target.header.encode())
