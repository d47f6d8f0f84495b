"""Two real processes and every way between them, with bytes that prove where they come from."""

from __future__ import annotations

import asyncio
import contextlib
import importlib.util
import json
import os
import select
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from mooncake_store.errors import (
    ClosedError,
    NotRegisteredError,
    TransferTimeoutError,
    UnavailableError,
)
from mooncake_store.protocol.frames import Regions
from mooncake_store.protocol.methods import Method
from mooncake_store.transfer_engine.engine import (
    EngineConfig,
    Segment,
    TransferEngine,
    TransferRequest,
    TransferState,
)

PEER = Path(__file__).with_name("engine_peer.py")
MIB = 1 << 20

_spec = importlib.util.spec_from_file_location("engine_peer", PEER)
assert _spec is not None and _spec.loader is not None
_peer_module = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(_peer_module)
proof = _peer_module.proof


@dataclass
class Peer:
    process: subprocess.Popen[str]
    address: str
    region: int

    def freeze(self) -> None:
        """Stop the process, and return when it has stopped."""
        self.process.send_signal(signal.SIGSTOP)
        stat = Path(f"/proc/{self.process.pid}/stat")
        while stat.read_text().rpartition(")")[2].split()[0] != "T":
            time.sleep(0.001)

    def tell(self, command: str) -> Any:
        assert self.process.stdin is not None and self.process.stdout is not None
        self.process.stdin.write(command + "\n")
        self.process.stdin.flush()
        return json.loads(self.process.stdout.readline())


@contextlib.contextmanager
def start_peer(
    tmp_path: Path,
    *,
    address: str = "127.0.0.1",
    length: int = 4 * MIB,
    kind: str = "private",
    place: str = "remote",
) -> Iterator[Peer]:
    process = subprocess.Popen(
        [sys.executable, str(PEER), address, str(length), kind, place],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "XDG_RUNTIME_DIR": str(tmp_path)},
    )
    assert process.stdout is not None
    try:
        yield Peer(process, **json.loads(process.stdout.readline()))
    finally:
        with contextlib.suppress(ProcessLookupError):
            process.send_signal(signal.SIGCONT)
        with contextlib.suppress(BrokenPipeError):
            process.stdin.close()
        try:
            process.wait(10)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        process.stdout.close()


@pytest.fixture
def engine() -> Iterator[TransferEngine]:
    with TransferEngine(EngineConfig(io_threads=0)) as made:
        yield made


WAYS = [
    pytest.param("127.0.0.1", "private", "remote", False, id="tcp-v4"),
    pytest.param("::1", "private", "remote", False, id="tcp-v6"),
    pytest.param("127.0.0.1", "private", "local", False, id="unix-private"),
    pytest.param("127.0.0.1", "shared", "local", False, id="unix-mapped"),
    pytest.param("127.0.0.1", "private", "local", True, id="unix-lent"),
    pytest.param("::1", "shared", "local", True, id="unix-mapped-and-lent"),
]


@pytest.mark.parametrize(("address", "kind", "place", "lends"), WAYS)
def test_every_byte_arrives(
    engine: TransferEngine, tmp_path: Path, address: str, kind: str, place: str, lends: bool
) -> None:
    length = 4 * MIB
    with start_peer(tmp_path, address=address, kind=kind, place=place, length=length) as peer:
        shared = engine.allocate_shared(length) if lends else None
        memory: Any = shared.buffer if shared is not None else bytearray(length)
        base = engine.register_local_memory(memory)
        segment = engine.open_segment(peer.address)
        assert [(r.address, r.length) for r in segment.regions()] == [(peer.region, length)]

        # All of it in one request, then in many small ones of odd sizes.
        engine.transfer([TransferRequest.read(segment, base, peer.region, length)])
        assert bytes(memory) == proof(1, 0, length)
        memory[:] = bytes(length)
        pieces = [(offset, min(3001, 700_000 - offset)) for offset in range(0, 700_000, 3001)]
        engine.transfer(
            [
                TransferRequest.read(segment, base + offset, peer.region + offset, size)
                for offset, size in pieces
            ]
        )
        assert bytes(memory[:700_000]) == proof(1, 0, 700_000)
        assert bytes(memory[700_000:]) == bytes(length - 700_000)

        memory[:] = proof(2, 0, length)
        engine.transfer([TransferRequest.write(segment, base, peer.region, length)])
        assert peer.tell(f"check 2 0 {length}")
        memory[:] = proof(3, 0, length)
        engine.transfer(
            [
                TransferRequest.write(segment, base + offset, peer.region + offset, size)
                for offset, size in pieces
            ]
        )
        assert peer.tell("check 3 0 700000")
        assert peer.tell(f"check 2 700000 {length - 700_000}")
        engine.unregister_local_memory(base)
        if shared is not None:
            del memory
            shared.close()


def test_threads_that_open_an_address_at_once_have_one_segment(tmp_path: Path) -> None:
    """Each that closes it ends its own use of it, and no other's."""
    threads = 8
    with start_peer(tmp_path, place="local") as peer, ThreadPoolExecutor(threads) as pool:
        for _ in range(10):
            with TransferEngine(EngineConfig(io_threads=0)) as engine:
                start = threading.Barrier(threads)

                def open_it(engine: TransferEngine = engine, start: Any = start) -> Any:
                    start.wait(10.0)
                    return engine.open_segment(peer.address)

                opening = [pool.submit(open_it) for _ in range(threads)]
                segments = [each.result() for each in opening]
                assert len({segment.handle for segment in segments}) == 1
                for segment in segments[1:]:
                    segment.close()
                memory = bytearray(4096)
                base = engine.register_local_memory(memory)
                engine.transfer([TransferRequest.read(segments[0], base, peer.region, 4096)])
                assert bytes(memory) == proof(1, 0, 4096)
                segments[0].close()
                with pytest.raises(NotRegisteredError):
                    engine.transfer([TransferRequest.read(segments[0], base, peer.region, 4096)])


@pytest.mark.parametrize("kind", ["private", "shared"])
def test_addresses_outside_are_errors_and_harm_nobody(
    engine: TransferEngine, tmp_path: Path, kind: str
) -> None:
    with start_peer(tmp_path, kind=kind, place="local") as peer:
        memory = bytearray(8192)
        base = engine.register_local_memory(memory)
        segment = engine.open_segment(peer.address)
        end = peer.region + 4 * MIB
        for bad in (
            TransferRequest.read(segment, base, end, 1),
            TransferRequest.read(segment, base, end - 10, 11),
            TransferRequest.read(segment, base, peer.region - 1, 2),
            TransferRequest.read(segment, base, 0, 100),
            TransferRequest.write(segment, base, end - 4096, 4097),
            TransferRequest.write(segment, base, 2**64 - 4096, 100),
            TransferRequest.read(segment, base + 8192, peer.region, 1),
            TransferRequest.read(segment, base + 8000, peer.region, 193),
            TransferRequest.read(segment, 4096, peer.region, 1),
        ):
            with pytest.raises(NotRegisteredError):
                engine.transfer([bad], timeout_s=5)
        assert memory == bytes(8192)
        assert peer.tell(f"check 1 0 {4 * MIB}")
        peer.tell("unregister")
        with pytest.raises(NotRegisteredError):
            engine.transfer([TransferRequest.read(segment, base, peer.region, 1)], timeout_s=5)
        peer.tell("register")
        engine.transfer([TransferRequest.read(segment, base, peer.region, 8192)], timeout_s=5)
        assert memory == proof(1, 0, 8192)


def test_killed_peer_is_an_error_soon(engine: TransferEngine, tmp_path: Path) -> None:
    with start_peer(tmp_path, length=64 * MIB) as peer:
        memory = bytearray(64 * MIB)
        base = engine.register_local_memory(memory)
        segment = engine.open_segment(peer.address)
        batch = engine.allocate_batch_id(64)
        requests = [
            TransferRequest.read(segment, base + i * MIB, peer.region + i * MIB, MIB)
            for i in range(64)
        ]
        peer.freeze()  # so that the requests are on their way
        engine.submit_transfer(batch, requests, timeout_s=30)
        assert not engine.wait(batch, timeout_s=0.1)
        start = time.monotonic()
        peer.process.kill()
        assert engine.wait(batch, timeout_s=20)
        assert time.monotonic() - start < 10
        states = {engine.get_transfer_status(batch, i).state for i in range(64)}
        assert states == {TransferState.FAILED}
        engine.free_batch_id(batch)
        with pytest.raises(UnavailableError):
            engine.transfer(requests[:1], timeout_s=5)


@pytest.mark.parametrize("place", ["remote", "local"])
def test_frozen_peer_costs_the_deadline_and_touches_nothing_later(
    engine: TransferEngine, tmp_path: Path, place: str
) -> None:
    with start_peer(tmp_path, place=place) as peer:
        memory = bytearray(4 * MIB)
        base = engine.register_local_memory(memory)
        segment = engine.open_segment(peer.address)
        engine.transfer([TransferRequest.read(segment, base, peer.region, 4096)])
        peer.freeze()
        for make in (TransferRequest.read, TransferRequest.write):
            start = time.monotonic()
            with pytest.raises(TransferTimeoutError):
                engine.transfer([make(segment, base, peer.region, 4 * MIB)], timeout_s=0.5)
            assert 0.4 < time.monotonic() - start < 4
        memory[:] = proof(7, 0, 4 * MIB)
        peer.process.send_signal(signal.SIGCONT)
        time.sleep(0.3)  # for a late answer, if there were one
        assert memory == proof(7, 0, 4 * MIB)
        engine.transfer([TransferRequest.write(segment, base, peer.region, 4 * MIB)])
        assert peer.tell(f"check 7 0 {4 * MIB}")
        memory[:] = bytes(4 * MIB)
        engine.transfer([TransferRequest.read(segment, base, peer.region, 4 * MIB)])
        assert memory == proof(7, 0, 4 * MIB)


def test_cancel_ends_requests_to_a_frozen_peer(engine: TransferEngine, tmp_path: Path) -> None:
    with start_peer(tmp_path) as peer:
        memory = bytearray(MIB)
        base = engine.register_local_memory(memory)
        segment = engine.open_segment(peer.address)
        peer.freeze()
        batch = engine.allocate_batch_id(2)
        engine.submit_transfer(
            batch,
            [
                TransferRequest.read(segment, base, peer.region, 1000),
                TransferRequest.write(segment, base + 2000, peer.region, 1000),
            ],
            timeout_s=60,
        )
        assert not engine.wait(batch, timeout_s=0.1)
        with pytest.raises(ValueError, match="run"):
            engine.free_batch_id(batch)
        with pytest.raises(ValueError, match="use the memory"):
            engine.unregister_local_memory(base)
        engine.cancel(batch)
        assert engine.wait(batch, timeout_s=5)
        for index in range(2):
            assert engine.get_transfer_status(batch, index).state == TransferState.CANCELLED
        engine.unregister_local_memory(base)
        engine.free_batch_id(batch)


def test_asyncio_waits_on_the_eventfd_without_blocking_the_loop(
    engine: TransferEngine, tmp_path: Path
) -> None:
    async def move(segment: Segment, base: int, peer: Peer) -> int:
        ticks = 0
        is_over = False

        async def tick() -> None:
            nonlocal ticks
            while not is_over:
                ticks += 1
                await asyncio.sleep(0.005)

        ticker = asyncio.create_task(tick())
        batch = engine.allocate_batch_id(1)
        request = TransferRequest.read(segment, base, peer.region, 4 * MIB)
        engine.submit_transfer(batch, [request])
        assert await engine.wait_async(batch, timeout_s=20)
        assert engine.get_transfer_status(batch, 0).state == TransferState.COMPLETED
        engine.free_batch_id(batch)

        peer.freeze()
        slow = engine.allocate_batch_id(1)
        engine.submit_transfer(slow, [request], timeout_s=20)
        before = ticks
        assert not await engine.wait_async(slow, timeout_s=0.3)
        assert ticks - before > 10
        peer.process.send_signal(signal.SIGCONT)
        assert await engine.wait_async(slow, timeout_s=20)
        is_over = True
        await ticker
        return int(engine.get_transfer_status(slow, 0).state)

    with start_peer(tmp_path) as peer:
        memory = bytearray(4 * MIB)
        base = engine.register_local_memory(memory)
        segment = engine.open_segment(peer.address)
        assert asyncio.run(move(segment, base, peer)) == TransferState.COMPLETED
        assert memory == proof(1, 0, 4 * MIB)


def test_restarted_peer_is_found_and_never_mistaken(engine: TransferEngine, tmp_path: Path) -> None:
    with start_peer(tmp_path) as peer:
        memory = bytearray(4096)
        base = engine.register_local_memory(memory)
        segment = engine.open_segment(peer.address)
        engine.transfer([TransferRequest.read(segment, base, peer.region, 4096)])
        peer.process.kill()
        peer.process.wait()
        port = int(peer.address.rpartition(":")[2])
        with TransferEngine() as other:
            fresh = bytearray(proof(9, 0, 4096))
            address = other.register_local_memory(fresh)
            other.listen("127.0.0.1", port, local=False)
            memory[:] = bytes(4096)
            with pytest.raises(NotRegisteredError):
                engine.transfer([TransferRequest.read(segment, base, peer.region, 4096)])
            assert memory == bytes(4096)
            engine.transfer([TransferRequest.read(segment, base, address, 4096)])
            assert memory == fresh


def test_messages_between_engines(engine: TransferEngine, tmp_path: Path) -> None:
    with start_peer(tmp_path) as peer:
        segment = engine.open_segment(peer.address)
        engine.send_notify(segment, "prefill", "done: ß")
        engine.send_notify(segment, "empty", "")
        engine.send_notify(segment, "large", "x" * 100_000)
        assert peer.tell("notes") == [
            ["prefill", "done: ß"],
            ["empty", ""],
            ["large", "x" * 100_000],
        ]
        assert peer.tell("notes") == []
        answer = engine.call(peer.address, Method.OPEN_SEGMENT)
        assert [region.address for region in Regions.decode(answer.body).regions] == [peer.region]
        assert engine.call(peer.address, Method.PING).status == 0
        assert engine.call(peer.address, 0x7F).status != 0
    with TransferEngine() as receiver:
        listening = receiver.listen()
        poll = select.poll()
        poll.register(receiver.notify_fileno(), select.POLLIN)
        assert poll.poll(0) == []
        own = engine.open_segment(listening)
        engine.send_notify(own, "n", "m")
        assert poll.poll(5000)
        note = receiver.receive_notify()
        assert note is not None and (note.name, note.message) == ("n", "m")
        assert poll.poll(0) == [] and receiver.receive_notify() is None


def test_engine_refuses_to_work_after_a_fork(engine: TransferEngine) -> None:
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            engine.allocate_batch_id(1)
            os.write(write, b"worked")
        except ClosedError:
            os.write(write, b"refused")
        finally:
            os._exit(0)
    os.close(write)
    assert os.read(read, 100) == b"refused"
    os.close(read)
    os.waitpid(child, 0)
    assert engine.allocate_batch_id(1) > 0
