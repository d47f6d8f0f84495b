"""What the conductor asks of the store; the command line gives it a client that can."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

__all__ = ["OpenStore", "Page", "Placed", "StoreChange", "StoreLink", "StoreMember"]


@dataclass(frozen=True, slots=True)
class StoreChange:
    """An event of the store.

    Attributes:
        kind: Of `EventKind`.
        key: Of the object; empty for events of servers.
        server: Number of the store server concerned; None: all that hold it.
    """

    kind: int
    key: bytes
    server: int | None


@dataclass(frozen=True, slots=True)
class Page:
    """Events that follow each other.

    Attributes:
        epoch: Of the master.
        first: Sequence number of the first one.
        changes: The events.
    """

    epoch: int
    first: int
    changes: Sequence[StoreChange]


@dataclass(frozen=True, slots=True)
class Placed:
    """An object and the numbers of the store servers that hold it."""

    key: str
    servers: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class StoreMember:
    """A store server."""

    server: int
    name: str
    is_there: bool


class StoreLink(Protocol):
    """A store, by blocking calls with a deadline of their own; they raise StoreError."""

    def cluster(self) -> int:
        """Return the id of the cluster that answered last; it asks nobody."""
        ...

    def position(self) -> tuple[int, int]:
        """Return the master's epoch and the sequence number of the next event."""
        ...

    def events(self, epoch: int, sequence: int, limit: int) -> Page | None:
        """Return events from a number on, none if there is none yet; None: not known any more."""
        ...

    def placed(self, prefix: str, cursor: int, limit: int) -> tuple[int, list[Placed]]:
        """Return objects and where they are, without using them, and the next cursor (0: all)."""
        ...

    def members(self) -> list[StoreMember]:
        """Return the store servers."""
        ...

    def pin(self, keys: Sequence[str], timeout_s: float) -> int:
        """Pin the longest prefix that is there; return how many keys it has."""
        ...

    def unpin(self, keys: Sequence[str]) -> None:
        """Take pins back."""
        ...

    def add_replica(self, key: str, target_server: int) -> tuple[int, int] | None:
        """Let a server hold an object too.

        Returns:
            Its bytes, and how many replicas there were before; None: it is gone, or there already.
        """
        ...

    def drop_replica(self, key: str, source_server: int, least: int) -> bool:
        """Let a server hold an object no more, if `least` others do; whether it held it."""
        ...

    def close(self) -> None:
        """End all calls."""
        ...


OpenStore = Callable[[str], StoreLink]
"""Opens a link to the store at an address."""
