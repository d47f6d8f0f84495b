"""What is known of decode instances, as the native policies read it, by slot."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from mooncake_store._native import ffi as _ffi
from mooncake_store.conductor.service.instances import LoadReport

__all__ = ["DecodeTable"]

ffi: Any = _ffi

_ROW_BYTES = ffi.sizeof("cd_decode_view")


@dataclass(slots=True)
class _Row:
    """What was decided here and has not ended."""

    batch: int = 0
    context_tokens: float = 0.0
    promised: int = 0
    promised_tokens: float = 0.0
    reserved_tokens: float = 0.0
    reported_batch: float = 0.0
    reported_context: float = 0.0
    reported_reserved: float = 0.0


class DecodeTable:
    """Rows without a gap, and slots, which stay an instance's while it is registered.

    Of a batch the larger is believed, what was decided here or what the instance reports: it may
    have requests from elsewhere, and it may not know yet what has just been decided.

    Attributes:
        rows: `cd_decode_view[]`.
        count: How many there are.
        slots: Whose each row is.
        row_of: The row of each slot.
    """

    def __init__(self, slots: int) -> None:
        self.rows: Any = ffi.new("cd_decode_view[]", slots)
        self._bytes = ffi.buffer(self.rows)
        self._views = [self.rows[row] for row in range(slots)]
        self._known: dict[int, _Row] = {}
        self.slots: list[int] = []
        self.row_of: dict[int, int] = {}

    @property
    def count(self) -> int:
        """How many rows there are."""
        return len(self.slots)

    def copy(self) -> bytes:
        """Return the rows as they are now."""
        return bytes(self._bytes[0 : len(self.slots) * _ROW_BYTES])

    def show(self, slot: int, *, is_closed: bool) -> None:
        """Let a slot be a decode instance's."""
        if slot not in self._known:
            self._known[slot] = _Row()
            self.row_of[slot] = len(self.slots)
            self.slots.append(slot)
        self._refresh(slot)
        self._views[self.row_of[slot]].is_closed = is_closed

    def clear(self, slot: int) -> None:
        """Let a slot be nobody's: the last row moves into its place."""
        if self._known.pop(slot, None) is None:
            return
        row = self.row_of.pop(slot)
        last = self.slots.pop()
        if last != slot:
            self.slots[row], self.row_of[last] = last, row
            self.rows[row] = self.rows[len(self.slots)]

    @property
    def has_open(self) -> bool:
        """Whether somebody takes requests."""
        return any(not self._views[row].is_closed for row in range(len(self.slots)))

    def is_closed(self, slot: int) -> bool:
        """Whether a slot takes nothing."""
        row = self.row_of.get(slot)
        return row is None or bool(self._views[row].is_closed)

    def load(self, slot: int) -> tuple[float, float, float]:
        """Return batch (promised requests too), context and reserved tokens of a slot."""
        view = self._views[self.row_of[slot]]
        return view.batch + view.promised, view.context_tokens, view.reserved_tokens

    def believe(self, slot: int, report: LoadReport | None) -> None:
        """Take an instance's own numbers, or none any more."""
        row = self._known.get(slot)
        if row is None:
            return
        row.reported_batch = (report.batch or 0) if report else 0
        row.reported_context = (report.context_tokens or 0) if report else 0
        row.reported_reserved = (report.reserved_tokens or 0) if report else 0
        self._refresh(slot)

    def promise(self, slot: int, num_tokens: int, output: float) -> None:
        """A request will come here, once its prompt is computed."""
        row = self._known[slot]
        row.promised += 1
        row.promised_tokens += num_tokens
        row.reserved_tokens += num_tokens + output
        self._refresh(slot)

    def begin(self, slot: int, num_tokens: int, output: float) -> None:
        """A promised request is decoded now; its context will on average have half the answer."""
        row = self._known[slot]
        row.promised -= 1
        row.promised_tokens -= num_tokens
        row.batch += 1
        row.context_tokens += num_tokens + output / 2
        self._refresh(slot)

    def end(self, slot: int, num_tokens: int, output: float, *, was_promised: bool) -> None:
        """A request is through, or will not come."""
        row = self._known[slot]
        if was_promised:
            row.promised -= 1
            row.promised_tokens -= num_tokens
        else:
            row.batch -= 1
            row.context_tokens -= num_tokens + output / 2
        row.reserved_tokens -= num_tokens + output
        self._refresh(slot)

    def _refresh(self, slot: int) -> None:
        row, view = self._known[slot], self._views[self.row_of[slot]]
        view.batch = max(row.batch, row.reported_batch)
        view.context_tokens = max(row.context_tokens, row.reported_context)
        view.reserved_tokens = max(row.reserved_tokens, row.reported_reserved)
        view.promised, view.promised_tokens = row.promised, row.promised_tokens
