"""Builds the part of a sysfs tree that tells about interfaces, RDMA ports, nodes and GPUs.

The layout is the kernel's: folders of devices below devices/, relative links from class/ and bus/,
attributes that end with a newline.  What cannot be read is not there, which reads alike.
"""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from ipaddress import IPv4Address, IPv6Address
from pathlib import Path

NVIDIA, MELLANOX, INTEL, AMAZON, AMD = "0x10de", "0x15b3", "0x8086", "0x1d0f", "0x1002"
ETHERNET, INFINIBAND, GPU_3D, NVSWITCH = "0x020000", "0x020700", "0x030200", "0x068000"


class Tree:
    """One machine's sysfs under a folder, and its IP addresses."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.addresses: dict[str, list[str]] = {}
        self._index = 0
        (root / "class/net").mkdir(parents=True)
        (root / "bus/pci/devices").mkdir(parents=True)

    # ---- files -------------------------------------------------------------------------------

    def write(self, path: str, **attributes: object) -> Path:
        """Write attribute files into a folder below the root."""
        folder = self.root / path
        folder.mkdir(parents=True, exist_ok=True)
        for name, value in attributes.items():
            if value is not None:
                (folder / name).write_text(f"{value}\n")
        return folder

    def link(self, path: str, target: Path) -> None:
        """Make a relative link, as sysfs has them."""
        place = self.root / path
        place.parent.mkdir(parents=True, exist_ok=True)
        place.symlink_to(os.path.relpath(target, place.parent))

    # ---- the machine -------------------------------------------------------------------------

    def nodes(self, distances: Sequence[Sequence[int]]) -> None:
        """Make NUMA nodes with their rows of distances."""
        for node, row in enumerate(distances):
            self.write(
                f"devices/system/node/node{node}", distance=" ".join(map(str, row)), cpulist=""
            )

    def pci(
        self, path: str, *, node: int | None = -1, vendor: str = MELLANOX, kind: str = ETHERNET
    ) -> str:
        """Make a PCI function.  Returns its folder below the root.

        Args:
            path: From the host bridge down, `pci0000:16/0000:16:01.0/0000:17:00.0`, maybe with
                folders of a platform before it.
            node: What numa_node says; None: there is no such file.
            vendor: As in the file.
            kind: PCI class.
        """
        folder = f"devices/{path}"
        self.write(folder, vendor=vendor, numa_node=node, **{"class": kind})
        self.link(f"bus/pci/devices/{path.rpartition('/')[2]}", self.root / folder)
        return folder

    def gpu(self, path: str, node: int | None = -1) -> None:
        """Make an NVIDIA GPU."""
        self.pci(path, node=node, vendor=NVIDIA, kind=GPU_3D)

    def net(
        self,
        name: str,
        device: str = "",
        *addresses: str,
        state: str = "up",
        flags: str = "0x1003",
        type: int = 1,
        speed: int | None = None,
        mtu: int = 1500,
        devtype: str = "",
        dev_port: int = 0,
        master: str = "",
        lowers: Sequence[str] = (),
        folders: Sequence[str] = (),
    ) -> None:
        """Make a network interface.

        Args:
            name: The kernel's name.
            device: Folder of what it belongs to, below the root; empty: virtual.
            addresses: IP addresses with prefix length.
            state: operstate.
            flags: In hex; bit 0 is IFF_UP.
            type: ARPHRD number.
            speed: Mbit/s; None: the file cannot be read.
            mtu: Bytes.
            devtype: What uevent says, `vlan`.
            dev_port: Which port of the function.
            master: Of what it is a part; made before.
            lowers: On what it stands; made before.
            folders: Further entries that some kinds have: `bridge`, `bonding`, `wireless`.
        """
        self._index += 1
        place = f"{device}/net/{name}" if device else f"devices/virtual/net/{name}"
        uevent = (f"DEVTYPE={devtype}\n" if devtype else "") + f"INTERFACE={name}"
        folder = self.write(
            place, type=type, operstate=state, flags=flags, speed=speed, mtu=mtu,
            dev_port=dev_port, ifindex=self._index, uevent=uevent,
        )  # fmt: skip
        if device:
            self.link(f"{place}/device", self.root / device)
        for extra in folders:
            (folder / extra).mkdir()
        self.link(f"class/net/{name}", folder)
        net = self.root / "class/net"
        if master:
            self.link(f"{place}/master", (net / master).resolve())
            self.link(f"{(net / master).readlink()}/lower_{name}".removeprefix("../../"), folder)
        for lower in lowers:
            self.link(f"{place}/lower_{lower}", (net / lower).resolve())
        if addresses:
            self.addresses[name] = list(addresses)

    def loopback(self, *addresses: str) -> None:
        """Make lo."""
        self.net(
            "lo", "", "127.0.0.1/8", "::1/128", *addresses,
            type=772, state="unknown", flags="0x9", mtu=65536,
        )  # fmt: skip

    def rdma(
        self,
        name: str,
        device: str = "",
        *,
        port: int = 1,
        layer: str = "Ethernet",
        node_type: str = "1: CA",
        state: str = "4: ACTIVE",
        rate: str = "200 Gb/sec (4X HDR)",
        lid: str = "0x0",
        gids: Sequence[tuple[str, str, str]] = (),
        parent: str = "",
    ) -> None:
        """Make one port of an RDMA device.

        Args:
            name: The device's name.
            device: Folder of its PCI function; empty: software.
            port: From 1.
            layer: link_layer.
            node_type: As in the file.
            state: As in the file.
            rate: As in the file.
            lid: In hex.
            gids: Address, type, network interface of each entry.
            parent: The interface below software RDMA, as rxe says it.
        """
        place = f"{device or 'devices/virtual'}/infiniband/{name}"
        if not (self.root / place).exists():
            folder = self.write(place, node_type=node_type, parent=parent or None)
            if device:
                self.link(f"{place}/device", self.root / device)
            self.link(f"class/infiniband/{name}", folder)
        at = f"{place}/ports/{port}"
        self.write(at, link_layer=layer, state=state, rate=rate, lid=lid)
        zero = ":".join(["0000"] * 8)
        for index, (address, kind, netdev) in enumerate([*gids, ("", "", "")]):
            text = IPv6Address(address).exploded if address else zero
            self.write(f"{at}/gids", **{str(index): text})
            if address:
                self.write(f"{at}/gid_attrs/types", **{str(index): kind})
                if netdev:
                    self.write(f"{at}/gid_attrs/ndevs", **{str(index): netdev})

    # ---- what goes together ------------------------------------------------------------------

    def roce(self, name: str, device: str, netdev: str, *addresses: str, **more: object) -> None:
        """Make a RoCE port with the GIDs that the kernel makes of an interface's addresses."""
        self.rdma(name, device, gids=roce_gids(netdev, *addresses), **more)  # type: ignore[arg-type]

    def infiniband(self, name: str, device: str, lid: int, **more: object) -> None:
        """Make an InfiniBand port that a subnet manager has seen."""
        gid = f"fe80::{0xE41D:x}:2d03:0:{lid:x}"
        more = {"rate": "200 Gb/sec (4X HDR)", "state": "4: ACTIVE", **more}
        self.rdma(
            name, device, layer="InfiniBand", lid=hex(lid),
            gids=[(gid, "IB/RoCE v1", "")], **more,  # type: ignore[arg-type]
        )  # fmt: skip


def roce_gids(netdev: str, *addresses: str) -> list[tuple[str, str, str]]:
    """Return a port's table: each address twice, as v1 and as v2, link-local first."""
    gids = []
    for address in ("fe80::a00:27ff:fe00:1", *addresses):
        plain = address.partition("/")[0]
        value = plain if ":" in plain else f"::ffff:{IPv4Address(plain)}"
        gids += [(value, "IB/RoCE v1", netdev), (value, "RoCE v2", netdev)]
    return gids


def unpack(recording: Path, root: Path) -> dict[str, list[str]]:
    """Lay out a recorded tree below a folder.  Returns the addresses that go with it."""
    recorded = json.loads(recording.read_text())
    for path, text in recorded["files"].items():
        (root / path).parent.mkdir(parents=True, exist_ok=True)
        (root / path).write_text(text)
    for path in recorded["folders"]:
        (root / path).mkdir(parents=True, exist_ok=True)
    for path, target in recorded["links"].items():
        (root / path).parent.mkdir(parents=True, exist_ok=True)
        (root / path).symlink_to(target)
    return dict(recorded["addresses"])
