"""What decisions do to the store: replicas made where they will be read, and pins while they are.

Replicas of blocks that have become cold are taken back, when nothing else is to be done; whether
they are is looked at just before.
All wait in bounded queues for a thread of their own; no decision waits for them.  Replicas keep
within a bandwidth, and those that a request waits for go before those of hot blocks.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import Counter, deque
from collections.abc import Callable
from dataclasses import dataclass

from mooncake_store.conductor.service.block_names import BlockNames
from mooncake_store.conductor.service.decision import Decision
from mooncake_store.conductor.service.extra_replicas import Extra, ExtraReplicas, TakenBack
from mooncake_store.conductor.service.store_link import OpenStore, StoreLink
from mooncake_store.errors import ObjectError, ObjectNotFoundError, StoreError
from mooncake_store.logs import log_event

__all__ = ["StoreWorker"]

logger = logging.getLogger("mooncake_store.conductor")

_MOVES_MAX = 65_536
_PINS_MAX = 65_536
_TOLD_MAX = 4096  # that were taken back, until the loop has read of them
_PAUSE_S = 0.5
_STALE_S = 30.0  # a copy that has waited so long comes too late for whoever wanted it


@dataclass(frozen=True, slots=True)
class _Move:
    digest: str
    target: str
    wanted_s: float
    wanted_by: str


@dataclass(frozen=True, slots=True)
class _Pin:
    request_id: str
    keys: tuple[str, ...]


class StoreWorker:
    """Carries effects out.

    Args:
        open_store: Opens links.
        address: Of the store's master.
        names: How the store calls blocks.
        number_of: The number of a store server that is there, by name; None: it is not.
        bytes_per_s: Of replicas, all together; 0: none are made.
        pins: Whether to pin.
        pin_timeout_s: When a pin ends at the latest.
        take_back_s: When replicas that were made here are taken back of blocks that nobody asks
            for; 0: never.

    Attributes:
        moves: How many replicas were asked for, by outcome.
        moved_bytes: Of those that were made.
        extras: Those that have not been taken back.
        taken_back: How many were to be taken back, by outcome.
        told: Each of them, until somebody takes it out at the left.
        taken_back_bytes: Of those that were.
    """

    def __init__(
        self,
        open_store: OpenStore,
        address: str,
        names: BlockNames,
        number_of: Callable[[str], int | None],
        *,
        bytes_per_s: int,
        pins: bool,
        pin_timeout_s: float,
        take_back_s: float,
    ) -> None:
        self._open_store = open_store
        self._address = address
        self._names = names
        self._number_of = number_of
        self._bytes_per_s = bytes_per_s
        self._has_pins = pins
        self._pin_timeout_s = pin_timeout_s
        self._wanted = threading.Condition()
        self._moves: deque[_Move] = deque()
        self._hot: deque[_Move] = deque()
        self._queued: set[tuple[str, str]] = set()
        self._to_pin: dict[str, _Pin] = {}  # by request, the oldest first
        self._pinning = ""  # the request whose pin is being asked for
        self._to_unpin: deque[str] = deque()  # requests that are pinned, or being pinned
        self._is_stopping = False
        self._threads = [
            threading.Thread(target=self._run, args=(step,), name=name, daemon=True)
            for name, step in (("store-moves", self._move), ("store-pins", self._pin))
        ]
        self._pinned: dict[str, tuple[str, ...]] = {}
        self._budget_s = time.monotonic()
        self.moves: Counter[str] = Counter()
        self.moved_bytes = 0
        self.extras = ExtraReplicas(cold_s=take_back_s)
        self.taken_back: Counter[str] = Counter()
        self.taken_back_bytes = 0
        self._takes_back = take_back_s > 0
        self.told: deque[TakenBack] = deque(maxlen=_TOLD_MAX)

    def start(self) -> None:
        """Begin, in threads of its own."""
        for thread in self._threads:
            thread.start()

    def stop(self, timeout_s: float) -> None:
        """End; what has not been done stays undone, and pins end with the session."""
        with self._wanted:
            self._is_stopping = True
            self._wanted.notify_all()
        for thread in self._threads:
            thread.join(timeout_s)

    @property
    def waiting(self) -> int:
        """Replicas still to be made."""
        return len(self._moves) + len(self._hot)

    @property
    def pinned_blocks(self) -> int:
        """Keys that are pinned now."""
        return sum(map(len, tuple(self._pinned.values())))

    # ---- from the loop ---------------------------------------------------------------------------

    def accepted(self, decision: Decision, digests: tuple[str, ...]) -> None:
        """Pin what a request will read, and copy what it fetches to the server of its host."""
        self.extras.asked(digests, time.monotonic())
        with self._wanted:
            has_room = len(self._to_pin) < _PINS_MAX
            if self._has_pins and decision.pinned_blocks and has_room:
                keys = [
                    key
                    for digest in digests[: decision.pinned_blocks]
                    for key in self._names.store_keys(digest)
                ]
                self._to_pin[decision.request_id] = _Pin(decision.request_id, tuple(keys))
            if decision.move and decision.target_server != decision.source_server:
                for digest in decision.move:
                    self._add(self._moves, digest, decision.target_server, decision.request_id)
            self._wanted.notify_all()

    def ended(self, request_id: str) -> None:
        """Let go what was pinned for a request."""
        with self._wanted:
            self._to_pin.pop(request_id, None)
            # Also then: a name that was used before may have pins of that time.
            if request_id == self._pinning or request_id in self._pinned:
                self._to_unpin.append(request_id)
                self._wanted.notify_all()

    def replicate(self, digest: str, target: str) -> None:
        """Copy a hot block to a server, when nobody's request waits for the bandwidth."""
        with self._wanted:
            self._add(self._hot, digest, target, "")
            self._wanted.notify_all()

    def _add(self, queue: deque[_Move], digest: str, target: str, wanted_by: str) -> None:
        if not self._bytes_per_s or not target or (digest, target) in self._queued:
            return
        if self.waiting >= _MOVES_MAX:
            self.moves["dropped"] += 1
            return
        self._queued.add((digest, target))
        queue.append(_Move(digest, target, time.monotonic(), wanted_by))

    # ---- in threads ------------------------------------------------------------------------------

    def _run(self, step: Callable[[StoreLink], None]) -> None:
        link: StoreLink | None = None
        while not self._is_stopping:
            try:
                if link is None:
                    link = self._open_store(self._address)
                step(link)
            except StoreError as error:
                log_event(logger, logging.WARNING, "store_call_failed", reason=error)
                if link is not None:
                    link.close()
                    link = None
                with self._wanted:
                    self._wanted.wait_for(lambda: self._is_stopping, _PAUSE_S)
        if link is not None:
            link.close()

    def _move(self, link: StoreLink) -> None:
        with self._wanted:
            self._wanted.wait_for(
                lambda: self._is_stopping or self._moves or self._hot or self._has_cold(), 1.0
            )
            if self._is_stopping:
                return
            is_idle = not self._moves and not self._hot
        if is_idle:
            cold = self.extras.take_cold(time.monotonic()) if self._takes_back else None
            if cold is not None:
                self._take_back(link, *cold)
            return
        with self._wanted:
            # The budget: nothing begins before the bytes of what was made have passed at its rate.
            pause_s = self._budget_s - time.monotonic()
            if pause_s > 0:
                self._wanted.wait_for(lambda: self._is_stopping, min(pause_s, 1.0))
                return
            move = self._moves.popleft() if self._moves else self._hot.popleft()
            self._queued.discard((move.digest, move.target))
        target = self._number_of(move.target)
        if target is None or time.monotonic() - move.wanted_s > _STALE_S:
            self.moves["dropped"] += 1
            return
        for key in self._names.store_keys(move.digest):
            try:
                made = link.add_replica(key, target)
            except ObjectError:  # it left, or is being replaced, meanwhile
                self.moves["gone"] += 1
                continue
            except StoreError as error:
                self.moves["failed"] += 1
                if error.retryable:
                    raise
                continue
            self.moves["made" if made is not None else "needless"] += 1
            if made is not None:
                size, had = made
                self.moved_bytes += size
                now_s = time.monotonic()
                if self._takes_back:
                    extra = Extra(key, move.target, had, size, move.wanted_by)
                    self.extras.made(move.digest, extra, now_s)
                self._budget_s = max(self._budget_s, now_s) + size / self._bytes_per_s

    def _has_cold(self) -> bool:
        return self._takes_back and self.extras.has_cold(time.monotonic())

    def _take_back(self, link: StoreLink, cold: Extra, idle_s: float) -> None:
        outcome = "failed"
        try:
            outcome = self._drop(link, cold)
        finally:
            self.taken_back[outcome] += 1
            if outcome == "done":
                self.taken_back_bytes += cold.size_bytes
            self.told.append(TakenBack(cold, time.time(), idle_s, outcome))

    def _drop(self, link: StoreLink, cold: Extra) -> str:
        source = self._number_of(cold.server)
        if source is None:  # its server is gone, and the replica with it
            return "gone"
        try:
            return "done" if link.drop_replica(cold.key, source, cold.had) else "needless"
        except ObjectNotFoundError:
            return "gone"
        except ObjectError:  # pinned, or being read or copied just now
            return "failed"
        except StoreError as error:
            if error.retryable:
                raise
            return "failed"

    def _pin(self, link: StoreLink) -> None:
        with self._wanted:
            if not self._wanted.wait_for(
                lambda: self._is_stopping or self._to_pin or self._to_unpin, 1.0
            ):
                return
            if self._is_stopping:
                return
            wanted: _Pin | None = None
            unwanted: tuple[str, ...] = ()
            if self._to_unpin:
                unwanted = self._pinned.pop(self._to_unpin.popleft(), ())
            else:
                wanted = self._to_pin.pop(next(iter(self._to_pin)))
                self._pinning = wanted.request_id
        if wanted is None:
            if unwanted:
                link.unpin(unwanted)
            return
        count = 0
        try:
            count = link.pin(wanted.keys, self._pin_timeout_s)
        finally:
            with self._wanted:
                if count:
                    # Beside what the name may have pinned before: pins nest.
                    before = self._pinned.get(wanted.request_id, ())
                    self._pinned[wanted.request_id] = before + wanted.keys[:count]
                self._pinning = ""
