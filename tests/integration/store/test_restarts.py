"""Kills and restarts of real processes while one client stays open: nothing acknowledged is lost.

Every object proves itself: its bytes follow from its key, so a wrong read cannot pass for a
right one.
"""

from __future__ import annotations

import contextlib
import hashlib
import itertools
import json
import threading
import time
from collections.abc import Iterable
from functools import partial

import pytest

from mooncake_store.client import Client
from mooncake_store.config import MIB
from mooncake_store.errors import StoreError
from tests.ports import free_port

from .conftest import Host, Running, wait_until


def value_of(key: str) -> bytes:
    """Return the bytes of a key's object: 64 B to 40 KiB."""
    seed = hashlib.sha256(key.encode()).digest()
    return seed * (2 + int.from_bytes(seed[:2], "little") % 1280)


def read(client: Client, key: str) -> bool:
    """Return whether a key is there now; a wrong answer ends the test."""
    got = client.get(key)
    assert got is None or got == value_of(key), f"{key} is another object"
    return got is not None


def wait_readable(client: Client, keys: Iterable[str], within_s: float) -> None:
    deadline_s = time.monotonic() + within_s
    left = list(keys)
    while left := [key for key in left if not read(client, key)]:
        assert time.monotonic() < deadline_s, f"{len(left)} are missing, {left[:3]}"
        time.sleep(0.01)


def put_all(client: Client, keys: Iterable[str]) -> None:
    for key in keys:
        assert client.put(key, value_of(key)) is True


@pytest.mark.parametrize("killed", ["server", "master", "both"])
def test_everything_acknowledged_is_readable_after_a_kill(host: Host, killed: str) -> None:
    port = free_port()
    master = host.master(port=port)
    server = host.server(master, name="node-a")
    keys = [f"{killed}-{number}" for number in range(300)]
    with Client(master.address) as client:
        put_all(client, keys)
        for turn in range(3):
            if killed in ("server", "both"):
                server.kill()
            if killed in ("master", "both"):
                master.kill()
                master = host.master(port=port)
            if killed in ("server", "both"):
                server = host.server(master, name="node-a")
                server.wait_log("kept extents=")
            wait_readable(client, keys, 15.0)
            more = [f"{killed}-{turn}-{number}" for number in range(20)]
            put_all(client, more)
            keys += more
        with Client(master.address) as fresh:  # nothing cached: what the master itself knows
            wait_readable(fresh, keys, 5.0)
            assert len(list(fresh.list(f"{killed}-"))) == len(keys)


@pytest.mark.parametrize(("killed", "rounds"), [("server", 20), ("master", 10), ("both", 6)])
def test_kills_during_puts_and_removes_lose_nothing_and_bring_nothing_back(
    host: Host, killed: str, rounds: int
) -> None:
    port = free_port()
    master = host.master(port=port)
    settings = {"name": "node-a", "pool_size_bytes": 64 * MIB, "ready_size_bytes": MIB}
    server = host.server(master, **settings)
    acknowledged: list[str] = []
    removed: list[str] = []
    refused: list[StoreError] = []
    wrong: list[str] = []
    stop = threading.Event()

    def put_and_read(client: Client, name: str) -> None:
        for number in itertools.count():
            if stop.is_set():
                return
            key = f"{name}-{number}"
            try:
                client.put(key, value_of(key))
                acknowledged.append(key)
            except StoreError as error:
                refused.append(error)
            if client.get(key) not in (None, value_of(key)):
                wrong.append(f"{key} is another object")

    def put_and_remove(client: Client) -> None:
        for number in itertools.count():
            if stop.is_set():
                return
            key = f"removed-{number}"
            try:
                if client.put(key, value_of(key)) and client.remove(key):
                    removed.append(key)
                    if client.get(key) is not None:
                        wrong.append(f"{key} is read after its removal")
            except StoreError as error:
                refused.append(error)

    with Client(master.address) as client:
        threads = [
            threading.Thread(target=put_and_read, args=(client, name)) for name in ("a", "b")
        ]
        threads.append(threading.Thread(target=put_and_remove, args=(client,)))
        for thread in threads:
            thread.start()
        try:
            for _ in range(rounds):
                before = len(acknowledged), len(removed)
                deadline_s = time.monotonic() + 15.0
                while len(acknowledged) < before[0] + 20 or len(removed) < before[1] + 2:
                    assert time.monotonic() < deadline_s, refused[-3:]
                    time.sleep(0.005)
                if killed != "server":
                    master.kill()
                if killed != "master":
                    server.kill()
                if killed != "server":
                    master = host.master(port=port)
                if killed != "master":
                    server = host.server(master, **settings)
        finally:
            stop.set()
            for thread in threads:
                thread.join(20)
        assert not wrong
        assert len(acknowledged) >= 20 * rounds
        wait_readable(client, acknowledged, 20.0)
        with Client(master.address) as fresh:
            wait_readable(fresh, acknowledged, 20.0)
            assert not [key for key in removed if fresh.get(key) is not None]


def test_an_object_read_over_shared_memory_stays_readable_while_its_server_is_away(
    host: Host,
) -> None:
    master = host.master()
    server = host.server(master, name="node-a")
    with Client(master.address) as client:
        put_all(client, ["one"])
        assert read(client, "one")
        server.kill()
        assert read(client, "one")  # a cached location, and the mapped memory
        host.server(master, name="node-a").wait_log("adopted")
        assert read(client, "one")


def test_hard_pins_and_ttls_survive_the_master(host: Host) -> None:
    port = free_port()
    master = host.master(port=port)
    server: Running = host.server(master, name="node-a")
    with Client(master.address, strict=True) as client:
        client.put("hard", value_of("hard"), hard_pin=True)
        client.put("short", value_of("short"), ttl_s=3.0)
        client.put("long", value_of("long"), ttl_s=3600.0)
        master.kill()
        server.kill()
        master = host.master(port=port)
        host.server(master, name="node-a")
        wait_readable(client, ["hard", "long"], 15.0)
        hard, long = client.stat("hard"), client.stat("long")
        assert hard is not None and hard.is_hard_pinned
        assert long is not None and 3500 < (long.ttl_s or 0) <= 3600
        deadline_s = time.monotonic() + 10.0
        while client.exists("short"):
            assert time.monotonic() < deadline_s
            time.sleep(0.05)


def test_pins_are_taken_again_in_the_new_session(host: Host) -> None:
    port = free_port()
    master = host.master(port=port)
    host.server(master, name="node-a", pool_size_bytes=8 * MIB)
    with Client(master.address, strict=True) as client, Client(master.address) as other:
        put_all(client, ["twice", "once", "short", "ended", "left"])
        assert client.pin(["twice", "once", "ended"]) == [True, True, True]
        assert client.pin("twice") and client.pin("short", pin_timeout_s=600.0)
        assert client.unpin("ended")
        with client.match_prefix(["left"], pin=True):
            pass
        master.kill()
        master = host.master(port=port)

        def pin_counts() -> list[int]:
            stats = [other.stat(key) for key in ("twice", "once", "short", "ended", "left")]
            return [-1 if stat is None else stat.pin_count for stat in stats]

        wait_until(lambda: pin_counts() == [1, 1, 1, 0, 0], 15.0)  # sessions, not pins, are counted
        assert client.unpin("twice") and pin_counts()[0] == 1
        assert client.unpin("twice") and pin_counts()[0] == 0
        assert not client.unpin("twice")
        # What is pinned stays while everything else is evicted.
        for number in range(400):
            client.put(f"filler-{number}", bytes(64 << 10))
        assert read(other, "once") and read(other, "short")
        assert not read(other, "left")


def test_a_server_that_follows_its_coordinator_comes_back_above_what_that_knows(
    host: Host,
) -> None:
    folder = host.folder / "cluster"
    coordinator = f"local:{folder}"
    master = host.master(coordinator=coordinator)
    settings = {"name": "node-a", "coordinator": coordinator}
    server = host.server(master, **settings)
    with Client(master.address) as client:
        put_all(client, ["one"])
        state = folder / "state"
        document = json.loads(state.read_text())
        node_id = server.endpoints.node_id.replace("-", "")
        assert document["members"][node_id] == server.endpoints.incarnation
        document["members"][node_id] = 40  # as if its files were older than what it once was
        state.write_text(json.dumps(document))
        server.kill()
        server = host.server(master, **settings)
        assert server.endpoints.incarnation == 41
        assert server.endpoints.node_id.replace("-", "") == node_id
        wait_readable(client, ["one"], 10.0)


def test_replicas_groups_and_chains_survive_everything(host: Host) -> None:
    port = free_port()
    master = host.master(port=port)
    names = ("node-a", "node-b")
    servers = [host.server(master, name=name) for name in names]
    with Client(master.address, strict=True) as client:
        wait_until(lambda: sum(member.state == "ready" for member in client.members()) == 2)
        put_all(client, ["plain"])
        for number in range(3):
            key = f"chain-{number}"
            parent = f"chain-{number - 1}" if number else None
            assert client.put(key, value_of(key), replicas=2, group=7, parent=parent)
        for process in (*servers, master):
            process.kill()
        master = host.master(port=port)
        for name in names:
            host.server(master, name=name)
        keys = ["plain", *(f"chain-{number}" for number in range(3))]
        wait_readable(client, keys, 15.0)
        with Client(master.address, strict=True) as fresh:
            stats = [fresh.stat(key) for key in keys]
            assert [len(stat.replicas) for stat in stats if stat is not None] == [1, 2, 2, 2]
            # A group leaves together: it was found again as one.
            for number in range(300):
                fresh.put(f"filler-{number}", bytes(256 << 10))
            left = [key for key in keys[1:] if fresh.exists(key)]
            assert left in ([], keys[1:])


def test_a_view_keeps_its_bytes_while_its_server_is_killed_and_the_pool_is_overfilled(
    host: Host,
) -> None:
    master = host.master()
    settings = {"name": "node-a", "pool_size_bytes": 8 * MIB, "http": True}
    server = host.server(master, **settings)

    def open_views() -> int:
        lines = server.http("/metrics")[1].splitlines()
        found = [line for line in lines if line.startswith("mooncake_store_server_views ")]
        return int(float(found[0].split()[1]))

    with Client(master.address, strict=True) as client:
        value = hashlib.sha256(b"seen").digest() * 16_384  # 512 KiB
        client.put("seen", value)
        with client.view("seen") as memory:
            assert bytes(memory) == value
            server.kill()
            assert bytes(memory) == value
            server = host.server(master, **settings)
            server.wait_log("views_found kept=1 ended=0")
            assert open_views() == 1
            wait_until(lambda: client.remove("seen"))  # CLEARED; FREED waits for the view
            for number in range(60):
                client.put(f"filler-{number}", bytes([number]) * (300 << 10))
            assert bytes(memory) == value
        wait_until(lambda: open_views() == 0)
        # Its pages are the pool's again.
        assert client.put("large", bytes(6 * MIB))


@pytest.mark.parametrize("closes", ["views, then client", "client, then views"])
def test_no_view_is_left_behind_by_a_client_that_closes_while_its_server_is_away(
    host: Host, closes: str
) -> None:
    master = host.master()
    settings = {"name": "node-a", "pool_size_bytes": 8 * MIB}
    server = host.server(master, **settings)
    closed = Client(master.address)
    with Client(master.address, strict=True) as other:
        keys = [f"seen-{number}" for number in range(3)]
        value = hashlib.sha256(b"seen").digest() * 16_384  # 512 KiB
        for key in (*keys, "kept"):
            other.put(key, value)
        ending = [closed.view(key) for key in keys]
        kept = closed.view("kept")  # which its client's close does not end

        def freeing() -> int:
            return other.counters().totals["pool_freeing_bytes"]

        server.kill()
        if closes == "client, then views":
            closed.close()
        for view in ending:
            view.close()
        closed.close()
        server = host.server(master, **settings)
        server.wait_log("views_found kept=4 ended=0")
        wait_until(lambda: other.get("kept") == value)
        for key in (*keys, "kept"):
            wait_until(partial(other.remove, key))
        wait_until(lambda: freeing() == len(value), 15.0, lambda: f"{freeing()} bytes wait")
        # Their pages are the pool's again; those under a view that is open are not.
        for number in range(60):
            other.put(f"filler-{number}", bytes([number]) * (300 << 10))
        assert kept.memory is not None and bytes(kept.memory) == value
        assert freeing() == len(value)
        kept.close()
        wait_until(lambda: freeing() == 0)
        assert other.put("large", bytes(6 * MIB))


def test_no_view_is_left_behind_by_a_server_that_is_killed_while_it_opens_them(host: Host) -> None:
    master = host.master()
    server = host.server(master, name="node-a")
    is_over = threading.Event()

    def look(client: Client) -> None:
        while not is_over.is_set():
            with contextlib.suppress(StoreError), client.view("seen", timeout_s=1.0) as memory:
                assert memory is None or bytes(memory) == value_of("seen")

    with contextlib.ExitStack() as clients:
        opened = [clients.enter_context(Client(master.address)) for _ in range(3)]
        first = opened[0]

        def freeing() -> int:
            return first.counters().totals["pool_freeing_bytes"]

        assert first.put("seen", value_of("seen")) is True
        kept = first.view("seen")
        threads = [threading.Thread(target=look, args=(client,)) for client in opened]
        for thread in threads:
            thread.start()
        try:
            for _ in range(5):
                time.sleep(0.1)
                server.kill()
                server = host.server(master, name="node-a")
                wait_readable(first, ["seen"], 15.0)
        finally:
            is_over.set()
            for thread in threads:
                thread.join()
        assert first.remove("seen") is True
        time.sleep(1.5)  # the keeper of each client has looked at what is owed
        assert freeing() > 0, "a view that is open was ended in place of another one"
        assert kept.memory is not None and bytes(kept.memory) == value_of("seen")
        kept.close()
        # What a life of the server opened and could not tell of is closed too.
        wait_until(lambda: freeing() == 0, 8.0)
