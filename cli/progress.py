"""What is shown while a command works for more than a second."""

from __future__ import annotations

import sys
import threading
import time
from types import TracebackType

from mooncake_store.cli.interrupts import raise_if_interrupted
from mooncake_store.cli.output import Output

__all__ = ["Progress", "Waiting"]

_AFTER_S = 1.0
_EVERY_S = 0.2
_LINE_EVERY_S = 10.0


class Progress:
    """Tells on stderr which step is done and how far; Ctrl-C is noticed there.

    For work that says how far it is.  A terminal gets a line that moves, anything else a line every
    ten seconds.

    Args:
        is_quiet: Tell nothing.
    """

    def __init__(self, *, is_quiet: bool = False) -> None:
        self._is_quiet = is_quiet
        self._is_terminal = sys.stderr.isatty()
        self._begun = self._last = time.monotonic()
        self._width = 0

    def __call__(self, step: str, done: float) -> None:
        """Show a step and the share of all that is done."""
        raise_if_interrupted()
        now = time.monotonic()
        if self._is_quiet or now - self._begun < _AFTER_S:
            return
        text = f"{step}: {done:.0%}"
        if self._is_terminal:
            self._width = max(self._width, len(text))
            sys.stderr.write(f"\r{text:<{self._width}}")
            sys.stderr.flush()
        elif now - self._last >= _LINE_EVERY_S:
            self._last = now
            sys.stderr.write(text + "\n")

    def clear(self) -> None:
        """Leave the terminal's line empty for what is printed next."""
        if self._is_terminal and self._width:
            sys.stderr.write("\r" + " " * self._width + "\r")
            sys.stderr.flush()


class Waiting:
    """Tells on stderr that something is under way, and since when.

    For one call into the store, which does not say how far it is.  A terminal gets a line that
    moves and vanishes, anything else a line every ten seconds.

    Args:
        output: Whether and how to show it.
        what: `storing 4 GiB`.
    """

    def __init__(self, output: Output, what: str) -> None:
        self._output = output
        self._what = what
        self._end = threading.Event()
        self._thread: threading.Thread | None = None

    def __enter__(self) -> Waiting:
        if not self._output.is_quiet:
            self._thread = threading.Thread(target=self._show, daemon=True)
            self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._end.set()
        if self._thread is not None:
            self._thread.join()

    def _show(self) -> None:
        started = time.monotonic()
        is_terminal = sys.stderr.isatty()
        pause_s = _AFTER_S if is_terminal else _LINE_EVERY_S
        width = 0
        while not self._end.wait(pause_s):
            line = f"{self._what}: {time.monotonic() - started:.0f} s"
            if is_terminal:
                pause_s = _EVERY_S
                width = max(width, len(line))
                sys.stderr.write(f"\r{line}")
                sys.stderr.flush()
            else:
                self._output.note(line)
        if width:
            sys.stderr.write("\r" + " " * width + "\r")
            sys.stderr.flush()
