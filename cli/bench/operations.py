"""What is measured, on any store: the same loops for this one and for the peer.

Only the standard library is imported, since the peer's environment has nothing else.  What differs
between stores is the `Store` given.  Keys and targets are made before the clock runs, so a loop
times calls and nothing else; objects say in each page which object they are of, so a call that
moved nothing is counted as bad and its figure is refused.
"""

from __future__ import annotations

import ctypes
import itertools
import mmap
import os
import statistics
import struct
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any, Protocol

PAGE = 4096
# What measured puts leave in the pool: more than caches hold, and room for the pools beside it.
PUT_BYTES_HELD = 160 << 20
# Of one call.
BATCH_KEYS_MAX = 1 << 16
_serials = itertools.count()
STAMP = struct.Struct("<QQ")  # number of the object, number of the page in it


class Store(Protocol):
    """What the operations need of a store; `offset` counts in `memory`, the client's own memory."""

    memory: memoryview

    def target(self, offset: int, size: int) -> Any:
        """Return whatever this store wants to be told about a piece of memory."""

    def put(self, key: str, source: Any) -> bool: ...
    def get(self, key: str, target: Any) -> bool: ...
    def put_many(self, keys: Sequence[str], sources: Sequence[Any]) -> bool: ...
    def get_many(self, keys: Sequence[str], targets: Sequence[Any]) -> bool: ...
    def put_values(self, keys: Sequence[str], values: Sequence[bytes]) -> bool: ...
    def exists(self, key: str) -> bool: ...
    def exists_many(self, keys: Sequence[str]) -> int: ...
    def remove_many(self, keys: Sequence[str]) -> None: ...
    def close(self) -> None: ...


def pool_key(name: str, index: int) -> str:
    """Return a key of some 80 characters, as inference engines make them."""
    block = f"{index * 0x9E3779B97F4A7C15 & (1 << 64) - 1:016x}"
    return f"bench/{name}@tp2@rank0@bfloat16@{block}{block}{block}{index:08x}"


class Operations:
    """The operations.  Whoever asks refuses a figure whose `bad` is not 0."""

    def __init__(self, store: Store) -> None:
        self.store = store
        self.objects: dict[str, list[str]] = {}
        self.next: dict[str, int] = {}
        self.puts: list[tuple[list[str], int]] = []

    # ---- objects and memory --------------------------------------------------------------------
    def _stamp(self, offset: int, size: int, number: int) -> None:
        for page in range(0, max(size - STAMP.size + 1, 0), PAGE):
            STAMP.pack_into(self.store.memory, offset + page, number, page // PAGE)

    def _is_stamped(self, offset: int, size: int, number: int) -> bool:
        return all(
            STAMP.unpack_from(self.store.memory, offset + page) == (number, page // PAGE)
            for page in range(0, max(size - STAMP.size + 1, 0), PAGE)
        )

    def _wipe(self, offset: int, size: int) -> None:
        for page in range(0, max(size - STAMP.size + 1, 0), PAGE):
            STAMP.pack_into(self.store.memory, offset + page, 0xDEAD, 0)

    def _slots(self, size: int) -> list[int]:
        """Offsets that rotate over the whole memory, so that each target is cold."""
        step = (size + PAGE - 1) // PAGE * PAGE
        return list(range(0, len(self.store.memory) - step + 1, step))

    def _take(self, name: str, count: int, *, is_fresh: bool) -> list[int]:
        """Return the numbers of the next objects of a pool, in rotation or each once."""
        first, keys = self.next.get(name, 0), self.objects[name]
        if is_fresh and first + count > len(keys):
            raise IndexError(f"{name}: the {len(keys)} objects are used up")
        self.next[name] = first + count
        return [(first + i) % len(keys) for i in range(count)]

    def fill(self, name: str, size: int, count: int, batch: int = 64) -> dict[str, Any]:
        """Store `count` objects whose pages say which object they are of."""
        keys = [pool_key(name, i) for i in range(count)]
        slots, bad = self._slots(size), 0
        group = min(batch, len(slots))
        for first in range(0, count, group):
            numbers = range(first, min(count, first + group))
            sources = []
            for number in numbers:
                offset = slots[number % len(slots)]
                self._stamp(offset, size, number)
                sources.append(self.store.target(offset, size))
            bad += not self.store.put_many([keys[n] for n in numbers], sources)
        self.objects[name] = keys
        return {"bad": bad}

    def know(self, name: str, count: int) -> dict[str, Any]:
        """Use a pool that another client filled."""
        self.objects[name] = [pool_key(name, i) for i in range(count)]
        return {}

    def drop(self, name: str) -> dict[str, Any]:
        """Remove a pool."""
        keys = self.objects.pop(name)
        for first in range(0, len(keys), BATCH_KEYS_MAX):
            self.store.remove_many(keys[first : first + BATCH_KEYS_MAX])
        self.next.pop(name, None)
        return {}

    def warm(self, name: str, size: int, batch: int = 128) -> dict[str, Any]:
        """Read each object of a pool once, so that a client that caches locations has them all."""
        slots, keys, bad = self._slots(size), self.objects[name], 0
        for first in range(0, len(keys), batch):
            numbers = range(first, min(first + batch, len(keys)))
            targets = [self.store.target(slots[n % len(slots)], size) for n in numbers]
            bad += not self.store.get_many([keys[n] for n in numbers], targets)
        return {"bad": bad}

    # ---- measured operations ---------------------------------------------------------------------
    def get(self, name: str, size: int, calls: int, is_fresh: bool = False) -> dict[str, Any]:
        """Read single objects; `median_us` of a call and `GBps` of all."""
        numbers = self._take(name, calls, is_fresh=is_fresh)
        slots = self._slots(size)
        offsets = [slots[number % len(slots)] for number in numbers]
        keys = [self.objects[name][number] for number in numbers]
        targets = [self.store.target(offset, size) for offset in offsets]
        self._wipe(offsets[-1], size)
        durations, bad = _timed(self.store.get, keys, targets)
        bad += not self._is_stamped(offsets[-1], size, numbers[-1])
        return _figures(durations, size * calls, bad)

    def put(self, size: int, calls: int) -> dict[str, Any]:
        """Store single new objects."""
        keys = self._new_keys(calls, size)
        sources = [self.store.target(offset, size) for offset in self._sources(size, calls)]
        durations, bad = _timed(self.store.put, keys, sources)
        return _figures(durations, size * calls, bad)

    def put_batches(self, size: int, batch: int, calls: int) -> dict[str, Any]:
        """Store batches of new objects from pieces of memory that lie apart."""
        keys = [self._new_keys(batch, size) for _ in range(calls)]
        sources = [
            [self.store.target(offset, size) for offset in self._sources(size, batch)]
            for _ in range(calls)
        ]
        durations, bad = _timed(self.store.put_many, keys, sources)
        return _figures(durations, size * batch * calls, bad)

    def _sources(self, size: int, count: int) -> list[int]:
        """Return offsets that go on where the last call ended, so that each source is cold."""
        slots = self._slots(size)
        first = self.next.get(f"sources of {size}", 0)
        self.next[f"sources of {size}"] = first + count
        return [slots[(first + i) % len(slots)] for i in range(count)]

    def get_batches(self, name: str, size: int, batch: int, calls: int) -> dict[str, Any]:
        """Read batches of objects into pieces of memory that lie apart."""
        slots = self._slots(size)
        groups = [self._take(name, batch, is_fresh=False) for _ in range(calls)]
        keys = [[self.objects[name][number] for number in group] for group in groups]
        targets = [
            [self.store.target(slots[number % len(slots)], size) for number in group]
            for group in groups
        ]
        last = groups[-1][-1]
        self._wipe(slots[last % len(slots)], size)
        durations, bad = _timed(self.store.get_many, keys, targets)
        bad += not self._is_stamped(slots[last % len(slots)], size, last)
        return _figures(durations, size * batch * calls, bad)

    def get_in_threads(self, name: str, size: int, threads: int, seconds: float) -> dict[str, Any]:
        """Read from several threads of this client; `per_s` in all."""
        slots, keys = self._slots(size), self.objects[name]
        targets = [self.store.target(offset, size) for offset in slots]
        gate = threading.Barrier(threads + 1)
        done, bad = [0] * threads, [0] * threads
        took = [1.0] * threads

        def run(thread: int) -> None:
            at, get = thread * len(keys) // threads, self.store.get
            gate.wait()
            begun = time.perf_counter()
            end = begun + seconds
            while time.perf_counter() < end:
                at += 1
                bad[thread] += not get(keys[at % len(keys)], targets[at % len(slots)])
                done[thread] += 1
            took[thread] = time.perf_counter() - begun

        members = [threading.Thread(target=run, args=(i,)) for i in range(threads)]
        for member in members:
            member.start()
        gate.wait()
        for member in members:
            member.join()
        per_s = sum(n / s for n, s in zip(done, took, strict=True))
        return {"per_s": per_s, "bad": sum(bad)}

    def exists(self, name: str, calls: int) -> dict[str, Any]:
        """Ask for single keys that are there."""
        keys = [self.objects[name][i] for i in self._take(name, calls, is_fresh=False)]
        durations, bad = _timed(self.store.exists, keys)
        return _figures(durations, 0, bad)

    def exists_batches(self, name: str, batch: int, calls: int) -> dict[str, Any]:
        """Ask for batches of keys that are there; `keys_per_s`."""
        groups = [
            [self.objects[name][i] for i in self._take(name, batch, is_fresh=False)]
            for _ in range(calls)
        ]
        durations, bad = _timed(lambda keys: self.store.exists_many(keys) == len(keys), groups)
        return {"keys_per_s": batch * calls / sum(durations), "bad": bad}

    def put_values(self, size: int, batch: int, calls: int) -> dict[str, Any]:
        """Store batches of small bytes objects; `keys_per_s`."""
        groups = [self._new_keys(batch, size) for _ in range(calls)]
        values = [[b"v" * size] * batch] * calls
        durations, bad = _timed(self.store.put_values, groups, values)
        return {"keys_per_s": batch * calls / sum(durations), "bad": bad}

    def overfill(self, size: int, count: int) -> dict[str, Any]:
        """Put more than the pool holds; nothing is pinned, so nothing needs to be refused."""
        source = self.store.target(0, size)
        name = _new_name()
        keys = [pool_key(name, i) for i in range(count)]
        refused = sum(not self.store.put(key, source) for key in keys)
        return {"refused": refused, "count": count}

    def fill_tiny(self, name: str, count: int, size: int, batch: int) -> dict[str, Any]:
        """Store many small objects, for the memory that the master needs for each."""
        keys = [pool_key(name, i) for i in range(count)]
        bad = 0
        for first in range(0, count, batch):
            part = keys[first : first + batch]
            bad += not self.store.put_values(part, [b"v" * size] * len(part))
        self.objects[name] = keys
        return {"bad": bad, "key_bytes": sum(map(len, keys))}

    def get_each(self, name: str, size: int, first: int, count: int) -> dict[str, Any]:
        """Read objects one by one and say how each went, for the fault rows."""
        target = self.store.target(0, size)
        seconds, good = [], []
        for number in range(first, first + count):
            self._wipe(0, size)
            begun = time.perf_counter()
            is_there = _quietly(self.store.get, self.objects[name][number], target)
            seconds.append(time.perf_counter() - begun)
            good.append(is_there and self._is_stamped(0, size, number))
        return {"failed": good.count(False), "seconds_max": max(seconds)}

    def _new_keys(self, count: int, size: int) -> list[str]:
        """Return new keys, after the oldest ones have made room.

        Objects stay a while, so that new ones rotate over the pool's memory and find it cold.
        """
        name = _new_name()
        keys = [pool_key(name, i) for i in range(count)]
        self.puts.append((keys, count * max(size, PAGE)))
        while sum(held for _, held in self.puts) > PUT_BYTES_HELD and len(self.puts) > 1:
            self.store.remove_many(self.puts.pop(0)[0])
        return keys

    def drop_puts(self) -> dict[str, Any]:
        """Remove what the measured puts have stored."""
        for keys, _ in self.puts:
            self.store.remove_many(keys)
        self.puts.clear()
        return {}


def _new_name() -> str:
    """Return a name that no other client of any process has used."""
    return f"{os.getpid()}.{next(_serials)}"


def _timed(call: Callable[..., Any], *columns: Sequence[Any]) -> tuple[list[float], int]:
    now, durations, bad = time.perf_counter, [], 0
    for arguments in zip(*columns, strict=True):
        begun = now()
        is_good = call(*arguments)
        durations.append(now() - begun)
        if not is_good:
            bad += 1
    return durations, bad


def _figures(durations: list[float], moved_bytes: int, bad: int = 0) -> dict[str, Any]:
    return {
        "median_us": statistics.median(durations) * 1e6,
        "GBps": moved_bytes / sum(durations) / 1e9,
        "bad": bad,
    }


def _quietly(call: Callable[..., bool], *arguments: Any) -> bool:
    try:
        return bool(call(*arguments))
    except Exception:
        return False


def private_memory(length: int) -> memoryview:
    """Return memory of this process whose pages are all present."""
    memory = mmap.mmap(-1, length, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    view = memoryview(memory)
    for offset in range(0, length, PAGE):
        view[offset] = 1
    return view


def address_of(view: memoryview) -> int:
    """Return where a writable view begins."""
    return ctypes.addressof(ctypes.c_char.from_buffer(view))
