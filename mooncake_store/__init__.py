"""Mooncake Store: the KV caches of LLM inference, kept in the memory of many machines.

from mooncake_store import Client

with Client("127.0.0.1:7700") as store:
    store.put("key", b"value")
    store.get("key")
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from mooncake_store.version import __version__

__all__ = [
    "AsyncClient",
    "CacheIdentity",
    "Client",
    "ParallelShape",
    "Priority",
    "Share",
    "StoreError",
    "__version__",
    "prefix_keys",
]

if TYPE_CHECKING:
    from mooncake_store.client import (
        AsyncClient,
        CacheIdentity,
        Client,
        ParallelShape,
        Priority,
        Share,
        prefix_keys,
    )
    from mooncake_store.errors import StoreError


def __getattr__(name: str) -> Any:
    # The C extension is loaded when it is used: `mooncake-store --version` needs none of it.
    if name in __all__ and name not in ("StoreError", "__version__"):
        import mooncake_store.client as client

        return getattr(client, name)
    if name == "StoreError":
        from mooncake_store.errors import StoreError

        return StoreError
    raise AttributeError(f"module 'mooncake_store' has no attribute {name!r}")
