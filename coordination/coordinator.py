"""What a coordinator does for masters and store servers, whichever service is behind it."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Sequence
from dataclasses import dataclass
from typing import Protocol

from mooncake_store.coordination.lease import Lease

__all__ = ["Coordinator", "Leader", "Leadership", "NodeNumber", "Standby", "Tombstone"]


@dataclass(frozen=True, slots=True)
class Leadership:
    """What a master gets with the lead.

    Attributes:
        epoch: Raised each time anybody becomes leader, also the same process again; 20 bits.
        cluster: Id of the cluster, random, the same for ever.
        secret: 192 bytes that key hashes are made with, the same for all masters and epochs.
    """

    epoch: int
    cluster: int
    secret: bytes


@dataclass(frozen=True, slots=True)
class Leader:
    """Where the leader is.

    Attributes:
        address: `ip:port`, or several with commas.
        epoch: Of its leadership; 0: not told.
        unix_path: Its socket for processes of its host; empty: none.
        boot_id: Of that host, hexadecimal.
    """

    address: str
    epoch: int = 0
    unix_path: str = ""
    boot_id: str = ""


@dataclass(frozen=True, slots=True)
class Standby:
    """A master that waits to lead.

    Attributes:
        address: As it says itself, for people.
        host: Name of its host.
        pid: Of its process there.
    """

    address: str
    host: str
    pid: int


@dataclass(frozen=True, slots=True)
class Tombstone:
    """Nothing of this key up to this version counts any more (protocol, sections 3 and 5).

    Attributes:
        key_hash: The 16 bytes that stand for the key on the wire.
        version: The newest version that is struck.
    """

    key_hash: bytes
    version: int


@dataclass(frozen=True, slots=True)
class NodeNumber:
    """The number by which locations name a store server, under all leaders.

    It stays the node's when the node is forgotten, until a later leader needs it for another one.

    Attributes:
        number: 0 to 4095.
        node_id: The server's 16 bytes.
        name: As it last called itself, for people.
        struck: What it brings back up to this version does not count: it was forgotten then. 0: all
            counts.
    """

    number: int
    node_id: bytes
    name: str = ""
    struck: int = 0

    def encode(self) -> dict[str, str]:
        """Return it, less its number, as both coordinators keep it in JSON."""
        return {"node": self.node_id.hex(), "name": self.name, "struck": f"{self.struck:016x}"}

    @classmethod
    def decode(cls, number: int, document: dict[str, str]) -> NodeNumber:
        """Return what `encode` wrote.

        Raises:
            ValueError, KeyError, TypeError: It is damaged.
        """
        node_id = bytes.fromhex(document["node"])
        if len(node_id) != 16 or number < 0:
            raise ValueError("a node's number or id out of bounds")
        return cls(number, node_id, str(document["name"]), int(document["struck"], 16))


class Coordinator(Protocol):
    """One cluster's coordination service, as a master or a store server sees it.

    A master calls `lead` and what needs the lead; a store server `epoch`, `raise_member` and
    `watch_leader`.
    """

    @property
    def name(self) -> str:
        """What it is and where, for people and logs; no secrets."""
        ...

    @property
    def waits_to_lead(self) -> bool:
        """Whether `lead` waits for another leader's end; else it refuses at once."""
        ...

    async def lead(self, address: str) -> Leadership:
        """Become the leader, with an epoch that nobody has had.

        Args:
            address: Where this master will be reached, for people who find it leading already.

        Raises:
            InUseError: Another master leads, and it does not wait for its end.
        """
        ...

    def lease(self) -> AsyncGenerator[Lease, None]:
        """Yield how long this leader may believe that it leads, now and at each change.

        It answers nobody from the deadline on. Suspended: it may come back. Lost: it leads no more,
        and nothing comes after that.
        """
        ...

    async def publish(self, leader: Leader) -> None:
        """Tell where this leader is; again when something of it changes.

        Raises:
            NotLeaderError: The lead was lost: nothing was told.
        """
        ...

    async def leader(self) -> Leader | None:
        """Return where the leader is now; None: nobody has told that it leads."""
        ...

    def watch_leader(self) -> AsyncGenerator[Leader | None, None]:
        """Yield where the leader is, now and whenever that changes, over all failures."""
        ...

    async def standbys(self) -> tuple[Standby, ...]:
        """Return the masters that wait to lead; one that died is told for some seconds more."""
        ...

    async def write_tombstones(self, tombstones: Sequence[Tombstone]) -> None:
        """Keep tombstones for the leaders to come.

        Raises:
            NotLeaderError: The lead was lost: nothing (more) was written.
            DeviceError: They cannot be kept.
        """
        ...

    async def tombstones(self) -> tuple[Tombstone, ...]:
        """Return the tombstones kept, the highest version of each key."""
        ...

    async def drop_tombstones(self, tombstones: Sequence[Tombstone]) -> None:
        """Forget tombstones whose objects are freed everywhere."""
        ...

    async def epoch(self) -> int:
        """Return the newest epoch that was given, 0 before the first."""
        ...

    async def raise_member(self, node_id: bytes, incarnation_min: int) -> int:
        """Return the incarnation of a store server's new start, higher than any before.

        Args:
            node_id: The server's 16 bytes.
            incarnation_min: What its own files say it must be at least.
        """
        ...

    async def members(self) -> frozenset[bytes]:
        """Return the ids of the store servers that have ever started in this cluster."""
        ...

    async def cluster_settings(self) -> dict[str, str]:
        """Return the settings that hold for all masters of the cluster, by name, as written."""
        ...

    async def set_cluster_setting(self, name: str, value: str | None) -> None:
        """Keep a setting for all masters; None: each goes by its own again. Anybody may do this."""
        ...

    def watch_cluster_settings(self) -> AsyncGenerator[dict[str, str], None]:
        """Yield those settings, now and whenever one changes, over all failures."""
        ...

    async def numbers(self) -> tuple[NodeNumber, ...]:
        """Return the numbers given so far, also those of nodes that are no members any more."""
        ...

    async def keep_number(self, number: NodeNumber) -> None:
        """Keep whose a number is; before anybody is told it.

        Raises:
            NotLeaderError: The lead was lost: nothing was written.
        """
        ...

    async def forget_member(self, number: NodeNumber) -> None:
        """Keep the number, with what is struck, and count its node as no member, without a drain.

        Raises:
            NotLeaderError: The lead was lost: nothing was written.
        """
        ...

    async def set_drain(self, node_id: bytes, task: int | None) -> None:
        """Keep that a store server is to be emptied, by this task; None: not any more.

        Raises:
            NotLeaderError: The lead was lost: nothing was changed.
        """
        ...

    async def drains(self) -> dict[bytes, int]:
        """Return the tasks of the store servers that are to be emptied, by node id."""
        ...

    async def close(self) -> None:
        """Give the lead up, if it is held, and let go of everything."""
        ...
