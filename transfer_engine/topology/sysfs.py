"""Reads a machine's interfaces, RDMA ports, NUMA nodes and GPUs from a sysfs tree.

Nothing but files below the given root is read, so that the tree of any machine, recorded or built,
can be looked at anywhere.  What each file means: sysfs-class-net, sysfs-class-infiniband,
sysfs-bus-pci and sysfs-devices-node in Documentation/ABI/{stable,testing} of the Linux kernel.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from ipaddress import IPv6Address
from pathlib import Path

from mooncake_store.transfer_engine.topology.matrix import Device, Topology
from mooncake_store.transfer_engine.topology.netlink import read_addresses
from mooncake_store.transfer_engine.topology.nic import (
    Address,
    Gid,
    GidType,
    Nic,
    NicKind,
    RdmaLayer,
    RdmaPort,
)
from mooncake_store.transfer_engine.topology.ranking import make_matrix

__all__ = ["discover"]

_ARPHRD_ETHER, _ARPHRD_INFINIBAND, _ARPHRD_LOOPBACK = 1, 32, 772
_ARPHRD_TUNNELS = (65534, 768, 769, 776, 778)  # none (tun, WireGuard), ipip, ip6tnl, sit, gre
_IFF_UP = 0x1
_NVIDIA, _DISPLAY_CLASS = 0x10DE, 0x03
_PCI_PART = re.compile(r"pci[0-9a-f]{4,8}:[0-9a-f]{2}|[0-9a-f]{4,8}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]")
_GIDS_MAX = 256  # a ConnectX port has as many; most are empty


def discover(
    sysfs: Path | str = "/sys", addresses: Mapping[str, Sequence[Address]] | None = None
) -> Topology:
    """Return what a machine has, with the matrix of what suits what.

    Args:
        sysfs: Where sysfs is mounted, or a copy of one.
        addresses: Interface names to IP addresses; None asks the kernel for this machine's.
    """
    root = Path(sysfs)
    if addresses is None:
        addresses = read_addresses()
    links = _read_links(root)
    nics = _nics_of(links, addresses)
    nics = _with_rdma(nics, _read_ports(root), links)
    nics.sort(key=lambda nic: _natural(nic.name))
    devices = (*_read_nodes(root), *_read_gpus(root))
    return Topology(tuple(nics), make_matrix(nics, devices), devices)


# ---- network interfaces --------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Link:
    """What one folder of class/net says."""

    nic: Nic
    function: str  # the PCI function, "0000:17:00.0", or empty
    physical_function: str
    port: int  # of a function with several, from 0
    is_child: bool  # an IPoIB interface of another partition key
    is_hardware: bool


def _read_links(root: Path) -> dict[str, _Link]:
    links = {}
    for folder in sorted((root / "class/net").glob("*")):
        link = _read_link(root, folder)
        if link is not None:
            links[folder.name] = link
    return links


def _read_link(root: Path, folder: Path) -> _Link | None:
    kind = _kind(folder)
    if kind is None:
        return None
    device = folder / "device"
    path = _device_path(device)
    flags = _number(folder / "flags")
    state = _text(folder / "operstate")
    speed = _number(folder / "speed")
    master = folder / "master"
    nic = Nic(
        folder.name,
        kind=kind,
        numa_node=_numa_node(device),
        path=path,
        is_up=state in ("up", "unknown", "") and (flags is None or bool(flags & _IFF_UP)),
        master=master.resolve().name if master.is_symlink() else "",
        lowers=tuple(sorted(found.name[6:] for found in folder.glob("lower_*"))),
        mtu=_number(folder / "mtu"),
        link_mbit_per_s=speed if speed and 0 < speed < 2**31 else None,
    )
    physical = device / "physfn"
    return _Link(
        nic,
        path.rpartition("/")[2],
        physical.resolve().name if physical.is_symlink() else "",
        _number(folder / "dev_port") or _number(folder / "dev_id") or 0,
        (folder / "parent").exists(),
        device.exists(),
    )


def _kind(folder: Path) -> NicKind | None:
    """Return what sort an interface is by itself; None: none that carries IP between hosts."""
    hardware = _number(folder / "type")
    if hardware == _ARPHRD_LOOPBACK:
        return NicKind.LOOPBACK
    if hardware in _ARPHRD_TUNNELS:
        return NicKind.VIRTUAL
    if hardware not in (_ARPHRD_ETHER, _ARPHRD_INFINIBAND):
        return None
    declared = re.search(r"^DEVTYPE=(\w+)$", _text(folder / "uevent"), re.M)
    if (folder / "wireless").exists() or (folder / "phy80211").exists():
        return NicKind.WIRELESS
    if (folder / "bonding").exists() or (declared and declared[1] in ("bond", "team")):
        return NicKind.BOND
    if (folder / "bridge").exists():
        return NicKind.BRIDGE
    if declared and declared[1] in ("vlan", "wlan"):
        return NicKind.VLAN if declared[1] == "vlan" else NicKind.WIRELESS
    if not (folder / "device").exists():
        return NicKind.VIRTUAL
    if "/usb" in os.path.realpath(folder / "device"):
        return NicKind.USB
    return NicKind.INFINIBAND if hardware == _ARPHRD_INFINIBAND else NicKind.ETHERNET


def _nics_of(links: Mapping[str, _Link], addresses: Mapping[str, Sequence[Address]]) -> list[Nic]:
    by_function = {link.function: name for name, link in links.items() if link.function}
    nics = []
    for name, link in links.items():
        nic = _placed(link, links)
        nics.append(
            replace(
                nic,
                addresses=tuple(
                    address
                    for address in addresses.get(name, ())
                    if not (nic.kind is NicKind.LOOPBACK and address.ip.is_link_local)
                ),
                physical_function=by_function.get(link.physical_function, ""),
            )
        )
    return nics


def _placed(link: _Link, links: Mapping[str, _Link]) -> Nic:
    """Give an interface that stands on others their place; without hardware below it is virtual."""
    nic = link.nic
    if nic.path or nic.kind is NicKind.LOOPBACK:
        return nic
    below = [links[name].nic for name in _hardware_below(nic.name, links)]
    if not below:
        is_stacked = nic.kind in (NicKind.BRIDGE, NicKind.VLAN, NicKind.BOND)
        return replace(nic, kind=NicKind.VIRTUAL) if is_stacked else nic
    kind = nic.kind
    if kind is NicKind.VIRTUAL:  # macvlan and the like: another name for the one below
        kind = NicKind.VLAN
    nodes = {lower.numa_node for lower in below}
    speeds = [lower.link_mbit_per_s for lower in below if lower.link_mbit_per_s]
    return replace(
        nic,
        kind=kind,
        numa_node=nodes.pop() if len(nodes) == 1 else None,
        path=_common_path([lower.path for lower in below]),
        link_mbit_per_s=nic.link_mbit_per_s or (max(speeds) if speeds else None),
    )


def _hardware_below(name: str, links: Mapping[str, _Link]) -> list[str]:
    """Return the interfaces with hardware that one stands on, however many layers down."""
    found, seen, waiting = [], {name}, list(links[name].nic.lowers)
    while waiting:
        lower = waiting.pop(0)
        if lower in seen or lower not in links:
            continue
        seen.add(lower)
        if links[lower].is_hardware:
            found.append(lower)
        else:
            waiting += links[lower].nic.lowers
    return found


# ---- RDMA ports ----------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Port:
    """What one folder of class/infiniband/*/ports says."""

    port: RdmaPort
    path: str
    numa_node: int | None
    netdevs: tuple[str, ...]  # those that its GIDs belong to, in their order
    port_count: int


def _read_ports(root: Path) -> list[_Port]:
    ports = []
    for folder in sorted((root / "class/infiniband").glob("*"), key=lambda f: _natural(f.name)):
        numbers = sorted(int(f.name) for f in (folder / "ports").glob("*") if f.name.isdigit())
        for number in numbers:
            port, netdevs = _read_port(folder, number)
            device = folder / "device"
            if not netdevs and _text(folder / "parent"):
                netdevs = (_text(folder / "parent"),)  # Soft-RoCE names what it stands on
            ports.append(
                _Port(port, _device_path(device), _numa_node(device), netdevs, len(numbers))
            )
    return ports


def _read_port(device: Path, number: int) -> tuple[RdmaPort, tuple[str, ...]]:
    folder = device / "ports" / str(number)
    layer = _layer(_text(folder / "link_layer"), _text(device / "node_type"))
    indexes = sorted(int(file.name) for file in (folder / "gids").glob("*") if file.name.isdigit())[
        :_GIDS_MAX
    ]
    gids = []
    for index in indexes:
        try:
            value = IPv6Address(_text(folder / f"gids/{index}"))
        except ValueError:
            continue  # an entry that is being changed
        if int(value) == 0:
            continue
        kind = _gid_type(_text(folder / f"gid_attrs/types/{index}"), layer)
        netdev = _text(folder / f"gid_attrs/ndevs/{index}")
        gids.append(Gid(index, value, kind, netdev))
    state = _text(folder / "state").partition(":")[2].strip()
    rate = re.match(r"([\d.]+) Gb/sec", _text(folder / "rate"))
    port = RdmaPort(
        device.name,
        number,
        layer,
        state == "ACTIVE",
        _number(folder / "lid") or 0,
        tuple(gids),
        not (device / "device").exists(),
        state,
        round(float(rate[1]) * 1000) if rate else None,
    )
    return port, tuple(dict.fromkeys(gid.netdev for gid in gids if gid.netdev))


def _layer(link_layer: str, node_type: str) -> RdmaLayer:
    if node_type.startswith("4"):  # RNIC
        return RdmaLayer.IWARP
    if link_layer == "InfiniBand":
        return RdmaLayer.INFINIBAND
    return RdmaLayer.ROCE if link_layer == "Ethernet" else RdmaLayer.EFA


def _gid_type(text: str, layer: RdmaLayer) -> GidType:
    if text == "RoCE v2":
        return GidType.ROCE_V2
    return GidType.ROCE_V1 if layer is RdmaLayer.ROCE else GidType.INFINIBAND


def _with_rdma(nics: list[Nic], ports: list[_Port], links: Mapping[str, _Link]) -> list[Nic]:
    """Give each port to the network interface that it shares the wire with; others stand alone."""
    by_name = {nic.name: nic for nic in nics}
    for found in ports:
        name = _netdev_of(found, links)
        owner = by_name.get(name)
        if owner is not None and owner.rdma is None:
            by_name[name] = replace(owner, rdma=found.port)
            continue
        port = found.port
        alone = port.device if found.port_count == 1 else f"{port.device}:{port.port}"
        kinds = {RdmaLayer.INFINIBAND: NicKind.INFINIBAND, RdmaLayer.EFA: NicKind.EFA}
        by_name[alone] = Nic(
            alone,
            numa_node=found.numa_node,
            path=found.path,
            kind=kinds.get(port.layer, NicKind.ETHERNET),
            is_up=port.is_active,
            rdma=port,
        )
    return list(by_name.values())


def _netdev_of(found: _Port, links: Mapping[str, _Link]) -> str:
    """Return the interface of a port, or an empty string.

    The table of GIDs names them on RoCE, VLANs among them: the one with the port's own hardware is
    it, or the bond of those.  On InfiniBand the PCI function and the port's number tell.
    """
    named = [name for name in found.netdevs if name in links]
    if named:
        function = found.path.rpartition("/")[2]
        own = [name for name in named if function and links[name].function == function]
        over = [name for name in named if links[name].nic.kind is NicKind.BOND]
        return (own or over or named)[0]
    if not found.path:
        return ""
    function = found.path.rpartition("/")[2]
    siblings = sorted(
        (link.is_child, name)
        for name, link in links.items()
        if link.function == function and link.port in (found.port.port - 1, 0)
        and (found.port_count == 1 or link.port == found.port.port - 1)
    )  # fmt: skip
    return siblings[0][1] if siblings else ""


# ---- memory locations ----------------------------------------------------------------------------


def _read_nodes(root: Path) -> list[Device]:
    folders = {
        int(folder.name[4:]): folder
        for folder in (root / "devices/system/node").glob("node[0-9]*")
        if folder.name[4:].isdigit()
    }
    nodes = sorted(folders)
    devices = []
    for node in nodes:
        row = _text(folders[node] / "distance").split()
        is_row = len(row) == len(nodes) and all(map(str.isdigit, row))
        distances = dict(zip(nodes, map(int, row), strict=True)) if is_row else {}
        devices.append(Device(f"cpu:{node}", node, node_distances=distances))
    return devices or [Device("cpu:0")]


def _read_gpus(root: Path) -> list[Device]:
    """NVIDIA GPUs in the order of their PCI addresses (CUDA_DEVICE_ORDER=PCI_BUS_ID)."""
    distances = {device.numa_node: device.node_distances for device in _read_nodes(root)}
    folders = sorted((root / "bus/pci/devices").glob("*"), key=lambda folder: _pci_key(folder.name))
    gpus = [
        folder
        for folder in folders
        if _number(folder / "vendor") == _NVIDIA
        and (_number(folder / "class") or 0) >> 16 == _DISPLAY_CLASS
    ]
    devices = []
    for index, folder in enumerate(gpus):
        node = _numa_node(folder)
        devices.append(Device(f"cuda:{index}", node, _device_path(folder), distances.get(node, {})))
    return devices


def _pci_key(name: str) -> tuple[int, ...]:
    parts = re.split(r"[:.]", name)
    try:
        return tuple(int(part, 16) for part in parts)
    except ValueError:
        return ()


# ---- files ---------------------------------------------------------------------------------------


def _text(path: Path) -> str:
    try:
        return path.read_text().strip()
    except (OSError, UnicodeDecodeError):
        return ""  # not there, or not to be read now: EINVAL is sysfs's word for "not known"


def _number(path: Path) -> int | None:
    try:
        return int(_text(path), 0)
    except ValueError:
        return None


def _numa_node(device: Path) -> int | None:
    """Return the node of a device or of the nearest one above it that has any."""
    if not device.exists():
        return None
    folder = device.resolve()
    for parent in (folder, *folder.parents[:8]):
        node = _number(parent / "numa_node")
        if node is not None:
            return node if node >= 0 else None
    return None


def _device_path(device: Path) -> str:
    """Return the PCIe part of a device's place, host bridge first; empty without PCIe."""
    if not device.exists():
        return ""
    return "/".join(part for part in device.resolve().parts if _PCI_PART.fullmatch(part))


def _common_path(paths: Sequence[str]) -> str:
    shared = []
    for parts in zip(*(path.split("/") for path in paths), strict=False):
        if len(set(parts)) > 1:
            break
        shared.append(parts[0])
    return "/".join(shared)


def _natural(name: str) -> tuple[tuple[int, int, str], ...]:
    """Order `mlx5_2` before `mlx5_10`."""
    return tuple(
        (0, int(part), "") if part.isdigit() else (1, 0, part)
        for part in re.split(r"(\d+)", name)
        if part
    )
