"""Our connector with other shapes of models and engines: kinds of caches, ranks."""

from __future__ import annotations

from pathlib import Path

import pytest

from mooncake_store import Client
from mooncake_store.cli.bench.cluster import Cluster
from tests.engines.line_process import TEST_S
from tests.engines.vllm.corruption import corrupted
from tests.engines.vllm.vllm_process import MIB, OTHER, PROMPTS, VllmProcess, made, ours

pytestmark = [pytest.mark.timeout(TEST_S), pytest.mark.extensive]

PROMPT = PROMPTS[0]


def test_layers_with_a_window_beside_layers_without(
    vllm_python: Path, tmp_path: Path, logs: Path
) -> None:
    model = made(vllm_python, tmp_path / "gemma", "gemma")
    with (
        Cluster(pool_size_bytes=256 * MIB, servers=1) as cluster,
        Client(cluster.address, strict=True) as store,
        VllmProcess(
            vllm_python, model, logs / "windows", ours(cluster.address, layer_slices=2)
        ) as engine,
    ):
        first, other = engine.generate(PROMPT), engine.generate(OTHER)
        assert (first["loaded"], other["loaded"]) == (0, 0)
        assert engine.generate(PROMPT) == {**first, "loaded": 160}
        assert engine.generate(OTHER) == {**other, "loaded": 128}
        with corrupted(store):
            wrong = engine.generate(PROMPT)
            assert wrong["loaded"] == 160
            assert wrong["tokens"] != first["tokens"]
        # Loading fails in the middle: both prompts, beside each other, are computed.
        cluster.servers[0].freeze()
        answers = engine.generate_all([PROMPT, OTHER])
        cluster.servers[0].thaw()
        assert [each["tokens"] for each in answers] == [first["tokens"], other["tokens"]]
        assert [each["finish"] for each in answers] == ["length", "length"]


def test_two_tensor_parallel_ranks(vllm_python: Path, model: Path, logs: Path) -> None:
    with (
        Cluster(pool_size_bytes=256 * MIB, servers=1) as cluster,
        Client(cluster.address, strict=True) as store,
        VllmProcess(
            vllm_python, model, logs / "ranks", ours(cluster.address),
            more={"tensor_parallel_size": 2, "max_num_batched_tokens": 96},
            environment={"VLLM_CPU_OMP_THREADS_BIND": "0|1"},
        ) as engine,
    ):  # fmt: skip
        first = engine.generate(PROMPT)
        assert first["loaded"] == 0
        assert len(list(store.list())) == 2 * 5  # each rank's heads of five blocks
        assert engine.generate(PROMPT) == {**first, "loaded": 160}
        with corrupted(store):
            wrong = engine.generate(PROMPT)
            assert wrong["loaded"] == 160
            assert wrong["tokens"] != first["tokens"]
        cluster.kill_server(0)
        assert engine.generate(PROMPT)["tokens"] == first["tokens"]
