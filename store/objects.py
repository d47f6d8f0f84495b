"""What the gRPC service needs of a client, which belongs to a room beside this one.

Whoever starts the server gives it one: a `mooncake_store.Client` has these methods.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol, TypeAlias

__all__ = ["ObjectAccess", "OpenObjects"]


class ObjectStat(Protocol):
    """What is known of an object."""

    @property
    def size_bytes(self) -> int: ...
    @property
    def replicas(self) -> Sequence[Any]: ...


class Member(Protocol):
    """A store server."""

    @property
    def server(self) -> int: ...
    @property
    def name(self) -> str: ...


class ObjectAccess(Protocol):
    """Puts, gets and copies objects; all calls block and may come from several threads."""

    def put(
        self,
        key: str,
        value: Any,
        *,
        replicas: int | None = None,
        ttl_s: float | None = None,
        hard_pin: bool = False,
        soft_pin: bool = False,
        parent: str | None = None,
        timeout_s: float | None = None,
    ) -> bool: ...

    def upsert(
        self,
        key: str,
        value: Any,
        *,
        replicas: int | None = None,
        ttl_s: float | None = None,
        hard_pin: bool = False,
        soft_pin: bool = False,
        timeout_s: float | None = None,
    ) -> bool: ...

    def get(self, key: str, *, timeout_s: float | None = None) -> bytes | None: ...

    def stat(self, key: str, *, timeout_s: float | None = None) -> ObjectStat | None: ...

    def members(self, *, timeout_s: float | None = None) -> Sequence[Member]: ...

    def change_replica(
        self,
        key: str,
        replicas: int,
        *,
        target: int | None = None,
        source: int | None = None,
        timeout_s: float | None = None,
    ) -> int: ...

    def close(self) -> None: ...


OpenObjects: TypeAlias = Callable[[str], ObjectAccess]
"""From a master's address to a client of it that raises what fails."""
