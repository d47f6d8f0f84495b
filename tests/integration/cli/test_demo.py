"""The demo does its job, checks bytes, and leaves nothing behind, however it ends."""

from __future__ import annotations

import shutil
import signal
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from mooncake_store import Client
from mooncake_store.cli.demo_worker import Blocks, Replayer, WrongBytesError
from mooncake_store.cli.trace_file import Request, read_trace

pytestmark = pytest.mark.timeout(180)

ARGUMENTS = ["demo", "--block-bytes", "16KiB", "--json"]


def descendants(pid: int) -> set[int]:
    """Every process below one."""
    found: set[int] = set()
    pending = [pid]
    while pending:
        for task in Path(f"/proc/{pending.pop()}/task").glob("*/children"):
            new = {int(word) for word in task.read_text().split()} - found
            found |= new
            pending += new
    return found


def segment_folder(pid: int) -> Path | None:
    """Where the servers of a demo keep their memory, once there is one."""
    for child in descendants(pid):
        with suppress(OSError):
            words = Path(f"/proc/{child}/cmdline").read_text().split("\0")
            if "--segment-dir" in words:
                return Path(words[words.index("--segment-dir") + 1])
    return None


@pytest.fixture
def demo(home: Any, monkeypatch: pytest.MonkeyPatch, until: Callable[..., None]) -> Any:
    """Start a demo; returns the process and the folder of its servers' memory."""

    def start(requests: int) -> tuple[Any, Path]:
        monkeypatch.setenv("TMPDIR", str(home.runtime))  # seen by what home starts
        process = home.start(*ARGUMENTS, "--requests", str(requests))
        until(lambda: segment_folder(process.pid) is not None, "a server", 60.0)
        folder = segment_folder(process.pid)
        assert folder is not None and folder.parent == Path("/dev/shm")
        return process, folder

    return start


def left_in(home: Any) -> list[Path]:
    """What is left of sockets, logs and temporary files; the runtime folder itself may stay."""
    return [path for path in home.runtime.rglob("*") if path != home.runtime / "mooncake-store"]


def test_it_replays_checks_and_leaves_nothing(home: Any, demo: Any) -> None:
    process, folder = demo(12)
    result = process.end(None, timeout_s=150.0)
    assert result.code == 0, result.err
    document = result.json("demo")
    asked = sum(len(request.hash_ids) for request in read_trace(limit=12))
    assert document["requests"] == 12
    assert document["blocks"] == asked
    assert set(document["paths"]) == {"local host", "TCP"}
    read = sum(path["bytes_read"] for path in document["paths"].values())
    hits = sum(path["hits"] for path in document["paths"].values())
    assert document["bytes_checked"] == read == hits * 16384
    assert 0 < document["hit_ratio"] == hits / asked < 1
    assert left_in(home) == [] and not folder.exists()


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_interrupted_it_leaves_nothing(
    number: int,
    home: Any,
    demo: Any,
    until: Callable[..., None],
    alive: Callable[[int], bool],
) -> None:
    process, folder = demo(1000)
    # A master, two servers and two clients.
    until(lambda: len(descendants(process.pid)) >= 5, "all processes", 60.0)
    pids = descendants(process.pid)
    result = process.end(number)
    assert result.code == 130, result.err
    assert result.out == b"" and "Traceback" not in result.err
    assert not any(alive(pid) for pid in pids)
    assert left_in(home) == [] and not folder.exists()


def test_killed_it_leaves_no_process_and_no_memory(
    demo: Any, until: Callable[..., None], alive: Callable[[int], bool]
) -> None:
    process, folder = demo(1000)
    until(lambda: len(descendants(process.pid)) >= 5, "all processes", 60.0)
    pids = descendants(process.pid)
    process.end(signal.SIGKILL)
    until(lambda: not any(alive(pid) for pid in pids), "all ended", 30.0)
    held = [file for file in folder.rglob("*") if file.is_file() and file.stat().st_size > 4096]
    assert held == []  # a killed process cannot remove the empty folders
    shutil.rmtree(folder)


def test_wrong_bytes_are_noticed(running: Any) -> None:
    blocks = Blocks(8192)
    request = Request(timestamp_ms=0, input_length=0, output_length=0, hash_ids=(901, 902, 903))
    with Client(running.master, strict=True) as store:
        replayer = Replayer(store, blocks)
        replayer.replay(request)
        replayer.replay(request)
        assert (replayer.asked, replayer.hits, replayer.reads.moved_bytes) == (6, 3, 3 * 8192)
        store.upsert(blocks.key(902), b"x" * 8192)
        with pytest.raises(WrongBytesError, match="902"):
            replayer.replay(request)
        store.remove([blocks.key(hash_id) for hash_id in request.hash_ids])
