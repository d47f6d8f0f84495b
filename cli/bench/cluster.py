"""A store of its own for a benchmark: master and servers as real processes on loopback."""

from __future__ import annotations

import ctypes
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType

from mooncake_store.errors import ClusterError, UnavailableError

PR_SET_PDEATHSIG = 1
READY_TIMEOUT_S = 60.0


class ServerProcess:
    """One process of the store; its log goes to a file."""

    def __init__(self, command: Sequence[str], log: Path, environment: dict[str, str]) -> None:
        self.log = log
        with open(log, "ab") as sink:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "mooncake_store.cli.main", *command],
                stdin=subprocess.DEVNULL,
                stdout=sink,
                stderr=sink,
                env=environment,
                preexec_fn=_end_with_parent,
            )
        self.pid = self._process.pid

    def signal(self, number: int) -> None:
        """Send a signal to this process only."""
        self._process.send_signal(number)

    def is_running(self) -> bool:
        return self._process.poll() is None

    def end(self) -> None:
        """Ask the process to end, then make it."""
        if self.is_running():
            self.signal(signal.SIGCONT)
            self.signal(signal.SIGTERM)
            try:
                self._process.wait(10)
            except subprocess.TimeoutExpired:
                self.signal(signal.SIGKILL)
        self._process.wait()

    def last_words(self) -> str:
        """Return the end of its log, for an error message."""
        return "\n".join(self.log.read_text(errors="replace").splitlines()[-5:])


def _end_with_parent() -> None:
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)


class Cluster:
    """A master and store servers that nobody else uses, in folders of their own.

    Args:
        pool_size_bytes: Of each server.
        servers: How many.
        master_flags: More flags for the master (an eviction policy).
        address: Loopback, of IPv4 or IPv6, on which all of it listens.
    """

    def __init__(
        self,
        *,
        pool_size_bytes: int,
        servers: int = 1,
        master_flags: Sequence[str] = (),
        address: str = "127.0.0.1",
    ) -> None:
        self._folder = tempfile.TemporaryDirectory(prefix="mooncake-store-bench-")
        self._segments = tempfile.TemporaryDirectory(prefix="mooncake-store-bench-", dir="/dev/shm")
        folder = Path(self._folder.name)
        # Nobody's settings: neither a file of this user nor variables of this shell.
        self.environment = {**_without_settings(), "XDG_CONFIG_HOME": str(folder)}
        self._host = address
        port = _free_port(address)
        self.address = f"[{address}]:{port}" if ":" in address else f"{address}:{port}"
        self.servers: list[ServerProcess] = []
        self.master = ServerProcess(
            ["master", "--port", str(port), "--address", address, *master_flags],
            folder / "master.log",
            self.environment,
        )
        try:
            self._wait_for_port(port)
            for number in range(servers):
                flags = ["--master", self.address, "--name", f"bench-{os.getpid()}-{number}"]
                flags += ["--pool-size", f"{pool_size_bytes}B", "--port", "0"]
                flags += ["--segment-dir", self._segments.name, "--address", address]
                log = folder / f"server-{number}.log"
                self.servers.append(ServerProcess(["server", *flags], log, self.environment))
            self._wait_for_servers(servers, pool_size_bytes)
        except BaseException:
            self.close()
            raise

    def __enter__(self) -> Cluster:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        value: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    @property
    def pids(self) -> list[int]:
        """Every process that serves."""
        return [self.master.pid, *(server.pid for server in self.servers)]

    def close(self) -> None:
        """End every process and remove its folders."""
        for process in [*reversed(self.servers), self.master]:
            process.end()
        self._segments.cleanup()
        self._folder.cleanup()

    def _wait_for_port(self, port: int) -> None:
        end = time.monotonic() + READY_TIMEOUT_S
        while time.monotonic() < end and self.master.is_running():
            with socket.socket(_family(self._host)) as probe:
                probe.settimeout(0.5)
                if probe.connect_ex((self._host, port)) == 0:
                    return
            time.sleep(0.01)
        raise UnavailableError(f"the master did not start:\n{self.master.last_words()}")

    def _wait_for_servers(self, count: int, pool_size_bytes: int) -> None:
        """Wait until all memory of all servers is there, so that no page is touched while timed."""
        from mooncake_store import Client

        end = time.monotonic() + READY_TIMEOUT_S + pool_size_bytes / 200e6
        while time.monotonic() < end:
            for server in self.servers:
                if not server.is_running():
                    raise UnavailableError(f"a server did not start:\n{server.last_words()}")
            try:
                with Client(self.address) as client:
                    ready = sum(member.ready_bytes for member in client.members())
            except ClusterError:
                ready = 0
            if ready >= count * pool_size_bytes:
                return
            time.sleep(0.1)
        raise UnavailableError("the servers' memory was not ready in time")


def _without_settings() -> dict[str, str]:
    return {k: v for k, v in os.environ.items() if not k.startswith("MOONCAKE_STORE_")}


def _family(address: str) -> socket.AddressFamily:
    return socket.AF_INET6 if ":" in address else socket.AF_INET


def _free_port(address: str) -> int:
    with socket.socket(_family(address)) as probe:
        probe.bind((address, 0))
        return int(probe.getsockname()[1])
