"""LMCache inside vLLM: its unmodified LMCacheConnectorV1, and our plugin as remote storage."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from mooncake_store import Client
from mooncake_store.cli.bench.cluster import Cluster
from tests.engines.environments import python_of
from tests.engines.line_process import TEST_S
from tests.engines.vllm.corruption import corrupted
from tests.engines.vllm.vllm_process import MIB, ONE_THREAD, OTHER, Known, VllmProcess

pytestmark = [pytest.mark.timeout(TEST_S), pytest.mark.extensive]

LOADED = 160  # of 163 tokens
CONFIG = json.dumps(
    {
        "kv_connector": "LMCacheConnectorV1",
        "kv_role": "kv_both",
        "kv_load_failure_policy": "recompute",
        "kv_connector_module_path": "tests.engines.vllm.lmcache_on_host",
    }
)


def settings(folder: Path, address: str) -> Path:
    """Write LMCache's file: nothing is kept in its own memory, all comes from the store."""
    file = folder / "lmcache.yaml"
    of_plugin = {
        "module_path": "mooncake_store.integrations.lmcache.remote",
        "class_name": "MooncakeStoreAdapter",
        "master": address,
    }
    prefix = "remote_storage_plugin.mooncake_store."
    given = {
        "chunk_size": 32,
        "local_cpu": False,
        "max_local_cpu_size": 0.1,
        "remote_storage_plugins": ["mooncake_store"],
        "extra_config": {prefix + name: value for name, value in of_plugin.items()},
    }
    file.write_text(json.dumps(given))  # which is YAML too
    return file


@contextlib.contextmanager
def engine(
    python: Path, model: Path, folder: Path, log: Path, address: str
) -> Iterator[VllmProcess]:
    variables = {
        "LMCACHE_CONFIG_FILE": str(settings(folder, address)), "PYTHONHASHSEED": "0", **ONE_THREAD
    }  # fmt: skip
    with VllmProcess(python, model, log, CONFIG, environment=variables) as process:
        yield process
        process.kill()  # LMCache's health check keeps a process that is asked to end


def test_lmcache_in_vllm(
    vllm_python: Path, model: Path, known: Known, logs: Path, tmp_path: Path
) -> None:
    python = python_of("lmcache")
    assert python == vllm_python
    prompt, tokens = known.prompt, known.first_tokens
    with Cluster(pool_size_bytes=64 * MIB, servers=1) as cluster:
        with engine(python, model, tmp_path, logs / "lmcache-1", cluster.address) as first:
            assert first.generate(prompt) == {"tokens": tokens, "loaded": 0}
            with Client(cluster.address) as store:
                assert len(list(store.list())) == LOADED // 32
            assert first.generate(prompt) == {"tokens": tokens, "loaded": LOADED}

        # Another process loads what that one computed.
        with engine(python, model, tmp_path, logs / "lmcache-2", cluster.address) as second:
            assert second.generate(prompt) == {"tokens": tokens, "loaded": LOADED}
            assert second.generate(OTHER)["loaded"] == 0
            with Client(cluster.address, strict=True) as store, corrupted(store):
                wrong = second.generate(prompt)
            assert wrong["loaded"] == LOADED
            assert wrong["tokens"] != tokens  # so what is loaded is what counts
            assert second.generate(prompt) == {"tokens": tokens, "loaded": LOADED}
            cluster.kill_server(0)
            cluster.kill_master()
            assert second.generate(known.prompts[1]) == {"tokens": known.tokens[1], "loaded": 0}
