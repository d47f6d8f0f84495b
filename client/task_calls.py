"""Replicas of one object and of many: change, move, drain, repair, and the tasks that do it."""

from __future__ import annotations

import builtins
from typing import TYPE_CHECKING

from mooncake_store.client.calls import Calls

if TYPE_CHECKING:
    from mooncake_store.client.results import Task

__all__ = ["TaskCalls"]


class TaskCalls(Calls):
    """The calls of `Client` about replicas and tasks."""

    def change_replica(
        self,
        key: str,
        replicas: int,
        *,
        target: int | None = None,
        source: int | None = None,
        timeout_s: float | None = None,
    ) -> int:
        """Make an object have so many replicas, and return how many it has then.

        Args:
            key: The object.
            replicas: Wanted in all; 0: move one.
            target: Number of the server (see `members`) that gets a new one.
            source: Number of the server whose replica goes first.
            timeout_s: Deadline.
        """
        from mooncake_store.client import commands

        command = commands.change_replica(key, self._hash, replicas, target, source)
        return self._run(command, timeout_s)

    def move(
        self,
        key: str,
        *,
        source: int | None = None,
        target: int | None = None,
        timeout_s: float | None = None,
    ) -> int:
        """Move one replica of an object to another server; return how many replicas there are then.

        Args:
            key: The object.
            source: Number of the server that it leaves; None: that of the first replica.
            target: Number of the server that it goes to; None: where most is free.
            timeout_s: Deadline.

        Raises:
            ObjectNotFoundError: It is not there, or not at `source`.
            NoSpaceError: No other server takes it.
        """
        return self.change_replica(key, 0, target=target, source=source, timeout_s=timeout_s)

    def drain(self, server: int | str, *, timeout_s: float | None = None) -> Task:
        """Give a server no new replica, and move what it has; return the task that does this.

        It outlives restarts of masters. It is done when nothing is left there that is nowhere else;
        `blocked` while something cannot move (`task(id).failures` says what and why).

        Args:
            server: By number, name or node id.
            timeout_s: Deadline; for the beginning only.
        """
        return self._start("drain", timeout_s, source=server)

    def undrain(self, server: int | str, *, timeout_s: float | None = None) -> bool:
        """Let a server have new replicas again; return whether it was draining or drained."""
        from mooncake_store.client import tasks

        return self._carry_out(tasks.undrain(server), timeout_s)

    def replicate_prefix(
        self, prefix: str, replicas: int, *, timeout_s: float | None = None
    ) -> Task:
        """Make all objects with a prefix have so many replicas; return the task that does this."""
        return self._start("replicate", timeout_s, prefix=prefix, replicas=replicas)

    def move_prefix(
        self,
        prefix: str,
        source: int | str,
        target: int | str | None = None,
        *,
        timeout_s: float | None = None,
    ) -> Task:
        """Move the replicas at a server of all objects with a prefix; return the task."""
        return self._start("move", timeout_s, prefix=prefix, source=source, target=target)

    def repair(self, *, timeout_s: float | None = None) -> Task:
        """Copy again what has fewer replicas than wanted, now and not after its delay."""
        return self._start("repair", timeout_s)

    def _start(
        self,
        kind: str,
        timeout_s: float | None,
        *,
        prefix: str = "",
        source: int | str | None = None,
        target: int | str | None = None,
        replicas: int = 0,
    ) -> Task:
        from mooncake_store.client import tasks

        order = tasks.Order(kind, source, target, replicas, prefix)
        return self._carry_out(tasks.start(order), timeout_s)

    def tasks(self, *, timeout_s: float | None = None) -> builtins.list[Task]:
        """Return the tasks that the master knows, the newest first, without their failures.

        Example:
            >>> store.tasks()
            []
        """
        from mooncake_store.client import tasks

        return self._carry_out(tasks.listing(), timeout_s)

    def task(
        self, task: str, *, failures: int = 256, timeout_s: float | None = None
    ) -> Task | None:
        """Return one task and the first of its failures; None: it is not known (any more)."""
        from mooncake_store.client import tasks

        return self._carry_out(tasks.one(task, failures), timeout_s)

    def cancel_task(self, task: str, *, timeout_s: float | None = None) -> None:
        """Stop a task; copies under way are finished. A drain, also one that is done, is undone.

        Raises:
            ObjectNotFoundError: There is no such task.
            StoreError: It has ended.
        """
        from mooncake_store.client import tasks

        self._carry_out(tasks.cancel(task), timeout_s)
