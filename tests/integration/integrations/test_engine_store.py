"""The store as connectors see it: pieces at addresses, exact sizes, and misses for failures."""

from __future__ import annotations

import ctypes
import time
import uuid
from collections.abc import Iterator

import pytest

from mooncake_store import Client
from mooncake_store.cli.bench.cluster import Cluster
from mooncake_store.integrations.engine_store import EngineStore
from mooncake_store.integrations.settings import StoreSettings

PIECE = 64


class Pieces:
    """Memory in pieces that do not follow each other."""

    def __init__(self, count: int, fill: int = 0) -> None:
        self.memory = ctypes.create_string_buffer(
            bytes([fill]) * (2 * PIECE * count), 2 * PIECE * count
        )
        start = ctypes.addressof(self.memory)
        self.addresses = [start + 2 * PIECE * at for at in range(count)]
        self.sizes = [PIECE] * count

    def bytes(self) -> bytes:
        return b"".join(self.memory.raw[2 * PIECE * at :][:PIECE] for at in range(len(self.sizes)))


@pytest.fixture
def store(shared_cluster: Cluster) -> Iterator[EngineStore]:
    store = opened(shared_cluster.address)
    yield store
    store.close()


def opened(address: str) -> EngineStore:
    settings = StoreSettings(
        master=address, lookup_timeout_s=2.0, load_timeout_s=2.0, save_timeout_s=2.0
    )
    return EngineStore(settings, name="test", patience_s=1.0)


@pytest.fixture
def keys() -> list[str]:
    name = uuid.uuid4().hex
    return [f"{name}/{at}" for at in range(3)]


def test_pieces_are_gathered_and_scattered(store: EngineStore, keys: list[str]) -> None:
    sources = [Pieces(4, fill=at + 1) for at in range(2)]
    addresses, sizes = [each.addresses for each in sources], [each.sizes for each in sources]
    assert store.save(keys[:2], addresses, sizes) == [1, 1]
    assert store.save(keys[:2], addresses, sizes) == [0, 0]  # they are there
    assert store.exists(keys) == [True, True, False]
    assert store.count_prefix(keys) == 2

    # In other pieces than they were stored from; what is between them is left alone.
    targets = [Pieces(4, fill=255) for _ in keys]
    read = store.load(keys, [each.addresses for each in targets], [each.sizes for each in targets])
    assert read == [4 * PIECE, 4 * PIECE, 0]
    assert targets[1].bytes() == bytes([2]) * 4 * PIECE
    assert targets[1].memory.raw[PIECE : 2 * PIECE] == b"\xff" * PIECE
    assert (store.counts.saved, store.counts.known) == (2, 2)
    assert (store.counts.loaded, store.counts.missed) == (2, 1)


def test_an_object_of_another_size_is_a_miss(store: EngineStore, keys: list[str]) -> None:
    source = Pieces(1, fill=7)
    store.save(keys[:1], source.addresses, source.sizes)
    larger = ctypes.create_string_buffer(2 * PIECE)
    at, size = [ctypes.addressof(larger)], [2 * PIECE]
    assert store.load(keys[:1], at, size) == [0]
    assert store.load(keys[:1], at, size, exact=False) == [PIECE]
    assert store.load(keys[:1], at, [PIECE - 1], exact=False) == [0]


def test_a_pin_lasts_until_it_is_ended(
    store: EngineStore, keys: list[str], shared_cluster: Cluster
) -> None:
    source = Pieces(1)
    store.save(keys[:2], source.addresses * 2, source.sizes * 2)
    with Client(shared_cluster.address, strict=True) as client:

        def pins() -> list[int]:
            return [0 if (found := client.stat(key)) is None else found.pin_count for key in keys]

        assert store.pin(keys, pin_s=30) == [True, True, False]
        assert pins() == [1, 1, 0]
        store.unpin(keys)
        assert pins() == [0, 0, 0]
        assert store.count_prefix(keys, pin_s=30) == 2
        assert pins() == [1, 1, 0]


def test_a_store_is_away_while_nobody_waits_for_its_master(keys: list[str]) -> None:
    source = Pieces(1)
    with Cluster(pool_size_bytes=16 << 20, servers=1) as cluster:
        store = opened(cluster.address)
        try:
            assert not store.is_away
            cluster.kill_master()
            deadline = time.monotonic() + 30
            while not store.is_away and time.monotonic() < deadline:
                assert store.save(keys[:1], source.addresses, source.sizes) == [-1]
            assert store.is_away
            cluster.start_master()
            while store.is_away and time.monotonic() < deadline:
                time.sleep(0.02)
            assert not store.is_away
            assert store.save(keys[:1], source.addresses, source.sizes) == [1]
        finally:
            store.close()


def test_without_a_store_everything_is_a_miss(keys: list[str]) -> None:
    store = opened("127.0.0.1:1")
    source = Pieces(1)
    try:
        assert store.client is None
        assert store.is_away
        assert store.exists(keys) == [False] * 3
        assert store.count_prefix(keys) == 0
        assert store.pin(keys, pin_s=1) == [False] * 3
        assert store.save(keys[:1], source.addresses, source.sizes) == [-1]
        assert store.load(keys[:1], source.addresses, source.sizes) == [0]
        assert store.counts.refused == 1
    finally:
        store.close()
