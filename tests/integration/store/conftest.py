"""Masters and store servers as processes, each with folders of its own."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

MIB = 1 << 20

RUN = """
import json, sys
from pathlib import Path
from mooncake_store.errors import StoreError
kind, settings, ready = sys.argv[1], json.loads(sys.argv[2]), Path(sys.argv[3])
try:
    if kind == "master":
        from mooncake_store.master.config import MasterConfig
        from mooncake_store.master.process import run_master
        run_master(MasterConfig(**settings), ready_file=ready)
    else:
        from mooncake_store.client import Client
        from mooncake_store.store.config import StoreServerConfig
        from mooncake_store.store.process import run_server
        settings["advertise"] = tuple(settings.get("advertise", ()))
        run_server(
            StoreServerConfig(**settings),
            ready_file=ready,
            open_objects=lambda master: Client(master, strict=True),
        )
except StoreError as error:
    print(error, error.hint or "", file=sys.stderr)
    sys.exit(2)
"""


def wait_until(
    is_so: Callable[[], object], timeout_s: float = 20.0, why: Callable[[], str] | None = None
) -> None:
    deadline_s = time.monotonic() + timeout_s
    while not is_so():
        if time.monotonic() > deadline_s:
            raise AssertionError(why() if why else f"not within {timeout_s} s")
        time.sleep(0.01)


class Running:
    """A process of ours and where it is reached."""

    def __init__(
        self, folder: Path, kind: str, settings: dict[str, Any], run_under: Sequence[str] = ()
    ) -> None:
        self.kind = kind
        self.log_path = folder / f"{kind}-log-{time.monotonic_ns()}"
        self.ready_path = folder / f"{kind}-ready-{time.monotonic_ns()}"
        environment = {**os.environ, "XDG_RUNTIME_DIR": str(folder), "PYTHONUNBUFFERED": "1"}
        with open(self.log_path, "wb") as log:
            self.process = subprocess.Popen(
                [
                    *run_under, sys.executable, "-c", RUN, kind, json.dumps(settings),
                    str(self.ready_path),
                ],
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
            )  # fmt: skip

    def wait_ready(self, timeout_s: float = 30.0) -> Running:
        wait_until(
            lambda: self.ready_path.exists() or self.process.poll() is not None, timeout_s, self.log
        )
        assert self.process.poll() is None, self.log()
        self.endpoints = SimpleNamespace(**json.loads(self.ready_path.read_text()))
        return self

    def wait_failed(self, timeout_s: float = 30.0) -> str:
        """Wait for a start that cannot succeed; return what it said."""
        assert self.process.wait(timeout_s) == 2, self.log()
        return self.log()

    @property
    def address(self) -> str:
        host = self.endpoints.address
        return f"[{host}]:{self.endpoints.port}" if ":" in host else f"{host}:{self.endpoints.port}"

    def log(self) -> str:
        return self.log_path.read_text()

    def wait_log(self, text: str, timeout_s: float = 20.0) -> str:
        wait_until(lambda: text in self.log(), timeout_s, lambda: f"no {text!r} in {self.log()}")
        return self.log()

    def http(self, path: str) -> tuple[int, str]:
        host = self.endpoints.address
        host = f"[{host}]" if ":" in host else host
        url = f"http://{host}:{self.endpoints.http_port}{path}"
        try:
            with urllib.request.urlopen(url, timeout=20) as answer:
                return answer.status, answer.read().decode()
        except urllib.error.HTTPError as error:
            return error.code, error.read().decode()

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()

    def stop(self, timeout_s: float = 15.0) -> int:
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGCONT)
            self.process.send_signal(signal.SIGTERM)
            try:
                self.process.wait(timeout_s)
            except subprocess.TimeoutExpired:
                self.kill()
                raise AssertionError(f"not stopped after {timeout_s} s: {self.log()}") from None
        return self.process.returncode


class Host:
    """Starts processes that share a runtime folder and a segment folder."""

    def __init__(self, folder: Path, segment_dir: Path) -> None:
        self.folder = folder
        self.segment_dir = segment_dir
        self.running: list[Running] = []

    def start(self, kind: str, *, run_under: Sequence[str] = (), **settings: Any) -> Running:
        running = Running(self.folder, kind, settings, run_under)
        self.running.append(running)
        return running

    def master(self, **settings: Any) -> Running:
        settings = {"port": 0, "grpc": False, "http": False, **settings}
        return self.start("master", **settings).wait_ready()

    def server(self, master: Running | str, *, is_waiting: bool = True, **settings: Any) -> Running:
        settings = {
            "master": master if isinstance(master, str) else master.address,
            "pool_size_bytes": 16 * MIB,
            "segment_dir": str(self.segment_dir),
            "grpc": False,
            "http": False,
            **settings,
        }
        running = self.start("server", **settings)
        return running.wait_ready() if is_waiting else running


@contextlib.contextmanager
def new_host() -> Iterator[Host]:
    folder = Path(tempfile.mkdtemp(prefix="store-test-"))
    segment_dir = Path(tempfile.mkdtemp(prefix="store-test-", dir="/dev/shm"))
    host = Host(folder, segment_dir)
    try:
        yield host
    finally:
        failures = []
        for running in reversed(host.running):
            try:
                running.stop()
            except AssertionError as error:
                failures.append(str(error))
        shutil.rmtree(folder)
        shutil.rmtree(segment_dir)
        assert not failures, failures


@pytest.fixture
def host() -> Iterator[Host]:
    """A host for one test: nothing runs on it yet."""
    with new_host() as made:
        yield made


@pytest.fixture(scope="module")
def shared_host() -> Iterator[Host]:
    """A host whose processes the tests of a module share."""
    with new_host() as made:
        yield made
