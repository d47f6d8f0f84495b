"""What has changed between two looks at a machine: a pure function."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from mooncake_store.transfer_engine.topology.gid import rank_gids
from mooncake_store.transfer_engine.topology.matrix import Topology
from mooncake_store.transfer_engine.topology.nic import Nic, unusable_reason

__all__ = ["Change", "ChangeKind", "changes"]


class ChangeKind(str, Enum):
    """What has become of an interface."""

    ADDED = "added"
    REMOVED = "removed"
    UP = "up"
    DOWN = "down"
    ADDRESSES = "addresses"
    GIDS = "gids"
    PLACE = "place"  # speed, MTU, master, NUMA node: ranks may differ
    LOCATIONS = "locations"  # of memory: a GPU has come or gone


@dataclass(frozen=True, slots=True)
class Change:
    """One thing that has changed.

    Attributes:
        kind: What.
        name: The interface; empty for LOCATIONS.
        why: Words for people.
    """

    kind: ChangeKind
    name: str
    why: str


def changes(old: Topology, new: Topology) -> tuple[Change, ...]:
    """Return what has changed: first what has gone, then in the order of the new interfaces."""
    before = {nic.name: nic for nic in old.nics}
    after = {nic.name: nic for nic in new.nics}
    found = [
        Change(ChangeKind.REMOVED, name, "the interface has gone")
        for name in before
        if name not in after
    ]
    for name, nic in after.items():
        if name not in before:
            reason = unusable_reason(nic)
            found.append(Change(ChangeKind.ADDED, name, reason or _ends(nic)))
        else:
            found += _changes_of(before[name], nic)
    if [item.location for item in old.devices] != [item.location for item in new.devices]:
        locations = ", ".join(item.location for item in new.devices)
        found.append(Change(ChangeKind.LOCATIONS, "", f"now {locations}"))
    return tuple(found)


def _changes_of(old: Nic, new: Nic) -> list[Change]:
    found = []
    was, reason = unusable_reason(old), unusable_reason(new)
    if was and not reason:
        found.append(Change(ChangeKind.UP, new.name, _ends(new)))
    if reason and not was:
        found.append(Change(ChangeKind.DOWN, new.name, reason))
    if set(old.addresses) != set(new.addresses):
        found.append(Change(ChangeKind.ADDRESSES, new.name, _ends(new)))
    if _gids(old) != _gids(new):
        found.append(Change(ChangeKind.GIDS, new.name, f"now {len(_gids(new))} GIDs"))
    if _place(old) != _place(new):
        found.append(Change(ChangeKind.PLACE, new.name, "speed, MTU, master or node"))
    return found


def _gids(nic: Nic) -> frozenset[object]:
    if nic.rdma is None:
        return frozenset()
    return frozenset(rank_gids(nic.rdma.gids, nic.rdma.layer))


def _place(nic: Nic) -> tuple[object, ...]:
    lid = nic.rdma.lid if nic.rdma else 0
    return (
        nic.mbit_per_s, nic.mtu, nic.master, nic.lowers, nic.numa_node, nic.path, nic.kind,
        nic.link, nic.gid_index, lid,
    )  # fmt: skip


def _ends(nic: Nic) -> str:
    addresses = ", ".join(str(address) for address in nic.addresses)
    return f"now {addresses}" if addresses else "no IP address"
