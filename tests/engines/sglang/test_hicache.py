"""SGLang's third level in the store, through its backend factory: our backend, and `mooncake`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from mooncake_store import Client
from mooncake_store.cli.bench.cluster import Cluster
from tests.engines.line_process import LineProcess

SCRIPT = Path(__file__).with_name("hicache_engine.py")
PAGES = [1, 2, 3]
HYBRID = {"do": "hybrid", "pages": [11, 12, 13, 14], "side": [12, 13], "window": 2, "seed": 2}

pytestmark = pytest.mark.timeout(900)


def ours(address: str, **extra: Any) -> dict[str, Any]:
    return {
        "backend_name": "mooncake_store",
        "module_path": "mooncake_store.integrations.sglang.backend",
        "class_name": "MooncakeStore",
        "interface_v1": 1,
        "mooncake_store": {"master": address},
        **extra,
    }


def theirs(address: str) -> dict[str, Any]:
    return {
        "master_server_address": address,
        "metadata_server": "P2PHANDSHAKE",
        "protocol": "tcp",
        "global_segment_size": 0,
    }


def rank(
    python: Path, folder: Path, extra: dict[str, Any], *, backend: str = "dynamic", layout: str = ""
) -> LineProcess:
    command = [python, SCRIPT, backend, json.dumps(extra), layout or "page_first"]
    return LineProcess(command, folder / "sglang.log")


def test_pages_outlive_the_engine_that_computed_them(
    sglang_python: Path, tmp_path: Path, cluster: Cluster
) -> None:
    with rank(sglang_python, tmp_path, ours(cluster.address)) as first:
        assert first.ask({"do": "exists", "pages": PAGES}) == {"count": 0}
        stored = first.ask({"do": "set", "pages": PAGES, "seed": 1})
        assert stored["done"] == [True] * 3
        assert first.ask(HYBRID) == {
            "stored": [True] * 2, "loaded": [True] * 2, "equal": True,
            # The side pool has pages 12 and 13: a window of two ends at the third page.
            "restorable": [3], "hit": 3, "pools": [4, 3],
        }  # fmt: skip

    with (
        rank(sglang_python, tmp_path, ours(cluster.address)) as second,
        Client(cluster.address, strict=True) as store,
    ):
        assert second.ask({"do": "exists", "pages": [*PAGES, 4]}) == {"count": 3}
        loaded = second.ask({"do": "get", "pages": PAGES})
        assert loaded == {"done": [True] * 3, "sum": stored["sum"]}
        for listed in list(store.list()):
            data = bytearray(store.get(listed.key) or b"")
            data[40] ^= 1
            store.upsert(listed.key, data)
        assert second.ask({"do": "get", "pages": PAGES})["sum"] != stored["sum"]
        for listed in list(store.list()):
            store.upsert(listed.key, b"too short")
        assert second.ask({"do": "get", "pages": PAGES})["done"] == [False] * 3
        store.put("a neighbour's", b"object")
        second.ask({"do": "clear"})
        assert second.ask({"do": "exists", "pages": PAGES}) == {"count": 0}
        assert [listed.key for listed in store.list()] == ["a neighbour's"]
        cluster.kill_server(0)
        cluster.kill_master()
        assert second.ask({"do": "set", "pages": [9], "seed": 1})["done"] == [False]
        assert second.ask({"do": "get", "pages": [9]})["done"] == [False]


def test_its_unmodified_mooncake_backend(
    sglang_python: Path, tmp_path: Path, cluster: Cluster
) -> None:
    with rank(sglang_python, tmp_path, theirs(cluster.address), backend="mooncake") as first:
        stored = first.ask({"do": "set", "pages": PAGES, "seed": 1})
        assert stored["done"] == [True] * 3
        answer = first.ask(HYBRID)
        assert answer["equal"]
        assert answer["hit"] == 3
        assert answer["pools"] == [4, 3]
    with rank(sglang_python, tmp_path, theirs(cluster.address), backend="mooncake") as second:
        assert second.ask({"do": "exists", "pages": [*PAGES, 4]}) == {"count": 3}
        loaded = second.ask({"do": "get", "pages": PAGES})
        assert loaded == {"done": [True] * 3, "sum": stored["sum"]}
