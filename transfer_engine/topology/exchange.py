"""The JSON by which engines tell each other their interfaces.

    {"nics": {"eth0": ["10.0.0.5"]},
     "matrix": {"cpu:0": [["eth0"], []]},
     "links": {"eth0": {"addresses": ["10.0.0.5/24"], "kind": "ethernet", "mtu": 9000}}}

`nics` and `matrix` are what C reads (te_rails.h) and every version understands.  `links` has what
pairs of interfaces are made from; whoever does not know it, or a member of it, skips it.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from enum import Enum
from ipaddress import IPv6Address
from typing import Any, TypeVar

from mooncake_store.transfer_engine.topology.document import Value, check_name, read_document
from mooncake_store.transfer_engine.topology.gid import rank_gids
from mooncake_store.transfer_engine.topology.matrix import NicPreference, Topology
from mooncake_store.transfer_engine.topology.nic import (
    Gid,
    GidType,
    Nic,
    NicKind,
    RdmaLayer,
    RdmaPort,
    is_link_local,
)
from mooncake_store.transfer_engine.topology.ranking import rank

__all__ = ["from_json", "read_matrix", "to_json"]

# C's bounds: TE_NICS_MAX, TE_NIC_ADDRESSES_MAX, TE_LOCATIONS_MAX.
_NICS_MAX, _ADDRESSES_MAX, _LOCATIONS_MAX = 64, 8, 64
_GIDS_MAX = 16

Member = TypeVar("Member", bound=Enum)


# ---- writing -------------------------------------------------------------------------------------


def to_json(topology: Topology) -> str:
    """Return what peers are told and `te_set_topology` takes.

    Interfaces that cannot be used are no one's business, nor is a loopback beside others: its
    address is a different machine's to whoever reads it.
    """
    ranked = [item.nic for item in rank(topology)]
    wired = [nic for nic in ranked if nic.kind is not NicKind.LOOPBACK]
    told = (wired or ranked)[:_NICS_MAX]
    names = {nic.name for nic in told}
    told = [nic for nic in topology.nics if nic.name in names]  # in the machine's order
    return json.dumps(
        {
            "nics": {nic.name: _plain_addresses(nic) for nic in told},
            "matrix": {
                location: [
                    [name for name in preference.preferred if name in names],
                    [name for name in preference.secondary if name in names],
                ]
                for location, preference in list(topology.matrix.items())[:_LOCATIONS_MAX]
            },
            "links": {nic.name: _link(nic) for nic in told},
        },
        separators=(",", ":"),
    )


def _plain_addresses(nic: Nic) -> list[str]:
    """Return those that can be connected to without naming an interface."""
    found = [str(address.ip) for address in nic.addresses if not is_link_local(address)]
    return found[:_ADDRESSES_MAX]


def _link(nic: Nic) -> dict[str, Any]:
    link: dict[str, Any] = {
        "addresses": [str(address) for address in nic.addresses[: 2 * _ADDRESSES_MAX]],
        "kind": nic.kind.value,
        "numa_node": nic.numa_node,
        "mtu": nic.mtu,
        "mbit_per_s": nic.link_mbit_per_s,
        "link": nic.link or None,
        "gid_index": nic.gid_index,
        "rdma": None if nic.rdma is None else _port(nic),
    }
    return {name: value for name, value in link.items() if value is not None}


def _port(nic: Nic) -> dict[str, Any]:
    port = nic.rdma
    assert port is not None
    gids = list(rank_gids(port.gids, port.layer, nic.name)[:_GIDS_MAX])
    asked = [gid for gid in port.gids if gid.index == nic.gid_index and gid not in gids]
    told: dict[str, Any] = {
        "device": port.device,
        "port": port.port,
        "layer": port.layer.value,
        "lid": port.lid,
        "gids": [[gid.index, str(gid.value), gid.type.value] for gid in asked + gids],
        "mbit_per_s": port.link_mbit_per_s,
        "is_active": port.is_active,
        "is_software": port.is_software or None,
    }
    return {name: value for name, value in told.items() if value is not None}


# ---- reading -------------------------------------------------------------------------------------


def from_json(text: str, *, origin: str = "topology") -> Topology:
    """Read what `to_json` writes; what a later version has added is skipped.

    Args:
        text: The JSON.
        origin: Where it comes from, for the error.

    Raises:
        ConfigError: It is not of that form, or the matrix names an interface that is not there.
    """
    document = read_document(text, origin)
    members = document.members()
    links = members["links"].members() if "links" in members else {}
    nics = []
    for name, addresses in (members["nics"].members() if "nics" in members else {}).items():
        check_name(addresses, name)
        if name in links:
            nics.append(_read_link(name, links[name]))
        else:
            nics.append(Nic(name, tuple(item.address() for item in addresses.items())))
    names = {nic.name: nic.name for nic in nics}
    matrix = read_matrix(members["matrix"], names) if "matrix" in members else {}
    return Topology(tuple(nics), matrix)


def read_matrix(value: Value, names: Mapping[str, str]) -> dict[str, NicPreference]:
    """Read rows of a matrix.

    Args:
        value: An object of rows.
        names: What interfaces may be called, and their names.
    """
    matrix = {}
    for location, row in value.members().items():
        check_name(row, location)
        tiers = list(row.items("[[NAME, ...], [NAME, ...]]"))
        if len(tiers) != 2:
            row.refuse("two lists, of preferred and of secondary interfaces")
        matrix[location] = NicPreference(*(_read_names(tier, names) for tier in tiers))
    return matrix


def _read_names(value: Value, names: Mapping[str, str]) -> tuple[str, ...]:
    found = []
    for item in value.items("a list of interfaces"):
        name = item.name()
        if name not in names:
            item.refuse(f"an interface that is in nics ({', '.join(sorted(names)) or 'none is'})")
        found.append(names[name])
    return tuple(dict.fromkeys(found))


def _read_link(name: str, value: Value) -> Nic:
    members = value.members()
    addresses = members["addresses"].items() if "addresses" in members else ()
    return Nic(
        name,
        tuple(item.address() for item in addresses),
        kind=_member(members, "kind", NicKind, NicKind.ETHERNET),
        numa_node=_optional(members, "numa_node", Value.number),
        mtu=_optional(members, "mtu", Value.number),
        link_mbit_per_s=_optional(members, "mbit_per_s", Value.number),
        link=_optional(members, "link", Value.text) or "",
        gid_index=_optional(members, "gid_index", Value.number),
        rdma=_optional(members, "rdma", _read_port),
    )


def _read_port(value: Value) -> RdmaPort | None:
    members = value.members()
    layer = _member(members, "layer", RdmaLayer, None)
    if layer is None:
        return None  # of a kind that is not known here
    gids = []
    for item in members["gids"].items() if "gids" in members else ():
        parts = list(item.items("[INDEX, ADDRESS, TYPE]"))
        if len(parts) != 3:
            item.refuse("[INDEX, ADDRESS, TYPE]")
        kind = next((kind for kind in GidType if kind.value == parts[2].raw), None)
        if kind is not None:
            gids.append(Gid(parts[0].number(), _gid_value(parts[1]), kind))
    return RdmaPort(
        _optional(members, "device", Value.name) or "rdma",
        _optional(members, "port", Value.number) or 1,
        layer,
        _optional(members, "is_active", Value.boolean) is not False,
        _optional(members, "lid", Value.number) or 0,
        tuple(gids),
        _optional(members, "is_software", Value.boolean) or False,
        link_mbit_per_s=_optional(members, "mbit_per_s", Value.number),
    )


def _gid_value(value: Value) -> IPv6Address:
    try:
        return IPv6Address(value.text())
    except ValueError:
        value.refuse("a GID, written as an IPv6 address")


Read = TypeVar("Read")


def _optional(
    members: Mapping[str, Value], name: str, read: Callable[[Value], Read]
) -> Read | None:
    return read(members[name]) if name in members else None


def _member(
    members: Mapping[str, Value], name: str, kind: type[Member], default: Member | None
) -> Any:
    raw = members[name].raw if name in members else None
    return next((item for item in kind if item.value == raw), default)
