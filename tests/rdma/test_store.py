"""The store over RDMA, in the guest: master and server are processes, the client uses RDMA."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from mooncake_store import Client, Priority, Share

MIB = 1 << 20

pytestmark = pytest.mark.timeout(120)


class Cluster:
    """A master and a store server, as processes."""

    def __init__(self, folder: Path, **environment: str) -> None:
        self._environment = {
            **os.environ,
            "MOONCAKE_STORE_RDMA_DEVICES": "rxe1,rxe2",
            "XDG_RUNTIME_DIR": str(folder),
            **environment,
        }
        self.folder = folder
        self.master, ready = self._start("master", "--coordinator", f"local:{folder}/coordination")
        self.master_address = f"127.0.0.1:{ready['port']}"
        self.server = self.start_server()

    def start_server(self) -> subprocess.Popen[bytes]:
        return self._start(
            "server",
            "--master",
            self.master_address,
            "--name",
            "node-1",
            "--pool-size",
            "32MiB",
            "--ready-size",
            "32MiB",
            "--segment-dir",
            str(self.folder),
        )[0]

    def _start(self, *arguments: str) -> tuple[subprocess.Popen[bytes], dict[str, Any]]:
        ready_file = self.folder / f"ready-{time.monotonic_ns()}"
        command = [sys.executable, "-m", "mooncake_store.cli.main", *arguments, "--quiet"]
        command += ["--port", "0", "--no-grpc", "--no-http", "--ready-file", str(ready_file)]
        process = subprocess.Popen(command, stdout=subprocess.DEVNULL, env=self._environment)
        while not ready_file.exists():
            assert process.poll() is None, "it ended before it served"
            time.sleep(0.05)
        return process, json.loads(ready_file.read_text())

    def stop(self) -> None:
        for process in (self.server, self.master):
            process.kill()
            process.wait()


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    started = Cluster(tmp_path)
    yield started
    started.stop()


def open_client(cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> Client:
    monkeypatch.setenv("MOONCAKE_STORE_RDMA_DEVICES", "rxe0,rxe3")
    monkeypatch.setenv("MOONCAKE_STORE_RDMA_WAIT_MS", "5000")
    return Client(cluster.master_address, use_local_paths=False, strict=True, timeout_s=20)


def values(count: int, size: int) -> list[bytes]:
    source = random.Random(size)
    return [source.randbytes(size) for _ in range(count)]


def test_put_and_get_go_by_rdma(cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    with open_client(cluster, monkeypatch) as store:
        sizes = [0, 1, 100, 4096, 4097, 65_536, 100_001, MIB, 3 * MIB + 5]
        for size in sizes:
            (value,) = values(1, size)
            assert store.put(f"key-{size}", value)
            assert store.get(f"key-{size}") == value
        done = store.statistics()
        assert done.rdma_read_bytes >= sum(sizes)
        assert done.rdma_write_bytes >= sum(size for size in sizes if size >= 65_536)
        assert done.rdma_fallbacks == 0


def test_batches_and_registered_memory(cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    with open_client(cluster, monkeypatch) as store:
        batch = values(40, 4096) + values(10, 200_000)
        keys = [f"b{i}" for i in range(len(batch))]
        assert all(store.put_batch(keys, batch))
        assert store.get_batch(keys) == batch
        buffer = bytearray(200_000)
        store.register_memory(buffer)
        assert store.get_into(keys[-1], buffer) == len(buffer)
        assert bytes(buffer) == batch[-1]
        assert store.statistics().rdma_fallbacks == 0


def test_priorities_and_shares_go_by_rdma(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """From the first call that says one on, what is large goes by the slice scheduler."""
    (value,) = values(1, 3 * MIB + 5)
    with open_client(cluster, monkeypatch) as store:
        for _ in range(20):  # not by lanes until they are up
            before = store.statistics()
            assert store.upsert("shared", value, share=Share("a", weight=2))
            assert store.get("shared", priority=Priority.PREFETCH) == value
            after = store.statistics()
            # Where the object was before is read in vain: its location is cached.
            assert after.rdma_read_bytes - before.rdma_read_bytes >= len(value)
            assert after.rdma_write_bytes - before.rdma_write_bytes == len(value)
        assert store.statistics().rdma_fallbacks == 0


def test_removed_object_is_a_miss(cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    with open_client(cluster, monkeypatch) as reader, open_client(cluster, monkeypatch) as writer:
        (value,) = values(1, 300_000)
        assert writer.put("gone", value)
        assert reader.get("gone") == value  # its location is cached now
        assert writer.remove("gone")
        assert reader.get("gone") is None
        assert writer.put("gone", value[::-1])
        assert reader.get("gone") == value[::-1]


def test_rails_break_under_the_store(cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    """Down to TCP, and back to RDMA, without an error."""
    (value,) = values(1, MIB)
    with open_client(cluster, monkeypatch) as store:
        assert store.put("a", value)
        assert store.get("a") == value
        for nic in (1, 2):
            subprocess.run(["ip", "link", "set", f"eth{nic}", "down"], check=True)
        try:
            for i in range(5):
                assert store.put(f"during-{i}", value)
                assert store.get(f"during-{i}") == value
        finally:
            for nic in (1, 2):
                subprocess.run(["ip", "link", "set", f"eth{nic}", "up"], check=True)
                subprocess.run(
                    f"ip route replace 10.77.0.0/24 dev eth{nic} src 10.77.0.{nic + 1} "
                    f"metric {100 + nic} table 100",
                    shell=True,
                    check=True,
                )
        before = store.statistics().rdma_read_bytes
        deadline = time.monotonic() + 10
        while store.statistics().rdma_read_bytes == before:
            assert store.get("a") == value
            assert time.monotonic() < deadline
            time.sleep(0.1)


def test_server_restarts(cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    (value,) = values(1, MIB)
    with open_client(cluster, monkeypatch) as store:
        assert store.put("kept", value)
        assert store.get("kept") == value
        cluster.server.send_signal(signal.SIGKILL)
        cluster.server.wait()
        cluster.server = cluster.start_server()
        deadline = time.monotonic() + 20
        while True:
            try:
                found = store.get("kept")
            except Exception:
                found = None
            if found == value:
                break
            assert time.monotonic() < deadline
            time.sleep(0.2)
        before = store.statistics().rdma_read_bytes
        assert store.get("kept") == value
        assert store.statistics().rdma_read_bytes > before


def test_doctor_shows_the_devices() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "mooncake_store.cli.main", "doctor"],
        stdout=subprocess.PIPE,
        text=True,
        timeout=60,
    )
    for nic in range(4):
        assert f"rxe{nic}" in done.stdout
