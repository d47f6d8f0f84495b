"""Cached locations outlive masters, and numbers of store servers mean the same node under all."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Sequence

import pytest

from mooncake_store.client import Client

from .conftest import Host, Running
from .test_restarts import free_port, put_all, value_of, wait_readable


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
