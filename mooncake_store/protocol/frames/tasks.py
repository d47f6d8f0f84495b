"""Tasks: what a master does to many objects in the background."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from mooncake_store.protocol.codec import (
    KEY_BYTES_MAX,
    Body,
    Counted,
    Keyed,
    Layout,
    Reader,
    Record,
    Writer,
)
from mooncake_store.protocol.frames.basics import TASK_FAILURES_MAX, check

__all__ = ["Task", "TaskFailure", "TaskOrder", "TasksAnswer", "TasksRequest"]


@dataclass(frozen=True, slots=True)
class TaskOrder(Body):
    """START_TASK; servers are numbers in MEMBERS + 1, 0 = any or none."""

    kind: int
    source_server: int = 0
    target_server: int = 0
    replica_count: int = 0
    prefix: bytes = b""

    LAYOUT: ClassVar[Layout] = Layout(
        "ms_task_order",
        "kind:I source_server:I target_server:I replica_count:I prefix_length:I reserved:4x",
    )

    def write(self, writer: Writer) -> None:
        writer.raw(self.LAYOUT.pack(self, prefix_length=len(self.prefix)))
        writer.padded(self.prefix)

    @classmethod
    def read(cls, reader: Reader) -> TaskOrder:
        head = cls.LAYOUT.unpack(reader)
        length = head.pop("prefix_length")
        check(length <= KEY_BYTES_MAX, f"a prefix of {length} bytes")
        return cls(**head, prefix=reader.padded(length))


@dataclass(frozen=True, slots=True)
class TasksRequest(Body):
    """TASKS: one or (0) all of them; CANCEL_TASK: that one."""

    task: int = 0
    failures_max: int = 0

    LAYOUT: ClassVar[Layout] = Layout("ms_tasks", "task:Q failures_max:I reserved:4x")


@dataclass(frozen=True, slots=True)
class TaskFailure(Keyed):
    """An object that a task could not treat, and why."""

    size: int
    status: int
    key: bytes

    LAYOUT: ClassVar[Layout] = Layout("ms_task_failure", "size:Q status:I key_length:I")


@dataclass(frozen=True, slots=True)
class Task(Record):
    """How far a task is."""

    task: int
    kind: int
    state: int
    objects_done: int = 0
    objects_total: int = 0
    bytes_done: int = 0
    bytes_total: int = 0
    objects_failed: int = 0
    objects_left: int = 0
    sole_left: int = 0
    age_ms: int = 0
    ended_ms: int = 0
    source_server: int = 0
    target_server: int = 0
    replica_count: int = 0
    prefix: bytes = b""
    failures: tuple[TaskFailure, ...] = ()

    LAYOUT: ClassVar[Layout] = Layout(
        "ms_task",
        "task:Q objects_done:Q objects_total:Q bytes_done:Q bytes_total:Q objects_failed:Q "
        "objects_left:Q sole_left:Q age_ms:Q ended_ms:Q kind:I state:I source_server:I "
        "target_server:I replica_count:I prefix_length:I failure_count:I reserved:4x",
    )

    def write(self, writer: Writer) -> None:
        lengths = {"prefix_length": len(self.prefix), "failure_count": len(self.failures)}
        writer.raw(self.LAYOUT.pack(self, **lengths))
        writer.padded(self.prefix)
        for failure in self.failures:
            failure.write(writer)

    @classmethod
    def read(cls, reader: Reader) -> Task:
        head = cls.LAYOUT.unpack(reader)
        length, count = head.pop("prefix_length"), head.pop("failure_count")
        check(length <= KEY_BYTES_MAX, f"a prefix of {length} bytes")
        check(count <= TASK_FAILURES_MAX, f"{count} failures of a task")
        return cls(
            **head,
            prefix=reader.padded(length),
            failures=reader.items(count, TaskFailure.LAYOUT.size, TaskFailure.read),
        )


@dataclass(frozen=True, slots=True)
class TasksAnswer(Counted):
    """Answer to TASKS and START_TASK: the newest first."""

    items: tuple[Task, ...] = ()

    ITEM: ClassVar[type[Record]] = Task
    LAYOUT: ClassVar[Layout] = Counted.LIST
