"""LMCache's chunks in the store, through our plugin and through its own Mooncake connector."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from mooncake_store import Client
from mooncake_store.cli.bench.cluster import Cluster
from tests.engines.line_process import LineProcess

SCRIPT = Path(__file__).with_name("remote_engine.py")
TOKENS = 70  # four full chunks of 16, and a part of one
CHUNKS = 5

pytestmark = pytest.mark.timeout(900)


def ours(address: str, **extra: Any) -> dict[str, Any]:
    prefix = "remote_storage_plugin.mooncake_store."
    given = {"master": address, **extra}
    return {
        "max_local_cpu_size": 0.1,
        "save_unfull_chunk": True,
        "remote_storage_plugins": ["mooncake_store"],
        "extra_config": {
            f"{prefix}module_path": "mooncake_store.integrations.lmcache.remote",
            f"{prefix}class_name": "MooncakeStoreAdapter",
            **{prefix + name: value for name, value in given.items()},
        },
    }


def engine(python: Path, folder: Path, options: dict[str, Any], **environment: str) -> LineProcess:
    return LineProcess(
        [python, SCRIPT, json.dumps(options)],
        folder / "lmcache.log",
        {"PYTHONHASHSEED": "0", **environment},
    )


def flip(store: Client) -> None:
    """Turn a bit of every stored object."""
    for listed in list(store.list()):
        data = bytearray(store.get(listed.key) or b"")
        data[len(data) // 2] ^= 0x10
        store.upsert(listed.key, data)


def test_chunks_outlive_the_engine_that_computed_them(
    lmcache_python: Path, tmp_path: Path, cluster: Cluster
) -> None:
    with engine(lmcache_python, tmp_path, ours(cluster.address)) as first:
        assert first.ask({"do": "load", "tokens": TOKENS})["found"] == 0
        assert first.ask({"do": "store", "tokens": TOKENS, "seed": 1}) == {"chunks": CHUNKS}
        stored = first.ask({"do": "load", "tokens": TOKENS})
    assert stored["loaded"] == CHUNKS

    # Another process finds the same bytes.
    with engine(lmcache_python, tmp_path, ours(cluster.address)) as second:
        assert second.ask({"do": "load", "tokens": TOKENS}) == stored
        assert second.ask({"do": "load", "tokens": 40})["found"] == 2  # the last one ends earlier
        with Client(cluster.address, strict=True) as store:
            flip(store)
            corrupted = second.ask({"do": "load", "tokens": TOKENS})
            assert corrupted["loaded"] == CHUNKS
            assert corrupted["sum"] != stored["sum"]  # so what is loaded is what counts
            for listed in list(store.list()):
                store.upsert(listed.key, b"no whole token")
        assert second.ask({"do": "load", "tokens": TOKENS})["loaded"] == 0
        cluster.kill_server(0)
        cluster.kill_master()
        assert second.ask({"do": "load", "tokens": TOKENS})["loaded"] == 0
