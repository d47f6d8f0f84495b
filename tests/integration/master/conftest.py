"""A real master process, and peers that speak to it frame by frame.

`FramePeer` is a client on a bare socket; `ServerDouble` is a store server of the same kind: it
keeps no bytes, but says what a store server says, when a test lets it.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from mooncake_store._native import ffi, lib
from mooncake_store.coordination import NodeNumber
from mooncake_store.coordination.local import LocalCoordinator
from mooncake_store.errors import Status
from mooncake_store.protocol import frames
from mooncake_store.protocol.frames import Frame
from mooncake_store.protocol.methods import Kind, Method, Role

HEADER_BYTES = 48
RUN = """
import json, sys
from pathlib import Path
from mooncake_store.errors import StoreError
from mooncake_store.master.config import MasterConfig
from mooncake_store.master.process import run_master
settings = json.loads(sys.argv[1])
try:
    run_master(MasterConfig(**settings), ready_file=Path(sys.argv[2]))
except StoreError as error:
    print(error, file=sys.stderr)
    sys.exit(2)
"""


class RunningMaster:
    """A master process and where it is reached."""

    def __init__(
        self, folder: Path, settings: dict[str, Any], run_under: Sequence[str] = ()
    ) -> None:
        self.folder = folder
        self.log_path = folder / f"log-{time.monotonic_ns()}"
        self.ready_path = folder / f"ready-{time.monotonic_ns()}"
        environment = {**os.environ, "XDG_RUNTIME_DIR": str(folder), "PYTHONUNBUFFERED": "1"}
        with open(self.log_path, "wb") as log:
            self.process = subprocess.Popen(
                [
                    *run_under, sys.executable, "-c", RUN, json.dumps(settings),
                    str(self.ready_path),
                ],
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
            )  # fmt: skip

    def wait_ready(self, timeout_s: float = 20.0) -> RunningMaster:
        wait_until(lambda: self.ready_path.exists() or self.process.poll() is not None, timeout_s)
        assert self.process.poll() is None, self.log()
        self.endpoints = SimpleNamespace(**json.loads(self.ready_path.read_text()))
        return self

    @property
    def address(self) -> tuple[str, int]:
        return self.endpoints.address, self.endpoints.port

    def log(self) -> str:
        return self.log_path.read_text()

    def wait_log(self, text: str, timeout_s: float = 10.0) -> str:
        wait_until(lambda: text in self.log(), timeout_s, lambda: f"no {text!r} in {self.log()}")
        return self.log()

    def stop(self, timeout_s: float = 10.0) -> int:
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
            try:
                self.process.wait(timeout_s)
            except subprocess.TimeoutExpired:
                self.process.kill()
                self.process.wait()
                raise AssertionError(f"not stopped after {timeout_s} s: {self.log()}") from None
        return self.process.returncode


def wait_until(
    is_so: Callable[[], object], timeout_s: float = 10.0, why: Callable[[], str] | None = None
) -> None:
    deadline_s = time.monotonic() + timeout_s
    while not is_so():
        if time.monotonic() > deadline_s:
            raise AssertionError(why() if why else f"not within {timeout_s} s")
        time.sleep(0.01)


class Closed(Exception):
    """The master closed the connection."""


class FramePeer:
    """A connection that says HELLO and then whatever a test wants."""

    def __init__(
        self, address: tuple[str, int] | str, *, hello: frames.Hello | None = None, **fields: Any
    ) -> None:
        if isinstance(address, str):
            self.socket = socket.socket(socket.AF_UNIX)
            self.socket.settimeout(10.0)
            self.socket.connect(address)
        else:
            self.socket = socket.create_connection(address, timeout=10.0)
            self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.address = address
        self.requests = 1
        self.inbox: deque[Frame] = deque()
        self.sending = threading.Lock()
        fields.setdefault("role", Role.CLIENT)
        fields.setdefault("name", b"test")
        sent = hello or frames.Hello(**fields)
        self.send(Frame(Method.HELLO, request=self.requests, body=sent.encode()))
        self.hello_frame = self.receive()
        if self.hello_frame.status == Status.OK:
            self.hello = frames.HelloAnswer.decode(self.hello_frame.body)

    def send(self, frame: Frame) -> None:
        with self.sending:
            self.socket.sendall(frame.encode())

    def send_bytes(self, data: bytes) -> None:
        self.socket.sendall(data)

    def _exactly(self, length: int) -> bytes:
        data = bytearray()
        while len(data) < length:
            try:
                part = self.socket.recv(length - len(data))
            except ConnectionError as error:
                raise Closed from error
            if not part:
                raise Closed
            data += part
        return bytes(data)

    def receive(self) -> Frame:
        head = self._exactly(HEADER_BYTES)
        header = frames.Header.decode(head)
        rest = header.body_length + header.payload_length + header.trailer_length
        return Frame.decode(head + self._exactly(rest))

    def start(self, method: Method, body: frames.Body | bytes = b"", **fields: Any) -> int:
        """Send a request and do not wait; return its number."""
        self.requests += 1
        data = body if isinstance(body, bytes) else body.encode()
        self.send(Frame(method, request=self.requests, body=data, **fields))
        return self.requests

    def finish(self, request: int) -> Frame:
        """Wait for the answer to a request; other frames wait in the inbox."""
        for frame in self.inbox:
            if frame.kind == Kind.ANSWER and frame.request == request:
                self.inbox.remove(frame)
                return frame
        while True:
            frame = self.receive()
            if frame.kind == Kind.ANSWER and frame.request == request:
                return frame
            self.inbox.append(frame)

    def is_silent(self, seconds: float) -> bool:
        """Whether nothing comes for so long."""
        self.socket.settimeout(seconds)
        try:
            self.inbox.append(self.receive())
        except TimeoutError:
            return True
        finally:
            self.socket.settimeout(10.0)
        return False

    def ask(self, method: Method, body: frames.Body | bytes = b"", **fields: Any) -> Frame:
        return self.finish(self.start(method, body, **fields))

    def value(self, method: Method, body: frames.Body | bytes = b"", **fields: Any) -> Any:
        """Ask, and return the decoded answer, which must be OK."""
        frame = self.ask(method, body, **fields)
        assert frame.status == Status.OK, (Status(frame.status), frame.body)
        return frame.decode_body()

    def is_closed(self) -> bool:
        """Whether the master closes the connection, now or soon."""
        try:
            while True:
                self.receive()
        except Closed:
            return True
        except TimeoutError:
            return False

    def close(self) -> None:
        self.socket.close()

    # ---- what clients do ----

    def hash(self, key: bytes) -> bytes:
        room = ffi.new("uint8_t[16]")
        lib.ms_hash_key_bytes(self.hello.secret, b"default", 7, key, len(key), room)
        return bytes(ffi.buffer(room))

    def hashes(self, *keys: bytes) -> frames.Hashes:
        return frames.Hashes(tuple(self.hash(key) for key in keys))

    def put_item(self, key: bytes, size: int = 4096, **fields: Any) -> frames.PutItem:
        fields.setdefault("deadline_ms", 60_000)
        return frames.PutItem(hash=self.hash(key), size=size, key=key, **fields)

    def put_start(
        self, *items: frames.PutItem, number: int = 0, number_done: int = 0
    ) -> tuple[frames.Location, ...]:
        grants: tuple[frames.Location, ...] = self.value(
            Method.PUT_START, frames.PutStart(number, items, number_done)
        ).grants
        return grants

    def end_item(self, key: bytes, grant: frames.Location) -> frames.EndItem:
        return frames.EndItem(hash=self.hash(key), version=grant.version, replica_mask=2**64 - 1)

    def put_end(
        self, key: bytes, grant: frames.Location, number: int = 0, method: Method = Method.PUT_END
    ) -> Status:
        body = frames.PutEnd(number, (self.end_item(key, grant),))
        (status,) = self.value(method, body).statuses
        return Status(status)

    def put(self, key: bytes, size: int = 4096, **fields: Any) -> frames.Location:
        """Put an object whose bytes nobody writes."""
        (grant,) = self.put_start(self.put_item(key, size, **fields))
        assert grant.status == Status.OK, Status(grant.status)
        assert self.put_end(key, grant) == Status.OK
        return grant

    def exists(self, *keys: bytes) -> list[bool]:
        frame = self.ask(Method.EXISTS_KEYS, self.hashes(*keys))
        assert frame.status == Status.OK
        return [byte == 1 for byte in frame.payload]

    def remove_body(self, *keys: bytes, number: int = 0, flags: int = 0) -> frames.Remove:
        return frames.Remove(
            number, tuple(frames.KeyItem(self.hash(key), key, flags) for key in keys)
        )


class ServerDouble(FramePeer):
    """A store server without memory: it answers as one would, and a test can hold it back."""

    def __init__(
        self,
        address: tuple[str, int],
        *,
        node: int = 1,
        incarnation: int = 1,
        page_count: int = 1024,
        inventory: tuple[frames.InventoryItem, ...] = (),
        stats: bool = True,
        holds_inventory: bool = False,
        name: bytes = b"",
    ) -> None:
        self.incarnation = incarnation
        self.page_count = page_count
        self.inventory = inventory
        self.seen: list[Frame] = []
        self.holds_frees = threading.Event()  # set: FREEs are noted, not answered
        self.may_tell = threading.Event()  # cleared: the inventory waits
        if not holds_inventory:
            self.may_tell.set()
        self.is_adopted = threading.Event()
        self.has_stats = stats
        self.epoch = 0
        self.number = -1
        self.is_over = threading.Event()
        segment = frames.SegmentInfo(0, 0, page_count, page_count)
        super().__init__(
            address,
            role=Role.SERVER,
            server=frames.ServerInfo(
                node_id=bytes([node]) * 16,
                incarnation=incarnation,
                segments=(segment,),
                name=name or f"node-{node}".encode(),
                host=f"host-{node}".encode(),
                addresses=b"127.0.0.1:1",
            ),
        )
        if self.hello_frame.status != Status.OK:
            return
        self.threads = [threading.Thread(target=self._serve), threading.Thread(target=self._beat)]
        for thread in self.threads:
            thread.start()

    def wait_adopted(self) -> ServerDouble:
        assert self.is_adopted.wait(10.0), "no ADOPT came"
        return self

    def _oneway(self, method: Method, body: frames.Body, flags: int = 0) -> None:
        self.send(Frame(method, kind=Kind.ONEWAY, body=body.encode(), flags=flags))

    def _serve(self) -> None:
        self.socket.settimeout(None)
        with contextlib.suppress(Closed, OSError):
            while True:
                frame = self.receive()
                self.seen.append(frame)
                if frame.method == Method.ADOPT:
                    adopt = frames.Adopt.decode(frame.body)
                    self.epoch, self.number = adopt.epoch, adopt.server
                    self.answer(frame)
                    self.may_tell.wait(20.0)
                    self._oneway(Method.INVENTORY, frames.Inventory(self.inventory), flags=1)
                    self.is_adopted.set()
                elif frame.method == Method.FREE and not self.holds_frees.is_set():
                    self.free(Method.FREED, frame)
                elif frame.kind == Kind.REQUEST:
                    self.answer(frame)
        self.is_over.set()

    def _beat(self) -> None:
        while not self.is_over.wait(0.3):
            if self.is_adopted.is_set() and self.has_stats:
                with contextlib.suppress(OSError):
                    self._oneway(
                        Method.SERVER_STATS,
                        frames.ServerStats(
                            self.epoch,
                            self.incarnation,
                            (frames.SegmentInfo(0, 0, self.page_count, self.page_count),),
                        ),
                    )

    def answer(self, frame: Frame, status: Status = Status.OK) -> None:
        self.send(Frame(frame.method, kind=Kind.ANSWER, request=frame.request, status=int(status)))

    def free(self, method: Method, frame: Frame) -> None:
        """Answer a FREE with CLEARED or FREED."""
        self._oneway(method, frames.Free.decode(frame.body))

    def frames_of(self, method: Method) -> list[Frame]:
        return [frame for frame in self.seen if frame.method == method]

    def wait_frame(self, method: Method, count: int = 1) -> Frame:
        wait_until(lambda: len(self.frames_of(method)) >= count)
        return self.frames_of(method)[count - 1]

    def relay_end(self, session: int, number: int, *items: frames.EndItem) -> None:
        self._oneway(Method.RELAYED_END, frames.RelayedEnd(session, number, items))

    def close(self) -> None:
        self.is_over.set()
        with contextlib.suppress(OSError):
            self.socket.shutdown(socket.SHUT_RDWR)
        for thread in getattr(self, "threads", []):
            thread.join(5.0)
        self.socket.close()


class Bench:
    """What a test starts, and what is stopped after it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.masters: list[RunningMaster] = []
        self.peers: list[FramePeer] = []

    def launch(self, *, run_under: Sequence[str] = (), **settings: Any) -> RunningMaster:
        """Start a master without waiting for it; without gRPC and HTTP unless they are wanted."""
        settings = {"port": 0, "grpc": False, "http": False, "log_level": "debug", **settings}
        master = RunningMaster(self.folder, settings, run_under)
        self.masters.append(master)
        return master

    def master(self, **settings: Any) -> RunningMaster:
        return self.launch(**settings).wait_ready()

    def master_that_knows(self, node: int = 1, *, struck: int = 0) -> RunningMaster:
        """A master whose predecessor gave that node a number, and waits for nobody."""
        folder = self.folder / "known"

        async def give() -> None:
            coordinator = LocalCoordinator(folder)
            await coordinator.lead("a test")
            number = NodeNumber(0, bytes([node]) * 16, f"node-{node}", struck)
            await coordinator.keep_number(number)
            await coordinator.close()

        asyncio.run(give())
        return self.master(coordinator=f"local:{folder}")

    def client(self, master: RunningMaster, **fields: Any) -> FramePeer:
        peer = FramePeer(master.address, **fields)
        self.peers.append(peer)
        return peer

    def server(self, master: RunningMaster, **fields: Any) -> ServerDouble:
        double = ServerDouble(master.address, **fields)
        self.peers.append(double)
        return double

    def ready_server(self, master: RunningMaster, client: FramePeer, **fields: Any) -> ServerDouble:
        """A server that the master has adopted and told others to be ready."""
        double = self.server(master, **fields).wait_adopted()

        def is_ready() -> bool:
            members = client.value(Method.MEMBERS).items
            return any(item.server == double.number and item.state == 1 for item in members)

        wait_until(is_ready)
        return double

    def close(self) -> None:
        for peer in self.peers:
            peer.close()
        codes = [master.stop() for master in self.masters]
        for code, master in zip(codes, self.masters, strict=True):
            assert code in (0, 2), f"exit status {code}: {master.log()}"


@pytest.fixture
def bench() -> Iterator[Bench]:
    folder = Path(tempfile.mkdtemp(prefix="ms-"))  # short: Unix sockets have short paths
    bench = Bench(folder)
    try:
        yield bench
    finally:
        try:
            bench.close()
        finally:
            shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture
def until() -> Callable[..., None]:
    return wait_until


@pytest.fixture
def closed() -> type[Closed]:
    return Closed


@pytest.fixture
def master(bench: Any) -> Any:
    return bench.master()


@pytest.fixture
def client(bench: Any, master: Any) -> Any:
    return bench.client(master)


@pytest.fixture
def server(bench: Any, master: Any, client: Any) -> Any:
    return bench.ready_server(master, client)
