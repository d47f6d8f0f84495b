"""A lease is kept through a service that is slow but there, and not through one that is away."""

from __future__ import annotations

import asyncio
import contextlib
from typing import Any

import pytest

from mooncake_store.coordination.fake import FakeEtcd
from mooncake_store.coordination.lease import LeaseKeeper, LeaseState, boottime_ns
from mooncake_store.errors import UnavailableError

pytestmark = pytest.mark.asyncio

TTL_S = 1


class SlowStore:
    """Answers each renewal `delay_s` after it was asked; within the caller's time only."""

    def __init__(self, delay_s: float) -> None:
        self.delay_s = delay_s
        self.under_way = 0
        self.most_under_way = 0
        self._store: Any = FakeEtcd(ttl_min_s=TTL_S).client()

    async def grant(self) -> tuple[int, int]:
        granted = await self._store.grant(TTL_S)
        return granted.lease, granted.ttl_s

    async def renew(self, lease: int, *, timeout_s: float, patience_s: float | None = None) -> int:
        self.under_way += 1
        self.most_under_way = max(self.most_under_way, self.under_way)
        try:
            ttl_s: int = await self._store.renew(lease, timeout_s=timeout_s)
            await asyncio.wait_for(asyncio.sleep(self.delay_s), timeout_s)
            return ttl_s
        except asyncio.TimeoutError as error:
            raise UnavailableError("no answer in time", node="slow") from error
        finally:
            self.under_way -= 1

    async def revoke(self, lease: int) -> None:
        await self._store.revoke(lease)


async def states_with(store: SlowStore, seconds: float) -> list[LeaseState]:
    asked_ns = boottime_ns()
    lease, ttl_s = await store.grant()
    keeper = LeaseKeeper(store, lease, ttl_s, asked_ns)  # type: ignore[arg-type]
    seen: list[LeaseState] = []

    async def follow() -> None:
        async for each in keeper.changes():
            if not seen or seen[-1] is not each.state:
                seen.append(each.state)

    follower = asyncio.create_task(follow())
    await asyncio.sleep(seconds)
    follower.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await follower
    await keeper.close()
    assert store.under_way == 0
    return seen


@pytest.mark.parametrize("delay_s", [0.0, 0.3, 0.5])  # a quarter of the time to live is 0.25
async def test_a_slow_service_is_no_lost_lease(delay_s: float) -> None:
    store = SlowStore(delay_s)
    assert await states_with(store, 2.5) == [LeaseState.VALID]
    assert store.most_under_way <= 4


async def test_a_service_that_answers_too_late_suspends_it() -> None:
    store = SlowStore(5.0)
    assert await states_with(store, 1.5) == [LeaseState.VALID, LeaseState.SUSPENDED]
    assert 2 <= store.most_under_way <= 4
