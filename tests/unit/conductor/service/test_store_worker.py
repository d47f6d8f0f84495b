"""Pins of queued requests, at a store that is there, away, or slow."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from types import SimpleNamespace
from typing import Any

import pytest

from mooncake_store.conductor.service.block_names import BlockNames
from mooncake_store.conductor.service.store_worker import StoreWorker
from mooncake_store.errors import UnavailableError
from tests.waiting import until

DIGESTS = tuple(f"{number:064x}" for number in range(4))


class PinnedStore:
    """A link that remembers what is pinned."""

    def __init__(self) -> None:
        self.pinned: list[str] = []
        self.calls = 0
        self.may_go_on = threading.Event()
        self.may_go_on.set()

    def pin(self, keys: Sequence[str], timeout_s: float) -> int:
        self.calls += 1
        self.may_go_on.wait(10)
        self.pinned += keys
        return len(keys)

    def unpin(self, keys: Sequence[str]) -> None:
        for key in keys:
            self.pinned.remove(key)

    def close(self) -> None:
        pass


class CopiedStore(PinnedStore):
    """A link that remembers where replicas were made; each drop may be held up."""

    def __init__(self) -> None:
        super().__init__()
        self.replicas: set[str] = set()

    def add_replica(self, key: str, target_server: int) -> tuple[int, int] | None:
        self.replicas.add(key)
        return 1000, 1

    def drop_replica(self, key: str, source_server: int, least: int) -> bool:
        self.calls += 1
        self.may_go_on.wait(10)
        self.replicas.discard(key)
        return True


def decision(request_id: str, move: tuple[str, ...] = ()) -> Any:
    return SimpleNamespace(
        request_id=request_id, pinned_blocks=2, move=move, target_server="b", source_server="a"
    )


@pytest.fixture
def working() -> Iterator[Callable[..., StoreWorker]]:
    begun: list[StoreWorker] = []

    def begin(
        open_store: Callable[[str], Any], pins: bool = True, take_back_s: float = 0
    ) -> StoreWorker:
        worker = StoreWorker(
            open_store, "store", BlockNames(16), lambda name: 0,
            bytes_per_s=1 << 30, pins=pins, pin_timeout_s=60, take_back_s=take_back_s,
        )  # fmt: skip
        worker.start()
        begun.append(worker)
        return worker

    yield begin
    for worker in begun:
        worker.stop(10)


def test_what_a_request_will_read_is_pinned_until_it_ends(working: Any) -> None:
    store = PinnedStore()
    worker = working(lambda _: store)
    worker.accepted(decision("a"), DIGESTS)
    until(lambda: len(store.pinned) == 2 and worker.pinned_blocks == 2)
    worker.ended("nobody")
    worker.ended("a")
    until(lambda: not store.pinned and worker.pinned_blocks == 0)


def test_a_request_that_ends_while_its_pin_is_asked_for_is_unpinned(working: Any) -> None:
    store = PinnedStore()
    store.may_go_on.clear()
    worker = working(lambda _: store)
    worker.accepted(decision("slow"), DIGESTS)
    until(lambda: store.calls == 1)
    worker.ended("slow")
    worker.accepted(decision("waits"), DIGESTS)
    worker.ended("waits")  # it was never asked for
    store.may_go_on.set()
    until(lambda: not store.pinned and worker.pinned_blocks == 0)
    assert store.calls == 1


def test_a_request_that_asks_again_leaves_no_pin(working: Any) -> None:
    store = PinnedStore()
    worker = working(lambda _: store)
    worker.accepted(decision("a"), DIGESTS)
    until(lambda: worker.pinned_blocks == 2)
    worker.accepted(decision("a"), DIGESTS)
    until(lambda: worker.pinned_blocks == 4 and len(store.pinned) == 4)
    worker.ended("a")
    until(lambda: not store.pinned and worker.pinned_blocks == 0)
    worker.accepted(decision("a"), DIGESTS)
    until(lambda: worker.pinned_blocks == 2)
    store.may_go_on.clear()
    worker.accepted(decision("slow"), DIGESTS)
    until(lambda: store.calls == 4)
    worker.accepted(decision("a"), DIGESTS)  # it waits for the slow one, and ends before
    worker.ended("a")
    worker.ended("slow")
    store.may_go_on.set()
    until(lambda: not store.pinned and worker.pinned_blocks == 0)


def test_a_store_that_is_away_gathers_nothing(working: Any) -> None:
    def away(address: str) -> Any:
        raise UnavailableError("nobody is there")

    worker = working(away)
    began_s = time.monotonic()
    for number in range(20_000):
        worker.accepted(decision(f"r{number}"), DIGESTS)
        worker.ended(f"r{number}")
    assert not worker._to_pin and not worker._to_unpin
    assert time.monotonic() - began_s < 10


def test_who_asks_while_others_are_taken_back_keeps_what_it_asks_for(working: Any) -> None:
    store = CopiedStore()
    worker = working(lambda _: store, pins=False, take_back_s=3)
    store.may_go_on.clear()
    worker.accepted(decision("a", DIGESTS), DIGESTS)
    until(lambda: store.calls == 1)  # all four are cold, and the first is being dropped
    assert len(worker.extras) == 3
    worker.accepted(decision("b"), DIGESTS[1:])
    store.may_go_on.set()
    until(lambda: len(store.replicas) == 3)
    time.sleep(0.1)
    assert len(store.replicas) == len(worker.extras) == 3 and store.calls == 1
    until(lambda: not store.replicas)  # until nobody asks again
    until(lambda: len(worker.told) == 4)
    assert worker.taken_back == {"done": 4} and worker.taken_back_bytes == 4000
    assert {one.extra.wanted_by for one in worker.told} == {"a"}
    assert all(one.idle_s >= 3 and one.outcome == "done" for one in worker.told)
