"""Records the part of this machine's sysfs that discovery reads, as JSON on stdout.

MAC addresses are left out, IP addresses replaced by those of the documentation networks
(RFC 5737, RFC 3849), which keep their families and prefix lengths.

    python -m tests.sysfs_trees.record > tests/sysfs_trees/recorded/NAME.json
"""

from __future__ import annotations

import json
import sys
from contextlib import suppress
from ipaddress import IPv4Interface
from pathlib import Path
from typing import Any

from mooncake_store.transfer_engine.topology.netlink import read_addresses
from mooncake_store.transfer_engine.topology.nic import Address, is_link_local

_ATTRIBUTES = (
    "type", "operstate", "flags", "speed", "mtu", "dev_port", "dev_id", "ifindex", "uevent",
    "parent", "numa_node", "vendor", "class", "distance", "node_type", "link_layer", "state",
    "rate", "lid", "sm_lid",
)  # fmt: skip
_FOLDERS = ("bonding", "bridge", "wireless", "phy80211")
_LINKS = ("device", "master", "physfn")


def record(sysfs: Path = Path("/sys")) -> dict[str, Any]:
    """Return files, folders, links and addresses of a machine."""
    recorder = _Recorder(sysfs)
    for pattern in ("class/net/*", "class/infiniband/*", "bus/pci/devices/*"):
        for entry in sorted(sysfs.glob(pattern)):
            if entry.is_symlink():
                recorder.links[str(entry.relative_to(sysfs))] = str(entry.readlink())
                recorder.folder(entry.resolve())
    for node in sorted(sysfs.glob("devices/system/node/node[0-9]*")):
        recorder.folder(node)
    return {
        "files": dict(sorted(recorder.files.items())),
        "folders": sorted(recorder.folders),
        "links": dict(sorted(recorder.links.items())),
        "addresses": {
            name: [_anonymous(address, index) for index, address in enumerate(found)]
            for name, found in read_addresses().items()
        },
    }


class _Recorder:
    def __init__(self, root: Path) -> None:
        self.root = root.resolve()
        self.files: dict[str, str] = {}
        self.folders: set[str] = set()
        self.links: dict[str, str] = {}

    def folder(self, folder: Path) -> None:
        """Record a device's folder, the ports below it, and what numa_node says above it."""
        at = str(folder.relative_to(self.root))
        if at in self.folders:
            return
        self.folders.add(at)
        for name in _ATTRIBUTES:
            self._file(folder / name)
        for name in _FOLDERS:
            if (folder / name).is_dir():
                self.folders.add(f"{at}/{name}")
        for entry in (*folder.glob("lower_*"), *(folder / name for name in _LINKS)):
            if entry.is_symlink():
                self.links[f"{at}/{entry.name}"] = str(entry.readlink())
        for port in folder.glob("ports/*"):
            for path in port.rglob("*"):
                if path.parent.name in ("types", "ndevs", "gids") or path.name in _ATTRIBUTES:
                    self._file(path)
        if folder.parent != self.root:
            self.folder(folder.parent)

    def _file(self, path: Path) -> None:
        with suppress(OSError, UnicodeDecodeError):  # one that cannot be read is as if not there
            self.files[str(path.relative_to(self.root))] = path.read_text()


def _anonymous(address: Address, index: int) -> str:
    if address.ip.is_loopback:
        return str(address)
    length = address.network.prefixlen
    if isinstance(address, IPv4Interface):
        return f"192.0.2.{index + 1}/{length}"
    prefix = "fe80" if is_link_local(address) else "2001:db8"
    return f"{prefix}::{index + 1}/{length}"


if __name__ == "__main__":
    json.dump(record(), sys.stdout, indent=1)
    print()
