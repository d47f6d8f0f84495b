"""A lease and the time until which its holder may believe in it, whoever else can be reached.

The service counts a lease from when a renewal reaches it; the holder counts from when it *sent*
the last one that was answered, on a clock that goes on while the machine is suspended, less a
margin for clocks that do not run alike. So the holder stops believing first. Then the lease is
**suspended**: it may still be there, and a renewal that succeeds makes it valid again (an etcd that
was away extends its leases). It is **lost** only when the service says that it is gone.
"""

from __future__ import annotations

import asyncio
import contextlib
import enum
import time
from collections.abc import AsyncGenerator, Callable
from dataclasses import dataclass

from mooncake_store.coordination.etcd_client.store import KeyValueStore
from mooncake_store.errors import StoreError, UnavailableError

__all__ = ["Lease", "LeaseKeeper", "LeaseState", "boottime_ns"]

_NS = 1_000_000_000
_REVOKE_TIMEOUT_S = 1.0


def boottime_ns() -> int:
    """Return the clock of leases: it does not stop while the machine is suspended."""
    return time.clock_gettime_ns(time.CLOCK_BOOTTIME)


class LeaseState(enum.Enum):
    """What the holder may believe."""

    VALID = "valid"
    SUSPENDED = "suspended"
    LOST = "lost"


@dataclass(frozen=True, slots=True)
class Lease:
    """How a lease stands.

    Attributes:
        deadline_ns: Of CLOCK_BOOTTIME: valid until then by itself; 0: it has none (local).
    """

    state: LeaseState
    deadline_ns: int


class LeaseKeeper:
    """Renews a lease until it is lost or given back.

    Args:
        store: Who granted it.
        lease: Its number.
        ttl_s: As granted.
        asked_ns: When the grant was asked for, by `clock`.
        clock: Nanoseconds, of CLOCK_BOOTTIME.
    """

    def __init__(
        self,
        store: KeyValueStore,
        lease: int,
        ttl_s: int,
        asked_ns: int,
        clock: Callable[[], int] = boottime_ns,
    ) -> None:
        self.lease = lease
        self._store = store
        self._ttl_s = ttl_s
        self._asked_ns = asked_ns
        self._clock = clock
        self._is_lost = False
        self._changed = asyncio.Event()
        self._task = asyncio.create_task(self._keep())

    @property
    def now(self) -> Lease:
        """How it stands at this moment."""
        deadline_ns = self._asked_ns + int(self._ttl_s * 0.9 * _NS)
        if self._is_lost:
            return Lease(LeaseState.LOST, deadline_ns)
        is_valid = self._clock() < deadline_ns
        return Lease(LeaseState.VALID if is_valid else LeaseState.SUSPENDED, deadline_ns)

    async def changes(self) -> AsyncGenerator[Lease, None]:
        """Yield how it stands, now and after each renewal, at its deadline, and when it is lost."""
        while True:
            changed = self._changed
            lease = self.now
            yield lease
            if lease.state is LeaseState.LOST:
                return
            left_s = (lease.deadline_ns - self._clock()) / _NS
            timeout_s = max(left_s, 0.0) if lease.state is LeaseState.VALID else None
            # Whatever wakes it, `now` is looked at again: timers stop while the machine sleeps.
            with contextlib.suppress(asyncio.TimeoutError):
                await asyncio.wait_for(changed.wait(), timeout_s)

    async def close(self) -> None:
        """Stop renewing, and give it back if the service can be reached."""
        self._task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await self._task
        if not self._is_lost:
            # It would end by itself; that is worth waiting for only a moment.
            with contextlib.suppress(StoreError, asyncio.TimeoutError):
                await asyncio.wait_for(self._store.revoke(self.lease), _REVOKE_TIMEOUT_S)

    async def _keep(self) -> None:
        # A renewal that has no answer after a quarter of the time to live gets another one beside
        # it, from another member if there is one. It is not given up: its answer still says that
        # the lease lived when it was sent, and a service that is slow all the time must not be
        # taken for one that is gone.
        under_way: set[asyncio.Task[float]] = set()
        pause_s = self._until_next_s(self._asked_ns)
        try:
            while not self._is_lost:
                await asyncio.sleep(pause_s)
                renewal = asyncio.create_task(self._renew())
                under_way.add(renewal)
                renewal.add_done_callback(under_way.discard)
                done, _ = await asyncio.wait({renewal}, timeout=self._ttl_s / 4)
                pause_s = renewal.result() if done else 0.0
        finally:
            for renewal in under_way:
                renewal.cancel()

    async def _renew(self) -> float:
        """Renew once; return the pause before the next time."""
        asked_ns = self._clock()
        try:
            ttl_s = await self._store.renew(
                self.lease, patience_s=self._ttl_s / 4, timeout_s=self._ttl_s * 0.9
            )
        except UnavailableError:
            return 0.02
        except StoreError:
            return self._ttl_s / 4  # refused; it may be allowed again
        if ttl_s <= 0:
            self._is_lost = True
        elif asked_ns > self._asked_ns:  # answers need not come in the order of the questions
            self._asked_ns, self._ttl_s = asked_ns, ttl_s
        self._changed.set()
        self._changed = asyncio.Event()
        return self._until_next_s(asked_ns)

    def _until_next_s(self, asked_ns: int) -> float:
        return max(self._ttl_s / 4 - (self._clock() - asked_ns) / _NS, 0.0)
