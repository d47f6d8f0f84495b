"""Rows of a host's memory to the store and back, as vLLM's offloading has them moved."""

from __future__ import annotations

import time
import uuid
from collections.abc import Iterator

import pytest

from mooncake_store import CacheIdentity, Client
from mooncake_store.cli.bench.cluster import Cluster
from mooncake_store.errors import ConfigError
from mooncake_store.integrations.engine_store import EngineStore
from mooncake_store.integrations.vllm.settings import TierSettings
from mooncake_store.integrations.vllm.tier_transfers import Ended, TierTransfers

ROWS, ROW_BYTES = 8, 4096
NAMES = [bytes([at]) * 36 for at in range(ROWS)]


@pytest.fixture
def memory() -> memoryview:
    return memoryview(bytearray(ROWS * ROW_BYTES)).cast("B", (ROWS, ROW_BYTES))


@pytest.fixture
def identity() -> CacheIdentity:
    return CacheIdentity(model=uuid.uuid4().hex, dtype="float16", layout="rows", block_size=16)


@pytest.fixture
def tier(
    shared_cluster: Cluster, memory: memoryview, identity: CacheIdentity
) -> Iterator[TierTransfers]:
    settings = TierSettings(master=shared_cluster.address)
    store = EngineStore(settings, name="test")
    made = TierTransfers(store, settings, identity, memory)
    yield made
    made.close()
    store.close()


def ended(tier: TierTransfers, count: int = 1) -> list[Ended]:
    """Return so many jobs that have ended, in the order of their numbers."""
    found: list[Ended] = []
    deadline = time.monotonic() + 30
    while len(found) < count and time.monotonic() < deadline:
        found += tier.take_ended()
        time.sleep(0.002)
    return sorted(found, key=lambda job: job.job_id)


def fill(memory: memoryview, row: int, value: int) -> None:
    flat = memory.cast("B")
    flat[row * ROW_BYTES : (row + 1) * ROW_BYTES] = bytes([value]) * ROW_BYTES


def row_of(memory: memoryview, row: int) -> bytes:
    return bytes(memory.cast("B")[row * ROW_BYTES : (row + 1) * ROW_BYTES])


def test_rows_come_back_into_other_rows(tier: TierTransfers, memory: memoryview) -> None:
    for row in range(4):
        fill(memory, row, row + 1)
    assert tier.exists(NAMES[:4]) == [False] * 4
    tier.save(7, NAMES[:4], range(4))
    (job,) = ended(tier)
    assert (job.job_id, job.is_done, job.moved_bytes) == (7, [True] * 4, 4 * ROW_BYTES)
    assert tier.exists(NAMES) == [True] * 4 + [False] * 4
    tier.load(8, NAMES[:4], [7, 6, 5, 4])
    (job,) = ended(tier)
    assert job.is_done == [True] * 4
    assert [row_of(memory, row)[0] for row in range(8)] == [1, 2, 3, 4, 4, 3, 2, 1]
    assert tier.is_idle


def test_what_is_there_already_is_not_moved(tier: TierTransfers, memory: memoryview) -> None:
    fill(memory, 0, 1)
    tier.save(1, NAMES[:1], [0])
    ended(tier)
    fill(memory, 0, 9)
    tier.save(2, NAMES[:1], [0])
    (job,) = ended(tier)
    assert (job.is_done, job.moved_bytes) == ([True], 0)
    tier.load(3, NAMES[:1], [1])
    ended(tier)
    assert row_of(memory, 1)[0] == 1  # the first one stays


def test_a_chunk_that_has_gone_fails_alone(
    tier: TierTransfers, memory: memoryview, identity: CacheIdentity, shared_cluster: Cluster
) -> None:
    for row in range(3):
        fill(memory, row, row + 1)
    tier.save(1, NAMES[:3], range(3))
    ended(tier)
    with Client(shared_cluster.address) as store:
        store.remove(identity.key(NAMES[1]))
        store.upsert(identity.key(NAMES[2]), b"of another size")
    tier.load(2, NAMES[:3], [3, 4, 5])
    (job,) = ended(tier)
    assert job.is_done == [True, False, False]
    assert row_of(memory, 3)[0] == 1


def test_jobs_end_without_a_store(memory: memoryview, identity: CacheIdentity) -> None:
    settings = TierSettings(master="127.0.0.1:1")
    store = EngineStore(settings, name="test", patience_s=0.1)
    tier = TierTransfers(store, settings, identity, memory)
    tier.save(1, NAMES[:1], [0])
    tier.load(2, NAMES[:2], [0, 1])
    tier.drain()
    assert [job.is_done for job in ended(tier, 2)] == [[False], [False, False]]
    assert tier.exists(NAMES[:2]) == [False, False]
    tier.touch(NAMES)
    tier.close()
    store.close()


def test_rows_that_are_none_are_refused(tier: TierTransfers) -> None:
    with pytest.raises(ValueError, match="1 names and rows"):
        tier.save(1, NAMES[:1], [ROWS])
    with pytest.raises(ValueError, match="2 names and rows"):
        tier.load(1, NAMES[:2], [0])
    with pytest.raises(ConfigError, match="did you mean lease_s"):
        TierSettings.read({"lease": 1})
