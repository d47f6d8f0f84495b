"""What masters and store servers rely on, of every coordinator: `local`, etcd, and etcd's fake."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import os
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from mooncake_store.coordination import (
    Leader,
    LeaseState,
    NodeNumber,
    Tombstone,
    open_coordinator,
)
from mooncake_store.coordination.etcd import EtcdCoordinator
from mooncake_store.coordination.etcd_client.address import EtcdAddress
from mooncake_store.coordination.fake import FakeEtcd
from mooncake_store.coordination.local import LocalCoordinator
from mooncake_store.errors import ConfigError, InUseError, NotLeaderError, UnavailableError

pytestmark = pytest.mark.asyncio
numbers = itertools.count()
WAIT_S = 15.0


class Backend:
    """Makes coordinators of one and the same cluster."""

    def __init__(self, make: Any, service: Any = None) -> None:
        self._make = make
        self.service = service  # the fake's
        self.made: list[Any] = []

    def __call__(self) -> Any:
        self.made.append(self._make())
        return self.made[-1]


async def backend_of(kind: str, request: pytest.FixtureRequest) -> Backend:
    if kind == "local":
        folder: Path = request.getfixturevalue("tmp_path")
        return Backend(lambda: LocalCoordinator(folder / "cluster"))
    if kind == "fake":
        service = FakeEtcd()
        address = EtcdAddress(("fake:1",), lease_s=1)
        return Backend(lambda: EtcdCoordinator(lambda _: service.client(), address), service)
    cluster = request.getfixturevalue("shared_etcd")
    await cluster.wait_ready()
    uri = f"etcd://{cluster.members[0].endpoint}/coordinator{next(numbers)}"
    return Backend(lambda: open_coordinator(uri, port=0))


async def closing(backend: Backend) -> None:
    for coordinator in backend.made:
        await coordinator.close()


@pytest_asyncio.fixture(params=["local", "fake", "etcd"])
async def cluster(request: pytest.FixtureRequest) -> AsyncIterator[Backend]:
    backend = await backend_of(request.param, request)
    yield backend
    await closing(backend)


@pytest_asyncio.fixture(params=["fake", "etcd"])
async def etcd(request: pytest.FixtureRequest) -> AsyncIterator[Backend]:
    backend = await backend_of(request.param, request)
    yield backend
    await closing(backend)


@pytest_asyncio.fixture
async def fake(request: pytest.FixtureRequest) -> AsyncIterator[Backend]:
    backend = await backend_of("fake", request)
    yield backend
    await closing(backend)


async def test_each_leader_gets_a_higher_epoch_and_the_same_secret(cluster: Backend) -> None:
    assert await cluster().epoch() == 0
    found = []
    for _ in range(3):
        coordinator = cluster()
        found.append(await coordinator.lead("here"))
        await coordinator.close()
    assert [each.epoch for each in found] == [1, 2, 3]
    assert len({(each.cluster, each.secret) for each in found}) == 1
    assert len(found[0].secret) == 192
    assert await cluster().epoch() == 3


async def test_a_leader_is_found_once_it_has_told_where_it_is(cluster: Backend) -> None:
    follower = cluster()
    watch = follower.watch_leader()
    seen: list[Leader | None] = []

    async def collect() -> None:
        async for leader in watch:
            seen.append(leader)

    async def until(wanted: Leader | None) -> None:
        async with asyncio.timeout(WAIT_S) if hasattr(asyncio, "timeout") else _no_limit():
            while not seen or seen[-1] != wanted:
                await asyncio.sleep(0.01)

    task = asyncio.create_task(collect())
    await until(None)
    first = cluster()
    leadership = await first.lead("here")
    assert await follower.leader() is None  # it does not serve yet
    told = Leader("127.0.0.1:1", leadership.epoch, "/run/a", "ab" * 16)
    await first.publish(told)
    await until(told)
    assert await follower.leader() == told
    await first.close()
    await until(None)
    second = cluster()
    leadership = await second.lead("there")
    await second.publish(Leader("127.0.0.1:2", leadership.epoch))
    await until(Leader("127.0.0.1:2", leadership.epoch))
    task.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await task
    await watch.aclose()


@contextlib.asynccontextmanager
async def _no_limit() -> AsyncIterator[None]:
    yield  # Python 3.10: the test's own timeout ends it


async def test_only_one_leads_at_a_time(cluster: Backend) -> None:
    first, second = cluster(), cluster()
    await first.lead("first")
    if not second.waits_to_lead:
        with pytest.raises(InUseError):
            await second.lead("second")
        return
    waiting = asyncio.create_task(second.lead("second"))
    await asyncio.sleep(3.0)  # longer than a lease: the first one's is renewed
    assert not waiting.done()
    await first.close()
    leadership = await asyncio.wait_for(waiting, WAIT_S)
    assert leadership.epoch == 2


async def test_a_lease_is_valid_from_the_first_moment(cluster: Backend) -> None:
    coordinator = cluster()
    await coordinator.lead("here")
    lease = coordinator.lease()
    assert (await anext(lease)).state is LeaseState.VALID
    await lease.aclose()


async def test_tombstones_are_kept_the_highest_of_each_key(cluster: Backend) -> None:
    first = cluster()
    await first.lead("here")
    keys = [number.to_bytes(16, "big") for number in range(300)]
    await first.write_tombstones([Tombstone(key, 7) for key in keys])
    await first.write_tombstones([Tombstone(keys[0], 9), Tombstone(keys[0], 8)])
    await first.write_tombstones([Tombstone(keys[1], 3)])
    await first.drop_tombstones([Tombstone(keys[0], 8), Tombstone(keys[2], 7)])
    await first.drop_tombstones([Tombstone(key, 7) for key in keys[200:]])
    await first.close()
    second = cluster()
    await second.lead("here")
    expected = {key: 7 for key in keys[:200]}
    expected[keys[0]] = 9
    del expected[keys[2]]
    found = await second.tombstones()
    assert {each.key_hash: each.version for each in found} == expected
    assert len(found) == len(expected)
    await second.drop_tombstones(found)
    assert await second.tombstones() == ()


async def test_only_a_leader_writes(cluster: Backend) -> None:
    coordinator = cluster()
    with pytest.raises(NotLeaderError):
        await coordinator.write_tombstones([Tombstone(bytes(16), 1)])
    with pytest.raises(NotLeaderError):
        await coordinator.publish(Leader("127.0.0.1:1"))


async def test_an_incarnation_is_higher_than_any_before(cluster: Backend) -> None:
    first, second = cluster(), cluster()
    node, other = b"n" * 16, b"o" * 16
    assert await first.raise_member(node, 1) == 1
    assert await second.raise_member(node, 1) == 2
    assert await first.raise_member(node, 40) == 40
    assert await first.raise_member(node, 40) == 41
    assert await second.raise_member(other, 0) == 1
    together = await asyncio.gather(*(each.raise_member(node, 1) for each in (first, second)))
    assert sorted(together) == [42, 43]


# ---- what only a service can do to a leader ----


async def test_a_leader_that_cannot_renew_is_told_at_its_deadline_and_may_come_back(
    fake: Backend,
) -> None:
    coordinator = fake()
    await coordinator.lead("here")
    lease = coordinator.lease()
    assert (await anext(lease)).state is LeaseState.VALID
    fake.service.stop()

    async def until(state: LeaseState) -> None:
        while (await anext(lease)).state is not state:
            pass

    await asyncio.wait_for(until(LeaseState.SUSPENDED), WAIT_S)
    with pytest.raises(UnavailableError):
        await coordinator.publish(Leader("127.0.0.1:1"))
    fake.service.start()  # its leases begin anew
    await asyncio.wait_for(until(LeaseState.VALID), WAIT_S)
    await coordinator.publish(Leader("127.0.0.1:1"))
    await lease.aclose()


async def test_a_leader_whose_lease_is_gone_is_told_and_can_write_nothing(etcd: Backend) -> None:
    coordinator, other = etcd(), etcd()
    await coordinator.lead("here")
    await coordinator.write_tombstones([Tombstone(bytes(16), 1)])
    lease = coordinator.lease()
    # As if it had been frozen for longer than its lease: somebody else leads meanwhile.
    await coordinator._keeper._store.revoke(coordinator._keeper.lease)
    assert (await other.lead("there")).epoch == 2
    with pytest.raises(NotLeaderError):
        await coordinator.write_tombstones([Tombstone(b"x" * 16, 1)])
    with pytest.raises(NotLeaderError):
        await coordinator.drop_tombstones([Tombstone(bytes(16), 1)])
    with pytest.raises(NotLeaderError):
        await coordinator.publish(Leader("127.0.0.1:1"))

    async def last() -> LeaseState:
        return [change.state async for change in lease][-1]

    assert await asyncio.wait_for(last(), WAIT_S) is LeaseState.LOST
    assert await other.tombstones() == (Tombstone(bytes(16), 1),)


async def test_many_that_want_to_lead_do_so_one_after_the_other(etcd: Backend) -> None:
    epochs: list[int] = []
    leading = 0

    async def lead_and_leave() -> None:
        nonlocal leading
        coordinator = etcd()
        leadership = await coordinator.lead("one of many")
        leading += 1
        assert leading == 1
        epochs.append(leadership.epoch)
        await asyncio.sleep(0.05)
        leading -= 1
        await coordinator.close()

    await asyncio.wait_for(asyncio.gather(*(lead_and_leave() for _ in range(8))), 45.0)
    assert epochs == list(range(1, 9))


async def test_who_stands_by_is_told_until_it_leads_or_goes(etcd: Backend) -> None:
    first, second, third = etcd(), etcd(), etcd()
    await first.lead("one")
    assert await first.standbys() == ()
    waiting = {
        who: asyncio.create_task(who.lead(name))
        for who, name in ((second, "two"), (third, "three"))
    }

    async def until(names: set[str]) -> None:
        while {each.address for each in await first.standbys()} != names:
            await asyncio.sleep(0.02)

    await asyncio.wait_for(until({"two", "three"}), WAIT_S)
    assert {each.pid for each in await first.standbys()} == {os.getpid()}
    waiting.pop(third).cancel()
    await third.close()
    await asyncio.wait_for(until({"two"}), WAIT_S)
    # As if it had been frozen for longer than its lease.
    await second._store.revoke(second._notice._keeper.lease)
    await asyncio.wait_for(until(set()), WAIT_S)
    await asyncio.wait_for(until({"two"}), WAIT_S)
    await first.close()
    await asyncio.wait_for(waiting[second], WAIT_S)
    first = etcd()
    await asyncio.wait_for(until(set()), WAIT_S)


async def test_a_single_master_has_nobody_who_stands_by(tmp_path: Path) -> None:
    coordinator = LocalCoordinator(tmp_path)
    await coordinator.lead("one")
    assert await coordinator.standbys() == ()
    await coordinator.close()


async def test_numbers_are_kept_and_stay_when_their_nodes_are_forgotten(cluster: Backend) -> None:
    first = cluster()
    node, other = b"n" * 16, b"o" * 16
    assert await first.numbers() == ()
    with pytest.raises(NotLeaderError):
        await first.keep_number(NodeNumber(0, node))
    with pytest.raises(NotLeaderError):
        await first.forget_member(NodeNumber(0, node))
    await first.lead("here")
    await first.raise_member(node, 3)
    await first.keep_number(NodeNumber(0, node, "node-a"))
    await first.keep_number(NodeNumber(12, other, "node-b"))
    await first.forget_member(NodeNumber(0, node, "node-a", struck=2**62 + 5))
    assert await first.members() == frozenset()
    await first.raise_member(other, 1)
    await first.close()
    second = cluster()
    found = {number.number: number for number in await second.numbers()}
    assert found == {
        0: NodeNumber(0, node, "node-a", struck=2**62 + 5),
        12: NodeNumber(12, other, "node-b"),
    }
    assert await second.members() == frozenset({other})


async def test_drains_outlive_leaders_and_end_with_their_member(cluster: Backend) -> None:
    first = cluster()
    node, other = b"n" * 16, b"o" * 16
    assert await first.drains() == {}
    with pytest.raises(NotLeaderError):
        await first.set_drain(node, 7)
    await first.lead("here")
    await first.raise_member(node, 1)
    await first.set_drain(node, 2**32 + 1)
    await first.set_drain(node, 2**32 + 2)
    await first.set_drain(other, 2**52)
    await first.close()
    second = cluster()
    assert await second.drains() == {node: 2**32 + 2, other: 2**52}
    await second.lead("there")
    await second.set_drain(other, None)
    await second.set_drain(other, None)
    assert await second.drains() == {node: 2**32 + 2}
    await second.forget_member(NodeNumber(0, node, "node-a", struck=1))
    assert await second.drains() == {}


async def test_settings_of_all_masters_are_kept_and_watched(cluster: Backend) -> None:
    master, tool = cluster(), cluster()
    assert await tool.cluster_settings() == {}
    await master.lead("here")
    async with contextlib.aclosing(master.watch_cluster_settings()) as changes:
        assert await asyncio.wait_for(anext(changes), WAIT_S) == {}
        await tool.set_cluster_setting("member_grace", "30s")
        assert await asyncio.wait_for(anext(changes), WAIT_S) == {"member_grace": "30s"}
        await tool.set_cluster_setting("eviction", "lfu")
        assert (await asyncio.wait_for(anext(changes), WAIT_S))["eviction"] == "lfu"
        await tool.set_cluster_setting("member_grace", None)
        while await asyncio.wait_for(anext(changes), WAIT_S) != {"eviction": "lfu"}:
            pass
    await tool.set_cluster_setting("never_there", None)
    assert await cluster().cluster_settings() == {"eviction": "lfu"}


@pytest.mark.parametrize("key", ["epoch", "cluster", "numbers/0", "members/" + "00" * 16])
async def test_a_damaged_key_is_an_error_and_no_guess(fake: Backend, key: str) -> None:
    client = fake.service.client()
    await client.put(f"mooncake-store/{key}".encode(), b"{")
    coordinator = fake()
    with pytest.raises(ConfigError, match="damaged"):
        if key.startswith("members"):
            await coordinator.raise_member(bytes(16), 1)
        elif key.startswith("numbers"):
            await coordinator.numbers()
        else:
            await coordinator.lead("here")


async def test_a_lost_answer_of_the_transaction_that_takes_the_lead_is_no_second_epoch(
    fake: Backend,
) -> None:
    coordinator = fake()
    store = coordinator._store
    transact = store.transact

    async def answer_lost_once(conditions: Any, then: Any, otherwise: Any = (), **kwargs: Any):
        outcome = await transact(conditions, then, otherwise, **kwargs)
        if len(then) == 3:  # that one: what a repetition finds is what counts
            outcome = await transact(conditions, then, otherwise, **kwargs)
            assert not outcome.is_met
        return outcome

    store.transact = answer_lost_once
    assert (await coordinator.lead("here")).epoch == 1
    assert await coordinator.epoch() == 1
