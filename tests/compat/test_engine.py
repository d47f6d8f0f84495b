"""`mooncake.engine` between two processes; its numbers are those of the package it replaces."""

from __future__ import annotations

import ctypes
import json
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from mooncake import engine as module
from mooncake._ranges import Ranges
from mooncake.engine import TransferEngine, TransferNotify, TransferOpcode
from mooncake_store.errors import NotRegisteredError
from tests.compat.environment import ENVIRONMENT

SIZE = 1 << 20
PATTERN = bytes(range(256)) * (SIZE // 256)
NOBODY = "127.0.0.1:1"


class Peer:
    """A process with an engine of its own."""

    def __init__(self) -> None:
        self.process = subprocess.Popen(
            [sys.executable, str(Path(__file__).with_name("engine_peer.py"))],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
            env=ENVIRONMENT,
        )  # fmt: skip
        told = self.read()
        self.name = f"127.0.0.1:{told['port']}"
        self.address: int = told["address"]
        self.managed: int = told["managed"]

    def read(self) -> dict[str, Any]:
        assert self.process.stdout is not None
        return json.loads(self.process.stdout.readline())

    def ask(self, what: str) -> dict[str, Any]:
        assert self.process.stdin is not None
        self.process.stdin.write(what + "\n")
        self.process.stdin.flush()
        return self.read()

    def memory(self) -> bytes:
        return bytes.fromhex(self.ask("memory")["memory"])

    def end(self) -> None:
        self.process.kill()
        self.process.wait()


@pytest.fixture
def peer() -> Iterator[Peer]:
    peer = Peer()
    yield peer
    peer.end()


@pytest.fixture
def engine() -> TransferEngine:
    engine = TransferEngine()
    assert engine.initialize("localhost", "P2PHANDSHAKE", "rdma", "") == 0
    return engine


class Memory:
    """Memory by address."""

    def __init__(self, size: int = SIZE, fill: bytes = b"\0") -> None:
        self.buffer = ctypes.create_string_buffer(fill * size, size)
        self.address = ctypes.addressof(self.buffer)

    @property
    def bytes(self) -> bytes:
        return self.buffer.raw


def ended(engine: TransferEngine, batch: int) -> int:
    deadline = time.monotonic() + 20
    while (status := engine.transfer_check_status(batch)) == 0:
        assert time.monotonic() < deadline
        time.sleep(0.001)
    return status


def test_bytes_are_read_and_written_in_place(engine: TransferEngine, peer: Peer) -> None:
    here = Memory()
    assert engine.register_memory(here.address, SIZE) == 0
    assert engine.transfer_sync_read(peer.name, here.address, peer.address, SIZE) == 0
    assert here.bytes == PATTERN
    here.buffer[:4] = b"mine"
    assert engine.transfer_sync_write(peer.name, here.address, peer.address + 100, 4) == 0
    assert peer.memory() == PATTERN[:100] + b"mine" + PATTERN[104:]
    assert engine.transfer_sync(peer.name, here.address, peer.managed, 7, TransferOpcode.Read) == 0
    assert here.bytes[:7] == b"managed"
    assert engine.transfer_sync_read(peer.name, here.address, peer.address, 0) == 0


def test_many_ranges_move_at_once(engine: TransferEngine, peer: Peer) -> None:
    here = Memory()
    engine.register_memory(here.address, SIZE)
    offsets = list(range(0, SIZE, 4096))
    lengths = [1000 + at % 7 for at in range(len(offsets))]
    ours = [here.address + at for at in offsets]
    theirs = [peer.address + at for at in reversed(offsets)]
    assert engine.batch_transfer_sync_read(peer.name, ours, theirs, lengths) == 0
    for at, other, length in zip(offsets, reversed(offsets), lengths, strict=True):
        assert here.bytes[at : at + length] == PATTERN[other : other + length]
        assert here.bytes[at + length : at + 4096] == bytes(4096 - length)
    assert engine.batch_transfer_sync_read(peer.name, ours, theirs[1:], lengths) == -1
    assert engine.batch_transfer_sync_read(peer.name, [], [], []) == 0


def test_transfers_go_on_by_themselves(engine: TransferEngine, peer: Peer) -> None:
    here = Memory(fill=b"w")
    engine.register_memory(here.address, SIZE)
    batch = engine.batch_transfer_async_write(
        peer.name, [here.address, here.address + 9], [peer.address, peer.address + 50], [10, 10]
    )
    assert batch > 0
    assert ended(engine, batch) == 1
    assert engine.transfer_check_status(batch) == -1  # its number has no meaning any more
    assert peer.memory()[:61] == b"w" * 10 + PATTERN[10:50] + b"w" * 10 + PATTERN[60:61]
    batches = [
        engine.batch_transfer_async_read(peer.name, [here.address], [peer.address + at], [100])
        for at in range(20)
    ]
    assert engine.get_batch_transfer_status(batches) == 0
    assert engine.get_batch_transfer_status([]) == 0
    single = engine.transfer_submit_write(peer.name, here.address, peer.address, 1)
    assert ended(engine, single) == 1
    wrong = engine.batch_transfer_async_read(peer.name, [here.address], [4096], [10])
    assert ended(engine, wrong) == -1
    wrong = engine.batch_transfer_async_read(peer.name, [here.address], [4096], [10])
    assert engine.get_batch_transfer_status([wrong]) == -1
    assert engine.batch_transfer_async_read(NOBODY, [here.address], [4096], [10]) == 0


def test_messages_come_after_the_bytes(engine: TransferEngine, peer: Peer) -> None:
    here = Memory(fill=b"n")
    engine.register_memory(here.address, SIZE)
    note = TransferNotify("done", "request 7")
    write = TransferOpcode.Write
    assert engine.transfer_sync(peer.name, here.address, peer.address, 4, write, note) == 0
    other = TransferNotify()
    other.name, other.msg = "more", "ü"
    assert (
        engine.batch_transfer_sync(peer.name, [here.address], [peer.address], [4], write, other)
        == 0
    )
    assert peer.ask("notifies")["notifies"] == [["done", "request 7"], ["more", "ü"]]
    assert engine.get_notifies() == []


def test_memory_that_the_peer_registers_later_is_reached(
    engine: TransferEngine, peer: Peer
) -> None:
    here = Memory()
    engine.register_memory(here.address, SIZE)
    assert engine.transfer_sync_read(peer.name, here.address, peer.address, 8) == 0
    told = peer.ask("later")
    assert told["status"] == 0
    assert engine.transfer_sync_read(peer.name, here.address, told["address"], 5) == 0
    assert here.bytes[:5] == b"later"
    assert peer.ask("again") == {"status": 0}
    assert engine.transfer_sync_read(peer.name, here.address, peer.address, 8) == 0
    assert here.bytes[:8] == PATTERN[:8]


def test_memory_that_is_not_registered_here_is_so_for_the_transfer(
    engine: TransferEngine, peer: Peer
) -> None:
    here = Memory(4096)
    assert engine.transfer_sync_read(peer.name, here.address, peer.address, 4096) == 0
    assert here.bytes == PATTERN[:4096]
    batch = engine.batch_transfer_async_read(peer.name, [here.address], [peer.address + 1], [9])
    assert ended(engine, batch) == 1
    assert here.bytes[:9] == PATTERN[1:10]
    assert engine.register_memory(here.address, 4096) == 0  # so nothing has stayed registered


def test_threads_share_unregistered_memory(engine: TransferEngine, peer: Peer) -> None:
    here = Memory()
    failures: list[int] = []

    def read(at: int) -> None:
        for _ in range(30):
            if engine.transfer_sync_read(peer.name, here.address + at, peer.address + at, 5000):
                failures.append(at)

    threads = [threading.Thread(target=read, args=(at * 5000,)) for at in (0, 0, 0, 1, 1, 2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == []
    assert here.bytes[:15_000] == PATTERN[:15_000]
    assert engine.register_memory(here.address, SIZE) == 0


def test_wrong_places_are_refused_and_nothing_is_touched(
    engine: TransferEngine, peer: Peer
) -> None:
    here = Memory()
    engine.register_memory(here.address, SIZE)
    for address, length in ((4096, 64), (peer.address + SIZE - 10, 64)):
        assert engine.transfer_sync_read(peer.name, here.address, address, length) == -1
        assert engine.transfer_sync_write(peer.name, here.address, address, length) == -1
    assert engine.transfer_sync_read(NOBODY, here.address, peer.address, 10) == -1
    assert engine.transfer_sync_read("no such host.invalid:1", here.address, 4096, 10) == -1
    assert engine.transfer_sync_read("127.0.0.1:x", here.address, 4096, 10) == -1
    with pytest.raises(TypeError):
        engine.transfer_sync_read(peer.name, -1, peer.address, 10)
    assert here.bytes == bytes(SIZE)
    assert peer.memory() == PATTERN


def test_a_peer_that_dies_fails_its_transfers_at_once(engine: TransferEngine, peer: Peer) -> None:
    here = Memory()
    engine.register_memory(here.address, SIZE)
    assert engine.transfer_sync_read(peer.name, here.address, peer.address, 10) == 0
    assert engine.send_probe(peer.name) == 0
    peer.end()
    started = time.monotonic()
    assert engine.transfer_sync_read(peer.name, here.address, peer.address, 10) == -1
    assert engine.send_probe(peer.name) == -102
    assert time.monotonic() - started < 5


def test_registering_answers_with_the_known_numbers(engine: TransferEngine) -> None:
    one, two, three = Memory(65536), Memory(65536), Memory(65536)
    assert engine.register_memory(one.address, 65536) == 0
    assert engine.register_memory(one.address, 65536) == -7
    assert engine.register_memory(one.address + 4096, 4096) == -7
    assert engine.register_memory(one.address, 0) == -1
    assert engine.register_memory(4096, 4096) == -1
    assert engine.batch_register_memory([two.address, one.address], [65536, 65536]) == -7
    assert engine.batch_register_memory([two.address, three.address], [65536]) == -1
    assert engine.batch_register_memory([two.address, three.address], [65536, 65536]) == 0
    assert engine.batch_unregister_memory([two.address, three.address]) == 0
    assert engine.unregister_memory(two.address) == -3
    assert engine.unregister_memory(one.address) == 0


def test_managed_memory_is_written_and_read_by_address(engine: TransferEngine) -> None:
    address = engine.allocate_managed_buffer(4096)
    assert address > 0
    assert engine.write_bytes_to_buffer(address, "text", 4) == 0
    assert engine.write_bytes_to_buffer(address + 4, b"\xff\0", 2) == 0
    assert engine.read_bytes_from_buffer(address, 6) == b"text\xff\0"
    assert engine.write_bytes_to_buffer(address, b"short", 6) == -1
    assert engine.write_bytes_to_buffer(4096, b"x", 1) == -1
    with pytest.raises(NotRegisteredError):
        engine.read_bytes_from_buffer(address, 4097)
    assert engine.free_managed_buffer(address, 1) == -1
    assert engine.free_managed_buffer(address, 4096) == 0
    assert engine.free_managed_buffer(address, 4096) == -1


def test_initializing_says_whether_it_listens(engine: TransferEngine) -> None:
    assert engine.get_rpc_port() > 0
    assert engine.initialize("127.0.0.1", "P2PHANDSHAKE", "tcp", "") == 0
    other = TransferEngine()
    assert other.get_rpc_port() == 0
    assert other.initialize("127.0.0.1", "http://127.0.0.1:8080/metadata", "tcp", "") == -1
    assert other.initialize("127.0.0.1", "P2PHANDSHAKE", "ascend", "") == -1
    taken = f"127.0.0.1:{engine.get_rpc_port()}"
    assert other.initialize(taken, "P2PHANDSHAKE", "tcp", "") == -1
    assert other.initialize("192.0.2.1", "P2PHANDSHAKE", "tcp", "") == -1
    assert other.initialize_ext("127.0.0.1", "P2PHANDSHAKE", "tcp", "", "http") == 0
    assert json.loads(other.get_local_topology())


def test_an_engine_that_is_not_initialized_fails_instead_of_crashing() -> None:
    engine = TransferEngine()
    memory = Memory(4096)
    assert engine.register_memory(memory.address, 4096) == -1
    assert engine.transfer_sync_read(NOBODY, memory.address, 4096, 10) == -1
    assert engine.batch_transfer_async_read(NOBODY, [memory.address], [4096], [10]) == 0
    assert engine.transfer_check_status(7) == -1
    assert engine.allocate_managed_buffer(10) == 0
    assert engine.send_probe(NOBODY) < 0
    assert engine.get_first_buffer_address(NOBODY) == 0
    assert engine.warmup_efa_segment(NOBODY) < 0
    with pytest.raises(NotRegisteredError):
        engine.get_engine()
    with pytest.raises(NotImplementedError):
        engine.get_engine_ptr()


def test_first_buffer_of_a_peer(engine: TransferEngine, peer: Peer) -> None:
    assert engine.get_first_buffer_address(peer.name) == peer.address


def test_opcodes_are_what_engines_expect() -> None:
    assert TransferOpcode(1) is module.Write is TransferOpcode.Write
    assert (int(TransferOpcode.Read), [*TransferOpcode.__members__]) == (0, ["Read", "Write"])
    assert TransferOpcode.Write.name == "Write"


def test_ranges_know_what_they_hold() -> None:
    ranges = Ranges([(100, 50), (200, 10)])
    assert ranges.holds(100, 50)
    assert ranges.holds(149, 1)
    assert not ranges.holds(149, 2)
    assert not ranges.holds(99, 2)
    assert ranges.overlap(140, 100)
    assert not ranges.overlap(150, 50)
    assert not ranges.overlap(120, 0)
    ranges.remove(100)
    ranges.remove(100)
    assert (len(ranges), ranges.holds(100, 1)) == (1, False)
