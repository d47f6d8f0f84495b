"""Child processes of the comparison: started, asked line by line, ended by their own pid."""

from __future__ import annotations

import ctypes
import json
import os
import select
import signal
import socket
import subprocess
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

PR_SET_PDEATHSIG = 1


class WorkerError(RuntimeError):
    """A worker died, fell silent or could not do what it was asked."""


def _end_with_parent() -> None:
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)


class Process:
    """A server process whose output goes to a file."""

    def __init__(
        self, command: Sequence[str], log: Path, environment: dict[str, str] | None = None
    ) -> None:
        self.log = log
        with open(log, "ab") as sink:
            self._process = subprocess.Popen(
                command,
                stdin=subprocess.PIPE,
                stdout=self._stdout(sink),
                stderr=sink,
                env={**os.environ, **(environment or {})},
                preexec_fn=_end_with_parent,
            )
        self.pid = self._process.pid

    def _stdout(self, sink: Any) -> Any:
        return sink

    def signal(self, number: int) -> None:
        """Send a signal to this process only."""
        self._process.send_signal(number)

    def is_running(self) -> bool:
        return self._process.poll() is None

    def end(self) -> None:
        """Ask the process to end, then make it."""
        if self.is_running():
            self.signal(signal.SIGCONT)
            self.signal(signal.SIGTERM)
            try:
                self._process.wait(10)
            except subprocess.TimeoutExpired:
                self.signal(signal.SIGKILL)
        self._process.wait()
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe is not None:
                pipe.close()

    def last_words(self) -> str:
        """Return the end of its log, for an error message."""
        lines = self.log.read_text(errors="replace").splitlines()
        return "\n".join(lines[-5:])


class WorkerProcess(Process):
    """A process of worker.py, asked with `ask`."""

    def __init__(
        self, command: Sequence[str], log: Path, environment: dict[str, str] | None = None
    ) -> None:
        super().__init__(command, log, environment)
        self._unread = b""
        self.hello = self._answer(60)

    def _stdout(self, sink: Any) -> Any:
        return subprocess.PIPE

    def ask(self, op: str, *, timeout_s: float = 120, **arguments: Any) -> dict[str, Any]:
        """Run one operation there and return its figures.

        Raises:
            WorkerError: It failed, died, or did not answer in time.
        """
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps({"op": op, **arguments}).encode() + b"\n")
        self._process.stdin.flush()
        said = self._answer(timeout_s)
        if "error" in said:
            raise WorkerError(f"{op}: {said['error']}")
        return said

    def _answer(self, timeout_s: float) -> dict[str, Any]:
        assert self._process.stdout is not None
        descriptor = self._process.stdout.fileno()
        end = time.monotonic() + timeout_s
        while b"\n" not in self._unread:
            ready, _, _ = select.select([descriptor], [], [], max(0.0, end - time.monotonic()))
            if not ready:
                raise WorkerError(f"no answer within {timeout_s:g} s")
            part = os.read(descriptor, 1 << 16)
            if not part:
                raise WorkerError(f"worker died:\n{self.last_words()}")
            self._unread += part
        line, _, self._unread = self._unread.partition(b"\n")
        return dict(json.loads(line))


def free_port() -> int:
    """Return a port that nobody listens on now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def wait_for_port(port: int, process: Process, timeout_s: float = 20) -> None:
    """Wait until something listens on the port."""
    end = time.monotonic() + timeout_s
    while time.monotonic() < end:
        with socket.socket() as probe:
            probe.settimeout(0.2)
            if probe.connect_ex(("127.0.0.1", port)) == 0:
                return
        if not process.is_running():
            break
        time.sleep(0.01)
    raise WorkerError(f"nothing listens on port {port}:\n{process.last_words()}")


def own_memory_bytes(pid: int) -> int:
    """Return a process's memory without pages that it shares with others."""
    fields = dict.fromkeys(("RssAnon", "RssFile"), 0)
    with open(f"/proc/{pid}/status") as lines:
        for line in lines:
            name, _, value = line.partition(":")
            if name in fields:
                fields[name] = int(value.split()[0]) * 1024
    return sum(fields.values())
