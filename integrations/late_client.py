"""A client that opens in the background: an engine runs whether or not the store does."""

from __future__ import annotations

import logging
import threading
from typing import Any

from mooncake_store.client import Client
from mooncake_store.errors import StoreError

__all__ = ["LateClient"]

log = logging.getLogger("mooncake_store.integrations")

_PAUSES_S = (0.2, 0.5, 1.0, 2.0, 5.0)


class LateClient:
    """Gives a client once the store answers, and None until then.

    Args:
        master: As of `Client`.
        patience_s: How long opening here may wait; after that a thread tries on.
        settings: As of `Client`.
    """

    def __init__(self, master: str | None, *, patience_s: float = 2.0, **settings: Any) -> None:
        self._master = master
        self._settings = settings
        self._client: Client | None = None
        self._is_closed = threading.Event()
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None
        if not self._try(patience_s):
            self._thread = threading.Thread(
                target=self._open, name="mooncake-store-open", daemon=True
            )
            self._thread.start()

    @property
    def client(self) -> Client | None:
        """The client, or None while there is no store."""
        return self._client

    def _try(self, timeout_s: float) -> bool:
        try:
            client = Client(
                self._master, connect_timeout_s=timeout_s, wait_for_master=False, **self._settings
            )
        except StoreError as error:
            if not error.retryable:
                raise
            log.warning("the store is not there yet, the engine runs without it: %s", error)
            return False
        with self._lock:
            if self._is_closed.is_set():
                client.close()
            else:
                self._client = client
        return True

    def _open(self) -> None:
        tries = 0
        while not self._is_closed.wait(_PAUSES_S[min(tries, len(_PAUSES_S) - 1)]):
            tries += 1
            try:
                if self._try(2.0):
                    log.warning("the store is there: the engine uses it from now on")
                    return
            except StoreError:
                log.exception("the store cannot be used; the engine runs without it")
                return

    def close(self) -> None:
        """Close the client, and try no more; more than once is harmless."""
        with self._lock:
            self._is_closed.set()
            client, self._client = self._client, None
        if client is not None:
            client.close()
        if self._thread is not None:
            self._thread.join(timeout=5.0)
