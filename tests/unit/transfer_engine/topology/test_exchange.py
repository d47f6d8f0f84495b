"""The JSON that engines exchange: round trips, bounds, what others may have written."""

from __future__ import annotations

import json
from contextlib import suppress
from dataclasses import replace
from ipaddress import IPv6Address, ip_interface

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mooncake_store.errors import ConfigError
from mooncake_store.transfer_engine.topology import (
    Gid,
    GidType,
    Nic,
    NicKind,
    NicPreference,
    RdmaLayer,
    RdmaPort,
    Topology,
    from_json,
    rails,
    to_json,
)


def nic(name: str, *addresses: str, **more: object) -> Nic:
    return Nic(name, tuple(map(ip_interface, addresses)), **more)  # type: ignore[arg-type]


PORT = RdmaPort(
    "mlx5_0", 1, RdmaLayer.ROCE, True, 0,
    (Gid(3, IPv6Address("::ffff:10.0.0.7"), GidType.ROCE_V2),), link_mbit_per_s=200_000,
)  # fmt: skip
FULL = Topology(
    (
        nic("eth0", "10.0.0.7/24", "fe80::7/64", numa_node=1, mtu=9000, link_mbit_per_s=200_000,
            link="rail0", gid_index=3, rdma=PORT),
        nic("ib0", kind=NicKind.INFINIBAND,
            rdma=RdmaPort("mlx5_1", layer=RdmaLayer.INFINIBAND, lid=7,
                          gids=(Gid(0, IPv6Address("fe80::7"), GidType.INFINIBAND),))),
    ),
    {"cpu:0": NicPreference(("eth0",), ("ib0",)), "*": NicPreference(("eth0", "ib0"))},
)  # fmt: skip


def test_everything_that_pairs_are_made_from_is_told() -> None:
    assert from_json(to_json(FULL)) == FULL


def test_c_and_older_peers_find_what_they_have_always_found() -> None:
    document = json.loads(to_json(FULL))
    assert document["nics"] == {"eth0": ["10.0.0.7"], "ib0": []}  # a zone would be needed for fe80
    assert document["matrix"] == {"cpu:0": [["eth0"], ["ib0"]], "*": [["eth0", "ib0"], []]}


def test_an_older_peer_s_text_is_understood() -> None:
    told = from_json('{"nics": {"eth0": ["10.0.0.5"]}, "matrix": {"cpu:0": [["eth0"], []]}}')
    assert told.nics == (nic("eth0", "10.0.0.5"),)
    (rail,) = rails(FULL, told, "cpu:0", "cpu:0")
    assert str(rail.remote_end) == "10.0.0.5"


def test_what_a_later_version_adds_is_skipped() -> None:
    document = json.loads(to_json(FULL))
    document["later"] = {"deep": [1, {"er": None}]}
    document["links"]["eth0"]["colour"] = "blue"
    document["links"]["eth0"]["rdma"]["gids"].append([9, "fe80::9", "RoCE v3"])
    document["links"]["ib0"]["rdma"]["layer"] = "ultra"
    told = from_json(json.dumps(document))
    assert told.nics[0] == FULL.nics[0]
    assert told.nics[1].rdma is None


def test_what_cannot_be_used_is_not_told() -> None:
    topology = Topology(
        (
            nic("eth0", "10.0.0.7/24"),
            nic("eth1", "10.0.1.7/24", is_up=False),
            nic("eth2", "10.0.2.7/24", master="bond0"),
            nic("lo", "127.0.0.1/8", kind=NicKind.LOOPBACK),
        ),
        {"cpu:0": NicPreference(("eth0", "eth1"), ("lo",))},
    )
    told = from_json(to_json(topology))
    assert [item.name for item in told.nics] == ["eth0"]
    assert told.matrix == {"cpu:0": NicPreference(("eth0",))}
    alone = Topology((topology.nics[3],))
    assert [item.name for item in from_json(to_json(alone)).nics] == ["lo"]


def test_a_machine_with_more_than_c_can_hold_tells_its_best() -> None:
    many = [nic(f"veth{i}", f"10.1.{i}.1/24", kind=NicKind.VIRTUAL) for i in range(100)]
    addresses = [f"10.0.0.{i + 1}/24" for i in range(30)]
    topology = Topology((*many, nic("eth0", *addresses)))
    document = json.loads(to_json(topology))
    assert len(document["nics"]) == 64
    assert len(document["nics"]["eth0"]) == 8
    from_json(to_json(topology))


names = st.text("abcdefgh0123", min_size=1, max_size=8)


@given(st.lists(names, unique=True, min_size=1, max_size=6), st.data())
def test_round_trip(found: list[str], data: st.DataObject) -> None:
    tiers = st.lists(st.sampled_from(found), unique=True).map(tuple)
    matrix = data.draw(st.dictionaries(names, st.builds(NicPreference, tiers, tiers), max_size=4))
    topology = Topology(tuple(nic(name, "10.0.0.1/8", "fd00::1/64") for name in found), matrix)
    assert from_json(to_json(topology)) == topology


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "no JSON"),
        ("{", "no JSON"),
        ("[" * 100_000, "no JSON"),
        ("1" * 5000, "no JSON"),
        ("[]", "want an object"),
        ('{"nics": []}', "nics: want an object"),
        ('{"nics": {"a": [1]}}', r"nics.a\[0\]: want a numeric IP address"),
        ('{"nics": {"a": ["10.0.0"]}}', r"nics.a\[0\]: want a numeric IP address"),
        ('{"nics": {"a": ["fe80::1%eth0"]}}', r"nics.a\[0\]: want a numeric IP address"),
        ('{"nics": {"": []}}', "want a name"),
        ('{"nics": {"a\\\\b": []}}', "want a name"),
        ('{"nics": {"\\ud800": []}}', "want a name"),
        ('{"nics": {"%s": []}}' % ("a" * 64), "want a name"),
        ('{"nics": {"a": []}, "matrix": {"cpu:0": [["a"]]}}', "matrix.cpu:0: want two lists"),
        ('{"nics": {"a": []}, "matrix": {"cpu:0": ["a", []]}}', "want a list of interfaces"),
        (
            '{"nics": {"a": []}, "matrix": {"cpu:0": [["b"], []]}}',
            r"matrix.cpu:0\[0\]\[0\]: want an interface that is in nics \(a\), found \"b\"",
        ),
        ('{"nics": {"a": []}, "links": {"a": {"mtu": "big"}}}', "links.a.mtu: want a whole number"),
        ('{"nics": {"a": []}, "links": {"a": {"mtu": -1}}}', "links.a.mtu: want a number from 0"),
        ('{"nics": {"a": []}, "links": {"a": {"mtu": true}}}', "links.a.mtu: want a whole number"),
        ('{"nics": {"a": []}, "links": {"a": {"rdma": {"layer": "roce", "gids": [[1]]}}}}', "IND"),
        (
            '{"nics": {"a": []}, "links": {"a": {"rdma": {"layer": "roce", '
            '"gids": [[0, "x", "RoCE v2"]]}}}}',
            "want a GID",
        ),
    ],
)  # fmt: skip
def test_what_is_wrong_is_named_with_its_place(text: str, words: str) -> None:
    with pytest.raises(ConfigError, match=words) as raised:
        from_json(text, origin="nics.json")
    assert raised.value.message.startswith("nics.json: ")
    assert len(raised.value.message) < 400


@given(st.recursive(st.none() | st.booleans() | st.integers() | st.text(max_size=5),
                    lambda inner: st.lists(inner, max_size=3)
                    | st.dictionaries(st.sampled_from(["nics", "matrix", "links", "a", "rdma"]),
                                      inner, max_size=3)))  # fmt: skip
def test_anything_is_read_or_refused(document: object) -> None:
    with suppress(ConfigError):
        from_json(json.dumps(document))


def test_a_peer_s_gids_are_bounded() -> None:
    gids = tuple(Gid(i, IPv6Address(0xFD << 120 | i + 1), GidType.ROCE_V2) for i in range(200))
    port = replace(PORT, gids=gids)
    told = from_json(to_json(Topology((nic("eth0", "10.0.0.7/24", rdma=port),))))
    assert told.nics[0].rdma is not None
    assert len(told.nics[0].rdma.gids) == 16
