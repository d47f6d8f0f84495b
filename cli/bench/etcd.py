"""An etcd of its own, for a benchmark: one member on loopback, with etcd's defaults."""

from __future__ import annotations

import contextlib
import functools
import json
import os
import shutil
import socket
import subprocess
import tempfile
import time
import urllib.request
from types import TracebackType

from mooncake_store.cli.processes import end_with_parent
from mooncake_store.coordination.etcd import leader_key
from mooncake_store.coordination.etcd_client.address import EtcdAddress
from mooncake_store.coordination.etcd_client.gateway import Gateway
from mooncake_store.errors import UnavailableError

START_TIMEOUT_S = 30.0
STOP_TIMEOUT_S = 10.0
ASK_TIMEOUT_S = 5.0


class Etcd:
    """One process of etcd and its data.

    Raises:
        UnavailableError: There is no `etcd` on the path, or it does not start.
    """

    def __init__(self) -> None:
        program = shutil.which("etcd")
        if program is None:
            raise UnavailableError("this benchmark starts an etcd, and finds none on the path")
        self._folder = tempfile.TemporaryDirectory(prefix="mooncake-store-bench-etcd-")
        client, peer = _free_ports(2)
        self.endpoint = f"127.0.0.1:{client}"
        self._command = [
            program, "--data-dir", self._folder.name, "--log-level", "error",
            "--listen-client-urls", f"http://{self.endpoint}",
            "--advertise-client-urls", f"http://{self.endpoint}",
            "--listen-peer-urls", f"http://127.0.0.1:{peer}",
            "--initial-advertise-peer-urls", f"http://127.0.0.1:{peer}",
            "--initial-cluster", f"default=http://127.0.0.1:{peer}",
        ]  # fmt: skip
        self._process: subprocess.Popen[bytes] | None = None
        self.start()

    @property
    def uri(self) -> str:
        """What masters, servers and clients are given."""
        return f"etcd://{self.endpoint}/bench"

    def start(self) -> None:
        """Start it on the data that it has."""
        self._process = subprocess.Popen(
            self._command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            preexec_fn=functools.partial(end_with_parent, os.getpid()),
            start_new_session=True,
        )
        end = time.monotonic() + START_TIMEOUT_S
        while not self._is_healthy():
            if time.monotonic() > end or self._process.poll() is not None:
                raise UnavailableError("etcd did not start")
            time.sleep(0.02)

    def kill(self) -> None:
        """End it as a crash does."""
        if self._process is not None:
            self._process.kill()
            self._process.wait(STOP_TIMEOUT_S)

    def leader_pid(self) -> int:
        """Return which process leads the cluster.

        Raises:
            UnavailableError: None does, or etcd does not answer.
        """
        address = EtcdAddress.parse(self.uri)
        value = Gateway(address).read(leader_key(address.prefix), ASK_TIMEOUT_S)
        if value is None:
            raise UnavailableError("nobody leads")
        return int(json.loads(value)["pid"])

    def __enter__(self) -> Etcd:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        value: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.kill()
        self._folder.cleanup()

    def _is_healthy(self) -> bool:
        try:
            with urllib.request.urlopen(f"http://{self.endpoint}/health", timeout=1.0) as answer:
                return bool(answer.status == 200)
        except OSError:
            return False


def _free_ports(count: int) -> list[int]:
    """Ports that were free a moment ago, all different."""
    with contextlib.ExitStack() as held:
        sockets = [held.enter_context(socket.socket()) for _ in range(count)]
        for each in sockets:
            each.bind(("127.0.0.1", 0))
        return [int(each.getsockname()[1]) for each in sockets]
