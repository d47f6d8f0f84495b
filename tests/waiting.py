"""Waits of tests, each with an end."""

from __future__ import annotations

import time
from collections.abc import Callable

__all__ = ["until"]


def until(is_so: Callable[[], object], timeout_s: float = 30.0, pause_s: float = 0.005) -> None:
    """Wait until something is so; what it asks meanwhile keeps others waiting, hence the pause."""
    end_s = time.monotonic() + timeout_s
    while not is_so():
        assert time.monotonic() < end_s, f"not within {timeout_s:g} s"
        time.sleep(pause_s)
