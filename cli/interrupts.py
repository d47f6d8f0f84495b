"""Ctrl-C and SIGTERM: they end a command once, and it cleans up in peace."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

__all__ = ["interruptible", "raise_if_interrupted"]

_interrupted = threading.Event()


@contextmanager
def interruptible() -> Iterator[None]:
    """Let SIGINT and SIGTERM raise KeyboardInterrupt once; further ones do nothing.

    What a command waits for at its end has deadlines, so nobody has to be more insistent.
    """
    if threading.current_thread() is not threading.main_thread():
        yield  # only the main thread gets signals
        return
    # A shell that starts something in the background wants it to ignore SIGINT.
    numbers = [
        number
        for number in (signal.SIGINT, signal.SIGTERM)
        if signal.getsignal(number) is not signal.SIG_IGN
    ]
    before = {number: signal.getsignal(number) for number in numbers}

    def stop(number: int, frame: FrameType | None) -> None:
        for each in numbers:
            signal.signal(each, signal.SIG_IGN)
        _interrupted.set()
        raise KeyboardInterrupt

    _interrupted.clear()
    for number in numbers:
        signal.signal(number, stop)
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def raise_if_interrupted() -> None:
    """For loops that wait long: Python drops an exception that a signal raises in a finalizer.

    Raises:
        KeyboardInterrupt: A signal has come.
    """
    if _interrupted.is_set():
        raise KeyboardInterrupt
