"""`RpcInterface` of `mooncake.engine`: what one process sends, the other's callback gets."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import socket
import struct
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from mooncake import engine
from mooncake._engine import messages

ROOT = Path(__file__).parents[2]
WAIT_S = 20.0


def free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return int(found.getsockname()[1])


class Receiver:
    """A server, and what has come."""

    def __init__(self, **more: Any) -> None:
        self.address = f"127.0.0.1:{free_port()}"
        self.got: list[Any] = []
        self.rpc = engine.create_rpc_server()
        assert self.rpc.initialize_server(self.address, **more)
        self.rpc.set_data_receive_callback(self.got.append)
        self.rpc.set_tensor_receive_callback(self.got.append)
        assert self.rpc.start_server_async()


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    made = Receiver()
    yield made
    made.rpc.stop_server()


@pytest.fixture
def client() -> engine.RpcInterface:
    made = engine.create_rpc_client()
    assert made.initialize_client(timeout_seconds=5)
    return made


@pytest.mark.parametrize(
    "data", [b"hello", bytearray(b"xy"), memoryview(b"mv"), b"", b"x" * (3 << 20)]
)
def test_data_are_there_when_the_call_returns(
    receiver: Receiver, client: engine.RpcInterface, data: Any
) -> None:
    assert client.send_data(receiver.address, data) == 0
    (got,) = receiver.got
    assert isinstance(got, engine.ReceivedData)
    assert got["data"] == got.get_bytes() == bytes(got.get_memory_view()) == bytes(data)
    assert got.data_size == len(data)
    assert got.source_address == got["source"]
    assert got["source"].startswith("127.0.0.1:")


def test_tensors_come_with_dtype_and_shape(receiver: Receiver, client: engine.RpcInterface) -> None:
    torch = pytest.importorskip("torch")
    sent = [
        torch.arange(6.0).reshape(2, 3),
        torch.arange(6.0).reshape(2, 3).t(),  # in row order, whatever its strides
        torch.tensor(3, dtype=torch.int64),
        torch.ones(2, dtype=torch.bfloat16),
        torch.tensor([True, False]),
        torch.zeros(0, 4),
    ]
    for tensor in sent:
        assert client.send_tensor(receiver.address, tensor) == 0
    for tensor, got in zip(sent, receiver.got, strict=True):
        assert isinstance(got, engine.ReceivedTensor)
        assert (got.dtype, got.shape) == (str(tensor.dtype)[6:], list(tensor.shape))
        assert got.total_bytes == got.get_data_size() == tensor.numel() * tensor.element_size()
        assert got.get_data_as_bytes() == bytes(got.get_memory_view()) == got["data"]
        if tensor.numel():
            made = torch.frombuffer(bytearray(got["data"]), dtype=tensor.dtype)
            assert torch.equal(made.reshape(got.shape), tensor)


def test_what_is_no_tensor_and_no_bytes(receiver: Receiver, client: engine.RpcInterface) -> None:
    assert client.send_tensor(receiver.address, b"bytes") == -1
    for wrong in ("text", 5, None, [1]):
        with pytest.raises(TypeError, match="data are bytes"):
            client.send_data(receiver.address, wrong)  # type: ignore[arg-type]
    assert receiver.got == []


def test_a_loop_waits_for_many(receiver: Receiver, client: engine.RpcInterface) -> None:
    async def send() -> list[int]:
        loop = asyncio.get_running_loop()
        sent = [client.send_data_async(receiver.address, b"%d" % n, loop) for n in range(50)]
        return list(await asyncio.gather(*sent))

    assert asyncio.run(send()) == [0] * 50
    assert sorted(int(got["data"]) for got in receiver.got) == list(range(50))

    async def to_nobody() -> int:
        loop = asyncio.get_running_loop()
        return await client.send_data_async(f"127.0.0.1:{free_port()}", b"x", loop)

    assert asyncio.run(to_nobody()) == -1


def test_tensors_by_a_loop(receiver: Receiver, client: engine.RpcInterface) -> None:
    torch = pytest.importorskip("torch")

    async def send() -> int:
        loop = asyncio.get_running_loop()
        return await client.send_tensor_async(receiver.address, torch.ones(3), loop)

    assert asyncio.run(send()) == 0
    assert receiver.got[0].shape == [3]


def test_failures_are_answers(
    client: engine.RpcInterface, caplog: pytest.LogCaptureFixture
) -> None:
    assert client.send_data(f"127.0.0.1:{free_port()}", b"x") == -1
    assert client.send_data("nonsense", b"x") == -1
    assert "an address is host:port" in caplog.text
    fresh = engine.RpcInterface()
    assert fresh.send_data("127.0.0.1:1", b"x") == -1
    assert "initialize_client comes before" in caplog.text
    assert not fresh.start_server_async()
    fresh.stop_server()
    assert not fresh.initialize_server("nonsense")
    assert not fresh.initialize_server("127.0.0.1:0", thread_count=0)
    assert not fresh.initialize_client(pool_size=0)
    assert not fresh.initialize("nonsense")
    assert fresh.initialize()


def test_a_port_in_use_and_a_second_start(receiver: Receiver) -> None:
    assert not receiver.rpc.start_server_async()
    other = engine.RpcInterface()
    assert other.initialize(receiver.address)
    assert not other.start_server_async()


def test_a_callback_that_fails_and_none(client: engine.RpcInterface) -> None:
    receiver = Receiver()

    def fail(_: object) -> None:
        raise ValueError("no")

    receiver.rpc.set_data_receive_callback(fail)
    assert client.send_data(receiver.address, b"x") == -1
    receiver.rpc.set_data_receive_callback(receiver.got.append)
    assert client.send_data(receiver.address, b"y") == 0  # the connection is still of use
    assert [got["data"] for got in receiver.got] == [b"y"]
    receiver.rpc.stop_server()
    deaf = engine.RpcInterface()
    assert deaf.initialize_server(receiver.address)
    assert deaf.start_server_async()
    assert client.send_data(receiver.address, b"z") == -1  # nobody takes it
    deaf.stop_server()


def test_a_server_that_starts_again_is_reached(client: engine.RpcInterface) -> None:
    receiver = Receiver()
    assert client.send_data(receiver.address, b"1") == 0
    receiver.rpc.stop_server()
    assert client.send_data(receiver.address, b"2") == -1
    assert receiver.rpc.start_server_async()
    assert client.send_data(receiver.address, b"3") == 0
    receiver.rpc.stop_server()
    assert [got["data"] for got in receiver.got] == [b"1", b"3"]


def test_start_server_lasts_until_it_is_stopped(client: engine.RpcInterface) -> None:
    address = f"127.0.0.1:{free_port()}"
    rpc, got, began = engine.create_rpc_server(), [], threading.Event()
    assert rpc.initialize_server(address)
    rpc.set_data_receive_callback(lambda data: (got.append(data), began.set()))
    serving = threading.Thread(target=rpc.start_server)
    serving.start()
    while client.send_data(address, b"x") != 0:
        pass
    assert began.wait(WAIT_S)
    assert serving.is_alive()
    rpc.stop_server()
    serving.join(WAIT_S)
    assert not serving.is_alive()


def test_callbacks_run_side_by_side_as_far_as_there_are_threads() -> None:
    receiver = Receiver(thread_count=2)
    meeting = threading.Barrier(2)
    receiver.rpc.set_data_receive_callback(lambda _: meeting.wait(WAIT_S))
    client = engine.RpcInterface()
    assert client.initialize_client()
    answers: list[int] = []
    senders = [
        threading.Thread(target=lambda: answers.append(client.send_data(receiver.address, b"x")))
        for _ in range(4)
    ]
    for sender in senders:
        sender.start()
    for sender in senders:
        sender.join(WAIT_S)
    receiver.rpc.stop_server()
    assert answers == [0] * 4


HEAD = struct.Struct("<4sBBHQ")


def has_ended(connection: socket.socket) -> bool:
    """Whether the other side has closed, without an answer."""
    try:
        return connection.recv(1) == b""
    except ConnectionResetError:  # what it had not read was thrown away
        return True


@pytest.mark.parametrize(
    "bytes_sent",
    [
        b"GET / HTTP/1.1\r\n\r\n",
        HEAD.pack(b"MSGE", 2, 0, 0, 1) + b"x",
        HEAD.pack(b"MSGE", 1, 7, 0, 1) + b"x",
        HEAD.pack(b"MSGE", 1, 0, 0, messages.BYTES_MAX + 1),
        HEAD.pack(b"MSGE", 1, 1, 2, 1) + b"{}x",
        HEAD.pack(b"MSGE", 1, 1, 3, 1) + b"\xff\xff\xffx",
        HEAD.pack(b"MSGE", 1, 0, 0, 100) + b"too little",
    ],
)
def test_what_is_no_message_ends_its_connection_only(
    receiver: Receiver, client: engine.RpcInterface, bytes_sent: bytes
) -> None:
    host, _, port = receiver.address.partition(":")
    with socket.create_connection((host, int(port)), WAIT_S) as stranger:
        stranger.sendall(bytes_sent)
        with contextlib.suppress(OSError):  # it may have closed already
            stranger.shutdown(socket.SHUT_WR)
        assert has_ended(stranger)
    assert client.send_data(receiver.address, b"fine") == 0
    assert [got["data"] for got in receiver.got] == [b"fine"]


def test_who_keeps_silent_within_a_message_is_not_waited_for() -> None:
    receiver = Receiver(timeout_seconds=1)
    host, _, port = receiver.address.partition(":")
    with socket.create_connection((host, int(port)), WAIT_S) as stranger:
        stranger.sendall(b"MSG")
        assert has_ended(stranger)
    receiver.rpc.stop_server()


SENDER = """
import json, sys
from mooncake.engine import create_rpc_client
client = create_rpc_client()
assert client.initialize_client()
print(json.dumps([client.send_data(sys.argv[1], b"from afar"), "torch" in sys.modules]))
"""


def test_another_process_sends_and_needs_no_torch(receiver: Receiver) -> None:
    done = subprocess.run(
        [sys.executable, "-c", SENDER, receiver.address],
        capture_output=True, text=True, check=True, timeout=60,
        env={**os.environ, "PYTHONPATH": f"{ROOT}:{ROOT / 'compat'}"},
    )  # fmt: skip
    assert json.loads(done.stdout) == [0, False]
    assert [got["data"] for got in receiver.got] == [b"from afar"]
