"""What a store server does with frames that are garbage, too large, cut short, or not for it."""

from __future__ import annotations

import os
import random
import socket
import struct
import time
from collections.abc import Iterator
from types import SimpleNamespace

import pytest

from mooncake_store.client import Client
from mooncake_store.errors import AccessRefusedError, Status, StoreError
from mooncake_store.protocol import frames
from mooncake_store.protocol.frames import Frame
from mooncake_store.protocol.methods import Kind, Method, Right, Role
from mooncake_store.transfer_engine.message_channel import AskingEngine, MessageChannel

from .conftest import Host

HEADER_BYTES = 48


@pytest.fixture(scope="module")
def store(shared_host: Host) -> Iterator[SimpleNamespace]:
    master = shared_host.master()
    server = shared_host.server(master)
    with Client(master.address, strict=True) as client:
        assert client.put("witness", b"of what others do")
        yield SimpleNamespace(server=server, client=client)


@pytest.fixture(autouse=True)
def others_are_unharmed(store: SimpleNamespace) -> Iterator[None]:
    yield
    assert store.server.process.poll() is None
    assert store.client.get("witness") == b"of what others do"
    name = f"after/{time.monotonic_ns()}"
    assert store.client.put(name, b"x" * 10_000)
    assert store.client.get(name) == b"x" * 10_000


def connect(store: SimpleNamespace) -> socket.socket:
    made = socket.create_connection(("127.0.0.1", store.server.endpoints.port), timeout=10)
    made.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return made


def hello(**fields: object) -> bytes:
    fields = {"role": Role.CLIENT, "right": Right.READ, "name": b"test", **fields}
    body = frames.Hello(**fields).encode()  # type: ignore[arg-type]
    return Frame(Method.HELLO, request=1, body=body).encode()


def receive(connection: socket.socket) -> Frame | None:
    """Return the next frame, or None when the server closed."""
    data = b""
    try:
        while len(data) < HEADER_BYTES:
            part = connection.recv(HEADER_BYTES - len(data))
            if not part:
                return None
            data += part
        header = frames.Header.decode(data)
        rest = header.body_length + header.payload_length + header.trailer_length
        while len(data) < HEADER_BYTES + rest:
            part = connection.recv(HEADER_BYTES + rest - len(data))
            if not part:
                return None
            data += part
    except ConnectionError:
        return None
    return Frame.decode(data)


def is_closed(connection: socket.socket) -> bool:
    try:
        while receive(connection) is not None:
            pass
    except TimeoutError:
        return False
    return True


def opened(store: SimpleNamespace, **fields: object) -> socket.socket:
    connection = connect(store)
    connection.sendall(hello(**fields))
    answer = receive(connection)
    assert answer is not None and answer.status == Status.OK, answer
    return connection


def test_garbage_ends_the_connection_that_it_came_on(store: SimpleNamespace) -> None:
    seed = random.randrange(2**32)
    chance = random.Random(seed)
    for _ in range(200):
        connection = connect(store)
        with connection:
            if chance.random() < 0.5:
                connection.sendall(hello())
            try:
                connection.sendall(chance.randbytes(chance.randrange(1, 4096)))
                connection.shutdown(socket.SHUT_WR)
            except OSError:
                continue  # closed already
            assert is_closed(connection), seed


def test_frames_with_flipped_bits_change_nothing_for_others(store: SimpleNamespace) -> None:
    seed = random.randrange(2**32)
    chance = random.Random(seed)
    item = frames.ReadItem(segment=0, flags=1, offset=0, length=4096, word=3, guard_page=0)
    whole = [
        Frame(Method.READ, request=2, body=frames.ReadRequest((item,)).encode()).encode(),
        Frame(Method.PING, request=3).encode(),
        Frame(
            Method.VIEW_OPEN,
            request=4,
            body=frames.Views((frames.ViewItem(version=1, segment=0, page=0),)).encode(),
        ).encode(),
    ]
    for _ in range(300):
        with opened(store) as connection:
            data = bytearray(chance.choice(whole))
            for _ in range(chance.randrange(1, 4)):
                data[chance.randrange(len(data))] ^= 1 << chance.randrange(8)
            connection.settimeout(0.2)
            try:
                connection.sendall(data)
                connection.shutdown(socket.SHUT_WR)
                assert is_closed(connection), seed
            except ConnectionError:
                pass


def test_a_write_that_stops_half_way_holds_nobody_up(store: SimpleNamespace) -> None:
    header = frames.Header(method=Method.WRITE, request=2, body_length=64, payload_length=10**6)
    with opened(store) as connection:
        connection.sendall(header.encode()[: HEADER_BYTES // 2])
        assert store.client.get("witness") == b"of what others do"


def test_lengths_beyond_their_bound_are_refused_before_memory_is_taken(
    store: SimpleNamespace,
) -> None:
    for fields in (
        {"body_length": 2**32 - 1},
        {"payload_length": 2**63},
        {"trailer_length": 2**31},
    ):
        with opened(store) as connection:
            header = frames.Header(method=Method.READ, request=2, **fields)
            connection.sendall(header.encode())
            assert is_closed(connection)


def test_counts_that_the_body_cannot_hold_are_refused(store: SimpleNamespace) -> None:
    for method in (Method.READ, Method.VIEW_OPEN, Method.SEAL):
        with opened(store) as connection:
            body = struct.pack("<II", 2**31, 0)
            connection.sendall(Frame(method, request=2, body=body).encode())
            answer = receive(connection)
            assert answer is None or answer.status != Status.OK


def test_a_reader_cannot_write(store: SimpleNamespace) -> None:
    item = frames.WriteItem(segment=0, page=0, page_count=1, version=1 << 43, offset=0, length=4)
    body = frames.WriteRequest((item,)).encode()
    with opened(store) as connection:
        connection.sendall(Frame(Method.WRITE, request=2, body=body, payload=b"1234").encode())
        answer = receive(connection)
        assert answer is None or answer.status == Status.REFUSED
        assert is_closed(connection)


def test_frames_of_a_master_from_anybody_else_are_refused(store: SimpleNamespace) -> None:
    adopt = frames.Adopt(epoch=2**20 - 1, server=0).encode()
    free = frames.Free(
        epoch=1,
        incarnation=1,
        items=(frames.FreeItem(version=2**62, segment=0, page=0, page_count=1),),
    ).encode()
    for method, body in ((Method.ADOPT, adopt), (Method.FREE, free), (Method.NOTE, bytes(48))):
        with opened(store) as connection:
            connection.sendall(Frame(method, request=2, body=body).encode())
            answer = receive(connection)
            assert answer is None or answer.status == Status.BAD_REQUEST


def test_hello_is_refused_with_a_sentence(store: SimpleNamespace) -> None:
    for fields, status in (
        ({"tenant": b"other"}, Status.REFUSED),
        ({"tenant": b"default", "token": b"secret"}, Status.REFUSED),
        ({"version_oldest": 7, "version_newest": 9}, Status.VERSION_MISMATCH),
        ({"right": Right.WRITE, "epoch": 99}, Status.WRONG_INCARNATION),
        ({"right": Right.WRITE, "epoch": 99, "incarnation": 1}, Status.WRONG_EPOCH),
    ):
        with connect(store) as connection:
            connection.sendall(hello(**fields))
            answer = receive(connection)
            assert answer is not None and answer.kind == Kind.ANSWER
            assert answer.status == status, (fields, answer)
            assert len(answer.body) > 10
            assert is_closed(connection)


def test_methods_that_it_does_not_know_are_answered(store: SimpleNamespace) -> None:
    engine = AskingEngine()
    with MessageChannel(
        engine, store.server.address, MessageChannel.hello_of(Role.TOOL, "test", tenant=b"default")
    ) as channel:
        for method in (Method.LOOKUP, Method.PUT_START, 0xFE):
            answer = channel.call(method, b"", 10.0)
            assert answer.status == Status.BAD_REQUEST
            assert b"does not know" in answer.body
    engine.close()


def test_a_silent_connection_is_closed_after_the_handshake_time(store: SimpleNamespace) -> None:
    with connect(store) as connection:
        connection.settimeout(15)
        started_s = time.monotonic()
        assert is_closed(connection)
        assert time.monotonic() - started_s < 12


def test_the_socket_is_for_this_user_only(store: SimpleNamespace) -> None:
    assert os.stat(store.server.endpoints.unix_path).st_mode & 0o077 == 0


def test_half_open_connections_cost_nobody_anything(store: SimpleNamespace) -> None:
    silent = [connect(store) for _ in range(200)]
    try:
        started_s = time.monotonic()
        for _ in range(20):
            assert store.client.get("witness") == b"of what others do"
        assert time.monotonic() - started_s < 5
    finally:
        for connection in silent:
            connection.close()


def test_a_wrong_token_is_an_error_of_its_own_kind(store: SimpleNamespace) -> None:
    engine = AskingEngine()
    hello_frame = MessageChannel.hello_of(Role.TOOL, "test", tenant=b"default", token=b"wrong")
    with MessageChannel(engine, store.server.address, hello_frame) as channel:
        with pytest.raises(StoreError) as caught:
            channel.call(Method.PING, b"", 5.0)
        assert isinstance(caught.value, AccessRefusedError)
    engine.close()
