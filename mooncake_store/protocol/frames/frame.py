"""A whole frame: its header, and what follows it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from mooncake_store.protocol.codec import Body, Layout, Reader
from mooncake_store.protocol.frames.basics import (
    BODY_BYTES_MAX,
    BODY_BYTES_MAX_HELLO,
    MAGIC,
    VALUE_BYTES_MAX,
    WIRE_VERSION,
    check,
)
from mooncake_store.protocol.frames.bodies import decode_body
from mooncake_store.protocol.methods import Kind, Method

__all__ = ["Frame", "Header"]


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
        check(self.magic == MAGIC, "the frame does not begin with MCS1")
        expected = 1 if first or self.method == Method.HELLO else version
        check(self.version == expected, f"wire version {self.version}, not {expected}")
        check(self.kind <= Kind.ONEWAY, f"kind {self.kind}")
        is_hello = self.method == Method.HELLO and self.kind != Kind.ONEWAY
        check(not first or is_hello, "the first frame is not HELLO")
        body_max = BODY_BYTES_MAX_HELLO if first else BODY_BYTES_MAX
        check(self.body_length <= body_max, f"a body of {self.body_length} bytes")
        trailer_max = 0 if first else BODY_BYTES_MAX
        check(self.trailer_length <= trailer_max, f"a trailer of {self.trailer_length} bytes")
        payload_max = 0 if first else VALUE_BYTES_MAX
        check(self.payload_length <= payload_max, f"a payload of {self.payload_length} bytes")
        check(self.reserved == 0, "a reserved length is set")


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
