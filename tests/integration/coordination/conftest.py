"""Real etcd members: processes on random ports of loopback, in temporary folders, ended by pid."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import os
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from mooncake_store.coordination.etcd_client.address import EtcdAddress
from mooncake_store.coordination.etcd_client.client import EtcdClient
from tests.ports import free_ports

ETCD = shutil.which("etcd")
START_TIMEOUT_S = 30.0


def freeze(pid: int) -> None:
    """Stop a process, and wait until each of its threads has: until then they go on serving."""
    os.kill(pid, signal.SIGSTOP)
    end_s = time.monotonic() + 10.0
    states: set[str] = set()
    while states != {"T"}:
        assert time.monotonic() < end_s, f"threads of {pid} still in {states}"
        states = set()
        for task in Path(f"/proc/{pid}/task").iterdir():
            with contextlib.suppress(FileNotFoundError, ProcessLookupError):  # it has just ended
                states.add((task / "stat").read_text().rpartition(")")[2].split()[0])


class Member:
    """One process of etcd."""

    def __init__(self, arguments: Sequence[str], client_port: int, log_path: Path) -> None:
        self.arguments = arguments
        self.endpoint = f"127.0.0.1:{client_port}"
        self.log_path = log_path
        self.process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        assert ETCD is not None
        with open(self.log_path, "ab") as log:
            self.process = subprocess.Popen(
                # It ends with us. Nothing of ours may run between fork and exec: gRPC has threads.
                ["setpriv", "--pdeathsig", "KILL", ETCD, *self.arguments],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
            )

    def send(self, number: int) -> None:
        assert self.process is not None
        self.process.send_signal(number)

    def freeze(self) -> None:
        assert self.process is not None
        freeze(self.process.pid)

    def thaw(self) -> None:
        self.send(signal.SIGCONT)

    def kill(self) -> None:
        assert self.process is not None
        self.process.kill()
        self.process.wait()

    def log(self) -> str:
        return self.log_path.read_text(errors="replace")[-4000:]


class Etcd:
    """A cluster of one or three members.

    Args:
        size: How many.
        flags: More flags for each.
        scheme: `http`, or `https` with flags that say how.
        options: Of the URI by which clients reach it.
    """

    def __init__(
        self,
        size: int = 1,
        flags: Sequence[str] = (),
        *,
        scheme: str = "http",
        options: str = "",
    ) -> None:
        # In memory: what is tested is not the disk, whose fsync can take a second here.
        self.folder = Path(tempfile.mkdtemp(prefix="mooncake-store-etcd-", dir="/dev/shm"))
        self.options = options
        ports = free_ports(2 * size)
        peers = [f"http://127.0.0.1:{port}" for port in ports[size:]]
        cluster = ",".join(f"m{number}={peer}" for number, peer in enumerate(peers))
        self.members = []
        for number in range(size):
            client = f"{scheme}://127.0.0.1:{ports[number]}"
            arguments = [
                *("--name", f"m{number}", "--data-dir", str(self.folder / f"m{number}")),
                *("--listen-client-urls", client, "--advertise-client-urls", client),
                *("--listen-peer-urls", peers[number]),
                *("--initial-advertise-peer-urls", peers[number]),
                *("--initial-cluster", cluster, "--log-level", "warn", "--logger", "zap"),
                *flags,
            ]
            self.members.append(Member(arguments, ports[number], self.folder / f"log{number}"))
        for member in self.members:
            member.start()

    @property
    def uri(self) -> str:
        return f"etcd://{','.join(each.endpoint for each in self.members)}/test{self.options}"

    def client(self, uri: str = "") -> EtcdClient:
        return EtcdClient(EtcdAddress.parse(uri or self.uri))

    def member(self, endpoint: str) -> Member:
        (found,) = (each for each in self.members if each.endpoint == endpoint)
        return found

    async def wait_ready(self) -> None:
        """Until every member takes part in agreeing: each answers a linearizable read."""
        for member in self.members:
            client = self.client(f"etcd://{member.endpoint}/test{self.options}")
            try:
                read = functools.partial(client.read, b"ready")
                await eventually(read, START_TIMEOUT_S, member.log)
            finally:
                await client.close()

    def close(self) -> None:
        for member in self.members:
            if member.process is not None and member.process.poll() is None:
                member.thaw()
                member.kill()
        shutil.rmtree(self.folder, ignore_errors=True)


async def eventually(
    call: Callable[[], Awaitable[Any]],
    timeout_s: float = 15.0,
    why: Callable[[], str] = lambda: "",
) -> Any:
    """Return what a call gives, once it gives something without an error."""
    from mooncake_store.errors import ClusterError

    end_s = time.monotonic() + timeout_s
    while True:
        try:
            return await call()
        except ClusterError as error:
            if time.monotonic() > end_s:
                raise AssertionError(f"not within {timeout_s} s: {error}\n{why()}") from error
            await asyncio.sleep(0.05)


@pytest.fixture
def etcd_needed() -> None:
    if ETCD is None:
        pytest.skip("etcd is not installed: apt-get install etcd-server")


@pytest.fixture
def start_etcd(etcd_needed: None) -> Iterator[Callable[..., Etcd]]:
    """Starts clusters that end with the test."""
    started: list[Etcd] = []

    def start(*args: Any, **kwargs: Any) -> Etcd:
        started.append(Etcd(*args, **kwargs))
        return started[-1]

    yield start
    for each in started:
        each.close()


@pytest.fixture(scope="session")
def shared_etcd() -> Iterator[Etcd]:
    """One member for tests that leave it and others' keys alone."""
    if ETCD is None:
        pytest.skip("etcd is not installed: apt-get install etcd-server")
    cluster = Etcd()
    try:
        yield cluster
    finally:
        cluster.close()


class Collected:
    """What a watch has seen, gathered by a task of its own."""

    def __init__(self, watch: Any) -> None:
        self.watch = watch
        self.events: list[Any] = []
        self.gap_s = 0.0
        self._heard_s = time.monotonic()
        self.task = asyncio.create_task(self._collect())

    async def _collect(self) -> None:
        async for events in self.watch:
            self.gap_s = max(self.gap_s, time.monotonic() - self._heard_s)
            self._heard_s = time.monotonic()
            self.events += events

    @property
    def values(self) -> list[bytes]:
        return [event.entry.value for event in self.events]

    async def until(
        self, is_enough: Callable[[Collected], object], timeout_s: float = 15.0
    ) -> None:
        end_s = time.monotonic() + timeout_s
        while not is_enough(self):
            if self.task.done():
                self.task.result()
                raise AssertionError("the watch has ended")
            assert time.monotonic() < end_s, f"after {timeout_s} s: {len(self.events)} events"
            await asyncio.sleep(0.01)

    async def close(self) -> None:
        self.task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await self.task
        await self.watch.aclose()


@contextlib.asynccontextmanager
async def collecting(watch: Any) -> AsyncIterator[Collected]:
    """Gather what a watch yields while the block runs."""
    collected = Collected(watch)
    try:
        yield collected
    finally:
        await collected.close()


@pytest.fixture
def kit() -> Any:
    """What tests of this folder share (they are in no package)."""
    from types import SimpleNamespace

    return SimpleNamespace(collecting=collecting, eventually=eventually, Etcd=Etcd, freeze=freeze)
