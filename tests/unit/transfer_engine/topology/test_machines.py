"""Which interfaces are taken on machines of all kinds: a table of trees of sysfs."""

from __future__ import annotations

import sys
from ipaddress import ip_interface
from pathlib import Path

import pytest

# The modules of machines fill the list when they are imported.
sys.path.insert(0, str(Path(__file__).resolve().parents[4]))

from mooncake_store.transfer_engine.topology import (
    RankedNic,
    Tier,
    Topology,
    Transport,
    discover,
    from_json,
    rails,
    rank,
    to_json,
)
from tests.sysfs_trees import clouds, gpu_servers, odd_ones  # noqa: F401
from tests.sysfs_trees.machine import MACHINES
from tests.sysfs_trees.tree import Tree, unpack

RECORDED = Path(__file__).resolve().parents[3] / "sysfs_trees/recorded"


def look_at(root: Path, addresses: dict[str, list[str]]) -> Topology:
    return discover(
        root, {name: [ip_interface(text) for text in found] for name, found in addresses.items()}
    )


@pytest.fixture(scope="module")
def topologies(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Topology]:
    found = {}
    for name, machine in MACHINES.items():
        tree = Tree(tmp_path_factory.mktemp(name))
        machine.build(tree)
        found[name] = look_at(tree.root, tree.addresses)
    return found


def shown(ranked: tuple[RankedNic, ...]) -> str:
    return " | ".join(
        " ".join(item.nic.name for item in ranked if item.tier is tier) for tier in Tier
    )


@pytest.mark.parametrize("name", MACHINES)
def test_each_machine_s_ranks_are_as_its_table_says(
    name: str, topologies: dict[str, Topology]
) -> None:
    topology, expected = topologies[name], MACHINES[name].expected
    found = {}
    for wanted in expected:
        location, transport = wanted.split()
        found[wanted] = " ".join(shown(rank(topology, location, Transport(transport))).split())
    assert found == {key: " ".join(text.split()) for key, text in expected.items()}


@pytest.mark.parametrize("name", MACHINES)
def test_each_machine_s_ranks_survive_the_exchange(
    name: str, topologies: dict[str, Topology]
) -> None:
    """A peer, who has the matrix only, orders the usable interfaces as the machine itself does."""
    topology = topologies[name]
    told = from_json(to_json(topology))
    assert told.matrix.keys() == topology.matrix.keys()
    names = {nic.name for nic in told.nics}
    for location in topology.matrix:
        own = [(item.nic.name, item.tier) for item in rank(topology, location)]
        peer = [(item.nic.name, item.tier) for item in rank(told, location)]
        assert peer == [item for item in own if item[0] in names]
    assert all(item.why for location in topology.matrix for item in rank(topology, location))


def test_any_two_machines_are_paired_by_what_both_have(topologies: dict[str, Topology]) -> None:
    told = {name: from_json(to_json(topology)) for name, topology in topologies.items()}
    count = 0
    for ours, local in topologies.items():
        for theirs, remote in told.items():
            if ours == theirs:
                continue
            for rail in rails(local, remote, "cpu:0", "cpu:0"):
                assert rail.local_end in [address.ip for address in rail.local.addresses]
                assert rail.remote_end in [address.ip for address in rail.remote.addresses]
                assert rail.local_end.version == rail.remote_end.version != 0
                assert not rail.local.master and not rail.local.name.startswith("docker")
                count += 1
            for rail in rails(local, remote, "cpu:0", "cpu:0", transport=Transport.RDMA):
                assert rail.local.rdma and rail.remote.rdma
                assert rail.local.rdma.layer is rail.remote.rdma.layer
                assert type(rail.local_end) is type(rail.remote_end)
                count += 1
    assert count > 5000


def test_the_table_is_as_long_as_promised_and_names_its_sources() -> None:
    assert len(MACHINES) >= 40
    assert all(len(machine.source) > 20 and machine.expected for machine in MACHINES.values())


@pytest.mark.parametrize(
    ("recording", "ranks"),
    [("virtual_machine", "eth0 | | lo"), ("namespace", "br0 m0 v0 | | lo")],
)
def test_recorded_trees(recording: str, ranks: str, tmp_path: Path) -> None:
    topology = look_at(tmp_path, unpack(RECORDED / f"{recording}.json", tmp_path))
    assert " ".join(shown(rank(topology, "cpu:0", Transport.TCP)).split()) == ranks


def test_this_machine_is_read_and_an_empty_one_too(tmp_path: Path) -> None:
    here = discover()
    assert "cpu:0" in here.matrix
    assert from_json(to_json(here)).matrix == here.matrix
    nothing = discover(tmp_path, {})
    assert nothing.nics == ()
    assert [device.location for device in nothing.devices] == ["cpu:0"]
    assert rank(nothing, "cpu:0") == ()
