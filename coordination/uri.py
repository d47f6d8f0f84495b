"""From a URI to a coordinator."""

from __future__ import annotations

from pathlib import Path

from mooncake_store.coordination.coordinator import Coordinator
from mooncake_store.coordination.local import LocalCoordinator
from mooncake_store.errors import ConfigError
from mooncake_store.runtime import runtime_dir

__all__ = ["open_coordinator"]


def open_coordinator(uri: str, *, port: int) -> Coordinator:
    """Return the coordinator that a URI names; nothing is locked yet.

    Args:
        uri: `local` (files in the runtime folder, one cluster a port), `local:FOLDER`, or
            `etcd://a,b,c/prefix`, as `EtcdAddress.parse` takes it.
        port: The master's. 0, any port: a cluster of its own that ends with the process.

    Raises:
        ConfigError: No such coordinator.
    """
    scheme, separator, rest = uri.partition(":")
    if scheme == "local":
        if separator and not rest:
            raise ConfigError("local: names a folder: local:/var/lib/mooncake-store")
        if rest:
            return LocalCoordinator(Path(rest))
        return LocalCoordinator(runtime_dir() / f"cluster-{port}" if port else None)
    if uri.startswith("etcd://"):
        from mooncake_store.coordination.etcd import EtcdCoordinator, connect
        from mooncake_store.coordination.etcd_client.address import EtcdAddress

        return EtcdCoordinator(connect, EtcdAddress.parse(uri))
    raise ConfigError(f"{uri!r} is no coordinator: use local, local:FOLDER or etcd://HOST,HOST")
