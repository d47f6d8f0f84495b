"""What is known of everybody who holds blocks, as the native policies read it.

A row is a prefill instance, or a store server near none: from that blocks are only fetched.  The
array is kept, because filling a new one for each decision would take longer than deciding.
"""

from __future__ import annotations

from typing import Any

from mooncake_store._native import ffi as _ffi

__all__ = ["PrefillTable"]

ffi: Any = _ffi

_ROW_BYTES = ffi.sizeof("cd_prefill_view")


class PrefillTable:
    """Rows by slot; times are of the conductor's own clock, in seconds.

    Attributes:
        rows: `cd_prefill_view[]`.
        count: How many rows there are, from the first on; unused ones are closed.
        shown: Slots in use, and whether each is closed; a new tuple with each change.
        has_open: Whether somebody takes requests.
    """

    def __init__(self, slots: int) -> None:
        self.rows: Any = ffi.new("cd_prefill_view[]", slots)
        self._bytes = ffi.buffer(self.rows)
        self._views = [self.rows[slot] for slot in range(slots)]
        for view in self._views:
            view.is_closed = True
        self.count = 0
        self.free_at_s = [0.0] * slots
        self._egress_until_s = [0.0] * slots
        self._open: list[int] = []  # slots of instances, open or not: their queues pass
        self._sources: list[int] = []  # slots of servers that only others fetch from
        self.shown: tuple[tuple[int, bool], ...] = ()
        self.has_open = False

    # ---- who is there ----------------------------------------------------------------------------

    def show_instance(self, slot: int, *, is_closed: bool) -> None:
        """Let a slot be a prefill instance's."""
        if slot not in self._open:
            self.clear(slot)
            self._open.append(slot)
        self._views[slot].is_closed = is_closed
        self._changed()

    def show_source(self, slot: int) -> None:
        """Let a slot be a store server's, near no instance."""
        if slot not in self._sources:
            self.clear(slot)
            self._sources.append(slot)
            self._changed()

    def clear(self, slot: int) -> None:
        """Let a slot be nobody's."""
        for slots in (self._open, self._sources):
            if slot in slots:
                slots.remove(slot)
        view = self._views[slot]
        view.queue_s = view.egress_bytes = view.ready_s = view.behind = 0.0
        view.requests = view.prefix_tokens = 0
        view.is_closed = True
        self.free_at_s[slot] = self._egress_until_s[slot] = 0.0
        self._changed()

    def _changed(self) -> None:
        used = (*self._open, *self._sources)
        self.count = max(used) + 1 if used else 0
        self.shown = tuple((slot, bool(self._views[slot].is_closed)) for slot in used)
        self.has_open = not all(is_closed for _, is_closed in self.shown)

    def copy(self) -> bytes:
        """Return the rows as they are now."""
        return bytes(self._bytes[0 : self.count * _ROW_BYTES])

    # ---- a decision ------------------------------------------------------------------------------

    def fill(
        self,
        lengths: list[int],
        block_tokens: int,
        tokens_max: int,
        nic_bytes_per_s: float,
        now_s: float,
    ) -> None:
        """Set what changes with each request: queues, and what of its prompt is where.

        Args:
            lengths: Blocks of the prompt that each slot holds.
            block_tokens: Tokens of a block.
            tokens_max: Of the prefix at most: one token is always computed.
            nic_bytes_per_s: How fast a sender's queue passes.
            now_s: The time.
        """
        views, free_at_s, egress_until_s = self._views, self.free_at_s, self._egress_until_s
        for slot in self._open:
            view = views[slot]
            queue_s = free_at_s[slot] - now_s
            view.queue_s = queue_s if queue_s > 0.0 else 0.0
            tokens = lengths[slot] * block_tokens
            view.prefix_tokens = tokens if tokens < tokens_max else tokens_max
            if egress_until_s[slot]:
                self._pass_egress(slot, nic_bytes_per_s, now_s)
        for slot in self._sources:
            tokens = lengths[slot] * block_tokens
            views[slot].prefix_tokens = tokens if tokens < tokens_max else tokens_max
            if egress_until_s[slot]:
                self._pass_egress(slot, nic_bytes_per_s, now_s)

    def _pass_egress(self, slot: int, nic_bytes_per_s: float, now_s: float) -> None:
        left_s = self._egress_until_s[slot] - now_s
        if left_s <= 0.0:
            self._egress_until_s[slot] = left_s = 0.0
        self._views[slot].egress_bytes = left_s * nic_bytes_per_s

    def set_ready(self, slot: int, ready_s: float) -> None:
        """Say in how long the last block of a slot's prefix is computed; 0: it is."""
        self._views[slot].ready_s = ready_s

    def ready_s(self, slot: int) -> float:
        """Return in how long the last block of a slot's prefix is computed, as `set_ready` said."""
        return float(self._views[slot].ready_s)

    # ---- what was decided ------------------------------------------------------------------------

    def set_free_at(self, slot: int, free_at_s: float, requests: int) -> None:
        """Say when all that is on an instance will have been computed, and how many that are."""
        self.free_at_s[slot] = free_at_s
        self._views[slot].requests = requests

    def send(self, slot: int, num_bytes: float, nic_bytes_per_s: float, now_s: float) -> None:
        """Note that a slot has more to send."""
        begin_s = max(self._egress_until_s[slot], now_s)
        self._egress_until_s[slot] = begin_s + num_bytes / nic_bytes_per_s
