"""Calls that run while their client is closed: a proper result, or ClosedError."""

from __future__ import annotations

import asyncio
import threading
import time
import uuid
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from mooncake_store import AsyncClient, Client
from mooncake_store.cli.bench.cluster import Cluster
from mooncake_store.errors import ClosedError

ROUNDS = 12
CALLS: dict[str, Callable[[Any, str], Any]] = {
    "get": lambda store, key: store.get(key),
    "get_batch": lambda store, key: store.get_batch([key] * 40),
    "exists": lambda store, key: store.exists(key),
    "match_prefix": lambda store, key: store.match_prefix([key], pin=True),
    "put": lambda store, key: store.put(f"{key}/{uuid.uuid4().hex}", bytes(100_000)),
    "put_batch": lambda store, key: store.put_batch([f"{key}/{uuid.uuid4().hex}"], [b"x"]),
    "upsert": lambda store, key: store.upsert(key + "/new", b"value"),
    "pin": lambda store, key: store.pin(key),
    "remove": lambda store, key: store.remove(key + "/absent"),
    "annotate": lambda store, key: store.annotate(key, soft_pin=True),
    "stat": lambda store, key: store.stat(key),
    "explain": lambda store, key: store.explain(key),
    "members": lambda store, key: store.members(),
}


def failures(results: Any) -> list[Any]:
    """What is no proper result of a call: exceptions, also those in a batch's answer."""
    listed = results if isinstance(results, list) else [results]
    return [found for found in listed if isinstance(found, Exception)]


def repeat(
    name: str, call: Callable[[Any, str], Any], store: Client, key: str, ended: list[Any]
) -> None:
    """Call until the call raises; note whatever was no proper result."""
    while True:
        try:
            ended.extend((name, bad) for bad in failures(call(store, key)))
        except Exception as error:
            ended.append((name, error))
            return


@pytest.mark.timeout(120)
@pytest.mark.parametrize("use_local_paths", [True, False])
def test_calls_beside_close_end_well_or_with_closed(
    shared_cluster: Cluster, use_local_paths: bool
) -> None:
    key = f"closing/{uuid.uuid4().hex}"
    calls = {**CALLS, "view": lambda store, key: store.view(key).close()}
    with Client(shared_cluster.address) as other:
        other.put(key, b"value")
        for number in range(ROUNDS):
            store = Client(shared_cluster.address, strict=True, use_local_paths=use_local_paths)
            ended: list[tuple[str, Any]] = []
            threads = [
                threading.Thread(target=repeat, args=(name, call, store, key, ended))
                for name, call in calls.items()
            ]
            for thread in threads:
                thread.start()
            time.sleep(0.01 * (number % 4))
            store.close()
            for thread in threads:
                thread.join(30)
            assert {name for name, _ in ended} == set(calls)
            wrong = [(name, error) for name, error in ended if type(error) is not ClosedError]
            assert not wrong
        other.remove_matching(key, force=True)


@pytest.mark.timeout(120)
def test_async_calls_beside_close_end_well_or_with_closed(shared_cluster: Cluster) -> None:
    key = f"closing/{uuid.uuid4().hex}"

    async def repeat_async(call: Callable[[], Awaitable[Any]]) -> list[Any]:
        bad: list[Any] = []
        while True:
            try:
                bad += failures(await call())
            except Exception as error:
                return [*bad, error]

    async def round_of(number: int) -> None:
        store = await AsyncClient.open(shared_cluster.address, strict=True)
        tasks = {
            name: asyncio.create_task(repeat_async(lambda name=name: CALLS[name](store, key)))
            for name in CALLS
        }
        await asyncio.sleep(0.01 * (number % 4))
        await store.close()
        for name, task in tasks.items():
            ended = await asyncio.wait_for(task, 30)
            assert all(type(error) is ClosedError for error in ended), (name, ended)

    with Client(shared_cluster.address) as other:
        other.put(key, b"value")
        for number in range(ROUNDS):
            asyncio.run(round_of(number))
        other.remove_matching(key, force=True)
