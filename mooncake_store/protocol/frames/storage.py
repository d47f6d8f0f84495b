"""What a master and its store servers tell each other."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from mooncake_store.protocol.codec import Body, Counted, Layout, Reader, Record, TenantKeyed, Writer
from mooncake_store.protocol.frames.basics import (
    EXTENTS_MAX,
    NO_HASH,
    VALUE_BYTES_MAX,
    check,
    check_pages,
)
from mooncake_store.protocol.frames.hello import SegmentInfo
from mooncake_store.protocol.frames.locations import Location, Replica
from mooncake_store.protocol.frames.metadata import Counter, EndItem
from mooncake_store.protocol.frames.transfer import Seal

__all__ = [
    "Adopt",
    "Copy",
    "Free",
    "FreeItem",
    "Inventory",
    "InventoryItem",
    "Note",
    "RelayedEnd",
    "ServerStats",
]


@dataclass(frozen=True, slots=True)
class Adopt(Body):
    """Follow this epoch; `server` is the number that you have with this master."""

    epoch: int
    server: int

    LAYOUT: ClassVar[Layout] = Layout("ms_adopt", "epoch:I server:I")


@dataclass(frozen=True, slots=True)
class InventoryItem(TenantKeyed):
    """One extent that a server holds, with what its record says."""

    hash: bytes
    version: int
    page: int
    page_count: int
    size: int = 0
    expiry_ms: int = 0
    note: int = 0
    parent: bytes = NO_HASH
    group: int = 0
    checksum: int = 0
    part: int = 0
    part_count: int = 1
    segment: int = 0
    flags: int = 0
    state: int = 1
    tenant: bytes = b""
    key: bytes = b""

    LAYOUT: ClassVar[Layout] = Layout(
        "ms_inventory_item",
        "hash:16s version:Q size:Q expiry_ms:Q note:Q parent:16s group:Q page:I page_count:I "
        "checksum:I part:H part_count:H segment:H key_length:H flags:B state:B tenant_length:B "
        "reserved:1x",
    )

    @classmethod
    def read(cls, reader: Reader) -> InventoryItem:
        item = super(InventoryItem, cls).read(reader)
        check_pages(item.page, item.page_count)
        check(item.part < item.part_count <= EXTENTS_MAX, "a part out of range")
        check(item.size <= VALUE_BYTES_MAX, f"an object of {item.size} bytes")
        check(item.state in (1, 2), f"state {item.state}")
        return item


@dataclass(frozen=True, slots=True)
class Inventory(Counted):
    """Part of what a server holds; the last part's frame has the flag LAST."""

    items: tuple[InventoryItem, ...] = ()

    ITEM: ClassVar[type[Record]] = InventoryItem
    LAYOUT: ClassVar[Layout] = Counted.LIST


@dataclass(frozen=True, slots=True)
class FreeItem(Record):
    """One extent on its way out; `session` is fenced first, 0 = none."""

    version: int
    segment: int
    page: int
    page_count: int
    session: int = 0

    LAYOUT: ClassVar[Layout] = Layout(
        "ms_free_item", "version:Q session:Q segment:I page:I page_count:I reserved:4x"
    )


@dataclass(frozen=True, slots=True)
class Free(Counted):
    """FREE, and its answers CLEARED and FREED."""

    epoch: int
    incarnation: int
    items: tuple[FreeItem, ...] = ()

    ITEM: ClassVar[type[Record]] = FreeItem
    LAYOUT: ClassVar[Layout] = Layout("", "epoch:I incarnation:I count:I reserved:4x")

    @classmethod
    def read(cls, reader: Reader) -> Free:
        free = super(Free, cls).read(reader)
        for item in free.items:
            check_pages(item.page, item.page_count)
        return free


@dataclass(frozen=True, slots=True)
class Note(Body):
    """ANNOTATE of one extent; the note's number grows."""

    epoch: int
    incarnation: int
    version: int
    note: int
    segment: int
    page: int
    expiry_ms: int = 0
    flags: int = 0

    LAYOUT: ClassVar[Layout] = Layout(
        "ms_note",
        "epoch:I incarnation:I version:Q note:Q expiry_ms:Q segment:I page:I flags:I reserved:4x",
    )


@dataclass(frozen=True, slots=True)
class Copy(Body):
    """Pull an object from another server's replica into the target's extents, then SEAL it."""

    epoch: int
    incarnation: int
    task: int
    source: Location
    target: Replica
    seal: Seal

    LAYOUT: ClassVar[Layout] = Layout("ms_copy_request", "epoch:I incarnation:I task:Q")

    def write(self, writer: Writer) -> None:
        writer.raw(self.LAYOUT.pack(self))
        self.source.write(writer)
        self.target.write(writer)
        self.seal.write(writer)

    @classmethod
    def read(cls, reader: Reader) -> Copy:
        head = cls.LAYOUT.unpack(reader)
        source = Location.read(reader)
        check(len(source.replicas) == 1, "a copy has one source")
        target = Replica.read(reader)
        target.check_holds(source.size)
        seal = Seal.read(reader)
        check(seal.size == source.size, "a copy has the size of its source")
        return cls(**head, source=source, target=target, seal=seal)


@dataclass(frozen=True, slots=True)
class RelayedEnd(Counted):
    """PUT_END that a server passes on in its client's name."""

    session: int
    number: int
    items: tuple[EndItem, ...]

    ITEM: ClassVar[type[Record]] = EndItem
    LAYOUT: ClassVar[Layout] = Layout("", "session:Q number:Q count:I reserved:4x")


@dataclass(frozen=True, slots=True)
class ServerStats(Body):
    """A server's heartbeat."""

    epoch: int
    incarnation: int
    segments: tuple[SegmentInfo, ...] = ()
    counters: tuple[Counter, ...] = ()

    LAYOUT: ClassVar[Layout] = Layout("", "epoch:I incarnation:I")

    def write(self, writer: Writer) -> None:
        writer.raw(self.LAYOUT.pack(self))
        writer.list_of(self.segments)
        writer.list_of(self.counters)

    @classmethod
    def read(cls, reader: Reader) -> ServerStats:
        head = cls.LAYOUT.unpack(reader)
        segments = SegmentInfo.read_list(reader)
        return cls(**head, segments=segments, counters=Counter.read_list(reader))
