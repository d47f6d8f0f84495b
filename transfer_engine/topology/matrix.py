"""What one machine has: interfaces, memory locations, and the matrix of which suits which.

The matrix maps a memory location (`cpu:0`, `cuda:1`) to its preferred network interfaces and to
those to fall back on, as in the Mooncake paper (FAST '25, section 4.2).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import IntEnum

from mooncake_store.transfer_engine.topology.nic import Nic

__all__ = ["ANYWHERE", "Device", "NicPreference", "Tier", "Topology"]

ANYWHERE = "*"
"""The location of memory that nobody has placed."""


class Tier(IntEnum):
    """How well an interface suits a location; the same numbers as C's `TE_TIER_*`."""

    PREFERRED = 0
    SECONDARY = 1
    OTHER = 2


@dataclass(frozen=True, slots=True)
class Device:
    """Where memory is: a NUMA node (`cpu:0`) or an accelerator (`cuda:0`).

    Attributes:
        location: Its name.
        numa_node: The node, or the one that the accelerator is attached to; None if unknown.
        path: Its place below a PCIe host bridge; empty for a node.
        node_distances: From its node to each other one, as the firmware tells (10 is itself).
    """

    location: str
    numa_node: int | None = None
    path: str = ""
    node_distances: Mapping[int, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class NicPreference:
    """The interfaces that suit one memory location."""

    preferred: tuple[str, ...]
    secondary: tuple[str, ...] = ()

    def tier(self, name: str) -> Tier:
        """Return how well the interface of that name suits; unnamed ones come last."""
        if name in self.preferred:
            return Tier.PREFERRED
        return Tier.SECONDARY if name in self.secondary else Tier.OTHER


@dataclass(frozen=True, slots=True)
class Topology:
    """Interfaces, and the matrix of memory locations to interfaces.

    Attributes:
        nics: All of them, those that cannot be used too: `unusable_reason` says why.
        matrix: Locations to preferences, by name.
        devices: What the locations are; empty for a peer's topology, of which the matrix is enough.
        by_hand: Locations whose preference a person wrote: nothing computed overrides that.
    """

    nics: tuple[Nic, ...] = ()
    matrix: Mapping[str, NicPreference] = field(default_factory=dict)
    devices: tuple[Device, ...] = ()
    by_hand: frozenset[str] = frozenset()

    def nic(self, name: str) -> Nic | None:
        """Return the interface of that name, None when there is none."""
        return next((nic for nic in self.nics if nic.name == name), None)

    def device(self, location: str) -> Device | None:
        """Return what is known about a location, None when that is nothing."""
        return next((device for device in self.devices if device.location == location), None)
