"""The state of the world with one key, several servers, and a coordinator that can be out of reach.

Frames between leaders and servers are not in a network of their own: a frame arrives when the
server takes the step, which may be late or never, and again; the leader learns an answer in a later
step of its own, or never.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple, TypeVar, cast

from protocol_model.replicas.configuration import Budget, Configuration

__all__ = [
    "ABSENT",
    "JOINING",
    "NEVER",
    "SERVING",
    "Change",
    "Coordinator",
    "CopyTask",
    "Entry",
    "Extent",
    "Free",
    "Grant",
    "Held",
    "Leader",
    "Note",
    "NoteRequest",
    "Order",
    "Record",
    "Replica",
    "Server",
    "State",
    "Step",
    "Steps",
    "View",
    "Wait",
    "Writer",
    "changed",
    "holds",
    "initial",
    "leads",
    "newest_leader",
    "value_of",
]

Version = tuple[int, int]  # epoch, sequence
NEVER: Version = (0, 0)
OLD: Version = (0, 1)  # of a former leader
ABOVE_ALL: Version = (99, 0)
ABSENT, JOINING, SERVING = range(3)  # status of a leader
T = TypeVar("T")


class Note(NamedTuple):
    number: Version
    ordinal: int  # of the request; what it says


class Record(NamedTuple):
    part: int
    note: Note
    is_copy: bool = False


class Extent(NamedTuple):
    """One page of a server: its word, its record, its bytes."""

    version: Version = NEVER
    is_live: bool = False
    record: Record | None = None
    content: tuple[int, int] | None = None  # value, part


class Replica(NamedTuple):
    server: int
    extents: tuple[int, ...]  # in the order of the parts


class Held(NamedTuple):
    """An extent that somebody uses: a view."""

    extent: int
    version: Version


class CopyTask(NamedTuple):
    """A COPY that a server executes; bytes arrive part by part."""

    epoch: int
    version: Version
    extents: tuple[int, ...]
    source: Replica
    source_version: Version
    note: Note
    got: int


class Server(NamedTuple):
    """A store server; copies and fenced sessions end with its process, the rest persists."""

    epoch: int
    incarnation: int
    extents: tuple[Extent, ...]
    views: frozenset[Held] = frozenset()
    copies: frozenset[CopyTask] = frozenset()
    fenced: frozenset[int] = frozenset()

    def with_extent(self, at: int, now: Extent) -> Server:
        return self._replace(extents=changed(self.extents, at, now))


class Entry(NamedTuple):
    version: Version
    note: Note
    replicas: tuple[Replica, ...]
    is_copy: bool = False


class Grant(NamedTuple):
    """An open put."""

    writer: int
    version: Version
    replicas: tuple[Replica, ...]


class NoteRequest(NamedTuple):
    note: Note
    version: Version
    waits_for: frozenset[Replica]


class Order(NamedTuple):
    """One copy of a change: 0 not asked for, 1 asked, 2 sealed; and the note its record gets."""

    replica: Replica
    at: int
    note: Note


class Change(NamedTuple):
    version: Version
    orders: tuple[Order, ...]
    first_count: int  # copied from the object; the others from the first of these
    noted: Note  # the note that the new holders have, or are being sent
    request: NoteRequest | None = None  # which sends it


class Free(NamedTuple):
    """A FREE that is not FREED."""

    server: int
    extent: int
    version: Version
    writer: int  # whose session is fenced, -1: none
    is_cleared: bool = False


class Wait(NamedTuple):
    """An answer that waits for what leaves below a version, or for a tombstone instead."""

    kind: str  # remove or upsert
    below: Version
    stone: Version
    struck: frozenset[int]  # values
    value: int  # of the upsert
    is_absent: bool  # a member was not adopted: the tombstone is needed
    is_written: bool


class Leader(NamedTuple):
    status: int
    epoch: int
    incarnations: tuple[int, ...]  # per server, as it has adopted it, 0: never
    stone: Version  # tombstone that it knows
    sequence: int = 0
    entry: Entry | None = None
    put: Grant | None = None
    change: Change | None = None
    frees: frozenset[Free] = frozenset()
    waits: frozenset[Wait] = frozenset()
    request: NoteRequest | None = None
    pins: frozenset[Version | None] = frozenset()  # None: the key, whatever its version
    lost: frozenset[int] = frozenset()  # servers silent for longer than their grace
    bounds: tuple[Version, ...] = ()  # per server, as condemned
    condemned: frozenset[int] = frozenset()  # away, and removes need no tombstone for them

    @property
    def version_next(self) -> Version:
        return (self.epoch, self.sequence + 1)

    def has_adopted(self, s: int) -> bool:
        return self.incarnations[s] != 0 and s not in self.lost

    @property
    def has_adopted_all(self) -> bool:
        return all(self.has_adopted(s) for s in range(len(self.incarnations)))

    @property
    def is_short_of_members(self) -> bool:
        """Whether a remove needs a tombstone for the sake of a member that is away."""
        servers = range(len(self.incarnations))
        return not all(self.has_adopted(s) or s in self.condemned for s in servers)


class Coordinator(NamedTuple):
    """It is up or out of reach; holder: epoch of the leader whose lease runs, 0: nobody's."""

    is_up: bool = True
    epoch: int = 1
    holder: int = 1
    stone: Version = NEVER
    condemned: tuple[Version, ...] = ()  # per server: what it has up to this version is dropped
    stone_seen: Version | None = None  # without stones_read_last: read before the election


class Writer(NamedTuple):
    """A client with one put; sealed: (replica, part)."""

    phase: int = 0  # 0 idle, 1 writing, 2 ended, 3 gave up
    version: Version = NEVER
    replicas: tuple[Replica, ...] = ()
    incarnations: tuple[int, ...] = ()
    sealed: frozenset[tuple[int, int]] = frozenset()


class View(NamedTuple):
    """What a process looks at: is_whole when it uses it."""

    replica: Replica
    version: Version
    opened: int
    is_whole: bool


class State(NamedTuple):
    """The world.

    A value's status: 0 never acknowledged, 1 acknowledged, 2 may be gone, 3 its removal was
    acknowledged and all holders had cleared it, 4 the same on the strength of a tombstone.
    """

    coordinator: Coordinator
    leaders: tuple[Leader, Leader]
    servers: tuple[Server, ...]
    writers: tuple[Writer, ...]
    view: View | None
    values: tuple[int, ...]
    versions: tuple[tuple[Version, int], ...]  # which value each version has
    noted: tuple[int, int]  # (value, ordinal) acknowledged
    pinned: int  # epoch of the leader that acknowledged the pin of a live session, 0: none
    asked: int  # notes so far
    budget: Budget

    def is_in_touch(self, leader: Leader, s: int) -> bool:
        """Does the server obey the leader, and the leader know this life of it?"""
        server = self.servers[s]
        return (
            leader.has_adopted(s)
            and leader.epoch == server.epoch
            and leader.incarnations[s] == server.incarnation
        )

    def with_leader(self, i: int, now: Leader) -> State:
        return self._replace(leaders=cast(tuple[Leader, Leader], changed(self.leaders, i, now)))

    def with_server(self, s: int, now: Server) -> State:
        return self._replace(servers=changed(self.servers, s, now))

    def with_writer(self, w: int, now: Writer) -> State:
        return self._replace(writers=changed(self.writers, w, now))

    def spending(self, name: str) -> State:
        left = getattr(self.budget, name) - 1
        return self._replace(budget=self.budget._replace(**{name: left}))


Step = tuple[str, State, str | None]
Steps = Iterator[Step]


def changed(items: tuple[T, ...], at: int, now: T) -> tuple[T, ...]:
    return (*items[:at], now, *items[at + 1 :])


def value_of(state: State, version: Version) -> int:
    return dict(state.versions)[version]


def holds(state: State, replica: Replica, version: Version) -> bool:
    """Do all words of a replica say that this version lives there?"""
    extents = state.servers[replica.server].extents
    return all(extents[at].version == version and extents[at].is_live for at in replica.extents)


def newest_leader(state: State) -> Leader:
    return max(state.leaders, key=lambda leader: leader.epoch)


def leads(state: State, config: Configuration, leader: Leader) -> bool:
    """May it answer a client now?"""
    if leader.status != SERVING:
        return False
    return "lease" not in config.rules or state.coordinator.holder == leader.epoch


def no_leader(config: Configuration) -> Leader:
    count = len(config.extents)
    return Leader(ABSENT, 0, (0,) * count, NEVER, bounds=(NEVER,) * count)


def initial(config: Configuration) -> State:
    """Return the state in which leader 1 serves and has adopted all servers."""
    first, note = (1, 0), Note((1, 0), 0)
    replicas = []
    servers = []
    for s, count in enumerate(config.extents):
        extents = [Extent()] * count
        if config.is_stored and s < config.replicas:
            for part in range(config.parts):
                extents[part] = Extent(first, True, Record(part, note), (0, part))
            replicas.append(Replica(s, tuple(range(config.parts))))
        servers.append(Server(1, 1, tuple(extents)))
    entry = Entry(first, note, tuple(replicas)) if config.is_stored else None
    stone = OLD if config.has_tombstone else NEVER
    nothing = (NEVER,) * len(config.extents)
    ones = (1,) * len(config.extents)
    leader = Leader(SERVING, 1, ones, stone, 0, entry, bounds=nothing)
    return State(
        Coordinator(stone=stone, condemned=nothing),
        (leader, no_leader(config)),
        tuple(servers),
        (Writer(),) * len(config.puts),
        None,
        (1 if config.is_stored else 0,) + (0,) * len(config.puts),
        ((first, 0),) if config.is_stored else (),
        (0, 0),
        0,
        0,
        config.budget,
    )
