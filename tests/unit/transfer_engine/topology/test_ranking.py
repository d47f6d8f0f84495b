"""Near and far, grades and rows written by hand: what the table of machines does not reach."""

from __future__ import annotations

from ipaddress import ip_interface

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mooncake_store.transfer_engine.topology import (
    Device,
    Grade,
    Meeting,
    Nic,
    NicKind,
    NicPreference,
    Proximity,
    RdmaPort,
    Tier,
    Topology,
    Transport,
    grades,
    make_matrix,
    proximity,
    rank,
    unusable_reason,
)

HERE = (ip_interface("10.0.0.7/24"),)


@pytest.mark.parametrize(
    ("nic", "device", "wanted"),
    [
        (Nic("a", path="h/p/s/n"), Device("c", path="h/p/s/g"), Proximity(Meeting.SWITCH, 0, -3)),
        (Nic("a", path="h/p/n"), Device("cuda:0", path="h/p/g"), Proximity(Meeting.SWITCH, 0, -2)),
        (Nic("a", path="h/q/n"), Device("cuda:0", path="h/p/g"), Proximity(Meeting.HOST_BRIDGE)),
        (Nic("a", path="i/q/n"), Device("cuda:0", path="h/p/g"), Proximity(Meeting.UNKNOWN)),
        (Nic("a", numa_node=0), Device("cpu:0", 0), Proximity(Meeting.NODE)),
        (Nic("a"), Device("cpu:0", 0), Proximity(Meeting.UNKNOWN)),
        (
            Nic("a", numa_node=1),
            Device("cpu:0", 0, node_distances={0: 10, 1: 21}),
            Proximity(Meeting.OTHER_NODE, 21),
        ),
        (Nic("a", numa_node=1), Device("cpu:0", 0), Proximity(Meeting.OTHER_NODE, 255)),
        # A shared switch says more than nodes of different names.
        (
            Nic("a", numa_node=1, path="h/p/n"),
            Device("cuda:0", 0, "h/p/g"),
            Proximity(Meeting.SWITCH, 0, -2),
        ),
        # A shared host bridge does not: some firmware puts all sockets below one.
        (
            Nic("a", numa_node=1, path="h/q/n"),
            Device("cuda:0", 0, "h/p/g"),
            Proximity(Meeting.OTHER_NODE, 255),
        ),
    ],
)  # fmt: skip
def test_proximity(nic: Nic, device: Device, wanted: Proximity) -> None:
    assert proximity(nic, device) == wanted


def test_nearer_is_smaller() -> None:
    near_to_far = [
        Proximity(Meeting.SWITCH, 0, -4),
        Proximity(Meeting.SWITCH, 0, -2),
        Proximity(Meeting.HOST_BRIDGE),
        Proximity(Meeting.NODE),
        Proximity(Meeting.UNKNOWN),
        Proximity(Meeting.OTHER_NODE, 12),
        Proximity(Meeting.OTHER_NODE, 32),
    ]
    assert sorted(reversed(near_to_far)) == near_to_far


@pytest.mark.parametrize(
    ("nic", "grade"),
    [
        (Nic("a", HERE, link_mbit_per_s=100_000), Grade.WIRED),
        (Nic("a", HERE, link_mbit_per_s=25_000), Grade.WIRED),
        (Nic("a", HERE, link_mbit_per_s=24_999), Grade.LESSER),
        (Nic("a", HERE), Grade.WIRED),  # unknown is no reason
        (Nic("a", HERE, kind=NicKind.BOND, link_mbit_per_s=1_000), Grade.LESSER),
        (Nic("a", HERE, kind=NicKind.WIRELESS), Grade.LESSER),
        (Nic("a", HERE, kind=NicKind.USB), Grade.LESSER),
        (Nic("a", HERE, physical_function="fast"), Grade.LESSER),
        (Nic("a", HERE, physical_function="elsewhere"), Grade.WIRED),
        (Nic("a", HERE, kind=NicKind.VLAN, lowers=("fast",)), Grade.LESSER),
        (Nic("a", HERE, kind=NicKind.VLAN, lowers=("elsewhere",)), Grade.WIRED),
        (Nic("a", (ip_interface("169.254.1.1/16"),), link="x"), Grade.LESSER),
        (Nic("a", HERE, kind=NicKind.VIRTUAL), Grade.VIRTUAL),
        (Nic("a", HERE, kind=NicKind.LOOPBACK), Grade.LOOPBACK),
    ],
)
def test_grades_beside_a_fast_interface(nic: Nic, grade: Grade) -> None:
    fast = Nic("fast", HERE, link_mbit_per_s=100_000)
    found, why = grades([fast, nic])["a"]
    assert found is grade
    assert bool(why) == (grade is not Grade.WIRED)


@pytest.mark.parametrize(
    ("nic", "tcp", "rdma"),
    [
        (Nic("a", HERE), "", "no RDMA device"),
        (Nic("a", HERE, is_up=False), "link is down", "no RDMA device"),
        (Nic("a"), "no IP address", "no RDMA device"),
        (Nic("a", HERE, master="bond0"), "part of bond0", "part of bond0"),
        (Nic("a", HERE, refused="ruled out"), "ruled out", "ruled out"),
        (Nic("a", (ip_interface("fe80::1/64"),)), "only a link-local", "no RDMA device"),
        (Nic("a", (ip_interface("fe80::1/64"),), link="x"), "", "no RDMA device"),
        (Nic("a", HERE, rdma=RdmaPort("m", is_active=False, state="DOWN")), "", "port is DOWN"),
        (Nic("a", HERE, rdma=RdmaPort("m", is_active=False, state="INIT")), "", "subnet manager"),
        (Nic("a", HERE, rdma=RdmaPort("m")), "", "no GID"),
    ],
)
def test_what_cannot_be_used_says_why(nic: Nic, tcp: str, rdma: str) -> None:
    for transport, wanted in ((Transport.TCP, tcp), (Transport.RDMA, rdma)):
        reason = unusable_reason(nic, transport)
        assert bool(reason) == bool(wanted) and wanted in reason
    assert bool(unusable_reason(nic)) == bool(tcp and rdma)


def test_secondary_interfaces_are_ordered_by_proximity_then_speed() -> None:
    nics = [
        Nic("far", HERE, numa_node=1),
        Nic("near", HERE, path="p/a/n"),
        Nic("slower", HERE, numa_node=0, link_mbit_per_s=50_000),
        Nic("faster", HERE, numa_node=0, link_mbit_per_s=100_000),
    ]
    matrix = make_matrix(nics, [Device("cuda:0", 0, "p/a/g")])
    assert matrix["cuda:0"] == NicPreference(("near",), ("faster", "slower", "far"))


ROWS = Topology(
    tuple(Nic(name, HERE) for name in "abcd"),
    {"cpu:0": NicPreference(("c",), ("b",)), "cpu:1": NicPreference((), ("d", "a"))},
)


@pytest.mark.parametrize(
    ("location", "order"),
    [("cpu:0", "cbad"), ("cpu:1", "dabc"), ("*", "abcd"), ("cuda:7", "abcd")],
)
def test_a_peer_s_rows_are_obeyed(location: str, order: str) -> None:
    assert "".join(item.nic.name for item in rank(ROWS, location)) == order


nics = st.builds(
    Nic,
    name=st.sampled_from([f"eth{i}" for i in range(12)]),
    addresses=st.sampled_from([(), HERE]),
    numa_node=st.sampled_from([None, 0, 1]),
    path=st.sampled_from(["", "h/p/s/n", "h/p/n", "h/q/n", "i/r/n"]),
    kind=st.sampled_from(NicKind),
    is_up=st.booleans(),
    master=st.sampled_from(["", "", "bond0"]),
    link_mbit_per_s=st.sampled_from([None, 1_000, 100_000]),
)


@given(
    st.lists(nics, max_size=8, unique_by=lambda nic: nic.name),
    st.sampled_from([None, *Transport]),
)
def test_ranks_hold_each_usable_interface_once_and_tiers_in_order(
    found: list[Nic], transport: Transport | None
) -> None:
    devices = (Device("cpu:0", 0, node_distances={0: 10, 1: 21}), Device("cuda:0", 1, "h/p/s/g"))
    topology = Topology(tuple(found), make_matrix(found, devices), devices)
    for location in ("cpu:0", "cuda:0", "*", "cpu:9"):
        ranked = rank(topology, location, transport)
        names = {nic.name for nic in found if not unusable_reason(nic, transport)}
        assert sorted(item.nic.name for item in ranked) == sorted(names)
        tiers = [item.tier for item in ranked]
        assert tiers == sorted(tiers)
        assert not ranked or ranked[0].tier is Tier.PREFERRED
        assert all(item.why for item in ranked)
