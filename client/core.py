"""What the sync and the async client share: options, and how failures come out.  No I/O here."""

from __future__ import annotations

import logging
import os
import sys
import time
from collections.abc import Sequence
from typing import Any, TypeVar

from mooncake_store.client.config import ClientConfig
from mooncake_store.errors import ClosedError, InvalidKeyError, RequestError, StoreError

__all__ = [
    "PUT_HARD_PIN",
    "PUT_SOFT_PIN",
    "PUT_STRICT",
    "PUT_UPSERT",
    "ClientCore",
    "Memory",
    "encode_key",
]

PUT_UPSERT, PUT_HARD_PIN, PUT_SOFT_PIN, PUT_STRICT = 1, 2, 4, 8  # ms_put_flag

Memory = Any
"""A buffer (bytes, memoryview, numpy, torch CPU storage ...) or a tuple (address, length)."""

Value = TypeVar("Value")
_REPLICAS_MAX = 16
_LOG_PERIOD_S = 10.0

log = logging.getLogger("mooncake_store.client")


def encode_key(key: str) -> bytes:
    """Return a key as it travels.

    Raises:
        InvalidKeyError: It has lone surrogates, which no UTF-8 has.
    """
    try:
        return key.encode()
    except UnicodeEncodeError as error:
        raise InvalidKeyError("a key is 1 to 1024 bytes of UTF-8", cause=error) from error


class ClientCore:
    """Options and failures of one client."""

    def __init__(self, config: ClientConfig) -> None:
        self.config = config
        self.timeout_s = config.timeout_s
        self.strict = config.strict
        self.last_error: StoreError | None = None
        self._logged_at = 0.0
        self._not_logged = 0

    @property
    def name(self) -> str:
        """How operators see this client."""
        program = os.path.basename(sys.argv[0]) if sys.argv and sys.argv[0] else "python"
        return self.config.name or f"{program}-{os.getpid()}"

    # ---- options -------------------------------------------------------------------------------

    def put_options(
        self,
        *,
        replicas: int | None,
        min_replicas: int | None,
        ttl_s: float | None,
        hard_pin: bool,
        soft_pin: bool,
        upsert: bool,
        parent: str | None,
        chain: bool,
        group: int,
        preferred_server: int | None,
    ) -> tuple[Any, ...] | None:
        """Return the options as C takes them; None when all are as usual."""
        count = self.config.replicas if replicas is None else replicas
        least = 1 if min_replicas is None else min_replicas
        if not 1 <= count <= _REPLICAS_MAX or not 1 <= least <= count:
            raise RequestError(
                f"replicas: 1 to {_REPLICAS_MAX}, and min_replicas at most as many "
                f"(here {count} and {least})"
            )
        ttl_ms = 0
        if ttl_s is not None:
            if not ttl_s > 0:
                raise RequestError("ttl_s is above 0; leave it out for ever")
            ttl_ms = max(1, round(ttl_s * 1000))
        flags = (
            (PUT_UPSERT if upsert else 0)
            | (PUT_HARD_PIN if hard_pin else 0)
            | (PUT_SOFT_PIN if soft_pin else 0)
            | (PUT_STRICT if min_replicas is not None else 0)
        )
        options = (
            count,
            least,
            flags,
            0 if preferred_server is None else preferred_server + 1,
            ttl_ms,
            parent,
            chain,
            group,
        )
        return None if options == (1, 1, 0, 0, 0, None, False, 0) else options

    # ---- outcomes ------------------------------------------------------------------------------

    def failed(self, error: StoreError, miss: Value) -> Value:
        """A reading call failed: raise when strict or when the caller is wrong, else a miss."""
        self.last_error = error
        if self.strict or isinstance(error, RequestError | ClosedError):
            raise error
        self._log(error)
        return miss

    def failed_items(self, results: Sequence[Any], miss: Any) -> list[Any]:
        """The same for a batch: failures become misses, mistakes and strict failures stay."""
        out = list(results)
        for index, value in enumerate(out):
            if not isinstance(value, StoreError):
                continue
            self.last_error = value
            if self.strict or isinstance(value, RequestError | ClosedError):
                continue
            self._log(value)
            out[index] = miss
        return out

    def stored(self, made: int, wanted: int | None, key: str) -> bool:
        """What put answers, given how many replicas were made (0: the key was there)."""
        expected = self.config.replicas if wanted is None else wanted
        if 0 < made < expected:
            log.warning("%r has %d replicas instead of %d", key, made, expected)
        return made > 0

    def _log(self, error: StoreError) -> None:
        now = time.monotonic()
        if now - self._logged_at < _LOG_PERIOD_S:
            self._not_logged += 1
            return
        more = f" ({self._not_logged} more since then)" if self._not_logged else ""
        log.warning("answered as a miss: %s%s", error, more)
        self._logged_at = now
        self._not_logged = 0
