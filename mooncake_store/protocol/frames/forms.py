"""Bodies that several methods have."""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import ClassVar

from mooncake_store.errors import Status
from mooncake_store.protocol.codec import Body, Layout, Reader, Writer
from mooncake_store.protocol.frames.basics import status_of

__all__ = ["Empty", "Hashes", "Statuses", "StatusesOrEmpty", "join_hashes"]


@dataclass(frozen=True, slots=True)
class Empty(Body):
    """No body."""

    LAYOUT: ClassVar[Layout] = Layout("", "")


@dataclass(frozen=True, slots=True)
class Hashes(Body):
    """EXISTS_KEYS, LOOKUP, TOUCH: hashes of keys, 16 bytes each."""

    hashes: tuple[bytes, ...] = ()

    def write(self, writer: Writer) -> None:
        writer.u32(len(self.hashes))
        writer.u32(0)
        writer.raw(join_hashes(self.hashes))

    @classmethod
    def read(cls, reader: Reader) -> Hashes:
        return cls(reader.list_of(16, lambda reader: reader.take(16)))


def join_hashes(hashes: tuple[bytes, ...]) -> bytes:
    """Return hashes as they lie in a list."""
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
        return cls(reader.list_of(4, lambda reader: status_of(reader.u32())))


@dataclass(frozen=True, slots=True)
class StatusesOrEmpty(Statuses):
    """Answer to WRITE and SEAL: nothing at all when every item went well."""

    def write(self, writer: Writer) -> None:
        if self.statuses:
            Statuses.write(self, writer)

    @classmethod
    def read(cls, reader: Reader) -> StatusesOrEmpty:
        return cls(Statuses.read(reader).statuses if reader.left else ())
