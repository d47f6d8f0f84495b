"""A store server as a process: start, health, stop, restart, and starts that cannot succeed."""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import stat
import subprocess
import time
from pathlib import Path
from typing import Any

import pytest

from mooncake_store.cli.snapshot import take
from mooncake_store.cli.status import storage_lines
from mooncake_store.client import Client
from mooncake_store.config import GIB, MIB
from mooncake_store.errors import ConfigError, StorageFullError
from mooncake_store.store.config import StoreServerConfig
from mooncake_store.store.process import default_pool_size
from tests.descriptors import (
    assert_told_once,
    few_descriptors,
    has_descriptors_for_all_ports,
    under_a_low_hard_limit,
)

from .conftest import Host, Running, wait_until


def files_of(server: Running) -> set[str]:
    return {path.name for path in Path(server.endpoints.segment_dir).iterdir()}


def test_it_joins_its_master_and_says_so(host: Host) -> None:
    master = host.master()
    server = host.server(master, http=True, name="node-a")
    assert server.endpoints.is_adopted
    assert server.endpoints.name == "node-a"
    server.wait_log("adopted epoch=")
    assert server.http("/livez") == (200, "ok\n")
    assert server.http("/readyz") == (200, "ok\n")
    status, text = server.http("/readyz?verbose")
    checks = {check["name"]: check for check in json.loads(text)["checks"]}
    assert status == 200
    assert all(check["ok"] for check in checks.values())
    assert set(checks) == {"running", "io_threads", "master", "pool"}
    version = json.loads(server.http("/version")[1])
    assert version["node_id"] == server.endpoints.node_id
    assert version["incarnation"] == server.endpoints.incarnation == 1
    folder = Path(server.endpoints.segment_dir)
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    for path in folder.iterdir():
        assert stat.S_IMODE(path.stat().st_mode) == 0o600, path
    assert stat.S_IMODE(os.stat(server.endpoints.unix_path).st_mode) == 0o600


def test_metrics_count_what_clients_do(host: Host) -> None:
    master = host.master()
    server = host.server(master, http=True)
    with Client(master.address, strict=True) as client:
        assert client.put("key", b"x" * 5000)
        assert client.get("key") == b"x" * 5000
    metrics = dict(
        line.rsplit(" ", 1)
        for line in server.http("/metrics")[1].splitlines()
        if not line.startswith("#")
    )
    assert float(metrics["mooncake_store_server_seals_total"]) == 1
    assert float(metrics["mooncake_store_server_extents"]) == 1
    assert float(metrics["mooncake_store_server_live_bytes"]) == 8192
    assert float(metrics["mooncake_store_server_pool_bytes"]) == 16 * MIB
    assert float(metrics["mooncake_store_server_adopted"]) == 1
    assert any(name.startswith("mooncake_store_build_info") for name in metrics)


def test_a_stop_leaves_the_identity_and_nothing_else(host: Host) -> None:
    master = host.master()
    server = host.server(master, name="node-a")
    assert {"payload-0", "words-0", "header", "lock", "views"} <= files_of(server)
    assert server.stop() == 0
    assert files_of(server) == {"header", "lock"}
    assert not Path(server.endpoints.unix_path).exists()
    assert not server.ready_path.exists()
    assert "starts_empty" not in server.log()
    again = host.server(master, name="node-a")
    assert again.endpoints.node_id == server.endpoints.node_id
    assert again.endpoints.incarnation == 2


def test_a_stop_leaves_what_is_in_the_pool_unless_told_otherwise(host: Host) -> None:
    master = host.master()
    server = host.server(master, name="node-a")
    with Client(master.address, strict=True) as client:
        assert client.put("key", b"value")
        assert server.stop() == 0
        assert {"payload-0", "words-0", "header", "lock", "views"} <= files_of(server)
        assert "stopped kept_extents=1 folder=" in server.log()
        again = host.server(master, name="node-a", keep=False)
        again.wait_log("kept extents=1")
        wait_until(lambda: client.get("key") == b"value")
        assert again.stop() == 0
    assert files_of(again) == {"header", "lock"}


def test_what_cannot_be_kept_is_said(host: Host) -> None:
    master = host.master()
    server = host.server(master, name="node-a")
    with Client(master.address, strict=True) as client:
        assert client.put("key", b"value")
        server.kill()
        (Path(server.endpoints.segment_dir) / "words-0").unlink()
        again = host.server(master, name="node-a")
        again.wait_log("starts_empty reason=")
        assert again.endpoints.node_id == server.endpoints.node_id
        wait_until(lambda: client.get("key") is None)
        wait_until(lambda: client.put("key", b"other") is True)
        assert client.get("key") == b"other"


def test_it_finds_a_master_that_comes_late_and_one_that_comes_back(host: Host) -> None:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    server = host.server(f"127.0.0.1:{port}", http=True)
    assert not server.endpoints.is_adopted
    server.wait_log("master_unreachable")
    assert server.http("/livez")[0] == 200
    assert server.http("/readyz") == (503, "not ready\n")
    master = host.master(port=port)
    server.wait_log("adopted epoch=1")
    wait_until(lambda: server.http("/readyz")[0] == 200)
    master.kill()
    server.wait_log("master_lost")
    host.master(port=port)
    server.wait_log("adopted epoch=2")


def test_a_node_may_go_to_another_cluster_when_it_starts_and_not_before(host: Host) -> None:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    first, second = host.folder / "first", host.folder / "second"
    for _ in range(2):  # so that its epoch is above that of the second cluster
        master = host.master(port=port, coordinator=f"local:{first}")
        master.stop()
    master = host.master(port=port, coordinator=f"local:{first}")
    server = host.server(master, name="node-a")
    server.wait_log("adopted epoch=3")
    master.kill()
    other = host.master(port=port, coordinator=f"local:{second}")
    server.wait_log("master_refuses")
    time.sleep(3.0)  # it dials every two seconds
    assert server.log().count("adopted epoch") == 1
    refused = [line for line in server.log().splitlines() if "master_refuses" in line]
    assert len(refused) == 1
    assert other.endpoints.cluster in refused[0] and master.endpoints.cluster in refused[0]
    with Client(other.address) as client:
        assert client.members() == []
    assert "server_joined" not in other.log()
    server.stop()
    again = host.server(other, name="node-a")
    assert again.endpoints.is_adopted
    assert again.endpoints.node_id == server.endpoints.node_id
    again.wait_log("adopted epoch=1 ")


def test_an_older_epoch_of_its_cluster_is_refused_without_haste(host: Host) -> None:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    folder = host.folder / "cluster"
    old = host.folder / "old"
    host.master(port=port, coordinator=f"local:{folder}").stop()
    shutil.copytree(folder, old)  # the state as it was at epoch 1
    master = host.master(port=port, coordinator=f"local:{folder}")
    server = host.server(master)
    server.wait_log("adopted epoch=2")
    master.kill()
    shutil.rmtree(folder)
    old.rename(folder)
    host.master(port=port, coordinator=f"local:{folder}").stop()  # epoch 2 again
    state = folder / "state"
    document = json.loads(state.read_text())
    document["epoch"] = 0
    state.write_text(json.dumps(document))
    master = host.master(port=port, coordinator=f"local:{folder}")  # epoch 1
    server.wait_log("adopt_refused epoch=1 adopted_epoch=2")
    time.sleep(1.0)
    assert server.log().count("adopt_refused") < 12
    master.wait_log("this node has adopted epoch 2")


def test_several_on_one_host_take_names_and_folders_of_their_own(host: Host) -> None:
    master = host.master()
    servers = [host.server(master, is_waiting=False) for _ in range(3)]
    for server in servers:
        server.wait_ready()
    assert len({server.endpoints.name for server in servers}) == 3
    assert len({server.endpoints.segment_dir for server in servers}) == 3
    assert len({server.endpoints.node_id for server in servers}) == 3
    refused = host.server(master, is_waiting=False, name=servers[0].endpoints.name)
    said = refused.wait_failed()
    assert f"in use by process {servers[0].process.pid}" in said


def test_starts_that_cannot_succeed_say_what_to_do(host: Host) -> None:
    master = host.master()
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        for field in ("port", "http_port", "grpc_port"):
            kind = field.removesuffix("_port")
            settings = {field: port} | ({kind: True} if kind != field else {})
            said = host.server(master, is_waiting=False, **settings).wait_failed()
            assert f"port {port}" in said and f"pid {os.getpid()}" in said, said
    said = host.server(master, is_waiting=False, pool_size_bytes=4096 * GIB).wait_failed()
    assert "no room for a pool" in said and "--pool-size" in said, said
    said = host.server(master, is_waiting=False, address="0.0.0.0").wait_failed()
    assert "--insecure" in said
    said = host.server(master, is_waiting=False, address="192.0.2.1", insecure=True).wait_failed()
    assert "192.0.2.1" in said
    assert not [path for path in host.segment_dir.iterdir() if (path / "payload-0").exists()]


def test_settings_that_contradict_each_other_are_refused() -> None:
    StoreServerConfig().check()
    StoreServerConfig(address="0.0.0.0", insecure=True, advertise=("10.0.0.2",)).check()
    for settings in (
        {"address": "10.0.0.2"},
        {"address": "0.0.0.0", "insecure": True},
        {"name": "a/b"},
        {"name": ".."},
    ):
        with pytest.raises(ConfigError):
            StoreServerConfig(**settings).check()  # type: ignore[arg-type]


def test_the_pool_is_a_quarter_of_what_is_free_at_most_1_gib(tmp_path: Path) -> None:
    state = os.statvfs(tmp_path)
    free = state.f_bavail * state.f_frsize
    assert abs(default_pool_size(tmp_path) - min(GIB, free // 4)) < 64 * MIB
    assert default_pool_size(tmp_path) % MIB == 0


def test_huge_pages_that_the_kernel_does_not_give_are_a_warning(host: Host) -> None:
    policy = Path("/sys/kernel/mm/transparent_hugepage/shmem_enabled")
    is_given = policy.exists() and not {"[never]", "[deny]"} & set(policy.read_text().split())
    server = host.server(host.master(), huge_pages=True)
    server.wait_log("pool_ready")
    assert ("no_huge_pages" in server.log()) == (not is_given)


def test_ipv6(host: Host) -> None:
    with socket.socket(socket.AF_INET6) as probe:
        try:
            probe.bind(("::1", 0))
        except OSError:
            pytest.skip("this machine has no IPv6")
    master = host.master(address="::1")
    server = host.server(master, address="::1", http=True)
    assert server.endpoints.is_adopted
    assert server.http("/readyz")[0] == 200
    with Client(master.address, strict=True, use_local_paths=False) as client:
        assert client.put("key", b"over IPv6")
        assert client.get("key") == b"over IPv6"


def test_an_idle_server_takes_less_than_a_hundredth_of_a_core(host: Host) -> None:
    server = host.server(host.master(), http=True, grpc=True)
    server.wait_log("grpc_serving")
    server.wait_log("pool_ready")

    def used_s() -> float:
        fields = Path(f"/proc/{server.process.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    time.sleep(0.5)
    before_s = used_s()
    time.sleep(5.0)
    # 1 % of 5 s, and one tick of the clock that the kernel counts in.
    assert used_s() - before_s <= 0.06


@pytest.mark.root
@pytest.mark.skipif(os.geteuid() != 0, reason="mounting a small file system needs root")
def test_a_full_file_system_makes_the_pool_smaller_and_kills_nobody(host: Host) -> None:
    small = host.segment_dir / "small"
    small.mkdir(mode=0o700)
    subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=48m,mode=700", "tmpfs", str(small)], check=True
    )
    try:
        master = host.master()
        server = host.server(
            master,
            segment_dir=str(small),
            pool_size_bytes=40 * MIB,
            ready_size_bytes=8 * MIB,
            touch_permille=1,
            http=True,
        )
        # Somebody else takes the room before the pool has grown into it.
        state = os.statvfs(small)
        free = state.f_bavail * state.f_frsize
        with open(small / "other", "wb") as other:
            os.posix_fallocate(other.fileno(), 0, free - 6 * MIB)
        server.wait_log("pool_smaller", timeout_s=60)
        status, text = server.http("/readyz?verbose")
        assert status == 200 and "smaller" in text
        with Client(master.address, strict=True) as client:
            stored = 0
            for number in range(200):
                if client.put(f"key/{number}", bytes([number]) * 256 * 1024):
                    stored += 1
            # The pool is smaller than what was put: the oldest made room, nothing was refused.
            assert stored == 200
            assert client.get("key/199") == bytes([199]) * 256 * 1024
        assert server.process.poll() is None
        assert server.stop() == 0
    finally:
        for running in host.running:
            running.stop()
        subprocess.run(["umount", str(small)], check=True)


@pytest.mark.root
@pytest.mark.skipif(os.geteuid() != 0, reason="mounting a small file system needs root")
def test_no_room_for_what_must_be_there_at_once_is_an_error(host: Host) -> None:
    small = host.segment_dir / "small"
    small.mkdir(mode=0o700)
    subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=12m,mode=700", "tmpfs", str(small)], check=True
    )
    try:
        with open(small / "other", "wb") as other:
            os.posix_fallocate(other.fileno(), 0, 9 * MIB)
        server = host.server(
            "127.0.0.1:1", is_waiting=False, segment_dir=str(small), pool_size_bytes=4 * MIB
        )
        assert "no room" in server.wait_failed()
    finally:
        for running in host.running:
            running.stop()
        subprocess.run(["umount", str(small)], check=True)


def test_a_frozen_server_is_given_up_and_taken_back(host: Host) -> None:
    master = host.master(server_silence_ms=1500)
    server = host.server(master)
    os.kill(server.process.pid, signal.SIGSTOP)
    master.wait_log("server_silent")
    os.kill(server.process.pid, signal.SIGCONT)
    server.wait_log("master_lost")
    wait_until(lambda: server.log().count("adopted epoch=1") == 2)
    with Client(master.address, strict=True) as client:
        wait_until(lambda: client.put("key", b"value") is True)
        assert client.get("key") == b"value"


@pytest.mark.skipif(os.geteuid() != 0, reason="mounting a file system takes root")
def test_a_file_system_that_is_full_is_named_in_the_log(host: Host, tmp_path: Path) -> None:
    command = ["mount", "-t", "tmpfs", "-o", "size=24m", "tmpfs", str(tmp_path)]
    if subprocess.run(command, capture_output=True, timeout=10, check=False).returncode != 0:
        pytest.skip("no mounts here")
    try:
        master = host.master()
        server = host.server(master, name="node-a", segment_dir=str(tmp_path))
        fill = tmp_path / "fill"
        with pytest.raises(OSError, match="No space left"):
            fill.write_bytes(bytes(24 * MIB))
        with Client(master.address) as client:
            # What was set aside at the start is there: this is about one object for each 44 KiB.
            for number in range(300):
                assert client.put(f"kept/{number}", b"value") is True
            with pytest.raises(StorageFullError, match="file system") as refused:
                for number in range(1000):
                    client.put(f"more/{number}", b"value")
            assert refused.value.code == "MS-1405" and refused.value.node == "node-a"
            assert refused.value.hint and "make room" in refused.value.hint
            assert all(client.get(f"kept/{number}") == b"value" for number in range(300))
            assert client.put_batch(["a", "b"], [b"v", b"v"])[0].code == "MS-1405"
            server.wait_log("inventory_not_extended status=NO_SPACE")

            def told() -> Any:
                return take(client, 0.0).servers[0]

            wait_until(lambda: told().storage_full >= 1)
            assert told().storage_free_bytes == 0 and told().is_storage_nearly_full
            (line,) = storage_lines(take(client, 0.0))
            assert "node-a: 0 B are left" in line and "puts were refused" in line
            fill.unlink()
            assert client.put("key", b"value") is True
            wait_until(lambda: (told().storage_free_bytes or 0) > 0)
        server.stop()
    finally:
        subprocess.run(["umount", "-l", str(tmp_path)], timeout=10, check=True)


def test_there_are_descriptors_for_the_connections_of_all_ports(host: Host) -> None:
    master = host.master()
    with few_descriptors():
        server = host.server(master, connections_max=512, grpc=True, http=True)
    assert has_descriptors_for_all_ports(server.process.pid, 512)
    assert "too_few_descriptors" not in server.log()


def test_a_limit_of_descriptors_that_cannot_be_raised_is_told_once(host: Host) -> None:
    server = host.server(
        host.master(), connections_max=8192, grpc=True, http=True,
        run_under=under_a_low_hard_limit(),
    )  # fmt: skip
    assert_told_once(server.process.pid, server.log(), 12800)
