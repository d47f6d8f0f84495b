"""What is wrong with a batch as a whole is said once, at once."""

from __future__ import annotations

from collections.abc import Callable
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
