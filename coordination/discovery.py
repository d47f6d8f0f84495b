"""Who leads and who stands by, for clients: plain calls that block, without gRPC and asyncio."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from mooncake_store.coordination.coordinator import Leader, Standby
from mooncake_store.coordination.local import LocalCoordinator
from mooncake_store.errors import ConfigError

__all__ = ["SCHEMES", "find_standbys", "open_discovery"]

SCHEMES = ("etcd://", "local:")
"""Beginnings of addresses that name a cluster and not a master."""


def open_discovery(uri: str) -> Callable[[float], Leader | None]:
    """Return what tells who leads, given how many seconds it may take; None: nobody does.

    It raises UnavailableError when the coordinator does not answer in time.

    Args:
        uri: `etcd://a,b,c/prefix` or `local:FOLDER`.

    Raises:
        ConfigError: It names no coordinator.
    """
    if uri.startswith("etcd://"):
        from mooncake_store.coordination.etcd import leader_key, leader_of
        from mooncake_store.coordination.etcd_client.address import EtcdAddress
        from mooncake_store.coordination.etcd_client.gateway import Gateway

        address = EtcdAddress.parse(uri)
        gateway = Gateway(address)
        key = leader_key(address.prefix)

        def ask(timeout_s: float) -> Leader | None:
            value = gateway.read(key, timeout_s)
            return None if value is None else leader_of(value)

        return ask
    folder = uri.removeprefix("local:")
    if not uri.startswith("local:") or not folder.startswith("/"):
        raise ConfigError(f"{uri!r}: write etcd://HOST,HOST or local:/FOLDER")
    local = LocalCoordinator(Path(folder))
    return lambda _: local.find_leader()


def find_standbys(uri: str, timeout_s: float) -> tuple[Standby, ...]:
    """Return the masters that wait to lead; a `local:` cluster has none.

    Raises:
        UnavailableError: The coordinator does not answer in time.
        ConfigError: It names no coordinator.
    """
    if not uri.startswith("etcd://"):
        return ()
    from mooncake_store.coordination.etcd_client.address import EtcdAddress
    from mooncake_store.coordination.etcd_client.gateway import Gateway
    from mooncake_store.coordination.standby import standby_of, standby_prefix

    address = EtcdAddress.parse(uri)
    values = Gateway(address).read_all(standby_prefix(address.prefix), timeout_s)
    told = map(standby_of, values)
    return tuple(each for each in told if each is not None)
