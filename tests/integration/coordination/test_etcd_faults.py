"""Members that are killed, frozen or alone: nothing is missed, and nobody waits for ever.

A writer puts a key every 50 ms, a watcher must see each one that was acknowledged, and a lease of
5 s is kept. A: the only member is killed and started again after 3 s. B: it is frozen for 10 s.
C: of three members the one in use is killed for good. D: it is frozen for good.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest

from mooncake_store.coordination.etcd_client.store import CompactedError, prefix_end
from mooncake_store.coordination.fake import FakeEtcd
from mooncake_store.coordination.lease import LeaseKeeper, LeaseState, boottime_ns
from mooncake_store.errors import ClusterError, UnavailableError

pytestmark = [pytest.mark.asyncio, pytest.mark.slow]

AT = b"faults/"
LEASE_S = 5


class Writer:
    """Puts the next number every 50 ms; knows which were acknowledged."""

    def __init__(self, store: Any) -> None:
        self.acknowledged: list[bytes] = []
        self.longest_s = 0.0  # between two acknowledgements
        self._store = store
        self._task = asyncio.create_task(self._write())

    async def _write(self) -> None:
        number = 0
        last_s = time.monotonic()
        while True:
            with contextlib.suppress(ClusterError):
                await self._store.put(AT + b"k", b"%d" % number)
                self.acknowledged.append(b"%d" % number)
                self.longest_s = max(self.longest_s, time.monotonic() - last_s)
                last_s = time.monotonic()
            number += 1
            await asyncio.sleep(0.05)

    async def close(self) -> None:
        self._task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await self._task


class Life:
    """How a lease stood, from change to change."""

    def __init__(self, keeper: LeaseKeeper) -> None:
        self.states: list[LeaseState] = []
        self.times_s: list[float] = []
        self.keeper = keeper
        self._task = asyncio.create_task(self._follow())

    async def _follow(self) -> None:
        async for lease in self.keeper.changes():
            if not self.states or self.states[-1] is not lease.state:
                self.states.append(lease.state)
                self.times_s.append(time.monotonic())

    async def close(self) -> None:
        self._task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await self._task
        await self.keeper.close()


class Scene:
    """A writer, a watcher and a lease, each with a client of its own."""

    def __init__(self, clients: list[Any], seen: Any, writer: Writer, life: Life) -> None:
        self.clients = clients
        self.seen = seen
        self.writer = writer
        self.life = life

    async def check_nothing_missed(self) -> None:
        """After everything works again: every acknowledged value is seen, once, in order."""
        await self.writer.close()
        last = self.writer.acknowledged[-1]
        await self.seen.until(lambda seen: last in seen.values[-100:], timeout_s=20.0)
        values = self.seen.values
        missed = set(self.writer.acknowledged) - set(values)
        assert not missed, f"{len(missed)} of {len(self.writer.acknowledged)} missed"
        revisions = [event.entry.mod_revision for event in self.seen.events]
        assert revisions == sorted(set(revisions)), "an event came twice"


@pytest.fixture
def scene(kit: Any) -> Callable[..., Any]:
    @contextlib.asynccontextmanager
    async def running(make_client: Callable[[], Any]) -> AsyncIterator[Scene]:
        clients = [make_client() for _ in range(3)]
        start = (await kit.eventually(lambda: clients[0].read(AT))).revision
        asked_ns = boottime_ns()
        grant = await clients[2].grant(LEASE_S)
        life = Life(LeaseKeeper(clients[2], grant.lease, grant.ttl_s, asked_ns))
        watch = clients[1].watch(AT, prefix_end(AT), from_revision=start + 1)
        async with kit.collecting(watch) as seen:
            writer = Writer(clients[0])
            await seen.until(lambda seen: len(seen.events) >= 10)
            try:
                yield Scene(clients, seen, writer, life)
            finally:
                await writer.close()
                await life.close()
        for client in clients:
            await client.close()

    return running


class FakeFaults:
    """The fake, with the faults that it can have."""

    def __init__(self) -> None:
        self.service = FakeEtcd()
        self.client = self.service.client
        self.kill = self.freeze = self.service.stop
        self.start = self.thaw = self.service.start


class RealFaults:
    """One real member."""

    def __init__(self, cluster: Any) -> None:
        self.client = cluster.client
        (member,) = cluster.members
        self.kill, self.start = member.kill, member.start
        self.freeze, self.thaw = member.freeze, member.thaw


@pytest.fixture(params=["fake", "etcd"])
def faults(request: pytest.FixtureRequest) -> Callable[[], Any]:
    if request.param == "fake":
        return FakeFaults
    start_etcd = request.getfixturevalue("start_etcd")
    return lambda: RealFaults(start_etcd())


async def test_a_killed_and_restarted(faults: Callable[[], Any], scene: Any) -> None:
    service = faults()
    async with scene(service.client) as now:
        service.kill()
        await asyncio.sleep(3.0)
        service.start()
        count = len(now.writer.acknowledged)
        await now.seen.until(lambda _: len(now.writer.acknowledged) >= count + 20, 20.0)
        await now.check_nothing_missed()
        assert LeaseState.LOST not in now.life.states
        assert now.life.keeper.now.state is LeaseState.VALID  # an etcd that was away extends it


async def test_b_frozen_for_ten_seconds(faults: Callable[[], Any], scene: Any) -> None:
    service = faults()
    async with scene(service.client) as now:
        service.freeze()
        frozen_s = time.monotonic()
        await asyncio.sleep(10.0)
        # It is told while nobody answers, and not after the thaw.
        assert now.life.states == [LeaseState.VALID, LeaseState.SUSPENDED]
        assert now.life.times_s[1] - frozen_s < LEASE_S
        service.thaw()
        count = len(now.writer.acknowledged)
        await now.seen.until(lambda _: len(now.writer.acknowledged) >= count + 20, 20.0)
        await now.check_nothing_missed()
        await now.seen.until(lambda _: now.life.states[-1] is not LeaseState.SUSPENDED, 10.0)


@pytest.mark.parametrize("is_killed", [True, False], ids=["c_killed", "d_frozen"])
async def test_the_member_in_use_of_three_goes_for_good(
    start_etcd: Callable[..., Any], scene: Any, is_killed: bool
) -> None:
    cluster = start_etcd(3)
    await cluster.wait_ready()
    async with scene(cluster.client) as now:
        assert {client.member for client in now.clients} == {cluster.members[0].endpoint}
        member = cluster.members[0]
        (member.kill if is_killed else member.freeze)()
        count = len(now.writer.acknowledged)
        # An election may be needed (1 to 2 s) on top of the deadlines of attempts.
        await now.seen.until(lambda _: len(now.writer.acknowledged) >= count + 40, 30.0)
        await now.check_nothing_missed()
        assert LeaseState.LOST not in now.life.states
        assert now.life.keeper.now.state is LeaseState.VALID
        if not is_killed:
            assert member.endpoint not in {client.member for client in now.clients}


async def test_without_a_quorum_calls_end_and_the_watch_survives(
    start_etcd: Callable[..., Any], scene: Any
) -> None:
    cluster = start_etcd(3)
    await cluster.wait_ready()
    client = cluster.client()
    async with scene(cluster.client) as now:
        for member in cluster.members[1:]:
            member.freeze()
        started_s = time.monotonic()
        with pytest.raises(UnavailableError):
            await client.put(AT + b"x", b"")
        assert time.monotonic() - started_s < 8.0
        await asyncio.sleep(max(0.0, started_s + 7.0 - time.monotonic()))
        for member in cluster.members[1:]:
            member.thaw()
        count = len(now.writer.acknowledged)
        await now.seen.until(lambda _: len(now.writer.acknowledged) >= count + 20, 30.0)
        await now.check_nothing_missed()
    await client.close()


async def test_a_backlog_of_6000_cut_off_after_its_first_response_is_seen_whole(
    start_etcd: Callable[..., Any],
) -> None:
    cluster = start_etcd(3)
    await cluster.wait_ready()
    client, watching = cluster.client(), cluster.client()
    start = (await client.read(AT)).revision
    # 2 KiB each: a response of a thousand is beyond etcd's limit and comes in fragments, and the
    # rest cannot all have arrived when the member is killed.
    numbers = iter(range(6000))

    async def put_some() -> None:
        for number in numbers:
            await client.put(AT + b"%d" % number, b"%2048d" % number)

    await asyncio.gather(*(put_some() for _ in range(64)))
    watch = watching.watch(AT, prefix_end(AT), from_revision=start + 1)
    events = list(await asyncio.wait_for(anext(watch), 20.0))
    assert 0 < len(events) < 6000
    cluster.member(watching.member).kill()
    while len(events) < 6000:
        events += await asyncio.wait_for(anext(watch), 20.0)
    await watch.aclose()
    assert sorted(int(event.entry.value) for event in events) == list(range(6000))
    revisions = [event.entry.mod_revision for event in events]
    assert revisions == sorted(set(revisions))
    await client.close()
    await watching.close()


async def test_a_watch_whose_history_is_compacted_while_it_is_cut_off_says_so(
    start_etcd: Callable[..., Any], kit: Any
) -> None:
    cluster = start_etcd()
    (member,) = cluster.members
    client, watching = cluster.client(), cluster.client()
    start = (await kit.eventually(lambda: client.read(AT))).revision
    watch = watching.watch(AT, from_revision=start + 1)
    await client.put(AT, b"1")
    assert len(await asyncio.wait_for(anext(watch), 10.0)) == 1
    # The watcher looks away (nothing is read), the process dies, and history goes on without it.
    waiting = asyncio.ensure_future(anext(watch))
    member.kill()
    await asyncio.sleep(0.3)
    member.start()
    other = cluster.client()

    async def overtake() -> int:
        for number in range(20):
            revision = await other.put(AT + b"other", b"%d" % number)
        await other.compact(revision)
        return int(revision)

    # Faster than the watch comes back or not: both are right, losing an event would not be.
    await kit.eventually(overtake)
    await other.put(AT, b"2")
    try:
        events = await asyncio.wait_for(waiting, 15.0)
        assert [event.entry.value for event in events] == [b"2"]
    except CompactedError as error:
        assert error.revision > start
    await watch.aclose()
    for each in (client, watching, other):
        await each.close()
