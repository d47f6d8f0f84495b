"""How a master that waits to lead lets others know: a key under a lease of its own.

    PREFIX/standbys/ID       address, host and process of a master that waits to lead: JSON

Nobody decides anything by it. It is for people, who want to know whether somebody would take over.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import os
import secrets
import socket
from collections.abc import Callable

from mooncake_store.coordination.coordinator import Standby
from mooncake_store.coordination.etcd_client.store import KeyValueStore
from mooncake_store.coordination.lease import LeaseKeeper, LeaseState
from mooncake_store.errors import StoreError, UnavailableError
from mooncake_store.logs import log_event

__all__ = ["StandbyNotice", "standby_of", "standby_prefix"]

_LEASE_S = 5  # a standby that died is told so long
_PAUSE_S = 1.0

logger = logging.getLogger("mooncake_store.coordination")


def standby_prefix(prefix: str) -> bytes:
    """Return what the keys of all standbys begin with."""
    return f"{prefix}/standbys/".encode()


def standby_of(value: bytes) -> Standby | None:
    """Return a standby from its key's value; None: it is damaged."""
    try:
        document = json.loads(value)
        return Standby(str(document["address"]), str(document["host"]), int(document["pid"]))
    except (ValueError, KeyError, TypeError):
        return None


class StandbyNotice:
    """Tells, from now until `end`, that this process waits to lead.

    Args:
        store: Where.
        prefix: Of the cluster's keys.
        address: What is told.
        clock: Nanoseconds of CLOCK_BOOTTIME.
    """

    def __init__(
        self, store: KeyValueStore, prefix: str, address: str, clock: Callable[[], int]
    ) -> None:
        self._store = store
        self._clock = clock
        self._key = standby_prefix(prefix) + secrets.token_hex(8).encode()
        told = {"address": address, "host": socket.gethostname(), "pid": os.getpid()}
        self._value = json.dumps(told).encode()
        self._keeper: LeaseKeeper | None = None
        self._task = asyncio.create_task(self._tell())

    def end(self) -> None:
        """Take it back, in a moment: whoever leads now has more urgent things to do."""
        self._task.cancel()

    async def close(self) -> None:
        """End it, and wait for that."""
        self.end()
        with contextlib.suppress(asyncio.CancelledError):
            await self._task

    async def _tell(self) -> None:
        while True:
            try:
                await self._tell_once()
            except UnavailableError:
                pass  # whoever waits for the lead says so
            except StoreError as error:
                log_event(logger, logging.WARNING, "standby_not_told", reason=error)
                return  # a matter of rights, which takes somebody who changes them
            await asyncio.sleep(_PAUSE_S)

    async def _tell_once(self) -> None:
        """Tell until the lease is lost."""
        asked_ns = self._clock()
        grant = await self._store.grant(_LEASE_S)
        keeper = self._keeper = LeaseKeeper(
            self._store, grant.lease, grant.ttl_s, asked_ns, clock=self._clock
        )
        try:
            await self._store.put(self._key, self._value, lease=grant.lease)
            async with contextlib.aclosing(keeper.changes()) as changes:
                async for lease in changes:
                    if lease.state is LeaseState.LOST:
                        return
        finally:
            await keeper.close()
