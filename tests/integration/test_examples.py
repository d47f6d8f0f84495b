"""The examples in the SDK's docstrings do what they say."""

from __future__ import annotations

import doctest

import pytest

from mooncake_store import Client
from mooncake_store.cli.bench.cluster import Cluster
from mooncake_store.client import async_client, client
from mooncake_store.protocol import prefix

MODULES = {"client": client, "async_client": async_client, "prefix": prefix}


@pytest.fixture(scope="module")
def examples_cluster() -> Cluster:
    with Cluster(pool_size_bytes=64 << 20, servers=1) as cluster:
        yield cluster


@pytest.mark.parametrize("name", MODULES)
def test_examples_run(
    name: str, examples_cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("numpy")
    monkeypatch.setenv("MOONCAKE_STORE_MASTER", examples_cluster.address)
    module = MODULES[name]
    tests = [test for test in doctest.DocTestFinder().find(module) if test.examples]
    assert tests
    for test in tests:
        with Client(strict=True) as store:
            store.remove_matching(force=True)
            test.globs.update(vars(module), store=store)
            runner = doctest.DocTestRunner(optionflags=doctest.ELLIPSIS)
            said: list[str] = []
            runner.run(test, out=said.append)
            assert runner.summarize(verbose=False).failed == 0, "".join(said)
