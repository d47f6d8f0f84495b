"""Rails to a peer, as the engine takes them."""

from __future__ import annotations

from ipaddress import ip_interface

import pytest

from mooncake_store.transfer_engine.pairing import rails_to
from mooncake_store.transfer_engine.topology import Nic, NicPreference, Topology


def machine(*addresses: str, are_equal: bool = False) -> Topology:
    """Return a machine with an interface for each address, the last one not preferred."""
    nics = tuple(Nic(f"eth{i}", (ip_interface(address),)) for i, address in enumerate(addresses))
    names = tuple(nic.name for nic in nics)
    preferred = names if are_equal else names[:-1] or names
    return Topology(nics, {"*": NicPreference(preferred, names[-1:])})


HERE = machine("10.0.0.1/24", "10.0.1.1/24", "10.0.2.1/24")
THERE = machine("10.0.0.2/24", "10.0.1.2/24", "10.0.2.2/24")


def test_each_network_is_a_rail_with_the_port_of_the_address() -> None:
    found = rails_to(HERE, THERE, "10.0.0.2:7800")
    assert found is not None
    rails = found.split(",")
    assert rails == [
        "10.0.0.1>10.0.0.2:7800/0",
        "10.0.1.1>10.0.1.2:7800/0",
        "10.0.2.1>10.0.2.2:7800/1",
    ]


def test_in_one_network_each_interface_has_one_rail() -> None:
    here = machine("10.0.0.1/24", "10.0.0.2/24", "10.0.0.3/24", are_equal=True)
    there = machine("10.0.0.11/24", "10.0.0.12/24", "10.0.0.13/24", are_equal=True)
    found = rails_to(here, there, "10.0.0.12:7800")
    assert found is not None
    locals_, remotes = zip(
        *(rail.partition("/")[0].split(">") for rail in found.split(",")), strict=True
    )
    assert sorted(locals_) == ["10.0.0.1", "10.0.0.2", "10.0.0.3"]
    assert len(set(remotes)) == 3


def test_one_interface_here_reaches_all_of_the_peer() -> None:
    found = rails_to(
        machine("10.0.0.1/16"), machine("10.0.0.11/16", "10.0.1.12/16"), "10.0.0.11:7800"
    )
    assert found == "10.0.0.1>10.0.0.11:7800/0,10.0.0.1>10.0.1.12:7800/1"


def test_addresses_of_ipv6_are_in_brackets() -> None:
    found = rails_to(machine("fd00:1::1/64"), machine("fd00:1::2/64"), "[fd00:1::2]:7800")
    assert found == "fd00:1::1>[fd00:1::2]:7800/0"


@pytest.mark.parametrize(
    "address",
    [
        "10.0.0.2:7800,10.0.1.2:7800",  # paths that somebody has chosen
        "10.0.0.1>10.0.0.2:7800",
        "unix:/run/engine.sock",
        "192.0.2.7:7800",  # not one of its interfaces: translated on the way
        "127.0.0.1:7800",
        "nowhere",
    ],
)
def test_an_address_that_says_more_than_the_topologies_is_used_as_it_is(address: str) -> None:
    assert rails_to(HERE, THERE, address) is None


def test_a_peer_that_tells_nothing_is_used_as_it_is() -> None:
    assert rails_to(HERE, Topology(), "10.0.0.2:7800") is None
