"""Checksums of objects, with memory of real servers that is damaged behind their backs."""

from __future__ import annotations

import mmap
import random
from collections.abc import Iterator
from pathlib import Path

import pytest

from mooncake_store import Client
from mooncake_store.cli.bench.cluster import Cluster
from mooncake_store.client.native import ffi, lib
from mooncake_store.errors import ChecksumError, RequestError

MIB = 1 << 20


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    with Cluster(pool_size_bytes=96 * MIB, servers=2) as made:
        yield made


def value_of(key: str, size: int) -> bytes:
    return random.Random(key).randbytes(size)


def crc32c(value: bytes) -> int:
    return int(lib.ms_crc32c(0, ffi.from_buffer(value), len(value)))


def damage(cluster: Cluster, value: bytes, copy: int = 0) -> None:
    """Flip a bit of the value where a server keeps it; `copy` says which replica."""
    found = 0
    for path in sorted(Path(cluster.segment_dir).rglob("*")):
        if not path.is_file() or path.stat().st_size < MIB:
            continue
        with path.open("r+b") as file, mmap.mmap(file.fileno(), 0) as memory:
            at = memory.find(value[:64])
            if at < 0:
                continue
            if found == copy:
                memory[at + len(value) // 2] ^= 1
                return
            found += 1
    raise AssertionError("the value lies nowhere")


@pytest.mark.parametrize("use_local_paths", [True, False])
@pytest.mark.parametrize("use_relay", [True, False])
def test_checksum_is_kept_with_the_object(
    cluster: Cluster, use_local_paths: bool, use_relay: bool
) -> None:
    with Client(
        cluster.address, strict=True, checksums="put",
        use_local_paths=use_local_paths, use_relay=use_relay,
    ) as store:  # fmt: skip
        for size in (0, 1, 4097, MIB, 20 * MIB):
            key = f"kept/{use_local_paths}/{use_relay}/{size}"
            value = value_of(key, size)
            assert store.put(key, [value[: size // 3], value[size // 3 :]]) is True
            found = store.stat(key)
            assert found is not None and found.checksum == crc32c(value)
            assert store.get(key) == value
        keys = [f"{key}/{number}" for number in range(40)]
        assert all(store.put_batch(keys, [value_of(key, 5000) for key in keys]))
        for key in keys:
            found = store.stat(key)
            assert found is not None and found.checksum == crc32c(value_of(key, 5000))
        store.remove_matching("kept/")


def test_without_the_setting_there_is_none(cluster: Cluster) -> None:
    with Client(cluster.address, checksums="verify", use_local_paths=False) as store:
        with Client(cluster.address) as plain:
            plain.put("plain", b"value")
        found = store.stat("plain")
        assert found is not None and found.checksum is None
        assert store.get("plain") == b"value"
        store.remove("plain")
    with pytest.raises(RequestError, match="checksums"):
        Client(cluster.address, checksums="yes")


def test_damaged_object_is_a_miss_with_its_cause(cluster: Cluster) -> None:
    value = value_of("damaged", 3 * MIB)
    far = {"use_local_paths": False}
    with (
        Client(cluster.address, checksums="put", **far) as store,
        Client(cluster.address, checksums="verify", **far) as verifying,
        Client(cluster.address, checksums="verify", strict=True, **far) as strict,
    ):
        store.put("damaged", value)
        assert verifying.get("damaged") == value
        damage(cluster, value)
        assert verifying.get("damaged") is None
        assert isinstance(verifying.last_error, ChecksumError)
        assert verifying.last_error.node
        assert verifying.statistics().checksum_failures >= 1
        with pytest.raises(ChecksumError, match="CRC32C"):
            strict.get_into("damaged", bytearray(len(value)))
        assert store.get("damaged") not in (None, value)  # who does not verify is not told
        store.remove("damaged")


def test_damaged_replica_is_passed_over(cluster: Cluster) -> None:
    with Client(cluster.address, checksums="verify", use_local_paths=False, strict=True) as store:
        for copy in (0, 1):
            key = f"replica/{copy}"
            value = value_of(key, MIB)
            assert store.put(key, value, replicas=2, min_replicas=2) is True
            damage(cluster, value, copy)
            assert store.get(key) == value
            assert store.get_batch([key]) == [value]
        assert store.statistics().checksum_failures >= 1
        store.remove_matching("replica/")
