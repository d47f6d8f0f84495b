"""A thread that reads all the time, and knows how long it was kept from it."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from types import TracebackType

from mooncake_store import Client
from mooncake_store.cli.bench.cases import now
from mooncake_store.errors import StoreError

PAUSE_S = 0.002  # the cores are for those who are measured


class Reader:
    """Reads objects in turn until it is left, each of which must come.

    Args:
        client: By which it reads; nobody else's calls go through it.
        keys: What it reads.
        value: What each of them holds.
    """

    def __init__(self, client: Client, keys: Sequence[str], value: bytes) -> None:
        self._client, self._keys, self._value = client, keys, value
        self._is_ending = threading.Event()
        self._thread = threading.Thread(target=self._read, daemon=True)
        self.reads = self.failures = 0
        self.slowest_s = 0.0
        self.first_failure = ""

    def __enter__(self) -> Reader:
        self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        value: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._is_ending.set()
        self._thread.join()

    def _read(self) -> None:
        number = 0
        while not self._is_ending.wait(PAUSE_S):
            key = self._keys[number % len(self._keys)]
            number += 1
            begun = now()
            try:
                is_there = self._client.get(key) == self._value
                reason = f"a miss of {key}"
            except StoreError as error:
                is_there, reason = False, str(error)
            self.slowest_s = max(self.slowest_s, now() - begun)
            self.reads += 1
            if not is_there:
                self.failures += 1
                self.first_failure = self.first_failure or reason
