"""Processes of the store that a command starts, watches and ends."""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import selectors
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from typing import Any

from mooncake_store.errors import StoreError, UnavailableError

__all__ = ["Child", "end_with_parent"]

_PR_SET_PDEATHSIG = 1
_STOP_TIMEOUT_S = 10.0


def end_with_parent() -> None:
    """In a child, before it becomes another program: SIGTERM when the parent dies, however."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)


class Child:
    """`mooncake-store COMMAND --json` as a child; its first line of output says that it serves.

    Args:
        arguments: The command and its flags, without --json.
        environment: None: this process's.
    """

    def __init__(
        self, arguments: Sequence[str], *, environment: dict[str, str] | None = None
    ) -> None:
        self.name = arguments[0]
        self._process = subprocess.Popen(
            [sys.executable, "-m", "mooncake_store.cli.main", *arguments, "--json", "--quiet"],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            env=environment,
            preexec_fn=end_with_parent,
            # Ctrl-C goes to the whole terminal: only the parent acts on it, and ends us in order.
            start_new_session=True,
        )
        self.pid = self._process.pid

    def wait_ready(self, timeout_s: float) -> dict[str, Any]:
        """Return the document that the process prints once it serves.

        Raises:
            UnavailableError: It ended, or said nothing in time; what it said stands on stderr.
        """
        assert self._process.stdout is not None
        end = time.monotonic() + timeout_s
        line = b""
        with selectors.DefaultSelector() as selector:
            selector.register(self._process.stdout, selectors.EVENT_READ)
            while not line.endswith(b"\n"):
                left_s = end - time.monotonic()
                if left_s <= 0 or not selector.select(left_s):
                    raise UnavailableError(f"the {self.name} was not ready after {timeout_s:.0f} s")
                part = os.read(self._process.stdout.fileno(), 65536)
                if not part:
                    code = self._process.wait()
                    raise StoppedError(f"the {self.name} could not start", exit_code=code)
                line += part
        document: dict[str, Any] = json.loads(line)
        return document

    def poll(self) -> int | None:
        """The exit status, once it has ended."""
        return self._process.poll()

    def end(self) -> None:
        """Ask it to end, then make it."""
        if self._process.poll() is None:
            with contextlib.suppress(ProcessLookupError):
                self._process.send_signal(signal.SIGTERM)
            try:
                self._process.wait(_STOP_TIMEOUT_S)
            except subprocess.TimeoutExpired:
                self._process.kill()
        self._process.wait()
        if self._process.stdout is not None:
            self._process.stdout.close()


class StoppedError(StoreError):
    """A child ended by itself; it has told why on stderr.

    Attributes:
        exit_code: Its exit status, negative for a signal.
    """

    def __init__(self, message: str, *, exit_code: int) -> None:
        super().__init__(message)
        self.exit_code = exit_code
