"""What a coordinator does for masters and store servers, whichever service is behind it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

__all__ = ["Coordinator", "Leadership", "Tombstone"]


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
class Tombstone:
    """Nothing of this key up to this version counts any more (protocol, sections 3 and 5).

    Attributes:
        key_hash: The 16 bytes that stand for the key on the wire.
        version: The newest version that is struck.
    """

    key_hash: bytes
    version: int


class Coordinator(Protocol):
    """One cluster's coordination service, as a master or a store server sees it.

    A master calls `lead` and everything below it; a store server only `epoch` and `raise_member`.
    """

    @property
    def name(self) -> str:
        """What it is and where, for people and logs."""
        ...

    async def lead(self, address: str) -> Leadership:
        """Become the leader, with an epoch that nobody has had.

        Args:
            address: Where this master can be reached, for those who find it leading already.

        Raises:
            InUseError: Another master leads; the message says which process.
        """
        ...

    async def write_tombstones(self, tombstones: Sequence[Tombstone]) -> None:
        """Keep tombstones for the leaders to come.

        Raises:
            NotLeaderError: The lead was lost: nothing was written.
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

    async def close(self) -> None:
        """Give the lead up, if it is held, and let go of everything."""
        ...
