"""Objects that are replaced by larger ones while they are read: looked up sizes are stale."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import time
from collections.abc import Iterator

import pytest

from mooncake_store import AsyncClient, Client
from mooncake_store.cli.bench.cluster import Cluster

MIB = 1 << 20
KEYS = [f"growing/{number}" for number in range(4)]
WRITE = f"""
import sys
from mooncake_store import Client
from mooncake_store.errors import ObjectBusyError
with Client(sys.argv[1]) as store:
    while True:
        for size in range(8, 80_000, 200):
            for key in {KEYS!r}:
                try:
                    store.upsert(key, (size % 251).to_bytes(1, "little") * size)
                except ObjectBusyError:
                    pass
"""
READ_S = 1.5


@pytest.fixture(scope="module")
def growing() -> Iterator[str]:
    """The address of a store in which others replace objects all the time."""
    with Cluster(pool_size_bytes=64 * MIB, servers=1) as cluster:
        writers = [
            subprocess.Popen(
                ["setpriv", "--pdeathsig", "KILL", sys.executable, "-c", WRITE, address]
            )
            for address in [cluster.address] * 3
        ]
        try:
            with Client(cluster.address) as store:
                end_s = time.monotonic() + 30.0
                while not all(store.exists_batch(KEYS)):
                    assert time.monotonic() < end_s
            yield cluster.address
        finally:
            for writer in writers:
                writer.kill()
                writer.wait()


def is_whole(value: object) -> bool:
    """A miss is allowed, for who is overtaken too often; so are the bytes of one put."""
    if value is None:
        return True
    return isinstance(value, bytes) and value == (len(value) % 251).to_bytes(1, "little") * len(
        value
    )


@pytest.mark.parametrize("local", [True, False], ids=["local", "tcp"])
def test_batches_are_read_while_they_grow(growing: str, local: bool) -> None:
    hits = 0
    with Client(growing, strict=True, use_local_paths=local) as store:
        end_s = time.monotonic() + READ_S
        while time.monotonic() < end_s:
            values = store.get_batch(KEYS * 4)
            assert all(map(is_whole, values))
            hits += sum(value is not None for value in values)
            assert is_whole(store.get(KEYS[0]))
    assert hits > 0


@pytest.mark.asyncio
async def test_async_batches_are_read_while_they_grow(growing: str) -> None:
    hits = 0
    async with AsyncClient(growing, strict=True, use_local_paths=False) as store:
        end_s = time.monotonic() + READ_S
        while time.monotonic() < end_s:
            batches = await asyncio.gather(*(store.get_batch(KEYS * 4) for _ in range(4)))
            for values in batches:
                assert all(map(is_whole, values))
                hits += sum(value is not None for value in values)
            assert is_whole(await store.get(KEYS[0]))
    assert hits > 0
