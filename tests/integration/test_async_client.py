"""The asyncio client against real processes."""

from __future__ import annotations

import asyncio
import random
import time
import uuid
from collections.abc import AsyncIterator

import pytest
import pytest_asyncio

from mooncake_store import AsyncClient
from mooncake_store.cli.bench.cluster import Cluster
from mooncake_store.errors import (
    BufferTooSmallError,
    ClosedError,
    InvalidKeyError,
    RequestError,
    StoreError,
)

pytestmark = pytest.mark.asyncio


@pytest_asyncio.fixture(params=["local", "tcp"])
async def store(
    request: pytest.FixtureRequest, shared_cluster: Cluster
) -> AsyncIterator[AsyncClient]:
    local = request.param == "local"
    async with AsyncClient(shared_cluster.address, strict=True, use_local_paths=local) as client:
        yield client


@pytest.fixture
def prefix() -> str:
    return f"{uuid.uuid4().hex}/"


@pytest.mark.parametrize("size", [0, 1, 4096, 70_000, 3 << 20])
async def test_object_round_trips(store: AsyncClient, prefix: str, size: int) -> None:
    value = random.Random(size).randbytes(size)
    assert await store.put(prefix, value) is True
    assert await store.put(prefix, value) is False
    assert await store.get(prefix) == value
    buffer = bytearray(size)
    assert await store.get_into(prefix, buffer) == size
    part = bytearray(9)
    read = await store.get_range(prefix, part, size // 2)
    assert read == min(9, size - size // 2)
    assert part[:read] == buffer[size // 2 : size // 2 + read]
    assert buffer == value
    assert await store.exists(prefix) is True
    assert await store.remove(prefix) is True
    assert await store.get(prefix) is None


async def test_batches_and_concurrency(store: AsyncClient, prefix: str) -> None:
    keys = [f"{prefix}{number}" for number in range(100)]
    values = [random.Random(key).randbytes(number * 100) for number, key in enumerate(keys)]
    stored = await asyncio.gather(
        *(store.put(key, value) for key, value in zip(keys, values, strict=True))
    )
    assert stored == [True] * 100
    assert await store.get_batch([*keys, "no"]) == [*values, None]
    assert await store.exists_batch(["no", *keys]) == [False] + [True] * 100
    assert await store.match_prefix([*keys[:7], "no"], pin=True) == 7
    assert await store.unpin(keys[:7]) == [True] * 7
    buffers = [bytearray(len(value)) for value in values]
    assert await store.get_batch_into(keys, buffers) == [len(value) for value in values]
    assert [bytes(buffer) for buffer in buffers] == values
    found = await asyncio.gather(*(store.get(key) for key in keys))
    assert found == values
    assert len([item async for item in store.list(prefix)]) == 100
    assert await store.remove_matching(prefix) == 100


async def test_errors_are_the_same(store: AsyncClient, prefix: str) -> None:
    await store.put(prefix, b"0123")
    with pytest.raises(BufferTooSmallError):
        await store.get_into(prefix, bytearray(2))
    with pytest.raises(InvalidKeyError):
        await store.get("")
    with pytest.raises(TypeError):
        await store.get(7)  # type: ignore[arg-type]
    with pytest.raises(StoreError):
        await store.put(prefix + "x", b"", replicas=3, min_replicas=3)


async def test_loop_turns_while_bytes_move(store: AsyncClient, prefix: str) -> None:
    value = bytes(16 << 20)
    turns = 0

    async def turn() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    turning = asyncio.create_task(turn())
    await store.put(prefix, value)
    assert await store.get(prefix) == value
    turning.cancel()
    assert turns > 20


async def test_cancelled_read_ends_before_its_buffer_is_free(
    store: AsyncClient, prefix: str
) -> None:
    await store.put(prefix, bytes(8 << 20))
    task = asyncio.create_task(store.get_into(prefix, bytearray(8 << 20)))
    await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert await store.exists(prefix) is True


async def test_stat_annotate_and_replicas(store: AsyncClient, prefix: str) -> None:
    await store.put(prefix, b"x", replicas=2)
    found = await store.stat(prefix)
    assert found is not None and len(found.replicas) == 2
    await store.annotate(prefix, hard_pin=True, ttl_s=100)
    found = await store.stat(prefix)
    assert found is not None and found.is_hard_pinned and found.ttl_s
    assert await store.change_replica(prefix, 1) == 1
    assert (await store.explain(prefix)).stat is not None
    assert await store.remove(prefix, force=True) is True
    gone = await store.explain(prefix)
    assert gone.stat is None and gone.fates[0].kind == "removed"
    assert len(await store.members()) == 2


async def test_tasks(store: AsyncClient, prefix: str) -> None:
    names = sorted(member.name for member in await store.members())
    await store.put(f"{prefix}a", b"x", replicas=2)
    begun = await store.replicate_prefix(prefix, 1)
    while not (task := await store.task(begun.id, failures=5)) or not task.has_ended:
        await asyncio.sleep(0.01)
    assert (task.state, task.objects_done, task.prefix) == ("done", 1, prefix)
    found = await store.stat(f"{prefix}a")
    assert found is not None and found.replicas_wanted == 1
    other = next(name for name in names if name != found.replicas[0].node)
    numbers = {member.name: member.server for member in await store.members()}
    assert await store.move(f"{prefix}a", target=numbers[other]) == 1
    moved = await store.move_prefix(prefix, other)
    drained = await store.drain(other)
    assert (await store.drain(other)).id == drained.id
    assert {moved.id, drained.id} < {task.id for task in await store.tasks()}
    await store.cancel_task(drained.id)
    assert await store.undrain(other) is False
    assert (await store.repair()).kind == "repair"
    assert await store.task("1-999999") is None
    with pytest.raises(RequestError):
        await store.task("seven")
    with pytest.raises(RequestError):
        await store.drain("no-such-node")
    assert await store.remove(f"{prefix}a") is True


async def test_tensors(store: AsyncClient, prefix: str) -> None:
    numpy = pytest.importorskip("numpy")
    array = numpy.arange(1000, dtype="float32").reshape(10, 100)
    assert await store.put_tensor(prefix, array) is True
    assert (await store.get_tensor(prefix, library="numpy") == array).all()
    target = numpy.empty_like(array)
    assert await store.get_tensor_into(prefix, target) is True
    assert (target == array).all()


@pytest.mark.parametrize("local", [True, False])
async def test_what_is_known_is_read_while_calls_wait_for_a_frozen_master(local: bool) -> None:
    with Cluster(pool_size_bytes=64 << 20) as cluster:
        settings = {"strict": True, "use_local_paths": local, "timeout_s": 10.0}
        async with AsyncClient(cluster.address, **settings) as store:
            values = {f"known/{number}": bytes([number]) * 70_000 for number in range(8)}
            for key, value in values.items():
                assert await store.put(key, value)
                assert await store.get(key) == value
            cluster.master.freeze()
            try:
                waiting = [asyncio.create_task(store.exists(f"new/{at}")) for at in range(20)]
                waiting += [asyncio.create_task(store.put(f"new/{at}", b"v")) for at in range(20)]
                # Reads of what is not known wait too, and are in nobody's way.
                waiting += [asyncio.create_task(store.get(f"new/{at}")) for at in range(20)]
                await asyncio.sleep(0.1)
                begun_s = time.monotonic()
                for key, value in values.items():
                    assert await store.get(key) == value
                keys = list(values)
                assert await store.get_batch(keys) == list(values.values())
                buffer = bytearray(70_000)
                assert await store.get_into(keys[3], buffer) == 70_000
                assert buffer == values[keys[3]]
                taken_s = time.monotonic() - begun_s
                assert not any(call.done() for call in waiting), "nobody waited for the master"
            finally:
                cluster.master.thaw()
            assert taken_s < 1.0
            done = await asyncio.gather(*waiting)
            assert done[20:40] == [True] * 20
            assert await store.get("new/7") == b"v"


async def test_no_worker_threads_are_refused() -> None:
    with pytest.raises(RequestError, match="worker threads"):
        AsyncClient(worker_threads=0)


async def test_closed_client_says_so(shared_cluster: Cluster) -> None:
    client = await AsyncClient.open(shared_cluster.address)
    await client.close()
    await client.close()
    with pytest.raises(ClosedError):
        await client.get("x")


async def test_deadline_holds_with_nobody_there() -> None:
    started = time.monotonic()
    with pytest.raises(StoreError):
        await AsyncClient.open("127.0.0.1:9", connect_timeout_s=0.5)
    assert time.monotonic() - started < 1.5
