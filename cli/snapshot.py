"""The store at one moment, and what happens in a second of it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from mooncake_store.client import Client, Counters, Member

__all__ = ["RATES", "Server", "Snapshot", "take"]

RATES = {
    "puts": "puts_completed_total",
    "lookups": "lookup_keys_total",
    "hits": "lookup_hits_total",
    "exists": "exists_keys_total",
    "removals": "objects_removed_total",
    "evictions": "objects_evicted_total",
    "evicted_bytes": "evicted_bytes_total",
    "frames": "master_frames_total",
}
"""What is shown per second, and the counter that it is made from."""

LEFT = {
    "evicted": "objects_evicted_total",
    "expired": "objects_expired_total",
    "removed": "objects_removed_total",
    "lost": "objects_lost_total",
}
"""Why objects left: to make room, by their time to live, by a client, with their server."""


STORAGE_SPARE_BYTES = 16 << 20
"""Less beside the pool than this, or a hundredth of it, is soon used up by records of objects."""


@dataclass(frozen=True, slots=True)
class Server:
    """A store server; `used_bytes` is what is not free, readers of what left included.

    Attributes:
        storage_free_bytes: Of the file system under its memory; None: not told.
        storage_full: Puts that it refused because that was full.
    """

    name: str
    server: int
    state: str
    addresses: tuple[str, ...]
    node_id: str
    incarnation: int
    size_bytes: int
    ready_bytes: int
    free_bytes: int
    freeing_bytes: int
    pinned_bytes: int
    objects: int
    storage_free_bytes: int | None = None
    storage_full: int = 0

    @property
    def is_storage_nearly_full(self) -> bool:
        """Whether the file system under its memory may not do for the pool and its records."""
        if self.state == "gone" or self.storage_free_bytes is None:
            return False
        growing_bytes = max(self.size_bytes - self.ready_bytes, 0)
        spare_bytes = max(STORAGE_SPARE_BYTES, self.size_bytes // 100)
        return self.storage_free_bytes < growing_bytes + spare_bytes

    @property
    def used_bytes(self) -> int:
        return max(self.ready_bytes - self.free_bytes, 0)


@dataclass(frozen=True, slots=True)
class Snapshot:
    """Servers and counters at one moment.

    Attributes:
        counters: The master's, by name.
        taken_s: When, on a clock that only the difference counts of.
    """

    servers: tuple[Server, ...]
    counters: Mapping[str, int]
    taken_s: float

    def count(self, name: str) -> int:
        """One counter; 0 when this master does not count it."""
        return self.counters.get(name, 0)

    @property
    def size_bytes(self) -> int:
        return sum(server.size_bytes for server in self.servers)

    @property
    def ready_bytes(self) -> int:
        return sum(server.ready_bytes for server in self.servers)

    @property
    def used_bytes(self) -> int:
        return sum(server.used_bytes for server in self.servers)

    @property
    def free_bytes(self) -> int:
        return sum(server.free_bytes for server in self.servers)

    @property
    def pinned_bytes(self) -> int:
        return sum(server.pinned_bytes for server in self.servers)

    @property
    def hit_ratio(self) -> float | None:
        """Keys found among those that the master was asked to look up; None before the first."""
        asked = self.count("lookup_keys_total")
        return self.count("lookup_hits_total") / asked if asked else None

    @property
    def left(self) -> dict[str, int]:
        """How many objects left, by reason."""
        return {reason: self.count(name) for reason, name in LEFT.items()}

    def per_second(self, before: Snapshot) -> dict[str, float]:
        """Return how much of each of RATES happened a second since `before`.

        A counter that went back belongs to a master that was started anew: its rate is 0.
        """
        elapsed_s = self.taken_s - before.taken_s
        if elapsed_s <= 0:
            return dict.fromkeys(RATES, 0.0)
        return {
            rate: max(self.count(name) - before.count(name), 0) / elapsed_s
            for rate, name in RATES.items()
        }

    def document(self) -> dict[str, Any]:
        """Return all of it for JSON."""
        return {
            "pool": {
                "size_bytes": self.size_bytes, "ready_bytes": self.ready_bytes,
                "used_bytes": self.used_bytes, "free_bytes": self.free_bytes,
                "pinned_bytes": self.pinned_bytes,
                "hard_pinned_bytes": self.count("pool_hard_pinned_bytes"),
                "writing_bytes": self.count("pool_writing_bytes"),
                "freeing_bytes": self.count("pool_freeing_bytes"),
            },
            "objects": self.count("objects"), "object_bytes": self.count("object_bytes"),
            "sessions": self.count("sessions"),
            "lookups": {
                "keys": self.count("lookup_keys_total"), "hits": self.count("lookup_hits_total"),
            },
            "hit_ratio": self.hit_ratio,
            "left": self.left,
            "servers": [
                {
                    "name": server.name, "server": server.server, "state": server.state,
                    "node_id": server.node_id, "incarnation": server.incarnation,
                    "addresses": list(server.addresses), "size_bytes": server.size_bytes,
                    "ready_bytes": server.ready_bytes, "used_bytes": server.used_bytes,
                    "free_bytes": server.free_bytes, "freeing_bytes": server.freeing_bytes,
                    "pinned_bytes": server.pinned_bytes, "objects": server.objects,
                    "storage_free_bytes": server.storage_free_bytes,
                    "storage_full": server.storage_full,
                    "storage_nearly_full": server.is_storage_nearly_full,
                }
                for server in self.servers
            ],
            "counters": dict(self.counters),
        }  # fmt: skip


def from_answers(members: Sequence[Member], counters: Counters, taken_s: float) -> Snapshot:
    """Put a snapshot together from what the master answered."""
    servers = []
    for member in members:
        counted = counters.by_server.get(member.server, {})
        servers.append(
            Server(
                name=member.name, server=member.server, state=member.state,
                addresses=member.addresses, node_id=member.node_id, incarnation=member.incarnation,
                size_bytes=member.size_bytes, ready_bytes=member.ready_bytes,
                free_bytes=counted.get("server_free_bytes", 0),
                freeing_bytes=counted.get("server_freeing_bytes", 0),
                pinned_bytes=counted.get("server_pinned_bytes", 0),
                objects=counted.get("server_objects", 0),
                storage_free_bytes=counted.get("server_storage_free_bytes"),
                storage_full=counted.get("server_storage_full_total", 0),
            )
        )  # fmt: skip
    return Snapshot(tuple(servers), counters.totals, taken_s)


def take(store: Client, taken_s: float) -> Snapshot:
    """Ask the master; `taken_s` is the caller's clock."""
    return from_answers(store.members(), store.counters(), taken_s)
