"""LMCache's chunks in the store, through our plugin and through its own Mooncake connector."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import pytest

from mooncake_store import Client
from mooncake_store.cli.bench.cluster import Cluster
from tests.engines.line_process import TEST_S, LineProcess, opened

SCRIPT = Path(__file__).with_name("remote_engine.py")
TOKENS = 70  # four full chunks of 16, and a part of one
CHUNKS = 5

pytestmark = pytest.mark.timeout(TEST_S)


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


Engines = tuple[LineProcess, LineProcess]


@pytest.fixture(scope="module")
def log(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What LMCache prints."""
    return tmp_path_factory.mktemp("lmcache") / "lmcache.log"


@pytest.fixture(scope="module")
def engines(lmcache_python: Path, log: Path) -> Iterator[Engines]:
    """Two processes with LMCache."""
    seed = {"PYTHONHASHSEED": "0"}
    with (
        LineProcess([lmcache_python, SCRIPT], log, seed) as first,
        LineProcess([lmcache_python, SCRIPT], log, seed) as second,
    ):
        yield first, second


def engine(
    process: LineProcess, options: dict[str, Any], **environment: str
) -> AbstractContextManager[LineProcess]:
    return opened(process, options=options, environment=environment)


def flip(store: Client) -> None:
    """Turn a bit of every stored object."""
    for listed in list(store.list()):
        data = bytearray(store.get(listed.key) or b"")
        data[len(data) // 2] ^= 0x10
        store.upsert(listed.key, data)


def test_chunks_outlive_the_engine_that_computed_them(engines: Engines, cluster: Cluster) -> None:
    with engine(engines[0], ours(cluster.address)) as first:
        assert first.ask({"do": "load", "tokens": TOKENS})["found"] == 0
        assert first.ask({"do": "store", "tokens": TOKENS, "seed": 1}) == {"chunks": CHUNKS}
        stored = first.ask({"do": "load", "tokens": TOKENS})
    assert stored["loaded"] == CHUNKS

    # Another process finds the same bytes.
    with engine(engines[1], ours(cluster.address)) as second:
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
    # It starts without a store, too.
    with engine(engines[1], ours(cluster.address)) as other:
        assert other.ask({"do": "load", "tokens": TOKENS})["found"] == 0


def test_dtypes_share_nothing(engines: Engines, cluster: Cluster) -> None:
    with engine(engines[0], ours(cluster.address)) as first:
        assert first.ask({"do": "store", "tokens": TOKENS, "seed": 1}) == {"chunks": CHUNKS}
    with engine(engines[1], {"dtype": "float16", **ours(cluster.address)}) as other:
        assert other.ask({"do": "load", "tokens": TOKENS})["found"] == 0


def test_a_wrong_setting_is_named(engines: Engines, log: Path, cluster: Cluster) -> None:
    options = ours(cluster.address, mastr="127.0.0.1:1")
    with engine(engines[0], options) as process:
        assert process.ask({"do": "ping"}) == {"backends": ["LocalCPUBackend"]}
    assert "did you mean master?" in log.read_text()


@pytest.mark.parametrize("save_chunk_meta", [True, False])
def test_its_unmodified_mooncake_connector(
    engines: Engines, tmp_path: Path, cluster: Cluster, save_chunk_meta: bool
) -> None:
    settings = tmp_path / "mooncake.json"
    settings.write_text(
        json.dumps(
            {
                "local_hostname": "127.0.0.1",
                "metadata_server": "P2PHANDSHAKE",
                "master_server_address": cluster.address,
                "protocol": "tcp",
                "device_name": "",
                "global_segment_size": 0,
                "local_buffer_size": 16 << 20,
                "transfer_timeout": 10,
            }
        )
    )
    options = {
        "max_local_cpu_size": 0.1,
        "save_unfull_chunk": True,
        "remote_url": f"mooncakestore://{cluster.address}",
        "extra_config": {"save_chunk_meta": save_chunk_meta},
    }
    environment = {"MOONCAKE_CONFIG_PATH": str(settings)}
    with engine(engines[0], options, **environment) as first:
        assert first.ask({"do": "load", "tokens": TOKENS})["found"] == 0
        assert first.ask({"do": "store", "tokens": TOKENS, "seed": 1}) == {"chunks": CHUNKS}
        stored = first.ask({"do": "load", "tokens": TOKENS})
    assert stored["loaded"] == CHUNKS
    with engine(engines[1], options, **environment) as second:
        assert second.ask({"do": "load", "tokens": TOKENS}) == stored
