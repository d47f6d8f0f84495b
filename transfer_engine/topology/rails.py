"""Pairs of a local and a remote interface that bytes can take: a pure function.

A rail is (local NIC, remote NIC).  Which pairs can work is told by the addresses of both ends, and
which is best by how near each interface is to the memory at its end.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import IntEnum
from ipaddress import IPv4Address, IPv6Address

from mooncake_store.transfer_engine.topology.gid import (
    choose_gid,
    choose_gid_pair,
    rank_gids,
)
from mooncake_store.transfer_engine.topology.matrix import ANYWHERE, Tier, Topology
from mooncake_store.transfer_engine.topology.nic import (
    Address,
    Gid,
    Grade,
    Nic,
    NicKind,
    RdmaLayer,
    RdmaPort,
    Transport,
    is_link_local,
)
from mooncake_store.transfer_engine.topology.ranking import RankedNic, grades, rank

__all__ = ["Rail", "Reach", "rails"]

_RAILS_MAX = 16  # C: TE_RAILS_MAX


class Reach(IntEnum):
    """How two interfaces reach each other, the surest way first."""

    LINK = 0  # one network: no router between them
    ROUTED = 1
    TRANSLATED = 2  # a private address and a public one: only if a gateway helps


@dataclass(frozen=True, slots=True)
class Rail:
    """A pair of interfaces.

    Attributes:
        local: Ours.
        remote: The peer's.
        tier: The worse of both ends.
        reach: How they reach each other.
        local_end: What to bind to: an address, or a GID.  None: InfiniBand and EFA need no choice.
        remote_end: What to connect to.
        why: Words for people.
    """

    local: Nic
    remote: Nic
    tier: Tier
    reach: Reach
    local_end: IPv4Address | IPv6Address | Gid | None
    remote_end: IPv4Address | IPv6Address | Gid | None
    why: str


@dataclass(frozen=True, slots=True)
class _Way:
    reach: Reach
    local_end: IPv4Address | IPv6Address | Gid | None
    remote_end: IPv4Address | IPv6Address | Gid | None
    words: str


@dataclass(frozen=True, slots=True)
class _Found:
    """A pair that works, and where its ends stand in the ranks of their machines."""

    row: int
    column: int
    both_tiers: int  # their sum: one end that is far is better than two
    rail: Rail


def rails(
    local: Topology,
    remote: Topology,
    location: str = ANYWHERE,
    remote_location: str = ANYWHERE,
    *,
    transport: Transport = Transport.TCP,
    is_same_host: bool = False,
    count_max: int = _RAILS_MAX,
) -> tuple[Rail, ...]:
    """Return the pairs that can carry bytes between two memories, the best first.

    Better is: near to the memory at both ends, then on one network, then such that the first pairs
    use as many different interfaces as there are (a queue at one port helps nobody).

    Left out is what cannot work: IPv4 with IPv6, RoCE with InfiniBand, RoCE v1 with v2, link-local
    addresses of different links, an address that both machines have (each means itself), loopback
    unless both are one host; and bridges or tunnels of containers where a machine has better, since
    the same private network behind each of them is a different one.

    Args:
        local: Ours.
        remote: The peer's, as it tells.
        location: Of our memory.
        remote_location: Of the peer's memory.
        transport: What carries the bytes.
        is_same_host: Both are one machine.
        count_max: How many to return at most.
    """
    ours = _candidates(local, location, transport)
    theirs = _candidates(remote, remote_location, transport)
    way_of = _tcp_way if transport is Transport.TCP else _rdma_way
    found: list[_Found] = []
    for i, mine in enumerate(ours):
        for j, yours in enumerate(theirs):
            if not is_same_host and _is_own(mine.nic, local, yours.nic):
                continue
            way = way_of(mine.nic, yours.nic, is_same_host)
            if way is None:
                continue
            tier = max(mine.tier, yours.tier)
            why = f"{way.words}; here {mine.why}, there {yours.why}"
            rail = Rail(mine.nic, yours.nic, tier, way.reach, way.local_end, way.remote_end, why)
            found.append(_Found(i, j, mine.tier + yours.tier, rail))
    return tuple(_spread(found))[:count_max]


def _candidates(topology: Topology, location: str, transport: Transport) -> list[RankedNic]:
    ranked = rank(topology, location, transport)
    graded = grades([item.nic for item in ranked], transport)
    has_better = any(grade < Grade.VIRTUAL for grade, _ in graded.values())
    return [
        item for item in ranked if not (has_better and graded[item.nic.name][0] is Grade.VIRTUAL)
    ]


def _is_own(mine: Nic, local: Topology, yours: Nic) -> bool:
    """Whether all that a peer's interface could be called is here too: it would be ourselves."""
    if not yours.addresses:
        return False
    here = {address.ip for nic in local.nics for address in nic.addresses}
    return mine.kind is not NicKind.LOOPBACK and all(item.ip in here for item in yours.addresses)


def _spread(found: Sequence[_Found]) -> Iterator[Rail]:
    """Order pairs by tier and reach; within those along diagonals, so that neighbours differ."""
    groups: dict[tuple[Tier, Reach, int], list[_Found]] = {}
    for item in found:
        groups.setdefault((item.rail.tier, item.rail.reach, item.both_tiers), []).append(item)
    for key in sorted(groups):
        group = groups[key]
        rows = {row: order for order, row in enumerate(sorted({item.row for item in group}))}
        columns = {
            column: order for order, column in enumerate(sorted({item.column for item in group}))
        }
        turns = max(len(rows), len(columns))
        by_diagonal = sorted(
            ((columns[item.column] - rows[item.row]) % turns, rows[item.row], order)
            for order, item in enumerate(group)
        )
        for _, _, order in by_diagonal:
            yield group[order].rail


# ---- TCP -----------------------------------------------------------------------------------------


def _tcp_way(mine: Nic, yours: Nic, is_same_host: bool) -> _Way | None:
    is_loop = (mine.kind is NicKind.LOOPBACK, yours.kind is NicKind.LOOPBACK)
    same_link = is_same_link(mine, yours)
    if _is_cut_off(mine, yours):
        return None
    ways = []
    for ours in mine.addresses:
        for theirs in yours.addresses:
            if ours.version != theirs.version or ours.ip.is_loopback != theirs.ip.is_loopback:
                continue
            if ours.ip.is_loopback and not (is_same_host and all(is_loop)):
                continue
            if ours.ip == theirs.ip and not is_same_host:
                continue
            if is_link_local(ours) != is_link_local(theirs):
                continue
            if is_link_local(ours) and not same_link:
                continue
            ways.append((is_link_local(ours), ours.version, _way_between(ours, theirs)))
    if not ways:
        return None
    return min(ways, key=lambda item: (item[0], item[2].reach, item[1]))[2]


def _way_between(ours: Address, theirs: Address) -> _Way:
    if ours.ip.is_loopback or _shares_network(ours, theirs):
        return _Way(Reach.LINK, ours.ip, theirs.ip, f"both in {theirs.network}")
    if ours.ip.is_private != theirs.ip.is_private:
        return _Way(Reach.TRANSLATED, ours.ip, theirs.ip, "a private and a public address")
    return _Way(Reach.ROUTED, ours.ip, theirs.ip, "through a router")


def _shares_network(ours: Address, theirs: Address) -> bool:
    return ours.ip in theirs.network and theirs.ip in ours.network  # never in the other version's


def _is_cut_off(mine: Nic, yours: Nic) -> bool:
    """Whether an operator has said that they are cabled to different networks."""
    return bool(mine.link and yours.link and mine.link != yours.link)


def is_same_link(mine: Nic, yours: Nic) -> bool:
    """Whether two interfaces are on one link: an operator says so, or they share a network."""
    if mine.link and yours.link:
        return mine.link == yours.link
    return any(
        _shares_network(ours, theirs)
        for ours in mine.addresses
        for theirs in yours.addresses
        if not is_link_local(ours)
    )


# ---- RDMA ----------------------------------------------------------------------------------------


def _rdma_way(mine: Nic, yours: Nic, is_same_host: bool) -> _Way | None:
    ours, theirs = mine.rdma, yours.rdma
    if ours is None or theirs is None or ours.layer is not theirs.layer or _is_cut_off(mine, yours):
        return None
    if ours.layer is RdmaLayer.INFINIBAND:
        return _infiniband_way(ours, theirs)
    if ours.layer is RdmaLayer.EFA:
        return _Way(Reach.LINK, _first(ours), _first(theirs), "both EFA")
    if ours.layer is RdmaLayer.IWARP:  # connects by IP address, like TCP
        return _tcp_way(mine, yours, is_same_host)
    return _roce_way(mine, yours, ours, theirs)


def _infiniband_way(ours: RdmaPort, theirs: RdmaPort) -> _Way | None:
    """Pair two ports of one subnet, which is the first half of a GID."""
    mine, yours = _first(ours), _first(theirs)
    if mine is not None and yours is not None and int(mine.value) >> 64 != int(yours.value) >> 64:
        return None
    return _Way(Reach.LINK, mine, yours, "one InfiniBand subnet")


def _first(port: RdmaPort) -> Gid | None:
    choice = choose_gid(port.gids, port.layer)
    return None if choice is None else choice.gid


def _roce_way(mine: Nic, yours: Nic, ours: RdmaPort, theirs: RdmaPort) -> _Way | None:
    networks = [*mine.addresses, *yours.addresses]

    def shares_network(one: Gid, other: Gid) -> bool:
        first, second = _ip_of(one), _ip_of(other)
        return any(first in item.network and second in item.network for item in networks)

    pair = choose_gid_pair(
        _gids_of(mine, ours),
        _gids_of(yours, theirs),
        is_same_link=is_same_link(mine, yours),
        shares_network=shares_network,
    )
    if pair is None:
        return None
    is_link = shares_network(*pair)
    words = f"{pair[0].type.value}, {'one network' if is_link else 'through a router'}"
    return _Way(Reach.LINK if is_link else Reach.ROUTED, *pair, words)


def _gids_of(nic: Nic, port: RdmaPort) -> tuple[Gid, ...]:
    if nic.gid_index is not None:
        choice = choose_gid(port.gids, port.layer, index=nic.gid_index)
        return () if choice is None else (choice.gid,)
    return rank_gids(port.gids, port.layer, nic.name)


def _ip_of(gid: Gid) -> IPv4Address | IPv6Address:
    return gid.value.ipv4_mapped or gid.value
