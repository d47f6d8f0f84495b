"""vLLM with the store: the same tokens as without, loaded instead of computed."""

from __future__ import annotations

from pathlib import Path

import pytest

from mooncake_store import Client
from mooncake_store.cli.bench.cluster import Cluster
from tests.engines.line_process import TEST_S
from tests.engines.vllm.corruption import corrupted
from tests.engines.vllm.vllm_process import MIB, PROCESSES, Known, VllmProcess, ours, theirs

pytestmark = pytest.mark.timeout(TEST_S)


def test_our_connector(vllm_python: Path, model: Path, logs: Path, known: Known) -> None:
    with Cluster(pool_size_bytes=256 * MIB, servers=1) as cluster:
        config = ours(cluster.address, layer_slices=2)
        with VllmProcess(
            vllm_python, model, logs / "produce", config, environment=PROCESSES
        ) as engine:
            first, branch = engine.generate(known.prompt), engine.generate(known.branch)
        assert first == {"tokens": known.first_tokens, "loaded": 0}
        assert branch == {"tokens": known.branch_tokens, "loaded": 96}

        with Client(cluster.address, strict=True) as store:
            assert len(list(store.list())) == 2 * (5 + 1)  # each of two slices of layers
            # Another process loads what the first one computed.
            with VllmProcess(vllm_python, model, logs / "consume", config) as engine:
                with corrupted(store):
                    wrong = engine.generate(known.prompt)
                assert wrong["loaded"] == 160
                assert wrong["tokens"] != known.first_tokens  # so what is loaded is what counts
                assert engine.generate(known.prompt) == {
                    "tokens": known.first_tokens,
                    "loaded": 160,
                }
                assert engine.generate(known.branch) == {
                    "tokens": known.branch_tokens,
                    "loaded": 128,
                }


def test_its_unmodified_mooncake_connector(
    vllm_python: Path, model: Path, logs: Path, tmp_path: Path, known: Known
) -> None:
    with Cluster(pool_size_bytes=256 * MIB, servers=1) as cluster:
        config, env = theirs(cluster.address, tmp_path)
        with VllmProcess(
            vllm_python, model, logs / "known-produce", config, environment=env
        ) as engine:
            assert engine.generate(known.prompt) == {"tokens": known.first_tokens, "loaded": 0}
        with VllmProcess(
            vllm_python, model, logs / "known-consume", config, environment={**env, **PROCESSES}
        ) as engine:
            assert engine.generate(known.prompt) == {"tokens": known.first_tokens, "loaded": 160}
