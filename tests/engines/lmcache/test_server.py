"""LMCache's server with the store as its second level: produce, restart, consume."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import AbstractContextManager
from pathlib import Path

import pytest

from mooncake_store import Client
from mooncake_store.cli.bench.cluster import Cluster
from tests.engines.line_process import TEST_S, LineProcess, opened

SCRIPT = Path(__file__).with_name("server_engine.py")
UNLOCK_S = 30  # pins of a look-up end by themselves after 600 s

pytestmark = pytest.mark.timeout(TEST_S)


Servers = tuple[LineProcess, LineProcess]


@pytest.fixture(scope="module")
def servers(lmcache_python: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Servers]:
    """Two processes with LMCache."""
    log = tmp_path_factory.mktemp("lmcache-server") / "lmcache.log"
    with (
        LineProcess([lmcache_python, SCRIPT], log) as first,
        LineProcess([lmcache_python, SCRIPT], log) as second,
    ):
        yield first, second


def server(process: LineProcess, address: str) -> AbstractContextManager[LineProcess]:
    adapter = {
        "type": "plugin",
        "module_path": "mooncake_store.integrations.lmcache.server",
        "class_name": "MooncakeStoreL2",
        "adapter_params": {"master": address, "pin_timeout_s": 600},
    }
    return opened(process, adapter=adapter)


def test_chunks_outlive_the_server(servers: Servers, cluster: Cluster) -> None:
    with server(servers[0], cluster.address) as first:
        assert first.ask({"do": "load", "chunks": 3})["loaded"] == 0
        assert first.ask({"do": "store", "chunks": 3, "seed": 1}) == {"stored": 3}
        stored = first.ask({"do": "load", "chunks": 3})
        assert stored["l2"] == 0  # from its own memory

    with (
        server(servers[1], cluster.address) as second,
        Client(cluster.address, strict=True) as store,
    ):
        keys = [listed.key for listed in store.list()]
        assert len(keys) == 3
        # What another layout or another user's salt names is not there.
        assert second.ask({"do": "load", "chunks": 3, "dtype": "int32"})["loaded"] == 0
        assert second.ask({"do": "load", "chunks": 3, "salt": "user"})["loaded"] == 0
        assert second.ask({"do": "load", "chunks": 4}) == {**stored, "l2": 3}
        # Looked up, locked and unlocked; LMCache tells the load's end before it unlocks.
        deadline = time.monotonic() + UNLOCK_S
        while any(listed.is_pinned for listed in store.list()):
            assert time.monotonic() < deadline, "the look-up's pins stayed"
            time.sleep(0.02)

    with (
        server(servers[1], cluster.address) as third,
        Client(cluster.address, strict=True) as store,
    ):
        data = bytearray(store.get(keys[0]) or b"")
        data[100] ^= 1
        store.upsert(keys[0], data)
        corrupted = third.ask({"do": "load", "chunks": 3})
        assert corrupted["loaded"] == 3
        assert corrupted["sum"] != stored["sum"]

    with (
        server(servers[1], cluster.address) as fourth,
        Client(cluster.address, strict=True) as store,
    ):
        for key in keys:
            store.upsert(key, b"too short")
        assert fourth.ask({"do": "load", "chunks": 3})["loaded"] == 0
        cluster.kill_server(0)
        cluster.kill_master()
        assert fourth.ask({"do": "load", "chunks": 3, "salt": "other"})["loaded"] == 0
