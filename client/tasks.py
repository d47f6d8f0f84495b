"""Tasks: what they send to the master, and what its answers mean.  No I/O here."""

from __future__ import annotations

import re
from collections.abc import Generator, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from mooncake_store.client import commands
from mooncake_store.client.commands import Command, word_of
from mooncake_store.client.results import Member, Task, TaskFailure
from mooncake_store.errors import ObjectError, ObjectNotFoundError, RequestError, Status
from mooncake_store.protocol import frames
from mooncake_store.protocol.methods import Method, TaskKind, TaskState

__all__ = ["Order", "cancel", "drain_of", "one", "start", "task_number", "undrain"]

Result = TypeVar("Result")
Steps = Generator[Command[Any], Any, Result]

_TASK_ID = re.compile("([0-9]{1,10})-([0-9]{1,10})")
_TASKS_HINT = "`mooncake-store tasks list --all` shows those that are known"

_REASONS = {
    Status.NO_SPACE: "no room elsewhere",
    Status.TOO_LARGE: "larger than any other store server",
    Status.UNAVAILABLE: "no other store server can take it",
    Status.BUSY: "it is being put, or its replicas are being changed",
}


def task_id(number: int) -> str:
    """Return a task's name for people: the epoch of its master, and its number there."""
    return f"{number >> 32}-{number & 0xFFFFFFFF}"


def task_number(text: str) -> int:
    """Return the number of a task on the wire.

    Raises:
        RequestError: That is no task's name.
    """
    match = _TASK_ID.fullmatch(text)
    parts = [int(part) for part in match.groups()] if match else []
    if not parts or max(parts) >= 1 << 32:
        raise RequestError(f"{text[:80]!r} names no task: they look like 7-3", hint=_TASKS_HINT)
    return parts[0] << 32 | parts[1]


def server_number(members: Sequence[Member], server: int | str) -> int:
    """Return the number of a store server that is named by number, name or node id.

    A name beats a number: a server may be called `1` and have another number.

    Raises:
        RequestError: There is none, or several have that name.
    """
    named = [member.server for member in members if server == member.name]
    if len(named) > 1:
        raise RequestError(
            f"{len(named)} store servers are called {server!r}: say which by its id",
            hint="`mooncake-store status --json` shows their ids",
        )
    if named:
        return named[0]
    for member in members:
        if server in (member.server, member.node_id, str(member.server)):
            return member.server
    known = ", ".join(member.name for member in members) or "none"
    raise RequestError(
        f"there is no store server {server!r} (known: {known})",
        hint="`mooncake-store status` shows who is there",
    )


def _failure(item: frames.TaskFailure) -> TaskFailure:
    try:
        status = Status(item.status)
    except ValueError:  # of a newer master
        return TaskFailure(item.key.decode(errors="replace"), item.size, f"status {item.status}")
    reason = _REASONS.get(status, status.name.lower().replace("_", " "))
    return TaskFailure(item.key.decode(errors="replace"), item.size, reason)


def _task(item: frames.Task, names: dict[int, str]) -> Task:
    def name(server: int) -> str | None:
        return names.get(server - 1, f"server {server - 1}") if server else None

    return Task(
        id=task_id(item.task),
        kind=word_of(TaskKind, item.kind),
        state=word_of(TaskState, item.state),
        source=name(item.source_server),
        target=name(item.target_server),
        prefix=item.prefix.decode(errors="replace"),
        replicas=item.replica_count or None,
        objects_done=item.objects_done,
        objects_total=item.objects_total,
        bytes_done=item.bytes_done,
        bytes_total=item.bytes_total,
        objects_failed=item.objects_failed,
        objects_left=item.objects_left,
        sole_left=item.sole_left,
        age_s=item.age_ms / 1000,
        ended_s=item.ended_ms / 1000 if item.ended_ms else None,
        failures=tuple(map(_failure, item.failures)),
    )


def _listing(task: int, failures: int, members: Sequence[Member]) -> Command[list[Task]]:
    names = {member.server: member.name for member in members}
    body = frames.TasksRequest(task, min(failures, frames.TASK_FAILURES_MAX))
    return Command(
        Method.TASKS,
        body.encode(),
        lambda answer: [_task(item, names) for item in frames.TasksAnswer.decode(answer).items],
    )


def listing() -> Steps[list[Task]]:
    """All tasks that the master knows, the newest first."""
    members = yield commands.members()
    tasks: list[Task] = yield _listing(0, 0, members)
    return tasks


def one(task: str, failures: int) -> Steps[Task | None]:
    """A task with what it could not treat; None: it ended long ago, or never was."""
    number = task_number(task)
    members = yield commands.members()
    try:
        found: list[Task] = yield _listing(number, failures, members)
    except ObjectNotFoundError:
        return None
    return found[0]


@dataclass(frozen=True, slots=True)
class Order:
    """What is to be begun; servers by number, name or node id."""

    kind: str
    source: int | str | None = None
    target: int | str | None = None
    replicas: int = 0
    prefix: str = ""


def start(order: Order) -> Steps[Task]:
    """The task that was begun."""
    members: list[Member] = yield commands.members()

    def number(server: int | str | None) -> int:
        return 0 if server is None else server_number(members, server) + 1

    if order.source is not None and number(order.source) == number(order.target):
        raise RequestError("a replica cannot move from a store server to the same one")
    if order.kind == "replicate" and not 1 <= order.replicas <= frames.REPLICAS_MAX:
        raise RequestError(f"replicas: 1 to {frames.REPLICAS_MAX}")
    prefix = order.prefix.encode()
    if len(prefix) > frames.KEY_BYTES_MAX:
        raise RequestError(f"a prefix has at most {frames.KEY_BYTES_MAX} bytes")
    body = frames.TaskOrder(
        TaskKind[order.kind.upper()],
        number(order.source),
        number(order.target),
        order.replicas,
        prefix,
    )
    names = {member.server: member.name for member in members}
    task: Task = yield Command(
        Method.START_TASK,
        body.encode(),
        lambda answer: _task(frames.TasksAnswer.decode(answer).items[0], names),
    )
    return task


def cancel(task: str) -> Steps[None]:
    """Stop a task; undo a drain."""
    body = frames.TasksRequest(task_number(task))
    command: Command[None] = Command(Method.CANCEL_TASK, body.encode(), lambda _: None)
    try:
        yield command
    except ObjectError as error:  # what helps with objects does not help here
        error.hint = _TASKS_HINT
        raise


def drain_of(tasks: Sequence[frames.Task], server: int) -> str | None:
    """Return the id of the task that empties a store server, or has emptied it.

    Servers may have the same name: a drain is of a number.
    """
    for task in tasks:
        is_drain = task.kind == TaskKind.DRAIN and task.source_server == server + 1
        if is_drain and task.state != TaskState.CANCELLED:
            return task_id(task.task)
    return None


def undrain(server: int | str) -> Steps[bool]:
    """Whether it was draining, or had been drained."""
    members: list[Member] = yield commands.members()
    number = server_number(members, server)
    tasks: tuple[frames.Task, ...] = yield Command(
        Method.TASKS,
        frames.TasksRequest().encode(),
        lambda answer: frames.TasksAnswer.decode(answer).items,
    )
    task = drain_of(tasks, number)
    if task is None:
        return False
    yield from cancel(task)
    return True
