"""What the sync and the async client share: options, and how failures come out.  No I/O here."""

from __future__ import annotations

import logging
import os
import sys
import time
from collections.abc import Iterable, Mapping, Sequence
from enum import IntEnum
from typing import Any, TypeVar

from mooncake_store.client.config import ClientConfig
from mooncake_store.errors import ClosedError, InvalidKeyError, RequestError, StoreError
from mooncake_store.transfer_engine.priority import Priority, Share

__all__ = [
    "PUT_HARD_PIN",
    "PUT_SOFT_PIN",
    "PUT_STRICT",
    "PUT_UPSERT",
    "ClientCore",
    "Memory",
    "Operation",
    "encode_key",
    "keys_of",
    "per_key",
    "pin_deadline_ms",
    "read_share",
    "share_of",
]

PUT_UPSERT, PUT_HARD_PIN, PUT_SOFT_PIN, PUT_STRICT = 1, 2, 4, 8  # ms_put_flag

Memory = Any
"""A buffer (bytes, memoryview, numpy, torch CPU storage ...) or a tuple (address, length)."""

Value = TypeVar("Value")
_REPLICAS_MAX = 16
_LOG_PERIOD_S = 10.0

log = logging.getLogger("mooncake_store.client")


class Operation(IntEnum):
    """The calls of C: `cl_operation`, number for number."""

    EXISTS = 0
    GET = 1
    GET_INTO = 2
    PUT = 3
    REMOVE = 4
    MATCH_PREFIX = 5
    PIN = 6
    UNPIN = 7
    TOUCH = 8
    SIZES = 9
    COMMAND = 10
    GET_RANGE = 11
    LEASE = 12


def keys_of(key: str | Sequence[str]) -> str | list[str]:
    """Return one key, or several as C takes them."""
    return key if isinstance(key, str) else list(key)


def per_key(key: str | Sequence[str], results: Any) -> Any:
    """Return one key's result, or those of several as a list."""
    return results if isinstance(key, str) else list(results)


def pin_deadline_ms(pin_timeout_s: float | None) -> int:
    """Return a pin's deadline as C takes it; 0: the session's end."""
    return 0 if pin_timeout_s is None else max(1, round(pin_timeout_s * 1000))


def share_of(
    priority: Priority | None, share: Share | None, usual: Priority
) -> tuple[int, int, int] | None:
    """Return a priority and a share as C takes them; None when nothing was said."""
    if priority is None and share is None:
        return None
    try:
        number = int(Priority(usual if priority is None else priority))
    except ValueError as error:
        names = ", ".join(f"Priority.{item.name}" for item in Priority)
        raise RequestError(f"priority: one of {names}, not {priority!r}") from error
    return (number, 1, 0) if share is None else (number, share.weight, share.number)


def read_share(priority: Priority | None, share: Share | None) -> tuple[int, int, int] | None:
    """Return the same of a read."""
    return share_of(priority, share, Priority.URGENT)


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
        self, options: Mapping[str, Any], *, upsert: bool = False, chain: bool = False
    ) -> tuple[Any, ...] | None:
        """Return `PutOptions` as C takes them; None when all are as usual.

        Raises:
            TypeError: There is no such option.
        """
        if not options and not upsert and not chain and self.config.replicas == 1:
            return None
        return self._checked_options(upsert=upsert, chain=chain, **options)

    def _checked_options(
        self,
        *,
        upsert: bool,
        chain: bool,
        replicas: int | None = None,
        min_replicas: int | None = None,
        ttl_s: float | None = None,
        hard_pin: bool = False,
        soft_pin: bool = False,
        parent: str | None = None,
        group: int = 0,
        preferred_server: int | None = None,
        priority: Priority | None = None,
        share: Share | None = None,
    ) -> tuple[Any, ...] | None:
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
        packed = (
            count,
            least,
            flags,
            0 if preferred_server is None else preferred_server + 1,
            ttl_ms,
            parent,
            chain,
            group,
            share_of(priority, share, Priority.NORMAL),
        )
        return None if packed == (1, 1, 0, 0, 0, None, False, 0, None) else packed

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

    def stored(self, made: int, options: Mapping[str, Any], key: str) -> bool:
        """What put answers, given how many replicas were made (0: the key was there)."""
        wanted = options.get("replicas")
        expected = self.config.replicas if wanted is None else wanted
        if 0 < made < expected:
            log.warning("%r has %d replicas instead of %d", key, made, expected)
        return made > 0

    def stored_batch(
        self, results: Iterable[Any], options: Mapping[str, Any], keys: Sequence[str]
    ) -> list[bool | StoreError]:
        """The same for a batch; errors stay what they are."""
        return [
            made if isinstance(made, StoreError) else self.stored(made, options, key)
            for key, made in zip(keys, results, strict=True)
        ]

    def _log(self, error: StoreError) -> None:
        now = time.monotonic()
        if now - self._logged_at < _LOG_PERIOD_S:
            self._not_logged += 1
            return
        more = f" ({self._not_logged} more since then)" if self._not_logged else ""
        log.warning("answered as a miss: %s%s", error, more)
        self._logged_at = now
        self._not_logged = 0
