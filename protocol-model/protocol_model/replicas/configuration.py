"""A scenario: one key, two or more servers, and how many faults may happen."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from protocol_model.replicas.rules import SPECIFICATION

__all__ = ["Budget", "Configuration"]

PROPERTIES = frozenset({"S1", "S2", "S3", "S4"})


class Budget(NamedTuple):
    """How often each thing may still happen."""

    elections: int = 0
    outages: int = 0  # of the coordinator
    kills: int = 0
    reboots: int = 0
    losses: int = 0  # a server is silent for longer than its grace
    condemnations: int = 0  # of a server that is away, instead of more tombstones
    removes: int = 0
    evictions: int = 0
    abandons: int = 0
    copies: int = 0  # changes of the object's replicas
    timeouts: int = 0  # of those
    notes: int = 0
    pins: int = 0
    views: int = 0


NOTHING = Budget()


@dataclass(frozen=True)
class Configuration:
    """One scenario.

    Attributes:
        extents: Per server, how many extents of one page it has.
        parts: Extents that a replica of the object needs.
        replicas: That a put wants, and that the stored object has at the start.
        is_stored: Value 0 is stored at the start, on the first servers.
        puts: One writer each: is it an upsert?
        has_tombstone: An older one of the key is there, which leader 1 knows.
        properties: What is judged; L1 (all ends when faults stop) costs more than the others.
    """

    extents: tuple[int, ...] = (2, 2)
    parts: int = 1
    replicas: int = 1
    is_stored: bool = True
    puts: tuple[bool, ...] = ()
    has_tombstone: bool = False
    budget: Budget = NOTHING
    rules: frozenset[str] = SPECIFICATION
    properties: frozenset[str] = PROPERTIES

    @property
    def servers(self) -> range:
        return range(len(self.extents))
