"""The store as a connector wants it: objects in memory at addresses, and never an exception.

A failure is a miss, or something that is not stored; it is logged, at most every ten seconds.
"""

from __future__ import annotations

import contextlib
import logging
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from mooncake_store.client import Client
from mooncake_store.client.native import native
from mooncake_store.errors import Status, StoreError
from mooncake_store.integrations.late_client import LateClient
from mooncake_store.integrations.settings import StoreSettings

__all__ = ["EngineStore", "StoreCounts"]

log = logging.getLogger("mooncake_store.integrations")

Addresses = Sequence[int] | Sequence[Sequence[int]]
_LOG_PERIOD_S = 10.0
_NOBODY_WAITS = 2  # Statistics.master_state
_BUSY = -int(Status.BUSY)
_UNAVAILABLE = -int(Status.UNAVAILABLE)


@dataclass(slots=True)
class StoreCounts:
    """What has been moved, in objects."""

    loaded: int = 0
    missed: int = 0
    saved: int = 0
    known: int = 0  # were stored already, or are just being stored by somebody else
    refused: int = 0


class EngineStore:
    """One connection to the store, for any number of threads.

    Args:
        settings: Address, deadlines, replicas.
        name: Shown to operators.
        patience_s: As of `LateClient`.
    """

    def __init__(self, settings: StoreSettings, *, name: str, patience_s: float = 2.0) -> None:
        self._late = LateClient(settings.master or None, patience_s=patience_s, name=name)
        self._settings = settings
        self._lock = threading.Lock()
        self._logged_at = -_LOG_PERIOD_S
        self.counts = StoreCounts()

    def close(self) -> None:
        """End; what was stored stays."""
        self._late.close()

    @property
    def client(self) -> Client | None:
        """The client, or None while there is no store."""
        return self._late.client

    @property
    def is_away(self) -> bool:
        """Whether there is no store, or one whose master nobody waits for any more."""
        client = self._late.client
        try:
            return client is None or client.statistics().master_state == _NOBODY_WAITS
        except StoreError:  # closed meanwhile
            return True

    # ---- looking up ------------------------------------------------------------------------------

    def exists(self, keys: Sequence[str], *, lease_s: float = 0.0) -> list[bool]:
        """Return for each key whether it is stored; what is, is not evicted for `lease_s`."""
        client = self._late.client
        if client is None:
            return [False] * len(keys)
        try:
            found = client.exists_numbers(
                list(keys), lease_s=lease_s, timeout_s=self._settings.lookup_timeout_s
            )
        except StoreError as error:
            self.tell("could not look up: %s", error)
            return [False] * len(keys)
        return [number == 1 for number in found]

    def count_prefix(self, keys: Sequence[str], *, pin_s: float | None = None) -> int:
        """Return how many of the keys, from the first, are stored; with `pin_s` pinned for so long.

        A pin ends at its deadline, by `unpin`, or with this connection.
        """
        client = self._late.client
        if client is None or not keys:
            return 0
        try:
            match = client.match_prefix(
                keys,
                pin=pin_s is not None,
                pin_timeout_s=pin_s,
                timeout_s=self._settings.lookup_timeout_s,
            )
        except StoreError as error:
            self.tell("could not look up: %s", error)
            return 0
        return match.count

    def pin(self, keys: Sequence[str], pin_s: float) -> list[bool]:
        """Pin what is stored, for so long at most, and return for each key whether it is."""
        client = self._late.client
        if client is None or not keys:
            return [False] * len(keys)
        try:
            found = client.pin(
                list(keys), pin_timeout_s=pin_s, timeout_s=self._settings.lookup_timeout_s
            )
        except StoreError as error:
            self.tell("could not look up: %s", error)
            return [False] * len(keys)
        return [each is True for each in found]

    def unpin(self, keys: Sequence[str]) -> None:
        """End pins; what cannot be told to the master ends at its deadline."""
        client = self._late.client
        if client is not None and keys:
            with contextlib.suppress(StoreError):
                client.unpin(list(keys), timeout_s=self._settings.lookup_timeout_s)

    def touch(self, keys: Sequence[str]) -> None:
        """Tell the store, soon, that objects were used."""
        client = self._late.client
        if client is not None and keys:
            try:
                client.touch(list(keys))
            except StoreError as error:
                self.tell("could not touch: %s", error)

    # ---- moving ----------------------------------------------------------------------------------

    def load(
        self, keys: Sequence[str], addresses: Addresses, sizes: Addresses, *, exact: bool = True
    ) -> list[int]:
        """Read objects into memory; bytes move outside the interpreter lock.

        Args:
            keys: The objects.
            addresses: For each the address of its memory, or those of its pieces, in order.
            sizes: As addresses, in bytes.
            exact: An object of another size than its memory is a miss; else a smaller one is read.

        Returns:
            For each its bytes; 0: a miss, the memory is as it was or holds nothing of use.
        """
        client = self._late.client
        read: list[int] = [0] * len(keys)
        if client is not None and keys:
            try:
                read = native.client_get_addresses(
                    client._handle, list(keys), addresses, sizes, None, exact,
                    self._settings.load_timeout_s,
                )  # fmt: skip
            except StoreError as error:
                self.tell("could not load: %s", error)
        loaded = [max(0, number) for number in read]
        self._count(loaded=sum(map(bool, loaded)), missed=loaded.count(0))
        return loaded

    def save(
        self,
        keys: Sequence[str],
        addresses: Addresses,
        sizes: Addresses,
        *,
        chain: bool = False,
    ) -> list[int]:
        """Store objects from memory; an object that is there stays as it is.

        Args:
            keys: The objects.
            addresses: As of `load`.
            sizes: As of `load`.
            chain: Each key continues the one before: it is evicted before it.

        Returns:
            For each how many replicas were made; 0: it is there, or another put of it is open;
            -1: it is not stored.
        """
        client = self._late.client
        made: list[int] = [_UNAVAILABLE] * len(keys)
        if client is not None and keys:
            options: dict[str, Any] = {"replicas": self._settings.replicas}
            try:
                made = native.client_put_addresses(
                    client._handle, list(keys), addresses, sizes,
                    client._core.put_options(options, chain=chain), self._settings.save_timeout_s,
                )  # fmt: skip
            except StoreError as error:
                self.tell("could not save: %s", error)
        known = sum(number in (0, _BUSY) for number in made)
        saved = sum(number > 0 for number in made)
        refused = len(made) - saved - known
        if refused and client is not None:
            worst = min(number for number in made if number != _BUSY)
            self.tell("could not save: %s", Status(-worst).name.lower() if worst < 0 else "")
        self._count(saved=saved, known=known, refused=refused)
        return [0 if number == _BUSY else max(-1, number) for number in made]

    # ---- what it tells ---------------------------------------------------------------------------

    def tell(self, message: str, error: object) -> None:
        """Log a failure, unless one was just logged."""
        now = time.monotonic()
        with self._lock:
            if now - self._logged_at < _LOG_PERIOD_S:
                return
            self._logged_at = now
        log.warning(message, error)

    def _count(self, **more: int) -> None:
        with self._lock:
            for name, number in more.items():
                setattr(self.counts, name, getattr(self.counts, name) + number)
