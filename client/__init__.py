"""The SDK: what an inference engine's process uses."""

from typing import TYPE_CHECKING, Any

from mooncake_store.client.client import Client, PrefixMatch
from mooncake_store.client.config import ClientConfig
from mooncake_store.client.identity import CacheIdentity, ParallelShape
from mooncake_store.client.prefix import prefix_keys
from mooncake_store.client.results import (
    Counters,
    Explanation,
    Fate,
    Listed,
    Member,
    ObjectStat,
    OpenPut,
    ReplicaPlace,
    ReplicaStat,
    Statistics,
    Task,
    TaskFailure,
)
from mooncake_store.client.view import View

if TYPE_CHECKING:
    from mooncake_store.client.async_client import AsyncClient

__all__ = [
    "AsyncClient",
    "CacheIdentity",
    "Client",
    "ClientConfig",
    "Counters",
    "Explanation",
    "Fate",
    "Listed",
    "Member",
    "ObjectStat",
    "OpenPut",
    "ParallelShape",
    "PrefixMatch",
    "ReplicaPlace",
    "ReplicaStat",
    "Statistics",
    "Task",
    "TaskFailure",
    "View",
    "prefix_keys",
]


def __getattr__(name: str) -> Any:
    # asyncio takes as long to load as all the rest: only for who uses it.
    if name == "AsyncClient":
        from mooncake_store.client.async_client import AsyncClient

        return AsyncClient
    raise AttributeError(f"module 'mooncake_store.client' has no attribute {name!r}")
