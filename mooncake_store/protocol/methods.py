"""The enumerations of `ms_wire.h`, number for number (a test compares them)."""

from __future__ import annotations

from enum import IntEnum, IntFlag

__all__ = [
    "AnnotateField",
    "EventKind",
    "ExplainFlag",
    "FateKind",
    "FrameFlag",
    "InventoryState",
    "Kind",
    "MemberState",
    "Method",
    "ObjectFlag",
    "Policy",
    "PutFlag",
    "ReplicaState",
    "Right",
    "Role",
    "TaskKind",
    "TaskState",
    "Tier",
    "replicas_wanted",
]


class Kind(IntEnum):
    """What a frame is: who speaks, and whether an answer follows."""

    REQUEST = 0
    ANSWER = 1
    ONEWAY = 2


class Method(IntEnum):
    """What a frame asks for; grouped by who answers."""

    # every connection
    HELLO = 0x01
    PING = 0x02
    # transfer engine
    OPEN_SEGMENT = 0x10
    READ = 0x11
    WRITE = 0x12
    ATTACH = 0x13
    SHARE = 0x14
    UNSHARE = 0x15
    NOTIFY = 0x16
    CUT = 0x17
    RDMA_PORTS = 0x18
    RDMA_CONNECT = 0x19
    RDMA_DISCONNECT = 0x1A
    RDMA_SEGMENT = 0x1B
    # client to master
    TOPOLOGY = 0x1C
    EXISTS_KEYS = 0x20
    LOOKUP = 0x21
    MATCH_PREFIX = 0x22
    PUT_START = 0x23
    PUT_END = 0x24
    REVOKE = 0x25
    REMOVE = 0x26
    TOUCH = 0x27
    PIN = 0x28
    UNPIN = 0x29
    LIST = 0x2A
    STAT = 0x2B
    ANNOTATE = 0x2C
    CHANGE_REPLICA = 0x2D
    MEMBERS = 0x2E
    STATUS = 0x2F
    REMOVE_MATCHING = 0x30
    EVENTS = 0x31
    KEEPALIVE = 0x32
    CLOSE_SESSION = 0x33
    EXPLAIN = 0x34
    PINS = 0x35
    FORGET = 0x37
    START_TASK = 0x38
    TASKS = 0x39
    CANCEL_TASK = 0x3A
    # master and store server
    ADOPT = 0x40
    INVENTORY = 0x41
    FREE = 0x42
    CLEARED = 0x43
    FREED = 0x44
    NOTE = 0x45
    COPY = 0x46
    RELAYED_END = 0x47
    SERVER_STATS = 0x48
    # client to store server
    VIEW_OPEN = 0x50
    VIEW_CLOSE = 0x51
    SEAL = 0x52


class FrameFlag(IntFlag):
    """`ms_header.flags`, and `flags` of LIST, REMOVE_MATCHING and REMOVE's items."""

    LAST = 1 << 0
    RELAY = 1 << 1
    FORCE = 1 << 2
    REGEX = 1 << 3
    PEEK = 1 << 4


class Role(IntEnum):
    """Who dials. A master that answers a HELLO says MASTER."""

    MASTER = 0
    CLIENT = 1
    SERVER = 2
    ENGINE = 3
    TOOL = 4


class Right(IntEnum):
    """What a connection may do, for ever."""

    READ = 1
    WRITE = 2


class MemberState(IntEnum):
    """A store server as the master sees it."""

    JOINING = 0
    READY = 1
    DRAINING = 2
    GONE = 3


class Tier(IntEnum):
    """What a segment is made of."""

    DRAM = 0
    SSD = 1
    VRAM = 2


class ReplicaState(IntEnum):
    """Where a replica is between its grant and its FREE."""

    WRITING = 0
    COMPLETE = 1
    LEAVING = 2


class ObjectFlag(IntFlag):
    """What holds for an object as a whole."""

    HARD_PIN = 1 << 0
    SOFT_PIN = 1 << 1
    HAS_CHECKSUM = 1 << 2
    IS_COPY = 1 << 3  # of a server's record: sealed by COPY, under a version of its own


OBJECT_WANTED_SHIFT = 4
"""Bits 4 to 7 beside these flags: how many replicas are wanted beyond the first."""


def replicas_wanted(flags: int) -> int:
    """Return how many replicas are wanted of an object with these flags."""
    return (flags >> OBJECT_WANTED_SHIFT & 15) + 1


class PutFlag(IntFlag):
    """How an item of PUT_START is meant."""

    UPSERT = 1 << 0
    HARD_PIN = 1 << 1
    SOFT_PIN = 1 << 2
    STRICT_REPLICAS = 1 << 3


class AnnotateField(IntFlag):
    """Which fields of ANNOTATE count."""

    HARD_PIN = 1
    SOFT_PIN = 2
    TTL = 4


class Policy(IntEnum):
    """Who leaves first when room is needed."""

    LRU = 0
    LFU = 1
    LENGTH_AWARE = 2
    SIEVE = 3


class ExplainFlag(IntFlag):
    """What there is of a key that EXPLAIN was asked about."""

    STORED = 1 << 0
    PUTTING = 1 << 1
    PARKED = 1 << 2


class FateKind(IntEnum):
    """How an object, or a put of it, ended."""

    EVICTED_FOR_PUT = 1
    EVICTED_AT_WATERMARK = 2
    EVICTED_FOR_COPY = 3
    EXPIRED = 4
    REMOVED = 5
    REPLACED = 6
    OUTRANKED = 7
    NODE_LOST = 8
    NOT_KEPT = 9
    STRUCK = 10
    CONDEMNED = 11
    PUT_SESSION_ENDED = 12
    PUT_DEADLINE = 13
    PUT_REVOKED = 14
    PUT_NO_SPACE = 15
    PUT_NODE_RESTARTED = 16


class TaskKind(IntEnum):
    """What is done to many objects in the background."""

    DRAIN = 1
    REPAIR = 2
    REPLICATE = 3
    MOVE = 4


class TaskState(IntEnum):
    """Where a task is; DONE and CANCELLED are its ends."""

    WAITING = 1
    RUNNING = 2
    BLOCKED = 3
    DONE = 4
    CANCELLED = 5


class EventKind(IntEnum):
    """What happened to an object or a server."""

    STORED = 1
    REMOVED = 2
    EVICTED = 3
    EXPIRED = 4
    REPLICA_ADDED = 5
    REPLICA_LOST = 6
    SERVER_JOINED = 7
    SERVER_LOST = 8
    LOST = 9


class InventoryState(IntEnum):
    """Why a server names an extent in its inventory."""

    LIVE = 1
    IN_USE = 2
