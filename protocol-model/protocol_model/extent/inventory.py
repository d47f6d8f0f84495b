"""How a leader takes in what a server says it holds, and what of that counts."""

from __future__ import annotations

from protocol_model.extent.configuration import Configuration
from protocol_model.extent.state import (
    Entry,
    Free,
    Generation,
    Inventory,
    Message,
    Record,
    Slot,
    State,
    Step,
    Tombstone,
    Version,
    changed,
    lives,
)

__all__ = ["take_in"]


class _Rebuild:
    """A leader's tables while they are being rebuilt from one inventory."""

    def __init__(self, state: State, config: Configuration, i: int, inventory: Inventory) -> None:
        self.config, self.inventory = config, inventory
        self.leader = state.leaders[i]
        self.index = list(self.leader.objects)
        self.slots = list(self.leader.slots)
        self.words = list(self.leader.words)
        self.values = state.values
        self.messages = set[Message]()
        self.tombstones: dict[int, Version] = {}
        for message in state.network:
            if isinstance(message, Tombstone):
                known = self.tombstones.get(message.key, (0, 0))
                self.tombstones[message.key] = max(known, message.version)

    def free(self, extent: int, generation: Generation) -> None:
        server = self.config.extents[extent].server
        incarnation = self.leader.adopted[server]
        if server == self.inventory.server:
            incarnation = self.inventory.incarnation
        self.slots[extent] = Slot("Q", generation, -1)
        self.messages.add(Free(self.leader.epoch, extent, generation, -1, incarnation))

    def extent(self, extent: int, record: Record | None, is_known: bool) -> None:
        """Decide what an extent is; is_known: a former life of its server was adopted."""
        code, generation, _ = self.slots[extent]
        if is_known and code == "C" and not (record and record.generation == generation):
            for key, entry in enumerate(self.index):
                if entry and entry.extent == extent:
                    self.index[key] = None
            code = "F"
        if is_known and code == "W" and "seal" not in self.config.rules:
            return
        if is_known and code in "QV":
            slot = self.slots[extent]
            self.free(extent, generation)
            self.slots[extent] = slot
            return
        if is_known and code == "C":
            return
        if record is None:
            self._no_record(extent)
        elif is_known and code == "W":  # sealed but not ended in the former life
            self.free(extent, record.generation)
        else:
            self._record(extent, record)

    def _no_record(self, extent: int) -> None:
        busy = next((use for use in self.inventory.busy if use.extent == extent), None)
        self.slots[extent] = Slot("F", 0, -1)
        if busy is not None:  # in use without a live word: freed again, and waited for
            self.free(extent, busy.generation)
            self.slots[extent] = Slot("V", busy.generation, -1)

    def _record(self, extent: int, record: Record) -> None:
        """Of a key the highest version above its tombstone counts."""
        known, has_versions = self.index[record.key], "versions" in self.config.rules
        counts = record.version > self.tombstones.get(record.key, (0, -1))
        if known is not None and (not has_versions or known.version > record.version):
            counts = not has_versions
        mine = Entry(extent, record.generation, record.value, record.version)
        winner, loser = (mine, known) if counts else (known, mine)
        if loser and winner and winner.version > loser.version:
            status = max(self.values[loser.value], 2)
            self.values = changed(self.values, loser.value, status)
        if not counts:
            self.free(extent, record.generation)
            return
        if known is not None:
            self.free(known.extent, known.generation)
        self.index[record.key] = mine
        self.slots[extent] = Slot("C", record.generation, -1)


def take_in(state: State, config: Configuration, i: int, inventory: Inventory) -> Step:
    leader, s = state.leaders[i], inventory.server
    known = leader.adopted[s]
    if known == inventory.incarnation or (
        "frame_incarnation" in config.rules and known > inventory.incarnation
    ):
        label = f"leader {leader.epoch} ignores a second or older inventory of server {s}"
        return label, state, None
    rebuild = _Rebuild(state, config, i, inventory)
    live = {
        record.extent: record
        for record in inventory.records
        if lives(inventory.words[config.first_page(record.extent)], record.generation)
    }
    mine = [extent for extent, place in enumerate(config.extents) if place.server == s]
    for extent in mine:
        page = config.first_page(extent)
        rebuild.words[page] = inventory.words[page]
    for extent in mine:
        rebuild.extent(extent, live.get(extent), is_known=known != 0)
    informed = leader._replace(
        objects=tuple(rebuild.index),
        slots=tuple(rebuild.slots),
        words=tuple(rebuild.words),
        adopted=changed(leader.adopted, s, inventory.incarnation),
    )
    after = state.with_leader(i, informed).sending(*rebuild.messages)
    label = f"leader {leader.epoch} takes in the inventory of server {s}"
    return label, after._replace(values=rebuild.values), None
