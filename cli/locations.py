"""What doctor tells about memory locations: which interface for which memory, and why."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from mooncake_store.transfer_engine.topology import (
    Nic,
    RankedNic,
    Tier,
    Topology,
    Transport,
    choose_gid,
    rank,
    unusable_reason,
    usable_nics,
)

__all__ = ["document_of", "lines_of"]

_NAMES_SHOWN = 8


def lines_of(topology: Topology, *, is_verbose: bool = False) -> Iterator[tuple[str, str]]:
    """Return the choice for people: a location with its transport, and a sentence.

    Args:
        topology: The machine.
        is_verbose: A line for each interface, with its reason.
    """
    for transport in _transports(topology):
        for device in topology.devices:
            head = f"{device.location} {transport.value}"
            ranked = rank(topology, device.location, transport)
            if is_verbose:
                for item in ranked:
                    yield head, f"{item.tier.name.lower()}: {_name(item.nic)}, {item.why}"
            else:
                yield head, _sentence(ranked)
    reasons = [
        f"{nic.name} ({unusable_reason(nic)})" for nic in topology.nics if unusable_reason(nic)
    ]
    if reasons:
        shown = reasons if is_verbose else reasons[:_NAMES_SHOWN]
        more = f" and {len(reasons) - len(shown)} more" if len(reasons) > len(shown) else ""
        yield "not used", ", ".join(shown) + more


def _transports(topology: Topology) -> list[Transport]:
    return [one for one in Transport if one is Transport.TCP or usable_nics(topology, one)]


def _sentence(ranked: tuple[RankedNic, ...]) -> str:
    if not ranked:
        return "no interface"
    parts = []
    first = [item for item in ranked if item.tier is Tier.PREFERRED]
    parts.append(f"{_names(first)} ({first[0].why})" if first else "none is near")
    for tier, word in ((Tier.SECONDARY, "then"), (Tier.OTHER, "last")):
        if items := [item for item in ranked if item.tier is tier]:
            parts.append(f"{word} {_names(items)}")
    return "; ".join(parts)


def _names(items: list[RankedNic]) -> str:
    names = [_name(item.nic) for item in items[:_NAMES_SHOWN]]
    if len(items) > _NAMES_SHOWN:
        names.append(f"{len(items) - _NAMES_SHOWN} more")
    return ", ".join(names)


def _name(nic: Nic) -> str:
    """Return an interface's name, with the RDMA device's where that is another."""
    if nic.rdma is None or nic.rdma.device == nic.name:
        return nic.name
    return f"{nic.name}/{nic.rdma.device}"


# ---- for machines --------------------------------------------------------------------------------


def document_of(topology: Topology) -> dict[str, Any]:
    """Return interfaces and choices for --json."""
    return {
        "nics": [_nic_document(nic) for nic in topology.nics],
        "locations": [
            {
                "location": device.location,
                "transport": transport.value,
                "nics": [
                    {"name": item.nic.name, "tier": item.tier.name.lower(), "why": item.why}
                    for item in rank(topology, device.location, transport)
                ],
            }
            for device in topology.devices
            for transport in _transports(topology)
        ],
    }


def _nic_document(nic: Nic) -> dict[str, Any]:
    return {
        "name": nic.name,
        "kind": nic.kind.value,
        "addresses": [str(address) for address in nic.addresses],
        "is_up": nic.is_up,
        "mbit_per_s": nic.mbit_per_s,
        "mtu": nic.mtu,
        "numa_node": nic.numa_node,
        "path": nic.path,
        "rdma": _rdma_document(nic),
        "unusable": {
            transport.value: unusable_reason(nic, transport) or None for transport in Transport
        },
    }


def _rdma_document(nic: Nic) -> dict[str, Any] | None:
    port = nic.rdma
    if port is None:
        return None
    choice = choose_gid(port.gids, port.layer, netdev=nic.name, index=nic.gid_index)
    return {
        "device": port.device,
        "port": port.port,
        "layer": port.layer.value,
        "state": port.state,
        "lid": port.lid,
        "gid": None
        if choice is None
        else {
            "index": choice.gid.index,
            "value": str(choice.gid.value),
            "type": choice.gid.type.value,
            "why": choice.why,
        },
    }
