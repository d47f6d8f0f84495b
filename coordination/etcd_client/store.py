"""The part of etcd that coordination is written against: values, and an interface of few calls.

Two things have it: `EtcdClient`, and the fake in memory. One conformance suite runs against both.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Sequence
from dataclasses import dataclass
from typing import Protocol, TypeAlias

__all__ = [
    "CompactedError",
    "Delete",
    "Entries",
    "Entry",
    "Event",
    "Grant",
    "KeyIs",
    "KeyValueStore",
    "Operation",
    "Outcome",
    "Put",
    "Read",
    "prefix_end",
]


class CompactedError(Exception):
    """A watch or a read asked for history that is gone: read again, then watch from there.

    Attributes:
        revision: The oldest that is left, or 0 when it was not told.
    """

    def __init__(self, revision: int) -> None:
        super().__init__(f"history before revision {revision} is compacted")
        self.revision = revision


@dataclass(frozen=True, slots=True)
class Entry:
    """A key as it is, or as it was deleted (then only `key` and `mod_revision` count)."""

    key: bytes
    value: bytes
    create_revision: int
    mod_revision: int
    lease: int = 0


@dataclass(frozen=True, slots=True)
class Entries:
    """What was read, and at which revision: a watch from `revision + 1` misses nothing."""

    entries: tuple[Entry, ...]
    revision: int


@dataclass(frozen=True, slots=True)
class Event:
    """A change of one key."""

    entry: Entry
    is_delete: bool


@dataclass(frozen=True, slots=True)
class KeyIs:
    """A condition: the key was created, or last changed, at just this revision; 0: it is absent."""

    key: bytes
    created: int | None = None
    changed: int | None = None


@dataclass(frozen=True, slots=True)
class Read:
    """Read a key, or all from it up to `end` (excluded)."""

    key: bytes
    end: bytes = b""


@dataclass(frozen=True, slots=True)
class Put:
    """Set a key; with a lease it goes when that ends."""

    key: bytes
    value: bytes
    lease: int = 0


@dataclass(frozen=True, slots=True)
class Delete:
    """Remove a key, or all from it up to `end` (excluded)."""

    key: bytes
    end: bytes = b""


Operation: TypeAlias = Read | Put | Delete


@dataclass(frozen=True, slots=True)
class Outcome:
    """Of a transaction.

    Attributes:
        is_met: All conditions held, so the first operations were carried out, else the others.
        reads: What each `Read` among those found, in order.
    """

    is_met: bool
    revision: int
    reads: tuple[tuple[Entry, ...], ...]


@dataclass(frozen=True, slots=True)
class Grant:
    """A lease and how long it lives, which may be longer than was asked for."""

    lease: int
    ttl_s: int


class KeyValueStore(Protocol):
    """etcd, or what behaves like it.

    Every call ends within seconds. UnavailableError: no answer, so a change may have happened or
    not; AccessRefusedError: who we are does not suffice.
    """

    async def read(self, key: bytes, end: bytes = b"", *, revision: int = 0) -> Entries:
        """Return a key, or all keys from it up to `end` (excluded), at one revision.

        Raises:
            CompactedError: That revision is gone.
        """
        ...

    async def put(self, key: bytes, value: bytes, *, lease: int = 0) -> int:
        """Set a key, and again when no answer came; return the revision."""
        ...

    async def transact(
        self,
        conditions: Sequence[KeyIs],
        then: Sequence[Operation],
        otherwise: Sequence[Operation] = (),
        *,
        is_repeatable: bool,
    ) -> Outcome:
        """Do `then` if all conditions hold, else `otherwise`, in one step.

        Args:
            conditions: At most 128, as both lists of operations.
            then: No key is changed twice.
            otherwise: The same.
            is_repeatable: Doing it twice is harmless, so it is sent again when no answer came.
        """
        ...

    async def grant(self, ttl_s: int) -> Grant:
        """Return a new lease."""
        ...

    async def renew(self, lease: int, *, timeout_s: float, patience_s: float | None = None) -> int:
        """Begin the lease's time anew and return it in seconds; 0: there is no such lease.

        One attempt; after a failure the next is made elsewhere.

        Args:
            lease: Its number.
            timeout_s: How long an answer counts.
            patience_s: After which calls that begin meanwhile are made elsewhere; None: none are.
        """
        ...

    async def revoke(self, lease: int) -> None:
        """End a lease and remove its keys; one that has ended already is no error."""
        ...

    def watch(
        self, key: bytes, end: bytes = b"", *, from_revision: int
    ) -> AsyncGenerator[tuple[Event, ...], None]:
        """Yield every change from a revision on, each once and in order, for ever.

        What one revision changed comes in one piece. It lasts over failures of members and
        connections. `aclose` ends it.

        Raises:
            CompactedError: The revision to go on from is gone.
        """
        ...

    async def close(self) -> None:
        """Close every connection."""
        ...


def prefix_end(prefix: bytes) -> bytes:
    """Return the end of the range of all keys that begin with `prefix` (not all 0xff)."""
    trimmed = prefix.rstrip(b"\xff")
    return trimmed[:-1] + bytes([trimmed[-1] + 1])
