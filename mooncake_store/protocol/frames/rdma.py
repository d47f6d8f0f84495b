"""What agrees on RDMA queue pairs: ports, ends of a queue pair, where segments are registered."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from mooncake_store.protocol.codec import Body, Counted, Layout, Reader, Record, Writer

__all__ = [
    "RdmaChunk",
    "RdmaEnd",
    "RdmaGid",
    "RdmaPort",
    "RdmaPorts",
    "RdmaSegment",
]


@dataclass(frozen=True, slots=True)
class RdmaGid(Record):
    """An address of a port, and where it stands in the port's table."""

    raw: bytes
    type: int
    index: int

    LAYOUT: ClassVar[Layout] = Layout("ms_rdma_gid", "raw:16s type:B index:B reserved:6x")


@dataclass(frozen=True, slots=True)
class RdmaPort(Record):
    """A port of an RDMA device, by the number that its process gave it."""

    nic: int
    link: int
    mtu: int
    message_bytes_max: int
    lid: int = 0
    gids: tuple[RdmaGid, ...] = ()

    LAYOUT: ClassVar[Layout] = Layout(
        "ms_rdma_port", "nic:I link:B mtu:B lid:H message_bytes_max:I gid_count:I"
    )

    def write(self, writer: Writer) -> None:
        writer.raw(self.LAYOUT.pack(self, gid_count=len(self.gids)))
        for gid in self.gids:
            gid.write(writer)

    @classmethod
    def read(cls, reader: Reader) -> RdmaPort:
        head = cls.LAYOUT.unpack(reader)
        count = head.pop("gid_count")
        return cls(**head, gids=reader.items(count, RdmaGid.LAYOUT.size, RdmaGid.read))


@dataclass(frozen=True, slots=True)
class RdmaPorts(Counted):
    """Answer to RDMA_PORTS."""

    items: tuple[RdmaPort, ...] = ()

    ITEM: ClassVar[type[Record]] = RdmaPort
    LAYOUT: ClassVar[Layout] = Counted.LIST


@dataclass(frozen=True, slots=True)
class RdmaEnd(Body):
    """RDMA_CONNECT and its answer: one end of a queue pair."""

    generation: int
    nic: int
    queue_pair: int
    packet: int
    mtu: int
    gid_index: int
    gid: bytes
    lid: int = 0
    reads_out: int = 1
    reads_in: int = 1

    LAYOUT: ClassVar[Layout] = Layout(
        "ms_rdma_end",
        "generation:Q nic:I queue_pair:I packet:I lid:H mtu:B gid_index:B gid:16s reads_out:B "
        "reads_in:B reserved:6x",
    )


@dataclass(frozen=True, slots=True)
class RdmaChunk(Record):
    """A part of a segment, or of its table of words, as one NIC knows it."""

    offset: int
    length: int
    address: int
    key: int
    nic: int
    is_words: int = 0

    LAYOUT: ClassVar[Layout] = Layout(
        "ms_rdma_chunk", "offset:Q length:Q address:Q key:I nic:H is_words:H"
    )


@dataclass(frozen=True, slots=True)
class RdmaSegment(Body):
    """Answer to RDMA_SEGMENT; `is_whole` 1: nothing is still being registered."""

    is_whole: int
    chunks: tuple[RdmaChunk, ...] = ()

    LAYOUT: ClassVar[Layout] = Layout("", "is_whole:I reserved:4x")

    def write(self, writer: Writer) -> None:
        writer.raw(self.LAYOUT.pack(self))
        writer.list_of(self.chunks)

    @classmethod
    def read(cls, reader: Reader) -> RdmaSegment:
        head = cls.LAYOUT.unpack(reader)
        return cls(**head, chunks=RdmaChunk.read_list(reader))
