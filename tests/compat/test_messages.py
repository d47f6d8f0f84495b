"""`RpcInterface` of `mooncake.engine`: what one process sends, the other's callback gets."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import json
import os
import resource
import socket
import struct
import subprocess
import sys
import threading
import time
import tracemalloc
from collections.abc import Iterator
from typing import Any

import pytest

from mooncake import engine
from mooncake._engine import messages
from mooncake._engine.messages import ReceivedData
from tests.compat.environment import ENVIRONMENT
from tests.ports import free_port

WAIT_S = 20.0


@contextlib.contextmanager
def stranger(address: str) -> Iterator[socket.socket]:
    """Connects, and speaks as it likes."""
    host, _, port = address.partition(":")
    with socket.create_connection((host, int(port)), WAIT_S) as connection:
        yield connection


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
    serving = threading.Thread(target=rpc.start_server, daemon=True)
    serving.start()
    try:
        until = time.monotonic() + WAIT_S
        while client.send_data(address, b"x") != 0:
            assert time.monotonic() < until, "nobody listens"
            time.sleep(0.01)
        assert began.wait(WAIT_S)
        assert serving.is_alive()
    finally:
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


def tensor_message(described: bytes) -> bytes:
    return HEAD.pack(b"MSGE", 1, 1, len(described), 1) + described + b"x"


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
        tensor_message(b'{"dtype": "int8", "shape": [-1]}'),
        tensor_message(b'{"dtype": "int8", "shape": [Infinity]}'),
        tensor_message(b"[" * 65535),
    ],
)
def test_what_is_no_message_ends_its_connection_only(
    receiver: Receiver,
    client: engine.RpcInterface,
    bytes_sent: bytes,
    caplog: pytest.LogCaptureFixture,
) -> None:
    with stranger(receiver.address) as sender:
        sender.sendall(bytes_sent)
        with contextlib.suppress(OSError):  # it may have closed already
            sender.shutdown(socket.SHUT_WR)
        assert has_ended(sender)
    assert client.send_data(receiver.address, b"fine") == 0
    assert [got["data"] for got in receiver.got] == [b"fine"]
    assert "from 127.0.0.1:" in caplog.text  # with the reason, not by a thread's traceback


def test_who_keeps_silent_within_a_message_is_waited_for_as_the_receiver_was_told() -> None:
    rpc, address = engine.RpcInterface(), f"127.0.0.1:{free_port()}"
    assert rpc.initialize_client(timeout_seconds=600)
    assert rpc.initialize_server(address, timeout_seconds=1)
    assert rpc.start_server_async()
    with stranger(address) as sender:
        sender.sendall(b"MSG")
        assert has_ended(sender)
    rpc.stop_server()


def test_a_timeout_is_for_silence_not_for_a_whole_message() -> None:
    sender, taker = socket.socketpair()
    size, step, timeout_s = 2 << 20, 1 << 17, 0.8

    def take_slowly() -> None:
        while taker.recv(step):
            time.sleep(0.1)

    with sender, taker:
        sender.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, step)
        sender.settimeout(timeout_s)
        taking = threading.Thread(target=take_slowly, daemon=True)
        began = time.monotonic()
        taking.start()
        messages.send(sender, memoryview(bytes(size)))
        assert time.monotonic() - began > timeout_s
        sender.shutdown(socket.SHUT_WR)
        taking.join(WAIT_S)
        with socket.socketpair()[0] as to_nobody:
            to_nobody.settimeout(0.1)
            with pytest.raises(OSError):
                messages.send(to_nobody, memoryview(bytes(size)))


def test_many_open_descriptors(receiver: Receiver, client: engine.RpcInterface) -> None:
    most = 1024
    if resource.getrlimit(resource.RLIMIT_NOFILE)[0] < most + 256:
        pytest.skip("not so many descriptors here: ulimit -n 2048")
    held = [os.open(os.devnull, os.O_RDONLY)]
    try:
        while held[-1] < most:
            held.append(os.dup(held[0]))
        assert client.send_data(receiver.address, b"1") == 0
        assert client.send_data(receiver.address, b"2") == 0  # over the connection that was kept
    finally:
        for descriptor in held:
            os.close(descriptor)


@pytest.mark.parametrize("is_in_a_cycle", [False, True])
def test_a_receiver_that_is_dropped_leaves_its_address(
    client: engine.RpcInterface, is_in_a_cycle: bool
) -> None:
    receiver = Receiver()
    address = receiver.address
    assert client.send_data(address, b"1") == 0
    if is_in_a_cycle:
        receiver.rpc.set_data_receive_callback(lambda _, __=receiver: None)
    del receiver
    gc.collect()
    other = engine.RpcInterface()
    assert other.initialize_server(address)
    assert other.start_server_async()
    other.stop_server()


def test_no_thread_for_a_connection_ends_that_connection_only(
    receiver: Receiver, client: engine.RpcInterface
) -> None:
    before = threading.stack_size(1 << 47)  # more than there are addresses: no thread can start
    try:
        with stranger(receiver.address) as one:
            assert has_ended(one)
        other = engine.RpcInterface()
        assert other.initialize_server(f"127.0.0.1:{free_port()}")
        assert not other.start_server_async()
    finally:
        threading.stack_size(before)
    assert client.send_data(receiver.address, b"x") == 0
    assert other.start_server_async()
    other.stop_server()


def test_idle_connections_notice_a_host_that_has_gone(
    receiver: Receiver, client: engine.RpcInterface
) -> None:
    assert client.send_data(receiver.address, b"x") == 0
    assert receiver.rpc._server is not None
    assert client._pool is not None
    ends = [*receiver.rpc._server._connections, *client._pool._idle[receiver.address]]
    assert len(ends) == 2
    for end in ends:
        assert end.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE) == 1
        assert end.getsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE) == 60


@pytest.mark.parametrize("host", ["\u00fc..b", "\u00fc" * 70, "a\0b"])
def test_a_name_that_cannot_be_one_is_an_answer(
    client: engine.RpcInterface, host: str, caplog: pytest.LogCaptureFixture
) -> None:
    assert not engine.RpcInterface().initialize_server(f"{host}:9000")
    assert client.send_data(f"{host}:9000", b"x") == -1
    assert caplog.text.count("cannot be a host's name") == 2


def test_tensors_that_are_views_of_others_and_such_without_bytes(
    receiver: Receiver, client: engine.RpcInterface
) -> None:
    torch = pytest.importorskip("torch")
    number = torch.tensor([1 + 2j, 3 - 4j])
    for sent in (number.conj(), number.conj().imag, torch.zeros(2, device="meta")):
        expected = -1 if sent.is_meta else 0
        assert client.send_tensor(receiver.address, sent) == expected
    conjugated, negated = receiver.got
    assert torch.frombuffer(bytearray(conjugated["data"]), dtype=number.dtype).tolist() == [
        1 - 2j,
        3 + 4j,
    ]
    assert torch.frombuffer(bytearray(negated["data"]), dtype=torch.float32).tolist() == [-2, 4]


@pytest.mark.filterwarnings("ignore::UserWarning")  # torch, of all these kinds
@pytest.mark.parametrize(
    ("kind", "reason"),
    [
        ("quantised", "takes no quantised tensor, whose scale and zero point"),
        ("quantised by channel", "takes no quantised tensor, whose scale and zero point"),
        ("sparse", "takes a dense torch tensor, not torch.sparse_coo"),
        ("sparse rows", "takes a dense torch tensor, not torch.sparse_csr"),
        ("nested", "a tensor whose bytes cannot be had"),
    ],
)
def test_tensors_that_are_more_than_their_elements_are_refused(
    receiver: Receiver,
    client: engine.RpcInterface,
    kind: str,
    reason: str,
    caplog: pytest.LogCaptureFixture,
) -> None:
    torch = pytest.importorskip("torch")
    ones = torch.ones(2, 3)
    tensor = {
        "quantised": lambda: torch.quantize_per_tensor(ones, 0.5, 1, torch.qint8),
        "quantised by channel": lambda: torch.quantize_per_channel(
            ones, torch.tensor([0.5, 0.25]), torch.tensor([0, 1]), 0, torch.qint8
        ),
        "sparse": lambda: ones.to_sparse(),
        "sparse rows": lambda: ones.to_sparse_csr(),
        "nested": lambda: torch.nested.nested_tensor([ones[0], ones[0, :2]]),
    }[kind]()
    assert client.send_tensor(receiver.address, tensor) == -1
    assert reason in caplog.text
    assert receiver.got == []


def test_a_message_is_in_memory_once_while_it_is_received() -> None:
    size = 8 << 20
    sender, taker = socket.socketpair()
    with sender, taker:
        sending = threading.Thread(target=messages.send, args=(sender, memoryview(bytes(size))))
        tracemalloc.start()
        try:
            sending.start()
            got = messages.receive(taker, "it", WAIT_S)
            sending.join(WAIT_S)
            most = tracemalloc.get_traced_memory()[1]
        finally:
            tracemalloc.stop()
    assert isinstance(got, ReceivedData)
    assert got["data"] == bytes(size)
    assert most < size * 1.6


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
        env=ENVIRONMENT,
    )  # fmt: skip
    assert json.loads(done.stdout) == [0, False]
    assert [got["data"] for got in receiver.got] == [b"from afar"]
