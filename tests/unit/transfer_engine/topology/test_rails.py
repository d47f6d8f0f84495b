"""Which pairs of interfaces carry bytes between two machines, and in which order: tables."""

from __future__ import annotations

from dataclasses import replace
from ipaddress import IPv6Address, ip_interface

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mooncake_store.transfer_engine.topology import (
    Gid,
    GidType,
    Nic,
    NicKind,
    NicPreference,
    RdmaLayer,
    RdmaPort,
    Reach,
    Tier,
    Topology,
    Transport,
    rails,
)

TCP, RDMA = Transport.TCP, Transport.RDMA


def nic(name: str, *addresses: str, **more: object) -> Nic:
    return Nic(name, tuple(map(ip_interface, addresses)), **more)  # type: ignore[arg-type]


def roce(name: str, *addresses: str, types: tuple[GidType, ...] = (GidType.ROCE_V2,)) -> Nic:
    made = nic(name, *addresses)
    values = [IPv6Address("fe80::1")]
    values += [
        IPv6Address(f"::ffff:{item.ip}") if item.version == 4 else IPv6Address(item.ip)
        for item in made.addresses
    ]
    pairs = [(value, kind) for value in values for kind in types]
    gids = tuple(Gid(index, value, kind, name) for index, (value, kind) in enumerate(pairs))
    return replace(made, rdma=RdmaPort(f"mlx5_{name}", gids=gids))


def infiniband(name: str, lid: int, subnet: str = "fe80") -> Nic:
    gid = Gid(0, IPv6Address(f"{subnet}::e41d:2d03:0:{lid:x}"), GidType.INFINIBAND)
    port = RdmaPort(f"mlx5_{name}", layer=RdmaLayer.INFINIBAND, lid=lid, gids=(gid,))
    return Nic(name, kind=NicKind.INFINIBAND, rdma=port)


def machine(*nics: Nic, **rows: str) -> Topology:
    """A peer; rows like cpu0="a|b" mean preferred|secondary."""
    matrix = {}
    for location, row in rows.items():
        preferred, _, secondary = row.partition("|")
        matrix[location] = NicPreference(tuple(preferred.split()), tuple(secondary.split()))
    return Topology(nics, matrix)


def pairs(local: Topology, remote: Topology, **more: object) -> str:
    found = rails(local, remote, **more)  # type: ignore[arg-type]
    return " ".join(f"{rail.local.name}-{rail.remote.name}" for rail in found)


@pytest.mark.parametrize(
    ("ours", "theirs", "wanted"),
    [
        # One network, another network behind a router, no common family.
        ([nic("a", "10.0.0.1/24")], [nic("x", "10.0.0.2/24")], "a-x"),
        ([nic("a", "10.0.0.1/24")], [nic("x", "10.9.0.2/24")], "a-x"),
        ([nic("a", "10.0.0.1/24")], [nic("x", "2001:db8::2/64")], ""),
        ([nic("a", "2001:db8::1/64")], [nic("x", "2001:db8::2/64")], "a-x"),
        # Two networks: first each in its own, then across.
        (
            [nic("a", "10.0.0.1/24"), nic("b", "10.0.1.1/24")],
            [nic("x", "10.0.0.2/24"), nic("y", "10.0.1.2/24")],
            "a-x b-y a-y b-x",
        ),
        (
            [nic("a", "10.0.1.1/24"), nic("b", "10.0.0.1/24")],
            [nic("x", "10.0.0.2/24"), nic("y", "10.0.1.2/24")],
            "a-y b-x a-x b-y",
        ),
        # One flat network: the first pairs have no interface in common.
        (
            [nic("a", "10.0.0.1/16"), nic("b", "10.0.1.1/16")],
            [nic("x", "10.0.2.1/16"), nic("y", "10.0.3.1/16")],
            "a-x b-y a-y b-x",
        ),
        # A prefix that only one side believes in is no common network, but a route.
        (
            [nic("a", "10.0.0.1/24"), nic("b", "10.0.5.1/16")],
            [nic("x", "10.0.7.1/16")],
            "b-x a-x",
        ),
        # Private and public: last, for a gateway may help.
        (
            [nic("a", "10.0.0.1/24"), nic("b", "8.8.4.4/24")],
            [nic("x", "8.8.9.9/24")],
            "b-x a-x",
        ),
        # Link-local addresses only where the same interfaces share a network.
        ([nic("a", "169.254.0.1/16")], [nic("x", "169.254.0.2/16")], ""),
        ([nic("a", "fe80::1/64")], [nic("x", "fe80::2/64")], ""),
        # ... or an operator says that they are on one link.
        ([nic("a", "fe80::1/64", link="r0")], [nic("x", "fe80::2/64", link="r0")], "a-x"),
        ([nic("a", "fe80::1/64", link="r0")], [nic("x", "fe80::2/64", link="r1")], ""),
        # Links of different names do not reach each other, whatever their addresses say.
        (
            [nic("a", "10.0.0.1/16", link="r0"), nic("b", "10.0.1.1/16", link="r1")],
            [nic("x", "10.0.0.2/16", link="r0"), nic("y", "10.0.1.2/16", link="r1")],
            "a-x b-y",
        ),
        # Bridges of containers have the same network on every host: not the same link.
        (
            [nic("a", "10.0.0.1/24"), nic("docker0", "172.17.0.1/16", kind=NicKind.VIRTUAL)],
            [nic("x", "10.0.0.2/24"), nic("docker0", "172.17.0.1/16", kind=NicKind.VIRTUAL)],
            "a-x",
        ),
        # Where there is nothing else (pods), they are taken.
        (
            [nic("eth0", "10.244.1.7/24", kind=NicKind.VIRTUAL)],
            [nic("eth0", "10.244.2.7/24", kind=NicKind.VIRTUAL)],
            "eth0-eth0",
        ),
        # The same address on both machines is not the peer's.
        ([nic("a", "10.0.0.1/24")], [nic("x", "10.0.0.1/24")], ""),
        # Nor is one that another interface of ours has.
        (
            [nic("a", "10.0.0.1/24"), nic("b", "10.5.0.1/24")],
            [nic("x", "10.5.0.1/24"), nic("y", "10.0.0.2/24")],
            "a-y b-y",
        ),
        # Loopback is oneself.
        (
            [nic("lo", "127.0.0.1/8", kind=NicKind.LOOPBACK)],
            [nic("lo", "127.0.0.1/8", kind=NicKind.LOOPBACK)],
            "",
        ),
        # Unless routing on the host put a real address on it.
        (
            [nic("lo", "127.0.0.1/8", "10.255.0.1/32", kind=NicKind.LOOPBACK)],
            [nic("lo", "127.0.0.1/8", "10.255.0.2/32", kind=NicKind.LOOPBACK)],
            "lo-lo",
        ),
        # What is down or a part of something else carries nothing.
        ([nic("a", "10.0.0.1/24", is_up=False)], [nic("x", "10.0.0.2/24")], ""),
        ([nic("a", "10.0.0.1/24", master="bond0")], [nic("x", "10.0.0.2/24")], ""),
    ],
)
def test_tcp(ours: list[Nic], theirs: list[Nic], wanted: str) -> None:
    assert pairs(machine(*ours), machine(*theirs)) == wanted


def test_processes_of_one_host_may_use_loopback() -> None:
    lo = nic("lo", "127.0.0.1/8", "::1/128", kind=NicKind.LOOPBACK)
    here = machine(nic("a", "10.0.0.1/24"), lo)
    assert pairs(here, here, is_same_host=True) == "a-a lo-lo"


@pytest.mark.parametrize(
    ("ours", "theirs", "ends", "reach"),
    [
        (
            nic("a", "10.0.0.1/24", "2001:db8::1/64"),
            nic("x", "10.0.0.2/24", "2001:db8::2/64"),
            ("10.0.0.1", "10.0.0.2"),
            Reach.LINK,
        ),
        # On one link before through a router, whichever family.
        (
            nic("a", "10.0.0.1/24", "2001:db8::1/64"),
            nic("x", "10.9.0.2/24", "2001:db8::2/64"),
            ("2001:db8::1", "2001:db8::2"),
            Reach.LINK,
        ),
        # Of several the one in the peer's network.
        (
            nic("a", "10.0.0.1/24", "10.1.0.1/24"),
            nic("x", "10.1.0.2/24"),
            ("10.1.0.1", "10.1.0.2"),
            Reach.LINK,
        ),
        (nic("a", "10.0.0.1/24"), nic("x", "10.9.0.2/24"), ("10.0.0.1", "10.9.0.2"), Reach.ROUTED),
        (nic("a", "10.0.0.1"), nic("x", "10.0.0.2"), ("10.0.0.1", "10.0.0.2"), Reach.ROUTED),
        # A link-local address never where another works.
        (
            nic("a", "fe80::1/64", "10.0.0.1/24"),
            nic("x", "fe80::2/64", "10.0.0.2/24"),
            ("10.0.0.1", "10.0.0.2"),
            Reach.LINK,
        ),
        (
            nic("a", "10.0.0.1/24"),
            nic("x", "93.184.216.34/24"),
            ("10.0.0.1", "93.184.216.34"),
            Reach.TRANSLATED,
        ),
    ],
)
def test_ends_of_a_pair(ours: Nic, theirs: Nic, ends: tuple[str, str], reach: Reach) -> None:
    (rail,) = rails(machine(ours), machine(theirs))
    assert (str(rail.local_end), str(rail.remote_end)) == ends
    assert rail.reach is reach
    assert rail.why


def test_near_to_both_memories_comes_first() -> None:
    ours = machine(
        nic("a", "10.0.0.1/16"), nic("b", "10.0.1.1/16"), **{"cpu:1": "b|a", "cpu:0": "a|b"}
    )
    theirs = machine(
        nic("x", "10.0.2.1/16"), nic("y", "10.0.3.1/16"), **{"cuda:0": "x|y", "cuda:1": "y|x"}
    )
    found = rails(ours, theirs, "cpu:1", "cuda:0")
    assert [(rail.local.name, rail.remote.name, rail.tier) for rail in found] == [
        ("b", "x", Tier.PREFERRED),
        ("b", "y", Tier.SECONDARY),
        ("a", "x", Tier.SECONDARY),
        ("a", "y", Tier.SECONDARY),
    ]
    assert pairs(ours, theirs, location="cpu:0", remote_location="cuda:1").startswith("a-y ")


V1_AND_V2 = (GidType.ROCE_V1, GidType.ROCE_V2)


@pytest.mark.parametrize(
    ("ours", "theirs", "wanted"),
    [
        ([roce("a", "10.0.0.1/24")], [roce("x", "10.0.0.2/24")], "a-x"),
        ([roce("a", "10.0.0.1/24")], [roce("x", "10.9.0.2/24")], "a-x"),
        ([roce("a", "2001:db8::1/64")], [roce("x", "2001:db8::2/64")], "a-x"),
        ([roce("a", "10.0.0.1/24")], [roce("x", "2001:db8::2/64")], ""),
        # RoCE v1 reaches its own link only, and never a v2.
        (
            [roce("a", "10.0.0.1/24", types=(GidType.ROCE_V1,))],
            [roce("x", "10.0.0.2/24", types=(GidType.ROCE_V1,))],
            "a-x",
        ),
        (
            [roce("a", "10.0.0.1/24", types=(GidType.ROCE_V1,))],
            [roce("x", "10.9.0.2/24", types=(GidType.ROCE_V1,))],
            "",
        ),
        (
            [roce("a", "10.0.0.1/24", types=(GidType.ROCE_V1,))],
            [roce("x", "10.0.0.2/24", types=(GidType.ROCE_V2,))],
            "",
        ),
        (
            [roce("a", "10.0.0.1/24", types=V1_AND_V2)],
            [roce("x", "10.0.0.2/24", types=V1_AND_V2)],
            "a-x",
        ),
        # InfiniBand with InfiniBand, of one subnet.
        ([infiniband("i", 3)], [infiniband("j", 4)], "i-j"),
        ([infiniband("i", 3, "fec0")], [infiniband("j", 4)], ""),
        ([infiniband("i", 3)], [roce("x", "10.0.0.2/24")], ""),
        (
            [infiniband("i", 3), roce("a", "10.0.0.1/24")],
            [infiniband("j", 4), roce("x", "10.0.0.2/24")],
            "i-j a-x",
        ),
        # Before a subnet manager has seen a port, it carries nothing.
        ([infiniband("i", 0)], [infiniband("j", 4)], ""),
        ([nic("a", "10.0.0.1/24")], [roce("x", "10.0.0.2/24")], ""),
    ],
)  # fmt: skip
def test_rdma(ours: list[Nic], theirs: list[Nic], wanted: str) -> None:
    assert pairs(machine(*ours), machine(*theirs), transport=RDMA) == wanted


def test_gids_of_a_pair_are_of_one_family() -> None:
    ours, theirs = roce("a", "10.0.0.1/24", "2001:db8::1/64"), roce("x", "2001:db8::2/64")
    (rail,) = rails(machine(ours), machine(theirs), transport=RDMA)
    assert isinstance(rail.local_end, Gid) and isinstance(rail.remote_end, Gid)
    assert (str(rail.local_end.value), str(rail.remote_end.value)) == ("2001:db8::1", "2001:db8::2")


def test_an_operator_s_gid_is_used_or_the_port_is_not() -> None:
    ours, theirs = (
        roce("a", "10.0.0.1/24", types=V1_AND_V2),
        roce("x", "10.0.0.2/24", types=V1_AND_V2),
    )
    for index, wanted in ((3, GidType.ROCE_V2), (2, GidType.ROCE_V1)):
        asked = replace(ours, gid_index=index)
        (rail,) = rails(machine(asked), machine(theirs), transport=RDMA)
        assert isinstance(rail.local_end, Gid)
        assert rail.local_end.index == index
        assert rail.local_end.type is wanted
    assert rails(machine(replace(ours, gid_index=99)), machine(theirs), transport=RDMA) == ()


def test_there_are_at_most_as_many_as_c_can_hold() -> None:
    ours = machine(*(nic(f"a{i}", f"10.0.0.{i + 1}/16") for i in range(8)))
    theirs = machine(*(nic(f"x{i}", f"10.0.1.{i + 1}/16") for i in range(8)))
    found = rails(ours, theirs)
    assert len(found) == 16
    assert len(rails(ours, theirs, count_max=64)) == 64
    assert len({rail.local.name for rail in found[:8]}) == 8
    assert len({rail.remote.name for rail in found[:8]}) == 8


hosts = st.lists(
    st.tuples(
        st.sampled_from(["10.0.{}.{}/24", "10.1.{}.{}/16", "2001:db8:{}::{}/64", "fe80::{}:{}/64",
                         "127.0.{}.{}/8", "8.8.{}.{}/24"]),
        st.integers(0, 2), st.integers(1, 3), st.sampled_from(NicKind),
    ),
    min_size=1, max_size=4,
)  # fmt: skip


def build(side: str, items: list[tuple[str, int, int, NicKind]]) -> Topology:
    return machine(
        *(
            nic(f"{side}{i}", form.format(net, host), kind=kind)
            for i, (form, net, host, kind) in enumerate(items)
        )
    )


@given(hosts, hosts)
def test_each_pair_comes_once_and_can_work(
    ours: list[tuple[str, int, int, NicKind]], theirs: list[tuple[str, int, int, NicKind]]
) -> None:
    found = rails(build("a", ours), build("x", theirs), count_max=100)
    names = [(rail.local.name, rail.remote.name) for rail in found]
    assert len(set(names)) == len(names)
    keys = [(rail.tier, rail.reach) for rail in found]
    assert keys == sorted(keys)
    for rail in found:
        local, remote = rail.local_end, rail.remote_end
        assert not isinstance(local, Gid | None) and not isinstance(remote, Gid | None)
        assert local.version == remote.version
        assert local != remote
        assert not local.is_loopback and not remote.is_loopback
        assert not local.is_link_local and not remote.is_link_local
