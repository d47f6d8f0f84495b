"""What a network interface is to the store: a port that bytes can leave by, over TCP or RDMA."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum, IntEnum
from ipaddress import IPv4Interface, IPv6Address, IPv6Interface
from typing import TypeAlias

__all__ = [
    "Address",
    "Gid",
    "GidType",
    "Grade",
    "Nic",
    "NicKind",
    "RdmaLayer",
    "RdmaPort",
    "Transport",
    "is_link_local",
    "unusable_reason",
]

Address: TypeAlias = IPv4Interface | IPv6Interface
"""An IP address and its network's prefix length; without one it shares a network with nobody."""


class Transport(str, Enum):
    """What carries the bytes."""

    TCP = "tcp"
    RDMA = "rdma"


class NicKind(str, Enum):
    """What sort of interface it is, as far as that decides who takes it."""

    ETHERNET = "ethernet"
    INFINIBAND = "infiniband"
    EFA = "efa"  # AWS Elastic Fabric Adapter: RDMA without an IP address
    BOND = "bond"  # also team
    VLAN = "vlan"
    BRIDGE = "bridge"  # over a physical interface; one of containers is VIRTUAL
    WIRELESS = "wireless"
    USB = "usb"  # among them the BMC's
    VIRTUAL = "virtual"  # veth, tun, tap, docker0: no hardware below
    LOOPBACK = "loopback"


class RdmaLayer(str, Enum):
    """What an RDMA port speaks; only equals can be paired."""

    INFINIBAND = "infiniband"
    ROCE = "roce"
    IWARP = "iwarp"
    EFA = "efa"


class GidType(str, Enum):
    """How packets of a GID look on the wire, as `gid_attrs/types` says."""

    INFINIBAND = "IB"
    ROCE_V1 = "RoCE v1"
    ROCE_V2 = "RoCE v2"


class Grade(IntEnum):
    """How willingly an interface is taken, before anyone asks what it is near to."""

    WIRED = 0
    LESSER = 1  # wireless, USB, a fraction of the others' speed, or a second name for one of them
    VIRTUAL = 2
    LOOPBACK = 3


@dataclass(frozen=True, slots=True)
class Gid:
    """One entry of an RDMA port's table of addresses.

    Attributes:
        index: Its place in the table, which is what verbs ask for.
        value: The address itself; an IPv4 one is mapped (`::ffff:10.0.0.5`).
        type: How packets look.
        netdev: The network interface that it belongs to; empty on InfiniBand.
    """

    index: int
    value: IPv6Address
    type: GidType
    netdev: str = ""


@dataclass(frozen=True, slots=True)
class RdmaPort:
    """A port of an RDMA device.

    Attributes:
        device: As verbs name it: `mlx5_0`.
        port: Counted from 1.
        layer: What it speaks.
        is_active: Whether the port's state is ACTIVE: bytes can flow.
        lid: InfiniBand's local address; 0 before a subnet manager has given one.
        gids: Its addresses, without the empty entries.
        is_software: Soft-RoCE or Soft-iWARP: no hardware does the work.
        state: The state's own word, for people.
        link_mbit_per_s: The rate; None where the machine does not say.
    """

    device: str
    port: int = 1
    layer: RdmaLayer = RdmaLayer.ROCE
    is_active: bool = True
    lid: int = 0
    gids: tuple[Gid, ...] = ()
    is_software: bool = False
    state: str = "ACTIVE"
    link_mbit_per_s: int | None = None


@dataclass(frozen=True, slots=True)
class Nic:
    """A network interface, an RDMA port, or both in one.

    Attributes:
        name: The kernel's name, `eth0`; of an RDMA port without network interface `mlx5_0`.
        addresses: IP addresses that peers may connect to.
        numa_node: The node it is attached to; None where the machine does not say.
        path: Its place below a PCIe host bridge, `pci0000:16/0000:16:01.0/0000:17:00.0`; empty if
            unknown.  Of a bond: what the paths of its members have in common.
        kind: What sort it is.
        is_up: The link carries packets.
        master: The bond or bridge that it is a part of, which is then used instead; or empty.
        lowers: The interfaces that it stands on.
        mtu: Bytes; None if unknown.
        link_mbit_per_s: Megabits per second; None where the machine does not say.
        rdma: Its RDMA port.
        physical_function: The interface of which this is an SR-IOV virtual function, if that is in
            this system too; or empty.
        link: What it is cabled to, in an operator's words.  Interfaces of equal words reach each
            other, of different words not; empty: their addresses tell.
        gid_index: The GID to use, where an operator has said so.
        refused: Why an operator does not want it; empty: wanted.
    """

    name: str
    addresses: tuple[Address, ...] = ()
    numa_node: int | None = None
    path: str = ""
    kind: NicKind = NicKind.ETHERNET
    is_up: bool = True
    master: str = ""
    lowers: tuple[str, ...] = ()
    mtu: int | None = None
    link_mbit_per_s: int | None = None
    rdma: RdmaPort | None = None
    physical_function: str = ""
    link: str = ""
    gid_index: int | None = None
    refused: str = ""

    @property
    def mbit_per_s(self) -> int | None:
        """The speed of the network interface, or else that of the RDMA port."""
        if self.link_mbit_per_s is not None or self.rdma is None:
            return self.link_mbit_per_s
        return self.rdma.link_mbit_per_s


def is_link_local(address: Address) -> bool:
    """Whether an address has a meaning only on its own link: `fe80::1`, `169.254.0.1`."""
    return address.ip.is_link_local


def unusable_reason(nic: Nic, transport: Transport | None = None) -> str:
    """Return why no bytes can leave by this interface; empty when they can.

    Args:
        nic: The interface.
        transport: None: by whichever transport.
    """
    if transport is None:
        reason = unusable_reason(nic, Transport.TCP)
        if not reason or nic.rdma is None:
            return reason
        return unusable_reason(nic, Transport.RDMA) and reason
    if nic.refused:
        return nic.refused
    if nic.master:
        return f"part of {nic.master}"
    if transport is Transport.RDMA:
        return _no_rdma(nic)
    if not nic.is_up:
        return "link is down"
    if not nic.addresses:
        return "no IP address"
    if nic.kind is not NicKind.LOOPBACK and not nic.link and all(map(is_link_local, nic.addresses)):
        return "only a link-local address, and no link is named for it"
    return ""


def _no_rdma(nic: Nic) -> str:
    port = nic.rdma
    if port is None:
        return "no RDMA device"
    if not port.is_active:
        why = " (is a subnet manager running?)" if port.state == "INIT" else ""
        return f"RDMA port is {port.state or 'not active'}{why}"
    if port.layer is RdmaLayer.INFINIBAND and not port.lid:
        return "no LID: no subnet manager has seen this port"
    if port.layer in (RdmaLayer.ROCE, RdmaLayer.INFINIBAND) and not port.gids:
        return "no GID"
    return ""
