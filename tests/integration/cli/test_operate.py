"""What operators ask: status, top, ready, doctor, completion; and answers when nobody is there."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from .conftest import conforms

pytestmark = pytest.mark.timeout(120)


def test_status_counts_what_was_done(mooncake: Callable[..., Any], running: Any) -> None:
    before = mooncake("status", "--json").json("status")
    key = f"status-{uuid.uuid4().hex}"
    assert mooncake("put", key, "--text", "x" * 5000).code == 0
    assert mooncake("cat", key, f"{key}-missing").code == 6
    after = mooncake("status", "--json").json("status")
    assert after["master"]["address"] == running.master
    assert "context local" in after["master"]["origin"]
    assert after["objects"] == before["objects"] + 1
    assert after["object_bytes"] == before["object_bytes"] + 5000
    assert after["pool"]["used_bytes"] == before["pool"]["used_bytes"] + 8192
    assert after["pool"]["free_bytes"] == before["pool"]["free_bytes"] - 8192
    for name, more in (("lookup_keys_total", 2), ("lookup_hits_total", 1)):
        assert after["counters"][name] == before["counters"][name] + more
    assert after["hit_ratio"] == pytest.approx(after["lookups"]["hits"] / after["lookups"]["keys"])
    assert {server["name"] for server in after["servers"]} >= {"node-b"}
    assert mooncake("pin", key).code == 0
    pinned = mooncake("status", "--json").json("status")["pool"]
    assert pinned["hard_pinned_bytes"] == before["pool"]["hard_pinned_bytes"] + 8192
    assert mooncake("rm", key, "--force").code == 0
    assert (
        mooncake("status", "--json").json("status")["left"]["removed"] > before["left"]["removed"]
    )


def test_status_for_people_has_everything_on_a_screen(mooncake: Callable[..., Any]) -> None:
    text = mooncake("status").text
    assert len(text.splitlines()) < 24
    for word in ("master", "pool", "hits", "left", "node-b", "pinned"):
        assert word in text
    verbose = mooncake("status", "-v").text
    assert "lookup_hits_total" in verbose and "master_frames_total" in verbose


def test_only_a_server_that_is_gone_can_be_forgotten(
    mooncake: Callable[..., Any], running: Any, until: Any
) -> None:
    assert mooncake("forget", "node-c").code == 2  # nobody to ask here
    assert mooncake("forget", "no-such-node", "--yes").code == 4
    refused = mooncake("forget", "node-b", "--yes")
    assert refused.code == 5 and "alive" in refused.err
    flags = ("--pool-size", "8MiB", "--no-keep")
    server = running.home.start(
        "server", "--name", "node-gone", "--master", running.master, *flags, "--json"
    )
    server.first_document("server")

    def state() -> str | None:
        found = mooncake("status", "--json").json("status")["servers"]
        return next((each["state"] for each in found if each["name"] == "node-gone"), None)

    until(lambda: state() == "ready", "the server is ready")
    server.end(signal.SIGKILL)
    until(lambda: state() == "gone", "the server is gone")
    # A drain waits for it, says so, and ends with its membership.
    drain = running.home.start("drain", "node-gone", "--master", running.master)
    until(lambda: "waiting" in mooncake("tasks", "list").text, "the drain waits")
    time.sleep(1.0)  # the command asks twice a second
    waited = drain.end(signal.SIGINT)
    assert waited.code == 130 and "node-gone is away: this waits until it is back" in waited.err
    done = mooncake("forget", "node-gone", "--yes", "--json")
    assert done.json("forget") == {"forgotten": "node-gone"}
    assert state() is None
    assert "waiting" not in mooncake("tasks", "list").text


def test_settings_of_all_masters_beat_a_masters_own(home: Any, tmp_path: Path) -> None:
    place = ("--coordinator", f"local:{tmp_path}/cluster")

    def cluster(*arguments: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "-m", "mooncake_store.cli.main", "config", "cluster", *arguments],
            env=home.environment, capture_output=True, text=True, timeout=60,
        )  # fmt: skip

    assert cluster("set", "member_grace", "30s", *place).returncode == 0
    assert cluster("set", "copy_bandwidth", "500MiB", *place).returncode == 0
    assert cluster("set", "port", "7000", *place).returncode == 2
    assert cluster("unset", "port", *place).returncode == 2
    assert cluster("set", "member_grace", "30", *place).returncode == 2
    assert cluster("set", "evict_below_permille", "999", *place).returncode == 2
    master = home.start(
        "master", "--port", "0", *place, "--member-grace", "5s", "--json", "--no-grpc", "--no-http"
    )
    master.first_document("master")
    assert cluster("set", "soft_pin", "2h", *place).returncode == 0
    assert cluster("set", "eviction", "sieve", *place, "--json").returncode == 0
    shown = cluster("show", *place, "--json")
    settings = conforms(json.loads(shown.stdout), "config-cluster-show")["settings"]
    assert (settings["member_grace"], settings["eviction"]) == ("30s", "sieve")
    assert settings["session_timeout"] is None
    time.sleep(0.5)  # a follower of files looks five times a second
    assert cluster("unset", "soft_pin", *place).returncode == 0
    shown = cluster("show", *place)
    assert "at once" in shown.stdout
    assert f"kept at local:{tmp_path}/cluster" in shown.stderr
    assert cluster("show", "--port", "7800").stderr.strip() == "kept at local, port 7800"
    time.sleep(0.5)
    log = master.end().err
    assert "setting_of_all_masters setting=member_grace value=30s own=5s" in log
    assert "setting_changed setting=soft_pin value=2h" in log
    assert "setting_changed setting=soft_pin value=30m" in log
    assert "setting_needs_restart setting=eviction value=sieve" in log


def test_a_cluster_without_a_leader_is_not_told_to_start_one_here(
    mooncake: Callable[..., Any],
) -> None:
    for address, advice in (
        ("etcd://127.0.0.1:1/nobody", "mooncake-store ready --wait"),
        ("127.0.0.1:1", "`up` starts"),
    ):  # fmt: skip
        result = mooncake("ls", "--master", address, "--timeout", "500ms")
        assert result.code == 3
        assert advice in result.err


def test_status_and_top_can_go_on(running: Any) -> None:
    for arguments, schema in (
        (["status", "--watch", "50ms"], "status"), (["top", "--interval", "50ms"], "top"),
    ):  # fmt: skip
        process = running.home.start(*arguments, "--json")
        first = process.first_document(schema)
        second = process.first_document(schema)
        assert second["counters"]["master_frames_total"] > first["counters"]["master_frames_total"]
        result = process.end(signal.SIGINT)
        assert result.code == 130
        assert "Traceback" not in result.err


def test_one_picture_of_top_has_rates(mooncake: Callable[..., Any]) -> None:
    document = mooncake("top", "--once", "--interval", "100ms", "--json").json("top")
    assert document["per_second"]["frames"] > 0  # its own
    text = mooncake("top", "--once", "--interval", "100ms").text
    for word in ("space", "lookups", "left", "evicting", "node-b", "dram"):
        assert word in text


def test_ready_waits_for_servers(mooncake: Callable[..., Any], running: Any) -> None:
    assert mooncake("ready", "--json").json("ready")["master"] == running.master
    assert (
        mooncake("ready", "--servers", "2", "--wait", "20s", "--json").json("ready")["servers"] == 2
    )
    few = mooncake("ready", "--servers", "3", "--wait", "100ms")
    assert few.code == 3 and "of 3 store servers are ready" in few.err


def test_doctor_looks_at_everything(mooncake: Callable[..., Any], running: Any) -> None:
    port = running.up["port"]
    result = mooncake("doctor", "--json", "--port", str(port))
    document = result.json("doctor")
    found = {check["name"]: check for check in document["checks"]}
    assert set(found) == {
        "versions", "extension", "kernel", "shared memory", "old pools", "memory", "huge pages",
        "memlock", "open files", "clock", "network", "MTU", "libibverbs", "runtime folder", "ports",
        "master",
    } | ({"GID"} if Path("/sys/class/infiniband").is_dir() else set())  # fmt: skip
    topology = document["topology"]
    assert "lo" in [nic["name"] for nic in topology["nics"]]
    assert "cpu:0" in [item["location"] for item in topology["locations"]]
    assert found["master"]["verdict"] == "ok"
    assert "2 of 2 store servers ready" in found["master"]["why"]
    assert found["ports"]["verdict"] == "ok" and "a master runs here" in found["ports"]["why"]
    assert result.code == (0 if document["ok"] else 1)
    text = mooncake("doctor", "--port", str(port)).text
    lines = text.splitlines()
    assert sum(line.startswith(("ok ", "warn ", "fail ")) for line in lines) == len(found)
    assert any(line.split()[:2] == ["cpu:0", "tcp"] for line in lines)
    assert all(check["verdict"] in text for check in found.values())


def test_doctor_takes_what_an_operator_knows_better(
    mooncake: Callable[..., Any], tmp_path: Path
) -> None:
    file = tmp_path / "nics.json"
    file.write_text('{"discover": false, "nics": {"rail0": ["10.0.0.7/24"]}}')
    document = mooncake("doctor", "--json", "--topology", str(file)).json("doctor")
    assert [nic["name"] for nic in document["topology"]["nics"]] == ["rail0"]
    file.write_text('{"nisc": {}}')
    refused = mooncake("doctor", "--topology", str(file))
    assert refused.code == 2
    assert "did you mean 'nics'" in refused.err and str(file) in refused.err


def test_versions_are_told(mooncake: Callable[..., Any]) -> None:
    document = mooncake("version", "--json").json("version")
    assert document["version"] in mooncake("version").text
    assert document["master"]["version"] == document["version"]
    away = mooncake("version", "--master", "127.0.0.1:1", "--json").json("version")
    assert away["master"] == {"address": "127.0.0.1:1", "version": None}
    assert mooncake("--version").text == f"mooncake-store {document['version']}\n"


def test_every_other_document_has_its_schema(mooncake: Callable[..., Any], tmp_path: Any) -> None:
    (tmp_path / "c.toml").write_text("")
    mooncake("config", "show", "--json").json("config-show")
    mooncake("config", "check", str(tmp_path / "c.toml"), "--json").json("config-check")
    mooncake("config", "example", "--json").json("config-example")
    mooncake("completion", "zsh", "--json").json("completion")
    for subject in ([], ["put"], ["config"], ["MS-1301"]):
        mooncake("help", *subject, "--json").json("help")


def completed(running: Any, words: str) -> list[str]:
    """What bash would be offered after these words."""
    done = subprocess.run(
        [sys.executable, "-m", "mooncake_store.cli.main"],
        env={
            **running.home.environment, "_MOONCAKE_STORE_COMPLETE": "bash_complete",
            "COMP_WORDS": words, "COMP_CWORD": str(len(words.split(" ")) - 1),
        },
        capture_output=True, text=True, timeout=60,
    )  # fmt: skip
    assert done.stderr == ""
    return [line.partition(",")[2] for line in done.stdout.splitlines() if line]


def test_commands_flags_and_keys_complete(mooncake: Callable[..., Any], running: Any) -> None:
    prefix = f"complete-{uuid.uuid4().hex[:6]}"
    for key in (f"{prefix}/one", f"{prefix}/two", f"{prefix}/$(reboot)", f"{prefix}/\nthree"):
        assert mooncake("put", key, "--text", "x").code == 0
    assert completed(running, f"mooncake-store stat {prefix}/") == [
        f"{prefix}/one",
        f"{prefix}/two",
    ]
    assert completed(running, f"mooncake-store rm a {prefix}/t") == [f"{prefix}/two"]
    assert completed(running, "mooncake-store sta") == ["stat", "status"]
    assert "--hard-pin" in completed(running, "mooncake-store put --h")
    assert completed(running, f"mooncake-store stat --master 127.0.0.1:1 {prefix}") == []
    assert completed(running, "mooncake-store help exit") == ["exit-codes"]


@pytest.fixture
def nobody() -> Iterator[str]:
    """An address where nobody listens, held so that nobody can."""
    with socket.socket() as held:
        held.bind(("127.0.0.1", 0))
        yield f"127.0.0.1:{held.getsockname()[1]}"


@pytest.fixture
def mute() -> Iterator[str]:
    """An address that accepts and then says nothing."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield f"127.0.0.1:{server.getsockname()[1]}"


COMMANDS = [
    ["put", "k", "--text", "x"], ["get", "k", "/tmp/none/x"], ["cat", "k"], ["ls"], ["stat", "k"],
    ["explain", "k"],
    ["rm", "k"], ["rm", "--prefix", "k", "--yes"], ["replicate", "k", "1"], ["pin", "k"],
    ["status"], ["top", "--once"], ["ready"],
]  # fmt: skip


@pytest.mark.parametrize("arguments", COMMANDS, ids=" ".join)
def test_a_master_that_is_away_is_exit_code_3(
    arguments: list[str], mooncake: Callable[..., Any], nobody: str
) -> None:
    result = mooncake(*arguments, "--master", nobody)
    assert result.code == 3
    assert result.out == b""
    assert nobody in result.err and "flag --master" in result.err
    assert len(result.err.splitlines()) <= 4
    error = mooncake(*arguments, "--master", nobody, "--json").error()
    assert (error["code"], error["exit_code"], error["retryable"]) == ("MS-1201", 3, True)


def test_a_master_that_says_nothing_ends_at_the_deadline(
    mooncake: Callable[..., Any], mute: str
) -> None:
    for arguments in (["cat", "k"], ["status"], ["put", "k", "--text", "x"]):
        started = time.monotonic()
        result = mooncake(*arguments, "--master", mute, "--timeout", "300ms")
        assert result.code == 3
        assert time.monotonic() - started < 0.3 * 1.1 + 0.1 + 2.0  # 2.0: imports on a busy machine
        assert "[MS-1" in result.err


def test_what_is_no_master_is_told(mooncake: Callable[..., Any]) -> None:
    for address in ("::1", "host:port", "127.0.0.1:99999", "http://x", "etcd://", "unix:x"):
        result = mooncake("ls", "--master", address)
        assert result.code == 2, address
        assert "[MS-1109]" in result.err


def test_an_http_server_is_no_master(mooncake: Callable[..., Any], running: Any) -> None:
    result = mooncake("ls", "--master", f"127.0.0.1:{running.up['http_port']}", "--timeout", "2s")
    assert result.code == 3
    assert "Traceback" not in result.err


def test_wrong_flags_are_exit_code_2(mooncake: Callable[..., Any]) -> None:
    for arguments in (
        ["put"], ["put", "a", "b", "c"], ["ls", "--limit", "0"], ["stat"], ["explain"],
        ["cat"], ["pin"],
        ["replicate", "k", "17"], ["replicate", "k", "x"], ["top", "--interval", "0"],
        ["status", "--watch", "0"], ["ls", "--timeout", "5"], ["ls", "--timeout", "0s"],
        ["ls", "--context", "none"], ["ls", "--config", "/none.toml"], ["up", "--port", "-1"],
        ["up", "--port", "x"], ["completion", "csh"], ["demo", "--requests", "1"],
        ["demo", "--block-bytes", "1"], ["put", "k", "--text", "x", "--ttl", "5"],
        ["put", "k", "--text", "x", "--replicas", "0"], ["config"], ["nonsense"],
    ):  # fmt: skip
        result = mooncake(*arguments)
        assert result.code == 2, (arguments, result.err)
        assert "[MS-1109]" in result.err or arguments == ["config"]
        assert len(result.err.splitlines()) <= 4 or arguments == ["config"]
        assert "Traceback" not in result.err


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupt_does_not_wait_for_a_mute_master(
    number: int, running: Any, mute: str, until: Callable[..., None]
) -> None:
    process = running.home.start("cat", "k", "--master", mute, "--timeout", "90s")
    until(lambda: is_waiting_for(process.pid, mute), "connected", 60.0)
    started = time.monotonic()
    result = process.end(number)
    assert result.code == 130
    assert time.monotonic() - started < 10  # far from 90
    assert (result.out, "Traceback" in result.err) == (b"", False)


def is_waiting_for(pid: int, address: str) -> bool:
    """Whether a process has a connection to a port of this host."""
    port = f":{int(address.rpartition(':')[2]):04X}"
    sockets = set()
    for line in Path("/proc/net/tcp").read_text().splitlines()[1:]:
        fields = line.split()
        if fields[2].endswith(port) and fields[3] == "01":
            sockets.add(f"socket:[{fields[9]}]")
    with suppress(OSError):
        return any(os.readlink(entry) in sockets for entry in Path(f"/proc/{pid}/fd").iterdir())
    return False


def test_a_reader_that_has_enough_is_no_error(running: Any, mooncake: Callable[..., Any]) -> None:
    key = f"pipe-{uuid.uuid4().hex}"
    assert mooncake("put", key, "--text", "x" * 3_000_000).code == 0
    command = f"{sys.executable} -m mooncake_store.cli.main cat {key} | head -c 1 | wc -c"
    done = subprocess.run(
        ["bash", "-o", "pipefail", "-c", command], env=running.home.environment,
        capture_output=True, text=True, timeout=60,
    )  # fmt: skip
    assert (done.returncode, done.stdout.strip(), done.stderr) == (0, "1", "")


def test_a_full_disk_is_told(running: Any, mooncake: Callable[..., Any]) -> None:
    key = f"full-{uuid.uuid4().hex}"
    assert mooncake("put", key, "--text", "x" * 100_000).code == 0
    with open("/dev/full", "wb") as full:
        done = subprocess.run(
            [sys.executable, "-m", "mooncake_store.cli.main", "cat", key],
            env=running.home.environment, stdout=full, stderr=subprocess.PIPE, text=True,
            timeout=60,
        )  # fmt: skip
    assert done.returncode == 1
    assert "No space left on device" in done.stderr
    assert "Traceback" not in done.stderr


def test_an_ascii_terminal_gets_escapes_instead_of_a_traceback(
    running: Any, mooncake: Callable[..., Any]
) -> None:
    key = f"größe-{uuid.uuid4().hex}"
    assert mooncake("put", key, "--text", "x").code == 0
    environment = {**running.home.environment, "PYTHONIOENCODING": "ascii"}
    done = subprocess.run(
        [sys.executable, "-m", "mooncake_store.cli.main", "stat", key],
        env=environment, capture_output=True, timeout=60,
    )  # fmt: skip
    assert done.returncode == 0
    assert rb"gr\xf6\xdfe" in done.stdout


def test_a_traceback_is_for_vv(mooncake: Callable[..., Any], nobody: str) -> None:
    assert "Traceback" not in mooncake("ls", "-v", "--master", nobody).err
    assert "Traceback" in mooncake("ls", "-vv", "--master", nobody).err


def test_contexts_of_the_user_s_file_are_used(
    mooncake: Callable[..., Any], running: Any, tmp_path: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "config.toml"
    file.write_text(f'[context.lab]\nmaster = "{running.master}"\n')
    shown = mooncake("status", "--context", "lab", "--config", str(file), "--json").json("status")
    assert shown["master"]["origin"] == "context lab"
    monkeypatch.setenv("MOONCAKE_STORE_MASTER", running.master)
    shown = mooncake("status", "--json").json("status")
    assert shown["master"]["origin"] == "environment MOONCAKE_STORE_MASTER"
    monkeypatch.setenv("MOONCAKE_STORE_CONFIG", str(file))
    monkeypatch.setenv("MOONCAKE_STORE_CONTEXT", "lab")
    assert mooncake("status", "--json").json("status")["master"]["origin"] == "context lab"
