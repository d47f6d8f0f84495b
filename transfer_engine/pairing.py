"""Which rails lead from this machine to a peer, as text for the engine: a pure function."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from ipaddress import IPv4Address, IPv6Address, ip_address

from mooncake_store.transfer_engine.topology import Rail, Topology, Transport, rails

__all__ = ["rails_to"]


def rails_to(here: Topology, there: Topology, address: str) -> str | None:
    """Return the rails to a peer that was opened by one address, the best first.

    Args:
        here: This machine's interfaces.
        there: The peer's, as it tells.
        address: Where it was opened: `"10.0.0.5:7800"`.

    Returns:
        `"LOCAL>REMOTE:PORT/TIER,..."`, all with the port of `address`: the peer listens there on
        each of its addresses, or on some; those that refuse are not used. None where the address
        is to be used as it is: it names several paths, or a way that the topologies do not know
        (a translated address, a loopback).
    """
    if "," in address or ">" in address or address.startswith("unix:"):
        return None
    host, _, port = address.rpartition(":")
    try:
        known = ip_address(host.strip("[]"))
    except ValueError:
        return None
    found = [
        (rail.local_end, rail.remote_end, rail.tier)
        for rail in _covering(rails(here, there, transport=Transport.TCP))
        if isinstance(rail.local_end, IPv4Address | IPv6Address)
        and isinstance(rail.remote_end, IPv4Address | IPv6Address)
        and not rail.remote_end.is_link_local
    ]
    if known not in (remote for _, remote, _ in found):
        return None
    return ",".join(
        f"{local}>{f'[{remote}]' if remote.version == 6 else remote}:{port}/{int(tier)}"
        for local, remote, tier in found
    )


def _covering(pairs: Iterable[Rail]) -> Iterator[Rail]:
    """Leave out pairs of which both interfaces have a better one: a second queue helps nobody."""
    here: set[str] = set()
    there: set[str] = set()
    for rail in pairs:
        if rail.local.name in here and rail.remote.name in there:
            continue
        here.add(rail.local.name)
        there.add(rail.remote.name)
        yield rail
