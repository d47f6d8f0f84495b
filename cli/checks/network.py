"""Is there a way to other hosts, and is it a good one: interfaces, neighbours, MTU, GIDs."""

from __future__ import annotations

from collections.abc import Sequence

from mooncake_store.cli.checks.check import FAIL, OK, WARN, Check
from mooncake_store.transfer_engine.topology import (
    GidType,
    Nic,
    NicKind,
    RdmaLayer,
    Topology,
    Transport,
    choose_gid,
    grades,
    unusable_reason,
    usable_nics,
)

__all__ = ["gid_check", "mtu_check", "neighbour_check", "network_check"]

_ROCE_MTU_WANTED = 4200  # packets of 4096 bytes, the largest of RoCE, and their headers
_NAMES_SHOWN = 6


def network_check(topology: Topology) -> Check:
    """Can peers on other hosts be reached?"""
    tcp = [nic for nic in usable_nics(topology, Transport.TCP) if not _is_only_loopback(nic)]
    rdma = usable_nics(topology, Transport.RDMA)
    why = f"TCP by {_names(tcp)}; RDMA by {_names(rdma)}"
    waiting = [nic for nic in topology.nics if nic.rdma and nic.rdma.state == "INIT"]
    if waiting:
        return Check(
            "network", WARN, f"{why}; {_names(waiting)}: cabled, but no subnet manager answers",
            "start a subnet manager: systemctl start opensm, or the switch's own",
        )  # fmt: skip
    if not tcp:
        reasons = [
            f"{nic.name}: {unusable_reason(nic, Transport.TCP)}"
            for nic in topology.nics
            if nic.kind is not NicKind.LOOPBACK
        ]
        found = "; ".join(reasons[:_NAMES_SHOWN]) or "there is no interface"
        return Check(
            "network", WARN, f"only loopback carries TCP: this host reaches no other ({found})",
            "give an interface a link and an address: ip link set NAME up, ip addr add ...",
        )  # fmt: skip
    return Check("network", OK, why)


def _is_only_loopback(nic: Nic) -> bool:
    return all(address.ip.is_loopback for address in nic.addresses)


def _names(nics: Sequence[Nic]) -> str:
    names = [nic.name for nic in nics[:_NAMES_SHOWN]]
    if len(nics) > _NAMES_SHOWN:
        names.append(f"{len(nics) - _NAMES_SHOWN} more")
    return ", ".join(names) or "none"


def neighbour_check(topology: Topology, arp_ignore: int) -> Check | None:
    """Does each of several interfaces in a network get its own packets?  None where there are none.

    Args:
        topology: The interfaces.
        arp_ignore: net.ipv4.conf.all.arp_ignore.
    """
    of_network: dict[str, list[Nic]] = {}
    for nic in usable_nics(topology, Transport.TCP):
        if nic.kind is NicKind.LOOPBACK:
            continue
        for network in {str(item.network) for item in nic.addresses if item.version == 4}:
            of_network.setdefault(network, []).append(nic)
    shared = {network: nics for network, nics in of_network.items() if len(nics) > 1}
    if not shared:
        return None
    network, nics = next(iter(shared.items()))
    why = f"{_names(nics)} are in one network, {network}"
    if arp_ignore > 0:
        return Check("neighbours", OK, why)
    return Check(
        "neighbours", WARN, f"{why}, and each answers for the addresses of all: "
        "packets for one may come in by another",
        "sysctl -w net.ipv4.conf.all.arp_ignore=1 net.ipv4.conf.all.arp_announce=2",
    )  # fmt: skip


def mtu_check(topology: Topology) -> Check:
    """Do interfaces that belong together have one MTU, and RoCE a large one?"""
    by_name = {nic.name: nic for nic in topology.nics}
    for nic in topology.nics:
        above = [by_name[nic.master]] if nic.master in by_name else []
        above += [other for other in topology.nics if nic.name in other.lowers]
        for upper in above:
            if nic.mtu and upper.mtu and nic.mtu < upper.mtu:
                return Check(
                    "MTU", WARN,
                    f"{upper.name} sends packets of {upper.mtu} bytes by {nic.name}, which takes "
                    f"{nic.mtu}: large ones are lost, and transfers hang",
                    f"ip link set {nic.name} mtu {upper.mtu}, or {upper.name} to {nic.mtu}",
                )  # fmt: skip
    usable = usable_nics(topology)
    graded = grades(usable)
    best = min((grade for grade, _ in graded.values()), default=None)
    base = [nic for nic in usable if graded[nic.name][0] is best and nic.mtu]
    text = ", ".join(f"{nic.name} {nic.mtu}" for nic in base[:_NAMES_SHOWN]) or "no interface"
    for kind in dict.fromkeys(nic.kind for nic in base):
        mtus = sorted({nic.mtu for nic in base if nic.kind is kind and nic.mtu})
        if len(mtus) > 1:
            return Check(
                "MTU", WARN,
                f"{text}: they differ, and bytes that are spread over them go as the worst one",
                f"ip link set NAME mtu {mtus[-1]}, where switches and peers have that too",
            )  # fmt: skip
    small = [nic for nic in base if _is_hardware_roce(nic) and (nic.mtu or 0) < _ROCE_MTU_WANTED]
    if small:
        return Check(
            "MTU", WARN, f"{text}: RoCE packets of {_roce_payload(small[0].mtu or 0)} bytes there",
            f"ip link set {small[0].name} mtu {_ROCE_MTU_WANTED} or 9000, where switches and peers "
            "have that too",
        )  # fmt: skip
    return Check("MTU", OK, text)


def _is_hardware_roce(nic: Nic) -> bool:
    port = nic.rdma
    return port is not None and port.layer is RdmaLayer.ROCE and not port.is_software


def _roce_payload(mtu: int) -> int:
    """Return the largest RoCE packet that fits into frames of an interface."""
    headers = 100  # Ethernet, IP, UDP and InfiniBand's, rounded up
    return next((size for size in (4096, 2048, 1024, 512) if size + headers <= mtu), 256)


def gid_check(topology: Topology) -> Check | None:
    """Has each RoCE port a GID that reaches others?  None where there is no such port."""
    chosen = []
    for nic in usable_nics(topology, Transport.RDMA):
        port = nic.rdma
        if port is None or port.layer is not RdmaLayer.ROCE:
            continue
        choice = choose_gid(port.gids, port.layer, netdev=nic.name, index=nic.gid_index)
        if choice is None:
            return Check(
                "GID", FAIL, f"{port.device}: no GID has the index {nic.gid_index}",
                f"correct gid_index; ls /sys/class/infiniband/{port.device}/ports/{port.port}/gids",
            )  # fmt: skip
        gid = choice.gid
        text = f"{port.device}: {gid.index}, {gid.value} ({choice.why})"
        if gid.type is GidType.ROCE_V1:
            return Check(
                "GID", WARN, text, "use RoCE v2: a newer driver, or the switch and firmware's mode"
            )
        if gid.value.is_link_local:
            return Check(
                "GID", WARN, f"{text}: reaches its own link only",
                f"give the interface an address: ip addr add ... dev {gid.netdev or nic.name}",
            )  # fmt: skip
        chosen.append(text)
    if not chosen:
        return None
    more = f"; {len(chosen) - 2} more" if len(chosen) > 2 else ""
    return Check("GID", OK, "; ".join(chosen[:2]) + more)
