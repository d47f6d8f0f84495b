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
    rank,
    to_json,
)
from tests.sysfs_trees import clouds, gpu_servers, odd_ones  # noqa: F401
from tests.sysfs_trees.machine import MACHINES, Machine
from tests.sysfs_trees.tree import Tree, unpack

RECORDED = Path(__file__).resolve().parents[3] / "sysfs_trees/recorded"


def look_at(root: Path, addresses: dict[str, list[str]]) -> Topology:
    return discover(
        root, {name: [ip_interface(text) for text in found] for name, found in addresses.items()}
    )


@pytest.fixture(params=MACHINES, scope="module")
def machine(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> tuple[Machine, Topology]:
    made = MACHINES[request.param]
    tree = Tree(tmp_path_factory.mktemp(made.name))
    made.build(tree)
    return made, look_at(tree.root, tree.addresses)


def shown(ranked: tuple[RankedNic, ...]) -> str:
    return " | ".join(
        " ".join(item.nic.name for item in ranked if item.tier is tier) for tier in Tier
    )


def test_each_machine_s_ranks_are_as_its_table_says(machine: tuple[Machine, Topology]) -> None:
    made, topology = machine
    found = {}
    for wanted in made.expected:
        location, transport = wanted.split()
        found[wanted] = " ".join(shown(rank(topology, location, Transport(transport))).split())
    assert found == {key: " ".join(text.split()) for key, text in made.expected.items()}


def test_each_machine_s_ranks_survive_the_exchange(machine: tuple[Machine, Topology]) -> None:
    """A peer, who has the matrix only, orders the usable interfaces as the machine itself does."""
    _, topology = machine
    told = from_json(to_json(topology))
    assert told.matrix.keys() == topology.matrix.keys()
    names = {nic.name for nic in told.nics}
    for location in topology.matrix:
        own = [(item.nic.name, item.tier) for item in rank(topology, location)]
        peer = [(item.nic.name, item.tier) for item in rank(told, location)]
        assert peer == [item for item in own if item[0] in names]
    assert all(item.why for location in topology.matrix for item in rank(topology, location))


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
