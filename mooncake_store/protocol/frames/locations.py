"""Where an object lies, and where a put may write."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from mooncake_store.errors import Status
from mooncake_store.protocol.codec import Body, Counted, Layout, Reader, Record, Writer
from mooncake_store.protocol.frames.basics import (
    EXTENTS_MAX,
    REPLICAS_MAX,
    SENTENCE_BYTES_MAX,
    VALUE_BYTES_MAX,
    check,
    check_pages,
    pages_of,
    status_of,
)

__all__ = ["Extent", "Grants", "Location", "Locations", "Replica"]


@dataclass(frozen=True, slots=True)
class Extent(Record):
    """A run of pages."""

    page: int
    page_count: int

    LAYOUT: ClassVar[Layout] = Layout("ms_extent", "page:I page_count:I")


@dataclass(frozen=True, slots=True)
class Replica(Record):
    """Where one copy of an object is, in the order of its bytes."""

    server: int
    incarnation: int
    segment: int
    extents: tuple[Extent, ...]
    tier: int = 0
    state: int = 1

    LAYOUT: ClassVar[Layout] = Layout(
        "ms_replica", "server:I incarnation:I segment:H extent_count:H tier:B state:B reserved:2x"
    )

    def write(self, writer: Writer) -> None:
        writer.raw(self.LAYOUT.pack(self, extent_count=len(self.extents)))
        for extent in self.extents:
            extent.write(writer)

    @classmethod
    def read(cls, reader: Reader) -> Replica:
        head = cls.LAYOUT.unpack(reader)
        count = head.pop("extent_count")
        check(0 < count <= EXTENTS_MAX, f"a replica of {count} extents")
        extents = reader.items(count, Extent.LAYOUT.size, Extent.read)
        for extent in extents:
            check_pages(extent.page, extent.page_count)
        return cls(**head, extents=extents)

    def check_holds(self, size: int) -> None:
        pages = sum(extent.page_count for extent in self.extents)
        check(pages >= pages_of(size), f"{pages} pages for {size} bytes")


@dataclass(frozen=True, slots=True)
class Location(Body):
    """Where an object is, or the grant of a put; unless the status is OK nothing else counts."""

    status: int = Status.OK
    version: int = 0
    size: int = 0
    checksum: int = 0
    flags: int = 0
    lifetime_ms: int = 0
    replicas: tuple[Replica, ...] = ()

    LAYOUT: ClassVar[Layout] = Layout(
        "ms_location",
        "status:I replica_count:I version:Q size:Q checksum:I flags:I lifetime_ms:I reserved:4x",
    )

    def write(self, writer: Writer) -> None:
        writer.raw(self.LAYOUT.pack(self, replica_count=len(self.replicas)))
        for replica in self.replicas:
            replica.write(writer)

    @classmethod
    def read(cls, reader: Reader) -> Location:
        head = cls.LAYOUT.unpack(reader)
        count = head.pop("replica_count")
        head["status"] = status_of(head["status"])
        check(count <= REPLICAS_MAX, f"{count} replicas")
        check(count == 0 or head["status"] == Status.OK, "replicas without an object")
        check(head["size"] <= VALUE_BYTES_MAX, f"an object of {head['size']} bytes")
        replicas = reader.items(count, Replica.LAYOUT.size, Replica.read)
        for replica in replicas:
            replica.check_holds(head["size"])
        return cls(**head, replicas=replicas)


@dataclass(frozen=True, slots=True)
class Locations(Counted):
    """Answer to LOOKUP per key, to MATCH_PREFIX per block that matched."""

    items: tuple[Location, ...] = ()

    ITEM: ClassVar[type[Record]] = Location
    LAYOUT: ClassVar[Layout] = Counted.LIST


@dataclass(frozen=True, slots=True)
class Grants(Body):
    """Answer to PUT_START; the sentence says what the space is used for when one is NO_SPACE."""

    grants: tuple[Location, ...] = ()
    sentence: bytes = b""

    def write(self, writer: Writer) -> None:
        writer.list_of(self.grants)
        if self.sentence:
            writer.string(self.sentence)

    @classmethod
    def read(cls, reader: Reader) -> Grants:
        grants = Location.read_list(reader)
        return cls(grants, reader.string(SENTENCE_BYTES_MAX) if reader.left else b"")
