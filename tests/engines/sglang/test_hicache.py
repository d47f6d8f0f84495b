"""SGLang's third level in the store, through its backend factory: our backend, and `mooncake`."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import pytest

from mooncake_store import Client
from mooncake_store.cli.bench.cluster import Cluster
from tests.engines.line_process import TEST_S, LineProcess, opened

SCRIPT = Path(__file__).with_name("hicache_engine.py")
PAGES = [1, 2, 3]
HYBRID = {"do": "hybrid", "pages": [11, 12, 13, 14], "side": [12, 13], "window": 2, "seed": 2}

pytestmark = pytest.mark.timeout(TEST_S)


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


Ranks = tuple[LineProcess, LineProcess]


@pytest.fixture(scope="module")
def ranks(sglang_python: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Ranks]:
    """Two processes with SGLang."""
    log = tmp_path_factory.mktemp("sglang") / "sglang.log"
    with (
        LineProcess([sglang_python, SCRIPT], log) as first,
        LineProcess([sglang_python, SCRIPT], log) as second,
    ):
        yield first, second


def rank(
    process: LineProcess,
    extra: dict[str, Any],
    *,
    backend: str = "dynamic",
    layout: str = "page_first",
) -> AbstractContextManager[LineProcess]:
    return opened(process, backend=backend, extra=extra, layout=layout)


@pytest.mark.parametrize("layout", ["page_first", "layer_first"])
def test_pages_outlive_the_engine_that_computed_them(
    ranks: Ranks, cluster: Cluster, layout: str
) -> None:
    with rank(ranks[0], ours(cluster.address), layout=layout) as first:
        assert first.ask({"do": "exists", "pages": PAGES}) == {"count": 0}
        stored = first.ask({"do": "set", "pages": PAGES, "seed": 1})
        assert stored["done"] == [True] * 3
        assert first.ask(HYBRID) == {
            "stored": [True] * 2, "loaded": [True] * 2, "equal": True,
            # The side pool has pages 12 and 13: a window of two ends at the third page.
            "restorable": [3], "hit": 3, "pools": [4, 3],
        }  # fmt: skip

    with (
        rank(ranks[1], ours(cluster.address), layout=layout) as second,
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


def test_ranks_and_layouts_share_nothing(ranks: Ranks, cluster: Cluster) -> None:
    with rank(ranks[0], ours(cluster.address)) as first:
        assert first.ask({"do": "set", "pages": PAGES, "seed": 1})["done"] == [True] * 3
    for extra, layout in (
        (ours(cluster.address, tp_rank=1), "page_first"),
        (ours(cluster.address), "layer_first"),
    ):
        with rank(ranks[1], extra, layout=layout) as other:
            assert other.ask({"do": "exists", "pages": PAGES}) == {"count": 0}


def test_pages_as_tensors(ranks: Ranks, cluster: Cluster) -> None:
    extra = ours(cluster.address, interface_v1=0)
    with rank(ranks[0], extra, layout="layer_first") as process:
        stored = process.ask({"do": "set", "pages": PAGES, "seed": 1})
        assert stored["done"] is True
        assert process.ask({"do": "exists", "pages": [*PAGES, 4]}) == {"count": 3}
        loaded = process.ask({"do": "get", "pages": PAGES})
        assert loaded == {"done": [True] * 3, "sum": stored["sum"]}


def test_its_unmodified_mooncake_backend(ranks: Ranks, cluster: Cluster) -> None:
    with rank(ranks[0], theirs(cluster.address), backend="mooncake") as first:
        stored = first.ask({"do": "set", "pages": PAGES, "seed": 1})
        assert stored["done"] == [True] * 3
        answer = first.ask(HYBRID)
        assert answer["equal"]
        assert answer["hit"] == 3
        assert answer["pools"] == [4, 3]
    with rank(ranks[1], theirs(cluster.address), backend="mooncake") as second:
        assert second.ask({"do": "exists", "pages": [*PAGES, 4]}) == {"count": 3}
        loaded = second.ask({"do": "get", "pages": PAGES})
        assert loaded == {"done": [True] * 3, "sum": stored["sum"]}
