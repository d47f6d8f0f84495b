"""What an operator writes is laid over what was found, and mistakes are named."""

from __future__ import annotations

import json
from ipaddress import ip_interface
from pathlib import Path

import pytest

from mooncake_store.errors import ConfigError
from mooncake_store.transfer_engine.topology import (
    Device,
    Nic,
    NicPreference,
    RdmaPort,
    Topology,
    make_matrix,
    parse_override,
    rank,
    read_override,
    unusable_reason,
)
from mooncake_store.transfer_engine.topology.override import NIC_MEMBERS, TOP_MEMBERS

DOCS = Path(__file__).resolve().parents[4] / "docs"


def found() -> Topology:
    nics = (
        Nic("eth0", (ip_interface("10.0.0.7/24"),), 0, "h/p/n", rdma=RdmaPort("mlx5_0")),
        Nic("eth1", (ip_interface("10.0.1.7/24"),), 1),
        Nic("eth2", (ip_interface("10.0.2.7/24"),), 0),
    )
    devices = (Device("cpu:0", 0), Device("cpu:1", 1), Device("cuda:0", 1, "h/p/g"))
    return Topology(nics, make_matrix(nics, devices), devices)


def order(topology: Topology, location: str) -> str:
    return " ".join(f"{item.nic.name}:{item.tier.name[0]}" for item in rank(topology, location))


@pytest.mark.parametrize(
    ("text", "location", "wanted"),
    [
        ("{}", "cpu:0", "eth0:P eth2:P eth1:S"),
        ('{"never": ["eth0"]}', "cpu:0", "eth2:P eth1:S"),
        ('{"never": ["mlx5_*"]}', "cpu:0", "eth2:P eth1:S"),
        ('{"only": ["eth[12]"]}', "cpu:1", "eth1:P eth2:S"),
        ('{"only": ["mlx5_0"]}', "cpu:1", "eth0:P"),
        ('{"only": ["eth*"], "never": ["eth1"]}', "cpu:1", "eth0:P eth2:P"),
        ('{"nics": {"eth1": {"numa_node": 0}}}', "cpu:0", "eth0:P eth1:P eth2:P"),
        ('{"nics": {"eth0": {"numa_node": 0}}}', "cuda:0", "eth1:P eth0:S eth2:S"),
        ('{"nics": {"eth2": {"mbit_per_s": 1000}, "eth0": {"mbit_per_s": 100000}}}', "cpu:0",
         "eth0:P eth1:S eth2:O"),
        ('{"nics": {"eth9": ["10.0.9.7/24"]}}', "cpu:1", "eth1:P eth9:S eth0:S eth2:S"),
        ('{"matrix": {"cpu:0": [["eth1"], ["eth0"]]}}', "cpu:0", "eth1:P eth0:S eth2:O"),
        ('{"matrix": {"cpu:0": [["eth1"], ["mlx5_0"]]}}', "cpu:0", "eth1:P eth0:S eth2:O"),
        ('{"matrix": {"cuda:5": [["eth2"], []]}}', "cuda:5", "eth2:P eth0:O eth1:O"),
        ('{"discover": false, "nics": {"a": ["10.0.0.1"]}}', "cpu:0", "a:P"),
    ],
)  # fmt: skip
def test_rules(text: str, location: str, wanted: str) -> None:
    assert order(parse_override(text).apply(found()), location) == wanted


def test_addresses_replace_those_that_were_found() -> None:
    text = '{"nics": {"eth0": {"addresses": ["10.5.0.7/16"], "link": "rail0", "gid_index": 1}}}'
    nic = parse_override(text).apply(found()).nics[0]
    assert nic.addresses == (ip_interface("10.5.0.7/16"),)
    assert (nic.link, nic.gid_index) == ("rail0", 1)
    assert nic.numa_node == 0


def test_what_was_ruled_out_says_by_whom() -> None:
    topology = parse_override('{"never": ["eth1"]}', origin="nics.json").apply(found())
    assert unusable_reason(topology.nics[1]) == "ruled out by `never` in nics.json"


def test_without_a_row_nothing_changes() -> None:
    assert parse_override("{}").apply(found()) == found()
    assert found().matrix["cpu:0"] == NicPreference(("eth0", "eth2"), ("eth1",))


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("{", "no JSON: .* line 1 column 2"),
        ("[]", "want an object"),
        ('{"onyl": ["eth0"]}', "'onyl' has no meaning here; did you mean 'only'"),
        ('{"only": "eth0"}', "only: want a list"),
        ('{"only": [3]}', r"only\[0\]: want a name"),
        ('{"only": ["ib*"]}', r"no interface is called ib\*; here are eth0, eth1, eth2"),
        ('{"discover": 1}', "discover: want true or false"),
        (
            '{"nics": {"eth0": {"adresses": []}}}',
            "nics.eth0: 'adresses' .* did you mean 'addresses'",
        ),
        (
            '{"nics": {"eth0": {"addresses": ["10.0.0.300"]}}}',
            r"nics.eth0.addresses\[0\]: want a num",
        ),
        ('{"nics": {"eth0": {"numa_node": -1}}}', "nics.eth0.numa_node: want a number from 0"),
        ('{"nics": {"eth0": {"gid_index": 256}}}', "want a number from 0 to 255"),
        ('{"nics": {"eth0": 7}}', "nics.eth0: want an object"),
        ('{"matrix": {"cpu:0": [["eth7"], []]}}', r"matrix.cpu:0\[0\]\[0\]: want an interface"),
        ('{"matrix": {"cpu:0": [["eth0"]]}}', "matrix.cpu:0: want two lists"),
    ],
)
def test_mistakes_are_named_with_their_place(text: str, words: str, tmp_path: Path) -> None:
    file = tmp_path / "nics.json"
    file.write_text(text)
    with pytest.raises(ConfigError, match=words) as raised:
        read_override(file).apply(found())
    assert str(file) in raised.value.message


def test_a_file_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"none\.json: cannot be read: No such file"):
        read_override(tmp_path / "none.json")
    (tmp_path / "binary").write_bytes(b"\xff\xfe")
    with pytest.raises(ConfigError, match="it is no text"):
        read_override(tmp_path / "binary")


def test_the_schema_and_the_reader_know_the_same_members() -> None:
    schema = json.loads((DOCS / "topology.schema.json").read_text())
    assert set(schema["properties"]) == set(TOP_MEMBERS)
    one_nic = schema["properties"]["nics"]["additionalProperties"]["oneOf"][1]
    assert set(one_nic["properties"]) == set(NIC_MEMBERS)
    assert schema["additionalProperties"] is False and one_nic["additionalProperties"] is False


def test_the_page_s_example_is_read() -> None:
    page = (DOCS / "topology.md").read_text()
    blocks = [block for block in page.split("```json\n")[1:]]
    assert blocks
    for block in blocks:
        override = parse_override(block.partition("```")[0])
        assert override.nics or override.only or override.never
