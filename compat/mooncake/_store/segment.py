"""Memory that a client adds to the pool: a store server of its own on this host."""

from __future__ import annotations

import contextlib
import ipaddress
import json
import logging
import os
import selectors
import socket
import subprocess
import sys
import time
import uuid
from pathlib import Path
from typing import Any

from mooncake_store.errors import UnavailableError
from mooncake_store.interpreter import module_command

__all__ = ["Segment", "host_address"]

READY_TIMEOUT_S = 60.0
STOP_TIMEOUT_S = 10.0
MIB = 1 << 20

log = logging.getLogger("mooncake_store.compat")


def host_address(name: str, master: str) -> str:
    """Return the numeric address under which this host serves: loopback where the master is there.

    Raises:
        UnavailableError: The name is not known.
    """
    if master.startswith(("127.", "localhost", "[::1]", "unix:", "local:")):
        return "127.0.0.1"
    try:
        return str(ipaddress.ip_address(name.strip("[]")))
    except ValueError:
        pass
    try:
        return str(socket.getaddrinfo(name, None, type=socket.SOCK_STREAM)[0][4][0])
    except OSError as error:
        raise UnavailableError(
            f"local_hostname {name!r} is unknown here: {error}", cause=error
        ) from error


class Segment:
    """A store server process that ends with this one.

    Args:
        size_bytes: Of its memory, rounded up to a MiB.
        master: As clients find it.
        address: Numeric; where it listens.

    Raises:
        UnavailableError: It did not begin to serve; its log says why.
    """

    def __init__(self, size_bytes: int, master: str, address: str) -> None:
        self.id = str(uuid.uuid4())
        self.size_bytes = -(-size_bytes // MIB) * MIB
        where = ["--coordinator" if "://" in master or master.startswith("local:") else "--master"]
        flags = [
            *where, master, "--pool-size", f"{self.size_bytes}B", "--address", address,
            "--no-keep", "--no-grpc", "--no-http", "--log-level", "warning", "--announce",
            "--quiet",
        ]  # fmt: skip
        if not ipaddress.ip_address(address).is_loopback:
            flags.append("--insecure")
        self._process = subprocess.Popen(
            module_command(
                "mooncake._store.segment_process", flags, root=Path(__file__).resolve().parents[2]
            ),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env=_environment(),
            start_new_session=True,  # a Ctrl-C at the terminal is for the engine alone
        )
        try:
            ready = self._wait_ready()
        except BaseException:
            self.close()
            raise
        self.name: str = ready["name"]
        self.node_id: str = ready["node_id"]
        host, port = ready["address"], ready["port"]
        self.endpoint = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"

    @property
    def pid(self) -> int:
        """Of the store server."""
        return self._process.pid

    def _wait_ready(self) -> dict[str, Any]:
        assert self._process.stdout is not None
        end = time.monotonic() + READY_TIMEOUT_S
        line = b""
        with selectors.DefaultSelector() as selector:
            selector.register(self._process.stdout, selectors.EVENT_READ)
            while not line.endswith(b"\n"):
                left_s = end - time.monotonic()
                if left_s <= 0 or not selector.select(left_s):
                    raise UnavailableError(
                        f"the store server of this client was not ready after {READY_TIMEOUT_S} s"
                    )
                part = os.read(self._process.stdout.fileno(), 65536)
                if not part:
                    raise UnavailableError(
                        "the store server of this client could not start: it needs "
                        f"{self.size_bytes >> 20} MiB in /dev/shm; its message stands above"
                    )
                line += part
        ready: dict[str, Any] = json.loads(line)
        return ready

    def close(self) -> None:
        """End the store server; what only it holds is lost, as it is with the engine's end."""
        with contextlib.suppress(OSError):
            if self._process.stdin is not None:
                self._process.stdin.close()
        try:
            self._process.wait(STOP_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            log.warning("the store server %d did not end, and is killed", self._process.pid)
            self._process.kill()
            self._process.wait()
        if self._process.stdout is not None:
            self._process.stdout.close()


def _environment() -> dict[str, str]:
    """Of the child: it finds the packages where this process has found them."""
    return {**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
