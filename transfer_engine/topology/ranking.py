"""Which interface suits which memory, and why: pure functions."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import NamedTuple

from mooncake_store.transfer_engine.topology.matrix import (
    ANYWHERE,
    Device,
    NicPreference,
    Tier,
    Topology,
)
from mooncake_store.transfer_engine.topology.nic import (
    Grade,
    Nic,
    NicKind,
    Transport,
    is_link_local,
    unusable_reason,
)

__all__ = [
    "Meeting",
    "Proximity",
    "RankedNic",
    "grades",
    "make_matrix",
    "proximity",
    "rank",
    "usable_nics",
]

_SLOW_FACTOR = 4
"""What has less than a quarter of the fastest one's speed (the management port) helps nobody."""

_KIND_GRADES = {
    NicKind.WIRELESS: Grade.LESSER,
    NicKind.USB: Grade.LESSER,
    NicKind.VIRTUAL: Grade.VIRTUAL,
    NicKind.LOOPBACK: Grade.LOOPBACK,
}


class Meeting(IntEnum):
    """Where the way from an interface to a memory turns round, nearest first."""

    SWITCH = 0  # below one PCIe root port: bytes pass no processor
    HOST_BRIDGE = 1
    NODE = 2
    UNKNOWN = 3  # assumed near where nothing is known to be nearer
    OTHER_NODE = 4


class Proximity(NamedTuple):
    """How near an interface is to a memory; smaller is nearer.

    Attributes:
        meeting: The coarse answer.
        node_distance: Between their NUMA nodes, as firmware tells; 0 unless they differ.
        depth: Negative: how many PCIe bridges they share, of which more is nearer.
    """

    meeting: Meeting
    node_distance: int = 0
    depth: int = 0


@dataclass(frozen=True, slots=True)
class RankedNic:
    """An interface, how well it suits a location, and the words that say why."""

    nic: Nic
    tier: Tier
    why: str


# ---- near and far --------------------------------------------------------------------------------


def proximity(nic: Nic, device: Device) -> Proximity:
    """Return how near an interface is to a memory.

    The PCIe tree is asked first: two devices below one switch talk without passing a processor,
    whatever their NUMA nodes are called.
    """
    depth = _shared_bridges(nic.path, device.path)
    if depth >= 2:
        return Proximity(Meeting.SWITCH, 0, -depth)
    is_known = nic.numa_node is not None and device.numa_node is not None
    if is_known and nic.numa_node != device.numa_node:
        assert nic.numa_node is not None
        return Proximity(Meeting.OTHER_NODE, device.node_distances.get(nic.numa_node, 255))
    if depth:
        return Proximity(Meeting.HOST_BRIDGE)
    return Proximity(Meeting.NODE if is_known else Meeting.UNKNOWN)


def _shared_bridges(nic_path: str, device_path: str) -> int:
    """Return how many steps from the top two paths have in common; the first is the host bridge."""
    if not nic_path or not device_path:
        return 0
    shared = 0
    for ours, theirs in zip(nic_path.split("/"), device_path.split("/"), strict=False):
        if ours != theirs:
            break
        shared += 1
    return shared


def _words(nic: Nic, device: Device) -> str:
    near = proximity(nic, device)
    if near.meeting is Meeting.SWITCH:
        return "same PCIe switch"
    if near.meeting is Meeting.HOST_BRIDGE:
        return "same PCIe host bridge"
    if near.meeting is Meeting.OTHER_NODE:
        far = f", distance {near.node_distance}" if near.node_distance < 255 else ""
        return f"NUMA node {nic.numa_node}, not {device.numa_node}{far}"
    if near.meeting is Meeting.UNKNOWN:
        return "NUMA node not known"
    return f"same NUMA node {device.numa_node}"


# ---- grades --------------------------------------------------------------------------------------


def usable_nics(topology: Topology, transport: Transport | None = None) -> tuple[Nic, ...]:
    """Return the interfaces that bytes can leave by, in their order."""
    return tuple(nic for nic in topology.nics if not unusable_reason(nic, transport))


def grades(nics: Sequence[Nic], transport: Transport | None = None) -> dict[str, tuple[Grade, str]]:
    """Return for each interface its grade and, unless that is the best, why it is not better.

    Args:
        nics: Those that can be used: the speed of one decides over the others.
        transport: For RDMA, what hardware does comes before what software does.
    """
    speeds = [nic.mbit_per_s or 0 for nic in nics if _KIND_GRADES.get(nic.kind) is None]
    fastest = max(speeds, default=0)
    names = {nic.name for nic in nics}
    return {nic.name: _grade(nic, fastest, names, transport) for nic in nics}


def _grade(
    nic: Nic, fastest_mbit_per_s: int, names: set[str], transport: Transport | None
) -> tuple[Grade, str]:
    grade = _KIND_GRADES.get(nic.kind)
    if grade is not None:
        return grade, nic.kind.value
    if nic.physical_function in names:
        return Grade.LESSER, f"virtual function of {nic.physical_function}, which is here"
    if nic.kind is NicKind.VLAN and not names.isdisjoint(nic.lowers):
        return Grade.LESSER, f"VLAN on {', '.join(nic.lowers)}, which is here"
    is_software = nic.rdma is not None and nic.rdma.is_software
    if is_software and (transport is Transport.RDMA or not nic.addresses):
        return Grade.LESSER, "software RDMA"
    if nic.rdma is None and nic.addresses and all(map(is_link_local, nic.addresses)):
        return Grade.LESSER, "only a link-local address"
    if nic.mbit_per_s and nic.mbit_per_s * _SLOW_FACTOR < fastest_mbit_per_s:
        return Grade.LESSER, f"slow: {nic.mbit_per_s} of {fastest_mbit_per_s} Mbit/s"
    return Grade.WIRED, ""


# ---- the matrix ----------------------------------------------------------------------------------


def make_matrix(nics: Sequence[Nic], devices: Iterable[Device]) -> dict[str, NicPreference]:
    """Prefer for each device the nearest interfaces of the best grade; the other good ones follow.

    What is of a lesser grade is in neither list, which places it last: it is taken when nothing
    else is left.  The row `*` is for memory that nobody has placed.
    """
    usable = [nic for nic in nics if not unusable_reason(nic)]
    base = _best_graded(usable)
    matrix = {device.location: _preference(base, device) for device in devices}
    matrix[ANYWHERE] = NicPreference(tuple(nic.name for nic in base))
    return matrix


def _best_graded(usable: Sequence[Nic], transport: Transport | None = None) -> list[Nic]:
    """Return the interfaces worth comparing by place; of equals the fastest comes first."""
    graded = grades(usable, transport)
    best = min((grade for grade, _ in graded.values()), default=Grade.WIRED)
    base = [nic for nic in usable if graded[nic.name][0] is best]
    return sorted(base, key=lambda nic: -(nic.mbit_per_s or 0))


def _preference(base: Sequence[Nic], device: Device) -> NicPreference:
    ordered = sorted(((proximity(nic, device), nic) for nic in base), key=lambda item: item[0])
    nearest = ordered[0][0] if ordered else None
    return NicPreference(
        tuple(nic.name for near, nic in ordered if near == nearest),
        tuple(nic.name for near, nic in ordered if near != nearest),
    )


def rank(
    topology: Topology, location: str = ANYWHERE, transport: Transport | None = None
) -> tuple[RankedNic, ...]:
    """Return the interfaces that can be used for a location, the best first, each with its reason.

    A row that a person wrote is obeyed.  Else the machine's devices decide among those interfaces
    that the transport can use, so that a fast port without an IP address does not make those with
    one look slow to TCP.  Of a peer only the matrix is known.

    Args:
        topology: The machine.
        location: `cpu:0`, `cuda:1`; one that is not known there likes all good ones alike.
        transport: None: whichever.
    """
    usable = usable_nics(topology, transport)
    device = topology.device(location)
    graded = grades(usable, transport)
    if location in topology.by_hand or (device is None and location in topology.matrix):
        preference = topology.matrix[location]
        written = "written by hand" if location in topology.by_hand else "says the matrix"
        words = {nic.name: written for nic in usable}
    elif device is not None:
        preference = _preference(_best_graded(usable, transport), device)
        words = {nic.name: _words(nic, device) for nic in usable}
    else:
        preference = NicPreference(tuple(nic.name for nic in _best_graded(usable, transport)))
        words = {nic.name: f"{location} is no location here: all alike" for nic in usable}
    order = {name: i for i, name in enumerate((*preference.preferred, *preference.secondary))}

    def key(indexed: tuple[int, Nic]) -> tuple[int, int, int]:
        index, nic = indexed
        return order.get(nic.name, len(order)), graded[nic.name][0], index

    ranked = []
    for _, nic in sorted(enumerate(usable), key=key):
        tier = preference.tier(nic.name)
        complaint = graded[nic.name][1]
        is_last = tier is Tier.OTHER and complaint
        ranked.append(RankedNic(nic, tier, complaint if is_last else words[nic.name]))
    return tuple(ranked)
