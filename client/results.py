"""What calls answer when it is more than a number."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["Counters", "Listed", "Member", "ObjectStat", "ReplicaStat", "Statistics"]


@dataclass(frozen=True, slots=True)
class ReplicaStat:
    """One copy of an object."""

    node: str
    tier: str
    extent_count: int
    is_complete: bool


@dataclass(frozen=True, slots=True)
class ObjectStat:
    """What the master knows of an object.

    Attributes:
        size_bytes: Of the value.
        version: Names this put of the key; no other ever has it.
        ttl_s: What is left; None: it stays until it is evicted or removed.
        pin_count: Pins of sessions.
        idle_s: Since the last use that the master knows of.
        checksum: CRC32C of the value; None: it was put without.
    """

    key: str
    size_bytes: int
    version: int
    replicas: tuple[ReplicaStat, ...]
    age_s: float
    idle_s: float
    ttl_s: float | None
    pin_count: int
    use_count: int
    is_hard_pinned: bool
    is_soft_pinned: bool
    checksum: int | None


@dataclass(frozen=True, slots=True)
class Listed:
    """One object of a listing."""

    key: str
    size_bytes: int
    replica_count: int
    is_hard_pinned: bool
    is_pinned: bool
    ttl_s: float | None


@dataclass(frozen=True, slots=True)
class Member:
    """A store server as the master sees it."""

    name: str
    node_id: str
    server: int
    incarnation: int
    state: str
    host: str
    addresses: tuple[str, ...]
    unix_path: str
    size_bytes: int
    ready_bytes: int


@dataclass(frozen=True, slots=True)
class Statistics:
    """What this client has done so far."""

    gets: int
    get_hits: int
    get_misses: int
    get_bytes: int
    get_bytes_local: int
    puts: int
    put_bytes: int
    put_bytes_local: int
    lookups: int
    locations_used: int
    locations_gone: int
    failures: int
    sessions_lost: int
    relayed_ends: int
    checksum_failures: int


@dataclass(frozen=True, slots=True)
class Counters:
    """What the master has counted, by the names of its metrics without `mooncake_store_`.

    Attributes:
        totals: `lookup_hits_total` and the like; what ends in `_total` only grows.
        by_server: The same for single store servers, by their number (see `members`).
    """

    totals: dict[str, int]
    by_server: dict[int, dict[str, int]]
