"""The verdicts of doctor, on machines that are not like this one."""

from __future__ import annotations

import fcntl
import os
import resource
import socket
from pathlib import Path

import pytest

from mooncake_store.cli import checks
from mooncake_store.cli.checks import Check
from mooncake_store.cli.contexts import Target
from mooncake_store.config import GIB, MIB

INFINITE = resource.RLIM_INFINITY


@pytest.mark.parametrize(
    ("check", "verdict"),
    [
        (checks.shared_memory_check(64 * GIB, 60 * GIB, is_container=False), "ok"),
        (checks.shared_memory_check(2 * GIB, 2 * GIB, is_container=False), "warn"),
        (checks.shared_memory_check(64 * MIB, 63 * MIB, is_container=True), "warn"),
        (checks.shared_memory_check(64 * GIB, 1 * MIB, is_container=False), "fail"),
        (checks.memory_check(64 * GIB), "ok"),
        (checks.memory_check(1 * GIB), "warn"),
        (checks.memlock_check(INFINITE, has_rdma=True), "ok"),
        (checks.memlock_check(8 * MIB, has_rdma=False), "ok"),
        (checks.memlock_check(8 * MIB, has_rdma=True), "warn"),
        (checks.huge_pages_check(0, 2 * MIB, "always within_size advise [never] deny"), "ok"),
        (checks.huge_pages_check(512, 2 * MIB, "[never]"), "ok"),
        (checks.huge_pages_check(0, 2 * MIB, ""), "ok"),
        (checks.descriptors_check(1024, INFINITE), "ok"),
        (checks.descriptors_check(1024, 1 << 20), "ok"),
        (checks.descriptors_check(1024, 4096), "warn"),
        (checks.descriptors_check(256, 256), "fail"),
        (checks.clock_check("tsc", 60.0), "ok"),
        (checks.clock_check("hpet", 2500.0), "warn"),
        (checks.kernel_check([], "6.1"), "ok"),
        (checks.kernel_check(["pidfd", "MADV_POPULATE"], "5.4"), "warn"),
        (checks.kernel_check(["memfd"], "3.10"), "fail"),
        (checks.version_check((3, 9)), "fail"),
        (checks.version_check((3, 13)), "ok"),
        (checks.extension_check(), "ok"),
    ],
)
def test_verdicts(check: Check, verdict: str) -> None:
    assert check.verdict == verdict
    assert check.name and check.why
    if verdict != "ok":
        assert check.fix


def test_a_container_is_told_what_its_host_would_not_be() -> None:
    inside = checks.shared_memory_check(64 * MIB, 64 * MIB, is_container=True)
    outside = checks.shared_memory_check(64 * MIB, 64 * MIB, is_container=False)
    assert "--shm-size" in inside.fix
    assert "mount" in outside.fix


def test_pools_that_killed_servers_left_are_found(tmp_path: Path) -> None:
    for name, size_bytes in (("dead", 2 * MIB), ("alive", 2 * MIB), ("empty", 0)):
        (tmp_path / name).mkdir()
        (tmp_path / name / "lock").write_text("1\n")
        (tmp_path / name / "payload-0").write_bytes(b"x" * size_bytes)
    with open(tmp_path / "alive" / "lock") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        check = checks.leftovers_check(tmp_path)
    assert check.verdict == "warn"
    assert check.why.endswith(": dead")
    assert str(tmp_path / "dead") in check.fix
    assert checks.leftovers_check(tmp_path / "none").verdict == "ok"


def test_the_process_on_a_port_is_named() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        check = checks.ports_check(port)
    assert check.verdict == "warn"
    assert f"{port} by pid {os.getpid()} (" in check.why


def test_a_master_that_was_named_and_is_away_is_a_failure() -> None:
    with socket.socket() as held:
        held.bind(("127.0.0.1", 0))  # nobody listens, and nobody else can
        address = f"127.0.0.1:{held.getsockname()[1]}"
        named = checks.master_check(Target(address, "flag --master"), 2.0)
        unnamed = checks.master_check(Target(address, "default"), 2.0)
    assert (named.verdict, unnamed.verdict) == ("fail", "warn")
    assert "MS-1201" in named.why
    assert "mooncake-store up" in named.fix


def test_a_runtime_folder_with_a_long_path_is_a_failure(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    deep = tmp_path / ("x" * 60) / ("y" * 60)
    deep.mkdir(parents=True)
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(deep))
    assert checks.runtime_check().verdict == "fail"


def test_a_runtime_folder_that_is_open_to_others_is_a_failure(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    (tmp_path / "mooncake-store").mkdir(mode=0o755)
    check = checks.runtime_check()
    assert check.verdict == "fail"
    assert "chmod 700" in check.why


def test_this_machine_s_clock_is_measured() -> None:
    assert 1 < checks.measure_clock_ns() < 1e6
