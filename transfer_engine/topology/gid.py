"""Which GID of an RDMA port to use, alone and in a pair with a peer's: pure functions."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from enum import IntEnum

from mooncake_store.transfer_engine.topology.nic import Gid, GidType, RdmaLayer

__all__ = ["GidChoice", "GidFamily", "choose_gid", "choose_gid_pair", "family_of", "rank_gids"]


class GidFamily(IntEnum):
    """What kind of address a GID holds, the one that reaches furthest first."""

    IPV4 = 0
    IPV6 = 1
    LINK_LOCAL = 2


_TYPE_ORDER = {GidType.INFINIBAND: 0, GidType.ROCE_V2: 0, GidType.ROCE_V1: 1}


@dataclass(frozen=True, slots=True)
class GidChoice:
    """A GID, and the sentence that defends it."""

    gid: Gid
    why: str


def family_of(gid: Gid) -> GidFamily:
    """Return what kind of address a GID holds."""
    if gid.value.ipv4_mapped is not None:
        is_local = gid.value.ipv4_mapped.is_link_local
        return GidFamily.LINK_LOCAL if is_local else GidFamily.IPV4
    return GidFamily.LINK_LOCAL if gid.value.is_link_local else GidFamily.IPV6


def rank_gids(
    gids: Iterable[Gid], layer: RdmaLayer = RdmaLayer.ROCE, netdev: str = ""
) -> tuple[Gid, ...]:
    """Return the GIDs that can be used, the best one first.

    RoCE v2 comes before v1: v1 is a protocol below IP, which no router passes on and many switches
    and clouds drop.  Then the interface's own before those of VLANs on top of it, IPv4-mapped
    before other IPv6, and link-local last: those mean something on one link only.  On InfiniBand
    and EFA the first entry is the port's own.
    """
    usable = [gid for gid in gids if int(gid.value) != 0]
    if layer in (RdmaLayer.INFINIBAND, RdmaLayer.EFA):
        return tuple(sorted(usable, key=lambda gid: gid.index))
    return tuple(
        sorted(
            usable,
            key=lambda gid: (
                _TYPE_ORDER[gid.type],
                bool(netdev and gid.netdev and gid.netdev != netdev),
                family_of(gid),
                gid.index,
            ),
        )
    )


def choose_gid(
    gids: Sequence[Gid],
    layer: RdmaLayer = RdmaLayer.ROCE,
    *,
    netdev: str = "",
    index: int | None = None,
) -> GidChoice | None:
    """Return the GID to use and why; None when there is none.

    Args:
        gids: The port's table.
        layer: What the port speaks.
        netdev: The port's network interface: its GIDs come before those of VLANs.
        index: The one that an operator has asked for.
    """
    if index is not None:
        asked = next((gid for gid in gids if gid.index == index and int(gid.value) != 0), None)
        return None if asked is None else GidChoice(asked, "asked for by its index")
    ranked = rank_gids(gids, layer, netdev)
    if not ranked:
        return None
    best = ranked[0]
    if layer in (RdmaLayer.INFINIBAND, RdmaLayer.EFA):
        return GidChoice(best, "the port's first")
    return GidChoice(best, _defence(best, ranked))


def _defence(best: Gid, ranked: Sequence[Gid]) -> str:
    words = {
        GidFamily.IPV4: "IPv4-mapped",
        GidFamily.IPV6: "IPv6; none is IPv4-mapped",
        GidFamily.LINK_LOCAL: "link-local; the interface has no other address",
    }
    if best.type is GidType.ROCE_V1:
        return f"RoCE v1, {words[family_of(best)]}: no entry is RoCE v2, and no router passes v1"
    passed_over = len(ranked) - 1
    return f"RoCE v2, {words[family_of(best)]}" + (
        f"; before {passed_over} other{'s' if passed_over > 1 else ''}" if passed_over else ""
    )


def choose_gid_pair(
    ours: Sequence[Gid],
    theirs: Sequence[Gid],
    *,
    is_same_link: bool,
    shares_network: Callable[[Gid, Gid], bool] | None = None,
) -> tuple[Gid, Gid] | None:
    """Return the best pair of RoCE GIDs that can talk: one type, one family; None without any.

    Args:
        ours: Our port's, best first.
        theirs: The peer's port's, best first.
        is_same_link: Both ports are on one link: only there link-local GIDs and RoCE v1 can work.
        shares_network: Whether two GIDs are of one network; those pairs come before routed ones.
    """
    pairs = [
        (mine, yours)
        for mine in ours
        for yours in theirs
        if mine.type is yours.type
        and family_of(mine) is family_of(yours)
        and mine.value != yours.value
        and (is_same_link or mine.type is GidType.ROCE_V2)
        and (is_same_link or family_of(mine) is not GidFamily.LINK_LOCAL)
    ]
    if shares_network is None:
        return pairs[0] if pairs else None
    return min(
        pairs,
        key=lambda pair: (_TYPE_ORDER[pair[0].type], not shares_network(*pair)),
        default=None,
    )
