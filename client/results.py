"""What calls answer when it is more than a number."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = [
    "Counters",
    "EventPage",
    "Explanation",
    "Fate",
    "Listed",
    "Member",
    "ObjectStat",
    "OpenPut",
    "ReplicaPlace",
    "ReplicaStat",
    "Statistics",
    "StoreEvent",
    "Task",
    "TaskFailure",
]


@dataclass(frozen=True, slots=True)
class ReplicaStat:
    """One copy of an object."""

    node: str
    tier: str
    extent_count: int
    is_complete: bool


@dataclass(frozen=True, slots=True)
class ObjectStat:
    """What the master knows of an object.

    Attributes:
        size_bytes: Of the value.
        version: Names this put of the key; no other ever has it.
        ttl_s: What is left; None: it stays until it is evicted or removed.
        pin_count: Pins of sessions.
        idle_s: Since the last use that the master knows of.
        checksum: CRC32C of the value; None: it was put without.
        replicas_wanted: What is short of so many is copied again in the background.
    """

    key: str
    size_bytes: int
    version: int
    replicas: tuple[ReplicaStat, ...]
    replicas_wanted: int
    age_s: float
    idle_s: float
    ttl_s: float | None
    pin_count: int
    use_count: int
    is_hard_pinned: bool
    is_soft_pinned: bool
    checksum: int | None


@dataclass(frozen=True, slots=True)
class ReplicaPlace:
    """Where one copy of an object lies.

    Attributes:
        node_state: Of its store server: `joining`, `ready`, `draining` or `gone`.
        extents: First page and number of pages of each piece, in the order of the bytes.
    """

    node: str
    node_state: str
    tier: str
    segment: int
    extents: tuple[tuple[int, int], ...]
    is_complete: bool


@dataclass(frozen=True, slots=True)
class OpenPut:
    """A put that has begun and not ended.

    Attributes:
        version: None: it waits for room.
        session_name: As the putting client calls itself; empty when it is not known any more.
        deadline_s: What is left; then its session ends.
    """

    version: int | None
    size_bytes: int
    session: int
    session_name: str
    deadline_s: float


@dataclass(frozen=True, slots=True)
class Fate:
    """How an object, or a put of it, ended.

    Attributes:
        kind: `evicted_for_put`, `evicted_at_watermark`, `evicted_for_copy`, `expired`, `removed`,
            `replaced`, `outranked`, `node_lost`, `not_kept`, `struck`, `condemned`,
            `put_session_ended`, `put_deadline`, `put_revoked`, `put_no_space`,
            `put_node_restarted`; docs/protocol.md tells what each means.
        version: None: of a put that was never granted.
        age_s: Since then.
        session: Who did it, or for whom it was done; None: nobody.
        session_name: As that client calls itself; empty when it is not known any more.
        bytes_wanted: Of the put that needed room or took its place; see docs/protocol.md.
        node: The store server of its first replica.
    """

    kind: str
    version: int | None
    size_bytes: int
    age_s: float
    session: int | None
    session_name: str
    bytes_wanted: int
    node: str | None


@dataclass(frozen=True, slots=True)
class Explanation:
    """Where an object is, or when and why it went.

    Attributes:
        stat: None: it is not stored.
        places: Of its replicas.
        parent_hash: Of the key that it was put as a child of, 16 bytes; None: of none.
        child_count: Stored objects whose parent it is.
        open_put: A put of that key that is under way.
        fates: How it and earlier objects of that key ended, newest first; at most 16.
        leading_s: Since the master leads: of what was before, it knows nothing.
        history_s: Nothing that happened within this is missing.
        policy: Of eviction.
    """

    key: str
    stat: ObjectStat | None
    places: tuple[ReplicaPlace, ...]
    group: int
    parent_hash: bytes | None
    child_count: int
    open_put: OpenPut | None
    fates: tuple[Fate, ...]
    leading_s: float
    history_s: float
    policy: str


@dataclass(frozen=True, slots=True)
class Listed:
    """One object of a listing."""

    key: str
    size_bytes: int
    replica_count: int
    is_hard_pinned: bool
    is_pinned: bool
    ttl_s: float | None


@dataclass(frozen=True, slots=True)
class Member:
    """A store server as the master sees it."""

    name: str
    node_id: str
    server: int
    incarnation: int
    state: str
    host: str
    addresses: tuple[str, ...]
    unix_path: str
    size_bytes: int
    ready_bytes: int


@dataclass(frozen=True, slots=True)
class StoreEvent:
    """What happened to an object or a store server.

    Attributes:
        kind: A number of `protocol.methods.EventKind`.
        key: Of the object; empty for events of servers.
        server: Number of the store server concerned, or None.
    """

    kind: int
    key: str
    server: int | None


@dataclass(frozen=True, slots=True)
class EventPage:
    """Events that follow each other.

    Attributes:
        epoch: Of the master.
        next_sequence: To be asked for next.
    """

    epoch: int
    next_sequence: int
    events: list[StoreEvent]


@dataclass(frozen=True, slots=True)
class TaskFailure:
    """An object that a task could not treat.

    Attributes:
        reason: For people: `no room elsewhere`.
    """

    key: str
    size_bytes: int
    reason: str


@dataclass(frozen=True, slots=True)
class Task:
    """What the master does to many objects in the background, and how far it is.

    Attributes:
        id: `7-3`: the epoch of the master that began it, and its number there.
        kind: `drain`, `repair`, `replicate` or `move`.
        state: `waiting` (for its store server), `running`, `blocked` (what is left cannot move now,
            and is tried again), `done` or `cancelled`.
        source: The store server that replicas leave.
        target: The one that they go to; None: any.
        prefix: Of the keys that it is about.
        replicas: What `replicate` makes them have.
        objects_total: 0: not known yet.
        bytes_done: Of new replicas.
        objects_failed: In the last walk over all objects; `failures` has the first of them.
        objects_left: Drain: replicas still there. Repair: objects short of some.
        sole_left: Drain: of those, in the last walk, the ones without a replica elsewhere.
        age_s: Since it began.
        ended_s: Since it ended; None: it has not.
    """

    id: str
    kind: str
    state: str
    source: str | None
    target: str | None
    prefix: str
    replicas: int | None
    objects_done: int
    objects_total: int
    bytes_done: int
    bytes_total: int
    objects_failed: int
    objects_left: int
    sole_left: int
    age_s: float
    ended_s: float | None
    failures: tuple[TaskFailure, ...]

    @property
    def has_ended(self) -> bool:
        """Whether nothing more happens."""
        return self.state in ("done", "cancelled")


@dataclass(frozen=True, slots=True)
class Statistics:
    """What this client has done so far, and with whom.

    Attributes:
        reads_moved: Reads that went to another replica because a node did not answer in time.
        puts_moved: Puts that were begun again because the node of their grant did not answer.
        calls_repeated: Calls that were sent again when the master, or the next one, was there.
        master_openings: How often nobody waited for the master any more.
        master_state: 0: it answers; 1: a call had no answer, and it is asked again; 2: no call
            waits for it, and it is asked again in the background.
        nodes_avoided: Store servers that do not answer now.
        rdma_read_bytes: Read by RDMA; `rdma_write_bytes`: written so.
        rdma_fallbacks: Reads and writes that went over TCP although there was a way by RDMA.
        epoch: Of the master that it has its session with.
        cluster: Id of the cluster of that session; 0: there was no session yet.
    """

    gets: int
    get_hits: int
    get_misses: int
    get_bytes: int
    get_bytes_local: int
    puts: int
    put_bytes: int
    put_bytes_local: int
    lookups: int
    locations_used: int
    locations_gone: int
    failures: int
    sessions_lost: int
    relayed_ends: int
    checksum_failures: int
    reads_moved: int
    puts_moved: int
    calls_repeated: int
    master_openings: int
    master_state: int
    nodes_avoided: int
    rdma_read_bytes: int
    rdma_write_bytes: int
    rdma_fallbacks: int
    epoch: int
    cluster: int


@dataclass(frozen=True, slots=True)
class Counters:
    """What the master has counted, by the names of its metrics without `mooncake_store_`.

    Attributes:
        totals: `lookup_hits_total` and the like; what ends in `_total` only grows.
        by_server: The same for single store servers, by their number (see `members`).
    """

    totals: dict[str, int]
    by_server: dict[int, dict[str, int]]
