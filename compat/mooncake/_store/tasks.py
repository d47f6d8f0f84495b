"""Copies and moves of replicas, as tasks of this client."""

from __future__ import annotations

import contextlib
import threading
import time
import uuid
from collections import OrderedDict
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor

from mooncake._store.base import NOT_SET_UP
from mooncake._store.descriptors import DescriptorCalls
from mooncake._store.enums import TaskStatus, TaskType
from mooncake._store.numbers import ErrorNumber
from mooncake_store.client import Client
from mooncake_store.errors import ObjectNotFoundError, StoreError

__all__ = ["QueryTaskResponse", "TaskCalls"]

TaskId = tuple[int, int]
_NO_TASK: TaskId = (0, 0)
_NOT_FOUND = int(ErrorNumber.OBJECT_NOT_FOUND)
_FINISHED_MAX = 10_000
_COPY_TIMEOUT_S = 300.0


class QueryTaskResponse:
    """How far a task is.

    Attributes:
        message: Why it failed.
    """

    def __init__(
        self,
        task: TaskId = _NO_TASK,
        kind: TaskType = TaskType.REPLICA_COPY,
        client: TaskId = _NO_TASK,
    ) -> None:
        self.id = task
        self.type = kind
        self.status = TaskStatus.PENDING
        self.created_at_ms_epoch = self.last_updated_at_ms_epoch = (
            0 if task == _NO_TASK else int(time.time() * 1000)
        )
        self.assigned_client = client
        self.message = ""

    def _become(self, status: TaskStatus, message: str = "") -> None:
        self.message = message
        self.last_updated_at_ms_epoch = int(time.time() * 1000)
        self.status = status

    def __repr__(self) -> str:
        return (
            f"QueryTaskResponse(id={self.id[0]}-{self.id[1]}, type={self.type.name}, "
            f"status={self.status.name}, message={self.message!r})"
        )


def _new_id() -> TaskId:
    number = uuid.uuid4().int
    return number >> 64, number & (1 << 64) - 1


class TaskCalls(DescriptorCalls):
    """Copies and moves: begun here, carried out by a thread of this client, one after the other."""

    def __init__(self) -> None:
        super().__init__()
        self._tasks: OrderedDict[TaskId, QueryTaskResponse] = OrderedDict()
        self._task_threads: ThreadPoolExecutor | None = None
        self._task_lock = threading.Lock()
        self._id = _new_id()

    def create_copy_task(self, key: str, targets: Sequence[str]) -> tuple[TaskId, int]:
        """Begin to copy an object to more segments.

        Args:
            key: The object.
            targets: Endpoints or names of store servers.

        Returns:
            The task, for query_task, and 0; or (0, 0) and -704 (no such object) or -600 (no such
            segment).
        """

        def copy(client: Client, servers: Sequence[int]) -> None:
            stored = self._key(key)
            for server in servers:
                stat = client.stat(stored)
                if stat is None:
                    raise ObjectNotFoundError("the object has gone", key=key)
                client.change_replica(
                    stored, len(stat.replicas) + 1, target=server, timeout_s=_COPY_TIMEOUT_S
                )

        return self._begin(TaskType.REPLICA_COPY, key, targets, copy)

    def create_move_task(self, key: str, source: str, target: str) -> tuple[TaskId, int]:
        """Begin to move an object's replica from one segment to another; see create_copy_task."""
        if source == target:
            return _NO_TASK, NOT_SET_UP

        def move(client: Client, servers: Sequence[int]) -> None:
            client.move(
                self._key(key), source=servers[0], target=servers[1], timeout_s=_COPY_TIMEOUT_S
            )

        return self._begin(TaskType.REPLICA_MOVE, key, [source, target], move)

    def query_task(self, task_id: TaskId) -> tuple[QueryTaskResponse | None, int]:
        """Return how far a task of this client is and 0, or None and -1400."""
        task = self._tasks.get((task_id[0], task_id[1]))
        return (None, int(ErrorNumber.TASK_NOT_FOUND)) if task is None else (task, 0)

    def batch_replica_clear(self, keys: Sequence[str], segment_name: str = "") -> list[str]:
        """Drop the replicas of objects at a segment, or all of them; return the keys treated.

        Args:
            keys: The objects; hard-pinned ones are left.
            segment_name: Endpoint or name of a store server; empty: all replicas.
        """
        client = self._client
        if client is None:
            return []
        server = self._server_of(client, segment_name) if segment_name else None
        if segment_name and server is None:
            return []
        cleared = []
        for key in keys:
            try:
                if _clear(client, self._key(key), server, self._server_of):
                    cleared.append(key)
            except StoreError as error:
                self._log(error)
        return cleared

    def _begin(
        self,
        kind: TaskType,
        key: str,
        segments: Sequence[str],
        work: Callable[[Client, Sequence[int]], None],
    ) -> tuple[TaskId, int]:
        client = self._client
        if client is None or not segments:
            return _NO_TASK, NOT_SET_UP
        size = self.get_size(key)
        if size < 0:
            return _NO_TASK, size
        servers = [self._server_of(client, segment) for segment in segments]
        known = [server for server in servers if server is not None]
        if len(known) != len(servers):
            return _NO_TASK, NOT_SET_UP
        task = QueryTaskResponse(_new_id(), kind, self._id)

        def carry_out() -> None:
            task._become(TaskStatus.PROCESSING)
            try:
                work(client, known)
            except StoreError as error:
                task._become(TaskStatus.FAILED, str(error))
            else:
                task._become(TaskStatus.SUCCESS)

        with self._task_lock:
            if self._task_threads is None:
                self._task_threads = ThreadPoolExecutor(1, "mooncake-store-tasks")
            self._tasks[task.id] = task
            while len(self._tasks) > _FINISHED_MAX:
                self._tasks.popitem(last=False)
            self._task_threads.submit(carry_out)
        return task.id, 0

    def close(self) -> int:
        """End the client; tasks that have not begun never will.  More than once is harmless."""
        with contextlib.suppress(AttributeError):  # of an object that was never made whole
            with self._task_lock:
                threads, self._task_threads = self._task_threads, None
            if threads is not None:
                threads.shutdown(wait=True, cancel_futures=True)
        return super().close()


def _clear(
    client: Client,
    key: str,
    server: int | None,
    server_of: Callable[[Client, str], int | None],
) -> bool:
    """Drop an object's replica at a server, or the object."""
    stat = client.stat(key)
    if stat is None:
        return False
    if server is not None:
        if server not in [server_of(client, replica.node) for replica in stat.replicas]:
            return False
        if len(stat.replicas) > 1:
            client.change_replica(key, len(stat.replicas) - 1, source=server)
            return True
    return client.remove(key) is True
