"""Requests that were accepted and have not ended."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Any

from mooncake_store._native import ffi as _ffi
from mooncake_store.conductor.service.block_names import Blocks

__all__ = ["Flight", "FlightTable", "Stage"]

ffi: Any = _ffi


class Stage(Enum):
    """How far a request is."""

    PREFILL = "prefill"
    DECODE = "decode"


@dataclass(slots=True, kw_only=True)
class Flight:
    """An accepted request.

    Attributes:
        prefill_slot, decode_slot: Where it is.
        prefill_s: What its prompt takes to compute, as predicted.
        output: Tokens of the answer that are expected.
        is_tracked: Somebody reports how far it is; else it goes by the predictions.
        begin_s: When it is decoded from, as predicted, or as it was.
        expires_s: When it is given up, whatever is reported.
        transfer_bytes, transfer_s: What it fetches first, and what that takes, as predicted.
        keys: Of the blocks that it will leave on its prefill instance, as the index takes them.
        row: Its place in the native table.
    """

    request_id: str
    num_tokens: int
    blocks: Blocks
    prefill: str
    decode: str
    prefill_slot: int
    decode_slot: int
    prefill_s: float
    output: float
    is_tracked: bool
    arrived_s: float
    begin_s: float
    decode_s: float
    expires_s: float
    keys: bytes
    pinned_blocks: int
    transfer_bytes: float = 0.0
    transfer_s: float = 0.0
    stage: Stage = Stage.PREFILL
    row: int = -1


class FlightTable:
    """All flights as the native forecast reads them, without a gap.

    Attributes:
        rows: `cd_flight[]`.
        count: How many there are.
    """

    def __init__(self, flights_max: int) -> None:
        self.rows: Any = ffi.new("cd_flight[]", flights_max)
        self._flights: list[Flight] = []

    @property
    def count(self) -> int:
        """How many there are."""
        return len(self._flights)

    def add(self, flight: Flight, decode_row: int) -> None:
        """Take a flight in."""
        flight.row = len(self._flights)
        self._flights.append(flight)
        row = self.rows[flight.row]
        row.begin_s, row.tokens, row.generated = flight.begin_s, flight.num_tokens, 0.0
        row.output, row.instance = flight.output, decode_row

    def remove(self, flight: Flight) -> None:
        """Take a flight out: the last one moves into its place."""
        last = self._flights.pop()
        if last is not flight:
            self._flights[flight.row] = last
            self.rows[flight.row] = self.rows[last.row]
            last.row = flight.row
        flight.row = -1

    def refresh(self, now_s: float, tbt_s: float, decode_row_of: Mapping[int, int]) -> None:
        """Let the answers grow as they should have, and name the rows of decode instances anew."""
        for flight in self._flights:
            row = self.rows[flight.row]
            row.begin_s, row.instance = flight.begin_s, decode_row_of[flight.decode_slot]
            if flight.stage is Stage.DECODE:
                generated = min(max(now_s - flight.begin_s, 0.0) / tbt_s, 1e9)
                row.generated = generated
                row.tokens = flight.num_tokens + generated
