"""Every message of the wire protocol as a value: the Python twin of `ms_wire.h`.

docs/protocol.md says what the messages mean. Field names are those of the C structs; lengths and
counts are implied, reserved fields left out. Keys, tenants and strings are bytes, a key's hash is
the 16 bytes that the wire has. `Frame` is a whole frame; `REQUESTS` and `ANSWERS` say which body
belongs to which method.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import ClassVar

from mooncake_store.errors import ProtocolError, Status
from mooncake_store.protocol.codec import (
    BATCH_ITEMS_MAX,
    KEY_BYTES_MAX,
    TENANT_BYTES_MAX,
    Body,
    Counted,
    Keyed,
    Layout,
    Reader,
    Record,
    TenantKeyed,
    Writer,
)
from mooncake_store.protocol.methods import Kind, Method, Role

__all__ = [
    "ADDRESSES_BYTES_MAX",
    "ANSWERS",
    "ANSWERS_WITH_STATUSES",
    "BATCH_ITEMS_MAX",
    "BODY_BYTES_MAX",
    "BODY_BYTES_MAX_HELLO",
    "EXTENTS_MAX",
    "KEY_BYTES_MAX",
    "LOCATION_LIFETIME_MS",
    "MAGIC",
    "NAME_BYTES_MAX",
    "NOTIFY_BYTES_MAX",
    "NO_HASH",
    "NO_ID",
    "PAGE_SIZE",
    "PATTERN_BYTES_MAX",
    "REPLICAS_MAX",
    "REQUESTS",
    "SECRET_BYTES",
    "SENTENCE_BYTES_MAX",
    "SOCKET_PATH_BYTES_MAX",
    "TENANT_BYTES_MAX",
    "TOKEN_BYTES_MAX",
    "TOPOLOGY_BYTES_MAX",
    "VALUE_BYTES_MAX",
    "WIRE_VERSION",
    "WIRE_VERSION_OLDEST",
    "Adopt",
    "Annotate",
    "Attached",
    "ChangeReplica",
    "Copy",
    "Counter",
    "Counters",
    "Empty",
    "EndItem",
    "Event",
    "EventsAnswer",
    "EventsRequest",
    "Extent",
    "Frame",
    "Free",
    "FreeItem",
    "Grants",
    "Hashes",
    "Header",
    "Hello",
    "HelloAnswer",
    "Inventory",
    "InventoryItem",
    "KeepAliveAnswer",
    "KeyItem",
    "ListAnswer",
    "ListItem",
    "ListRequest",
    "Location",
    "Locations",
    "Match",
    "Members",
    "Note",
    "Notify",
    "PutEnd",
    "PutItem",
    "PutStart",
    "ReadItem",
    "ReadRequest",
    "ReadResult",
    "ReadResults",
    "Region",
    "Regions",
    "RelayedEnd",
    "Remove",
    "Removed",
    "Replica",
    "Seal",
    "SegmentInfo",
    "SegmentNumber",
    "ServerInfo",
    "ServerStats",
    "Share",
    "StatAnswer",
    "Statuses",
    "StatusesOrEmpty",
    "ViewItem",
    "Views",
    "WriteItem",
    "WriteRequest",
    "decode_body",
    "pages_of",
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
REPLICAS_MAX = 16
SECRET_BYTES = 192
LOCATION_LIFETIME_MS = 30_000
TOKEN_BYTES_MAX = 8192
NAME_BYTES_MAX = 255
SOCKET_PATH_BYTES_MAX = 107
ADDRESSES_BYTES_MAX = 4096
PATTERN_BYTES_MAX = 4096
NOTIFY_BYTES_MAX = 1 << 20
TOPOLOGY_BYTES_MAX = 1 << 20
SENTENCE_BYTES_MAX = 4096

NO_HASH = bytes(16)
NO_ID = bytes(16)

_U32_MAX = 2**32 - 1
_U64_MAX = 2**64 - 1


def word(version: int, *, live: bool) -> int:
    """Return the generation word of a version."""
    return version << 1 | live


def version(epoch: int, sequence: int) -> int:
    """Return the version with this place in the leader's sequence."""
    return epoch << 43 | sequence


def pages_of(size: int) -> int:
    """Return how many pages an object of `size` bytes owns: at least one."""
    return max(1, -(-size // PAGE_SIZE))


def _check(is_well_formed: bool, what: str) -> None:
    if not is_well_formed:
        raise ProtocolError(what)


def _status(value: int) -> Status:
    try:
        return Status(value)
    except ValueError as error:
        raise ProtocolError(f"unknown status {value}") from error


def _check_pages(page: int, page_count: int) -> None:
    _check(0 < page_count <= _U32_MAX - page, f"pages {page} + {page_count}")


# ---- frames --------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Header(Body):
    """The 48 bytes before every frame."""

    method: int
    kind: int = Kind.REQUEST
    version: int = WIRE_VERSION
    status: int = 0
    epoch: int = 0
    request: int = 0
    body_length: int = 0
    trailer_length: int = 0
    payload_length: int = 0
    flags: int = 0
    magic: int = MAGIC
    reserved: int = 0

    LAYOUT: ClassVar[Layout] = Layout(
        "ms_header",
        "magic:I version:B kind:B method:H status:I epoch:I request:Q body_length:I "
        "trailer_length:I payload_length:Q flags:I reserved:I",
    )

    def check(self, version: int) -> None:
        """Refuse a header as `ms_header_check` does.

        Args:
            version: The wire version that HELLO agreed on, 0 before that.

        Raises:
            ProtocolError: The stream has lost its place: close the connection.
        """
        first = version == 0
        _check(self.magic == MAGIC, "the frame does not begin with MCS1")
        expected = 1 if first or self.method == Method.HELLO else version
        _check(self.version == expected, f"wire version {self.version}, not {expected}")
        _check(self.kind <= Kind.ONEWAY, f"kind {self.kind}")
        is_hello = self.method == Method.HELLO and self.kind != Kind.ONEWAY
        _check(not first or is_hello, "the first frame is not HELLO")
        body_max = BODY_BYTES_MAX_HELLO if first else BODY_BYTES_MAX
        _check(self.body_length <= body_max, f"a body of {self.body_length} bytes")
        trailer_max = 0 if first else BODY_BYTES_MAX
        _check(self.trailer_length <= trailer_max, f"a trailer of {self.trailer_length} bytes")
        payload_max = 0 if first else VALUE_BYTES_MAX
        _check(self.payload_length <= payload_max, f"a payload of {self.payload_length} bytes")
        _check(self.reserved == 0, "a reserved length is set")


@dataclass(frozen=True, slots=True)
class Frame:
    """A frame: header, body, payload, trailer, in this order on the wire.

    Attributes:
        status: Of an answer; of a request its deadline in ms from receipt, 0 = none.
        request: Chosen by the asker, repeated in the answer.
    """

    method: int
    kind: int = Kind.REQUEST
    status: int = 0
    epoch: int = 0
    request: int = 0
    flags: int = 0
    version: int = WIRE_VERSION
    body: bytes = b""
    payload: bytes = b""
    trailer: bytes = b""

    def encode(self) -> bytes:
        header = Header(
            method=self.method,
            kind=self.kind,
            version=self.version,
            status=self.status,
            epoch=self.epoch,
            request=self.request,
            body_length=len(self.body),
            trailer_length=len(self.trailer),
            payload_length=len(self.payload),
            flags=self.flags,
        )
        return header.encode() + self.body + self.payload + self.trailer

    @classmethod
    def decode(cls, data: bytes, *, version: int = WIRE_VERSION) -> Frame:
        """Read one whole frame; bytes behind it are refused, as are missing ones."""
        reader = Reader(data)
        header = Header.read(reader)
        header.check(version)
        frame = cls(
            method=header.method,
            kind=header.kind,
            status=header.status,
            epoch=header.epoch,
            request=header.request,
            flags=header.flags,
            version=header.version,
            body=reader.take(header.body_length),
            payload=reader.take(header.payload_length),
            trailer=reader.take(header.trailer_length),
        )
        reader.end()
        return frame

    def decode_body(self) -> Body | str:
        """Read the body as the frame's kind, method and status say."""
        return decode_body(self.kind, self.method, self.status, self.body)


# ---- forms of several methods --------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Empty(Body):
    """No body."""

    LAYOUT: ClassVar[Layout] = Layout("", "")


@dataclass(frozen=True, slots=True)
class Hashes(Body):
    """EXISTS_KEYS, LOOKUP, TOUCH, UNPIN: hashes of keys, 16 bytes each."""

    hashes: tuple[bytes, ...] = ()

    def write(self, writer: Writer) -> None:
        writer.u32(len(self.hashes))
        writer.u32(0)
        writer.raw(_join_hashes(self.hashes))

    @classmethod
    def read(cls, reader: Reader) -> Hashes:
        return cls(reader.list_of(16, lambda reader: reader.take(16)))


def _join_hashes(hashes: tuple[bytes, ...]) -> bytes:
    for value in hashes:
        if len(value) != 16:
            raise ValueError(f"a hash has 16 bytes, not {len(value)}")
    return b"".join(hashes)


@dataclass(frozen=True, slots=True)
class Statuses(Body):
    """One status per item that was asked for."""

    statuses: tuple[Status, ...] = ()

    def write(self, writer: Writer) -> None:
        writer.raw(struct.pack(f"<II{len(self.statuses)}I", len(self.statuses), 0, *self.statuses))

    @classmethod
    def read(cls, reader: Reader) -> Statuses:
        return cls(reader.list_of(4, lambda reader: _status(reader.u32())))


@dataclass(frozen=True, slots=True)
class StatusesOrEmpty(Statuses):
    """Answer to WRITE and SEAL: nothing at all when every item went well."""

    def write(self, writer: Writer) -> None:
        if self.statuses:
            Statuses.write(self, writer)

    @classmethod
    def read(cls, reader: Reader) -> StatusesOrEmpty:
        return cls(Statuses.read(reader).statuses if reader.left else ())


# ---- HELLO ---------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class SegmentInfo(Record):
    """One segment of a store server."""

    segment: int
    tier: int
    page_count: int
    page_count_ready: int

    LAYOUT: ClassVar[Layout] = Layout(
        "ms_segment_info", "segment:I tier:I page_count:Q page_count_ready:Q"
    )


@dataclass(frozen=True, slots=True)
class ServerInfo(Record):
    """A store server: in its HELLO, and in MEMBERS."""

    node_id: bytes
    incarnation: int
    state: int = 0
    server: int = 0
    boot_id: bytes = NO_ID
    segments: tuple[SegmentInfo, ...] = ()
    name: bytes = b""
    host: bytes = b""
    socket_path: bytes = b""
    addresses: bytes = b""

    LAYOUT: ClassVar[Layout] = Layout(
        "ms_server_info",
        "node_id:16s incarnation:I state:I server:I segment_count:I boot_id:16s",
    )

    def write(self, writer: Writer) -> None:
        writer.raw(self.LAYOUT.pack(self, segment_count=len(self.segments)))
        for segment in self.segments:
            segment.write(writer)
        for text in (self.name, self.host, self.socket_path, self.addresses):
            writer.string(text)

    @classmethod
    def read(cls, reader: Reader) -> ServerInfo:
        head = cls.LAYOUT.unpack(reader)
        count = head.pop("segment_count")
        return cls(
            **head,
            segments=reader.items(count, SegmentInfo.LAYOUT.size, SegmentInfo.read),
            name=reader.string(NAME_BYTES_MAX),
            host=reader.string(NAME_BYTES_MAX),
            socket_path=reader.string(SOCKET_PATH_BYTES_MAX),
            addresses=reader.string(ADDRESSES_BYTES_MAX),
        )


@dataclass(frozen=True, slots=True)
class Hello(Body):
    """First frame of a connection. `server` is there when the role is SERVER, and only then."""

    role: int
    right: int = 0
    incarnation: int = 0
    session: int = 0
    epoch: int = 0
    pid: int = 0
    boot_id: bytes = NO_ID
    version_oldest: int = WIRE_VERSION_OLDEST
    version_newest: int = WIRE_VERSION
    tenant: bytes = b"default"
    token: bytes = b""
    name: bytes = b""
    server: ServerInfo | None = None

    LAYOUT: ClassVar[Layout] = Layout(
        "ms_hello",
        "version_oldest:B version_newest:B role:B right:B incarnation:I session:Q epoch:I pid:I "
        "boot_id:16s",
    )

    def write(self, writer: Writer) -> None:
        if (self.role == Role.SERVER) != (self.server is not None):
            raise ValueError("a store server says what it is, nobody else does")
        writer.raw(self.LAYOUT.pack(self))
        for text in (self.tenant, self.token, self.name):
            writer.string(text)
        if self.server is not None:
            self.server.write(writer)

    @classmethod
    def read(cls, reader: Reader) -> Hello:
        head = cls.LAYOUT.unpack(reader)
        return cls(
            **head,
            tenant=reader.string(TENANT_BYTES_MAX),
            token=reader.string(TOKEN_BYTES_MAX),
            name=reader.string(NAME_BYTES_MAX),
            server=ServerInfo.read(reader) if head["role"] == Role.SERVER else None,
        )


@dataclass(frozen=True, slots=True)
class HelloAnswer(Body):
    """What a connection is from now on. `secret` comes from a master only."""

    version: int = WIRE_VERSION
    role: int = Role.MASTER
    epoch: int = 0
    session: int = 0
    cluster: int = 0
    incarnation: int = 0
    session_timeout_ms: int = 0
    location_lifetime_ms: int = 0
    members_serial: int = 0
    boot_id: bytes = NO_ID
    node_name: bytes = b""
    secret: bytes = b""

    LAYOUT: ClassVar[Layout] = Layout(
        "ms_hello_answer",
        "version:B role:B reserved:2x epoch:I session:Q cluster:Q incarnation:I "
        "session_timeout_ms:I location_lifetime_ms:I members_serial:I boot_id:16s",
    )

    def write(self, writer: Writer) -> None:
        writer.raw(self.LAYOUT.pack(self))
        writer.string(self.node_name)
        writer.string(self.secret)

    @classmethod
    def read(cls, reader: Reader) -> HelloAnswer:
        answer = cls(
            **cls.LAYOUT.unpack(reader),
            node_name=reader.string(NAME_BYTES_MAX),
            secret=reader.string(SECRET_BYTES),
        )
        _check(len(answer.secret) in (0, SECRET_BYTES), "a secret has 192 bytes")
        return answer


# ---- engine --------------------------------------------------------------------------------------


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
        _check(head["address"] + head["length"] <= _U64_MAX, "a region that wraps round")
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
    _check(offset + length <= _U64_MAX and total <= VALUE_BYTES_MAX, "a range beyond all bounds")
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
        _check(len(request.items) > 0, "a READ of nothing")
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
        _check(reader.left % size == 0, "a result in parts")
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
        _check(seal.part < seal.part_count <= EXTENTS_MAX, "a part out of range")
        _check(seal.size <= VALUE_BYTES_MAX, f"an object of {seal.size} bytes")
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
        _check(len(heads) > 0, "a WRITE of nothing")
        totals = {True: 0, False: 0}
        items = []
        for head in heads:
            is_payload = head["source"] == 0
            totals[is_payload] = _add_range(totals[is_payload], head["offset"], head["length"])
            _check(head["source_offset"] + head["length"] <= _U64_MAX, "a source that wraps round")
            _check(head["page"] + head["page_count"] <= _U32_MAX, "pages that wrap round")
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
class ViewItem(Record):
    """One extent that a process reads in place."""

    version: int
    segment: int
    page: int

    LAYOUT: ClassVar[Layout] = Layout("ms_view_item", "version:Q segment:I page:I")


@dataclass(frozen=True, slots=True)
class Views(Counted):
    """VIEW_OPEN and VIEW_CLOSE."""

    items: tuple[ViewItem, ...] = ()

    ITEM: ClassVar[type[Record]] = ViewItem
    LAYOUT: ClassVar[Layout] = Counted.LIST


# ---- locations and grants ------------------------------------------------------------------------


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
        "ms_replica",
        "server:I incarnation:I segment:H extent_count:H tier:B state:B reserved:2x",
    )

    def write(self, writer: Writer) -> None:
        writer.raw(self.LAYOUT.pack(self, extent_count=len(self.extents)))
        for extent in self.extents:
            extent.write(writer)

    @classmethod
    def read(cls, reader: Reader) -> Replica:
        head = cls.LAYOUT.unpack(reader)
        count = head.pop("extent_count")
        _check(0 < count <= EXTENTS_MAX, f"a replica of {count} extents")
        extents = reader.items(count, Extent.LAYOUT.size, Extent.read)
        for extent in extents:
            _check_pages(extent.page, extent.page_count)
        return cls(**head, extents=extents)

    def check_holds(self, size: int) -> None:
        pages = sum(extent.page_count for extent in self.extents)
        _check(pages >= pages_of(size), f"{pages} pages for {size} bytes")


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
        head["status"] = _status(head["status"])
        _check(count <= REPLICAS_MAX, f"{count} replicas")
        _check(count == 0 or head["status"] == Status.OK, "replicas without an object")
        _check(head["size"] <= VALUE_BYTES_MAX, f"an object of {head['size']} bytes")
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


# ---- client to master ----------------------------------------------------------------------------

_BATCH = Layout("ms_batch", "number:Q number_done:Q count:I reserved:4x")


@dataclass(frozen=True, slots=True)
class Match(Body):
    """MATCH_PREFIX: the longest prefix. PIN (pin = 1): every key on its own."""

    hashes: tuple[bytes, ...] = ()
    pin: int = 0
    pin_deadline_ms: int = 0

    LAYOUT: ClassVar[Layout] = Layout("ms_match", "pin:I pin_deadline_ms:I count:I reserved:4x")

    def write(self, writer: Writer) -> None:
        writer.raw(self.LAYOUT.pack(self, count=len(self.hashes)))
        writer.raw(_join_hashes(self.hashes))

    @classmethod
    def read(cls, reader: Reader) -> Match:
        head = cls.LAYOUT.unpack(reader)
        count = head.pop("count")
        return cls(**head, hashes=reader.items(count, 16, lambda reader: reader.take(16)))


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

    LAYOUT: ClassVar[Layout] = Layout(
        "ms_put_item",
        "hash:16s size:Q ttl_ms:I deadline_ms:I parent:16s group:Q key_length:H replica_count:B "
        "replica_count_min:B flags:I preferred_server:I reserved:4x",
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
    """A key in full. REMOVE's items; STAT's body."""

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
        _check(length <= PATTERN_BYTES_MAX, f"a pattern of {length} bytes")
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
        "ms_list_item",
        "size:Q version:Q key_length:I replica_count:H flags:B pinned:B ttl_ms:Q",
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
        _check(head["replica_count"] <= REPLICAS_MAX, f"{head['replica_count']} replicas")
        return cls(**head, item=KeyItem.read(reader))


@dataclass(frozen=True, slots=True)
class Members(Counted):
    """Answer to MEMBERS."""

    serial: int = 0
    items: tuple[ServerInfo, ...] = ()

    ITEM: ClassVar[type[Record]] = ServerInfo
    LAYOUT: ClassVar[Layout] = Layout("", "serial:I count:I")


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


# ---- master and store server ---------------------------------------------------------------------


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
        _check_pages(item.page, item.page_count)
        _check(item.part < item.part_count <= EXTENTS_MAX, "a part out of range")
        _check(item.size <= VALUE_BYTES_MAX, f"an object of {item.size} bytes")
        _check(item.state in (1, 2), f"state {item.state}")
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
            _check_pages(item.page, item.page_count)
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
        _check(len(source.replicas) == 1, "a copy has one source")
        target = Replica.read(reader)
        target.check_holds(source.size)
        seal = Seal.read(reader)
        _check(seal.size == source.size, "a copy has the size of its source")
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


# ---- which body belongs to which method ----------------------------------------------------------

#: Bodies of requests and one-way frames.
REQUESTS: dict[Method, type[Body]] = {
    Method.HELLO: Hello,
    Method.PING: Empty,
    Method.OPEN_SEGMENT: Empty,
    Method.READ: ReadRequest,
    Method.WRITE: WriteRequest,
    Method.ATTACH: SegmentNumber,
    Method.SHARE: Share,
    Method.UNSHARE: SegmentNumber,
    Method.NOTIFY: Notify,
    Method.EXISTS_KEYS: Hashes,
    Method.LOOKUP: Hashes,
    Method.MATCH_PREFIX: Match,
    Method.PUT_START: PutStart,
    Method.PUT_END: PutEnd,
    Method.REVOKE: PutEnd,
    Method.REMOVE: Remove,
    Method.TOUCH: Hashes,
    Method.PIN: Match,
    Method.UNPIN: Hashes,
    Method.LIST: ListRequest,
    Method.STAT: KeyItem,
    Method.ANNOTATE: Annotate,
    Method.CHANGE_REPLICA: ChangeReplica,
    Method.MEMBERS: Empty,
    Method.STATUS: Empty,
    Method.REMOVE_MATCHING: ListRequest,
    Method.EVENTS: EventsRequest,
    Method.KEEPALIVE: Empty,
    Method.CLOSE_SESSION: Empty,
    Method.ADOPT: Adopt,
    Method.INVENTORY: Inventory,
    Method.FREE: Free,
    Method.CLEARED: Free,
    Method.FREED: Free,
    Method.NOTE: Note,
    Method.COPY: Copy,
    Method.RELAYED_END: RelayedEnd,
    Method.SERVER_STATS: ServerStats,
    Method.VIEW_OPEN: Views,
    Method.VIEW_CLOSE: Views,
    Method.SEAL: WriteRequest,
}

#: Bodies of answers with status OK. A method that is missing here has no answer.
ANSWERS: dict[Method, type[Body]] = {
    Method.HELLO: HelloAnswer,
    Method.PING: Empty,
    Method.OPEN_SEGMENT: Regions,
    Method.READ: Empty,
    Method.WRITE: StatusesOrEmpty,
    Method.ATTACH: Attached,
    Method.SHARE: SegmentNumber,
    Method.UNSHARE: Empty,
    Method.NOTIFY: Empty,
    Method.EXISTS_KEYS: Empty,
    Method.LOOKUP: Locations,
    Method.MATCH_PREFIX: Locations,
    Method.PUT_START: Grants,
    Method.PUT_END: Statuses,
    Method.REVOKE: Statuses,
    Method.REMOVE: Statuses,
    Method.PIN: Statuses,
    Method.UNPIN: Statuses,
    Method.LIST: ListAnswer,
    Method.STAT: StatAnswer,
    Method.ANNOTATE: Empty,
    Method.CHANGE_REPLICA: Location,
    Method.MEMBERS: Members,
    Method.STATUS: Counters,
    Method.REMOVE_MATCHING: Removed,
    Method.EVENTS: EventsAnswer,
    Method.KEEPALIVE: KeepAliveAnswer,
    Method.CLOSE_SESSION: Empty,
    Method.ADOPT: Empty,
    Method.NOTE: Empty,
    Method.COPY: Empty,
    Method.VIEW_OPEN: Statuses,
    Method.VIEW_CLOSE: Empty,
    Method.SEAL: StatusesOrEmpty,
}

#: Methods whose answer has its usual body also when its status is not OK.
ANSWERS_WITH_STATUSES = frozenset({Method.WRITE, Method.SEAL})


def decode_body(kind: int, method: int, status: int, body: bytes) -> Body | str:
    """Read a body; an answer that failed gives the sentence that it says.

    Raises:
        ProtocolError: The method has no such frame, or the body is not well formed.
    """
    try:
        known = Method(method)
    except ValueError as error:
        raise ProtocolError(f"unknown method {method:#x}") from error
    if kind != Kind.ANSWER:
        return REQUESTS[known].decode(body)
    if known not in ANSWERS:
        raise ProtocolError(f"{known.name} has no answer")
    if _status(status) != Status.OK and known not in ANSWERS_WITH_STATUSES:
        return body.decode("utf-8", "replace")
    return ANSWERS[known].decode(body)
