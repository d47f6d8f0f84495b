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


def until(is_so: Callable[[], object]) -> None:
    end_s = time.monotonic() + 10
    while not is_so():
        assert time.monotonic() < end_s
        time.sleep(0.002)


def decision(request_id: str) -> Any:
    return SimpleNamespace(
        request_id=request_id, pinned_blocks=2, move=(), target_server="", source_server=""
    )


@pytest.fixture
def working() -> Iterator[Callable[[Callable[[str], Any]], StoreWorker]]:
    begun: list[StoreWorker] = []

    def begin(open_store: Callable[[str], Any]) -> StoreWorker:
        worker = StoreWorker(
            open_store, "store", BlockNames(16), lambda name: 0,
            bytes_per_s=1 << 30, pins=True, pin_timeout_s=60, take_back_s=0,
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
