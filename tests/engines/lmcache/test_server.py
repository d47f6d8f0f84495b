"""LMCache's server with the store as its second level: produce, restart, consume."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from mooncake_store import Client
from mooncake_store.cli.bench.cluster import Cluster
from tests.engines.line_process import LineProcess

SCRIPT = Path(__file__).with_name("server_engine.py")

pytestmark = pytest.mark.timeout(900)


def server(python: Path, folder: Path, address: str, **settings: Any) -> LineProcess:
    adapter = {
        "type": "plugin",
        "module_path": "mooncake_store.integrations.lmcache.server",
        "class_name": "MooncakeStoreL2",
        "adapter_params": {"master": address, "pin_timeout_s": 600, **settings},
    }
    return LineProcess([python, SCRIPT, json.dumps(adapter)], folder / "lmcache.log")


def test_chunks_outlive_the_server(lmcache_python: Path, tmp_path: Path, cluster: Cluster) -> None:
    with server(lmcache_python, tmp_path, cluster.address) as first:
        assert first.ask({"do": "load", "chunks": 3})["loaded"] == 0
        assert first.ask({"do": "store", "chunks": 3, "seed": 1}) == {"stored": 3}
        stored = first.ask({"do": "load", "chunks": 3})
        assert stored["l2"] == 0  # from its own memory

    with (
        server(lmcache_python, tmp_path, cluster.address) as second,
        Client(cluster.address, strict=True) as store,
    ):
        keys = [listed.key for listed in store.list()]
        assert len(keys) == 3
        # What another layout or another user's salt names is not there.
        assert second.ask({"do": "load", "chunks": 3, "dtype": "int32"})["loaded"] == 0
        assert second.ask({"do": "load", "chunks": 3, "salt": "user"})["loaded"] == 0
        assert second.ask({"do": "load", "chunks": 4}) == {**stored, "l2": 3}
        assert not any(listed.is_pinned for listed in store.list())  # looked up, locked, unlocked

    with (
        server(lmcache_python, tmp_path, cluster.address) as third,
        Client(cluster.address, strict=True) as store,
    ):
        data = bytearray(store.get(keys[0]) or b"")
        data[100] ^= 1
        store.upsert(keys[0], data)
        corrupted = third.ask({"do": "load", "chunks": 3})
        assert corrupted["loaded"] == 3
        assert corrupted["sum"] != stored["sum"]

    with (
        server(lmcache_python, tmp_path, cluster.address) as fourth,
        Client(cluster.address, strict=True) as store,
    ):
        for key in keys:
            store.upsert(key, b"too short")
        assert fourth.ask({"do": "load", "chunks": 3})["loaded"] == 0
        cluster.kill_server(0)
        cluster.kill_master()
        assert fourth.ask({"do": "load", "chunks": 3, "salt": "other"})["loaded"] == 0
