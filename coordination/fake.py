"""An etcd in memory, for tests of what is built on one; the conformance suite holds it to the real.

`FakeEtcd` is the service, `FakeEtcd.client()` a `KeyValueStore` of it. Its answers, revisions,
leases and watches are etcd's; it can be stopped and started again, as a crash or a freeze would.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Sequence
from dataclasses import dataclass

from mooncake_store.coordination.etcd_client.store import (
    CompactedError,
    Delete,
    Entries,
    Entry,
    Event,
    Grant,
    KeyIs,
    Operation,
    Outcome,
    Put,
    Read,
)
from mooncake_store.errors import InternalError, UnavailableError

__all__ = ["FakeClient", "FakeEtcd"]


@dataclass(slots=True)
class _Lease:
    ttl_s: int
    timer: asyncio.TimerHandle


class FakeEtcd:
    """One member that keeps everything in memory. Made inside a running loop.

    Args:
        ttl_min_s: No lease is shorter, as with etcd.
    """

    def __init__(self, ttl_min_s: int = 1) -> None:
        self.revision = 1
        self._ttl_min_s = ttl_min_s
        self._entries: dict[bytes, Entry] = {}
        self._history: list[tuple[Event, ...]] = []  # one a revision that changed something
        self._compacted = 0
        self._leases: dict[int, _Lease] = {}
        self._lease_last = 0
        self._changed = asyncio.Event()
        self.is_running = True

    def client(self) -> FakeClient:
        """Return a client; all of them see the same keys."""
        return FakeClient(self)

    def stop(self) -> None:
        """Answer nobody from now on."""
        self.is_running = False
        for lease in self._leases.values():
            lease.timer.cancel()

    def start(self) -> None:
        """Answer again; leases begin anew, as after an election of etcd's."""
        self.is_running = True
        for number, lease in self._leases.items():
            lease.timer = self._timer(number, lease.ttl_s)
        self._tell()

    # ---- what clients call ----

    def check(self) -> None:
        if not self.is_running:
            raise UnavailableError("no answer from etcd: it is stopped", node="fake")

    def read(self, key: bytes, end: bytes, revision: int) -> Entries:
        if revision and revision < self._compacted:
            raise CompactedError(0)
        entries = self._entries if not revision else self._entries_at(revision)
        return Entries(_within(entries, key, end), revision or self.revision)

    def change(
        self,
        conditions: Sequence[KeyIs],
        then: Sequence[Operation],
        otherwise: Sequence[Operation],
    ) -> Outcome:
        is_met = all(map(self._holds, conditions))
        operations = then if is_met else otherwise
        keys = [each.key for each in operations if isinstance(each, Put)]
        if len(set(keys)) != len(keys):
            raise InternalError("etcd did not understand: duplicate key given in txn request")
        if max(len(conditions), len(then), len(otherwise)) > 128:
            raise InternalError("etcd did not understand: too many operations in txn request")
        events: list[Event] = []
        reads: list[tuple[Entry, ...]] = []
        for operation in operations:
            if isinstance(operation, Read):
                reads.append(_within(self._entries, operation.key, operation.end))
            elif isinstance(operation, Put):
                events.append(self._put(operation))
            else:
                events += self._delete(operation)
        self._commit(events)
        return Outcome(is_met, self.revision, tuple(reads))

    def grant(self, ttl_s: int) -> Grant:
        self._lease_last += 1
        ttl_s = max(ttl_s, self._ttl_min_s)
        self._leases[self._lease_last] = _Lease(ttl_s, self._timer(self._lease_last, ttl_s))
        return Grant(self._lease_last, ttl_s)

    def renew(self, number: int) -> int:
        lease = self._leases.get(number)
        if lease is None:
            return 0
        lease.timer.cancel()
        lease.timer = self._timer(number, lease.ttl_s)
        return lease.ttl_s

    def revoke(self, number: int) -> None:
        lease = self._leases.pop(number, None)
        if lease is None:
            return
        lease.timer.cancel()
        keys = [entry.key for entry in self._entries.values() if entry.lease == number]
        self._commit([event for key in keys for event in self._delete(Delete(key))])

    def compact(self, revision: int) -> None:
        """Forget history before a revision."""
        if not self._compacted < revision <= self.revision:
            raise InternalError("etcd did not understand: no such revision to compact")
        self._compacted = revision
        self._history = [
            events for events in self._history if events[0].entry.mod_revision >= revision
        ]

    async def changes(
        self, key: bytes, end: bytes, revision: int
    ) -> AsyncGenerator[tuple[Event, ...], None]:
        while True:
            if self.is_running:
                if revision < self._compacted:
                    raise CompactedError(self._compacted)
                for events in tuple(self._history):
                    number = events[0].entry.mod_revision
                    if number < revision:
                        continue
                    revision = number + 1
                    wanted = tuple(
                        event for event in events if _is_within(event.entry.key, key, end)
                    )
                    if wanted:
                        yield wanted
            latest = self._history[-1][0].entry.mod_revision if self._history else 0
            if not self.is_running or latest < revision:
                await self._changed.wait()

    # ---- inside ----

    def _timer(self, number: int, ttl_s: int) -> asyncio.TimerHandle:
        return asyncio.get_running_loop().call_later(ttl_s, self.revoke, number)

    def _holds(self, condition: KeyIs) -> bool:
        entry = self._entries.get(condition.key)
        created = 0 if entry is None else entry.create_revision
        changed = 0 if entry is None else entry.mod_revision
        return condition.created in (None, created) and condition.changed in (None, changed)

    def _put(self, put: Put) -> Event:
        if put.lease and put.lease not in self._leases:
            raise InternalError("etcd did not understand: requested lease not found")
        old = self._entries.get(put.key)
        number = self.revision + 1
        created = number if old is None else old.create_revision
        entry = Entry(put.key, put.value, created, number, put.lease)
        self._entries[put.key] = entry
        return Event(entry, is_delete=False)

    def _delete(self, delete: Delete) -> list[Event]:
        gone = _within(self._entries, delete.key, delete.end)
        for entry in gone:
            del self._entries[entry.key]
        return [
            Event(Entry(entry.key, b"", 0, self.revision + 1), is_delete=True) for entry in gone
        ]

    def _commit(self, events: list[Event]) -> None:
        if events:
            self.revision += 1
            self._history.append(tuple(events))
            self._tell()

    def _tell(self) -> None:
        self._changed.set()
        self._changed = asyncio.Event()

    def _entries_at(self, revision: int) -> dict[bytes, Entry]:
        """Return what was there then: the newest of each key, from history and what is older."""
        found = {
            entry.key: entry for entry in self._entries.values() if entry.mod_revision <= revision
        }
        for events in self._history:
            for event in events:
                entry = event.entry
                if entry.mod_revision > revision:
                    continue
                if event.is_delete:
                    found.pop(entry.key, None)
                else:
                    found[entry.key] = entry
        return found


class FakeClient:
    """A `KeyValueStore` on a fake."""

    def __init__(self, service: FakeEtcd) -> None:
        self._service = service

    async def read(self, key: bytes, end: bytes = b"", *, revision: int = 0) -> Entries:
        await self._travel()
        return self._service.read(key, end, revision)

    async def put(self, key: bytes, value: bytes, *, lease: int = 0) -> int:
        await self._travel()
        return self._service.change((), (Put(key, value, lease),), ()).revision

    async def transact(
        self,
        conditions: Sequence[KeyIs],
        then: Sequence[Operation],
        otherwise: Sequence[Operation] = (),
        *,
        is_repeatable: bool,
    ) -> Outcome:
        await self._travel()
        return self._service.change(conditions, then, otherwise)

    async def compact(self, revision: int) -> None:
        await self._travel()
        self._service.compact(revision)

    async def grant(self, ttl_s: int) -> Grant:
        await self._travel()
        return self._service.grant(ttl_s)

    async def renew(self, lease: int, *, timeout_s: float, patience_s: float | None = None) -> int:
        await self._travel()
        return self._service.renew(lease)

    async def revoke(self, lease: int) -> None:
        await self._travel()
        self._service.revoke(lease)

    def watch(
        self, key: bytes, end: bytes = b"", *, from_revision: int
    ) -> AsyncGenerator[tuple[Event, ...], None]:
        return self._service.changes(key, end, from_revision)

    async def close(self) -> None:
        pass

    async def _travel(self) -> None:
        await asyncio.sleep(0)  # others run meanwhile, as with a network
        self._service.check()


def _is_within(key: bytes, start: bytes, end: bytes) -> bool:
    return start <= key < end if end else key == start


def _within(entries: dict[bytes, Entry], start: bytes, end: bytes) -> tuple[Entry, ...]:
    if not end:
        return (entries[start],) if start in entries else ()
    return tuple(entries[key] for key in sorted(entries) if start <= key < end)
