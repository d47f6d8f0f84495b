"""Reading and writing the bytes of frames: the Python twin of `ms_frame.h`.

For gRPC services, tests and tools; the paths of every key and byte are in C. A `Reader` believes no
length that the remaining bytes cannot hold. Whatever is malformed raises `ProtocolError`.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterable
from typing import Any, ClassVar, TypeVar

from mooncake_store.errors import ProtocolError

__all__ = ["Body", "Counted", "Keyed", "Layout", "Reader", "Record", "TenantKeyed", "Writer"]

BATCH_ITEMS_MAX = 65_536
KEY_BYTES_MAX = 1024
TENANT_BYTES_MAX = 64

_U32 = struct.Struct("<I")
_U64 = struct.Struct("<Q")
_LIST = struct.Struct("<II")

T = TypeVar("T")
RecordT = TypeVar("RecordT", bound="Record")
BodyT = TypeVar("BodyT", bound="Body")
CountedT = TypeVar("CountedT", bound="Counted")


def _padding(length: int) -> int:
    return -length % 8


class Reader:
    """A cursor over bytes that came from somewhere else."""

    def __init__(self, data: bytes) -> None:
        self._data = data
        self._at = 0

    @property
    def left(self) -> int:
        return len(self._data) - self._at

    def take(self, length: int) -> bytes:
        if length > self.left:
            raise ProtocolError(f"{length} bytes wanted, {self.left} left")
        self._at += length
        return self._data[self._at - length : self._at]

    def padded(self, length: int) -> bytes:
        """Take bytes and the zeros behind them; at the very end the zeros may be missing."""
        data = self.take(length)
        self._at += min(_padding(length), self.left)
        return data

    def u32(self) -> int:
        return int(_U32.unpack(self.take(4))[0])

    def u64(self) -> int:
        return int(_U64.unpack(self.take(8))[0])

    def string(self, length_max: int) -> bytes:
        length = self.u32()
        if length > length_max:
            raise ProtocolError(f"a string of {length} bytes, at most {length_max} are allowed")
        data = self.take(length)
        self._at += min(_padding(4 + length), self.left)
        return data

    def items(self, count: int, item_bytes_min: int, read: Callable[[Reader], T]) -> tuple[T, ...]:
        """Read `count` items, if so many can be there at all."""
        if count > BATCH_ITEMS_MAX or count * item_bytes_min > self.left:
            raise ProtocolError(f"{count} items cannot be in {self.left} bytes")
        return tuple(read(self) for _ in range(count))

    def list_of(self, item_bytes_min: int, read: Callable[[Reader], T]) -> tuple[T, ...]:
        count, _ = _LIST.unpack(self.take(8))
        return self.items(count, item_bytes_min, read)

    def end(self) -> None:
        """Refuse bytes behind what a message ends with."""
        if self.left != 0:
            raise ProtocolError(f"{self.left} bytes too many")


class Writer:
    """Collects the bytes of one body."""

    def __init__(self) -> None:
        self._data = bytearray()

    def raw(self, data: bytes) -> None:
        self._data += data

    def padded(self, data: bytes) -> None:
        self._data += data
        self._data += bytes(_padding(len(data)))

    def u32(self, value: int) -> None:
        self._data += _U32.pack(value)

    def u64(self, value: int) -> None:
        self._data += _U64.pack(value)

    def string(self, data: bytes) -> None:
        self.u32(len(data))
        self._data += data
        self._data += bytes(_padding(4 + len(data)))

    def list_of(self, items: Iterable[Record]) -> None:
        items = tuple(items)
        self._data += _LIST.pack(len(items), 0)
        for item in items:
            item.write(self)

    def getvalue(self) -> bytes:
        return bytes(self._data)


class Layout:
    """A C struct: its name in `ms_wire.h` and its fields, each `name:code` in codes of `struct`.

    Reserved fields have a code of padding bytes (`4x`): written as zeros, not looked at.
    """

    def __init__(self, c_name: str, fields: str) -> None:
        self.c_name = c_name
        self.fields = tuple(tuple(field.split(":")) for field in fields.split())
        self.names = tuple(name for name, code in self.fields if not code.endswith("x"))
        self._struct = struct.Struct("<" + "".join(code for _, code in self.fields))
        self.size = self._struct.size

    def pack(self, source: object, **implied: int) -> bytes:
        """Take the fields from attributes of `source`, lengths and counts from `implied`."""
        try:
            return self._struct.pack(
                *(
                    implied[name] if name in implied else getattr(source, name)
                    for name in self.names
                )
            )
        except struct.error as error:
            raise ValueError(f"{self.c_name}: {error}") from error

    def unpack(self, reader: Reader) -> dict[str, Any]:
        return dict(zip(self.names, self._struct.unpack(reader.take(self.size)), strict=True))


class Record:
    """Something with a place inside a body: a struct, with or without a tail."""

    __slots__ = ()
    LAYOUT: ClassVar[Layout]

    def write(self, writer: Writer) -> None:
        writer.raw(self.LAYOUT.pack(self))

    @classmethod
    def read(cls: type[RecordT], reader: Reader) -> RecordT:
        return cls(**cls.LAYOUT.unpack(reader))

    @classmethod
    def read_list(cls: type[RecordT], reader: Reader) -> tuple[RecordT, ...]:
        return reader.list_of(cls.LAYOUT.size, cls.read)


class Keyed(Record):
    """A struct and the key behind it: `key_length` is implied."""

    __slots__ = ()
    key: bytes

    def write(self, writer: Writer) -> None:
        writer.raw(self.LAYOUT.pack(self, key_length=len(self.key)))
        writer.padded(self.key)

    @classmethod
    def read(cls: type[RecordT], reader: Reader) -> RecordT:
        head = cls.LAYOUT.unpack(reader)
        key_length = head.pop("key_length")
        if key_length > KEY_BYTES_MAX:
            raise ProtocolError(f"a key of {key_length} bytes")
        head["key"] = reader.padded(key_length)
        return cls(**head)


class TenantKeyed(Record):
    """A struct and tenant and key behind it, padded together; their lengths are implied."""

    __slots__ = ()
    tenant: bytes
    key: bytes

    def write(self, writer: Writer) -> None:
        lengths = {"key_length": len(self.key), "tenant_length": len(self.tenant)}
        writer.raw(self.LAYOUT.pack(self, **lengths))
        writer.padded(self.tenant + self.key)

    @classmethod
    def read(cls: type[RecordT], reader: Reader) -> RecordT:
        head = cls.LAYOUT.unpack(reader)
        key_length, tenant_length = head.pop("key_length"), head.pop("tenant_length")
        if key_length > KEY_BYTES_MAX:
            raise ProtocolError(f"a key of {key_length} bytes")
        if tenant_length > TENANT_BYTES_MAX:
            raise ProtocolError(f"a tenant of {tenant_length} bytes")
        names = reader.padded(tenant_length + key_length)
        head["tenant"], head["key"] = names[:tenant_length], names[tenant_length:]
        return cls(**head)


class Body(Record):
    """A record that is the whole body of a frame."""

    __slots__ = ()

    def encode(self) -> bytes:
        writer = Writer()
        self.write(writer)
        return writer.getvalue()

    @classmethod
    def decode(cls: type[BodyT], body: bytes) -> BodyT:
        """Read a body from its first to its last byte.

        Raises:
            ProtocolError: It is not well formed.
        """
        reader = Reader(body)
        value = cls.read(reader)
        reader.end()
        return value


class Counted(Body):
    """A head and items behind it: `count` is implied. With the head `LIST` a plain list."""

    __slots__ = ()
    ITEM: ClassVar[type[Record]]
    LIST: ClassVar[Layout] = Layout("", "count:I reserved:4x")
    items: tuple[Any, ...]

    def write(self, writer: Writer) -> None:
        writer.raw(self.LAYOUT.pack(self, count=len(self.items)))
        for item in self.items:
            item.write(writer)

    @classmethod
    def read(cls: type[CountedT], reader: Reader) -> CountedT:
        head = cls.LAYOUT.unpack(reader)
        count = head.pop("count")
        head["items"] = reader.items(count, cls.ITEM.LAYOUT.size, cls.ITEM.read)
        return cls(**head)
