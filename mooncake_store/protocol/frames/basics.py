"""Numbers and small rules that several messages share."""

from __future__ import annotations

from mooncake_store.errors import ProtocolError, Status

__all__ = [
    "ADDRESSES_BYTES_MAX",
    "BODY_BYTES_MAX",
    "BODY_BYTES_MAX_HELLO",
    "EXTENTS_MAX",
    "FATES_MAX",
    "LOCATION_LIFETIME_MS",
    "MAGIC",
    "NAME_BYTES_MAX",
    "NOTIFY_BYTES_MAX",
    "NO_HASH",
    "NO_ID",
    "PAGE_SIZE",
    "PATTERN_BYTES_MAX",
    "REPLICAS_MAX",
    "SECRET_BYTES",
    "SENTENCE_BYTES_MAX",
    "SOCKET_PATH_BYTES_MAX",
    "TASK_FAILURES_MAX",
    "TOKEN_BYTES_MAX",
    "TOPOLOGY_BYTES_MAX",
    "U32_MAX",
    "U64_MAX",
    "VALUE_BYTES_MAX",
    "VIEWS_MAX",
    "WIRE_VERSION",
    "WIRE_VERSION_OLDEST",
    "check",
    "check_pages",
    "pages_of",
    "status_of",
    "version",
    "word",
]

MAGIC = 0x3153434D
WIRE_VERSION = 1
WIRE_VERSION_OLDEST = 1
PAGE_SIZE = 4096
VALUE_BYTES_MAX = 16 << 30
BODY_BYTES_MAX = 16 << 20
BODY_BYTES_MAX_HELLO = 64 << 10
EXTENTS_MAX = 256
VIEWS_MAX = 4096  # of one frame
FATES_MAX = 16
REPLICAS_MAX = 16
SECRET_BYTES = 192
LOCATION_LIFETIME_MS = 120_000
TOKEN_BYTES_MAX = 8192
NAME_BYTES_MAX = 255
SOCKET_PATH_BYTES_MAX = 107
ADDRESSES_BYTES_MAX = 4096
PATTERN_BYTES_MAX = 4096
NOTIFY_BYTES_MAX = 1 << 20
TOPOLOGY_BYTES_MAX = 1 << 20
SENTENCE_BYTES_MAX = 4096
TASK_FAILURES_MAX = 256

NO_HASH = bytes(16)
NO_ID = bytes(16)

U32_MAX = 2**32 - 1
U64_MAX = 2**64 - 1


def word(version: int, *, live: bool) -> int:
    """Return the generation word of a version."""
    return version << 1 | live


def version(epoch: int, sequence: int) -> int:
    """Return the version with this place in the leader's sequence."""
    return epoch << 43 | sequence


def pages_of(size: int) -> int:
    """Return how many pages an object of `size` bytes owns: at least one."""
    return max(1, -(-size // PAGE_SIZE))


def check(is_well_formed: bool, what: str) -> None:
    """Refuse what no peer of ours sends.

    Raises:
        ProtocolError: It is not well formed.
    """
    if not is_well_formed:
        raise ProtocolError(what)


def status_of(value: int) -> Status:
    """Return the status with this number.

    Raises:
        ProtocolError: There is none.
    """
    try:
        return Status(value)
    except ValueError as error:
        raise ProtocolError(f"unknown status {value}") from error


def check_pages(page: int, page_count: int) -> None:
    """Refuse an extent that is empty or wraps round.

    Raises:
        ProtocolError: It is one.
    """
    check(0 < page_count <= U32_MAX - page, f"pages {page} + {page_count}")
