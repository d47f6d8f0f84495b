"""A store for the tests of this folder: a real master and two store servers on loopback."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator

import pytest

from mooncake.store import MooncakeDistributedStore
from mooncake_store.cli.bench.cluster import Cluster

MIB = 1 << 20
_tenants = itertools.count()


@pytest.fixture(scope="session")
def cluster() -> Iterator[Cluster]:
    with Cluster(pool_size_bytes=64 * MIB, servers=2) as running:
        yield running


@pytest.fixture
def open_store(cluster: Cluster) -> Iterator[Callable[..., MooncakeDistributedStore]]:
    """Opens stores, all of one tenant that nobody else has, without memory of their own."""
    tenant = f"tenant-{next(_tenants)}"
    opened: list[MooncakeDistributedStore] = []

    def open_one(segment_bytes: int = 0, tenant_id: str = tenant) -> MooncakeDistributedStore:
        store = MooncakeDistributedStore()
        opened.append(store)
        arguments = ("127.0.0.1", "P2PHANDSHAKE", segment_bytes, 16 * MIB, "tcp", "")
        assert store.setup(*arguments, cluster.address, tenant_id=tenant_id) == 0
        return store

    yield open_one
    for store in opened:
        store.close()


@pytest.fixture
def store(
    open_store: Callable[..., MooncakeDistributedStore],
) -> Iterator[MooncakeDistributedStore]:
    made = open_store()
    yield made
    made.remove_all(True)
