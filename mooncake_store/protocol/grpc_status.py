"""From an exception of this package to what a gRPC caller sees."""

from __future__ import annotations

import grpc

from mooncake_store.errors import (
    AccessRefusedError,
    CapacityError,
    ClosedError,
    ClusterError,
    ObjectBusyError,
    ObjectExistsError,
    ObjectNotFoundError,
    ObjectPinnedError,
    ObjectTooLargeError,
    ProtocolError,
    RequestError,
    SessionLostError,
    StoreError,
    TransferCancelledError,
    TransferError,
    TransferTimeoutError,
    UnknownInstanceError,
    VersionMismatchError,
)

__all__ = ["details_of", "grpc_code"]

# The first class that fits counts, so leaves stand before their parents.
_CODES: tuple[tuple[type[StoreError], grpc.StatusCode], ...] = (
    (ObjectNotFoundError, grpc.StatusCode.NOT_FOUND),
    (SessionLostError, grpc.StatusCode.NOT_FOUND),
    (ObjectExistsError, grpc.StatusCode.ALREADY_EXISTS),
    (ObjectBusyError, grpc.StatusCode.ABORTED),
    (ObjectPinnedError, grpc.StatusCode.FAILED_PRECONDITION),
    (ObjectTooLargeError, grpc.StatusCode.INVALID_ARGUMENT),
    (CapacityError, grpc.StatusCode.RESOURCE_EXHAUSTED),
    (TransferTimeoutError, grpc.StatusCode.DEADLINE_EXCEEDED),
    (TransferCancelledError, grpc.StatusCode.CANCELLED),
    (TransferError, grpc.StatusCode.DATA_LOSS),
    (AccessRefusedError, grpc.StatusCode.PERMISSION_DENIED),
    (VersionMismatchError, grpc.StatusCode.FAILED_PRECONDITION),
    (ProtocolError, grpc.StatusCode.INVALID_ARGUMENT),
    (ClusterError, grpc.StatusCode.UNAVAILABLE),
    (ClosedError, grpc.StatusCode.UNAVAILABLE),
    (UnknownInstanceError, grpc.StatusCode.NOT_FOUND),
    (RequestError, grpc.StatusCode.INVALID_ARGUMENT),
)


def grpc_code(error: StoreError) -> grpc.StatusCode:
    """Return the gRPC status code of an exception."""
    for kind, code in _CODES:
        if isinstance(error, kind):
            return code
    return grpc.StatusCode.INTERNAL


def details_of(error: StoreError) -> str:
    """Return the text for `details`: it begins with the stable code of the failure."""
    return str(error)
