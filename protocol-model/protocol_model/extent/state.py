"""The state of the world: what each party knows, what is under way, and what has been promised.

Everything is a value, so that states can be compared and remembered.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import NamedTuple, TypeVar, cast

from protocol_model.extent.configuration import Budget, Configuration

__all__ = [
    "ABSENT",
    "ENDED",
    "GAVE_UP",
    "IDLE",
    "JOINING",
    "NO_READER",
    "REVOKED",
    "SEALED",
    "SERVING",
    "WRITING",
    "Acknowledged",
    "Adopt",
    "Cleared",
    "Commit",
    "Entry",
    "Free",
    "Freed",
    "Inventory",
    "LateEnd",
    "LateRemove",
    "Leader",
    "Location",
    "Message",
    "Owed",
    "Reader",
    "Record",
    "RelayedEnd",
    "Server",
    "Slot",
    "State",
    "Step",
    "Steps",
    "Tombstone",
    "Use",
    "View",
    "Wait",
    "Writer",
    "changed",
    "initial",
    "is_newer",
    "is_open_to",
    "lives",
    "version_of",
    "without_records",
    "word_after_free",
]

Version = tuple[int, int]  # epoch, sequence
# With version_words a version and a word with its live bit; without, the same counter for both.
Generation = int | Version
Word = int | tuple[Version, bool]

ABSENT, JOINING, SERVING = range(3)  # status of a leader
IDLE, WRITING, SEALED, ENDED, GAVE_UP, REVOKED = range(6)  # phase of a writer
T = TypeVar("T")


class Entry(NamedTuple):
    """A complete object in a leader's index."""

    extent: int
    generation: Generation
    value: int
    version: Version


class Slot(NamedTuple):
    """What a leader thinks of an extent.

    The code is U unknown, F free, W writing, C complete, Q being freed, V cleared but still in use.
    """

    code: str
    generation: Generation
    writer: int


class Wait(NamedTuple):
    """An answer that waits until an extent is CLEARED, of a removal or of a replacement."""

    extent: int
    generation: Generation
    value: int
    replacement: int  # 0: it is removed
    version: Version


class Leader(NamedTuple):
    """A master that leads, or believes that it does."""

    status: int
    epoch: int
    objects: tuple[Entry | None, ...]
    slots: tuple[Slot, ...]
    words: tuple[Word | None, ...]  # as it knows them; needed where words are counters
    adopted: tuple[int, ...]  # incarnation per server, 0: not adopted
    sequence: int
    waits: frozenset[Wait]


class Record(NamedTuple):
    extent: int
    generation: Generation
    key: int
    value: int
    version: Version


class Use(NamedTuple):
    extent: int
    generation: Generation


class Owed(NamedTuple):
    """A FREED that the server owes a leader."""

    epoch: int
    extent: int
    generation: Generation


class View(NamedTuple):
    extent: int
    generation: Generation
    value: int


class Server(NamedTuple):
    """A store server; all but the fenced sessions and what is owed survives its process."""

    epoch: int
    incarnation: int
    births: int  # of its memory
    words: tuple[Word, ...]
    payload: tuple[int, ...]  # the value each page holds, -1: none
    records: tuple[Record, ...]
    fenced: frozenset[int]
    epoch_max: int  # ever adopted; for S5 only
    uses: frozenset[Use]
    owed: frozenset[Owed]
    views: frozenset[View]  # as the processes have them open


class Writer(NamedTuple):
    """A client with its one put; in phase REVOKED a SEAL is still on its way."""

    phase: int = IDLE
    extent: int = -1
    generation: Generation = 0
    epoch: int = 0
    incarnation: int = 0
    done: int = 0  # bits, one a page
    checked: int = -1  # page whose check has passed
    version: Version | None = None


class Location(NamedTuple):
    extent: int
    generation: Generation
    removed: frozenset[tuple[int, int]]  # (value, status) when it was looked up
    epoch: int


class Reader(NamedTuple):
    is_reading: bool = False
    location: Location | None = None
    got: tuple[int, ...] = ()
    is_leased: bool = False
    removed: frozenset[tuple[int, int]] = frozenset()  # when the read began; (-1, 0): expired
    early: Word | None = None  # a word read too early


NO_READER = Reader()


# ---- messages: the kind is part of each, so that two of different kinds are never equal
class Adopt(NamedTuple):
    epoch: int
    server: int
    kind: str = "ADOPT"


class Inventory(NamedTuple):
    epoch: int
    server: int
    incarnation: int
    words: tuple[Word, ...]
    records: tuple[Record, ...]
    busy: frozenset[Use]
    kind: str = "INVENTORY"


class Commit(NamedTuple):
    """Without the rule seal: the leader's notice to the server that a put is complete."""

    epoch: int
    extent: int
    generation: Generation
    key: int
    value: int
    version: Version
    kind: str = "COMMIT"


class Free(NamedTuple):
    epoch: int
    extent: int
    generation: Generation
    writer: int  # whose session is fenced, -1: none
    incarnation: int
    kind: str = "FREE"


class Cleared(NamedTuple):
    epoch: int
    extent: int
    generation: Generation
    kind: str = "CLEARED"


class Freed(NamedTuple):
    epoch: int
    extent: int
    generation: Generation
    word: Word
    kind: str = "FREED"


class LateEnd(NamedTuple):
    """A copy of put_end that is still under way."""

    epoch: int
    writer: int
    extent: int
    generation: Generation
    kind: str = "PUT_END"


class RelayedEnd(NamedTuple):
    epoch: int
    writer: int
    extent: int
    generation: Generation
    kind: str = "RELAYED_END"


class Acknowledged(NamedTuple):
    """The leader's answer to a put that a server relayed."""

    epoch: int
    writer: int
    kind: str = "ANSWER"


class LateRemove(NamedTuple):
    epoch: int
    key: int
    kind: str = "REMOVE"


class Tombstone(NamedTuple):
    """No message: it lies at the coordinator, and every later leader reads it."""

    epoch: int
    key: int
    version: Version
    kind: str = "TOMBSTONE"


Message = (
    Adopt
    | Inventory
    | Commit
    | Free
    | Cleared
    | Freed
    | LateEnd
    | RelayedEnd
    | Acknowledged
    | LateRemove
    | Tombstone
)


class State(NamedTuple):
    """The world.

    A value's status: 0 never acknowledged, 1 acknowledged, 2 may be gone, 3 its removal was
    acknowledged and its holder had cleared it, 4 the same on the strength of a tombstone.
    """

    leaders: tuple[Leader, Leader]
    servers: tuple[Server, ...]
    network: frozenset[Message]
    writers: tuple[Writer, ...]
    reader: Reader
    values: tuple[int, ...]
    epoch: int
    budget: Budget

    def with_leader(self, leader: int, now: Leader) -> State:
        return self._replace(
            leaders=cast(tuple[Leader, Leader], changed(self.leaders, leader, now))
        )

    def with_server(self, server: int, now: Server) -> State:
        return self._replace(servers=changed(self.servers, server, now))

    def with_writer(self, writer: int, now: Writer) -> State:
        return self._replace(writers=changed(self.writers, writer, now))

    def sending(self, *messages: Message) -> State:
        return self._replace(network=self.network | set(messages))


Step = tuple[str, State, str | None]
Steps = Iterator[Step]


def changed(items: tuple[T, ...], at: int, now: T) -> tuple[T, ...]:
    return (*items[:at], now, *items[at + 1 :])


def initial(config: Configuration) -> State:
    """Return the state in which leader 1 serves and knows everything."""
    has_versions = "version_words" in config.rules
    words: list[Word] = [((0, 0), False) if has_versions else 1] * config.page_count
    index: list[Entry | None] = [None] * config.key_count
    slots = [Slot("F", 1, -1)] * len(config.extents)
    records: list[list[Record]] = [[] for _ in range(config.server_count)]
    payload = [-1] * config.page_count
    if config.is_stored:
        generation: Generation = (1, 0) if has_versions else 1
        index[0], slots[0] = Entry(0, generation, 0, (1, 0)), Slot("C", generation, -1)
        records[config.extents[0].server].append(Record(0, generation, 0, 0, (1, 0)))
        if has_versions:
            words[config.first_page(0)] = ((1, 0), True)
        for page in config.extents[0].pages:
            payload[page] = 0
    leader = Leader(
        SERVING,
        1,
        tuple(index),
        tuple(slots),
        tuple(words),
        (1,) * config.server_count,
        1,
        frozenset(),
    )
    servers = tuple(
        Server(
            1,
            1,
            1,
            tuple(words),
            tuple(payload),
            tuple(held),
            frozenset(),
            1,
            frozenset(),
            frozenset(),
            frozenset(),
        )
        for held in records
    )
    return State(
        (leader, no_leader(config)),
        servers,
        frozenset(),
        (Writer(),) * len(config.puts),
        NO_READER,
        (1 if config.is_stored else 0,) + (0,) * len(config.puts),
        1,
        config.budget,
    )


def no_leader(config: Configuration) -> Leader:
    """Return a leader that knows nothing yet."""
    return Leader(
        ABSENT,
        0,
        (None,) * config.key_count,
        (Slot("U", 0, -1),) * len(config.extents),
        (None,) * config.page_count,
        (0,) * config.server_count,
        0,
        frozenset(),
    )


# ---- words and versions --------------------------------------------------------------------------
def lives(word: Word, generation: Generation) -> bool:
    """Does the word say that this version lives there?"""
    return word == generation or word == (generation, True)


def is_open_to(word: Word, generation: Generation) -> bool:
    """May the writer of this version still write and seal?"""
    return is_newer(generation, word[0]) if isinstance(word, tuple) else word == generation


def is_newer(one: Generation, other: Generation) -> bool:
    # Within a scenario all are versions or all are counters.
    return one > other  # type: ignore[operator]


def word_after_free(rules: frozenset[str], word: Word, generation: Generation) -> Word:
    if isinstance(word, tuple):
        return word if is_newer(word[0], generation) else (cast(Version, generation), False)
    return word + 1 if word == generation or "free_exact" not in rules else word


def without_records(
    records: Iterable[Record], extent: int, generation: Generation
) -> tuple[Record, ...]:
    """Return the records less those of an extent up to a version."""
    return tuple(r for r in records if r.extent != extent or is_newer(r.generation, generation))


def version_of(state: State, value: int) -> Version | None:
    """Return the version under which a value was put, None: not put yet."""
    return state.writers[value - 1].version if value else (1, 0)
