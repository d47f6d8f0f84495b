"""Topology: what is read from a machine, how interfaces are ranked."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mooncake_store.errors import ConfigError
from mooncake_store.transfer_engine.topology import (
    Device,
    Nic,
    NicPreference,
    Topology,
    discover,
    distance,
    make_matrix,
)


def make_sysfs(root: Path) -> Path:
    """Make the part of sysfs of a machine with two nodes, two NICs, two GPUs and a bridge."""
    pci = {
        "0000:17:00.0": ("pci0000:16/0000:16:01.0", 0, "0x15b3", "0x020000"),
        "0000:18:00.0": ("pci0000:16/0000:16:01.0", 0, "0x10de", "0x030200"),
        "0000:b5:00.0": ("pci0000:b4/0000:b4:01.0", 1, "0x15b3", "0x020700"),
        "0000:b6:00.0": ("pci0000:b4/0000:b4:02.0", 1, "0x10de", "0x030200"),
    }
    (root / "bus/pci/devices").mkdir(parents=True)
    for name, (parent, node, vendor, kind) in pci.items():
        folder = root / "devices" / parent / name
        folder.mkdir(parents=True)
        (folder / "numa_node").write_text(f"{node}\n")
        (folder / "vendor").write_text(vendor + "\n")
        (folder / "class").write_text(kind + "\n")
        (root / "bus/pci/devices" / name).symlink_to(folder)
    for node in (0, 1):
        (root / f"devices/system/node/node{node}").mkdir(parents=True)
    for name, kind, device, state in (
        ("eth0", 1, "0000:17:00.0", "up"),
        ("ib0", 32, "0000:b5:00.0", "up"),
        ("eth9", 1, "0000:17:00.0", "down"),
        ("docker0", 1, None, "up"),
        ("lo", 772, None, "unknown"),
    ):
        folder = root / "class/net" / name
        folder.mkdir(parents=True)
        (folder / "type").write_text(f"{kind}\n")
        (folder / "operstate").write_text(state + "\n")
        if device is not None:
            (folder / "device").symlink_to(root / "bus/pci/devices" / device)
    return root


def test_discover_reads_nodes_interfaces_and_gpus(tmp_path: Path) -> None:
    topology = discover(make_sysfs(tmp_path), {"eth0": ["10.0.0.5"], "ib0": ["10.1.0.5"]})
    assert [(nic.name, nic.addresses, nic.numa_node) for nic in topology.nics] == [
        ("eth0", ("10.0.0.5",), 0),
        ("ib0", ("10.1.0.5",), 1),
    ]
    assert topology.matrix == {
        "cpu:0": NicPreference(("eth0",), ("ib0",)),
        "cpu:1": NicPreference(("ib0",), ("eth0",)),
        "cuda:0": NicPreference(("eth0",), ("ib0",)),
        "cuda:1": NicPreference(("ib0",), ("eth0",)),
    }


def test_discover_works_on_this_machine_and_on_none(tmp_path: Path) -> None:
    here = discover()
    assert "cpu:0" in here.matrix
    assert Topology.from_json(here.to_json()).matrix == here.matrix
    assert discover(tmp_path) == Topology((), {"cpu:0": NicPreference(())})


@pytest.mark.parametrize(
    ("nic", "device", "steps"),
    [
        (Nic("a", path="pci/b/n"), Device("cuda:0", path="pci/b/g"), 2),
        (Nic("a", path="pci/c/n"), Device("cuda:0", path="pci/b/g"), 4),
        (Nic("a", numa_node=0), Device("cpu:0", 0), 0),
        (Nic("a", numa_node=1), Device("cpu:0", 0), 1000),
        (Nic("a"), Device("cpu:0", 0), 0),
    ],
)
def test_distance(nic: Nic, device: Device, steps: int) -> None:
    assert distance(nic, device) == steps


def test_secondary_interfaces_are_ordered_by_distance() -> None:
    nics = [Nic("far", numa_node=1), Nic("near", path="p/a/n"), Nic("other", path="p/b/n")]
    matrix = make_matrix(nics, [Device("cuda:0", 0, "p/a/g")])
    assert matrix["cuda:0"] == NicPreference(("near",), ("other", "far"))


TABLE = Topology(
    (Nic("a"), Nic("b"), Nic("c"), Nic("d")),
    {"cpu:0": NicPreference(("c",), ("b",)), "cpu:1": NicPreference((), ("d", "a"))},
)


@pytest.mark.parametrize(
    ("location", "order"),
    [("cpu:0", "cbad"), ("cpu:1", "adbc"), ("*", "abcd"), ("cuda:7", "abcd")],
)
def test_rank(location: str, order: str) -> None:
    assert "".join(TABLE.rank(location)) == order


names = st.text("abcdefgh0123", min_size=1, max_size=8)


@given(st.lists(names, unique=True, min_size=1, max_size=6), st.data())
def test_json_round_trip_keeps_names_addresses_and_matrix(
    nics: list[str], data: st.DataObject
) -> None:
    tiers = st.lists(st.sampled_from(nics), unique=True).map(tuple)
    matrix = data.draw(st.dictionaries(names, st.builds(NicPreference, tiers, tiers), max_size=4))
    topology = Topology(tuple(Nic(name, ("10.0.0.1", "fd00::1")) for name in nics), matrix)
    read = Topology.from_json(topology.to_json())
    assert read == topology
    for location in matrix:
        assert sorted(read.rank(location)) == sorted(nics)
        assert read.rank(location) == topology.rank(location)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "[]",
        "{",
        '{"nics": []}',
        '{"nics": {"a": [1]}}',
        '{"nics": {"": []}}',
        '{"nics": {"a": []}, "matrix": {"cpu:0": [["a"]]}}',
        '{"nics": {"a": []}, "matrix": {"cpu:0": [["b"], []]}}',
    ],
)
def test_bad_json_names_its_origin(text: str) -> None:
    with pytest.raises(ConfigError, match=r"nics\.json"):
        Topology.from_json(text, origin="nics.json")
