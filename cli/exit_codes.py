"""What the command's exit status means."""

from __future__ import annotations

from enum import IntEnum

from mooncake_store.errors import (
    AccessRefusedError,
    CapacityError,
    ClusterError,
    ObjectBusyError,
    ObjectExistsError,
    ObjectNotFoundError,
    ObjectPinnedError,
    RequestError,
    StoreError,
    TransferTimeoutError,
    UnknownInstanceError,
)

__all__ = ["MEANINGS", "ExitCode", "exit_code_of", "worst_of"]


class ExitCode(IntEnum):
    """Stable: scripts rely on these."""

    OK = 0
    FAILED = 1
    USAGE = 2
    UNREACHABLE = 3
    NOT_FOUND = 4
    REFUSED = 5
    PARTIAL = 6
    INTERRUPTED = 130


MEANINGS = {
    ExitCode.OK: "done",
    ExitCode.FAILED: "the operation failed",
    ExitCode.USAGE: "wrong arguments or configuration",
    ExitCode.UNREACHABLE: "nobody answers there, or not within the deadline",
    ExitCode.NOT_FOUND: "no such object, instance or request",
    ExitCode.REFUSED: "refused: no room, no right, there already, pinned, or in use",
    ExitCode.PARTIAL: "done for some, failed for others",
    ExitCode.INTERRUPTED: "interrupted",
}

# The first that fits counts: subclasses stand before their parents.
_CODES: tuple[tuple[type[BaseException], ExitCode], ...] = (
    (ObjectNotFoundError, ExitCode.NOT_FOUND),
    (UnknownInstanceError, ExitCode.NOT_FOUND),
    (AccessRefusedError, ExitCode.REFUSED),
    (ObjectPinnedError, ExitCode.REFUSED),
    (ObjectExistsError, ExitCode.REFUSED),
    (ObjectBusyError, ExitCode.REFUSED),
    (CapacityError, ExitCode.REFUSED),
    (RequestError, ExitCode.USAGE),
    (TransferTimeoutError, ExitCode.UNREACHABLE),
    (ClusterError, ExitCode.UNREACHABLE),
    (StoreError, ExitCode.FAILED),
)


def exit_code_of(error: BaseException) -> ExitCode:
    """Return the exit status for a command that ended with `error`."""
    for kind, code in _CODES:
        if isinstance(error, kind):
            return code
    return ExitCode.FAILED


def worst_of(done: int, failures: list[ExitCode]) -> ExitCode:
    """Return the exit status of a command about several things.

    Args:
        done: How many of them were done.
        failures: The status of each that was not.
    """
    if not failures:
        return ExitCode.OK
    if done:
        return ExitCode.PARTIAL
    return failures[0] if len(set(failures)) == 1 else ExitCode.FAILED
