"""Processes of a run: started in their hosts, and killed, frozen or stopped by their pid."""

from __future__ import annotations

import contextlib
import mmap
import os
import select
import signal
import struct
import subprocess
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from .nodes import Node, NodeError

_FREEZE_TIMEOUT_S = 10.0
_STOP_TIMEOUT_S = 20.0


class Clock:
    """The clocks of one process, which `native/clock.c` reads from a file."""

    def __init__(self, path: Path) -> None:
        self.path = path
        path.write_bytes(bytes(16))
        with path.open("r+b") as file:
            self._offsets = mmap.mmap(file.fileno(), 16)

    def set_wall(self, offset_s: float) -> None:
        struct.pack_into("<q", self._offsets, 0, int(offset_s * 1e9))

    def suspend(self, duration_s: float) -> None:
        """Let the clock of suspended time jump ahead, for good."""
        (before_ns,) = struct.unpack_from("<q", self._offsets, 8)
        struct.pack_into("<q", self._offsets, 8, before_ns + int(duration_s * 1e9))


class Process:
    """One of the cluster, and those that come in its place.

    Args:
        name: Of it.
        node: Where it runs.
        command: What it is; may differ from start to start.
        environment: Of it.
        log: All of them append to it.
        ready_file: Written by the process once it serves; None: nothing says that.
    """

    def __init__(
        self,
        name: str,
        node: Node,
        command: Callable[[], Sequence[str]],
        *,
        environment: dict[str, str],
        log: Path,
        ready_file: Path | None = None,
    ) -> None:
        self.name = name
        self.node = node
        self.clock = Clock(log.with_suffix(".clock"))
        self._command = command
        self._environment = {**environment, "CHAOS_CLOCK": str(self.clock.path)}
        self._log = log
        self.ready_file = ready_file
        self._process: subprocess.Popen[str] | None = None
        self._heard = b""
        self.starts = 0

    def start(self) -> None:
        if self.ready_file is not None:
            self.ready_file.unlink(missing_ok=True)
        self.starts += 1
        self._heard = b""
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(
                ["setpriv", "--pdeathsig", "KILL", *self.node.enter(), *self._command()],
                env=self._environment,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
            )

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    @property
    def is_running(self) -> bool:
        return self._process is not None and self._process.poll() is None

    @property
    def is_ready(self) -> bool:
        return self.is_running and (self.ready_file is None or self.ready_file.exists())

    @property
    def exit_status(self) -> int | None:
        return None if self._process is None else self._process.poll()

    def log(self) -> str:
        return self._log.read_text(errors="replace") if self._log.exists() else ""

    def say(self, line: str) -> None:
        """Write a line to its standard input; whoever has ended hears nothing."""
        assert self._process is not None and self._process.stdin is not None
        with contextlib.suppress(BrokenPipeError, OSError):
            self._process.stdin.write(line + "\n")
            self._process.stdin.flush()

    def hear(self, timeout_s: float) -> str:
        """Return its next line; empty: none in time, or it has ended."""
        assert self._process is not None and self._process.stdout is not None
        end_s = time.monotonic() + timeout_s
        descriptor = self._process.stdout.fileno()
        while b"\n" not in self._heard:
            left_s = max(0.0, end_s - time.monotonic())
            if not select.select([descriptor], [], [], left_s)[0]:
                return ""
            part = os.read(descriptor, 4096)
            if not part:
                return ""
            self._heard += part
        line, _, self._heard = self._heard.partition(b"\n")
        return line.decode().strip()

    def kill(self) -> None:
        assert self._process is not None
        self._process.kill()
        self._reap()

    def freeze(self) -> None:
        """Stop it, and wait until each of its threads has: until then they go on."""
        assert self._process is not None
        self._process.send_signal(signal.SIGSTOP)
        end_s = time.monotonic() + _FREEZE_TIMEOUT_S
        while any(_state(task) not in ("T", "Z", "X") for task in _tasks(self.pid)):
            if time.monotonic() > end_s:
                raise NodeError(f"{self.name} cannot be frozen")

    def thaw(self) -> None:
        assert self._process is not None
        self._process.send_signal(signal.SIGCONT)

    def stop(self) -> int:
        """Ask it to end, and return its exit status.

        Raises:
            NodeError: It does not end.
        """
        assert self._process is not None
        if self._process.poll() is None:
            self._process.send_signal(signal.SIGCONT)
            self._process.send_signal(signal.SIGTERM)
        try:
            self._process.wait(_STOP_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            self.kill()
            raise NodeError(f"{self.name} has not stopped in {_STOP_TIMEOUT_S} s") from None
        return self._reap()

    def _reap(self) -> int:
        assert self._process is not None
        status = self._process.wait()
        for stream in (self._process.stdin, self._process.stdout):
            if stream is not None:
                with contextlib.suppress(BrokenPipeError, OSError):
                    stream.close()
        if self.ready_file is not None:
            self.ready_file.unlink(missing_ok=True)
        return status

    def wait_ready(self, timeout_s: float) -> None:
        """Wait until it serves.

        Raises:
            NodeError: It does not, or has ended.
        """
        end_s = time.monotonic() + timeout_s
        while not self.is_ready:
            if not self.is_running:
                raise NodeError(
                    f"{self.name} has ended with {self.exit_status}: {self.log()[-2000:]}"
                )
            if time.monotonic() > end_s:
                raise NodeError(f"{self.name} is not ready after {timeout_s:.0f} s")
            time.sleep(0.02)

    def close(self) -> None:
        if self.is_running:
            self.kill()


def _tasks(pid: int) -> list[Path]:
    try:
        return list(Path(f"/proc/{pid}/task").iterdir())
    except FileNotFoundError:
        return []


def _state(task: Path) -> str:
    try:
        return (task / "stat").read_text().rpartition(")")[2].split()[0]
    except (FileNotFoundError, ProcessLookupError):
        return "X"


def without_settings() -> dict[str, str]:
    """This process's environment without anybody's settings of the store."""
    return {k: v for k, v in os.environ.items() if not k.startswith("MOONCAKE_STORE_")}
