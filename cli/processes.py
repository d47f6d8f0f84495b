"""Processes of the store that a command starts, watches and ends."""

from __future__ import annotations

import contextlib
import ctypes
import functools
import json
import os
import selectors
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from typing import Any

from mooncake_store.errors import UnavailableError
from mooncake_store.interpreter import module_command

__all__ = ["Child", "end_with_parent"]

_PR_SET_PDEATHSIG = 1
_STOP_TIMEOUT_S = 10.0
_libc = ctypes.CDLL(None)


def end_with_parent(parent: int) -> None:
    """In a child, before it becomes another program: SIGTERM when the parent dies, however.

    The kernel sends it when the *thread* that forked ends, so children are started by threads that
    live as long as their process.

    Args:
        parent: The process that forked; it may have died before this ran.
    """
    _libc.prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)
    if os.getppid() != parent:
        os._exit(128 + signal.SIGTERM)


class Child:
    """`mooncake-store COMMAND` as a child; its first line of output says that it serves.

    Args:
        arguments: The command and its flags.
        environment: None: this process's.
        is_muted_at_end: What it logs after `ask_to_end` is dropped.  Processes that belong together
            and end together would warn of each other's loss.
    """

    def __init__(
        self,
        arguments: Sequence[str],
        *,
        environment: dict[str, str] | None = None,
        is_muted_at_end: bool = False,
    ) -> None:
        self.name = arguments[0]
        self._process = subprocess.Popen(
            module_command("mooncake_store.cli.main", [*arguments, "--announce", "--quiet"]),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE if is_muted_at_end else None,
            env=environment,
            preexec_fn=functools.partial(end_with_parent, os.getpid()),
            # Ctrl-C goes to the whole terminal: only the parent acts on it, and ends us in order.
            start_new_session=True,
        )
        self.pid = self._process.pid
        self._is_asked_to_end = False
        self._log: threading.Thread | None = None
        if is_muted_at_end:
            self._log = threading.Thread(target=self._pass_log_on, daemon=True)
            self._log.start()

    def _pass_log_on(self) -> None:
        assert self._process.stderr is not None
        for line in self._process.stderr:
            if not self._is_asked_to_end:
                sys.stderr.buffer.write(line)
                sys.stderr.buffer.flush()

    def wait_ready(self, timeout_s: float) -> dict[str, Any]:
        """Return the document that the process prints once it serves.

        Raises:
            UnavailableError: It ended and has told why on stderr, or it said nothing in time.
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
                    raise self.stopped()
                line += part
        document: dict[str, Any] = json.loads(line)
        return document

    def poll(self) -> int | None:
        """The exit status, once it has ended."""
        return self._process.poll()

    def stopped(self) -> UnavailableError:
        """The error that says how it ended by itself."""
        code = self._process.wait()
        if self._log is not None:
            self._log.join()  # why it ended, before we say that it did
        how = f"was killed by {signal.Signals(-code).name}" if code < 0 else f"ended with {code}"
        hint = "`mooncake-store doctor` checks this machine"
        return UnavailableError(f"the {self.name} {how}", hint=hint)

    def ask_to_end(self) -> None:
        """Ask it to end, and do not wait."""
        self._is_asked_to_end = True
        if self._process.poll() is None:
            with contextlib.suppress(ProcessLookupError):
                self._process.send_signal(signal.SIGTERM)

    def end(self) -> None:
        """Ask it to end, then make it."""
        if self._process.poll() is None:
            self.ask_to_end()
            try:
                self._process.wait(_STOP_TIMEOUT_S)
            except subprocess.TimeoutExpired:
                self._process.kill()
        self._process.wait()
        if self._log is not None:
            self._log.join()
        for stream in (self._process.stdout, self._process.stderr):
            if stream is not None:
                stream.close()
