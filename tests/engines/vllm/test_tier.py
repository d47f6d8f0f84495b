"""Our tier for vLLM's offloading, made by vLLM's factory.  Its worker wants a GPU: not run here."""

from __future__ import annotations

from pathlib import Path

import pytest

from mooncake_store import Client
from mooncake_store.cli.bench.cluster import Cluster
from tests.engines.line_process import TEST_S, LineProcess
from tests.engines.vllm.vllm_process import MIB

pytestmark = [pytest.mark.timeout(TEST_S), pytest.mark.extensive]

SCRIPT = Path(__file__).with_name("tier.py")


def test_chunks_go_from_one_engines_memory_to_anothers(vllm_python: Path, logs: Path) -> None:
    with Cluster(pool_size_bytes=64 * MIB, servers=1) as cluster:

        def start(model: str) -> LineProcess:
            return LineProcess(
                [vllm_python, SCRIPT, cluster.address, model], logs / f"tier-{model}"
            )

        with start("model") as one, start("model") as two, start("another") as stranger:
            fills = [["fill", row, row + 1] for row in range(3)]
            assert one.ask([["lookup", 1], *fills, ["store", [1, 2, 3], [0, 1, 2]]])[-1] == [
                True,
                None,
            ]
            assert one.ask([["lookup", 1], ["forget"], ["lookup", 1]]) == ["MISS", None, "HIT"]
            assert stranger.ask([["lookup", 1]]) == ["MISS"]
            assert two.ask(
                [["lookup", 2], ["lookup", 4], ["load", [2, 3], [6, 7]], ["row", 6], ["row", 7]]
            ) == ["HIT", "MISS", [True, None], [2, 2], [3, 3]]
            assert two.ask([["lookup", 3]]) == ["HIT"]

            with Client(cluster.address) as store:
                (gone,) = [each.key for each in store.list() if "03" * 32 in each.key]
                assert store.remove(gone) is True
            assert two.ask(
                [["lookup", 3], ["load", [3, 1], [0, 1]], ["row", 1], ["lookup", 3]]
            ) == ["HIT", [False, [1]], [1, 1], "MISS"]
