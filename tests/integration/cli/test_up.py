"""`up`, `master` and `server` as processes: how they start, end and get out of each other's way."""

from __future__ import annotations

import os
import random
import signal
import socket
import subprocess
import sys
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from mooncake_store import Client
from mooncake_store.cli.processes import end_with_parent

pytestmark = pytest.mark.timeout(180)

SIZE = ["--size", "32MiB"]


def test_up_serves_leaves_its_context_and_ends_at_ctrl_c(
    home: Any, until: Callable[..., None], alive: Callable[[int], bool]
) -> None:
    process = home.start("up", "--port", "0", *SIZE, "--json")
    up = process.first_document("up")
    assert up["pid"] == process.pid
    assert up["server"]["size_bytes"] == 32 << 20
    with Client(up["master"]) as store:
        assert store.put("k", b"value") and store.get("k") == b"value"
    (master,) = [pid for pid in children(process.pid) if pid != up["server"]["pid"]]
    found = home.start("cat", "k").end(None)  # no --master: it finds the context
    assert (found.code, found.text) == (0, "value")
    for port, path in ((up["http_port"], "metrics"), (up["server"]["http_port"], "metrics")):
        until(lambda port=port: listens(port), "HTTP")
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/{path}", timeout=20) as answer:
            assert b"mooncake_store_build_info" in answer.read()
    result = process.end(signal.SIGINT)
    assert (result.code, result.err) == (0, "ready after " + result.err.split("ready after ")[1])
    assert "Ctrl-C ends it and gives its memory back" in result.err
    assert not alive(master) and not alive(up["server"]["pid"])
    assert home.left_bytes() == 0
    assert list((home.runtime / "mooncake-store").iterdir()) == []


def test_up_says_what_people_can_paste(home: Any, until: Callable[..., None]) -> None:
    process = home.start("up", "--port", "0", *SIZE)
    context = home.runtime / "mooncake-store" / "context-local.json"
    until(context.exists, "ready", 60.0)
    result = process.end(signal.SIGTERM)
    assert result.code == 0
    for word in ("master", "gRPC", "metrics", "mooncake-store put greeting", "Client('127.0.0.1:"):
        assert word in result.text
    assert "{" not in result.text.replace("Client(", "")


def test_children_end_with_an_up_that_is_killed(
    home: Any, until: Callable[..., None], alive: Callable[[int], bool]
) -> None:
    process = home.start("up", "--port", "0", *SIZE, "--json")
    process.first_document("up")
    pids = children(process.pid)
    assert len(pids) == 2
    process.end(signal.SIGKILL)
    until(lambda: not any(alive(pid) for pid in pids), "children gone", 20.0)
    assert home.left_bytes() == 0
    # What it could not remove names nobody: the next command is not led astray.
    result = home.start("ready", "--timeout", "1s").end(None)
    assert result.code in (0, 3)
    assert "context local" not in result.err


@pytest.mark.parametrize("which", ["master", "server"])
def test_an_up_whose_child_is_killed_ends_and_says_so(
    which: str, home: Any, alive: Callable[[int], bool]
) -> None:
    process = home.start("up", "--port", "0", *SIZE, "--json")
    up = process.first_document("up")
    pids = children(process.pid)
    server = up["server"]["pid"]
    victim = server if which == "server" else next(pid for pid in pids if pid != server)
    os.kill(victim, signal.SIGKILL)
    result = process.end(None)
    assert result.code == 3
    assert f"the {which} was killed by SIGKILL" in result.error()["error"]
    assert not any(alive(pid) for pid in pids)


def test_a_port_in_use_is_told_with_its_process_before_anything_starts(home: Any) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        result = home.start("up", "--port", str(port), *SIZE).end(None)
    assert result.code == 5
    assert f"port {port}" in result.err and f"by pid {os.getpid()} (" in result.err
    assert "[MS-1210]" in result.err and "--port" in result.err
    assert len(result.err.splitlines()) <= 4
    assert list(home.segments.iterdir()) == []


def test_a_second_up_on_the_same_port_leaves_the_first_alone(home: Any, running: Any) -> None:
    with Client(running.master) as store:
        before = [member.name for member in store.members()]
        result = home.start("up", "--port", str(running.up["port"]), *SIZE, "--json").end(None)
        assert result.code == 5
        assert result.error()["code"] == "MS-1210"
        assert [member.name for member in store.members()] == before


def test_a_busy_grpc_port_is_no_hindrance_beside_a_port_of_one_s_own(home: Any) -> None:
    port = free_port()
    with socket.create_server(("127.0.0.1", port + 1)):
        process = home.start("up", "--port", str(port), *SIZE, "--json")
        up = process.first_document("up")
        process.end()
    assert up["port"] == port
    assert up["grpc_port"] not in (None, port + 1)


def test_no_room_for_the_pool_is_told(home: Any) -> None:
    free = os.statvfs("/dev/shm").f_bavail * 4096
    result = home.start("up", "--port", "0", "--size", f"{free + (1 << 30)}B").end(None)
    assert result.code in (1, 5)
    assert "[MS-1" in result.err and "Traceback" not in result.err


def test_up_takes_the_master_s_settings_from_the_file(home: Any) -> None:
    port = free_port()
    file = home.runtime / "settings.toml"
    file.write_text(
        f'[master]\nport = {port}\nhttp = false\ngrpc = false\n[server]\nname = "from-file"\n'
        'pool_size = "32MiB"\ngrpc = false\n'
    )
    process = home.start("up", "--config", str(file), "--json")
    up = process.first_document("up")
    process.end()
    assert up["port"] == port
    assert up["grpc_port"] is None and up["http_port"] is None
    assert up["server"]["name"] == "from-file" and up["server"]["size_bytes"] == 32 << 20


def test_master_and_server_tell_where_they_are_and_end_in_order(
    home: Any, alive: Callable[[int], bool]
) -> None:
    ready = home.runtime / "ready.json"
    master = home.start("master", "--port", "0", "--json", "--ready-file", str(ready))
    where = master.first_document("master")
    assert ready.exists()
    address = f"127.0.0.1:{where['port']}"
    flags = ["--pool-size", "16MiB", "--no-grpc", "--no-http"]
    server = home.start("server", "--json", "--master", address, *flags)
    told = server.first_document("server")
    assert (told["grpc_port"], told["http_port"], told["is_adopted"]) == (None, None, True)
    for process in (server, master):
        result = process.end(signal.SIGTERM)
        assert result.code == 0, result.err
        assert "Traceback" not in result.err
    assert not ready.exists()


def test_a_child_whose_parent_is_gone_ends_at_once() -> None:
    child = os.fork()
    if child == 0:
        end_with_parent(1 if os.getppid() != 1 else 2)  # a parent that it does not have
        os._exit(0)
    _, status = os.waitpid(child, 0)
    assert os.waitstatus_to_exitcode(status) == 128 + signal.SIGTERM


def children(pid: int) -> list[int]:
    """The processes that a process has started."""
    text = Path(f"/proc/{pid}/task/{pid}/children").read_text()
    return [int(word) for word in text.split()]


def listens(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


def can_be_bound(port: int) -> bool:
    with socket.socket() as probe:
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
    return True


def free_port() -> int:
    """A port that only who asks for it gets: below those that the kernel gives to anybody."""
    for _ in range(1000):
        port = random.randrange(10_000, 30_000)
        if can_be_bound(port) and can_be_bound(port + 1):
            return port
    raise AssertionError("no free port")


def test_only_one_process_answers_version_quickly() -> None:
    """Not a benchmark: an import of something heavy would take many times as long."""
    best = min(
        timed([sys.executable, "-m", "mooncake_store.cli.main", "--version"]) for _ in range(5)
    )
    bare = min(timed([sys.executable, "-c", "pass"]) for _ in range(5))
    assert best - bare < 0.1


def timed(command: list[str]) -> float:
    """CPU seconds of a command, which do not depend on who else is busy."""
    before = os.times()
    subprocess.run(command, check=True, capture_output=True, timeout=30)
    after = os.times()
    return (after.children_user - before.children_user) + (
        after.children_system - before.children_system
    )
