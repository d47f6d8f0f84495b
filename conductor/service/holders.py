"""Columns of the index: prefill instances, and store servers, of which instances may be near.

What a store server holds is in its own column and in those of the instances of its host, so that
their prefixes reach over accelerator and DRAM.  A server without such an instance is a source only.
"""

from __future__ import annotations

from mooncake_store.conductor.prefix_index import PrefixIndex, Tier
from mooncake_store.conductor.service.instances import Instance
from mooncake_store.conductor.service.prefill_table import PrefillTable
from mooncake_store.errors import LimitError

__all__ = ["Holders"]


class Holders:
    """Store servers by name, and the instances beside them.

    Args:
        index: The blocks.
        table: Whose rows show servers that are a source only.
        first_slot: Of servers; the slots below are instances'.
        servers_max: How many servers there can be.
    """

    def __init__(
        self, index: PrefixIndex, table: PrefillTable, *, first_slot: int, servers_max: int
    ) -> None:
        self._index = index
        self._table = table
        self._slots: dict[str, int] = {}
        self._names: dict[int, str] = {}
        self._free = list(range(first_slot + servers_max - 1, first_slot - 1, -1))
        self._server_of: dict[int, str] = {}  # of an instance's slot
        self._near: dict[str, tuple[int, ...]] = {}

    @property
    def servers(self) -> tuple[str, ...]:
        """Names of the store servers that are known."""
        return tuple(self._slots)

    @property
    def near(self) -> list[tuple[str, int]]:
        """Store servers beside instances, and their columns."""
        return [(name, slot) for name, slot in self._slots.items() if name in self._near]

    @property
    def slots(self) -> tuple[int, ...]:
        """Columns of the store servers that are known."""
        return tuple(self._names)

    def slot_of(self, server: str) -> int | None:
        """Return a server's own column, or None."""
        return self._slots.get(server)

    def column(self, server: str) -> bytes:
        """Return the packed keys of all that a store server holds."""
        slot = self._slots.get(server)
        return b"" if slot is None else b"".join(self._index.dump(slot, Tier.DRAM))

    def add_server(self, server: str) -> int:
        """Return the column of a store server, a new one if it is not known.

        Raises:
            LimitError: There are too many.
        """
        slot = self._slots.get(server)
        if slot is None:
            if not self._free:
                raise LimitError(f"there is room for {len(self._slots)} store servers")
            slot = self._slots[server] = self._free.pop()
            self._names[slot] = server
            self._show(server)
        return slot

    def remove_server(self, server: str) -> None:
        """Forget a store server and all that it held."""
        slot = self._slots.pop(server, None)
        if slot is None:
            return
        self.clear_server(server, slot)
        self._table.clear(slot)
        del self._names[slot]
        self._free.append(slot)

    def clear_server(self, server: str, slot: int) -> None:
        """Forget all that a store server held."""
        self._index.clear(slot)
        for near in self._near.get(server, ()):
            self._index.clear_tier(near, Tier.DRAM)

    def stored(self, server: str, keys: bytes) -> None:
        """A store server holds blocks now."""
        slot = self._slots.get(server)
        if slot is None:
            slot = self.add_server(server)
        self._index.store(slot, keys, Tier.DRAM)
        for near in self._near.get(server, ()):
            self._index.store(near, keys, Tier.DRAM)

    def removed(self, server: str, keys: bytes) -> None:
        """A store server does not hold blocks any more."""
        slot = self._slots.get(server)
        if slot is None:
            return
        self._index.remove(slot, keys, Tier.DRAM)
        for near in self._near.get(server, ()):
            self._index.remove(near, keys, Tier.DRAM)

    def removed_everywhere(self, keys: bytes) -> None:
        """No store server holds blocks any more."""
        for server in self._slots:
            self.removed(server, keys)

    # ---- instances -------------------------------------------------------------------------------

    def attach(self, slot: int, server: str) -> None:
        """Let an instance be near a server: what that holds is the instance's too."""
        before = self._server_of.get(slot, "")
        if before == server:
            return
        if before:
            self.detach(slot)
            self._index.clear_tier(slot, Tier.DRAM)
        if not server:
            return
        self._server_of[slot] = server
        self._near[server] = (*self._near.get(server, ()), slot)
        own = self._slots.get(server)
        if own is not None:
            self._index.copy(own, slot, Tier.DRAM)
            self._show(server)

    def detach(self, slot: int) -> None:
        """Let an instance be near no server."""
        server = self._server_of.pop(slot, "")
        if not server:
            return
        left = tuple(near for near in self._near[server] if near != slot)
        if left:
            self._near[server] = left
        else:
            del self._near[server]
        self._show(server)

    def _show(self, server: str) -> None:
        """A server beside an instance needs no row: the instance's shows what it holds."""
        slot = self._slots.get(server)
        if slot is None:
            return
        if server in self._near:
            self._table.clear(slot)
        else:
            self._table.show_source(slot)

    def name_of(self, slot: int, instances: dict[int, Instance]) -> tuple[str, str]:
        """Return who has a slot, and the store server that has its blocks (empty: not known)."""
        if slot in self._names:
            return self._names[slot], self._names[slot]
        found = instances.get(slot)
        return (found.name, found.server) if found is not None else (f"slot {slot}", "")
