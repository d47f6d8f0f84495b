"""What other threads do while one opens a session anew: real processes, a relay in front."""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Iterator

import pytest

from mooncake_store import Client
from mooncake_store.cli.bench.cluster import Cluster
from mooncake_store.protocol import frames
from mooncake_store.protocol.methods import Role

pytestmark = pytest.mark.timeout(60)

MIB = 1 << 20
HEADER_BYTES = 48
TIMEOUT_S = 10.0


class Relay:
    """Passes connections on to a master, and can keep back HELLOs that open a session."""

    def __init__(self, address: str) -> None:
        host, port = address.rsplit(":", 1)
        self._target = (host, int(port))
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.address = f"127.0.0.1:{self._listener.getsockname()[1]}"
        self.is_open = threading.Event()  # HELLOs that open a session go on
        self.is_open.set()
        self.opening: list[int] = []  # sessions of clients' HELLOs, 0: opens one
        self.came = threading.Condition()
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                near, _ = self._listener.accept()
                threading.Thread(target=self._serve, args=(near,), daemon=True).start()

    def _serve(self, near: socket.socket) -> None:
        with near, contextlib.suppress(OSError):
            head = _exactly(near, HEADER_BYTES)
            body = _exactly(near, frames.Header.decode(head).body_length)
            hello = frames.Hello.decode(body)
            if hello.role == Role.CLIENT:
                with self.came:
                    self.opening.append(hello.session)
                    self.came.notify_all()
                if hello.session == 0:
                    self.is_open.wait(TIMEOUT_S)
            with socket.create_connection(self._target) as far:
                far.sendall(head + body)
                back = threading.Thread(target=_pump, args=(far, near), daemon=True)
                back.start()
                _pump(near, far)
                back.join()

    def wait_opening(self, count: int) -> None:
        with self.came:
            assert self.came.wait_for(lambda: self.opening.count(0) >= count, TIMEOUT_S)

    def close(self) -> None:
        self._listener.close()


def _exactly(source: socket.socket, length: int) -> bytes:
    data = b""
    while len(data) < length:
        part = source.recv(length - len(data))
        if not part:
            raise ConnectionResetError
        data += part
    return data


def _pump(source: socket.socket, target: socket.socket) -> None:
    with contextlib.suppress(OSError):
        while data := source.recv(65536):
            target.sendall(data)
    for end in (source, target):
        with contextlib.suppress(OSError):
            end.shutdown(socket.SHUT_RDWR)


@pytest.fixture
def cluster() -> Iterator[Cluster]:
    with Cluster(pool_size_bytes=16 * MIB) as made:
        yield made


def test_who_connects_while_a_session_is_opened_works_in_none_of_its_own(cluster: Cluster) -> None:
    """Else its puts and pins belong to a session that the client does not know, and never ends."""
    relay = Relay(cluster.address)
    with contextlib.closing(relay), Client(relay.address, timeout_s=TIMEOUT_S) as client:
        assert client.put("before", b"v")
        relay.is_open.clear()
        cluster.kill_master()
        cluster.start_master()  # it knows no session
        found: list[bool] = []
        calls = [
            threading.Thread(target=lambda: found.append(client.exists("before"))) for _ in range(4)
        ]
        calls[0].start()
        relay.wait_opening(2)  # the first one was of the client's start
        for call in calls[1:]:
            call.start()
        # Their connections are made and refused, as their HELLOs name the session that was lost.
        with relay.came:
            assert relay.came.wait_for(lambda: len(relay.opening) >= 6, TIMEOUT_S)
        assert relay.opening.count(0) == 2
        relay.is_open.set()
        for call in calls:
            call.join()
        assert found == [True] * 4
        with client.match_prefix(["before"], pin=True) as match:
            assert match.count == 1
        totals = client.counters().totals
        assert (totals["sessions"], totals["pins"]) == (1, 0)
    assert relay.opening.count(0) == 2
