"""The SDK: what an inference engine's process uses."""

from typing import TYPE_CHECKING, Any

from mooncake_store.client.client import Client, PrefixMatch
from mooncake_store.client.config import ClientConfig
from mooncake_store.client.view import View

if TYPE_CHECKING:
    from mooncake_store.client.async_client import AsyncClient
    from mooncake_store.client.identity import CacheIdentity, ParallelShape
    from mooncake_store.client.results import (
        Counters,
        EventPage,
        Explanation,
        Fate,
        Listed,
        Member,
        ObjectStat,
        OpenPut,
        ReplicaPlace,
        ReplicaStat,
        Statistics,
        StoreEvent,
        Task,
        TaskFailure,
    )
    from mooncake_store.protocol.prefix import prefix_keys
    from mooncake_store.transfer_engine.priority import Priority, Share

__all__ = [
    "AsyncClient",
    "CacheIdentity",
    "Client",
    "ClientConfig",
    "Counters",
    "EventPage",
    "Explanation",
    "Fate",
    "Listed",
    "Member",
    "ObjectStat",
    "OpenPut",
    "ParallelShape",
    "PrefixMatch",
    "Priority",
    "ReplicaPlace",
    "ReplicaStat",
    "Share",
    "Statistics",
    "StoreEvent",
    "Task",
    "TaskFailure",
    "View",
    "prefix_keys",
]

# Loaded when it is asked for: asyncio takes as long as all the rest, and what few calls answer with
# a fifth of that.
_FILES = {
    "AsyncClient": "client.async_client",
    "CacheIdentity": "client.identity",
    "ParallelShape": "client.identity",
    "Priority": "transfer_engine.priority",
    "Share": "transfer_engine.priority",
    "prefix_keys": "protocol.prefix",
}


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module 'mooncake_store.client' has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(f"mooncake_store.{_FILES.get(name, 'client.results')}"), name)
