"""A running `up`, and the command in this process or in one of its own."""

from __future__ import annotations

import io
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from mooncake_store.cli.app import run

ROOT = Path(__file__).parents[3]
SCHEMAS = ROOT / "tests/golden/schemas"
READY_TIMEOUT_S = 60.0
_TYPES: dict[str, type | tuple[type, ...]] = {
    "object": dict, "array": list, "string": str, "integer": int, "number": (int, float),
    "boolean": bool, "null": type(None),
}  # fmt: skip
_KEYWORDS = {
    "$schema", "title", "type", "properties", "required", "additionalProperties", "items", "enum",
    "minimum", "maximum", "pattern",
}  # fmt: skip


def check(value: Any, schema: dict[str, Any], where: str = "document") -> None:
    """Compare a value with the part of JSON Schema that our schemas use."""
    assert set(schema) <= _KEYWORDS, f"{where}: {set(schema) - _KEYWORDS} would be ignored"
    kinds = schema["type"] if isinstance(schema["type"], list) else [schema["type"]]
    is_bool_as_number = isinstance(value, bool) and "boolean" not in kinds
    assert any(isinstance(value, _TYPES[kind]) for kind in kinds), f"{where}: {value!r}"
    assert not is_bool_as_number, f"{where}: {value!r}"
    if value is None:
        return
    if "enum" in schema:
        assert value in schema["enum"], f"{where}: {value!r}"
    if "pattern" in schema:
        assert re.search(schema["pattern"], value), f"{where}: {value!r}"
    assert value >= schema["minimum"] if "minimum" in schema else True, f"{where}: {value!r}"
    assert value <= schema["maximum"] if "maximum" in schema else True, f"{where}: {value!r}"
    if isinstance(value, list):
        for index, item in enumerate(value):
            check(item, schema["items"], f"{where}[{index}]")
    if isinstance(value, dict):
        known, rest = schema.get("properties", {}), schema["additionalProperties"]
        assert set(schema.get("required", ())) <= set(value), f"{where} has only {set(value)}"
        assert rest is not False or set(value) <= set(known), f"{where}: {set(value) - set(known)}"
        for name, item in value.items():
            check(item, known.get(name, rest), f"{where}.{name}")


def conforms(document: Any, name: str) -> Any:
    """Check a document against the schema of a command, and return it."""
    check(document, json.loads((SCHEMAS / f"{name}.json").read_text()))
    return document


@dataclass(frozen=True)
class Result:
    """How a command ended and what it wrote."""

    code: int
    out: bytes
    err: str

    @property
    def text(self) -> str:
        return self.out.decode()

    def json(self, schema: str) -> Any:
        """The one document on stdout."""
        assert self.out.count(b"\n") == 1, self.out
        return conforms(json.loads(self.out), schema)

    def lines(self, schema: str) -> list[Any]:
        """The documents of a stream."""
        return [conforms(json.loads(line), schema) for line in self.out.splitlines()]

    def error(self) -> Any:
        """The one error on stderr, of a command with --json."""
        (line,) = [line for line in self.err.splitlines() if line.startswith("{")]
        return conforms(json.loads(line), "error")


class Process:
    """The command as a process of its own."""

    def __init__(self, arguments: Sequence[str], environment: dict[str, str]) -> None:
        self._popen = subprocess.Popen(
            [sys.executable, "-m", "mooncake_store.cli.main", *arguments],
            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
            env=environment, text=True,
        )  # fmt: skip
        self.pid = self._popen.pid

    def first_document(self, schema: str) -> Any:
        """What it prints once it is ready."""
        assert self._popen.stdout is not None
        line = self._popen.stdout.readline()
        if not line:
            raise AssertionError(self.end(None).err)
        return conforms(json.loads(line), schema)

    def end(self, number: int | None = signal.SIGTERM, timeout_s: float = 30.0) -> Result:
        """Send a signal (or none) to this process only, and wait for its end."""
        if number is not None and self._popen.poll() is None:
            self._popen.send_signal(number)
        try:
            out, err = self._popen.communicate(timeout=timeout_s)
        except subprocess.TimeoutExpired:
            self._popen.kill()
            raise
        return Result(self._popen.returncode, out.encode(), err)


@dataclass
class Home:
    """Folders that nobody else uses: sockets, segments, settings."""

    runtime: Path
    segments: Path

    @property
    def environment(self) -> dict[str, str]:
        kept = {k: v for k, v in os.environ.items() if not k.startswith("MOONCAKE_STORE_")}
        return {
            **kept, "XDG_RUNTIME_DIR": str(self.runtime), "XDG_CONFIG_HOME": str(self.runtime),
            "MOONCAKE_STORE_SERVER_SEGMENT_DIR": str(self.segments), "NO_COLOR": "1",
            "PYTHONPATH": str(ROOT),
        }  # fmt: skip

    def start(self, *arguments: str) -> Process:
        """Start the command as a process."""
        return Process(arguments, self.environment)

    def left_bytes(self) -> int:
        """Memory that servers hold in the segment folder."""
        return sum(
            file.lstat().st_blocks * 512
            for file in self.segments.rglob("*")
            if file.is_file() and file.name not in ("header", "lock")
        )


def make_home() -> Iterator[Home]:
    # Short: the path of a Unix socket has 107 bytes.
    runtime = Path(tempfile.mkdtemp(prefix="mst-"))
    segments = Path(tempfile.mkdtemp(prefix="mst-", dir="/dev/shm"))
    try:
        yield Home(runtime, segments)
    finally:
        shutil.rmtree(runtime, ignore_errors=True)
        shutil.rmtree(segments, ignore_errors=True)


@pytest.fixture
def home() -> Iterator[Home]:
    yield from make_home()


@dataclass
class Running:
    """An `up` and a second server that counts as another host."""

    home: Home
    up: dict[str, Any]
    second: dict[str, Any]

    @property
    def master(self) -> str:
        address: str = self.up["master"]
        return address


@pytest.fixture(scope="package")
def running() -> Iterator[Running]:
    for home in make_home():
        processes = [home.start("up", "--port", "0", "--size", "64MiB", "--json")]
        try:
            up = processes[0].first_document("up")
            flags = ["--name", "node-b", "--host", "host-b", "--pool-size", "32MiB", "--no-grpc",
                     "--no-keep"]  # fmt: skip
            processes.append(home.start("server", "--json", "--master", up["master"], *flags))
            second = processes[1].first_document("server")
            yield Running(home, up, second)
        finally:
            for process in reversed(processes):
                process.end()


@pytest.fixture
def mooncake(
    running: Running, monkeypatch: pytest.MonkeyPatch, capfdbinary: pytest.CaptureFixture[bytes]
) -> Callable[..., Result]:
    """The command in this process; it finds the running `up` by itself."""
    for name, value in running.home.environment.items():
        monkeypatch.setenv(name, value)
    for name in set(os.environ) - set(running.home.environment):
        monkeypatch.delenv(name)

    def call(*arguments: str, stdin: bytes = b"") -> Result:
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(stdin)))
        capfdbinary.readouterr()
        code = run(list(arguments))
        sys.stdout.flush()
        captured = capfdbinary.readouterr()
        return Result(code, captured.out, captured.err.decode())

    return call


def wait_until(condition: Callable[[], bool], what: str, timeout_s: float = 20.0) -> None:
    """Wait for something that another process does."""
    end = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < end, f"not within {timeout_s} s: {what}"
        time.sleep(0.02)


def is_running(pid: int) -> bool:
    """Whether a process is there and is no zombie."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


@pytest.fixture
def until() -> Callable[..., None]:
    return wait_until


@pytest.fixture
def alive() -> Callable[[int], bool]:
    return is_running
