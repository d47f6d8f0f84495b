"""The store server's gRPC service: objects, copies, and the paper's batch interface."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from types import SimpleNamespace

import grpc
import pytest

from mooncake_store.client import Client
from mooncake_store.protocol import store_pb2 as pb
from mooncake_store.protocol import store_pb2_grpc
from mooncake_store.transfer_engine.engine import TransferEngine

from .conftest import MIB, Host

CHUNK = 2 * MIB


@pytest.fixture(scope="module")
def store(shared_host: Host) -> Iterator[SimpleNamespace]:
    """A master, two store servers, and a stub of the first server's gRPC."""
    master = shared_host.master()
    servers = [
        shared_host.server(
            master,
            name=f"node-{letter}",
            grpc=True,
            pool_size_bytes=64 * MIB,
            grpc_object_size_bytes=32 * MIB,
        )
        for letter in "ab"
    ]
    channels = []
    for server in servers:
        server.wait_log("grpc_serving")
        channels.append(grpc.insecure_channel(f"127.0.0.1:{server.endpoints.grpc_port}"))
    stubs = [store_pb2_grpc.StoreStub(channel) for channel in channels]  # type: ignore[no-untyped-call]
    with Client(master.address, strict=True) as client:
        yield SimpleNamespace(
            stub=stubs[0], stubs=stubs, client=client, servers=servers, channels=channels
        )
    for channel in channels:
        channel.close()


def put(
    stub: store_pb2_grpc.StoreStub,
    key: str,
    value: bytes,
    size: int | None = None,
    **fields: object,
) -> pb.PutResult:
    def chunks() -> Iterator[pb.PutChunk]:
        header = pb.PutHeader(key=key, size_bytes=len(value) if size is None else size, **fields)
        yield pb.PutChunk(header=header)
        for at in range(0, len(value), CHUNK):
            yield pb.PutChunk(data=value[at : at + CHUNK])

    return stub.Put(chunks(), timeout=20)


def get(stub: store_pb2_grpc.StoreStub, key: str, **fields: int) -> tuple[pb.GetHeader, bytes]:
    parts = list(stub.Get(pb.GetObjectRequest(key=key, **fields), timeout=20))
    assert parts[0].WhichOneof("part") == "header"
    value = b"".join(part.data for part in parts[1:])
    assert len(value) == parts[0].header.length
    return parts[0].header, value


def refused(call: object, *arguments: object, **fields: object) -> grpc.RpcError:
    with pytest.raises(grpc.RpcError) as caught:
        result = call(*arguments, **fields)  # type: ignore[operator]
        if hasattr(result, "__iter__"):
            list(result)
    return caught.value


def test_what_is_put_is_got(store: SimpleNamespace) -> None:
    for size in (0, 1, 4096, CHUNK, 5 * MIB + 3):
        key, value = f"object/{size}", os.urandom(size)
        assert put(store.stub, key, value) == pb.PutResult(stored=True, replica_count=1)
        header, got = get(store.stub, key)
        assert got == value and header.size_bytes == size
        assert store.client.get(key) == value  # one store, whichever way in


def test_a_part_can_be_got(store: SimpleNamespace) -> None:
    put(store.stub, "part", b"0123456789")
    assert get(store.stub, "part", offset=3, length=4)[1] == b"3456"
    assert get(store.stub, "part", offset=7)[1] == b"789"
    assert get(store.stub, "part", offset=7, length=100)[1] == b"789"
    assert get(store.stub, "part", offset=10)[1] == b""
    error = refused(get, store.stub, "part", offset=11)
    assert error.code() == grpc.StatusCode.INVALID_ARGUMENT


def test_a_key_that_is_there_is_left_alone_and_an_upsert_replaces_it(
    store: SimpleNamespace,
) -> None:
    assert put(store.stub, "key", b"first").stored
    again = put(store.stub, "key", b"second")
    assert not again.stored and again.replica_count == 1
    assert get(store.stub, "key")[1] == b"first"
    assert put(store.stub, "key", b"third", upsert=True).stored
    assert get(store.stub, "key")[1] == b"third"


def test_options_reach_the_master(store: SimpleNamespace) -> None:
    put(store.stub, "pinned", b"value", hard_pin=True, ttl_ms=3_600_000)
    found = store.client.stat("pinned")
    assert found.is_hard_pinned and 3500 < found.ttl_s <= 3600
    result = put(store.stub, "twice", b"value", replica_count=2)
    assert result.replica_count == 2
    assert {replica.node for replica in store.client.stat("twice").replicas} == {"node-a", "node-b"}


def test_streams_that_do_not_add_up_store_nothing(store: SimpleNamespace) -> None:
    for size in (3, 5):
        error = refused(put, store.stub, "bad", b"1234", size)
        assert error.code() == grpc.StatusCode.INVALID_ARGUMENT
        assert "announced" in error.details()
    for chunks in ([], [pb.PutChunk(data=b"x")], [pb.PutChunk()]):
        error = refused(store.stub.Put, iter(chunks), timeout=20)
        assert error.code() == grpc.StatusCode.INVALID_ARGUMENT
    header = pb.PutChunk(header=pb.PutHeader(key="bad", size_bytes=0))
    error = refused(store.stub.Put, iter([header, header]), timeout=20)
    assert error.code() == grpc.StatusCode.INVALID_ARGUMENT
    assert store.client.get("bad") is None


def test_mistakes_and_misses_have_their_codes(store: SimpleNamespace) -> None:
    assert refused(get, store.stub, "absent").code() == grpc.StatusCode.NOT_FOUND
    assert refused(put, store.stub, "", b"x").code() == grpc.StatusCode.INVALID_ARGUMENT
    assert refused(put, store.stub, "k" * 1025, b"x").code() == grpc.StatusCode.INVALID_ARGUMENT
    error = refused(put, store.stub, "large", b"", 33 * MIB)
    assert error.code() == grpc.StatusCode.INVALID_ARGUMENT
    assert "grpc_object_size" in error.details() or "gRPC carries" in error.details()


def test_replicas_are_made_and_moved(store: SimpleNamespace) -> None:
    value = os.urandom(3 * MIB)
    put(store.stub, "moved", value)
    (holder,) = [replica.node for replica in store.client.stat("moved").replicas]
    (other,) = {"node-a", "node-b"} - {holder}
    answer = store.stub.ChangeReplica(
        pb.ChangeObjectReplicaRequest(key="moved", replica_count=2), timeout=20
    )
    assert sorted(answer.nodes) == ["node-a", "node-b"]
    assert store.client.get("moved") == value
    answer = store.stub.ChangeReplica(
        pb.ChangeObjectReplicaRequest(key="moved", replica_count=1, source_node=holder), timeout=20
    )
    assert list(answer.nodes) == [other]
    assert store.client.get("moved") == value
    for request, code in (
        (pb.ChangeObjectReplicaRequest(key="absent", replica_count=2), "NOT_FOUND"),
        (
            pb.ChangeObjectReplicaRequest(key="moved", replica_count=2, target_node="nobody"),
            "INVALID_ARGUMENT",
        ),
    ):
        error = refused(store.stub.ChangeReplica, request, timeout=20)
        assert error.code() == getattr(grpc.StatusCode, code)


# ---- the batch interface -----------------------------------------------------------------------


def wait_ended(
    stub: store_pb2_grpc.StoreStub, batch: int, index: int
) -> pb.GetTransferStatusResponse:
    deadline_s = time.monotonic() + 20
    while True:
        found = stub.GetTransferStatus(
            pb.GetTransferStatusRequest(batch=batch, index=index), timeout=20
        )
        if found.state >= pb.TRANSFER_STATE_COMPLETED:
            return found
        assert time.monotonic() < deadline_s
        time.sleep(0.01)


def test_bytes_move_between_registered_memories(store: SimpleNamespace) -> None:
    stub = store.stub
    with TransferEngine() as peer:
        there = peer.allocate_shared(MIB)
        pattern = os.urandom(MIB)
        there.buffer[:] = pattern
        peer.register_local_memory(there.address, there.length)
        name = peer.listen()
        here = stub.RegisterLocalMemory(pb.RegisterLocalMemoryRequest(length=MIB), timeout=20)
        opened = stub.OpenSegment(pb.OpenSegmentRequest(name=name), timeout=20)
        assert [(region.address, region.length) for region in opened.regions] == [
            (there.address, MIB)
        ]
        batch = stub.AllocateBatchId(pb.AllocateBatchIdRequest(size=3), timeout=20).batch

        def request(opcode: int, local: int, remote: int, length: int) -> pb.TransferRequest:
            return pb.TransferRequest(
                opcode=opcode,  # type: ignore[arg-type]
                segment=opened.segment,
                local_address=here.address + local,
                remote_offset=there.address + remote,
                length=length,
            )

        half = MIB // 2
        stub.SubmitTransfer(
            pb.SubmitTransferRequest(
                batch=batch, requests=[request(pb.OPCODE_READ, 0, 0, half)], timeout_ms=10_000
            ),
            timeout=20,
        )
        ended = wait_ended(stub, batch, 0)
        assert ended.state == pb.TRANSFER_STATE_COMPLETED
        assert ended.transferred_bytes == half
        # What came from the first half of the peer's memory goes into its second.
        stub.SubmitTransfer(
            pb.SubmitTransferRequest(
                batch=batch,
                requests=[
                    request(pb.OPCODE_WRITE, 0, half, half),
                    request(pb.OPCODE_READ, 0, half + 1, half),  # past its end
                ],
                timeout_ms=10_000,
            ),
            timeout=20,
        )
        assert wait_ended(stub, batch, 1).state == pb.TRANSFER_STATE_COMPLETED
        failed = wait_ended(stub, batch, 2)
        assert failed.state == pb.TRANSFER_STATE_FAILED and failed.message
        assert bytes(there.buffer[half:]) == pattern[:half]
        stub.FreeBatchId(pb.FreeBatchIdRequest(batch=batch), timeout=20)
        error = refused(stub.FreeBatchId, pb.FreeBatchIdRequest(batch=batch), timeout=20)
        assert error.code() == grpc.StatusCode.INVALID_ARGUMENT
        stub.UnregisterLocalMemory(
            pb.UnregisterLocalMemoryRequest(address=here.address), timeout=20
        )
        there.close()


def test_memory_that_is_not_the_callers_cannot_be_named(store: SimpleNamespace) -> None:
    stub = store.stub
    here = stub.RegisterLocalMemory(pb.RegisterLocalMemoryRequest(length=4096), timeout=20)
    for request in (
        pb.RegisterLocalMemoryRequest(address=here.address, length=4096),
        pb.RegisterLocalMemoryRequest(address=0x1000, length=4096),
        pb.RegisterLocalMemoryRequest(length=0),
    ):
        error = refused(stub.RegisterLocalMemory, request, timeout=20)
        assert error.code() == grpc.StatusCode.INVALID_ARGUMENT
    error = refused(
        stub.RegisterLocalMemory, pb.RegisterLocalMemoryRequest(length=64 * MIB), timeout=20
    )
    assert error.code() == grpc.StatusCode.RESOURCE_EXHAUSTED
    error = refused(
        stub.UnregisterLocalMemory, pb.UnregisterLocalMemoryRequest(address=0x1000), timeout=20
    )
    assert error.code() == grpc.StatusCode.INVALID_ARGUMENT
    batch = stub.AllocateBatchId(pb.AllocateBatchIdRequest(size=1), timeout=20).batch
    request = pb.SubmitTransferRequest(
        batch=batch,
        requests=[pb.TransferRequest(segment=77, local_address=here.address, length=10)],
    )
    error = refused(stub.SubmitTransfer, request, timeout=20)
    assert error.code() == grpc.StatusCode.INVALID_ARGUMENT
    for size in (0, 1 << 20):
        error = refused(stub.AllocateBatchId, pb.AllocateBatchIdRequest(size=size), timeout=20)
        assert error.code() == grpc.StatusCode.INVALID_ARGUMENT
    error = refused(stub.OpenSegment, pb.OpenSegmentRequest(name="127.0.0.1:1"), timeout=20)
    assert error.code() == grpc.StatusCode.UNAVAILABLE
    stub.FreeBatchId(pb.FreeBatchIdRequest(batch=batch), timeout=20)
    stub.UnregisterLocalMemory(pb.UnregisterLocalMemoryRequest(address=here.address), timeout=20)


def test_a_peer_engine_cannot_write_into_the_pool(store: SimpleNamespace) -> None:
    """Pages of the pool are no registered memory: OPEN_SEGMENT does not name them."""
    server = store.servers[0]
    with TransferEngine() as peer:
        segment = peer.open_segment(server.address)
        assert segment.regions() == []


def test_health_says_serving(store: SimpleNamespace) -> None:
    check = store.channels[0].unary_unary("/grpc.health.v1.Health/Check")
    assert check(b"", timeout=20) == b"\x08\x01"
    name = b"mooncake_store.v1.Store"
    assert check(b"\x0a" + bytes([len(name)]) + name, timeout=20) == b"\x08\x01"
    error = refused(check, b"\x0a\x01x", timeout=20)
    assert error.code() == grpc.StatusCode.NOT_FOUND
