"""The yardstick itself: that what it times really moves the bytes."""

from __future__ import annotations

import os
import socket

import pytest

from mooncake_store._native import ffi, lib
from mooncake_store.cli.bench import raw
from mooncake_store.cli.bench.environment import LEFT_ALONE, Placement, connections_to, placed

LENGTH = 4 * raw.MIB


@pytest.fixture
def memories():
    source = raw.Memory(LENGTH, is_shared=True)
    target = raw.Memory(LENGTH, is_shared=False)
    yield source, target
    source.close()
    target.close()


@pytest.fixture
def peer(memories):
    with raw.RawPeer(memories[1]) as peer:
        yield peer


@pytest.mark.parametrize("kernel", raw.KERNELS)
@pytest.mark.parametrize("threads", [1, 2, 3])
@pytest.mark.parametrize("size", [4096, 65_536, 100_000, 1 << 20])
def test_copies_over_all_slots_leave_the_target_equal(memories, kernel, threads, size):
    source, target = memories
    source.buffer[:] = os.urandom(LENGTH)
    slots = LENGTH // size

    raw.RawCopy(source, target).rate(kernel, threads, size, slots)

    assert target.buffer[: slots * size] == source.buffer[: slots * size]


def test_rotation_goes_on_where_the_last_round_ended(memories):
    source, target = memories
    copy = raw.RawCopy(source, target)
    source.buffer[:] = b"\1" * LENGTH
    target.buffer[:] = b"\0" * LENGTH

    copy.rate("memcpy", 1, 1 << 20, 1)
    copy.rate("memcpy", 1, 1 << 20, 1)

    assert bytes(target.buffer[:: 1 << 20]) == b"\1\1\0\0"


@pytest.mark.parametrize("transport", ["tcp", "unix"])
@pytest.mark.parametrize("connections", [1, 2, 4])
def test_fetch_brings_back_what_push_took_there(memories, peer, transport, connections):
    mine = memories[1].buffer
    said = os.urandom(LENGTH)
    mine[:] = said

    peer.rate("push", transport, 1 << 20, LENGTH >> 20, connections)
    mine[:] = bytes(LENGTH)
    peer._next.clear()
    peer.rate("fetch", transport, 1 << 20, LENGTH >> 20, connections)

    assert mine == said


def test_stream_moves_every_slot_without_waiting_between_calls(memories, peer):
    mine = memories[1].buffer
    said = os.urandom(LENGTH)
    mine[:] = said

    peer.stream_rate("push", "tcp", 1 << 20, LENGTH >> 20, 2)
    mine[:] = bytes(LENGTH)
    peer._next.clear()
    peer.stream_rate("fetch", "tcp", 1 << 20, LENGTH >> 20, 2)

    assert mine == said


def test_latency_is_one_sample_a_call(peer):
    samples = ffi.new("uint64_t[]", 20)

    elapsed_ns = peer._run("push", "tcp", 0, 20, 1, samples)

    assert all(sample > 0 for sample in samples)
    assert sum(samples) <= elapsed_ns


def test_peer_that_is_gone_is_an_error_and_no_figure(peer):
    peer.latency_us("push", "tcp", 0, 1)
    peer._process.kill()
    peer._process.wait(5)

    with pytest.raises(OSError, match="raw measurement failed"):
        peer.latency_us("push", "tcp", 0, 1)


def test_length_that_does_not_divide_is_refused(peer):
    with pytest.raises(OSError, match="Invalid argument"):
        peer.rate("fetch", "tcp", 1001, 1, 2)


def test_request_beyond_the_servers_memory_closes_the_connection(memories, peer):
    exchange = ffi.new(
        "te_bench_exchange *",
        {
            "operation": lib.TE_BENCH_FETCH,
            "call_count": 1,
            "length": 2 * LENGTH,
            "memory": ffi.cast("uint8_t *", memories[1].pointer),
            "memory_length": 2 * LENGTH,  # a lie; the server must not send what it does not have
        },
    )

    assert lib.te_bench_exchange_run(exchange, peer._connections("tcp", 1), 1, ffi.NULL) < 0


def test_placement_is_undone_when_the_block_ends(peer):
    cores = os.sched_getaffinity(0)
    if len(cores) < 2:
        pytest.skip("needs two cores")
    apart = Placement.apart()

    with placed(apart, [peer.pid]):
        assert os.sched_getaffinity(0) == {apart.client_core}
        assert os.sched_getaffinity(peer.pid) == {apart.server_core}

    assert os.sched_getaffinity(0) == cores
    assert os.sched_getaffinity(peer.pid) == cores


def test_left_alone_moves_nobody(peer):
    cores = os.sched_getaffinity(0)

    with placed(LEFT_ALONE, [peer.pid]):
        assert os.sched_getaffinity(0) == cores


def test_every_row_has_a_figure():
    rows = raw.run(rounds=1, is_quick=True)

    assert {(row.name, row.is_pinned) for row in rows}.__len__() == len(rows)
    assert all(row.value.median > 0 for row in rows)
    assert any("nontemporal, 2 threads" in row.name for row in rows)


def test_connections_to_a_port_are_counted(peer):
    assert connections_to({peer._ports["tcp"]}) == 0

    peer.rate("fetch", "tcp", 1 << 20, 1, 2)

    assert connections_to({peer._ports["tcp"]}) == 2
    assert connections_to({1}) == 0


def test_only_an_unpaced_peer_chooses_its_congestion_control(peer):
    for transport in ("tcp", "unpaced"):
        peer.rate("push", transport, 1 << 20, 1, 1)

    def control_of(transport):
        (connection,) = peer._sockets[transport]
        name = connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_CONGESTION, 16)
        return name.rstrip(b"\0")

    with socket.socket() as usual:
        name = usual.getsockopt(socket.IPPROTO_TCP, socket.TCP_CONGESTION, 16)
        assert control_of("tcp") == name.rstrip(b"\0")
    assert control_of("unpaced") == b"reno"
