"""A real store for the tests of this folder: processes on loopback, ended by pid."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from mooncake_store.cli.bench.cluster import Cluster

MIB = 1 << 20


@pytest.fixture(scope="session")
def shared_cluster() -> Iterator[Cluster]:
    """A master and two servers for tests that leave others' keys alone."""
    with Cluster(pool_size_bytes=256 * MIB, servers=2) as cluster:
        yield cluster
