"""What coordination relies on, shown of a real etcd and of the fake alike."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import AsyncIterator
from typing import Any

import pytest
import pytest_asyncio

from mooncake_store.coordination.etcd_client.store import (
    CompactedError,
    Delete,
    KeyIs,
    Put,
    Read,
    prefix_end,
)
from mooncake_store.coordination.fake import FakeEtcd
from mooncake_store.errors import StoreError

pytestmark = pytest.mark.asyncio
numbers = itertools.count()


@pytest_asyncio.fixture(params=["fake", "etcd"])
async def stores(request: pytest.FixtureRequest) -> AsyncIterator[Any]:
    """Makes clients of one and the same service."""
    made = []
    if request.param == "fake":
        make = FakeEtcd().client
    else:
        cluster = request.getfixturevalue("shared_etcd")
        await cluster.wait_ready()
        make = cluster.client

    def client() -> Any:
        made.append(make())
        return made[-1]

    yield client
    for each in made:
        await each.close()


@pytest.fixture
def at() -> bytes:
    """A prefix of keys that no other test uses."""
    return b"conformance/%d/" % next(numbers)


async def test_a_key_is_read_as_it_was_put(stores: Any, at: bytes) -> None:
    store = stores()
    assert (await store.read(at)).entries == ()
    first = await store.put(at, b"1")
    second = await store.put(at, b"2")
    assert second > first
    found = await store.read(at)
    (entry,) = found.entries
    assert (entry.key, entry.value) == (at, b"2")
    assert (entry.create_revision, entry.mod_revision) == (first, second)
    assert found.revision >= second
    (old,) = (await store.read(at, revision=first)).entries
    assert old.value == b"1"


async def test_a_range_is_read_in_order_and_whole(stores: Any, at: bytes) -> None:
    store = stores()
    keys = [at + b"%05d" % number for number in range(300)]
    for start in range(0, 300, 100):
        puts = [Put(key, key) for key in keys[start : start + 100]]
        await store.transact((), puts, is_repeatable=True)
    await store.put(at[:-1] + b"0", b"beside")  # '/' + 1
    found = await store.read(at, prefix_end(at))
    assert [entry.key for entry in found.entries] == keys


async def test_more_keys_than_one_answer_holds_are_read_at_one_revision(
    stores: Any, at: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("mooncake_store.coordination.etcd_client.keys._PAGE", 7)
    store = stores()
    await store.transact((), [Put(at + b"%02d" % n, b"old") for n in range(50)], is_repeatable=True)
    found = await store.read(at, prefix_end(at))
    assert [entry.key for entry in found.entries] == [at + b"%02d" % n for n in range(50)]


async def test_a_transaction_does_one_of_two_things(stores: Any, at: bytes) -> None:
    store = stores()
    absent = KeyIs(at, created=0)
    outcome = await store.transact([absent], [Put(at, b"mine")], [Read(at)], is_repeatable=False)
    assert outcome.is_met
    assert outcome.reads == ()
    created = outcome.revision
    outcome = await store.transact([absent], [Put(at, b"his")], [Read(at)], is_repeatable=False)
    assert not outcome.is_met
    assert outcome.reads[0][0].value == b"mine"
    changed = await store.put(at, b"again")
    for condition, is_met in (
        (KeyIs(at, created=created), True),
        (KeyIs(at, created=changed), False),
        (KeyIs(at, changed=changed), True),
        (KeyIs(at, changed=created), False),
        (KeyIs(at, created=created, changed=changed), True),
        (KeyIs(at, created=created, changed=created), False),
    ):
        outcome = await store.transact([condition], [Read(at)], is_repeatable=True)
        assert outcome.is_met is is_met, condition


async def test_a_transaction_deletes_and_reads_what_is_left(stores: Any, at: bytes) -> None:
    store = stores()
    await store.transact((), [Put(at + b"1", b""), Put(at + b"2", b"")], is_repeatable=True)
    outcome = await store.transact(
        (), [Delete(at + b"1"), Read(at, prefix_end(at))], is_repeatable=True
    )
    assert [entry.key for entry in outcome.reads[0]] == [at + b"2"]
    before = (await store.read(at)).revision
    outcome = await store.transact((), [Delete(at + b"1")], is_repeatable=True)
    assert outcome.revision == before  # nothing changed, so there is no new revision


async def test_what_etcd_does_not_take_is_an_error(stores: Any, at: bytes) -> None:
    store = stores()
    with pytest.raises(StoreError, match="duplicate key"):
        await store.transact((), [Put(at, b"1"), Put(at, b"2")], is_repeatable=True)
    with pytest.raises(StoreError, match="too many operations"):
        puts = [Put(at + b"%d" % number, b"") for number in range(129)]
        await store.transact((), puts, is_repeatable=True)
    with pytest.raises(StoreError, match="lease not found"):
        await store.put(at, b"", lease=12345)


async def test_keys_go_with_their_lease_and_the_watch_says_so(
    stores: Any, at: bytes, kit: Any
) -> None:
    store = stores()
    grant = await store.grant(2)
    assert grant.ttl_s >= 2
    start = await store.put(at, b"leased", lease=grant.lease)
    assert (await store.read(at)).entries[0].lease == grant.lease
    async with kit.collecting(store.watch(at, from_revision=start + 1)) as seen:
        for _ in range(3):
            assert await store.renew(grant.lease, timeout_s=1.0) == grant.ttl_s
            await asyncio.sleep(grant.ttl_s / 2)
        assert seen.events == []  # longer than one life: the renewals keep it
        await seen.until(lambda seen: seen.events, timeout_s=10.0)
        assert seen.events[0].is_delete
    assert (await store.read(at)).entries == ()
    assert await store.renew(grant.lease, timeout_s=1.0) == 0


async def test_a_revoked_lease_is_gone_at_once_and_can_be_revoked_again(
    stores: Any, at: bytes
) -> None:
    store = stores()
    grant = await store.grant(60)
    await store.put(at, b"leased", lease=grant.lease)
    await store.revoke(grant.lease)
    assert (await store.read(at)).entries == ()
    assert await store.renew(grant.lease, timeout_s=1.0) == 0
    await store.revoke(grant.lease)


async def test_a_watch_yields_every_change_once_and_in_order(
    stores: Any, at: bytes, kit: Any
) -> None:
    store, other = stores(), stores()
    start = (await store.read(at)).revision
    await other.put(at + b"before", b"0")
    async with kit.collecting(store.watch(at, prefix_end(at), from_revision=start + 1)) as seen:
        for number in range(1, 50):
            await other.put(at + b"%d" % (number % 3), b"%d" % number)
        await other.put(at[:-1], b"beside")
        await seen.until(lambda seen: len(seen.events) >= 50)
    assert seen.values == [b"%d" % number for number in range(50)]
    revisions = [event.entry.mod_revision for event in seen.events]
    assert revisions == sorted(set(revisions))


async def test_a_watch_of_one_key_sees_no_other(stores: Any, at: bytes, kit: Any) -> None:
    store = stores()
    start = await store.put(at, b"1")
    async with kit.collecting(store.watch(at, from_revision=start)) as seen:
        await store.put(at + b"x", b"other")
        await store.transact((), [Delete(at)], is_repeatable=True)
        await seen.until(lambda seen: len(seen.events) >= 2)
    assert [event.is_delete for event in seen.events] == [False, True]


async def test_what_one_transaction_changed_comes_in_one_piece(
    stores: Any, at: bytes, kit: Any
) -> None:
    store = stores()
    start = (await store.read(at)).revision
    watch = store.watch(at, prefix_end(at), from_revision=start + 1)
    await store.transact((), [Put(at + b"%d" % n, b"") for n in range(5)], is_repeatable=True)
    events = await asyncio.wait_for(anext(watch), 10.0)
    await watch.aclose()
    assert len(events) == 5
    assert len({event.entry.mod_revision for event in events}) == 1


async def test_a_watch_from_compacted_history_says_so_and_the_list_goes_on(
    stores: Any, at: bytes, kit: Any
) -> None:
    store = stores()
    start = await store.put(at, b"1")
    await store.put(at, b"2")
    last = await store.put(at, b"3")
    await store.compact(last)
    watch = store.watch(at, from_revision=start)
    with pytest.raises(CompactedError) as found:
        await asyncio.wait_for(anext(watch), 10.0)
    assert found.value.revision == last
    with pytest.raises(CompactedError):
        await store.read(at, revision=start)
    listed = await store.read(at)
    assert listed.entries[0].value == b"3"
    async with kit.collecting(store.watch(at, from_revision=listed.revision + 1)) as seen:
        await store.put(at, b"4")
        await seen.until(lambda seen: seen.events)
    assert seen.values == [b"4"]


async def test_a_silent_watch_stays_and_hears_what_comes_later(
    stores: Any, at: bytes, kit: Any
) -> None:
    store = stores()
    start = (await store.read(at)).revision
    async with kit.collecting(store.watch(at, from_revision=start + 1)) as seen:
        await asyncio.sleep(5.0)  # longer than both its limits together
        await store.put(at, b"late")
        await seen.until(lambda seen: seen.events)
    assert seen.values == [b"late"]


async def test_a_watch_can_be_closed_while_it_waits(stores: Any, at: bytes) -> None:
    store = stores()
    watch = store.watch(at, from_revision=(await store.read(at)).revision + 1)
    waiting = asyncio.ensure_future(anext(watch))
    await asyncio.sleep(0.2)
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await asyncio.wait_for(waiting, 5.0)
    await asyncio.wait_for(watch.aclose(), 5.0)
    assert (await store.read(at)).entries == ()  # the client goes on
