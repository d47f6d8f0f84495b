"""A store of its own, for a benchmark or a demonstration: real processes on loopback."""

from __future__ import annotations

import contextlib
import os
import signal
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType

from mooncake_store import Client
from mooncake_store.cli.processes import Child
from mooncake_store.errors import ClusterError, UnavailableError

READY_TIMEOUT_S = 60.0
FREEZE_TIMEOUT_S = 5.0
# Slower than this no machine touches its memory.
TOUCH_BYTES_PER_S_LEAST = 100e6


class ServerProcess(Child):
    """One process of the store."""

    def signal(self, number: int) -> None:
        """Send a signal to this process only."""
        os.kill(self.pid, number)

    def kill(self) -> None:
        """End it as a crash does."""
        self.signal(signal.SIGKILL)
        self.end()

    def freeze(self) -> None:
        """Stop it, and wait until each of its threads has: until then they go on serving."""
        self.signal(signal.SIGSTOP)
        end = time.monotonic() + FREEZE_TIMEOUT_S
        while time.monotonic() < end and _states_of(self.pid) != {"T"}:
            time.sleep(0.001)

    def thaw(self) -> None:
        self.signal(signal.SIGCONT)

    def is_running(self) -> bool:
        return self.poll() is None


class Cluster:
    """A master and store servers that nobody else uses, in folders of their own.

    Args:
        pool_size_bytes: Of each server.
        servers: How many.
        master_flags: More flags for the master (an eviction policy).
        address: Loopback, of IPv4 or IPv6, on which all of it listens.
        coordinator: Of several masters (`etcd://...`); empty: one master, and a folder.
        masters: How many; the first one leads first.
        is_kept: Servers that are asked to end leave their objects for the next process.
    """

    def __init__(
        self,
        *,
        pool_size_bytes: int,
        servers: int = 1,
        master_flags: Sequence[str] = (),
        address: str = "127.0.0.1",
        coordinator: str = "",
        masters: int = 1,
        is_kept: bool = False,
    ) -> None:
        self._folder = tempfile.TemporaryDirectory(prefix="mooncake-store-bench-")
        self._segments = tempfile.TemporaryDirectory(prefix="mooncake-store-bench-", dir="/dev/shm")
        folder = Path(self._folder.name)
        # Nobody's settings: neither a file of this user nor variables of this shell.
        self.environment = {**_without_settings(), "XDG_CONFIG_HOME": str(folder)}
        self.servers: list[ServerProcess] = []
        self._server_arguments: list[list[str]] = []
        flags = ["--address", address, "--port", "0", "--log-level", "error"]
        flags += ["--coordinator", coordinator or f"local:{folder / 'coordination'}"]
        self._is_kept = is_kept
        self._master_arguments = ["master", *flags, *master_flags]
        self.masters = [ServerProcess(self._master_arguments, environment=self.environment)]
        try:
            port = self.master.wait_ready(READY_TIMEOUT_S)["port"]
            self.address = f"[{address}]:{port}" if ":" in address else f"{address}:{port}"
            if coordinator:
                self.address = coordinator
            else:
                self._master_arguments[self._master_arguments.index("--port") + 1] = str(port)
            self._finding = ["--coordinator" if coordinator else "--master", self.address]
            for _ in range(1, masters):
                self.add_master()
            for number in range(servers):
                self.servers.append(self._server(number, pool_size_bytes, address))
            for server in self.servers:
                server.wait_ready(READY_TIMEOUT_S)
            self._wait_for_memory(servers * pool_size_bytes)
        except BaseException:
            self.close()
            raise

    @property
    def master(self) -> ServerProcess:
        """The first master."""
        return self.masters[0]

    def add_master(self) -> ServerProcess:
        """Start another one, which stands by."""
        self.masters.append(ServerProcess(self._master_arguments, environment=self.environment))
        return self.masters[-1]

    def kill_master(self) -> None:
        """End the master as a crash does."""
        self.master.kill()

    def start_master(self) -> None:
        """Start a master in the place of the one that was killed: same port, same cluster."""
        self.masters[0] = ServerProcess(self._master_arguments, environment=self.environment)
        self.master.wait_ready(READY_TIMEOUT_S)

    def kill_server(self, number: int) -> None:
        """End a store server as a crash does."""
        self.servers[number].kill()

    def start_server(self, number: int) -> None:
        """Start one in the place of the one that was killed: same name, same files."""
        self.servers[number] = ServerProcess(
            self._server_arguments[number], environment=self.environment
        )
        self.servers[number].wait_ready(READY_TIMEOUT_S)

    def start_both(self, number: int) -> None:
        """Start master and server in the places of those that were killed, at the same time."""
        self.masters[0] = ServerProcess(self._master_arguments, environment=self.environment)
        self.servers[number] = ServerProcess(
            self._server_arguments[number], environment=self.environment
        )
        self.master.wait_ready(READY_TIMEOUT_S)
        self.servers[number].wait_ready(READY_TIMEOUT_S)

    def _server(self, number: int, pool_size_bytes: int, address: str) -> ServerProcess:
        flags = [*self._finding, "--name", f"bench-{os.getpid()}-{number}"]
        flags += ["--address", address, "--log-level", "error"]
        flags += ["--pool-size", f"{pool_size_bytes}B", "--segment-dir", self._segments.name]
        if not self._is_kept:
            flags += ["--no-keep"]
        # Nothing is timed yet: the whole core may touch the memory.
        flags += ["--touch-permille", "1000"]
        self._server_arguments.append(["server", *flags])
        return ServerProcess(["server", *flags], environment=self.environment)

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
    def folder(self) -> str:
        """For what belongs to this store and goes with it."""
        return self._folder.name

    @property
    def segment_dir(self) -> str:
        """Where the servers' memory lies, as files."""
        return self._segments.name

    @property
    def pids(self) -> list[int]:
        """Every process that serves."""
        return [*(master.pid for master in self.masters), *(server.pid for server in self.servers)]

    def close(self) -> None:
        """End every process and remove its folders."""
        for process in [*reversed(self.servers), *self.masters]:
            if process.is_running():
                process.thaw()  # one that was frozen hears nothing else
            process.end()
        self._segments.cleanup()
        self._folder.cleanup()

    def _wait_for_memory(self, size_bytes: int) -> None:
        """Wait until all pages of all servers are there, so that none is touched while timed."""
        end = time.monotonic() + READY_TIMEOUT_S + size_bytes / TOUCH_BYTES_PER_S_LEAST
        while time.monotonic() < end:
            for server in self.servers:
                if not server.is_running():
                    raise UnavailableError("a server ended before it was ready")
            try:
                with Client(self.address) as client:
                    if sum(member.ready_bytes for member in client.members()) >= size_bytes:
                        return
            except ClusterError:
                pass  # not yet
            time.sleep(0.05)
        raise UnavailableError("the servers' memory was not ready in time")


def _without_settings() -> dict[str, str]:
    return {k: v for k, v in os.environ.items() if not k.startswith("MOONCAKE_STORE_")}


def _states_of(pid: int) -> set[str]:
    """The states of a process's threads, as the kernel names them."""
    states = set()
    for task in Path(f"/proc/{pid}/task").iterdir():
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):  # it has just ended
            states.add((task / "stat").read_text().rpartition(")")[2].split()[0])
    return states
