"""The SDK: what an inference engine's process uses."""

from mooncake_store.client.async_client import AsyncClient
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
