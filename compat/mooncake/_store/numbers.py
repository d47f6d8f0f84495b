"""The error numbers that engines know, and which of our failures is which."""

from __future__ import annotations

from collections.abc import Sequence
from enum import IntEnum

from mooncake_store.errors import (
    BufferTooSmallError,
    CapacityError,
    ClosedError,
    ClusterError,
    LimitError,
    ObjectBusyError,
    ObjectExistsError,
    ObjectNotFoundError,
    ObjectPinnedError,
    RequestError,
    Status,
    StoreError,
    TransferError,
)

__all__ = ["ErrorNumber", "number_of_error", "number_of_status", "numbers_of"]


class ErrorNumber(IntEnum):
    """What a call answers when it fails."""

    INTERNAL_ERROR = -1
    BUFFER_OVERFLOW = -10
    SEGMENT_NOT_FOUND = -101
    NO_AVAILABLE_HANDLE = -200
    INVALID_VERSION = -300
    INVALID_PARAMS = -600
    ILLEGAL_CLIENT = -601
    REPLICA_IS_NOT_READY = -703
    OBJECT_NOT_FOUND = -704
    OBJECT_ALREADY_EXISTS = -705
    OBJECT_HAS_LEASE = -706
    TRANSFER_FAIL = -800
    RPC_FAIL = -900
    UNAVAILABLE_IN_CURRENT_MODE = -1011
    FILE_OPEN_FAIL = -1101
    TASK_NOT_FOUND = -1400


_OF_STATUS = {
    Status.EXISTS: 0,
    Status.NOT_FOUND: ErrorNumber.OBJECT_NOT_FOUND,
    Status.GONE: ErrorNumber.OBJECT_NOT_FOUND,
    Status.NO_SPACE: ErrorNumber.NO_AVAILABLE_HANDLE,
    Status.BUSY: ErrorNumber.REPLICA_IS_NOT_READY,
    Status.BAD_REQUEST: ErrorNumber.INVALID_PARAMS,
    Status.BAD_KEY: ErrorNumber.INVALID_PARAMS,
    Status.TOO_LARGE: ErrorNumber.NO_AVAILABLE_HANDLE,
    Status.BUFFER_TOO_SMALL: ErrorNumber.INVALID_PARAMS,
    Status.TIMEOUT: ErrorNumber.TRANSFER_FAIL,
    Status.CANCELLED: ErrorNumber.TRANSFER_FAIL,
    Status.UNAVAILABLE: ErrorNumber.RPC_FAIL,
    Status.WRONG_EPOCH: ErrorNumber.RPC_FAIL,
    Status.WRONG_INCARNATION: ErrorNumber.RPC_FAIL,
    Status.FENCED: ErrorNumber.RPC_FAIL,
    Status.SESSION_LOST: ErrorNumber.RPC_FAIL,
    Status.NOT_LEADER: ErrorNumber.RPC_FAIL,
    Status.VERSION_MISMATCH: ErrorNumber.INVALID_VERSION,
    Status.BAD_FRAME: ErrorNumber.RPC_FAIL,
    Status.BAD_CHECKSUM: ErrorNumber.TRANSFER_FAIL,
    Status.OUT_OF_RANGE: ErrorNumber.TRANSFER_FAIL,
    Status.NOT_REGISTERED: ErrorNumber.INVALID_PARAMS,
    Status.NO_MEMORY: ErrorNumber.BUFFER_OVERFLOW,
    Status.IO_ERROR: ErrorNumber.TRANSFER_FAIL,
    Status.REFUSED: ErrorNumber.ILLEGAL_CLIENT,
    Status.CLOSED: ErrorNumber.INVALID_PARAMS,
    Status.LIMIT: ErrorNumber.BUFFER_OVERFLOW,
    Status.COMPLETE: ErrorNumber.OBJECT_ALREADY_EXISTS,
    Status.PINNED: ErrorNumber.OBJECT_HAS_LEASE,
    Status.FORKED: ErrorNumber.INVALID_PARAMS,
}

# From the special to the general.
_OF_ERROR: tuple[tuple[type[StoreError], ErrorNumber | int], ...] = (
    (ObjectNotFoundError, ErrorNumber.OBJECT_NOT_FOUND),
    (ObjectExistsError, 0),
    (ObjectBusyError, ErrorNumber.REPLICA_IS_NOT_READY),
    (ObjectPinnedError, ErrorNumber.OBJECT_HAS_LEASE),
    (LimitError, ErrorNumber.BUFFER_OVERFLOW),
    (CapacityError, ErrorNumber.NO_AVAILABLE_HANDLE),
    (BufferTooSmallError, ErrorNumber.INVALID_PARAMS),
    (RequestError, ErrorNumber.INVALID_PARAMS),
    (ClosedError, ErrorNumber.INVALID_PARAMS),
    (TransferError, ErrorNumber.TRANSFER_FAIL),
    (ClusterError, ErrorNumber.RPC_FAIL),
)


def number_of_status(status: int) -> int:
    """Return the number for an `ms_status`."""
    return int(_OF_STATUS.get(status, ErrorNumber.INTERNAL_ERROR))  # type: ignore[call-overload]


def number_of_error(error: StoreError) -> int:
    """Return the number for an exception; 0: the key was there, which is no failure of a put."""
    for kind, number in _OF_ERROR:
        if isinstance(error, kind):
            return int(number)
    return int(ErrorNumber.INTERNAL_ERROR)


def numbers_of(results: Sequence[int]) -> list[int]:
    """Return results in which what is negative is a status, with numbers instead."""
    return [each if each >= 0 else number_of_status(-each) for each in results]
