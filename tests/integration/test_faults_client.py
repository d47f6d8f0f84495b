"""What goes wrong in or around a client: the bytes that others read stay right."""

from __future__ import annotations

import random

import pytest

from mooncake_store import Client
from mooncake_store.cli.bench.cluster import Cluster

KIB, MIB = 1 << 10, 1 << 20


def value_of(key: str, size: int, version: int = 0) -> bytes:
    """Bytes that prove which put of which key they are."""
    return random.Random(f"{key}/{version}").randbytes(size)


@pytest.mark.timeout(120)
def test_staged_put_into_many_extents_is_byte_exact() -> None:
    """Holes of several sizes: frames of one extent are still copied while the next one begins."""
    with (
        Cluster(pool_size_bytes=64 * MIB) as cluster,
        Client(cluster.address, strict=True) as store,
        Client(cluster.address, strict=True, use_local_paths=False) as far,
    ):
        for hole in (64 * KIB, 300 * KIB, 1200 * KIB):
            keys = [f"hole/{hole}/{number}" for number in range(60 * MIB // hole)]
            assert all(store.put_batch(keys, [bytes(hole)] * len(keys)))
            assert all(store.remove(keys[::2]))
            for round_number in range(3):
                key = f"large/{hole}/{round_number}"
                value = value_of(key, 24 * hole if hole > MIB else 12 * MIB)
                assert store.put(key, value) is True
                found = store.stat(key)
                assert found is not None and found.replicas[0].extent_count > 4
                assert far.get(key) == value
                assert store.remove(key)
            store.remove_matching("")
