"""HELLO: who calls, and what an accepted connection may do."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from mooncake_store.protocol.codec import TENANT_BYTES_MAX, Body, Layout, Reader, Record, Writer
from mooncake_store.protocol.frames.basics import (
    ADDRESSES_BYTES_MAX,
    NAME_BYTES_MAX,
    NO_ID,
    SECRET_BYTES,
    SOCKET_PATH_BYTES_MAX,
    TOKEN_BYTES_MAX,
    WIRE_VERSION,
    WIRE_VERSION_OLDEST,
    check,
)
from mooncake_store.protocol.methods import Role

__all__ = ["Hello", "HelloAnswer", "SegmentInfo", "ServerInfo"]


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
        "ms_server_info", "node_id:16s incarnation:I state:I server:I segment_count:I boot_id:16s"
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
    cluster: int = 0
    version_oldest: int = WIRE_VERSION_OLDEST
    version_newest: int = WIRE_VERSION
    tenant: bytes = b"default"
    token: bytes = b""
    name: bytes = b""
    server: ServerInfo | None = None

    LAYOUT: ClassVar[Layout] = Layout(
        "ms_hello",
        "version_oldest:B version_newest:B role:B right:B incarnation:I session:Q epoch:I pid:I "
        "boot_id:16s cluster:Q",
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
        check(len(answer.secret) in (0, SECRET_BYTES), "a secret has 192 bytes")
        return answer
