"""The Python face of the engine: its arguments, its errors, what it keeps alive."""

from __future__ import annotations

import ctypes
import gc
import mmap
import os
from collections.abc import Iterator
from dataclasses import replace
from ipaddress import ip_interface
from pathlib import Path

import pytest

from mooncake_store._native import ffi, lib
from mooncake_store.errors import (
    ClosedError,
    LimitError,
    NotRegisteredError,
    RequestError,
    Status,
    UnavailableError,
)
from mooncake_store.transfer_engine.engine import (
    EngineConfig,
    Opcode,
    TransferEngine,
    TransferRequest,
    TransferState,
)
from mooncake_store.transfer_engine.topology import Nic, NicPreference, Topology


@pytest.fixture
def engine(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[TransferEngine]:
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    with TransferEngine() as made:
        yield made


def test_numbers_are_those_of_c() -> None:
    for state in TransferState:
        assert getattr(lib, f"TE_{state.name}") == state
    for opcode in Opcode:
        assert getattr(lib, f"TE_{opcode.name}") == opcode
    assert ffi.sizeof("te_transfer_request") == 32


def test_final_states_are_those_in_which_nothing_moves() -> None:
    assert [state.name for state in TransferState if not state.is_final] == ["WAITING", "PENDING"]


def test_registered_buffer_lives_until_it_is_unregistered(engine: TransferEngine) -> None:
    buffer = bytearray(100)
    address = engine.register_local_memory(buffer)
    with pytest.raises(BufferError):
        buffer.extend(b"x")  # pinned
    del buffer
    gc.collect()
    engine.unregister_local_memory(address)
    with pytest.raises(NotRegisteredError):
        engine.unregister_local_memory(address)


def test_unregister_takes_the_buffer_itself(engine: TransferEngine) -> None:
    buffer = bytearray(100)
    engine.register_local_memory(buffer, location="cpu:0")
    engine.unregister_local_memory(buffer)
    buffer.extend(b"x")


def test_registering_refuses_what_makes_no_sense(engine: TransferEngine) -> None:
    buffer = bytearray(100)
    address = engine.register_local_memory(buffer, 50)
    with pytest.raises(RequestError, match="overlap"):
        engine.register_local_memory(buffer)
    with pytest.raises(RequestError, match="overlap"):
        engine.register_local_memory(address + 49, 10)
    with pytest.raises(RequestError, match="location"):
        engine.register_local_memory(bytearray(10), location="gpu")
    with pytest.raises(RequestError, match="needs a length"):
        engine.register_local_memory(address)
    with pytest.raises(RequestError, match="has 100 bytes"):
        engine.register_local_memory(buffer, 101)
    with pytest.raises(RequestError, match="contiguous"):
        engine.register_local_memory(memoryview(bytearray(10))[::2])
    with pytest.raises(RequestError, match="contiguous"):
        engine.register_local_memory("text")
    with pytest.raises(NotRegisteredError, match="not mapped"):
        engine.register_local_memory(4096, 100)


def test_memory_that_only_a_device_reaches_is_refused(engine: TransferEngine) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    libc.mmap.restype = ctypes.c_void_p
    libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, *[ctypes.c_int] * 3, ctypes.c_long]
    libc.munmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t]
    # As a GPU's driver keeps addresses free for its memory: taken, and nothing to be read there.
    address = libc.mmap(None, 65536, 0, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS, -1, 0)
    try:
        with pytest.raises(NotRegisteredError, match="through host memory"):
            engine.register_local_memory(address, 65536, location="cuda:0")
        with pytest.raises(NotRegisteredError) as raised:
            engine.register_local_memory(address, 65536, location="cpu:0")
        assert "host memory" not in str(raised.value)
    finally:
        libc.munmap(address, 65536)


def test_device_memory_needs_a_nic(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MOONCAKE_STORE_RDMA", "0")
    descriptor = os.memfd_create("device")
    try:
        with TransferEngine() as engine:
            with pytest.raises(NotRegisteredError, match="there is no RDMA NIC"):
                engine.register_device_memory(1 << 40, 65536, descriptor, location="cuda:0")
            with pytest.raises(RequestError, match="agree within a page"):
                engine.register_device_memory((1 << 40) + 1, 65536, descriptor)
            with pytest.raises(RequestError, match="no such range"):
                engine.register_device_memory(1 << 40, 65536, -1)
            with pytest.raises(RequestError, match="-1 is no address"):
                engine.register_device_memory(-1, 65536, descriptor)
            with pytest.raises(NotRegisteredError):
                engine.unregister_local_memory(1 << 40)
    finally:
        os.close(descriptor)


def test_read_only_memory_is_a_source_only(engine: TransferEngine, tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"source" * 1000)
    with path.open("rb") as file, mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ) as mapped:
        address = engine.register_local_memory(mapped)
        segment = engine.open_segment(engine.listen())
        batch = engine.allocate_batch_id(1)
        engine.submit_transfer(batch, [TransferRequest(Opcode.READ, segment, address, address, 10)])
        assert engine.wait(batch)
        assert engine.get_transfer_status(batch, 0).status == Status.REFUSED
        target = bytearray(6000)
        engine.register_local_memory(target)
        engine.transfer([TransferRequest.read(segment, target, address)])
        assert target == b"source" * 1000
        segment.close()
        engine.unregister_local_memory(address)


def test_shared_memory_is_memory(engine: TransferEngine) -> None:
    with engine.allocate_shared(10_000) as shared:
        assert len(shared.buffer) == 10_000 and bytes(shared.buffer) == bytes(10_000)
        shared.buffer[5:8] = b"abc"
        view = shared.buffer[4:]
        assert bytes(view[:5]) == b"\0abc\0"
        engine.register_local_memory(shared.buffer)
    with pytest.raises(ValueError, match="released"):
        shared.buffer[0]
    shared.close()  # again: nothing
    assert bytes(view[:5]) == b"\0abc\0"  # a view keeps the memory
    del view


def shared_memory_bytes() -> int:
    """Return how much memory of memfds this process has mapped."""
    lines = Path("/proc/self/maps").read_text().splitlines()
    ranges = [line.split()[0].split("-") for line in lines if "memfd:mooncake-store " in line]
    return sum(int(end, 16) - int(start, 16) for start, end in ranges)


def test_shared_memory_goes_back_with_its_last_view(engine: TransferEngine) -> None:
    before = shared_memory_bytes()
    shared = engine.allocate_shared(1 << 20)
    engine.register_local_memory(shared.buffer)
    view = shared.buffer[10:]
    assert shared_memory_bytes() == before + (1 << 20)
    shared.close()
    del shared
    gc.collect()
    assert shared_memory_bytes() == before + (1 << 20)
    del view
    gc.collect()
    assert shared_memory_bytes() == before


def test_shared_memory_outlives_its_engine() -> None:
    engine = TransferEngine(EngineConfig(io_threads=0))
    before = shared_memory_bytes()
    shared = engine.allocate_shared(1 << 20)
    shared.buffer[:] = bytes([7]) * (1 << 20)
    engine.close()
    assert shared.buffer[-1] == 7
    shared.close()
    del shared
    gc.collect()
    assert shared_memory_bytes() == before


def test_batches(engine: TransferEngine) -> None:
    batch = engine.allocate_batch_id(2)
    segment = engine.open_segment(engine.listen())
    nowhere = TransferRequest(Opcode.READ, segment, 4096, 4096, 1)
    assert engine.wait(batch, timeout_s=0)  # nothing runs
    engine.submit_transfer(batch, [nowhere, nowhere])
    with pytest.raises(LimitError, match="no room"):
        engine.submit_transfer(batch, [nowhere])
    assert engine.wait(batch)
    status = engine.get_transfer_status(batch, 1)
    assert (status.state, status.status, status.bytes) == (
        TransferState.FAILED,
        Status.NOT_REGISTERED,
        0,
    )
    with pytest.raises(NotRegisteredError):
        engine.get_transfer_status(batch, 2)
    descriptor = engine.fileno(batch)
    assert os.read(descriptor, 8)
    engine.free_batch_id(batch)
    for call in (engine.free_batch_id, engine.cancel, engine.wait, engine.fileno):
        with pytest.raises(NotRegisteredError):
            call(batch)
    with pytest.raises(RequestError):
        engine.allocate_batch_id(0)
    with pytest.raises(RequestError, match="timeout_s"):
        engine.wait(batch, timeout_s=-1)
    with pytest.raises(RequestError, match="timeout_s"):
        engine.wait(batch, timeout_s=float("nan"))


def test_transfer_says_what_failed_and_where(engine: TransferEngine) -> None:
    address = engine.listen()
    segment = engine.open_segment(address)
    engine.transfer([])
    with pytest.raises(NotRegisteredError) as raised:
        engine.transfer([TransferRequest(Opcode.WRITE, segment, 4096, 0x1234, 7)])
    assert raised.value.node == address and raised.value.stage == "transfer"
    assert "WRITE of 7 bytes at 0x1234" in str(raised.value)


def test_open_segment_says_why_it_cannot(engine: TransferEngine) -> None:
    with pytest.raises(UnavailableError) as raised:
        engine.open_segment("127.0.0.1:1", timeout_s=2)
    assert raised.value.node == "127.0.0.1:1"
    with pytest.raises(RequestError, match="want IP:PORT"):
        engine.open_segment("localhost")


def test_listen_says_why_it_cannot(engine: TransferEngine) -> None:
    address = engine.listen()
    with pytest.raises(Exception, match=r"(?i)address|use"):
        engine.listen("127.0.0.1", int(address.rpartition(":")[2]))
    with pytest.raises(Exception, match="nonsense"):
        engine.listen("nonsense")


def test_closed_engine_raises(tmp_path: Path) -> None:
    engine = TransferEngine(EngineConfig(io_threads=0, worker_threads=1, stall_timeout_s=2.5))
    engine.close()
    engine.close()
    for call in (
        lambda: engine.allocate_batch_id(1),
        lambda: engine.register_local_memory(bytearray(1)),
        lambda: engine.open_segment("127.0.0.1:1"),
        engine.listen,
        engine.receive_notify,
    ):
        with pytest.raises(ClosedError):
            call()


def test_close_removes_the_socket_file(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    with TransferEngine() as engine:
        engine.listen()
        assert len(list((tmp_path / "mooncake-store").glob("engine-*.sock"))) == 1
    assert list((tmp_path / "mooncake-store").iterdir()) == []


def test_topology_reaches_c() -> None:
    nic = Nic("eth0", (ip_interface("10.0.0.1/24"),))
    topology = Topology((nic,), {"cpu:0": NicPreference(("eth0",))})
    with TransferEngine(topology=topology) as engine:
        engine.set_topology(topology)
    with pytest.raises(RequestError):
        TransferEngine(topology=Topology((replace(nic, name="e" * 64),)))


def test_notifications_refuse_zero_bytes(engine: TransferEngine) -> None:
    segment = engine.open_segment(engine.listen())
    with pytest.raises(RequestError, match="zero byte"):
        engine.send_notify(segment, "a\0b", "")
