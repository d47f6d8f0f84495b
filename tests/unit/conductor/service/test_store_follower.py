"""Snapshot, tail, gap and file, against a store in memory that numbers its events."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from mooncake_store.conductor.service import store_follower
from mooncake_store.conductor.service.block_names import BlockNames
from mooncake_store.conductor.service.core import costs_of
from mooncake_store.conductor.service.index_file import IndexFile, Kept
from mooncake_store.conductor.service.scheduler import Scheduler, SchedulerLimits
from mooncake_store.conductor.service.store_follower import StoreFollower
from mooncake_store.conductor.service.store_link import Page, Placed, StoreChange, StoreMember
from mooncake_store.conductor.sim_config import SimConfig
from mooncake_store.errors import UnavailableError
from mooncake_store.protocol.methods import EventKind
from tests.waiting import until

WAIT_S = 10.0


class MemoryStore:
    """Objects on two servers; it remembers the last `kept` events."""

    def __init__(self, kept: int = 1000) -> None:
        self.number = 0xC1
        self.epoch = 3
        self.log: list[StoreChange] = []
        self.kept = kept
        self.objects: dict[str, int] = {}
        self.lock = threading.Lock()
        self.listings = 0
        self.shown = ["ab"]  # names of the members by call; the last one stays

    def put(self, key: str, server: int) -> None:
        with self.lock:
            self.objects[key] = server
            self.log.append(StoreChange(EventKind.STORED, key.encode(), server))

    def remove(self, key: str) -> None:
        with self.lock:
            del self.objects[key]
            self.log.append(StoreChange(EventKind.REMOVED, key.encode(), None))

    # A link to it.

    def cluster(self) -> int:
        return self.number

    def position(self) -> tuple[int, int]:
        with self.lock:
            return self.epoch, len(self.log) + 1

    def events(self, epoch: int, sequence: int, limit: int) -> Page | None:
        with self.lock:
            oldest = max(len(self.log) - self.kept, 0) + 1
            if epoch != self.epoch or sequence < oldest or sequence > len(self.log) + 1:
                return None
            return Page(epoch, sequence, self.log[sequence - 1 : sequence - 1 + limit])

    def placed(self, prefix: str, cursor: int, limit: int) -> tuple[int, list[Placed]]:
        with self.lock:
            self.listings += 1
            return 0, [Placed(key, (server,)) for key, server in self.objects.items()]

    def members(self) -> list[StoreMember]:
        names = self.shown.pop(0) if len(self.shown) > 1 else self.shown[0]
        return [StoreMember("ab".index(name), name, True) for name in names]

    def pin(self, keys: Sequence[str], timeout_s: float) -> int:
        raise NotImplementedError

    def unpin(self, keys: Sequence[str]) -> None:
        raise NotImplementedError

    def add_replica(self, key: str, target_server: int) -> tuple[int, int] | None:
        raise NotImplementedError

    def drop_replica(self, key: str, source_server: int, least: int) -> bool:
        raise NotImplementedError

    def close(self) -> None:
        pass


class Following:
    """A follower that runs."""

    def __init__(self, store: MemoryStore, file: IndexFile | None) -> None:
        config = SimConfig()
        limits = SchedulerLimits(instances_max=2, servers_max=4, blocks_max=4096)
        self.scheduler = Scheduler(config, costs_of(config), limits, block_tokens=16)
        lock = threading.Lock()

        def on_loop(call):  # type: ignore[no-untyped-def]
            with lock:
                return call()

        self.follower = StoreFollower(
            lambda _: store, "store", self.scheduler, BlockNames(16), on_loop, file
        )
        self.follower.start()

    def holds(self, server: str, key: str) -> bool:
        slot = self.scheduler.holders.slot_of(server)
        packed = BlockNames(16).of_keys([key]).packed
        return slot is not None and slot in self.scheduler.index.holders(packed)

    def until(self, check) -> None:  # type: ignore[no-untyped-def]
        until(check, WAIT_S)


@pytest.fixture
def file(tmp_path: Path) -> IndexFile:
    return IndexFile(tmp_path / "index", "x")


@pytest.fixture
def follow() -> Iterator[object]:
    running = []

    def begin(store: MemoryStore, file: IndexFile | None = None) -> Following:
        running.append(Following(store, file))
        return running[-1]

    yield begin
    for one in running:
        one.follower.stop(WAIT_S)


def key(number: int) -> str:
    return f"p1-{number:032x}{0:032x}"


def test_a_file_and_the_tail_are_the_store_without_a_listing(follow, file) -> None:  # type: ignore[no-untyped-def]
    store = MemoryStore()
    for number in range(50):
        store.put(key(number), number % 2)
    first = follow(store, file)
    first.until(lambda: first.follower.is_connected)
    first.follower.stop(WAIT_S)
    assert file.read()[0].sequence == 50
    for number in range(50, 60):
        store.put(key(number), 0)
    for number in range(5):
        store.remove(key(number))
    second = follow(store, file)
    second.until(lambda: second.follower.is_connected)
    assert second.follower.is_from_file
    assert store.listings == 1
    for number in range(60):
        server = "a" if number >= 50 else "ab"[number % 2]
        assert second.holds(server, key(number)) == (number >= 5), number


def test_a_tail_that_the_store_has_forgotten_is_a_gap_and_a_listing(follow, file) -> None:  # type: ignore[no-untyped-def]
    store = MemoryStore(kept=10)
    for number in range(50):
        store.put(key(number), 0)
    wrong = BlockNames(16).of_keys([key(999)]).packed
    file.write(Kept(0xC1, 3, 20, [("b", wrong)]))
    found = follow(store, file)
    found.until(lambda: found.follower.is_connected)
    assert (found.follower.feed.gaps, store.listings) == (1, 1)
    assert all(found.holds("a", key(number)) for number in range(50))
    assert not found.holds("b", key(999))


@pytest.mark.parametrize(
    "kept", [Kept(0xC1, 2, 10, []), Kept(0xC1, 4, 10, []), Kept(0xC1, 3, 51, [])]
)
def test_a_file_of_another_epoch_or_of_what_is_to_come_is_not_used(follow, file, kept) -> None:  # type: ignore[no-untyped-def]
    store = MemoryStore()
    for number in range(50):
        store.put(key(number), 1)
    file.write(kept)
    found = follow(store, file)
    found.until(lambda: found.follower.is_connected)
    assert not found.follower.is_from_file and store.listings == 1
    assert found.holds("b", key(49))


def test_a_file_of_another_cluster_is_not_used_though_its_numbers_fit(  # type: ignore[no-untyped-def]
    follow, file, caplog: pytest.LogCaptureFixture
) -> None:
    store = MemoryStore()
    for number in range(50):
        store.put(key(number), 1)
    wrong = BlockNames(16).of_keys([key(999)]).packed
    file.write(Kept(0xC2, 3, 40, [("a", wrong)]))
    with caplog.at_level("WARNING", "mooncake_store.conductor"):
        found = follow(store, file)
        found.until(lambda: found.follower.is_connected)
    assert not found.follower.is_from_file and store.listings == 1
    assert found.holds("b", key(49)) and not found.holds("a", key(999))
    assert "cluster 00000000000000c2" in caplog.text
    assert "cluster 00000000000000c1" in caplog.text
    found.until(lambda: file.read()[0].cluster == 0xC1)  # replaced by one that fits


def test_another_cluster_that_answers_instead_is_listed_though_its_numbers_fit(follow) -> None:  # type: ignore[no-untyped-def]
    store = MemoryStore()
    for number in range(20):
        store.put(key(number), 0)
    one = follow(store)
    one.until(lambda: one.holds("a", key(19)))
    with store.lock:  # the same epoch, and as many events and more
        store.number, store.objects = 0xC2, {}
        store.log = [StoreChange(EventKind.STORED, key(n).encode(), 1) for n in range(100, 130)]
        store.objects = {key(n): 1 for n in range(100, 130)}
    one.until(lambda: one.holds("b", key(100)) and not one.holds("a", key(19)))
    assert all(one.holds("b", key(number)) for number in range(100, 130))


def test_servers_that_are_no_members_any_more_are_left_out(follow, file) -> None:  # type: ignore[no-untyped-def]
    store = MemoryStore()
    packed = BlockNames(16).of_keys([key(1)]).packed
    file.write(Kept(0xC1, 3, 0, [("gone", packed), ("a", packed)]))
    found = follow(store, file)
    found.until(lambda: found.follower.is_connected)
    assert found.scheduler.holders.servers == ("a", "b")
    assert found.holds("a", key(1))


def test_what_a_server_holds_that_came_meanwhile_is_in_the_listing(follow) -> None:  # type: ignore[no-untyped-def]
    store = MemoryStore()
    store.shown = ["a", "ab"]
    store.put(key(1), 1)
    found = follow(store)
    found.until(lambda: found.follower.is_connected)
    assert found.holds("b", key(1))


def test_a_file_that_cannot_be_written_stops_nothing(follow, tmp_path) -> None:  # type: ignore[no-untyped-def]
    folder = tmp_path / "folder"
    folder.mkdir()
    file = IndexFile(folder / "index", "x")
    folder.rmdir()
    store = MemoryStore()
    found = follow(store, file)
    found.until(lambda: found.follower.is_connected)
    store.put(key(1), 0)
    found.until(lambda: found.holds("a", key(1)))


@pytest.mark.parametrize("epoch", [4, 3, 2])
def test_a_publisher_that_counts_from_the_beginning_is_followed(follow, epoch: int) -> None:  # type: ignore[no-untyped-def]
    store = MemoryStore()
    for number in range(20):
        store.put(key(number), 0)
    one = follow(store)
    one.until(lambda: one.holds("a", key(19)))
    with store.lock:  # another store, at the same address
        store.epoch, store.log, store.objects = epoch, [], {}
    store.put(key(100), 1)
    one.until(lambda: one.holds("b", key(100)) and not one.holds("a", key(19)))
    one.until(lambda: one.follower.is_connected)
    listings = store.listings
    store.put(key(101), 1)
    one.until(lambda: one.holds("b", key(101)))
    assert store.listings == listings, "it follows, and does not list again and again"


@pytest.mark.parametrize("epoch", [4, 3, 2])
def test_a_store_that_begins_anew_behind_a_broken_link_is_listed_once_and_before_it_counts(  # type: ignore[no-untyped-def]
    follow, epoch: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = MemoryStore()
    for number in range(20):
        store.put(key(number), 0)
    one = follow(store)
    one.until(lambda: one.holds("a", key(19)) and one.follower.is_connected)
    events = store.events

    def broken(*asked: int) -> Page | None:
        monkeypatch.setattr(store, "events", events)
        with store.lock:
            store.epoch, store.log, store.objects = epoch, [], {}
        raise UnavailableError("the link broke")

    monkeypatch.setattr(store, "events", broken)
    one.until(lambda: not one.follower.is_connected)
    one.until(lambda: one.follower.is_connected)
    assert not one.holds("a", key(19)) and store.listings == one.follower.snapshots == 2
    store.put(key(100), 1)
    one.until(lambda: one.holds("b", key(100)))
    assert store.listings == 2


def test_half_a_listing_is_no_index(follow, file, monkeypatch: pytest.MonkeyPatch) -> None:  # type: ignore[no-untyped-def]
    store = MemoryStore()
    store.put(key(0), 0)
    one = follow(store, file)
    one.until(lambda: one.holds("a", key(0)) and file.read()[0] is not None)
    is_listed, may_go_on = threading.Event(), threading.Event()

    def half(prefix: str, cursor: int, limit: int) -> tuple[int, list[Placed]]:
        is_listed.set()
        assert may_go_on.wait(WAIT_S)
        return 1, []

    monkeypatch.setattr(store, "placed", half)
    with store.lock:
        store.epoch = 4
    assert is_listed.wait(WAIT_S)
    one.follower.stop(0)
    may_go_on.set()
    one.follower.stop(WAIT_S)
    assert one.holds("a", key(0))
    assert file.read()[0].epoch == 3


def test_the_file_of_a_store_that_is_never_quiet_is_kept(  # type: ignore[no-untyped-def]
    follow, file, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(store_follower, "_KEEP_S", 0.2)
    store = MemoryStore()
    events = store.events

    def never_empty(epoch: int, sequence: int, limit: int) -> Page | None:
        store.put(key(len(store.log)), 0)
        return events(epoch, sequence, limit)

    monkeypatch.setattr(store, "events", never_empty)
    monkeypatch.setattr(store, "kept", 1 << 30)
    one = follow(store, file)
    one.until(lambda: file.read()[0] is not None)
    assert one.follower.is_connected and one.follower.warm_s is not None
