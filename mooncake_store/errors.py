"""Everything that this package raises, in one tree.

    StoreError
    ├── ObjectError                what was asked of one object cannot be
    │   ├── ObjectNotFoundError        no such key, or it has just left
    │   ├── ObjectExistsError          the key is stored already, objects never change
    │   ├── ObjectBusyError            somebody else is putting that key
    │   └── ObjectPinnedError          a hard pin protects it
    ├── CapacityError              there is no room
    │   ├── PoolFullError              what is left is pinned, leased or being written
    │   ├── StorageFullError           not the pool: the file system under a server's memory
    │   ├── ObjectTooLargeError        it would never fit
    │   └── LimitError                 a bound of this process: memory, connections, batches
    ├── TransferError              bytes could not be moved
    │   ├── TransferTimeoutError       not within the deadline (also a TimeoutError)
    │   ├── TransferCancelledError
    │   ├── ChecksumError              the bytes are not those that were put
    │   └── DeviceError                reading or writing memory or a disk failed
    ├── ClusterError               a process that is needed does not (or must not) answer
    │   ├── UnavailableError           no connection, or it is starting
    │   ├── NotLeaderError             this master lost its term
    │   ├── SessionLostError           the master or a server gave this client up
    │   ├── VersionMismatchError       the two speak no common protocol version
    │   ├── ProtocolError              a frame that makes no sense
    │   └── AccessRefusedError         identity, token or right
    │       └── InUseError                 another process holds the port, the socket or the lock
    ├── RequestError               the caller's mistake (also a ValueError)
    │   ├── InvalidKeyError
    │   ├── BufferTooSmallError
    │   ├── NotRegisteredError         memory, segment or batch that the engine does not know
    │   ├── UnknownInstanceError       an inference instance or request that the conductor does not
    │   └── ConfigError                a setting, a file or a flag
    ├── ClosedError                the client was closed, or is used after a fork
    └── InternalError              a broken promise of this package: please report it

An absent object is not an error where absence is an answer: `get` returns None.
C returns an `ms_status`; `error_from_status` is the only place that turns one into an exception.
"""

from __future__ import annotations

from enum import IntEnum
from typing import Any, NamedTuple

__all__ = [
    "ERROR_CODES",
    "AccessRefusedError",
    "BufferTooSmallError",
    "CapacityError",
    "ChecksumError",
    "ClosedError",
    "ClusterError",
    "ConfigError",
    "DeviceError",
    "InUseError",
    "InternalError",
    "InvalidKeyError",
    "LimitError",
    "NotLeaderError",
    "NotRegisteredError",
    "ObjectBusyError",
    "ObjectError",
    "ObjectExistsError",
    "ObjectNotFoundError",
    "ObjectPinnedError",
    "ObjectTooLargeError",
    "PoolFullError",
    "ProtocolError",
    "RequestError",
    "SessionLostError",
    "Status",
    "StorageFullError",
    "StoreError",
    "TransferCancelledError",
    "TransferError",
    "TransferTimeoutError",
    "UnavailableError",
    "UnknownInstanceError",
    "VersionMismatchError",
    "error_from_status",
]


class Status(IntEnum):
    """The C enum `ms_status`, number for number (a test compares them)."""

    OK = 0
    EXISTS = 1
    NOT_FOUND = 2
    GONE = 3
    NO_SPACE = 4
    BUSY = 5
    BAD_REQUEST = 6
    BAD_KEY = 7
    TOO_LARGE = 8
    BUFFER_TOO_SMALL = 9
    TIMEOUT = 10
    CANCELLED = 11
    UNAVAILABLE = 12
    WRONG_EPOCH = 13
    WRONG_INCARNATION = 14
    FENCED = 15
    SESSION_LOST = 16
    NOT_LEADER = 17
    VERSION_MISMATCH = 18
    BAD_FRAME = 19
    BAD_CHECKSUM = 20
    OUT_OF_RANGE = 21
    NOT_REGISTERED = 22
    NO_MEMORY = 23
    IO_ERROR = 24
    REFUSED = 25
    CLOSED = 26
    LIMIT = 27
    COMPLETE = 28
    PINNED = 29
    FORKED = 30
    INTERNAL = 31
    PENDING = 32


class StoreError(Exception):
    """Something failed.

    The attributes say what was tried, with what, and whether to try again.

    Attributes:
        message: One sentence: what failed and why.
        key: The object's key, when one object is concerned.
        node: The process that was asked: a node's name or an address.
        stage: Where it failed: `connect`, `lookup`, `transfer`, `seal`, `commit`, ...
        elapsed_s: How long it was tried.
        cause: The error below, also as `__cause__`.
        retryable: Whether the same call can succeed later.
        code: Stable number of the failure, `MS-1301`, listed in docs/errors.md.
        hint: What to do next, or an empty string.
    """

    code: str = "MS-1000"
    retryable: bool = False
    hint: str = "the message says what failed; `mooncake-store doctor` checks this machine"

    def __init__(
        self,
        message: str,
        *,
        key: str | None = None,
        node: str | None = None,
        stage: str | None = None,
        elapsed_s: float | None = None,
        cause: BaseException | None = None,
        retryable: bool | None = None,
        code: str | None = None,
        hint: str | None = None,
    ) -> None:
        super().__init__(message)
        self.message = message
        self.key = key
        self.node = node
        self.stage = stage
        self.elapsed_s = elapsed_s
        self.cause = cause
        if cause is not None:
            self.__cause__ = cause
        if retryable is not None:
            self.retryable = retryable
        if code is not None:
            self.code = code
        if hint is not None:
            self.hint = hint

    def __str__(self) -> str:
        facts = []
        if self.key is not None:
            facts.append(f"key {self.key!r}")
        if self.node is not None:
            facts.append(f"node {self.node}")
        if self.stage is not None:
            facts.append(f"stage {self.stage}")
        if self.elapsed_s is not None:
            facts.append(f"after {self.elapsed_s:.3f} s")
        suffix = f" ({', '.join(facts)})" if facts else ""
        return f"{self.code}: {self.message}{suffix}"

    def __reduce__(self) -> tuple[Any, ...]:
        # Exceptions are rebuilt from their arguments only, which would lose the facts on the way
        # back from another process.  The cause stays behind: it may be anything.
        facts = {name: value for name, value in vars(self).items() if name != "cause"}
        facts["cause"] = None
        return _rebuild, (type(self), self.message, facts)


def _rebuild(kind: type[StoreError], message: str, facts: dict[str, Any]) -> StoreError:
    error = kind(message)
    vars(error).update(facts)
    return error


class ObjectError(StoreError):
    """What was asked of one object cannot be done."""

    code = "MS-1007"
    hint = "`mooncake-store stat KEY` tells what the master knows of it"


class ObjectNotFoundError(ObjectError):
    """There is no object under that key, or it has just left."""

    code = "MS-1001"
    hint = "never stored, evicted or removed: `mooncake-store explain KEY` tells when and why"


class ObjectExistsError(ObjectError):
    """The key is stored already; objects never change."""

    code = "MS-1002"
    hint = "use upsert to replace it"


class ObjectBusyError(ObjectError):
    """Another put of that key is not finished yet."""

    code = "MS-1004"
    retryable = True
    hint = "try again once that put has ended, at the latest at its deadline"


class ObjectPinnedError(ObjectError):
    """A hard pin protects the object."""

    code = "MS-1005"
    hint = "clear the pin first, or remove it with force"


class CapacityError(StoreError):
    """There is no room for what was asked."""

    code = "MS-1400"
    hint = "`mooncake-store status` shows how full the pool is"


class PoolFullError(CapacityError):
    """The pool is full of objects that must stay: pinned, leased or being written."""

    code = "MS-1401"
    retryable = True
    hint = "unpin objects, let puts finish, or give the pool more memory"


class StorageFullError(CapacityError):
    """The file system under a store server's memory is full."""

    code = "MS-1405"
    retryable = True
    hint = "make room in that file system; the pool itself is not full"


class ObjectTooLargeError(CapacityError):
    """The object is larger than the pool, or than 16 GiB."""

    code = "MS-1404"
    hint = "cut it into several objects, or give the pool more memory"


class LimitError(CapacityError):
    """A bound of this process is reached: memory, connections, open batches."""

    code = "MS-1403"
    retryable = True
    hint = "finish or close some first, or raise the setting that bounds them"


class TransferError(StoreError):
    """Bytes could not be moved."""

    code = "MS-1300"
    hint = "`mooncake-store doctor` checks the way to the peer"


class TransferTimeoutError(TransferError, TimeoutError):
    """The call did not finish within its deadline; no late answer touches its buffers."""

    code = "MS-1301"
    retryable = True
    hint = "the peer may be frozen or overloaded; see `mooncake-store status`"


class TransferCancelledError(TransferError):
    """The transfer was cancelled by the caller."""

    code = "MS-1302"
    hint = "submit it again if it is still wanted"


class ChecksumError(TransferError):
    """The bytes that arrived are not those that were put."""

    code = "MS-1303"
    retryable = True
    hint = "read it again; if that does not help, the node's memory or its network is faulty"


class DeviceError(TransferError):
    """Reading or writing memory, a file or a disk failed."""

    code = "MS-1304"
    hint = "`mooncake-store doctor` checks memory, /dev/shm and limits of this machine"


class ClusterError(StoreError):
    """A process that is needed does not answer, or must not."""

    code = "MS-1200"
    hint = "`mooncake-store status` shows who is there"


class UnavailableError(ClusterError):
    """No connection can be made, the peer closed it, or the peer is still starting."""

    code = "MS-1201"
    retryable = True
    hint = "is it running? `mooncake-store status` asks the master; `up` starts one here"


class NotLeaderError(ClusterError):
    """This master does not lead (any more)."""

    code = "MS-1202"
    retryable = True
    hint = "try again: another master leads, or this one is starting or stopping"


class SessionLostError(ClusterError):
    """The master ended this client's session, or a server cut it off; its pins are gone."""

    code = "MS-1206"
    retryable = True
    hint = "the client opens a new session with its next call"


class VersionMismatchError(ClusterError):
    """The two sides speak no common version of the protocol."""

    code = "MS-1207"
    hint = "upgrade the older side; `mooncake-store version --json` names both"


class ProtocolError(ClusterError):
    """The peer sent, or was sent, a frame that makes no sense."""

    code = "MS-1209"
    hint = "check that the address is that of a master: what answers speaks something else"


class AccessRefusedError(ClusterError):
    """Identity, token or right does not allow this."""

    code = "MS-1208"
    hint = "check tenant and token; a Unix socket serves only the user that made it"


class InUseError(AccessRefusedError):
    """Another process holds the port, the socket or the lock that this one needs."""

    code = "MS-1210"
    hint = "stop that process, or choose another port, name or folder"


class RequestError(StoreError, ValueError):
    """The caller's mistake: the same call never succeeds."""

    code = "MS-1101"
    hint = "correct the call: as it is it never succeeds"


class InvalidKeyError(RequestError):
    """A key is 1 to 1024 bytes of UTF-8."""

    code = "MS-1102"
    hint = "shorten the key, or hash the part that is long"


class BufferTooSmallError(RequestError):
    """The object does not fit into the buffer that was given."""

    code = "MS-1104"
    hint = "`stat` tells the size: give a buffer of at least so many bytes"


class NotRegisteredError(RequestError):
    """The engine knows no such memory, segment, batch or peer, or the range leaves it."""

    code = "MS-1106"
    hint = "register the memory, or open the segment, before it is used"


class UnknownInstanceError(RequestError):
    """The conductor knows no such inference instance or request."""

    code = "MS-1110"
    hint = "an instance that was silent for long is forgotten: register it again"


class ConfigError(RequestError):
    """A setting, a configuration file or a flag is wrong."""

    code = "MS-1109"
    hint = "`mooncake-store help config` tells how settings are written and where they come from"


class ClosedError(StoreError):
    """The client was closed, or is used in a process that was forked after it was opened."""

    code = "MS-1107"
    hint = "open a new Client"


class InternalError(StoreError):
    """A promise of this package is broken."""

    code = "MS-1501"
    hint = "please report it, with the output of `mooncake-store doctor --json`"


class _Meaning(NamedTuple):
    kind: type[StoreError]
    sentence: str  # for when C has none
    code: str | None = None  # where several statuses share a class
    retryable: bool | None = None
    hint: str | None = None


_MEANING: dict[Status, _Meaning] = {
    Status.EXISTS: _Meaning(ObjectExistsError, "the key is stored already"),
    Status.NOT_FOUND: _Meaning(ObjectNotFoundError, "there is no such object"),
    Status.GONE: _Meaning(
        ObjectNotFoundError,
        "the object left while it was read",
        "MS-1003",
        True,
        "it was evicted, removed or replaced meanwhile: ask again",
    ),
    Status.NO_SPACE: _Meaning(
        PoolFullError, "the pool is full: what is left is pinned, leased or being written"
    ),
    Status.BUSY: _Meaning(ObjectBusyError, "another put of that key is open"),
    Status.BAD_REQUEST: _Meaning(RequestError, "the request makes no sense"),
    Status.BAD_KEY: _Meaning(InvalidKeyError, "a key is 1 to 1024 bytes of UTF-8"),
    Status.TOO_LARGE: _Meaning(
        ObjectTooLargeError, "the object is larger than the pool, or than 16 GiB"
    ),
    Status.BUFFER_TOO_SMALL: _Meaning(
        BufferTooSmallError, "the object does not fit into the buffer"
    ),
    Status.TIMEOUT: _Meaning(TransferTimeoutError, "the deadline passed"),
    Status.CANCELLED: _Meaning(TransferCancelledError, "the transfer was cancelled"),
    Status.UNAVAILABLE: _Meaning(UnavailableError, "the peer cannot be reached"),
    Status.WRONG_EPOCH: _Meaning(
        NotLeaderError,
        "the request belongs to an earlier leadership",
        "MS-1203",
        hint="try again: the client asks the present leader with its next call",
    ),
    Status.WRONG_INCARNATION: _Meaning(
        UnavailableError, "the server has been restarted", "MS-1204", hint="look up again"
    ),
    Status.FENCED: _Meaning(SessionLostError, "the server has cut this session off", "MS-1205"),
    Status.SESSION_LOST: _Meaning(SessionLostError, "the master has ended this session"),
    Status.NOT_LEADER: _Meaning(NotLeaderError, "this master does not lead"),
    Status.VERSION_MISMATCH: _Meaning(
        VersionMismatchError, "the peer speaks no common protocol version"
    ),
    Status.BAD_FRAME: _Meaning(ProtocolError, "a frame makes no sense"),
    Status.BAD_CHECKSUM: _Meaning(ChecksumError, "the checksum does not match"),
    Status.OUT_OF_RANGE: _Meaning(
        NotRegisteredError,
        "the range lies outside its segment or memory",
        "MS-1105",
        hint="stay within what was registered, or register more",
    ),
    Status.NOT_REGISTERED: _Meaning(
        NotRegisteredError, "no such memory, segment, batch or peer is known"
    ),
    Status.NO_MEMORY: _Meaning(
        LimitError,
        "this machine has no memory left",
        "MS-1402",
        hint="free memory here, or raise its limits: `mooncake-store doctor` shows them",
    ),
    Status.IO_ERROR: _Meaning(DeviceError, "the operating system reported an error"),
    Status.REFUSED: _Meaning(AccessRefusedError, "identity, token or right does not allow it"),
    Status.CLOSED: _Meaning(ClosedError, "the client is closed"),
    Status.LIMIT: _Meaning(LimitError, "a bound of this process is reached"),
    Status.COMPLETE: _Meaning(
        ObjectExistsError, "the put is complete and cannot be revoked", "MS-1006", hint="remove it"
    ),
    Status.PINNED: _Meaning(ObjectPinnedError, "the object is hard-pinned"),
    Status.FORKED: _Meaning(ClosedError, "this process was forked after the client", "MS-1108"),
    Status.INTERNAL: _Meaning(InternalError, "an internal promise is broken"),
    Status.PENDING: _Meaning(InternalError, "not finished yet, and nobody waited", "MS-1502"),
}


def error_from_status(
    status: int,
    message: str = "",
    *,
    key: str | None = None,
    node: str | None = None,
    stage: str | None = None,
    elapsed_s: float | None = None,
    cause: BaseException | None = None,
) -> StoreError:
    """Return (not raise) the exception that an `ms_status` other than OK means.

    Args:
        status: What C returned.
        message: What C said about it; empty for the status's own sentence.
        key: The object's key.
        node: The process that was asked.
        stage: Where it failed.
        elapsed_s: How long it was tried.
        cause: The error below.
    """
    assert status != Status.OK, "OK is no error"
    try:
        meaning = _MEANING[Status(status)]
    except ValueError:  # a newer peer's number, relayed
        meaning = _Meaning(InternalError, f"status {status} is unknown to this version")
    if status == Status.NO_SPACE and stage == "write":
        # The master has granted the room; what is full is where the server keeps its records.
        meaning = _Meaning(StorageFullError, "the file system under the server's memory is full")
    return meaning.kind(
        message or meaning.sentence,
        key=key,
        node=node,
        stage=stage,
        elapsed_s=elapsed_s,
        cause=cause,
        retryable=meaning.retryable,
        code=meaning.code,
        hint=meaning.hint,
    )


class ErrorCode(NamedTuple):
    """One row of docs/errors.md."""

    code: str
    exception: str
    meaning: str
    retryable: bool
    hint: str


def _codes() -> dict[str, ErrorCode]:
    def row(error: StoreError) -> ErrorCode:
        name = type(error).__name__
        return ErrorCode(error.code, name, error.message, error.retryable, error.hint)

    rows = {}
    kinds: list[type[StoreError]] = [StoreError]
    for kind in kinds:  # grows while it is walked
        kinds += kind.__subclasses__()
        sentence = (kind.__doc__ or "").splitlines()[0].rstrip(".")
        rows[kind.code] = row(kind(sentence[:1].lower() + sentence[1:]))
    # Where a status has its own sentence, that one is shorter.
    for status in _MEANING:
        error = error_from_status(status)
        rows[error.code] = row(error)
    return dict(sorted(rows.items()))


ERROR_CODES = _codes()
"""Every code that an exception of this package can have, in order."""
