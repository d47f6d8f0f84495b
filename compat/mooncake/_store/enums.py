"""The enumerations of `mooncake.store`."""

from __future__ import annotations

from enum import IntEnum

__all__ = ["ObjectDataType", "ReplicaStatus", "SoftPinAction", "TaskStatus", "TaskType"]


class _Named(IntEnum):
    def __str__(self) -> str:
        return f"{type(self).__name__}.{self.name}"


class ObjectDataType(_Named):
    """What an object is; kept by nobody, taken for compatibility."""

    UNKNOWN = 0
    KVCACHE = 1
    TENSOR = 2
    WEIGHT = 3
    SAMPLE = 4
    ACTIVATION = 5
    GRADIENT = 6
    OPTIMIZER_STATE = 7
    METADATA = 8
    GENERAL = 9


class ReplicaStatus(_Named):
    """How far a replica is."""

    UNDEFINED = 0
    INITIALIZED = 1
    PROCESSING = 2
    COMPLETE = 3
    REMOVED = 4
    FAILED = 5


class TaskStatus(_Named):
    """How far a task is."""

    PENDING = 0
    PROCESSING = 1
    FAILED = 2
    SUCCESS = 3


class TaskType(_Named):
    """What a task does."""

    REPLICA_COPY = 0
    REPLICA_MOVE = 1


class SoftPinAction(_Named):
    """What a put does to the soft pin."""

    PRESERVE = 0
    ENABLE = 1
    DISABLE = 2
