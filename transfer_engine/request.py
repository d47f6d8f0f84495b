"""What is moved, and what comes of it: segments, requests and their states."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import TYPE_CHECKING, Any

from mooncake_store._native import ffi
from mooncake_store.errors import RequestError, Status
from mooncake_store.transfer_engine.boundary import Buffer, range_of
from mooncake_store.transfer_engine.priority import Priority

if TYPE_CHECKING:
    from mooncake_store.transfer_engine.engine import TransferEngine

__all__ = [
    "Answer",
    "Notification",
    "Opcode",
    "Region",
    "Segment",
    "TransferRequest",
    "TransferState",
    "TransferStatus",
    "c_options",
    "pack",
]

_REQUEST = struct.Struct("=iIQQQ")


class Opcode(IntEnum):
    """The direction of a transfer, as seen from here."""

    READ = 0
    WRITE = 1


class TransferState(IntEnum):
    """Where one request stands."""

    WAITING = 0
    PENDING = 1
    COMPLETED = 2
    FAILED = 3
    TIMED_OUT = 4
    CANCELLED = 5

    @property
    def is_final(self) -> bool:
        """Whether the request has ended: nothing touches its memory any more."""
        return self >= TransferState.COMPLETED


@dataclass(frozen=True, slots=True)
class TransferStatus:
    """State of one request of a batch.

    Attributes:
        state: Where it stands.
        status: Why it failed; OK when it completed, PENDING while it has not ended.
        bytes: Moved; 0 unless it completed.
    """

    state: TransferState
    status: Status
    bytes: int


@dataclass(frozen=True, slots=True)
class Region:
    """Memory registered at a peer."""

    address: int
    length: int


@dataclass(frozen=True, slots=True)
class Notification:
    """A message of another engine."""

    name: str
    message: str


@dataclass(frozen=True, slots=True)
class Answer:
    """What a peer answered to `call`: its status, body, and payload."""

    status: Status
    body: bytes
    payload: bytes


@dataclass(frozen=True, slots=True)
class Segment:
    """A peer's memory, opened."""

    engine: TransferEngine
    handle: int
    address: str

    def regions(self) -> list[Region]:
        """Return what the peer had registered when the segment was last opened."""
        return self.engine._regions(self.handle)

    def close(self) -> None:
        """Close it; requests that run keep it until they end."""
        self.engine.close_segment(self)


@dataclass(frozen=True, slots=True)
class TransferRequest:
    """Bytes to move between local memory and a peer's.

    Attributes:
        opcode: READ brings bytes here, WRITE takes them there.
        segment: The peer.
        local_address: Inside memory that is registered here.
        remote_address: Inside memory that is registered there.
        length: Bytes.
    """

    opcode: Opcode
    segment: Segment
    local_address: int
    remote_address: int
    length: int

    @classmethod
    def read(
        cls, segment: Segment, target: Buffer | int, remote_address: int, length: int | None = None
    ) -> TransferRequest:
        """Bring bytes from the peer into `target`."""
        address, size = range_of(target, length)
        return cls(Opcode.READ, segment, address, remote_address, size)

    @classmethod
    def write(
        cls, segment: Segment, source: Buffer | int, remote_address: int, length: int | None = None
    ) -> TransferRequest:
        """Take the bytes of `source` to the peer."""
        address, size = range_of(source, length)
        return cls(Opcode.WRITE, segment, address, remote_address, size)


def pack(requests: Sequence[TransferRequest]) -> bytes:
    return b"".join(
        _REQUEST.pack(
            request.opcode,
            request.segment.handle,
            request.local_address,
            request.remote_address,
            request.length,
        )
        for request in requests
    )


def c_options(priority: Priority, tenant: int, weight: int) -> Any:
    """Return the options of a submission; NULL for those that nobody has set."""
    if priority == Priority.NORMAL and tenant == 0 and weight == 1:
        return ffi.NULL
    if not 1 <= weight <= 1024 or not 0 <= tenant < 1 << 64:
        raise RequestError(
            f"weight must be 1 to 1024 and tenant a number of 64 bits, not {weight} and {tenant}"
        )
    made: Any = ffi.new("te_transfer_options *")
    made.priority, made.tenant, made.weight = Priority(priority), tenant, weight
    return made
