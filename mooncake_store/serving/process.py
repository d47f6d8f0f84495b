"""A process that serves until it is told to stop."""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import os
import resource
import signal
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from mooncake_store.errors import ConfigError
from mooncake_store.logs import log_event
from mooncake_store.serving.notify import feed_watchdog, notify

__all__ = ["Check", "Process", "raise_descriptor_limit", "run", "write_ready_file"]


@dataclass(frozen=True, slots=True)
class Check:
    """One thing that has to be so for a process to serve."""

    name: str
    is_ok: bool
    reason: str


class Process(Protocol):
    """What `run` runs."""

    ended: asyncio.Event
    """Set when it cannot go on by itself."""

    async def start(self) -> Any:
        """Serve; return where."""
        ...

    def is_live(self) -> bool:
        """Whether it does something still: if not, a service manager starts it again."""
        ...

    async def stop(self) -> None:
        """End everything. Can be called at any point after `start` was."""
        ...


async def run(
    process: Process,
    *,
    ready_file: Path | None,
    on_ready: Callable[[Any], None] | None,
    describe: Callable[[Any], Mapping[str, Any]],
) -> bool:
    """Run a process until SIGTERM, SIGINT, or its own end.

    Args:
        process: Not started yet.
        ready_file: Written, with what `describe` makes of its endpoints as JSON, once it serves;
            removed at the end.
        on_ready: Called with its endpoints at the same moment.
        describe: From endpoints to a JSON document.

    Returns:
        Whether it was told to stop; else it has ended by itself.

    Raises:
        StoreError: It cannot start.
    """
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    stopping = asyncio.ensure_future(stop.wait())
    starting = asyncio.ensure_future(process.start())
    watchdog = asyncio.ensure_future(feed_watchdog(process.is_live))
    try:
        return await _run(process, starting, stopping, stop, ready_file, on_ready, describe)
    finally:
        watchdog.cancel()


async def _run(
    process: Process,
    starting: asyncio.Future[Any],
    stopping: asyncio.Future[Any],
    stop: asyncio.Event,
    ready_file: Path | None,
    on_ready: Callable[[Any], None] | None,
    describe: Callable[[Any], Mapping[str, Any]],
) -> bool:
    await asyncio.wait([starting, stopping], return_when=asyncio.FIRST_COMPLETED)
    if not starting.done():  # it may be waiting for ever, as a standby does
        starting.cancel()
        await asyncio.wait([starting])
        if starting.cancelled() or starting.exception() is not None:
            return True
        await process.stop()
        return True
    try:
        endpoints = starting.result()
    except BaseException:
        stopping.cancel()
        raise
    try:
        if ready_file is not None:
            write_ready_file(ready_file, describe(endpoints))
        if on_ready is not None:
            on_ready(endpoints)
        notify("READY=1\nSTATUS=serving")
        ending = asyncio.ensure_future(process.ended.wait())
        await asyncio.wait([stopping, ending], return_when=asyncio.FIRST_COMPLETED)
        ending.cancel()
    finally:
        notify("STOPPING=1" if stop.is_set() else "STATUS=starting again")
        if ready_file is not None:
            ready_file.unlink(missing_ok=True)
        await process.stop()
        stopping.cancel()
    return stop.is_set()


def write_ready_file(path: Path, document: Mapping[str, Any]) -> None:
    """Write a JSON document so that whoever waits for the file reads all of it."""
    draft = path.with_name(f"{path.name}.{os.getpid()}.new")
    try:
        draft.write_text(json.dumps(document) + "\n")
        os.replace(draft, path)
    except OSError as error:
        raise ConfigError(f"{path} cannot be written: {error.strerror}", cause=error) from error


def raise_descriptor_limit(wanted: int, logger: logging.Logger) -> None:
    """Let this process have so many descriptors, or as many as it may, which the log then says.

    It warns when they are less than half.  `wanted` is for more connections than most ever have:
    what comes close to it needs nobody's attention.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY or soft >= wanted:
        return
    limit = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
    if soft < limit:
        with contextlib.suppress(ValueError, OSError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (limit, hard))
    soft = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    if soft < wanted:
        log_event(
            logger,
            logging.WARNING if soft < wanted // 2 else logging.INFO,
            "too_few_descriptors",
            wanted=wanted,
            limit=soft,
            hint="raise the hard limit of open files (systemd: LimitNOFILE=65536; ulimit -Hn), "
            "or set connections_max lower",
        )
