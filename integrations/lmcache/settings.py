"""Settings of both LMCache connectors."""

from __future__ import annotations

from dataclasses import dataclass

from mooncake_store.integrations.settings import StoreSettings

__all__ = ["LmcacheSettings"]


@dataclass(frozen=True, slots=True, kw_only=True)
class LmcacheSettings(StoreSettings):
    """What may be set.

    Attributes:
        pin_timeout_s: How long what was found is kept for who loads it.
        threads: Calls that run at once.
    """

    pin_timeout_s: float = 30.0
    threads: int = 4
