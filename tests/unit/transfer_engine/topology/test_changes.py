"""What has changed between two looks, and when to look: tables; nothing waits."""

from __future__ import annotations

from dataclasses import replace
from ipaddress import IPv6Address, ip_interface

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mooncake_store.transfer_engine.topology import (
    Debounce,
    Device,
    Gid,
    GidType,
    Nic,
    RdmaPort,
    Topology,
    changes,
)

GID = Gid(0, IPv6Address("::ffff:10.0.0.7"), GidType.ROCE_V2)
ETH = Nic("eth0", (ip_interface("10.0.0.7/24"),), mtu=1500, rdma=RdmaPort("mlx5_0", gids=(GID,)))
assert ETH.rdma is not None


@pytest.mark.parametrize(
    ("new", "wanted"),
    [
        ((ETH,), []),
        ((), ["removed eth0"]),
        ((ETH, Nic("eth1")), ["added eth1"]),
        ((Nic("eth1"),), ["removed eth0", "added eth1"]),
        ((replace(ETH, is_up=False, rdma=None),), ["down eth0", "gids eth0"]),
        ((replace(ETH, addresses=(ip_interface("10.0.0.8/24"),)),), ["addresses eth0"]),
        ((replace(ETH, addresses=(ip_interface("10.0.0.7/16"),)),), ["addresses eth0"]),
        ((replace(ETH, mtu=9000),), ["place eth0"]),
        ((replace(ETH, master="bond0"),), ["down eth0", "place eth0"]),
        ((replace(ETH, rdma=replace(ETH.rdma, gids=())),), ["gids eth0"]),
        # The link is down for TCP, and RDMA goes on: usable, so no end of it.
        ((replace(ETH, is_up=False),), []),
    ],
)
def test_changes(new: tuple[Nic, ...], wanted: list[str]) -> None:
    found = changes(Topology((ETH,)), Topology(new))
    assert [f"{item.kind.value} {item.name}" for item in found] == wanted
    assert all(item.why for item in found)


def test_an_interface_that_comes_back_is_up() -> None:
    down = replace(ETH, is_up=False, rdma=None)
    up = replace(ETH, rdma=None)
    assert [item.kind.value for item in changes(Topology((down,)), Topology((up,)))] == ["up"]


def test_the_order_of_addresses_is_no_change() -> None:
    two = tuple(map(ip_interface, ("10.0.0.7/24", "10.1.0.7/24")))
    one, other = replace(ETH, addresses=two), replace(ETH, addresses=two[::-1])
    assert changes(Topology((one,)), Topology((other,))) == ()


def test_a_gpu_that_has_gone_is_a_change() -> None:
    before = Topology(devices=(Device("cpu:0", 0), Device("cuda:0", 0)))
    after = Topology(devices=(Device("cpu:0", 0),))
    (change,) = changes(before, after)
    assert (change.kind.value, change.why) == ("locations", "now cpu:0")


def test_a_burst_is_looked_at_once_it_has_settled() -> None:
    debounce = Debounce(30.0, quiet_s=0.1, delay_s_max=1.0, rescan_s=30.0)
    assert debounce.due_at_s() == 30.0
    for tenth in range(5):
        debounce.note(10.0 + tenth * 0.05)
    assert debounce.due_at_s() == pytest.approx(10.3)
    debounce.looked(10.3)
    assert debounce.due_at_s() == pytest.approx(40.3)


def test_a_burst_without_end_is_looked_at_all_the_same() -> None:
    debounce = Debounce(30.0, quiet_s=0.1, delay_s_max=1.0)
    for step in range(200):
        debounce.note(10.0 + step * 0.05)
    assert debounce.due_at_s() == pytest.approx(11.0)


@given(st.lists(st.floats(0, 100), max_size=30).map(sorted))
def test_no_message_waits_longer_than_promised(times: list[float]) -> None:
    debounce = Debounce(1e9, quiet_s=0.1, delay_s_max=1.0)
    for now in times:
        if now >= debounce.due_at_s():
            debounce.looked(now)
        debounce.note(now)
        assert now <= debounce.due_at_s() <= now + 1.0
