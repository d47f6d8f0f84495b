"""LMCache in its own environment."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from mooncake_store.cli.bench.cluster import Cluster
from tests.engines.environments import python_of

MIB = 1 << 20


@pytest.fixture(scope="session")
def lmcache_python() -> Path:
    """The interpreter of LMCache's environment."""
    return python_of("lmcache")


@pytest.fixture
def cluster() -> Iterator[Cluster]:
    """A master and a store server of this test."""
    with Cluster(pool_size_bytes=64 * MIB, servers=1) as cluster:
        yield cluster
