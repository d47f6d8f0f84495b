"""transformers with the store: another process generates the same from what the first computed."""

from __future__ import annotations

from pathlib import Path

import pytest

from mooncake_store import Client
from mooncake_store.cli.bench.cluster import Cluster
from tests.engines.environments import python_of
from tests.engines.line_process import TEST_S, LineProcess
from tests.engines.vllm.corruption import corrupted

SCRIPT = Path(__file__).with_name("llama_engine.py")
PROMPT = [(7 * at + 3) % 199 for at in range(75)]  # 4 full blocks of 16 and a rest
BRANCH = PROMPT[:50] + [5] * 30

pytestmark = pytest.mark.timeout(TEST_S)


def engine(folder: Path, address: str) -> LineProcess:
    command = [python_of("transformers"), SCRIPT, address]
    return LineProcess(command, folder / "transformers.log")


def test_a_prefix_outlives_the_process_that_computed_it(tmp_path: Path) -> None:
    with Cluster(pool_size_bytes=64 << 20, servers=1) as cluster:
        with engine(tmp_path, cluster.address) as first:
            computed = first.ask(PROMPT)
            branch = first.ask(BRANCH)
        assert computed["loaded"] == 0
        assert branch["loaded"] == 48  # what both have in common, in full blocks

        with (
            engine(tmp_path, cluster.address) as second,
            Client(cluster.address, strict=True) as store,
        ):
            assert second.ask(PROMPT) == {**computed, "loaded": 64}
            with corrupted(store):
                wrong = second.ask(PROMPT)
            assert wrong["loaded"] == 64
            assert wrong["tokens"] != computed["tokens"]  # so what is loaded is what counts
