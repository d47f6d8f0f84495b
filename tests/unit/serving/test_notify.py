"""What systemd is told."""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from mooncake_store.serving.notify import feed_watchdog, notify


@pytest.fixture(params=["file", "abstract"])
def manager(
    request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[socket.socket]:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as listener:
        name = f"{tmp_path}/notify"
        listener.bind(name if request.param == "file" else "\0" + name)
        listener.settimeout(5.0)
        monkeypatch.setenv("NOTIFY_SOCKET", name if request.param == "file" else f"@{name}")
        yield listener


def test_the_manager_is_told(manager: socket.socket) -> None:
    notify("READY=1\nSTATUS=serving")
    assert manager.recv(100) == b"READY=1\nSTATUS=serving"


@pytest.mark.parametrize("address", ["", "/nowhere/notify", "relative", "@"])
def test_nobody_to_tell_is_no_error(address: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NOTIFY_SOCKET", address)
    notify("READY=1")


def test_the_watchdog_is_fed_while_the_process_lives(
    manager: socket.socket, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WATCHDOG_USEC", "30000")
    monkeypatch.setenv("WATCHDOG_PID", str(os.getpid()))
    answers = [True, True, False]

    def is_live() -> bool:
        return answers.pop(0) if answers else False

    async def feed() -> None:
        with contextlib.suppress(asyncio.TimeoutError):
            await asyncio.wait_for(feed_watchdog(is_live), 0.3)

    asyncio.run(feed())
    assert not answers
    assert [manager.recv(100) for _ in range(2)] == [b"WATCHDOG=1"] * 2
    manager.setblocking(False)
    with pytest.raises(BlockingIOError):
        manager.recv(100)


def test_without_a_watchdog_nothing_is_fed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("WATCHDOG_USEC", raising=False)
    asyncio.run(asyncio.wait_for(feed_watchdog(lambda: True), 1.0))
    monkeypatch.setenv("WATCHDOG_USEC", "30000")
    monkeypatch.setenv("WATCHDOG_PID", "1")  # another process's
    asyncio.run(asyncio.wait_for(feed_watchdog(lambda: True), 1.0))
