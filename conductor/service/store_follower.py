"""Following the store's events, so that the index knows what each store server holds.

A thread asks the store and hands over to the loop, which owns the index: nothing else touches it.
First a position, then a snapshot, then everything since the position: what changed while the
snapshot was read is applied again, in order, and so the end is right whatever the snapshot saw.
The snapshot is a listing of the store, or a file of an earlier life and everything since then.
"""

from __future__ import annotations

import contextlib
import logging
import threading
import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import cast

from mooncake_store.conductor.feed import Feed, FeedResult
from mooncake_store.conductor.service.block_names import BlockNames
from mooncake_store.conductor.service.index_file import IndexFile, Kept
from mooncake_store.conductor.service.scheduler import Scheduler
from mooncake_store.conductor.service.store_link import (
    OpenStore,
    Placed,
    StoreChange,
    StoreLink,
    StoreMember,
)
from mooncake_store.errors import StoreError
from mooncake_store.logs import log_event
from mooncake_store.protocol.methods import EventKind

__all__ = ["StoreFollower"]

logger = logging.getLogger("mooncake_store.conductor")

_PAGE = 1000
_POLL_S = 0.02
_MEMBERS_S = 1.0
_PAUSE_S = 0.5  # after a failure
_KEEP_S = 10.0  # between two files
_GONE = frozenset(
    {EventKind.REMOVED, EventKind.EVICTED, EventKind.EXPIRED, EventKind.LOST}
)  # no server has it any more

OnLoop = Callable[[Callable[[], object]], object]


class StoreFollower:
    """Keeps the index as the store is.

    Args:
        open_store: Opens links.
        address: Of the store's master.
        scheduler: Whose index it is.
        names: Which of the store's keys are blocks.
        on_loop: Runs a function on the loop and returns what it returns; raises RuntimeError when
            the loop has ended.
        file: To be warm from after a restart; None: none is kept.

    Attributes:
        is_connected: The index is as the store was a moment ago.
        is_from_file: It began with a file of an earlier life.
        warm_s: What the last snapshot took, with the tail behind it; None: none yet.
    """

    def __init__(
        self,
        open_store: OpenStore,
        address: str,
        scheduler: Scheduler,
        names: BlockNames,
        on_loop: OnLoop,
        file: IndexFile | None = None,
    ) -> None:
        self._open_store = open_store
        self._address = address
        self._scheduler = scheduler
        self._names = names
        self._on_loop = on_loop
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="store-follower", daemon=True)
        self.feed = Feed("store")
        self.is_connected = False
        self.warm_s: float | None = None
        self.events_applied = self.snapshots = 0
        self.numbers: dict[str, int] = {}  # of store servers, by name
        self._server_names: dict[int, str] = {}
        self._members_s = 0.0
        self._file = file
        self._kept_s = time.monotonic()
        self._kept_at = (-1, -1, -1)  # cluster, epoch and sequence of the last file
        self._cluster = 0  # whose index it is
        self.is_from_file = False

    def start(self) -> None:
        """Begin, in a thread of its own."""
        self._thread.start()

    def stop(self, timeout_s: float) -> None:
        """End; a call under way has so long."""
        self._stop.set()
        self._thread.join(timeout_s)

    def _run(self) -> None:
        is_told = False
        from_file = self._read_file()
        while not self._stop.is_set():
            try:
                link = self._open_store(self._address)
            except StoreError as error:
                if not is_told:
                    log_event(logger, logging.WARNING, "store_unreachable", reason=error)
                    is_told = True
                self._stop.wait(_PAUSE_S)
                continue
            is_told = False
            try:
                if from_file is not None:
                    self._begin_with(link, from_file)
                    from_file = None
                self._follow(link)
            except StoreError as error:
                log_event(logger, logging.WARNING, "store_lost", reason=error)
            except Exception as error:  # a fault of ours, or a loop that ends: begin anew
                if self._stop.is_set():
                    return
                self.feed.needs_snapshot = True
                log_event(logger, logging.ERROR, "store_follower_failed", reason=repr(error))
            finally:
                self.is_connected = False
                link.close()
            self._stop.wait(_PAUSE_S)
        with contextlib.suppress(Exception):  # the loop has ended before us
            self._keep()

    # ---- the file --------------------------------------------------------------------------------

    def _read_file(self) -> Kept | None:
        if self._file is None:
            return None
        kept, reason = self._file.read()
        if kept is None:
            log_event(logger, logging.INFO, "index_file_not_used", reason=reason)
        return kept

    def _begin_with(self, link: StoreLink, kept: Kept) -> None:
        """Take a file for the snapshot, if the store still knows what came after it."""
        epoch, next_sequence = link.position()
        cluster = link.cluster()
        if kept.cluster != cluster:
            log_event(
                logger, logging.WARNING, "index_file_not_used",
                reason=f"it is of cluster {kept.cluster:016x}, and at {self._address} is cluster "
                f"{cluster:016x}: the store is listed, and the file replaced",
            )  # fmt: skip
            return
        if (kept.epoch, kept.sequence < next_sequence) != (epoch, True):
            log_event(
                logger, logging.INFO, "index_file_not_used",
                reason=f"it is as of event {kept.sequence} of epoch {kept.epoch}, the store is "
                f"before event {next_sequence} of epoch {epoch}",
            )  # fmt: skip
            return
        self._members(link)
        holders, known = self._scheduler.holders, set(self._server_names.values())
        parts = [partial(holders.stored, *one) for one in kept.servers if one[0] in known]
        load = partial(self.feed.load_snapshot, epoch, kept.sequence, self._clear, parts)
        self._load(load)
        self._cluster = cluster
        self.is_from_file = True

    def _keep(self) -> None:
        """Write a file, if something has happened since the last one."""
        feed, self._kept_s = self.feed, time.monotonic()
        if self._file is None or feed.needs_snapshot:
            return
        scheduler = self._scheduler
        # Before the columns are read: events that come meanwhile are applied again.
        at = (self._cluster, feed.epoch, feed.sequence)
        if at == self._kept_at:
            return
        names = cast("tuple[str, ...]", self._on_loop(lambda: scheduler.holders.servers))
        servers = []
        for name in names:
            # A server at a time and all of it at once: the loop waits no longer, and no key can
            # move within the table while it is read.
            column = cast("bytes", self._on_loop(partial(scheduler.holders.column, name)))
            servers.append((name, column))
        try:
            self._file.write(Kept(*at, servers))
        except OSError as error:
            log_event(logger, logging.WARNING, "index_file_not_written", reason=error)
            return
        self._kept_at = at

    # ---- the store -------------------------------------------------------------------------------

    def _follow(self, link: StoreLink) -> None:
        began_s = time.monotonic()
        self._members(link)
        epoch, begun_at = link.position()
        cluster = link.cluster()
        if self._cluster not in (0, cluster):
            # Its epochs and numbers say nothing of what is known so far, even where they fit.
            log_event(
                logger, logging.WARNING, "store_is_another",
                cluster=f"{cluster:016x}", was=f"{self._cluster:016x}",
            )  # fmt: skip
            self._on_loop(self._lose)
        elif self.feed.epoch not in (-1, epoch) or self.feed.sequence >= begun_at:
            # Numbers of another epoch say nothing of this one's, and those that this store has not
            # reached are of a future that it has not had.
            self._on_loop(self._lose)
        self._cluster = cluster
        if self.feed.needs_snapshot and not self._snapshot(link, epoch, begun_at):
            return
        sequence = self.feed.sequence + 1
        while not self._stop.is_set():
            if time.monotonic() - self._members_s > _MEMBERS_S:
                self._members(link)
            if self.is_connected and time.monotonic() - self._kept_s > _KEEP_S:
                self._keep()  # also of a store that is never quiet
            page = link.events(epoch, sequence, _PAGE)
            if page is None or link.cluster() != self._cluster:
                self._on_loop(self._lose)
                return  # begin anew, with a snapshot
            # As the store was when this began: one that is never quiet is never reached.
            if not self.is_connected and sequence >= begun_at:
                self.is_connected = True
                self.warm_s = time.monotonic() - began_s
                log_event(
                    logger, logging.INFO, "store_followed", epoch=epoch, sequence=sequence,
                    seconds=round(self.warm_s, 3),
                )  # fmt: skip
                self._keep()
            if not page.changes:
                self._stop.wait(_POLL_S)
                continue
            named = {change.server for change in page.changes if change.server is not None}
            if not named <= set(self._server_names):
                self._members(link)
            apply = partial(self._apply, page.epoch, page.first, page.changes)
            result = self._on_loop(apply)
            if result is not FeedResult.APPLIED and result is not FeedResult.DUPLICATE:
                return
            sequence = page.first + len(page.changes)

    def _lose(self) -> None:
        """Forget where the stream stood: whoever publishes now may count from 1 in an old epoch."""
        self.feed.epoch, self.feed.sequence = -1, 0
        self.feed.needs_snapshot = True
        self.feed.gaps += 1

    # ---- on the loop -----------------------------------------------------------------------------

    def _apply(self, epoch: int, first: int, changes: Sequence[StoreChange]) -> FeedResult:
        def apply(skip: int) -> None:
            self._change(changes[skip:])
            self.events_applied += len(changes) - skip

        return self.feed.offer(epoch, first, len(changes), apply)

    def _change(self, changes: Sequence[StoreChange]) -> None:
        """Apply events in order; runs of the same kind at the same server together."""
        holders, names = self._scheduler.holders, self._names
        run: list[bytes] = []
        kind, server = 0, None

        def flush() -> None:
            if not run:
                return
            keys = b"".join(run)
            run.clear()
            name = None if server is None else self._server_names.get(server)
            if kind in _GONE:
                holders.removed_everywhere(keys)
            elif name is None:
                return
            elif kind in (EventKind.STORED, EventKind.REPLICA_ADDED):
                holders.stored(name, keys)
            elif kind == EventKind.REPLICA_LOST:
                holders.removed(name, keys)

        for change in changes:
            if (change.kind, change.server) != (kind, server):
                flush()
                kind, server = change.kind, change.server
            if change.kind == EventKind.SERVER_LOST:
                name = None if server is None else self._server_names.get(server)
                slot = None if name is None else holders.slot_of(name)
                if name is not None and slot is not None:
                    holders.clear_server(name, slot)
                continue
            key = names.index_key(change.key)
            if key is not None:
                run.append(key)
        flush()

    def _load(self, load: Callable[[], FeedResult]) -> None:
        result = self._on_loop(load)
        # What another epoch or a later event would have made of it has been lost before.
        if result is not FeedResult.APPLIED:
            raise AssertionError(f"a listing was {result}")

    def _snapshot(self, link: StoreLink, epoch: int, sequence: int) -> bool:
        """Read what there is before an event; return False if stopped, with nothing changed."""
        found: list[list[Placed]] = []
        cursor = 0
        while True:
            cursor, objects = link.placed(self._names.prefixes[0], cursor, _PAGE)
            found.append(objects)
            if cursor == 0:
                break
            if self._stop.is_set():
                return False
        named = {server for objects in found for one in objects for server in one.servers}
        if not named <= set(self._server_names):
            self._members(link)  # a server that has come since: what it holds would be left out
        holders = self._scheduler.holders

        def store(objects: list[Placed]) -> None:
            by_server: dict[int, list[bytes]] = {}
            for one in objects:
                key = self._names.index_key(one.key.encode())
                if key is not None:
                    for server in one.servers:
                        by_server.setdefault(server, []).append(key)
            for server, keys in by_server.items():
                name = self._server_names.get(server)
                if name is not None:
                    holders.stored(name, b"".join(keys))

        def load() -> FeedResult:
            parts = [partial(store, objects) for objects in found]
            return self.feed.load_snapshot(epoch, sequence - 1, self._clear, parts)

        self._load(load)
        self.snapshots += 1
        return True

    def _clear(self) -> None:
        holders = self._scheduler.holders
        for name in holders.servers:
            slot = holders.slot_of(name)
            if slot is not None:
                holders.clear_server(name, slot)

    def _members(self, link: StoreLink) -> None:
        members = link.members()
        self._members_s = time.monotonic()
        self._on_loop(lambda: self._show_members(members))

    def _show_members(self, members: list[StoreMember]) -> None:
        holders = self._scheduler.holders
        self._server_names = {one.server: one.name for one in members}
        self.numbers = {one.name: one.server for one in members if one.is_there}
        changed = False
        for one in members:
            if one.is_there and holders.slot_of(one.name) is None:
                holders.add_server(one.name)
                changed = True
        for name in set(holders.servers) - {one.name for one in members}:
            holders.remove_server(name)
            changed = True
        if changed:
            self._scheduler.names_changed()
