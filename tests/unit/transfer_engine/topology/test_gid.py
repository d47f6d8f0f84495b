"""Which GID is taken: a table."""

from __future__ import annotations

from ipaddress import IPv6Address

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mooncake_store.transfer_engine.topology import (
    Gid,
    GidType,
    RdmaLayer,
    choose_gid,
    choose_gid_pair,
    rank_gids,
)

V1, V2, IB = GidType.ROCE_V1, GidType.ROCE_V2, GidType.INFINIBAND


def table(*entries: tuple[str, GidType] | tuple[str, GidType, str]) -> list[Gid]:
    return [
        Gid(index, IPv6Address(entry[0]), entry[1], entry[2] if len(entry) > 2 else "eth0")
        for index, entry in enumerate(entries)
    ]


LINK, IPV4, IPV6, ULA = "fe80::1", "::ffff:10.0.0.7", "2001:db8::7", "fd00::7"


@pytest.mark.parametrize(
    ("gids", "index", "words"),
    [
        # What the kernel makes of an interface with an IPv4 address.
        (table((LINK, V1), (LINK, V2), (IPV4, V1), (IPV4, V2)), 3, "IPv4-mapped; before 3 others"),
        (table((IPV4, V2), (LINK, V2)), 0, "before 1 other"),
        # IPv6-only networks work.
        (table((LINK, V1), (LINK, V2), (IPV6, V1), (IPV6, V2)), 3, "IPv6"),
        (table((LINK, V2), (ULA, V2)), 1, "IPv6"),
        (table((IPV6, V2), (IPV4, V2)), 1, "IPv4-mapped"),
        # Nothing but link-local.
        (table((LINK, V1), (LINK, V2)), 1, "link-local"),
        (table((LINK, V2)), 0, "RoCE v2, link-local"),
        # A link-local v2 still comes before a v1 with a better address.
        (table((LINK, V2), (IPV4, V1)), 0, "RoCE v2"),
        # Adapters without RoCE v2.
        (table((LINK, V1), (IPV4, V1)), 1, "RoCE v1"),
        (table((LINK, V1)), 0, "no entry is RoCE v2"),
        # IPv4 link-local (RFC 3927) is link-local too.
        (table(("::ffff:169.254.3.4", V2), (IPV6, V2)), 1, "IPv6"),
        # Empty entries are none.
        (table(("::", V2), (LINK, V2)), 1, "link-local"),
        # VLANs of the interface have entries in the same table.
        (table(("::ffff:10.7.0.7", V2, "eth0.7"), (IPV4, V2)), 1, "IPv4-mapped"),
        (table(("::ffff:10.7.0.7", V2, "eth0.7"), (LINK, V2)), 1, "link-local"),
        # Two addresses: the first.
        (table((LINK, V2), ("::ffff:10.0.0.8", V2), (IPV4, V2)), 1, "IPv4-mapped"),
        # Without names of interfaces (a container).
        (table((LINK, V2, ""), (IPV4, V2, "")), 1, "IPv4-mapped"),
    ],
)
def test_roce(gids: list[Gid], index: int, words: str) -> None:
    choice = choose_gid(gids, netdev="eth0")
    assert choice is not None
    assert choice.gid.index == index
    assert words in choice.why


@pytest.mark.parametrize("layer", [RdmaLayer.INFINIBAND, RdmaLayer.EFA])
def test_where_one_table_has_one_kind_the_first_is_taken(layer: RdmaLayer) -> None:
    gids = table(("fe80::e41d:2d03:0:5", IB), ("fec0::e41d:2d03:0:5", IB))
    choice = choose_gid(gids, layer)
    assert choice is not None and choice.gid.index == 0


def test_an_operator_s_index_is_obeyed_or_nothing_is_chosen() -> None:
    gids = table((LINK, V1), (LINK, V2), (IPV4, V2), ("::", V2))
    choice = choose_gid(gids, index=0)
    assert choice is not None and choice.gid.index == 0 and "asked" in choice.why
    assert choose_gid(gids, index=3) is None
    assert choose_gid(gids, index=200) is None


def test_without_entries_there_is_no_choice() -> None:
    assert choose_gid([]) is None
    assert choose_gid(table(("::", V2))) is None


def their(*entries: tuple[str, GidType]) -> list[Gid]:
    return list(rank_gids(table(*entries)))


@pytest.mark.parametrize(
    ("ours", "theirs", "same_link", "pair"),
    [
        ([(IPV4, V2)], [("::ffff:10.0.0.9", V2)], False, (0, 0)),
        # The best of one side is of no use where the other has no such.
        ([(IPV4, V2), (IPV6, V2)], [("2001:db8::9", V2)], False, (1, 0)),
        ([(IPV4, V2), (IPV4, V1)], [("::ffff:10.0.0.9", V1)], True, (1, 0)),
        # RoCE v1 does not leave its link, v1 and v2 never meet.
        ([(IPV4, V1)], [("::ffff:10.0.0.9", V1)], False, None),
        ([(IPV4, V1)], [("::ffff:10.0.0.9", V2)], True, None),
        # Link-local only where both are on one link.
        ([(LINK, V2)], [("fe80::9", V2)], False, None),
        ([(LINK, V2)], [("fe80::9", V2)], True, (0, 0)),
        ([(IPV4, V2)], [("2001:db8::9", V2)], True, None),
        # The same address at both ends is no pair.
        ([(IPV4, V2)], [(IPV4, V2)], True, None),
        ([], [(IPV4, V2)], True, None),
    ],
)
def test_pairs(
    ours: list[tuple[str, GidType]],
    theirs: list[tuple[str, GidType]],
    same_link: bool,
    pair: tuple[int, int] | None,
) -> None:
    found = choose_gid_pair(their(*ours), their(*theirs), is_same_link=same_link)
    assert (None if found is None else (found[0].index, found[1].index)) == pair


gids = st.builds(
    Gid,
    st.integers(0, 255),
    st.sampled_from(
        [IPv6Address(text) for text in (LINK, IPV4, IPV6, ULA, "::", "::ffff:9.9.9.9")]
    ),
    st.sampled_from([V1, V2]),
    st.sampled_from(["", "eth0", "eth0.7"]),
)


@given(st.lists(gids, max_size=8, unique_by=lambda gid: gid.index), st.randoms())
def test_the_choice_does_not_depend_on_the_order_of_reading(
    found: list[Gid], random: object
) -> None:
    shuffled = list(found)
    random.shuffle(shuffled)  # type: ignore[attr-defined]
    assert choose_gid(found, netdev="eth0") == choose_gid(shuffled, netdev="eth0")
    choice = choose_gid(found, netdev="eth0")
    if choice is not None and any(gid.type is V2 and int(gid.value) for gid in found):
        assert choice.gid.type is V2
