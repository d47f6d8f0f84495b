"""What systemd is told: that a process serves, that it lives, that it stops.

A datagram to the socket that systemd names in the environment; elsewhere nothing happens. See
sd_notify(3).
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
from collections.abc import Callable

__all__ = ["feed_watchdog", "notify"]


def notify(text: str) -> None:
    """Tell the service manager, if there is one: `READY=1`, `STATUS=standing by`, `STOPPING=1`."""
    address = os.environ.get("NOTIFY_SOCKET", "")
    if not address.startswith(("/", "@")):
        return
    if address.startswith("@"):  # a name without a file
        address = "\0" + address[1:]
    with contextlib.suppress(OSError), socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sender:
        sender.setblocking(False)  # who does not read its messages must not hold us up
        sender.connect(address)
        sender.send(text.encode())


async def feed_watchdog(is_live: Callable[[], bool]) -> None:
    """Say again and again that the process lives, while it does; for ever if that is wanted."""
    interval_us = os.environ.get("WATCHDOG_USEC", "")
    own = os.environ.get("WATCHDOG_PID", str(os.getpid()))
    if not interval_us.isdigit() or own != str(os.getpid()):
        return
    while True:
        if is_live():
            notify("WATCHDOG=1")
        await asyncio.sleep(int(interval_us) / 3e6)
