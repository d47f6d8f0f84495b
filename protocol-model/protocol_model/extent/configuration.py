"""A scenario: which parties there are, and how many faults may happen."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from protocol_model.extent.rules import SPECIFICATION

__all__ = ["Budget", "Configuration", "Place", "Put"]

PROPERTIES = frozenset({"S1", "S2", "S3", "S4", "S5"})


class Put(NamedTuple):
    """What one writer does in its life: one put."""

    key: int
    transport: str  # "tcp": the server checks each write; "rdma": it sees none
    is_upsert: bool


class Place(NamedTuple):
    """An extent: its server and its pages, which are numbered over all servers."""

    server: int
    pages: tuple[int, ...]


class Budget(NamedTuple):
    """How often each thing may still happen."""

    elections: int = 0
    kills: int = 0
    reboots: int = 0
    duplicates: int = 0
    evictions: int = 0
    removes: int = 0
    abandons: int = 0
    reads: int = 0
    losses: int = 0
    revokes: int = 0
    views: int = 0


NOTHING = Budget()


@dataclass(frozen=True)
class Configuration:
    """One scenario.

    Attributes:
        extents: Where objects can lie; extents may overlap.
        is_stored: Key 0 is stored, as value 0 in extent 0, at the start.
        puts: One writer each.
        has_copies: A checked write is a copy that takes time, under the use count that its check
            took.
        has_relay: A server that has sealed a put over TCP relays put_end.
        properties: What is judged; L1 (everything ends when faults stop) costs more than the
            others.
    """

    extents: tuple[Place, ...]
    rules: frozenset[str] = SPECIFICATION
    is_stored: bool = True
    puts: tuple[Put, ...] = ()
    reader_key: int = 0
    budget: Budget = NOTHING
    has_copies: bool = False
    has_relay: bool = False
    properties: frozenset[str] = PROPERTIES

    @property
    def page_count(self) -> int:
        return 1 + max(page for place in self.extents for page in place.pages)

    @property
    def server_count(self) -> int:
        return 1 + max(place.server for place in self.extents)

    @property
    def key_count(self) -> int:
        return 1 + max([self.reader_key, 0] + [put.key for put in self.puts])

    def first_page(self, extent: int) -> int:
        return self.extents[extent].pages[0]

    def key_of(self, value: int) -> int:
        """Return the key of a value: 0 is the one stored at the start, then one a writer."""
        return 0 if value == 0 else self.puts[value - 1].key

    def overlapping(self, extent: int) -> list[int]:
        mine = set(self.extents[extent].pages)
        return [other for other, place in enumerate(self.extents) if mine & set(place.pages)]
