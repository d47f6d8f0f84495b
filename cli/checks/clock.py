"""Is the clock cheap to read, and does somebody keep it right?"""

from __future__ import annotations

import ctypes
import time

from mooncake_store.cli.checks.check import OK, WARN, Check

__all__ = ["clock_check", "is_clock_kept", "measure_clock_ns"]

_STA_UNSYNC = 0x40


def clock_check(source: str, read_ns: float, is_kept: bool | None = None) -> Check:
    """Is reading the clock cheap?  Every call does it a few times.  And is it right?

    Args:
        source: The kernel's clock source.
        read_ns: What one reading takes.
        is_kept: Whether a time service keeps the wall clock; None: not known.
    """
    kept = {True: "kept by a time service", False: "kept by nobody", None: "kept: not known"}
    why = f"clock: {source or 'unknown source'}, {read_ns:.0f} ns a reading, {kept[is_kept]}"
    if read_ns > 1000:
        return Check(
            "clock", WARN, f"{why}: a system call each time, which adds microseconds to every get",
            "cat /sys/devices/system/clocksource/clocksource0/available_clocksource: take tsc",
        )  # fmt: skip
    if is_kept is False:
        return Check(
            "clock", WARN,
            f"{why}: objects do not depend on it, but logs of machines cannot be compared, and "
            "certificates may seem to have ended",
            "start one: systemctl enable --now chrony (or systemd-timesyncd); a container has its "
            "host's",
        )  # fmt: skip
    return Check("clock", OK, why)


def measure_clock_ns() -> float:
    """Return what one reading of the monotonic clock takes here, the interpreter included."""
    best = float("inf")
    for _ in range(5):
        started = time.perf_counter_ns()
        for _ in range(200):
            time.monotonic_ns()
        best = min(best, (time.perf_counter_ns() - started) / 200)
    return best


class _Timex(ctypes.Structure):
    """The beginning of struct timex (adjtimex(2)); the kernel fills some more."""

    _fields_ = (
        ("modes", ctypes.c_uint),
        ("offset", ctypes.c_long),
        ("freq", ctypes.c_long),
        ("maxerror", ctypes.c_long),
        ("esterror", ctypes.c_long),
        ("status", ctypes.c_int),
        ("rest", ctypes.c_char * 256),
    )


def is_clock_kept() -> bool | None:
    """Return whether a time service keeps the wall clock; None where that cannot be asked."""
    state = _Timex()  # modes 0: nothing is set
    try:
        answer = ctypes.CDLL(None, use_errno=True).adjtimex(ctypes.byref(state))
    except (OSError, AttributeError):
        return None
    return None if answer < 0 else not state.status & _STA_UNSYNC
