"""Ctrl-C and SIGTERM: they end a command once, and it cleans up in peace."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

__all__ = ["interruptible", "raise_if_interrupted", "soon_interrupted"]

_GRACE_S = 1.0

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


@contextmanager
def soon_interrupted() -> Iterator[None]:
    """Around calls that may block in C until their deadline, with nothing to clean up after them.

    Python runs a signal's handler when C returns.  The kernel's part of it writes the number into a
    pipe at once; a thread reads it, gives Python a second, and then ends the process.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    read_end, write_end = os.pipe()
    os.set_blocking(write_end, False)
    has_ended = threading.Event()

    def watch() -> None:
        while number := os.read(read_end, 1):  # empty: the block has ended
            if number[0] in (signal.SIGINT, signal.SIGTERM) and not has_ended.wait(_GRACE_S):
                os._exit(128 + signal.SIGINT)

    thread = threading.Thread(target=watch, daemon=True)
    before = signal.set_wakeup_fd(write_end, warn_on_full_buffer=False)
    thread.start()
    try:
        yield
    finally:
        has_ended.set()
        signal.set_wakeup_fd(before)
        os.close(write_end)
        thread.join()
        os.close(read_end)


def raise_if_interrupted() -> None:
    """For loops that wait long: Python drops an exception that a signal raises in a finalizer.

    Raises:
        KeyboardInterrupt: A signal has come.
    """
    if _interrupted.is_set():
        raise KeyboardInterrupt
