"""The object store under the name that engines know.

`MooncakeDistributedStore` has the calls; docs/migrating-from-mooncake.md of the project says what
each of them does, and where it differs on purpose.  torch and numpy are imported by the calls that
are about tensors, when they are made.
"""

from __future__ import annotations

from typing import Any, NoReturn

from mooncake._store.descriptors import (
    Descriptor,
    DiskDescriptor,
    MemoryDescriptor,
    ReplicaDescriptor,
)
from mooncake._store.engram import EngramStore, EngramStoreConfig
from mooncake._store.enums import (
    ObjectDataType,
    ReplicaStatus,
    SoftPinAction,
    TaskStatus,
    TaskType,
)
from mooncake._store.memory import BufferHandle, MooncakeHostMemAllocator
from mooncake._store.numa import bind_to_numa_node, get_alloc_func_addr, get_free_func_addr
from mooncake._store.numbers import ErrorNumber
from mooncake._store.parallelism import ParallelAxis, ReadTarget, TensorParallelism
from mooncake._store.pool import BufferLease, BufferPool
from mooncake._store.replicate import ReplicateConfig
from mooncake._store.safetensors_file import SafetensorsCalls
from mooncake._store.tasks import QueryTaskResponse
from mooncake._store.tensor_format import HEADER_BYTES, serialize, tensor_of

__all__ = [
    "ACTIVATION",
    "COMPLETE",
    "FAILED",
    "GENERAL",
    "GRADIENT",
    "INITIALIZED",
    "KVCACHE",
    "METADATA",
    "OPTIMIZER_STATE",
    "PENDING",
    "PROCESSING",
    "REMOVED",
    "REPLICA_COPY",
    "REPLICA_MOVE",
    "SAMPLE",
    "SUCCESS",
    "TENSOR",
    "UNDEFINED",
    "UNKNOWN",
    "WEIGHT",
    "BufferHandle",
    "BufferLease",
    "BufferLeaseView",
    "BufferPool",
    "Descriptor",
    "DiskDescriptor",
    "EngramStore",
    "EngramStoreConfig",
    "MemoryDescriptor",
    "MooncakeDistributedNoFRegister",
    "MooncakeDistributedStore",
    "MooncakeHostMemAllocator",
    "ObjectDataType",
    "ParallelAxis",
    "QueryTaskResponse",
    "ReadTarget",
    "RegisteredBufferLease",
    "RegisteredBufferLeaseView",
    "RegisteredBufferPool",
    "ReplicaDescriptor",
    "ReplicaStatus",
    "ReplicateConfig",
    "SoftPinAction",
    "TaskStatus",
    "TaskType",
    "TensorParallelism",
    "bind_to_numa_node",
    "get_alloc_func_addr",
    "get_free_func_addr",
]

_NOT_HERE = int(ErrorNumber.UNAVAILABLE_IN_CURRENT_MODE)

ACTIVATION = ObjectDataType.ACTIVATION
COMPLETE = ReplicaStatus.COMPLETE
FAILED = TaskStatus.FAILED
GENERAL = ObjectDataType.GENERAL
GRADIENT = ObjectDataType.GRADIENT
INITIALIZED = ReplicaStatus.INITIALIZED
KVCACHE = ObjectDataType.KVCACHE
METADATA = ObjectDataType.METADATA
OPTIMIZER_STATE = ObjectDataType.OPTIMIZER_STATE
PENDING = TaskStatus.PENDING
PROCESSING = TaskStatus.PROCESSING
REMOVED = ReplicaStatus.REMOVED
REPLICA_COPY = TaskType.REPLICA_COPY
REPLICA_MOVE = TaskType.REPLICA_MOVE
SAMPLE = ObjectDataType.SAMPLE
SUCCESS = TaskStatus.SUCCESS
TENSOR = ObjectDataType.TENSOR
UNDEFINED = ReplicaStatus.UNDEFINED
UNKNOWN = ObjectDataType.UNKNOWN
WEIGHT = ObjectDataType.WEIGHT

BufferLeaseView = RegisteredBufferLeaseView = RegisteredBufferLease = BufferLease
RegisteredBufferPool = BufferPool


class MooncakeDistributedStore(SafetensorsCalls):
    """A client of the store; made without a connection, which `setup` opens.

    Any number of threads may call it.
    """

    def _get_pyclient_capsule(self) -> NoReturn:
        """Raise: there is no C++ client below."""
        _no_cpp_client()


class MooncakeDistributedNoFRegister:
    """Disks behind NVMe over fabrics, which this store has none of."""

    def real_register(
        self,
        endpoint: str,
        port: int,
        name: str,
        begin: int,
        size: int,
        block: int,
        master: str,
        /,
    ) -> int:
        """Return -1011: there are no such disks."""
        del endpoint, port, name, begin, size, block, master
        return _NOT_HERE

    def real_unregister_by_endpoint(
        self, endpoint: str, port: int, name: str, size: int, master: str, /
    ) -> int:
        """Return -1011: there are no such disks."""
        del endpoint, port, name, size, master
        return _NOT_HERE


def _serialize_tensor(tensor: Any, /) -> tuple[bytes, int, int, Any]:
    return serialize(tensor)


def _deserialize_tensor(data: bytes, /) -> Any:
    return tensor_of(data)


def _tensor_metadata_size() -> int:
    return HEADER_BYTES


def _get_pyclient_from_wrapper(wrapper: MooncakeDistributedStore) -> NoReturn:
    _no_cpp_client()


def _no_cpp_client() -> NoReturn:
    raise NotImplementedError("mooncake-store-compat has no C++ client to hand to extensions")
