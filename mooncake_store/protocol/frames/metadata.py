"""What clients and tools ask a master."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from mooncake_store.protocol.codec import Body, Counted, Keyed, Layout, Reader, Record, Writer
from mooncake_store.protocol.frames.basics import (
    FATES_MAX,
    NAME_BYTES_MAX,
    NO_HASH,
    PATTERN_BYTES_MAX,
    REPLICAS_MAX,
    check,
)
from mooncake_store.protocol.frames.forms import join_hashes
from mooncake_store.protocol.frames.hello import ServerInfo
from mooncake_store.protocol.frames.locations import Location
from mooncake_store.protocol.methods import ExplainFlag

__all__ = [
    "Annotate",
    "ChangeReplica",
    "Counter",
    "Counters",
    "EndItem",
    "Event",
    "EventsAnswer",
    "EventsRequest",
    "ExplainAnswer",
    "Fate",
    "KeepAliveAnswer",
    "KeyItem",
    "ListAnswer",
    "ListItem",
    "ListRequest",
    "Match",
    "Members",
    "NodeName",
    "Pins",
    "PinsItem",
    "PutEnd",
    "PutItem",
    "PutStart",
    "Remove",
    "Removed",
    "StatAnswer",
]

_BATCH = Layout("ms_batch", "number:Q number_done:Q count:I reserved:4x")


@dataclass(frozen=True, slots=True)
class Match(Body):
    """MATCH_PREFIX: the longest prefix. PIN, UNPIN: every key on its own."""

    hashes: tuple[bytes, ...] = ()
    pin: int = 0
    pin_deadline_ms: int = 0
    number: int = 0

    LAYOUT: ClassVar[Layout] = Layout(
        "ms_match", "number:Q count:I pin:I pin_deadline_ms:I reserved:4x"
    )

    def write(self, writer: Writer) -> None:
        writer.raw(self.LAYOUT.pack(self, count=len(self.hashes)))
        writer.raw(join_hashes(self.hashes))

    @classmethod
    def read(cls, reader: Reader) -> Match:
        head = cls.LAYOUT.unpack(reader)
        count = head.pop("count")
        return cls(**head, hashes=reader.items(count, 16, lambda reader: reader.take(16)))


@dataclass(frozen=True, slots=True)
class PinsItem(Record):
    """How often a session has pinned a key."""

    hash: bytes
    count: int
    deadline_ms: int = 0

    LAYOUT: ClassVar[Layout] = Layout("ms_pins_item", "hash:16s count:I deadline_ms:I")


@dataclass(frozen=True, slots=True)
class Pins(Counted):
    """PINS: what a session has pinned of some keys, whatever was said before."""

    number: int
    items: tuple[PinsItem, ...]

    ITEM: ClassVar[type[Record]] = PinsItem
    LAYOUT: ClassVar[Layout] = Layout(
        "ms_match", "number:Q count:I pin:4x pin_deadline_ms:4x reserved:4x"
    )


@dataclass(frozen=True, slots=True)
class PutItem(Keyed):
    """One object that somebody wants to put."""

    hash: bytes
    size: int
    key: bytes
    ttl_ms: int = 0
    deadline_ms: int = 0
    parent: bytes = NO_HASH
    group: int = 0
    replica_count: int = 1
    replica_count_min: int = 1
    flags: int = 0
    preferred_server: int = 0
    spared_first: int = 0
    spared_second: int = 0

    LAYOUT: ClassVar[Layout] = Layout(
        "ms_put_item",
        "hash:16s size:Q ttl_ms:I deadline_ms:I parent:16s group:Q key_length:H replica_count:B "
        "replica_count_min:B flags:I preferred_server:I spared_first:H "
        "spared_second:H",
    )


@dataclass(frozen=True, slots=True)
class EndItem(Record):
    """One put that is complete, or that is given up."""

    hash: bytes
    version: int
    replica_mask: int = 1
    checksum: int = 0
    flags: int = 0

    LAYOUT: ClassVar[Layout] = Layout(
        "ms_end_item", "hash:16s version:Q replica_mask:Q checksum:I flags:I"
    )


@dataclass(frozen=True, slots=True)
class KeyItem(Keyed, Body):
    """A key in full. REMOVE's items; STAT's and EXPLAIN's body."""

    hash: bytes
    key: bytes
    flags: int = 0

    LAYOUT: ClassVar[Layout] = Layout("ms_key_item", "hash:16s key_length:I flags:I")


@dataclass(frozen=True, slots=True)
class PutStart(Counted):
    """PUT_START, executed at most once for its number."""

    number: int
    items: tuple[PutItem, ...]
    number_done: int = 0

    ITEM: ClassVar[type[Record]] = PutItem
    LAYOUT: ClassVar[Layout] = _BATCH


@dataclass(frozen=True, slots=True)
class PutEnd(Counted):
    """PUT_END and REVOKE, executed at most once for its number."""

    number: int
    items: tuple[EndItem, ...]
    number_done: int = 0

    ITEM: ClassVar[type[Record]] = EndItem
    LAYOUT: ClassVar[Layout] = _BATCH


@dataclass(frozen=True, slots=True)
class Remove(Counted):
    """REMOVE, executed at most once for its number."""

    number: int
    items: tuple[KeyItem, ...]
    number_done: int = 0

    ITEM: ClassVar[type[Record]] = KeyItem
    LAYOUT: ClassVar[Layout] = _BATCH


@dataclass(frozen=True, slots=True)
class ListRequest(Body):
    """LIST and REMOVE_MATCHING: a prefix, or with REGEX an extended regular expression."""

    pattern: bytes = b""
    cursor: int = 0
    limit: int = 1000
    flags: int = 0

    LAYOUT: ClassVar[Layout] = Layout(
        "ms_list", "cursor:Q limit:I flags:I pattern_length:I reserved:4x"
    )

    def write(self, writer: Writer) -> None:
        writer.raw(self.LAYOUT.pack(self, pattern_length=len(self.pattern)))
        writer.padded(self.pattern)

    @classmethod
    def read(cls, reader: Reader) -> ListRequest:
        head = cls.LAYOUT.unpack(reader)
        length = head.pop("pattern_length")
        check(length <= PATTERN_BYTES_MAX, f"a pattern of {length} bytes")
        return cls(**head, pattern=reader.padded(length))


@dataclass(frozen=True, slots=True)
class ListItem(Keyed):
    """One object in a listing."""

    key: bytes
    size: int = 0
    version: int = 0
    replica_count: int = 1
    flags: int = 0
    pinned: int = 0
    ttl_ms: int = 0

    LAYOUT: ClassVar[Layout] = Layout(
        "ms_list_item", "size:Q version:Q key_length:I replica_count:H flags:B pinned:B ttl_ms:Q"
    )


@dataclass(frozen=True, slots=True)
class ListAnswer(Counted):
    """Answer to LIST; cursor 0: that was all."""

    cursor: int = 0
    items: tuple[ListItem, ...] = ()

    ITEM: ClassVar[type[Record]] = ListItem
    LAYOUT: ClassVar[Layout] = Layout("ms_list_answer", "cursor:Q count:I reserved:4x")


@dataclass(frozen=True, slots=True)
class Removed(Body):
    """Answer to one step of REMOVE_MATCHING: how many, and where to go on (0: that was all)."""

    cursor: int = 0
    count: int = 0

    LAYOUT: ClassVar[Layout] = Layout("ms_list_answer", "cursor:Q count:I reserved:4x")


@dataclass(frozen=True, slots=True)
class StatAnswer(Body):
    """Everything that the master knows of one object."""

    location: Location
    age_ms: int = 0
    idle_ms: int = 0
    ttl_ms: int = 0
    pin_count: int = 0
    use_count: int = 0
    group: int = 0
    parent: bytes = NO_HASH

    LAYOUT: ClassVar[Layout] = Layout(
        "ms_stat", "age_ms:Q idle_ms:Q ttl_ms:Q pin_count:I use_count:I group:Q parent:16s"
    )

    def write(self, writer: Writer) -> None:
        writer.raw(self.LAYOUT.pack(self))
        self.location.write(writer)

    @classmethod
    def read(cls, reader: Reader) -> StatAnswer:
        return cls(**cls.LAYOUT.unpack(reader), location=Location.read(reader))


@dataclass(frozen=True, slots=True)
class Fate(Record):
    """How an object, or a put of it, ended; `name` is that of its session."""

    kind: int
    version: int = 0
    size: int = 0
    age_ms: int = 0
    session: int = 0
    bytes_wanted: int = 0
    server: int = 0
    name: bytes = b""

    LAYOUT: ClassVar[Layout] = Layout(
        "ms_fate", "version:Q size:Q age_ms:Q session:Q bytes_wanted:Q kind:I server:I"
    )

    def write(self, writer: Writer) -> None:
        writer.raw(self.LAYOUT.pack(self))
        writer.string(self.name)

    @classmethod
    def read(cls, reader: Reader) -> Fate:
        return cls(**cls.LAYOUT.unpack(reader), name=reader.string(NAME_BYTES_MAX))


@dataclass(frozen=True, slots=True)
class ExplainAnswer(Body):
    """Where an object is, and how it and earlier ones of its key ended, newest first.

    `flags` and the presence of `stat` say the same: a stored object has one.
    """

    leading_ms: int = 0
    history_ms: int = 0
    put_version: int = 0
    put_size: int = 0
    put_session: int = 0
    put_deadline_ms: int = 0
    flags: int = 0
    child_count: int = 0
    policy: int = 0
    put_name: bytes = b""
    stat: StatAnswer | None = None
    fates: tuple[Fate, ...] = ()

    LAYOUT: ClassVar[Layout] = Layout(
        "ms_explain",
        "leading_ms:Q history_ms:Q put_version:Q put_size:Q put_session:Q put_deadline_ms:I "
        "flags:I child_count:I policy:I fate_count:I reserved:4x",
    )

    def write(self, writer: Writer) -> None:
        writer.raw(self.LAYOUT.pack(self, fate_count=len(self.fates)))
        writer.string(self.put_name)
        if self.stat is not None:
            self.stat.write(writer)
        for fate in self.fates:
            fate.write(writer)

    @classmethod
    def read(cls, reader: Reader) -> ExplainAnswer:
        head = cls.LAYOUT.unpack(reader)
        count = head.pop("fate_count")
        check(count <= FATES_MAX, f"{count} fates")
        return cls(
            **head,
            put_name=reader.string(NAME_BYTES_MAX),
            stat=StatAnswer.read(reader) if head["flags"] & ExplainFlag.STORED else None,
            fates=reader.items(count, Fate.LAYOUT.size, Fate.read),
        )


@dataclass(frozen=True, slots=True)
class Annotate(Body):
    """Sets the hard pin, the soft pin or the TTL of a stored object."""

    item: KeyItem
    fields: int = 0
    flags: int = 0
    ttl_ms: int = 0

    LAYOUT: ClassVar[Layout] = Layout("ms_annotate", "fields:I flags:I ttl_ms:Q")

    def write(self, writer: Writer) -> None:
        writer.raw(self.LAYOUT.pack(self))
        self.item.write(writer)

    @classmethod
    def read(cls, reader: Reader) -> Annotate:
        return cls(**cls.LAYOUT.unpack(reader), item=KeyItem.read(reader))


@dataclass(frozen=True, slots=True)
class ChangeReplica(Body):
    """Copies or moves an object; servers are numbers in MEMBERS + 1, 0 = any."""

    item: KeyItem
    replica_count: int = 0
    target_server: int = 0
    source_server: int = 0

    LAYOUT: ClassVar[Layout] = Layout(
        "ms_change_replica", "replica_count:I target_server:I source_server:I reserved:4x"
    )

    def write(self, writer: Writer) -> None:
        writer.raw(self.LAYOUT.pack(self))
        self.item.write(writer)

    @classmethod
    def read(cls, reader: Reader) -> ChangeReplica:
        head = cls.LAYOUT.unpack(reader)
        check(head["replica_count"] <= REPLICAS_MAX, f"{head['replica_count']} replicas")
        return cls(**head, item=KeyItem.read(reader))


@dataclass(frozen=True, slots=True)
class Members(Counted):
    """Answer to MEMBERS."""

    serial: int = 0
    items: tuple[ServerInfo, ...] = ()

    ITEM: ClassVar[type[Record]] = ServerInfo
    LAYOUT: ClassVar[Layout] = Layout("", "serial:I count:I")


@dataclass(frozen=True, slots=True)
class NodeName(Body):
    """Which store server FORGET is about: its name, or its id in hexadecimal."""

    node: bytes

    def write(self, writer: Writer) -> None:
        writer.string(self.node)

    @classmethod
    def read(cls, reader: Reader) -> NodeName:
        return cls(reader.string(NAME_BYTES_MAX))


@dataclass(frozen=True, slots=True)
class Counter(Record):
    """One counter; label is a server's number + 1, or 0."""

    id: int
    label: int
    value: int

    LAYOUT: ClassVar[Layout] = Layout("ms_counter", "id:I label:I value:Q")


@dataclass(frozen=True, slots=True)
class Counters(Counted):
    """Answer to STATUS."""

    items: tuple[Counter, ...] = ()

    ITEM: ClassVar[type[Record]] = Counter
    LAYOUT: ClassVar[Layout] = Counted.LIST


@dataclass(frozen=True, slots=True)
class EventsRequest(Body):
    """EVENTS from a sequence on."""

    sequence: int = 0
    epoch: int = 0
    limit: int = 1000

    LAYOUT: ClassVar[Layout] = Layout("ms_events", "sequence:Q epoch:I limit:I")


@dataclass(frozen=True, slots=True)
class Event(Keyed):
    """One change of an object or a server; the key is empty for servers."""

    sequence: int
    kind: int
    key: bytes = b""
    version: int = 0
    size: int = 0
    server: int = 0
    age_ms: int = 0

    LAYOUT: ClassVar[Layout] = Layout(
        "ms_event", "sequence:Q version:Q size:Q kind:I server:I key_length:I age_ms:I"
    )


@dataclass(frozen=True, slots=True)
class EventsAnswer(Counted):
    """Answer to EVENTS: ask again from `sequence_next`."""

    sequence_next: int = 0
    epoch: int = 0
    items: tuple[Event, ...] = ()

    ITEM: ClassVar[type[Record]] = Event
    LAYOUT: ClassVar[Layout] = Layout("ms_events_answer", "sequence_next:Q epoch:I count:I")


@dataclass(frozen=True, slots=True)
class KeepAliveAnswer(Body):
    """When the serial has changed, ask for MEMBERS."""

    members_serial: int = 0

    LAYOUT: ClassVar[Layout] = Layout("", "members_serial:I reserved:4x")
