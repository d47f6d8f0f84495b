"""How the command shows tasks, and waits for their end."""

from __future__ import annotations

import sys
import time
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from mooncake_store.cli.exit_codes import ExitCode
from mooncake_store.cli.interrupts import raise_if_interrupted
from mooncake_store.cli.output import Output, approximate_size, printable
from mooncake_store.errors import ClusterError, ObjectNotFoundError, TransferError

if TYPE_CHECKING:
    from mooncake_store.client import Client, Task

__all__ = ["ask", "document", "finish", "follow", "subject", "text_of"]

_EVERY_S = 0.5
_LINE_EVERY_S = 10.0
_AWAY_S = 30.0  # for so long a master may be away while somebody waits
_FAILURES_SHOWN = 20
_KNOWN_HINT = "`mooncake-store tasks list --all` shows those that are known"


def document(task: Task) -> dict[str, Any]:
    """Return a task as JSON has it."""
    found = asdict(task)
    found["age_seconds"], found["ended_seconds"] = found.pop("age_s"), found.pop("ended_s")
    found["failures"] = [asdict(failure) for failure in task.failures]
    return found


def subject(task: Task) -> str:
    """Return what a task is about: `drain node-a`, `replicate chat/ to 2`."""
    words = [task.kind]
    if task.kind in ("replicate", "move"):
        words.append(f'"{printable(task.prefix)}"')
    if task.kind == "drain":
        words.append(printable(task.source or ""))
    elif task.source is not None:
        words.append(f"from {printable(task.source)}")
    if task.target is not None:
        words.append(f"to {printable(task.target)}")
    if task.replicas is not None:
        words.append(f"to {task.replicas}")
    return " ".join(words)


def progress(task: Task) -> str:
    """Return how far it is: `120 of 400 objects, 1.2 GiB of 4 GiB`."""
    total = f" of {task.objects_total:,}" if task.objects_total else ""
    size = approximate_size(task.bytes_done)
    if task.bytes_total:
        size += f" of {approximate_size(task.bytes_total)}"
    return f"{task.objects_done:,}{total} objects, {size}"


def text_of(task: Task) -> str:
    """Return all about a task for people."""
    lines = [
        f"task      {task.id}: {subject(task)}",
        f"state     {task.state}",
        f"done      {progress(task)}",
        f"age       {task.age_s:.0f} s"
        + (f", ended {task.ended_s:.0f} s ago" if task.ended_s is not None else ""),
    ]
    if task.kind == "drain":
        lines.append(
            f"left      {task.objects_left:,} replicas there, {task.sole_left:,} nowhere else"
        )
    elif task.kind == "repair":
        lines.append(f"left      {task.objects_left:,} objects short of replicas")
    if task.objects_failed:
        lines.append(f"failed    {task.objects_failed:,} objects in the last walk")
    lines += _failures(task)
    return "\n".join(lines)


def _failures(task: Task) -> list[str]:
    lines = [
        f"          {printable(failure.key)} ({approximate_size(failure.size_bytes)}): "
        f"{failure.reason}"
        for failure in task.failures[:_FAILURES_SHOWN]
    ]
    if task.objects_failed > len(lines) > 0:
        lines.append(f"          and {task.objects_failed - len(lines):,} more")
    return lines


def ask(store: Client, task: str) -> Task:
    """Return a task.

    Raises:
        ObjectNotFoundError: It is not known.
    """
    found = store.task(task)
    if found is None:
        raise ObjectNotFoundError(
            f"there is no task {task}, or it ended long ago", hint=_KNOWN_HINT
        )
    return found


def follow(store: Client, output: Output, task: Task) -> Task:
    """Wait until a task ends or is blocked; masters may change meanwhile."""
    is_terminal = sys.stderr.isatty() and not output.is_quiet
    told_s = time.monotonic()
    width = 0
    was_waiting = False
    try:
        while not (task.has_ended or task.state == "blocked"):
            time.sleep(_EVERY_S)
            raise_if_interrupted()
            task = _ask_again(store, task)
            line = f"{subject(task)}: {progress(task)}"
            if task.state == "waiting" and not was_waiting:
                output.note(
                    f"{printable(task.source or 'its server')} is away: this waits until it is "
                    f"back; to end it: mooncake-store tasks cancel {task.id}"
                )
            was_waiting = task.state == "waiting"
            if is_terminal:
                width = max(width, len(line))
                sys.stderr.write(f"\r{line.ljust(width)}")
                sys.stderr.flush()
            elif time.monotonic() - told_s >= _LINE_EVERY_S:
                told_s = time.monotonic()
                output.note(line)
    finally:
        if width:
            sys.stderr.write("\r" + " " * width + "\r")
            sys.stderr.flush()
    return task


def _ask_again(store: Client, task: Task) -> Task:
    until_s = time.monotonic() + _AWAY_S
    while True:
        try:
            found = store.task(task.id)
        except (ClusterError, TransferError):
            if time.monotonic() > until_s:
                raise
            time.sleep(_EVERY_S)
            raise_if_interrupted()
            continue
        # Only drains are known to the next master; what it does not know has ended with the last.
        if found is None:
            raise ObjectNotFoundError(
                f"task {task.id} ended with the master that began it", hint=_KNOWN_HINT
            )
        return found


def finish(output: Output, task: Task) -> ExitCode:
    """Write a task as the result, and say in the exit code how it is."""
    output.result(document(task), text_of(task))
    if task.state == "cancelled":
        return ExitCode.FAILED
    if task.state == "blocked":
        output.note("what is left is tried again now and then; stop that: mooncake-store tasks "
                    f"cancel {task.id}")  # fmt: skip
        return ExitCode.PARTIAL
    # A drain has ended well when nothing is nowhere else; replicas without another place stay.
    has_failed = task.has_ended and task.objects_failed and task.kind != "drain"
    return ExitCode.PARTIAL if has_failed else ExitCode.OK
