"""vLLM with the store: the same tokens as without, loaded instead of computed; and with faults."""

from __future__ import annotations

import array
import json
import os
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from mooncake_store import Client
from mooncake_store.cli.bench.cluster import Cluster

ROOT = Path(__file__).parents[2]
SCRIPT = Path(__file__).with_name("vllm_engine.py")
MIB = 1 << 20
PROMPT = [(7 * at + 3) % 199 for at in range(163)]
BRANCH = PROMPT[:100] + [5] * 40
OTHER = [(5 * at + 1) % 197 for at in range(150)]
START_S = 500  # a first start compiles; a machine may be busy

pytestmark = pytest.mark.timeout(1200)


class Engine:
    """One process with one engine."""

    def __init__(self, python: Path, model: Path, log: Path, *config: str, **env: str) -> None:
        self._log = log.open("w")
        self._process = subprocess.Popen(
            [str(python), str(SCRIPT), "serve", str(model), *config],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self._log, text=True,
            env={**os.environ, "VLLM_CPU_KVCACHE_SPACE": "1", "VLLM_HOST_IP": "127.0.0.1",
                 "VLLM_NO_USAGE_STATS": "1", "HF_HUB_OFFLINE": "1",
                 "PYTHONPATH": f"{ROOT}:{ROOT / 'compat'}", **env},
        )  # fmt: skip
        self._expect("READY")

    def _expect(self, word: str) -> str:
        assert self._process.stdout is not None
        deadline = time.monotonic() + START_S
        for line in self._process.stdout:
            if line.startswith(word):
                return line.removeprefix(word)
            self._log.write(line)
            assert time.monotonic() < deadline
        self._log.flush()
        raise AssertionError(f"the engine has ended: see {self._log.name}")

    def generate(self, prompt: list[int]) -> dict[str, Any]:
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(prompt) + "\n")
        self._process.stdin.flush()
        return json.loads(self._expect("ANSWER"))

    def __enter__(self) -> Engine:
        return self

    def __exit__(self, *_: object) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        try:
            self._process.wait(60)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._log.close()


@pytest.fixture(scope="module")
def model(vllm_python: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("llama")
    subprocess.run(
        [str(vllm_python), str(SCRIPT), "make", str(folder)],
        check=True, capture_output=True, timeout=START_S,
    )  # fmt: skip
    return folder


@pytest.fixture(scope="module")
def logs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("logs")


@pytest.fixture(scope="module")
def computed(vllm_python: Path, model: Path, logs: Path) -> dict[str, list[int]]:
    """What an engine without a store generates."""
    with Engine(vllm_python, model, logs / "reference") as engine:
        return {
            name: engine.generate(prompt)["tokens"]
            for name, prompt in (("prompt", PROMPT), ("branch", BRANCH), ("other", OTHER))
        }


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    with Cluster(pool_size_bytes=256 * MIB, servers=1) as cluster:
        yield cluster


def ours(address: str, **extra: Any) -> str:
    return json.dumps(
        {
            "kv_connector": "MooncakeStore",
            "kv_role": "kv_both",
            "kv_connector_module_path": "mooncake_store.integrations.vllm.connector",
            "kv_load_failure_policy": "recompute",
            "kv_connector_extra_config": {"master": address, **extra},
        }
    )


def corrupt(store: Client) -> dict[str, bytes]:
    """Turn the sign of every stored number; return what was there."""
    kept: dict[str, bytes] = {}
    for listed in list(store.list()):
        data = store.get(listed.key)
        assert data is not None
        kept[listed.key] = data
        numbers = array.array("f", data)
        store.upsert(listed.key, array.array("f", [-number for number in numbers]))
    return kept


def test_our_connector(
    vllm_python: Path, model: Path, logs: Path, cluster: Cluster, computed: dict[str, list[int]]
) -> None:
    config = ours(cluster.address, layer_slices=2)
    with Engine(vllm_python, model, logs / "produce", config) as engine:
        first, branch = engine.generate(PROMPT), engine.generate(BRANCH)
    assert first == {"tokens": computed["prompt"], "loaded": 0}
    assert branch == {"tokens": computed["branch"], "loaded": 96}

    with Client(cluster.address, strict=True) as store:
        assert len(list(store.list())) == 2 * (5 + 1)  # each of two slices of layers
        kept = corrupt(store)
        with Engine(vllm_python, model, logs / "corrupted", config) as engine:
            wrong = engine.generate(PROMPT)
        assert wrong["loaded"] == 160
        assert wrong["tokens"] != computed["prompt"]  # so what is loaded is what counts
        for key, data in kept.items():
            store.upsert(key, data)

    # Another process loads what the first one computed; then the store dies under it.
    with Engine(vllm_python, model, logs / "consume", config) as engine:
        assert engine.generate(PROMPT) == {"tokens": computed["prompt"], "loaded": 160}
        assert engine.generate(BRANCH) == {"tokens": computed["branch"], "loaded": 128}
        cluster.kill_server(0)
        assert engine.generate(PROMPT)["tokens"] == computed["prompt"]
        cluster.kill_master()
        assert engine.generate(OTHER)["tokens"] == computed["other"]
        assert engine.generate(PROMPT)["tokens"] == computed["prompt"]


def test_its_unmodified_mooncake_connector(
    vllm_python: Path, model: Path, logs: Path, tmp_path: Path, computed: dict[str, list[int]]
) -> None:
    with Cluster(pool_size_bytes=256 * MIB, servers=1) as cluster:
        settings = tmp_path / "mooncake.json"
        settings.write_text(
            json.dumps(
                {
                    "metadata_server": "P2PHANDSHAKE",
                    "master_server_address": cluster.address,
                    "protocol": "tcp",
                    "device_name": "",
                    "mode": "standalone-store",
                    "global_segment_size": 0,
                    "local_buffer_size": 64 * MIB,
                }
            )
        )
        config = json.dumps(
            {
                "kv_connector": "MooncakeStoreConnector",
                "kv_role": "kv_both",
                "kv_load_failure_policy": "recompute",
                "kv_connector_extra_config": {"load_async": True},
            }
        )
        env = {"MOONCAKE_CONFIG_PATH": str(settings), "PYTHONHASHSEED": "0"}
        with Engine(vllm_python, model, logs / "known-produce", config, **env) as engine:
            assert engine.generate(PROMPT) == {"tokens": computed["prompt"], "loaded": 0}
        with Engine(vllm_python, model, logs / "known-consume", config, **env) as engine:
            assert engine.generate(PROMPT) == {"tokens": computed["prompt"], "loaded": 160}
