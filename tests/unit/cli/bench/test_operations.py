"""The measured loops on a store in a dict: what they count as good, and what they refuse."""

from __future__ import annotations

import pytest

from mooncake_store.cli.bench import operations
from mooncake_store.cli.bench.operations import PAGE, Operations, pool_key

MEMORY_BYTES = 64 * PAGE


class DictStore:
    """Keeps copies; `is_lying` makes reads say that they were done."""

    def __init__(self) -> None:
        self.memory = memoryview(bytearray(MEMORY_BYTES))
        self.objects: dict[str, bytes] = {}
        self.is_lying = False
        self.refuses_after = 10**9
        self.sources: list[int] = []

    def target(self, offset, size):
        return offset, size

    def put(self, key, source):
        if len(self.objects) >= self.refuses_after:
            return False
        offset, size = source
        self.sources.append(offset)
        self.objects[key] = bytes(self.memory[offset : offset + size])
        return True

    def get(self, key, target):
        if key not in self.objects:
            return False
        if not self.is_lying:
            offset, size = target
            self.memory[offset : offset + size] = self.objects[key]
        return True

    def put_many(self, keys, sources):
        return all([self.put(key, source) for key, source in zip(keys, sources, strict=True)])

    def get_many(self, keys, targets):
        return all([self.get(key, target) for key, target in zip(keys, targets, strict=True)])

    def put_values(self, keys, values):
        self.objects.update(zip(keys, values, strict=True))
        return True

    def exists(self, key):
        return key in self.objects

    def exists_many(self, keys):
        return sum(key in self.objects for key in keys)

    def remove_many(self, keys):
        for key in keys:
            self.objects.pop(key, None)

    def close(self):
        pass


@pytest.fixture
def store():
    return DictStore()


@pytest.fixture
def by(store):
    found = Operations(store)
    assert found.fill("pool", 2 * PAGE, 50)["bad"] == 0
    return found


def test_objects_of_a_pool_differ_in_every_page(store, by):
    pages = [
        value[at : at + PAGE] for value in store.objects.values() for at in range(0, 2 * PAGE, PAGE)
    ]

    assert len(store.objects) == 50
    assert len(set(pages)) == 100


def test_reads_that_are_right_are_good(by):
    said = by.get("pool", 2 * PAGE, 120)

    assert said["bad"] == 0
    assert said["median_us"] > 0
    assert said["GBps"] > 0
    assert by.get_batches("pool", 2 * PAGE, 10, 3)["bad"] == 0


def test_read_that_moved_nothing_is_bad(store, by):
    store.is_lying = True

    assert by.get("pool", 2 * PAGE, 5)["bad"] == 1
    assert by.get_batches("pool", 2 * PAGE, 5, 1)["bad"] == 1
    assert by.get_each("pool", 2 * PAGE, 0, 3)["failed"] == 3


def test_object_that_is_gone_is_bad(store, by):
    store.objects.clear()

    assert by.get("pool", 2 * PAGE, 5)["bad"] >= 5
    assert by.exists("pool", 5)["bad"] == 5
    assert by.exists_batches("pool", 5, 2)["bad"] == 2
    assert by.get_in_threads("pool", 2 * PAGE, 2, 0.01)["bad"] > 0


def test_warming_reads_every_object_once(store, by, monkeypatch):
    read = []
    monkeypatch.setattr(store, "get_many", lambda keys, targets: read.extend(keys) or True)

    assert by.warm("pool", 2 * PAGE, batch=7) == {"bad": 0}

    assert read == by.objects["pool"]


def test_fresh_objects_are_given_once(by):
    by.get("pool", 2 * PAGE, 30, is_fresh=True)

    with pytest.raises(IndexError, match="used up"):
        by.get("pool", 2 * PAGE, 30, is_fresh=True)


def test_puts_rotate_over_memory_and_make_room_for_later_ones(store, by, monkeypatch):
    monkeypatch.setattr(operations, "PUT_BYTES_HELD", 8 * PAGE)
    store.objects.clear()
    store.sources.clear()

    for _ in range(4):
        assert by.put(2 * PAGE, 3)["bad"] == 0

    assert store.sources == [at * 2 * PAGE for at in range(12)]
    assert len(store.objects) == 3  # one call's: two would be 12 pages
    by.drop_puts()
    assert not store.objects


def test_refused_puts_are_counted(store, by):
    store.objects.clear()
    store.refuses_after = 4

    assert by.overfill(PAGE, 10) == {"refused": 6, "count": 10}


def test_dropped_pool_leaves_nothing(store, by):
    by.drop("pool")

    assert not store.objects


def test_keys_look_like_an_engines():
    keys = [pool_key("pool", number) for number in range(1000)]

    assert len(set(keys)) == 1000
    assert 60 <= len(keys[0]) <= 110
