"""The metadata core against a dict with a clock, and the textbook form of each policy."""

from __future__ import annotations

import struct
from dataclasses import dataclass, field

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    rule,
    run_state_machine_as_test,
)

from mooncake_store._native import ffi, lib

OK, EXISTS, NOT_FOUND, GONE, NO_SPACE, BUSY, COMPLETE, PINNED, PENDING = (
    lib.MS_OK,
    lib.MS_EXISTS,
    lib.MS_NOT_FOUND,
    lib.MS_GONE,
    lib.MS_NO_SPACE,
    lib.MS_BUSY,
    lib.MS_COMPLETE,
    lib.MS_PINNED,
    lib.MS_PENDING,
)
UPSERT, HARD_PIN, SOFT_PIN = 1, 2, 4  # ms_put_flag
ANNOTATE_HARD_PIN, ANNOTATE_TTL = 1, 4
STORED, REMOVED, EVICTED, EXPIRED = 1, 2, 3, 4  # ms_event_kind
LRU, LFU, LENGTH_AWARE, SIEVE = range(4)

KEYS = [f"key-{i}".encode() for i in range(12)]
SOFT_PIN_MS = 6400
SESSION_MS = 1 << 30

keys = st.sampled_from(KEYS)


def packed(names: list[bytes]) -> bytes:
    return b"".join(struct.pack("<I", len(name)) + name for name in names)


class Core:
    """`lib.md_test_*` with Python values."""

    def __init__(self, policy: int = LRU, pages: int = 8, servers: int = 1) -> None:
        self.test = lib.md_test_open(policy, SESSION_MS, SOFT_PIN_MS)
        assert self.test != ffi.NULL
        for node in range(servers):
            assert lib.md_test_add_server(self.test, node, pages) == node
        self.session = lib.md_test_session(self.test)
        self.waiters = 0
        self.out = ffi.new("uint8_t[]", 1 << 16)

    def close(self) -> None:
        lib.md_test_close(self.test)

    def start(
        self,
        key: bytes,
        size: int = 4096,
        *,
        flags: int = 0,
        replicas: int = 1,
        ttl_ms: int = 0,
        parent: bytes = b"",
        group: int = 0,
        deadline_ms: int = 1 << 29,
    ) -> tuple[int, int]:
        """Return the status and, of a grant, the version."""
        version = ffi.new("uint64_t *")
        self.waiters += 1
        status = lib.md_test_put_start(
            self.test, self.session, key, len(key), size, flags, replicas, ttl_ms,
            parent, len(parent), group, deadline_ms, self.waiters, version,
        )  # fmt: skip
        if status == PENDING:
            status = lib.md_test_answer(self.test, self.waiters, version)
        return status, version[0]

    def end(self, key: bytes, version: int, mask: int = 0xFFFF) -> int:
        self.waiters += 1
        status = lib.md_test_put_end(
            self.test, self.session, key, len(key), version, mask, self.waiters
        )
        return self.answer(self.waiters) if status == PENDING else status

    def put(self, key: bytes, size: int = 4096, **options: object) -> int:
        status, version = self.start(key, size, **options)  # type: ignore[arg-type]
        return self.end(key, version) if status == OK else status

    def answer(self, waiter: int) -> int:
        return lib.md_test_answer(self.test, waiter, ffi.new("uint64_t *"))

    def revoke(self, key: bytes, version: int) -> int:
        return lib.md_test_revoke(self.test, self.session, key, len(key), version)

    def remove(self, key: bytes, *, force: bool = False) -> int:
        self.waiters += 1
        status = lib.md_test_remove(self.test, key, len(key), force, self.waiters)
        return self.answer(self.waiters) if status == PENDING else status

    def exists(self, key: bytes) -> bool:
        return bool(lib.md_test_exists(self.test, key, len(key)))

    def lookup(self, key: bytes) -> tuple[int, int, int] | None:
        """Return size, version and the count of replicas, or None on a miss."""
        size, version = ffi.new("uint64_t *"), ffi.new("uint64_t *")
        replicas = ffi.new("uint32_t *")
        status = lib.md_test_lookup(self.test, key, len(key), size, version, replicas)
        assert status in (OK, NOT_FOUND)
        return (size[0], version[0], replicas[0]) if status == OK else None

    def match_prefix(self, names: list[bytes], *, pin: bool = False, deadline_ms: int = 0) -> int:
        data = packed(names)
        return lib.md_test_match_prefix(
            self.test, self.session, data, len(data), len(names), pin, deadline_ms
        )

    def pin(self, key: bytes, deadline_ms: int = 0) -> int:
        return lib.md_test_pin(self.test, self.session, key, len(key), deadline_ms)

    def lease(self, key: bytes, lease_ms: int) -> int:
        return lib.md_test_lease(self.test, self.session, key, len(key), lease_ms)

    def state_pins(self, key: bytes, count: int, deadline_ms: int) -> int:
        return lib.md_test_pins(self.test, self.session, key, len(key), count, deadline_ms)

    def unpin(self, key: bytes) -> int:
        return lib.md_test_unpin(self.test, self.session, key, len(key))

    def annotate(self, key: bytes, fields: int, flags: int = 0, ttl_ms: int = 0) -> int:
        return lib.md_test_annotate(self.test, key, len(key), fields, flags, ttl_ms)

    def list(
        self, prefix: bytes = b"", *, limit: int = 1000, visit_max: int = 10000
    ) -> list[bytes]:
        cursor, out = ffi.new("uint64_t *"), self.out
        found: list[bytes] = []
        while True:
            length = lib.md_test_list(
                self.test, prefix, len(prefix), cursor, limit, visit_max, out, len(out)
            )
            assert length >= 0
            data = bytes(ffi.buffer(out, length))
            while data:
                (size,) = struct.unpack_from("<I", data)
                found.append(data[4 : 4 + size])
                data = data[4 + size :]
            if cursor[0] == 0:
                return found

    def events(self, sequence: int) -> tuple[int, list[tuple[int, bytes]]]:
        at, out = ffi.new("uint64_t *", sequence), self.out
        length = lib.md_test_events(self.test, at, out, len(out))
        assert length >= 0
        data, found = bytes(ffi.buffer(out, length)), []
        while data:
            kind, size = struct.unpack_from("<II", data)
            found.append((kind, data[8 : 8 + size]))
            data = data[8 + size :]
        return at[0], found

    def check(self) -> None:
        line = lib.md_test_check(self.test)
        assert line == 0, f"check.c:{line}"


@dataclass
class Object:
    """What the model knows of one stored object."""

    version: int
    size: int
    order: int  # of its last use; of its storing under sieve
    flags: int = 0
    expires_ms: int | None = None
    parent: bytes = b""
    uses: int = 0
    depth: int = 0
    used_ms: int = 0
    is_visited: bool = False


@dataclass
class Model:
    """The store as a dict: what is there, and what leaves next."""

    policy: int
    now_ms: int = 0
    order: int = 0
    hand: int = 0  # sieve: the order from which it looks on
    objects: dict[bytes, Object] = field(default_factory=dict)
    pins: dict[bytes, list[float]] = field(default_factory=dict)  # count, deadline
    leases: dict[bytes, float] = field(default_factory=dict)

    def expire(self) -> None:
        for key, item in list(self.objects.items()):
            if item.expires_ms is not None and item.expires_ms <= self.now_ms:
                del self.objects[key]
        for key, (_, deadline) in list(self.pins.items()):
            if deadline <= self.now_ms:
                del self.pins[key]
        self.leases = {key: end for key, end in self.leases.items() if end > self.now_ms}

    def is_parent(self, key: bytes) -> bool:
        return any(item.parent == key for item in self.objects.values())

    def is_protected(self, key: bytes) -> bool:
        is_held = key in self.pins or key in self.leases
        return bool(self.objects[key].flags & HARD_PIN) or is_held or self.is_parent(key)

    def soften(self) -> None:
        """Forget soft pins that nobody has used for long.

        The core counts time in steps of 64 ms; the tests move it in multiples of that.
        """
        for key, item in self.objects.items():
            if self.now_ms - item.used_ms >= SOFT_PIN_MS and not self.is_protected(key):
                item.flags &= ~SOFT_PIN

    def use(self, key: bytes) -> None:
        item = self.objects[key]
        item.uses += 1
        item.used_ms = self.now_ms
        if self.policy == SIEVE and not self.is_protected(key) and not item.flags & SOFT_PIN:
            item.is_visited = True
        else:
            self.order += 1
            item.order = self.order

    def rank(self, item: Object) -> tuple[int, ...]:
        if self.policy == LFU:
            return (item.uses, item.order)
        if self.policy == LENGTH_AWARE:
            uses, depth = (item.uses + 1).bit_length() - 1, (item.depth + 1).bit_length() - 1
            return (uses, -depth, item.order)
        return (item.order,)

    def next_to_leave(self) -> bytes | None:
        free = {k: o for k, o in self.objects.items() if not self.is_protected(k)}
        normal = {k: o for k, o in free.items() if not o.flags & SOFT_PIN}
        if not normal:
            soft = sorted(free, key=lambda k: free[k].order)
            return soft[0] if soft else None
        if self.policy != SIEVE:
            return min(normal, key=lambda k: self.rank(normal[k]))
        while True:
            ahead = [k for k in normal if normal[k].order >= self.hand]
            if not ahead:
                self.hand = 0
                continue
            key = min(ahead, key=lambda k: normal[k].order)
            self.hand = normal[key].order + 1
            if not normal[key].is_visited:
                return key
            normal[key].is_visited = False

    def store(self, key: bytes, item: Object) -> None:
        self.objects.pop(key, None)
        self.order += 1
        item.order = self.order
        item.used_ms = self.now_ms
        if item.parent in self.objects:
            item.depth = self.objects[item.parent].depth + 1
        self.objects[key] = item


class ExactMachine(RuleBasedStateMachine):
    """Objects of one page each, so it is known exactly what fits and what leaves."""

    policy = LRU
    pages = 5
    evicted = 0  # over all runs: a test without evictions would show nothing

    def __init__(self) -> None:
        super().__init__()
        self.core = Core(self.policy, self.pages)
        self.model = Model(self.policy)
        self.open: dict[bytes, tuple[int, Object]] = {}
        self.followed: set[bytes] = set()
        self.sequence = 1

    def teardown(self) -> None:
        self.core.close()

    def make_room(self) -> bool:
        """Let the model evict for one more page; False: nothing may leave."""
        if len(self.model.objects) + len(self.open) < self.pages:
            return True
        victim = self.model.next_to_leave()
        if victim is None:
            return False
        del self.model.objects[victim]
        type(self).evicted += 1
        return True

    @initialize(names=st.permutations(KEYS))
    def fill(self, names: list[bytes]) -> None:
        """Begin with a full store, so that what follows evicts."""
        for key in names[: self.pages]:
            self.put(key, 0)

    @rule(key=keys, flags=st.sampled_from([0, 0, 0, 0, SOFT_PIN]))
    def put(self, key: bytes, flags: int) -> None:
        self.put_start(key, 4096, flags, 0, b"")
        if key in self.open:
            self.put_end(key)

    @rule(names=st.lists(keys, max_size=8))
    def use_some(self, names: list[bytes]) -> None:
        for key in names:
            self.lookup(key)

    @rule(names=st.lists(keys, max_size=8))
    def put_some(self, names: list[bytes]) -> None:
        for key in names:
            self.put(key, 0)

    @rule(
        key=keys,
        size=st.integers(0, 4096),
        flags=st.sampled_from([0, 0, 0, UPSERT, HARD_PIN, SOFT_PIN, UPSERT | SOFT_PIN]),
        ttl=st.sampled_from([0, 0, 0, 640, 6400]),
        parent=st.sampled_from([b"", b"", *KEYS[:4]]),
    )
    def put_start(self, key: bytes, size: int, flags: int, ttl: int, parent: bytes) -> None:
        if parent == key:
            parent = b""
        status, version = self.core.start(key, size, flags=flags, ttl_ms=ttl, parent=parent)
        if key in self.model.objects and not flags & UPSERT:
            assert status == EXISTS
        elif key in self.open:
            assert status == BUSY
        elif not self.make_room():
            assert status == NO_SPACE
        else:
            assert status == OK
            expires = self.model.now_ms + ttl if ttl else None
            item = Object(version, size, 0, flags & (HARD_PIN | SOFT_PIN), expires, parent)
            self.open[key] = (version, item)

    @rule(key=keys)
    def put_end(self, key: bytes) -> None:
        version, item = self.open.pop(key, (1, None))
        status = self.core.end(key, version)
        if item is None:
            assert status == GONE
            return
        assert status == OK
        self.model.store(key, item)
        self.model.expire()
        assert self.core.exists(key) == (key in self.model.objects)  # it may have expired meanwhile
        if key in self.model.objects:
            assert self.core.end(key, version) == OK  # a repeat gets the same answer
            assert self.core.revoke(key, version) == COMPLETE

    @rule(key=keys)
    def revoke(self, key: bytes) -> None:
        version, item = self.open.pop(key, (1, None))
        assert self.core.revoke(key, version) == (GONE if item is None else OK)

    @rule(key=keys, force=st.booleans())
    def remove(self, key: bytes, force: bool) -> None:
        status = self.core.remove(key, force=force)
        item = self.model.objects.get(key)
        if item is None:
            assert status == NOT_FOUND
        elif item.flags & HARD_PIN and not force:
            assert status == PINNED
        else:
            assert status == OK
            del self.model.objects[key]

    @rule(key=keys)
    def lookup(self, key: bytes) -> None:
        found, item = self.core.lookup(key), self.model.objects.get(key)
        assert found == (None if item is None else (item.size, item.version, 1))
        if item is not None:
            self.model.use(key)

    @rule(key=keys)
    def exists(self, key: bytes) -> None:
        assert self.core.exists(key) == (key in self.model.objects)

    @rule(names=st.lists(keys, max_size=6, unique=True), pin=st.sampled_from([0, 640, 3200]))
    def match_prefix(self, names: list[bytes], pin: int) -> None:
        matched = 0
        while matched < len(names) and names[matched] in self.model.objects:
            matched += 1
        assert self.core.match_prefix(names, pin=pin > 0, deadline_ms=pin) == matched
        for key in names[:matched] if pin else []:
            self.add_pin(key, pin)
        for key in reversed(names[:matched]):  # the deepest block becomes the oldest
            self.model.use(key)

    def add_pin(self, key: bytes, deadline_ms: float) -> None:
        deadline = self.model.now_ms + deadline_ms if deadline_ms else float("inf")
        count, known = self.model.pins.get(key, [0, 0.0])
        self.model.pins[key] = [count + 1, max(known, deadline)]

    @rule(key=keys, deadline=st.sampled_from([0, 640, 3200]))
    def pin(self, key: bytes, deadline: int) -> None:
        is_there = key in self.model.objects
        if is_there:
            self.model.use(key)
        assert self.core.pin(key, deadline) == (OK if is_there else NOT_FOUND)
        if is_there:
            self.add_pin(key, deadline)

    @rule(key=keys, lease=st.sampled_from([640, 1280, 3200]))
    def lease(self, key: bytes, lease: int) -> None:
        is_there = key in self.model.objects
        if is_there:
            self.model.use(key)
        assert self.core.lease(key, lease) == (OK if is_there else NOT_FOUND)
        if is_there:
            known = self.model.leases.get(key, 0.0)
            self.model.leases[key] = max(known, self.model.now_ms + lease)

    @rule(key=keys, count=st.integers(0, 3), deadline=st.sampled_from([0, 640, 3200]))
    def state_pins(self, key: bytes, count: int, deadline: int) -> None:
        is_possible = count == 0 or key in self.model.objects or key in self.model.pins
        status = self.core.state_pins(key, count, deadline)
        assert status == (OK if is_possible else NOT_FOUND)
        self.model.pins.pop(key, None)
        if is_possible and count:
            self.add_pin(key, deadline)
            self.model.pins[key][0] = count

    @rule(key=keys)
    def unpin(self, key: bytes) -> None:
        count, deadline = self.model.pins.pop(key, [0, 0.0])
        assert self.core.unpin(key) == (OK if count else NOT_FOUND)
        if count > 1:
            self.model.pins[key] = [count - 1, deadline]

    @rule(key=keys, hard=st.booleans(), ttl=st.sampled_from([None, 0, 640]))
    def annotate(self, key: bytes, hard: bool, ttl: int | None) -> None:
        fields = ANNOTATE_HARD_PIN | (0 if ttl is None else ANNOTATE_TTL)
        status = self.core.annotate(key, fields, int(hard), ttl or 0)  # MS_OBJECT_HARD_PIN is 1
        item = self.model.objects.get(key)
        assert status == (NOT_FOUND if item is None else OK)
        if item is None:
            return
        item.flags = (item.flags & ~HARD_PIN) | (HARD_PIN if hard else 0)
        if ttl is not None:
            item.expires_ms = self.model.now_ms + ttl if ttl else None

    @rule(steps=st.integers(1, 60))
    def advance(self, steps: int) -> None:
        lib.md_test_advance(self.core.test, steps * 64)
        self.model.now_ms += steps * 64
        self.model.expire()
        self.model.soften()

    @rule()
    def new_session(self) -> None:
        lib.md_test_session_end(self.core.test, self.core.session)
        self.core.session = lib.md_test_session(self.core.test)
        self.open.clear()
        self.model.pins.clear()
        self.model.leases.clear()

    @invariant()
    def all_is_as_in_the_model(self) -> None:
        self.core.check()
        assert sorted(self.core.list(limit=3, visit_max=5)) == sorted(self.model.objects)
        free = self.pages - len(self.model.objects) - len(self.open)
        assert lib.md_test_pages_free(self.core.test, 0) == free

    @invariant()
    def events_tell_what_is_there(self) -> None:
        self.sequence, events = self.core.events(self.sequence)
        for kind, key in events:
            if kind == STORED:
                self.followed.add(key)
            elif kind in (REMOVED, EVICTED, EXPIRED):
                self.followed.discard(key)
        assert self.followed == set(self.model.objects)


class AnySizeMachine(RuleBasedStateMachine):
    """Any size, several servers, FREEs that take time: what leaves is judged, not predicted."""

    servers, pages = 3, 16

    def __init__(self) -> None:
        super().__init__()
        self.core = Core(LRU, self.pages, self.servers)
        self.there: dict[bytes, tuple[int, int]] = {}  # size, version
        self.hard: set[bytes] = set()
        self.pinned: set[bytes] = set()
        self.open: dict[bytes, tuple[int, int]] = {}
        self.sequence = 1
        self.holds = False
        self.draining: set[int] = set()

    def teardown(self) -> None:
        self.core.close()

    @rule(key=keys, size=st.integers(0, 9 * 4096), upsert=st.booleans(), replicas=st.integers(1, 4))
    def put_start(self, key: bytes, size: int, upsert: bool, replicas: int) -> None:
        flags = UPSERT if upsert else 0
        # A put that waits for room would wait for ever while FREEs are held back.
        status, version = self.core.start(
            key, size, flags=flags, replicas=replicas, deadline_ms=1000
        )
        if key in self.there and not upsert:
            assert status == EXISTS
        elif key in self.open:
            assert status == BUSY
        elif status == OK:
            self.open[key] = (size, version)
        elif status == PENDING:
            assert self.holds
            lib.md_test_advance(self.core.test, 1100)
            # Other open puts of the session may have passed their deadline before it.
            answer = self.core.answer(self.core.waiters)
            assert answer in (lib.MS_TIMEOUT, lib.MS_SESSION_LOST)
            # The session of an open put past its deadline ends, and with it all it has.
            self.open.clear()
            self.pinned.clear()
            lib.md_test_session_end(self.core.test, self.core.session)
            self.core.session = lib.md_test_session(self.core.test)
        else:
            assert status == (lib.MS_UNAVAILABLE if len(self.draining) == 3 else NO_SPACE)
            # Something is pinned or being written, or not yet free, or at a server that drains.
            assert self.hard or self.pinned or self.open or self.holds or self.draining

    @rule(key=keys, mask=st.integers(1, 15))
    def put_end(self, key: bytes, mask: int) -> None:
        size, version = self.open.get(key, (0, 1))
        status = self.core.end(key, version, mask)
        if key not in self.open:
            assert status == GONE
        elif status in (OK, PENDING):
            del self.open[key]
            self.there[key] = (size, version)
            self.hard.discard(key)
        else:
            assert status == lib.MS_BAD_REQUEST  # no replica of the grant is in the mask

    @rule(key=keys)
    def revoke(self, key: bytes) -> None:
        _, version = self.open.pop(key, (0, 1))
        assert self.core.revoke(key, version) in (GONE, OK)

    @rule(key=keys)
    def remove(self, key: bytes) -> None:
        status = self.core.remove(key, force=True)
        assert status == PENDING or status == (OK if key in self.there else NOT_FOUND)
        if status == PENDING:
            assert self.holds
        self.there.pop(key, None)
        self.hard.discard(key)

    @rule(key=keys)
    def lookup(self, key: bytes) -> None:
        found = self.core.lookup(key)
        assert (None if found is None else found[0]) == (self.there.get(key, (None,))[0])

    @rule(key=keys, hard=st.booleans())
    def annotate(self, key: bytes, hard: bool) -> None:
        if self.core.annotate(key, ANNOTATE_HARD_PIN, int(hard)) == OK:
            (self.hard.add if hard else self.hard.discard)(key)

    @rule(key=keys)
    def pin(self, key: bytes) -> None:
        if key not in self.pinned and self.core.pin(key) == OK:
            self.pinned.add(key)

    @rule(key=keys)
    def unpin(self, key: bytes) -> None:
        assert self.core.unpin(key) == (OK if key in self.pinned else NOT_FOUND)
        self.pinned.discard(key)

    @rule(key=keys, count=st.integers(0, 3))
    def change_replica(self, key: bytes, count: int) -> None:
        status = lib.md_test_change_replica(self.core.test, key, len(key), count)
        if key not in self.there:
            assert status == NOT_FOUND
            return
        # Without room it waits; to make room the object itself may be evicted.
        assert status in (OK, NO_SPACE, BUSY, PENDING, GONE)
        found = self.core.lookup(key)
        if found is not None:
            self.there[key] = (found[0], found[1])
            if status == OK and count:
                assert 1 <= found[2] <= count

    @rule(server=st.integers(0, 2), drains=st.booleans())
    def drain(self, server: int, drains: bool) -> None:
        assert lib.md_test_drain(self.core.test, server, int(drains)) == OK
        (self.draining.add if drains else self.draining.discard)(server)
        self.look_again()

    @rule(count=st.integers(1, 3))
    def replicate_all(self, count: int) -> None:
        assert lib.md_test_replicate_all(self.core.test, count) in (OK, lib.MS_LIMIT)
        self.look_again()

    def look_again(self) -> None:
        """Objects that were copied have other versions."""
        for key in self.there:
            found = self.core.lookup(key)
            if found is not None:
                assert found[0] == self.there[key][0]
                self.there[key] = (found[0], found[1])

    @rule(hold=st.booleans())
    def hold_frees(self, hold: bool) -> None:
        self.holds = hold
        lib.md_test_hold_frees(self.core.test, hold)

    @invariant()
    def what_left_was_free_to_leave(self) -> None:
        self.core.check()
        self.sequence, events = self.core.events(self.sequence)
        for kind, key in events:
            if kind == EVICTED:
                assert key not in self.hard
                assert key not in self.pinned
                self.there.pop(key, None)
        assert sorted(self.core.list()) == sorted(self.there)


@pytest.mark.timeout(300)
@pytest.mark.parametrize("policy", [LRU, LFU, LENGTH_AWARE, SIEVE])
def test_core_does_what_a_dict_with_that_policy_does(policy: int) -> None:
    machine = type("Machine", (ExactMachine,), {"policy": policy, "evicted": 0})
    run_state_machine_as_test(
        machine,
        settings=settings(
            max_examples=50,
            stateful_step_count=30,
            suppress_health_check=list(HealthCheck),
        ),
    )
    assert machine.evicted > 20  # the runs drew evictions at all


@pytest.mark.timeout(300)
def test_core_keeps_its_invariants_with_objects_of_any_size() -> None:
    run_state_machine_as_test(
        AnySizeMachine,
        settings=settings(
            max_examples=50, stateful_step_count=30, suppress_health_check=list(HealthCheck)
        ),
    )
