"""Which network interfaces suit which memory: read from sysfs or JSON, ranked by a pure function.

The matrix maps a memory location (`cpu:0`, `cuda:1`) to its preferred network interfaces and to
those to fall back on, as in the Mooncake paper (FAST '25, section 4.2).  Peers exchange it as JSON
when a segment is opened; `te_set_topology` takes the same text.
"""

from __future__ import annotations

import fcntl
import json
import socket
import struct
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from ipaddress import IPv6Address
from pathlib import Path

from mooncake_store.errors import ConfigError

__all__ = ["Device", "Nic", "NicPreference", "Topology", "discover", "distance", "make_matrix"]

_SIOCGIFADDR = 0x8915
_ARPHRD_ETHER, _ARPHRD_INFINIBAND = 1, 32
_NVIDIA, _DISPLAY_CLASS = 0x10DE, 0x03


@dataclass(frozen=True, slots=True)
class Nic:
    """A network interface.

    Attributes:
        name: The kernel's name, `eth0`.
        addresses: Numeric IP addresses, without port or prefix length.
        numa_node: The node it is attached to; None where the machine does not say.
        path: Its place in the device tree, from which PCIe distance is told; empty if unknown.
    """

    name: str
    addresses: tuple[str, ...] = ()
    numa_node: int | None = None
    path: str = ""


@dataclass(frozen=True, slots=True)
class Device:
    """Where memory is: a NUMA node (`cpu:0`) or an accelerator (`cuda:0`)."""

    location: str
    numa_node: int | None = None
    path: str = ""


@dataclass(frozen=True, slots=True)
class NicPreference:
    """The interfaces that suit one memory location."""

    preferred: tuple[str, ...]
    secondary: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Topology:
    """Interfaces and the matrix of memory locations to interfaces."""

    nics: tuple[Nic, ...] = ()
    matrix: Mapping[str, NicPreference] = field(default_factory=dict)

    def rank(self, location: str) -> tuple[str, ...]:
        """Return all interfaces, the best one for `location` first.

        Those of one tier keep the order in which they are listed; a location that the matrix does
        not have (`*` too) likes all alike.
        """
        names = tuple(nic.name for nic in self.nics)
        preference = self.matrix.get(location)
        if preference is None:
            return names
        tiers = (preference.preferred, preference.secondary)
        return tuple(
            sorted(names, key=lambda name: next((i for i, t in enumerate(tiers) if name in t), 2))
        )

    def to_json(self) -> str:
        """Return the text that peers exchange and `te_set_topology` takes."""
        return json.dumps(
            {
                "nics": {nic.name: list(nic.addresses) for nic in self.nics},
                "matrix": {
                    location: [list(preference.preferred), list(preference.secondary)]
                    for location, preference in self.matrix.items()
                },
            }
        )

    @classmethod
    def from_json(cls, text: str, *, origin: str = "topology") -> Topology:
        """Read what `to_json` writes, or a person wrote by hand.

        Args:
            text: The JSON.
            origin: Where it comes from, for the error.

        Raises:
            ConfigError: It is not of that form, or the matrix names an interface that is not there.
        """
        try:
            data = json.loads(text)
            nics = tuple(
                Nic(_name(name), tuple(_name(address) for address in addresses))
                for name, addresses in data.get("nics", {}).items()
            )
            matrix = {
                _name(location): NicPreference(
                    tuple(_name(name) for name in preferred),
                    tuple(_name(name) for name in secondary),
                )
                for location, (preferred, secondary) in data.get("matrix", {}).items()
            }
        except (ValueError, TypeError, AttributeError) as error:
            raise ConfigError(
                f'{origin}: want {{"nics": {{NAME: [ADDRESS, ...]}}, '
                f'"matrix": {{LOCATION: [[NAME, ...], [NAME, ...]]}}}}: {error}',
                cause=error,
            ) from error
        known = {nic.name for nic in nics}
        for location, preference in matrix.items():
            for name in (*preference.preferred, *preference.secondary):
                if name not in known:
                    raise ConfigError(f"{origin}: {location} names {name}, which is not in nics")
        return cls(nics, matrix)


def _name(value: object) -> str:
    if not isinstance(value, str) or not value or "\\" in value or '"' in value:
        raise ValueError(f"{value!r} is no name")
    return value


def distance(nic: Nic, device: Device) -> int:
    """Return how far apart two devices are, in steps; smaller is nearer.

    Devices below the same PCIe switch are nearer than those that meet in the root complex, and
    those nearer than another NUMA node.  What the machine does not say is assumed near.
    """
    if device.path and nic.path:
        ours, theirs = nic.path.split("/"), device.path.split("/")
        shared = 0
        while shared < min(len(ours), len(theirs)) and ours[shared] == theirs[shared]:
            shared += 1
        steps = len(ours) + len(theirs) - 2 * shared
    else:
        steps = 0
    nodes = (nic.numa_node, device.numa_node)
    is_other_node = None not in nodes and nodes[0] != nodes[1]
    return steps + (1000 if is_other_node else 0)


def make_matrix(nics: Sequence[Nic], devices: Iterable[Device]) -> dict[str, NicPreference]:
    """Prefer for each device the nearest interfaces; the others are its secondary ones."""
    matrix: dict[str, NicPreference] = {}
    for device in devices:
        by_distance = [(distance(nic, device), nic.name) for nic in nics]
        nearest = min((steps for steps, _ in by_distance), default=0)
        matrix[device.location] = NicPreference(
            tuple(name for steps, name in by_distance if steps == nearest),
            tuple(name for steps, name in sorted(by_distance) if steps != nearest),
        )
    return matrix


def discover(
    sysfs: Path | str = "/sys", addresses: Mapping[str, Sequence[str]] | None = None
) -> Topology:
    """Read this machine's interfaces, NUMA nodes and GPUs.

    Args:
        sysfs: Where sysfs is mounted (tests bring their own).
        addresses: Interface names to IP addresses; None asks the kernel.
    """
    root = Path(sysfs)
    nics = []
    for folder in sorted((root / "class/net").glob("*")):
        if _number(folder / "type") not in (_ARPHRD_ETHER, _ARPHRD_INFINIBAND):
            continue
        if not (folder / "device").exists() or _text(folder / "operstate") == "down":
            continue  # bridges, tunnels; and what has no link
        found = _addresses(folder.name) if addresses is None else addresses.get(folder.name, ())
        path = _device_path(root, folder / "device")
        nics.append(Nic(folder.name, tuple(found), _numa_node(folder / "device"), path))
    devices = [
        Device(f"cpu:{node}", node)
        for node in sorted(
            int(folder.name[4:])
            for folder in (root / "devices/system/node").glob("node[0-9]*")
            if folder.name[4:].isdigit()
        )
    ] or [Device("cpu:0")]
    gpus = [
        folder
        for folder in sorted((root / "bus/pci/devices").glob("*"))
        if _number(folder / "vendor") == _NVIDIA
        and (_number(folder / "class") or 0) >> 16 == _DISPLAY_CLASS
    ]
    devices += [
        Device(f"cuda:{index}", _numa_node(folder), _device_path(root, folder))
        for index, folder in enumerate(gpus)
    ]
    return Topology(tuple(nics), make_matrix(nics, devices))


def _text(path: Path) -> str:
    try:
        return path.read_text().strip()
    except OSError:
        return ""


def _number(path: Path) -> int | None:
    try:
        return int(_text(path), 0)
    except ValueError:
        return None


def _numa_node(device: Path) -> int | None:
    node = _number(device / "numa_node")
    return node if node is not None and node >= 0 else None


def _device_path(root: Path, device: Path) -> str:
    try:
        return str(device.resolve().relative_to(root.resolve()))
    except ValueError:
        return ""


def _addresses(name: str) -> list[str]:
    """Return the addresses of an interface that a peer elsewhere can connect to."""
    found = []
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        request = struct.pack("256s", name.encode()[:15])
        try:
            answer = fcntl.ioctl(probe.fileno(), _SIOCGIFADDR, request)
            found.append(socket.inet_ntoa(answer[20:24]))
        except OSError:
            pass  # no IPv4 address
    for line in _text(Path("/proc/net/if_inet6")).splitlines():
        digits, _, _, scope, _, owner = line.split()
        if owner == name and scope == "00":  # global: link-local ones need a zone
            found.append(str(IPv6Address(int(digits, 16))))
    return found
