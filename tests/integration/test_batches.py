"""What is wrong with a batch as a whole is said once, at once."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from mooncake_store import AsyncClient, Client
from mooncake_store.cli.bench.cluster import Cluster
from mooncake_store.errors import InvalidKeyError, RequestError, StoreError

TOO_MANY = ["key"] * 65_537
CALLS: dict[str, Callable[[Any], Any]] = {
    "get_batch": lambda store: store.get_batch(TOO_MANY),
    "get_batch_into": lambda store: store.get_batch_into(TOO_MANY, [bytearray(1)] * len(TOO_MANY)),
    "exists_batch": lambda store: store.exists_batch(TOO_MANY),
    "match_prefix": lambda store: store.match_prefix(TOO_MANY),
    "put_batch": lambda store: store.put_batch(TOO_MANY, [b"x"] * len(TOO_MANY)),
    "remove": lambda store: store.remove(TOO_MANY),
    "pin": lambda store: store.pin(TOO_MANY),
    "touch": lambda store: store.touch(TOO_MANY),
}


@pytest.mark.parametrize("name", CALLS)
def test_batch_over_the_limit_raises_once(shared_cluster: Cluster, name: str) -> None:
    with Client(shared_cluster.address) as store:
        with pytest.raises(RequestError, match="at most 65536 keys, not 65537"):
            CALLS[name](store)


@pytest.mark.asyncio
async def test_async_batch_over_the_limit_raises_once(shared_cluster: Cluster) -> None:
    async with AsyncClient(shared_cluster.address) as store:
        for name in CALLS:
            with pytest.raises(RequestError, match="at most 65536 keys, not 65537"):
                await CALLS[name](store)


@pytest.mark.timeout(120)
def test_batch_that_fails_as_a_whole_has_one_error() -> None:
    keys = [f"batch/{number}" for number in range(65_535)]
    with Cluster(pool_size_bytes=16 << 20) as cluster:
        strict, store = Client(cluster.address, strict=True), Client(cluster.address)
        cluster.kill_master()
        results = strict.get_batch([*keys, ""], timeout_s=1)
        assert len({id(found) for found in results[:-1]}) == 1
        (error,) = set(results[:-1])
        assert isinstance(error, StoreError)
        assert error.key is None and error.retryable
        assert type(results[-1]) is InvalidKeyError  # that one has a mistake of its own
        assert store.exists_batch(keys, timeout_s=1) == [False] * len(keys)
        assert store.last_error is not None and store.last_error.key is None


@pytest.mark.timeout(120)
@pytest.mark.parametrize("size", [0, 16, 1000, 4096])
def test_small_batches_of_many_threads_do_not_wait_for_each_other(
    shared_cluster: Cluster, size: int
) -> None:
    """More threads than a peer has connections, each of which wants two of master and server."""
    threads, batches, count = 12, 6, 128

    def value_of(key: str) -> bytes:
        return (key.encode() * (size // len(key) + 1))[:size]

    with Client(shared_cluster.address, use_local_paths=False, strict=True) as store:

        def put_all(thread: int) -> None:
            for batch in range(batches):
                keys = [f"threads/{size}/{thread}/{batch}/{i}" for i in range(count)]
                values = [value_of(key) for key in keys]
                assert store.put_batch(keys, values) == [True] * count
                assert store.put_batch(keys, values) == [False] * count  # they are there
                assert store.get_batch(keys) == values

        with ThreadPoolExecutor(threads) as pool:
            list(pool.map(put_all, range(threads)))
        assert store.remove_matching(f"threads/{size}/") == threads * batches * count


def test_a_batch_with_good_and_bad_keys_tells_of_each(shared_cluster: Cluster) -> None:
    keys = [f"mixed/{i}" for i in range(128)]
    with Client(shared_cluster.address, use_local_paths=False) as store:
        assert store.put_batch(keys[::2], [b"old"] * 64) == [True] * 64
        assert store.put_batch(keys, [b"new"] * 128) == [False, True] * 64
        assert store.get_batch(keys) == [b"old", b"new"] * 64
        doubled = ["mixed/twice"] * 128  # in both halves
        assert store.put_batch(doubled, [b"x"] * 128).count(True) == 1
        assert store.get("mixed/twice") == b"x"
        store.remove([*keys, "mixed/twice"])


@pytest.mark.parametrize("largest", [0, 40, 500, 3000])
@pytest.mark.parametrize("is_local", [False, True])
def test_values_of_a_batch_keep_their_bounds(
    shared_cluster: Cluster, largest: int, is_local: bool
) -> None:
    """Small values travel side by side; empty ones lie between them."""
    keys = [f"bounds/{largest}/{is_local}/{i}" for i in range(130)]
    values = [bytes([i]) * (i * 37 % (largest + 1)) for i in range(len(keys))]
    with Client(shared_cluster.address, use_local_paths=is_local, strict=True) as store:
        assert store.put_batch(keys, values) == [True] * len(keys)
        assert store.get_batch(keys) == values
        assert store.remove_matching(f"bounds/{largest}/{is_local}/") == len(keys)
