"""Cached locations outlive masters, and numbers of store servers mean the same node under all."""

from __future__ import annotations

import json
import signal
import threading
import time
from collections.abc import Sequence
from typing import Any

import grpc
import pytest

from mooncake_store.client import Client
from mooncake_store.errors import InUseError, ObjectNotFoundError
from mooncake_store.protocol import master_pb2, master_pb2_grpc
from tests.ports import free_port

from .conftest import Host, Running, wait_until
from .test_restarts import put_all, value_of, wait_readable


class Reader(threading.Thread):
    """Reads keys in turn until it is stopped, and notes what goes wrong.

    Attributes:
        wrong: Misses, errors and foreign bytes.
        gap_s: The longest time between the ends of two reads.
    """

    def __init__(self, client: Client, keys: Sequence[str]) -> None:
        super().__init__()
        self._client = client
        self._keys = keys
        self._ended = threading.Event()
        self.wrong: list[str] = []
        self.count = 0
        self.gap_s = 0.0

    def run(self) -> None:
        values = {key: value_of(key) for key in self._keys}
        before_s = time.monotonic()
        while not self._ended.is_set():
            for key in self._keys:
                got = self._client.get(key)
                if got != values[key]:
                    error = self._client.last_error
                    self.wrong.append(f"{key}: {error if got is None else 'other bytes'}")
                now_s = time.monotonic()
                self.gap_s = max(self.gap_s, now_s - before_s)
                before_s = now_s
                self.count += 1
            time.sleep(0.001)

    def finish(self) -> None:
        self._ended.set()
        self.join(20)


@pytest.mark.parametrize("is_local", [True, False])
def test_reads_with_cached_locations_never_stop(host: Host, is_local: bool) -> None:
    port = free_port()
    master = host.master(port=port)
    for name in ("node-a", "node-b"):
        host.server(master, name=name)
    keys = [f"key-{number}" for number in range(60)]
    with Client(master.address, use_local_paths=is_local, replicas=2) as client:
        put_all(client, keys)
        wait_readable(client, keys, 5.0)
        before = client.statistics()
        reader = Reader(client, keys)
        reader.start()
        try:
            for turn in range(2):
                master.kill()
                time.sleep(0.5)
                master = host.master(port=port)
                put_all(client, [f"more-{turn}"])  # a new session, with the new leader
                wait_readable(client, [f"more-{turn}"], 5.0)
                time.sleep(0.3)
        finally:
            reader.finish()
        after = client.statistics()
        assert not reader.wrong, reader.wrong[:5]
        assert reader.count > 1000
        assert reader.gap_s < 0.5
        assert after.locations_gone == before.locations_gone
        # Of the new objects only: nothing was looked up again because a master had gone.
        assert after.lookups - before.lookups <= 4


def numbers_of(host: Host, master: Running) -> dict[str, int]:
    with Client(master.address) as client:
        return {member.name: member.server for member in client.members()}


def test_a_number_is_the_same_nodes_whoever_joins_first(host: Host) -> None:
    port = free_port()
    master = host.master(port=port)
    servers = {name: host.server(master, name=name) for name in ("node-a", "node-b", "node-c")}
    before = numbers_of(host, master)
    assert sorted(before.values()) == [0, 1, 2]
    for running in (*servers.values(), master):
        running.kill()
    master = host.master(port=port)
    for name in ("node-c", "node-d", "node-a"):
        host.server(master, name=name)
    after = numbers_of(host, master)
    assert after.pop("node-d") == 3
    assert after == before  # node-b is away, and known by its name


@pytest.mark.parametrize("is_local", [True, False])
def test_a_number_that_becomes_another_nodes_shows_no_foreign_bytes(
    host: Host, is_local: bool
) -> None:
    """Both nodes' first pages hold objects, so a location read at the wrong node finds some."""
    port = free_port()
    folder = host.folder / "cluster"
    master = host.master(port=port, coordinator=f"local:{folder}")
    for name in ("node-a", "node-b"):
        host.server(master, name=name)
    keys = [f"key-{number}" for number in range(80)]
    with Client(master.address, use_local_paths=is_local) as client:
        put_all(client, keys)
        wait_readable(client, keys, 5.0)
        assert {client.stat(key).replicas[0].node for key in keys} == {"node-a", "node-b"}
        master.kill()
        state = json.loads((folder / "state").read_text())
        numbers = state["numbers"]
        numbers["0"], numbers["1"] = numbers["1"], numbers["0"]
        (folder / "state").write_text(json.dumps(state))
        master = host.master(port=port, coordinator=f"local:{folder}")
        # Locations of the former leader are right still: this client knows whom they meant.
        put_all(client, ["new"])
        for _ in range(3):
            wait_readable(client, [*keys, "new"], 5.0)


def states_of(client: Client) -> dict[str, str]:
    return {member.name: member.state for member in client.members()}


def forget_over_grpc(master: Running, node: str) -> None:
    with grpc.insecure_channel(f"127.0.0.1:{master.endpoints.grpc_port}") as channel:
        stub = master_pb2_grpc.MasterStub(channel)
        session = stub.OpenSession(master_pb2.OpenSessionRequest(), timeout=10).session
        stub.ForgetMember(master_pb2.ForgetMemberRequest(session=session, node=node), timeout=10)


def test_a_forgotten_server_costs_nothing_and_comes_back_empty(host: Host) -> None:
    port = free_port()
    folder = host.folder / "cluster"
    settings: dict[str, Any] = {"port": port, "coordinator": f"local:{folder}"}
    master = host.master(grpc=True, **settings)
    host.server(master, name="node-a")
    gone = host.server(master, name="node-b")
    keys = [f"key-{number}" for number in range(40)]
    with Client(master.address, strict=True) as client:
        put_all(client, keys)
        lost = [key for key in keys if client.stat(key).replicas[0].node == "node-b"]
        assert 0 < len(lost) < len(keys)
        with pytest.raises(InUseError, match="alive"):
            client.forget_member("node-b")
        with pytest.raises(ObjectNotFoundError):
            client.forget_member("node-c")
        gone.kill()
        wait_until(lambda: states_of(client)["node-b"] == "gone")
        assert client.remove(lost[0]) is True  # its holder is silent: a tombstone
        assert (folder / "tombstones").stat().st_size > 0
        forget_over_grpc(master, "node-b")
        assert states_of(client) == {"node-a": "ready"}
        wait_until(lambda: (folder / "tombstones").stat().st_size == 0)
        wait_until(lambda: client.exists_batch(keys) == [key not in lost for key in keys])
        master.kill()
        master = host.master(**settings)
        began_s = time.monotonic()
        assert client.exists(lost[0]) is False
        assert time.monotonic() - began_s < 0.9  # nobody is waited for
        client.remove(lost[1])
        assert not (folder / "tombstones").stat().st_size
        host.server(master, name="node-b")
        wait_until(lambda: states_of(client).get("node-b") == "ready")
        assert not any(client.exists_batch(lost))
        put_all(client, lost)
        wait_readable(client, keys, 5.0)


def test_a_server_that_is_gone_for_long_is_forgotten(host: Host) -> None:
    master = host.master(forget_after_ms=700)
    host.server(master, name="node-a")
    gone = host.server(master, name="node-b")
    with Client(master.address) as client:
        wait_until(lambda: list(states_of(client).values()) == ["ready", "ready"])
        gone.process.send_signal(signal.SIGSTOP)  # alive, and the master cuts it off
        wait_until(lambda: states_of(client) == {"node-a": "ready"}, 15.0)
        master.wait_log("server_forgotten")
        gone.process.send_signal(signal.SIGCONT)
        gone.wait_log("has been forgotten")  # it has to begin a new life
        assert states_of(client) == {"node-a": "ready"}
