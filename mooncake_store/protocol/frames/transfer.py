"""What moves bytes: regions, reads, writes and their seals, shared memory, views."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from mooncake_store.protocol.codec import Body, Counted, Layout, Reader, Record, TenantKeyed, Writer
from mooncake_store.protocol.frames.basics import (
    EXTENTS_MAX,
    NAME_BYTES_MAX,
    NO_HASH,
    NOTIFY_BYTES_MAX,
    SOCKET_PATH_BYTES_MAX,
    TOPOLOGY_BYTES_MAX,
    U32_MAX,
    U64_MAX,
    VALUE_BYTES_MAX,
    check,
)

__all__ = [
    "Attached",
    "Cut",
    "Notify",
    "ReadItem",
    "ReadRequest",
    "ReadResult",
    "ReadResults",
    "Region",
    "Regions",
    "Seal",
    "SegmentNumber",
    "Share",
    "TopologyText",
    "ViewItem",
    "Views",
    "WriteItem",
    "WriteRequest",
]


@dataclass(frozen=True, slots=True)
class Region(Record):
    """Memory registered at an engine, and where it is (`cpu:0`)."""

    address: int
    length: int
    segment: int
    location: bytes = b""

    LAYOUT: ClassVar[Layout] = Layout("ms_region", "address:Q length:Q segment:I reserved:4x")

    def write(self, writer: Writer) -> None:
        writer.raw(self.LAYOUT.pack(self))
        writer.string(self.location)

    @classmethod
    def read(cls, reader: Reader) -> Region:
        head = cls.LAYOUT.unpack(reader)
        check(head["address"] + head["length"] <= U64_MAX, "a region that wraps round")
        return cls(**head, location=reader.string(NAME_BYTES_MAX))


@dataclass(frozen=True, slots=True)
class Regions(Body):
    """Answer to OPEN_SEGMENT.

    `topology` is JSON, or empty; `socket_path` is that of the Unix socket, or empty.
    """

    regions: tuple[Region, ...] = ()
    topology: bytes = b""
    socket_path: bytes = b""

    def write(self, writer: Writer) -> None:
        writer.list_of(self.regions)
        writer.string(self.topology)
        writer.string(self.socket_path)

    @classmethod
    def read(cls, reader: Reader) -> Regions:
        return cls(
            Region.read_list(reader),
            reader.string(TOPOLOGY_BYTES_MAX),
            reader.string(SOCKET_PATH_BYTES_MAX),
        )


@dataclass(frozen=True, slots=True)
class ReadItem(Record):
    """A byte range to read; with flags 1 the word of `guard_page` guards it."""

    segment: int
    offset: int
    length: int
    flags: int = 0
    word: int = 0
    guard_page: int = 0

    LAYOUT: ClassVar[Layout] = Layout(
        "ms_read_item", "segment:I flags:I offset:Q length:Q word:Q guard_page:I reserved:4x"
    )


def _add_range(total: int, offset: int, length: int) -> int:
    total += length
    check(offset + length <= U64_MAX and total <= VALUE_BYTES_MAX, "a range beyond all bounds")
    return total


@dataclass(frozen=True, slots=True)
class ReadRequest(Counted):
    """READ; answered with the bytes as payload and `ReadResults` as trailer."""

    items: tuple[ReadItem, ...]

    ITEM: ClassVar[type[Record]] = ReadItem
    LAYOUT: ClassVar[Layout] = Counted.LIST

    @classmethod
    def read(cls, reader: Reader) -> ReadRequest:
        request = super(ReadRequest, cls).read(reader)
        check(len(request.items) > 0, "a READ of nothing")
        total = 0
        for item in request.items:
            total = _add_range(total, item.offset, item.length)
        return request


@dataclass(frozen=True, slots=True)
class ReadResult(Record):
    """How one item of READ went, and the word as it was after the last byte."""

    status: int
    word: int = 0

    LAYOUT: ClassVar[Layout] = Layout("ms_read_result", "status:I reserved:4x word:Q")


@dataclass(frozen=True, slots=True)
class ReadResults(Body):
    """Trailer of READ's answer: one result per item asked, without a count."""

    results: tuple[ReadResult, ...]

    def write(self, writer: Writer) -> None:
        for result in self.results:
            result.write(writer)

    @classmethod
    def read(cls, reader: Reader) -> ReadResults:
        size = ReadResult.LAYOUT.size
        check(reader.left % size == 0, "a result in parts")
        return cls(reader.items(reader.left // size, size, ReadResult.read))


@dataclass(frozen=True, slots=True)
class Seal(TenantKeyed):
    """What a server keeps about one extent of an object."""

    hash: bytes
    size: int
    key: bytes
    tenant: bytes = b"default"
    expiry_ms: int = 0
    parent: bytes = NO_HASH
    group: int = 0
    number: int = 0
    checksum: int = 0
    part: int = 0
    part_count: int = 1
    flags: int = 0

    LAYOUT: ClassVar[Layout] = Layout(
        "ms_seal",
        "hash:16s size:Q expiry_ms:Q parent:16s group:Q number:Q checksum:I part:H part_count:H "
        "key_length:H flags:B tenant_length:B reserved:4x",
    )

    @classmethod
    def read(cls, reader: Reader) -> Seal:
        seal = super(Seal, cls).read(reader)
        check(seal.part < seal.part_count <= EXTENTS_MAX, "a part out of range")
        check(seal.size <= VALUE_BYTES_MAX, f"an object of {seal.size} bytes")
        return seal


@dataclass(frozen=True, slots=True)
class WriteItem(Record):
    """A byte range to write, and the seal that follows it, if any."""

    segment: int
    offset: int
    length: int
    page: int = 0
    page_count: int = 0
    source: int = 0
    version: int = 0
    source_offset: int = 0
    seal: Seal | None = None

    LAYOUT: ClassVar[Layout] = Layout(
        "ms_write_item",
        "segment:I page:I page_count:I source:I version:Q offset:Q length:Q source_offset:Q "
        "seal_length:I reserved:4x",
    )


@dataclass(frozen=True, slots=True)
class WriteRequest(Body):
    """WRITE and SEAL: the items, then their seals; the payload has the bytes of source 0."""

    items: tuple[WriteItem, ...]

    def write(self, writer: Writer) -> None:
        writer.u32(len(self.items))
        writer.u32(0)
        seals = Writer()
        for item in self.items:
            seal = Writer()
            if item.seal is not None:
                item.seal.write(seal)
            data = seal.getvalue()
            writer.raw(WriteItem.LAYOUT.pack(item, seal_length=len(data)))
            seals.raw(data)
        writer.raw(seals.getvalue())

    @classmethod
    def read(cls, reader: Reader) -> WriteRequest:
        heads = reader.list_of(WriteItem.LAYOUT.size, WriteItem.LAYOUT.unpack)
        check(len(heads) > 0, "a WRITE of nothing")
        totals = {True: 0, False: 0}
        items = []
        for head in heads:
            is_payload = head["source"] == 0
            totals[is_payload] = _add_range(totals[is_payload], head["offset"], head["length"])
            check(head["source_offset"] + head["length"] <= U64_MAX, "a source that wraps round")
            check(head["page"] + head["page_count"] <= U32_MAX, "pages that wrap round")
            seal_length = head.pop("seal_length")
            seal = None
            if seal_length:
                one = Reader(reader.take(seal_length))
                seal = Seal.read(one)
                one.end()
            items.append(WriteItem(**head, seal=seal))
        return cls(tuple(items))


@dataclass(frozen=True, slots=True)
class SegmentNumber(Body):
    """ATTACH: the segment. UNSHARE, and the answer to SHARE: the id of a shared memory."""

    number: int

    LAYOUT: ClassVar[Layout] = Layout("", "number:I reserved:4x")


@dataclass(frozen=True, slots=True)
class Attached(Body):
    """Answer to ATTACH; two descriptors come with it: payload and words."""

    page_count: int
    incarnation: int
    page_first: int = 0

    LAYOUT: ClassVar[Layout] = Layout("ms_attached", "page_count:Q incarnation:I page_first:I")


@dataclass(frozen=True, slots=True)
class Share(Body):
    """SHARE; the descriptor of a memfd comes with it."""

    length: int

    LAYOUT: ClassVar[Layout] = Layout("", "length:Q")


@dataclass(frozen=True, slots=True)
class Notify(Body):
    """NOTIFY: a message between applications."""

    name: bytes
    message: bytes

    def write(self, writer: Writer) -> None:
        writer.string(self.name)
        writer.string(self.message)

    @classmethod
    def read(cls, reader: Reader) -> Notify:
        return cls(reader.string(NAME_BYTES_MAX), reader.string(NOTIFY_BYTES_MAX))


@dataclass(frozen=True, slots=True)
class TopologyText(Body):
    """TOPOLOGY: an engine's interfaces, as JSON; empty where it knows none."""

    topology: bytes

    def write(self, writer: Writer) -> None:
        writer.string(self.topology)

    @classmethod
    def read(cls, reader: Reader) -> TopologyText:
        return cls(reader.string(TOPOLOGY_BYTES_MAX))


@dataclass(frozen=True, slots=True)
class Cut(Body):
    """CUT and its answer: 0 asks for this connection's token, a token closes what it belongs to."""

    token: int

    LAYOUT: ClassVar[Layout] = Layout("", "token:Q")


@dataclass(frozen=True, slots=True)
class ViewItem(Record):
    """One extent that a process reads in place."""

    version: int
    segment: int
    page: int
    tag: int = 0

    LAYOUT: ClassVar[Layout] = Layout("ms_view_item", "version:Q segment:H tag:H page:I")


@dataclass(frozen=True, slots=True)
class Views(Counted):
    """VIEW_OPEN and VIEW_CLOSE."""

    items: tuple[ViewItem, ...] = ()

    ITEM: ClassVar[type[Record]] = ViewItem
    LAYOUT: ClassVar[Layout] = Counted.LIST
