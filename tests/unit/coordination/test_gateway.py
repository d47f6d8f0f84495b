"""Asking etcd over HTTP, of members that are away, frozen, or no etcd at all."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from mooncake_store.coordination.etcd_client.address import EtcdAddress
from mooncake_store.coordination.etcd_client.gateway import Gateway
from mooncake_store.errors import UnavailableError


@contextmanager
def member(answer: bytes | None) -> Iterator[str]:
    """Something that answers every connection so; None: it accepts, and says nothing."""
    listening = socket.create_server(("127.0.0.1", 0))
    kept = []

    def serve() -> None:
        while True:
            try:
                connection, _ = listening.accept()
            except OSError:
                return
            kept.append(connection)
            if answer is not None:
                connection.recv(65536)
                connection.sendall(answer)
                connection.shutdown(socket.SHUT_WR)

    thread = threading.Thread(target=serve, daemon=True)
    thread.start()
    try:
        yield f"127.0.0.1:{listening.getsockname()[1]}"
    finally:
        listening.shutdown(socket.SHUT_RDWR)
        listening.close()
        thread.join(5.0)
        for connection in kept:
            connection.close()


def http(status: str, body: str) -> bytes:
    return f"HTTP/1.1 {status}\r\nContent-Length: {len(body)}\r\n\r\n{body}".encode()


FOUND = http("200 OK", '{"header": {}, "kvs": [{"key": "aw==", "value": "djE="}]}')


def read(*endpoints: str, timeout_s: float = 3.0) -> bytes | None:
    return Gateway(EtcdAddress(endpoints)).read(b"k", timeout_s)


def test_a_value_an_empty_value_and_no_key_are_three_things() -> None:
    with member(FOUND) as endpoint:
        assert read(endpoint) == b"v1"
    with member(http("200 OK", '{"kvs": [{"key": "aw=="}]}')) as endpoint:
        assert read(endpoint) == b""
    with member(http("200 OK", "{}")) as endpoint:
        assert read(endpoint) is None


@pytest.mark.parametrize(
    "bad",
    [
        None,
        b"",
        b"SSH-2.0-OpenSSH\r\n",
        http("200 OK", "no json"),
        http("200 OK", "[]"),
        http("200 OK", '{"kvs": [{"value": "*"}]}'),
        http("503 Service Unavailable", '{"message": "no leader", "code": 14}'),
        http("502 Bad Gateway", "<html>"),
    ],
)
def test_a_member_of_no_use_is_left_for_the_next(bad: bytes | None) -> None:
    with member(bad) as first, member(FOUND) as second:
        gateway = Gateway(EtcdAddress((first, second)))
        assert gateway.read(b"k", 3.0) == b"v1"
        started_s = time.monotonic()
        assert gateway.read(b"k", 3.0) == b"v1"  # and not asked first again
        assert time.monotonic() - started_s < 0.9
    with member(bad) as only:
        with pytest.raises(UnavailableError):
            read(only)


def test_frozen_members_take_no_longer_than_allowed() -> None:
    with member(None) as first, member(None) as second:
        started_s = time.monotonic()
        with pytest.raises(UnavailableError):
            read(first, second, timeout_s=0.5)
        assert time.monotonic() - started_s < 2.0
