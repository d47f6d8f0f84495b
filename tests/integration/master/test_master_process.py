"""The process around the master: ports, coordination, log, stop."""

from __future__ import annotations

import json
import os
import signal
import socket
import time
from pathlib import Path
from typing import Any

import pytest

from mooncake_store.errors import Status
from mooncake_store.protocol import frames
from mooncake_store.protocol.methods import Method
from mooncake_store.runtime import DEFAULT_PORT
from tests.descriptors import (
    assert_told_once,
    few_descriptors,
    has_descriptors_for_all_ports,
    under_a_low_hard_limit,
)


def free_block() -> int:
    """A port with two free ones after it."""
    for _ in range(100):
        with socket.socket() as first:
            first.bind(("127.0.0.1", 0))
            port = first.getsockname()[1]
            if port > 65000:
                continue
            try:
                for offset in (1, 2):
                    with socket.socket() as other:
                        other.bind(("127.0.0.1", port + offset))
            except OSError:
                continue
            return int(port)
    raise AssertionError("no three free ports in a row")


def listening_on(port: int) -> socket.socket:
    held = socket.socket()
    held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    held.bind(("127.0.0.1", port))
    held.listen()
    return held


def test_gprc_and_http_have_the_ports_after_the_masters(bench: Any) -> None:
    port = free_block()
    ends = bench.master(port=port, grpc=True, http=True).endpoints
    assert (ends.port, ends.grpc_port, ends.http_port) == (port, port + 1, port + 2)


def test_any_port_is_taken_for_all_three_with_0(bench: Any) -> None:
    ends = bench.master(port=0, grpc=True, http=True).endpoints
    assert len({ends.port, ends.grpc_port, ends.http_port, 0}) == 4


def test_beside_a_port_of_ones_own_choice_a_taken_one_is_replaced(bench: Any) -> None:
    port = free_block()
    with listening_on(port + 1), listening_on(port + 2):
        ends = bench.master(port=port, grpc=True, http=True).endpoints
        assert ends.port == port
        assert ends.grpc_port not in (None, port + 1)
        assert ends.http_port not in (None, port + 2)


def test_a_taken_port_is_an_error_that_names_who_has_it(bench: Any) -> None:
    port = free_block()
    with listening_on(port):
        master = bench.launch(port=port)
        assert master.process.wait(20.0) == 2
    assert f"pid {os.getpid()}" in master.log()
    assert "MS-1210" in master.log()


def test_beside_the_default_port_a_taken_one_is_an_error_too(bench: Any) -> None:
    try:
        with listening_on(DEFAULT_PORT):
            pass
        held = listening_on(DEFAULT_PORT + 2)
    except OSError:
        pytest.skip("the default ports are in use on this machine")
    with held:
        master = bench.launch(port=DEFAULT_PORT, http=True)
        assert master.process.wait(20.0) == 2
        assert f"port {DEFAULT_PORT + 2}" in master.log()


def test_a_second_master_of_the_same_cluster_names_the_first(bench: Any, tmp_path: Path) -> None:
    first = bench.master(coordinator=f"local:{tmp_path}/c")
    second = bench.launch(coordinator=f"local:{tmp_path}/c")
    assert second.process.wait(20.0) == 2
    assert f"pid {first.process.pid}" in second.log()


def test_each_leadership_has_a_higher_epoch_and_the_same_secret(bench: Any, tmp_path: Path) -> None:
    coordinator = f"local:{tmp_path}/c"
    hellos = []
    for kills in (False, True, False):
        master = bench.master(coordinator=coordinator)
        hellos.append(bench.client(master).hello)
        if kills:
            master.process.kill()
            master.process.wait()
            bench.masters.remove(master)
        else:
            assert master.stop() == 0
    assert [hello.epoch for hello in hellos] == [1, 2, 3]
    assert len({(hello.secret, hello.cluster) for hello in hellos}) == 1
    state = tmp_path / "c" / "state"
    assert state.stat().st_mode & 0o777 == 0o600


def test_what_was_removed_while_its_holder_was_silent_stays_removed_after_a_restart(
    bench: Any, tmp_path: Path, until: Any
) -> None:
    coordinator = f"local:{tmp_path}/c"
    master = bench.master(coordinator=coordinator)
    client = bench.client(master)
    server = bench.ready_server(master, client)
    removed, kept = client.put(b"removed"), client.put(b"kept")
    server.holds_frees.set()
    assert client.value(Method.REMOVE, client.remove_body(b"removed")).statuses == (Status.OK,)
    assert (tmp_path / "c" / "tombstones").stat().st_size == 28
    master.process.kill()
    master.process.wait()
    bench.masters.remove(master)

    master = bench.master(coordinator=coordinator)
    client = bench.client(master)
    inventory = tuple(
        frames.InventoryItem(
            hash=client.hash(key),
            version=grant.version,
            page=grant.replicas[0].extents[0].page,
            page_count=1,
            size=4096,
            tenant=b"default",
            key=key,
        )
        for key, grant in ((b"removed", removed), (b"kept", kept))
    )
    server = bench.ready_server(master, client, inventory=inventory)
    assert client.exists(b"removed", b"kept") == [False, True]
    free = frames.Free.decode(server.wait_frame(Method.FREE).body)
    assert [item.version for item in free.items] == [removed.version]
    assert client.put(b"removed").version > removed.version
    assert client.exists(b"removed") == [True]
    # Everybody is here and what was struck is freed: the coordinator need not keep it.
    until(lambda: (tmp_path / "c" / "tombstones").stat().st_size == 0)


def test_a_new_leader_waits_for_the_members_that_there_were(
    bench: Any, tmp_path: Path, until: Any
) -> None:
    coordinator = f"local:{tmp_path}/c"
    master = bench.master(coordinator=coordinator)
    client = bench.client(master)
    servers = [bench.ready_server(master, client, node=node) for node in (1, 2)]
    grants = {key: client.put(key) for key in (b"one", b"two")}
    until(lambda: len(json.loads((tmp_path / "c" / "state").read_text())["members"]) == 2)
    master.process.kill()
    master.process.wait()
    bench.masters.remove(master)
    del servers

    master = bench.master(coordinator=coordinator)
    client = bench.client(master)

    def held(key: bytes) -> frames.InventoryItem:
        grant = grants[key]
        return frames.InventoryItem(
            hash=client.hash(key),
            version=grant.version,
            page=grant.replicas[0].extents[0].page,
            page_count=1,
            size=4096,
            tenant=b"default",
            key=key,
        )

    lookup = client.start(Method.EXISTS_KEYS, client.hashes(b"one", b"two"))
    bench.server(master, node=1, incarnation=2, inventory=(held(b"one"),)).wait_adopted()
    assert client.is_silent(0.2)
    bench.server(master, node=2, incarnation=2, inventory=(held(b"two"),)).wait_adopted()
    assert client.finish(lookup).payload == b"\x01\x01"
    # While a member is away a remove of a key that nobody knows writes a tombstone first.
    master.process.kill()
    master.process.wait()
    bench.masters.remove(master)
    master = bench.master(coordinator=coordinator)
    client = bench.client(master)
    bench.server(master, node=1, incarnation=3, inventory=(held(b"one"),)).wait_adopted()
    assert client.value(Method.REMOVE, client.remove_body(b"two")).statuses == (Status.NOT_FOUND,)
    assert (tmp_path / "c" / "tombstones").stat().st_size == 28
    bench.server(master, node=2, incarnation=3, inventory=(held(b"two"),)).wait_adopted()
    until(lambda: client.exists(b"one", b"two") == [True, False])
    until(lambda: (tmp_path / "c" / "tombstones").stat().st_size == 0)


def test_a_port_is_a_cluster_of_its_own(bench: Any) -> None:
    port = free_block()
    first = bench.master(port=port)
    epochs = [first.endpoints.epoch]
    first.stop()
    epochs.append(bench.master(port=port).endpoints.epoch)
    assert epochs == [1, 2]
    other = bench.master(port=0)
    assert other.endpoints.epoch == 1
    assert other.endpoints.cluster != first.endpoints.cluster


def test_it_listens_beyond_loopback_only_with_insecure_and_says_so(bench: Any) -> None:
    refused = bench.launch(address="0.0.0.0")
    assert refused.process.wait(20.0) == 2
    assert "--insecure" in refused.log() or "encrypted" in refused.log()
    allowed = bench.master(address="0.0.0.0", insecure=True)
    allowed.wait_log("insecure")


def test_ipv6_is_served_like_ipv4(bench: Any) -> None:
    if not socket.has_ipv6 or not Path("/proc/net/if_inet6").exists():
        pytest.skip("this machine has no IPv6")
    master = bench.master(address="::1", http=True)
    client = bench.client(master)
    assert client.exists(b"a") == [False]
    with socket.create_connection(("::1", master.endpoints.http_port), timeout=10.0) as http:
        http.sendall(b"GET /livez HTTP/1.0\r\n\r\n")
        assert b"200" in http.recv(1000)


@pytest.mark.parametrize("services", [False, True])
def test_sigterm_stops_it_cleanly_and_leaves_nothing(bench: Any, services: bool) -> None:
    master = bench.master(grpc=services, http=services)
    if services:
        master.wait_log("grpc_serving")
    client = bench.client(master)
    unix_path = Path(master.endpoints.unix_path)
    assert unix_path.exists()
    started_s = time.monotonic()
    assert master.stop() == 0
    assert time.monotonic() - started_s < 10.0
    assert client.is_closed()
    assert not unix_path.exists()
    assert not master.ready_path.exists()
    assert "stopped" in master.log()
    assert "Traceback" not in master.log()


def test_a_stop_while_it_starts_is_clean(bench: Any) -> None:
    master = bench.master(grpc=True, http=True)
    assert master.stop() == 0
    assert "Traceback" not in master.log()


def test_the_log_has_one_json_document_a_line_when_asked(bench: Any) -> None:
    master = bench.master(log_format="json")
    client = bench.client(master)
    bench.ready_server(master, client)
    master.wait_log("server_ready")
    lines = [json.loads(line) for line in master.log().splitlines()]
    by_event = {line["event"]: line for line in lines}
    assert {"leading", "listening", "server_joined", "server_ready"} <= set(by_event)
    joined = by_event["server_joined"]
    assert (joined["node"], joined["incarnation"], joined["level"]) == ("node-1", 1, "info")
    assert joined["time"].endswith("Z")


def test_hostile_names_break_no_log_line(bench: Any) -> None:
    master = bench.master(log_format="json")
    server = bench.server(master, name=b'x"\n{"event":"forged"}\x1b[31m').wait_adopted()
    assert server.number == 0
    master.wait_log("server_joined")
    for line in master.log().splitlines():
        assert json.loads(line)["event"] != "forged"
        assert "\x1b" not in line


def test_an_idle_master_uses_nearly_no_processor_time(bench: Any) -> None:
    master = bench.master()
    fields = Path(f"/proc/{master.process.pid}/stat")

    def used_s() -> float:
        parts = fields.read_text().rpartition(")")[2].split()
        return (int(parts[11]) + int(parts[12])) / os.sysconf("SC_CLK_TCK")

    before = used_s()
    time.sleep(3.0)
    assert used_s() - before <= 0.06  # 2 %, in clock ticks of 10 ms


def test_a_service_manager_is_told_what_it_does(
    bench: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as manager:
        manager.bind(f"{tmp_path}/notify")
        manager.settimeout(20.0)
        monkeypatch.setenv("NOTIFY_SOCKET", f"{tmp_path}/notify")
        monkeypatch.setenv("WATCHDOG_USEC", "200000")
        master = bench.master()
        heard = {manager.recv(200) for _ in range(6)}
        assert heard == {b"READY=1\nSTATUS=serving", b"WATCHDOG=1"}
        master.process.send_signal(signal.SIGTERM)
        while manager.recv(200) != b"STOPPING=1":
            pass


def test_there_are_descriptors_for_the_connections_of_all_ports(bench: Any) -> None:
    with few_descriptors():
        master = bench.master(connections_max=512, grpc=True, http=True)
    assert has_descriptors_for_all_ports(master.process.pid, 512)
    assert "too_few_descriptors" not in master.log()


def test_a_limit_of_descriptors_that_cannot_be_raised_is_told_once(bench: Any) -> None:
    master = bench.master(run_under=under_a_low_hard_limit(), grpc=True, http=True)
    assert_told_once(master.process.pid, master.log(), 20992)
