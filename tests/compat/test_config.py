"""`MooncakeConfig`, and the calls for asyncio."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from pathlib import Path

import pytest

from mooncake._store.settings import master_address, parse_size
from mooncake.async_store import MooncakeDistributedStoreAsync
from mooncake.mooncake_config import MooncakeConfig
from mooncake_store.cli.bench.cluster import Cluster

NEEDED = {
    "local_hostname": "h",
    "metadata_server": "P2PHANDSHAKE",
    "master_server_address": "127.0.0.1:50051",
}


def test_a_file_names_what_is_needed_and_the_rest_has_defaults(tmp_path: Path) -> None:
    path = tmp_path / "config.json"
    path.write_text(json.dumps({**NEEDED, "global_segment_size": "64MB", "unknown": 1}))
    config = MooncakeConfig.from_file(str(path))
    assert (config.global_segment_size, config.local_buffer_size) == (64 << 20, 1 << 30)
    assert (config.protocol, config.tenant_id, config.client_http_port) == ("tcp", "default", 9300)
    path.write_text(json.dumps({"local_hostname": "h"}))
    with pytest.raises(ValueError, match="metadata_server"):
        MooncakeConfig.from_file(str(path))
    path.write_text(json.dumps({**NEEDED, "enable_ssd_offload": "maybe"}))
    with pytest.raises(ValueError, match="'maybe'"):
        MooncakeConfig.from_file(str(path))
    path.write_text("[]")
    with pytest.raises(ValueError, match="no JSON object"):
        MooncakeConfig.from_file(str(path))


def test_the_environment_names_a_file_or_the_master(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("MOONCAKE_CONFIG_PATH", "MOONCAKE_MASTER"):
        monkeypatch.delenv(name, raising=False)
    with pytest.raises(ValueError, match="MOONCAKE_CONFIG_PATH"):
        MooncakeConfig.load_from_env()
    monkeypatch.setenv("MOONCAKE_MASTER", "m:1")
    monkeypatch.setenv("MOONCAKE_PROTOCOL", "RDMA")
    monkeypatch.setenv("MOONCAKE_GLOBAL_SEGMENT_SIZE", "1gb")
    config = MooncakeConfig.load_from_env()
    assert (config.master_server_address, config.protocol) == ("m:1", "rdma")
    assert config.global_segment_size == 1 << 30
    path = tmp_path / "config.json"
    path.write_text(json.dumps(NEEDED))
    monkeypatch.setenv("MOONCAKE_CONFIG_PATH", str(path))
    assert MooncakeConfig.load_from_env().local_hostname == "h"


@pytest.mark.parametrize(
    ("text", "size"),
    [("64MB", 64 << 20), ("1.5 GiB", 3 << 29), (7, 7), ("16777216", 16 << 20), ("4g", 4 << 30)],
)
def test_sizes_are_read_as_people_write_them(text: int | str, size: int) -> None:
    assert parse_size(text) == size


@pytest.mark.parametrize("text", ["", "much", "-1", "1 PB", -5])
def test_what_is_no_size_is_refused(text: int | str) -> None:
    with pytest.raises(ValueError, match=r"is no size|is not negative"):
        parse_size(text)


def test_addresses_of_etcd_become_ours() -> None:
    assert master_address("etcd://a:1;b:2") == "etcd://a:1,b:2/mooncake_cluster"
    assert master_address("etcd://a:1/c") == "etcd://a:1/c"
    assert master_address("") == "127.0.0.1:50051"


def test_every_call_has_an_async_form(open_store: Callable[..., object], cluster: Cluster) -> None:
    async def use() -> None:
        store = MooncakeDistributedStoreAsync()
        arguments = ("127.0.0.1", "", 0, 0, "tcp", "", cluster.address)
        assert await store.async_setup(*arguments, tenant_id="async") == 0
        assert await store.async_put("k", b"value") == 0
        assert await store.async_get("k") == b"value"
        assert await store.async_remove_all() == 1
        with pytest.raises(AttributeError):
            await store.async_no_such_call()
        assert await store.async_close() == 0

    asyncio.run(use())
