"""The object store under the name that engines know.

`MooncakeDistributedStore` has the calls; docs/migrating-from-mooncake.md of the project says what
each of them does, and where it differs on purpose.
"""

from __future__ import annotations

from mooncake._store.addresses import AddressCalls
from mooncake._store.enums import (
    ObjectDataType,
    ReplicaStatus,
    SoftPinAction,
    TaskStatus,
    TaskType,
)
from mooncake._store.memory import BufferHandle, MooncakeHostMemAllocator
from mooncake._store.replicate import ReplicateConfig

__all__ = [
    "BufferHandle",
    "MooncakeDistributedStore",
    "MooncakeHostMemAllocator",
    "ObjectDataType",
    "ReplicaStatus",
    "ReplicateConfig",
    "SoftPinAction",
    "TaskStatus",
    "TaskType",
]


class MooncakeDistributedStore(AddressCalls):
    """A client of the store; made without a connection, which `setup` opens."""
