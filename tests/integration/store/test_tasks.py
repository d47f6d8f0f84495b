"""Drain, repair, replicate and move with real processes, while clients read and write."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterable

import pytest

from mooncake_store.cli.snapshot import take
from mooncake_store.cli.status import repair_line, stuck_repair
from mooncake_store.client import Client, Task
from mooncake_store.config import MIB
from mooncake_store.errors import ObjectTooLargeError, StoreError, UnavailableError

from .conftest import Host, wait_until
from .test_restarts import put_all, read, value_of


def objects_at(client: Client, name: str) -> int:
    numbers = {member.name: member.server for member in client.members()}
    return client.counters().by_server[numbers[name]]["server_objects"]


def wait_task(client: Client, task: Task, *states: str, within_s: float = 20.0) -> Task:
    found = task

    def is_there() -> bool:
        nonlocal found
        now = client.task(task.id)
        assert now is not None
        found = now
        return now.state in states

    wait_until(is_there, within_s, lambda: f"{found}")
    return found


def wait_ready(client: Client, count: int) -> None:
    wait_until(lambda: sum(member.state == "ready" for member in client.members()) == count)


def nodes_of(client: Client, key: str) -> list[str]:
    found = client.stat(key)
    assert found is not None
    return sorted(replica.node for replica in found.replicas)


class Writer:
    """Puts objects and reads them back, one after the other, until it is stopped."""

    def __init__(self, master: str) -> None:
        self.keys: list[str] = []
        self.failures: list[str] = []
        self._stop = threading.Event()
        self._master = master
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _run(self) -> None:
        with Client(self._master, strict=True) as client:
            while not self._stop.wait(0.005):
                key = f"load/{len(self.keys)}"
                try:
                    client.put(key, value_of(key))
                    self.keys.append(key)
                    if not read(client, self.keys[len(self.keys) // 2]):
                        self.failures.append(f"{key}: an older object is missing")
                except (StoreError, AssertionError) as error:
                    self.failures.append(f"{key}: {error!r}")

    def stop(self) -> list[str]:
        self._stop.set()
        self._thread.join(20)
        assert not self.failures, self.failures[:5]
        return self.keys


def all_there(client: Client, keys: Iterable[str]) -> None:
    missing = [key for key in keys if not read(client, key)]
    assert not missing, f"{len(missing)} are missing: {missing[:3]}"


def test_drain_under_load_loses_nothing_and_ends(host: Host) -> None:
    master = host.master()
    for name in "abc":
        host.server(master, name=name, pool_size_bytes=64 * MIB)
    with Client(master.address, strict=True) as client:
        wait_ready(client, 3)
        keys = [f"before/{index}" for index in range(150)]
        put_all(client, keys[:100])
        for key in keys[100:]:
            client.put(key, value_of(key), replicas=2)
        assert objects_at(client, "b") > 20
        load = Writer(master.address)
        wait_until(lambda: len(load.keys) > 20)
        task = client.drain("b")
        assert task.kind == "drain" and task.source == "b"
        done = wait_task(client, task, "done")
        assert done.sole_left == 0 and done.objects_done > 20 and not done.failures
        assert objects_at(client, "b") == 0
        later = len(load.keys)
        wait_until(lambda: len(load.keys) > later + 50)
        assert objects_at(client, "b") == 0  # nothing new goes there
        keys += load.stop()
        states = {member.name: member.state for member in client.members()}
        assert states["b"] == "draining"
        host.running[2].stop()  # it may go for good now
        all_there(client, keys)
        for key in keys[100:150]:
            assert nodes_of(client, key) == ["a", "c"]


def test_drain_with_nowhere_to_go_lists_what_is_left(host: Host) -> None:
    master = host.master()
    host.server(master, name="a")
    with Client(master.address, strict=True) as client:
        wait_ready(client, 1)
        put_all(client, ["one", "two"])
        client.annotate("one", hard_pin=True)
        task = client.drain("a")
        blocked = wait_task(client, task, "blocked")
        assert blocked.sole_left == 2 and blocked.ended_s is None
        assert {failure.key for failure in blocked.failures} == {"one", "two"}
        assert {failure.reason for failure in blocked.failures} == {
            "no other store server can take it"
        }
        all_there(client, ["one", "two"])
        host.server(master, name="b")  # then it goes on by itself
        wait_task(client, task, "done")
        assert nodes_of(client, "one") == ["b"]
        assert client.undrain("a") is True and client.undrain("a") is False
        wait_ready(client, 2)
        after = client.task(task.id)
        assert after is not None and after.state == "cancelled"


def test_what_a_killed_server_held_is_copied_again(host: Host) -> None:
    master = host.master(repair_delay_ms=700, member_grace_ms=300)
    for name in "abc":
        host.server(master, name=name)
    with Client(master.address, strict=True) as client:
        wait_ready(client, 3)
        keys = [f"key/{index}" for index in range(60)]
        for key in keys:
            client.put(key, value_of(key), replicas=2)
        lost = objects_at(client, "c")
        assert lost > 0
        host.running[3].kill()

        def copied() -> int:
            repairs = [task for task in client.tasks() if task.kind == "repair"]
            return sum(task.objects_done for task in repairs)

        wait_until(lambda: copied() == lost)
        assert client.counters().totals["replicas_short"] == 0
        for key in keys:
            assert nodes_of(client, key) == ["a", "b"]
        all_there(client, keys)


def test_status_says_what_repair_cannot_do_until_it_can(host: Host) -> None:
    master = host.master(repair_delay_ms=300)
    for name in ("a", "b"):
        host.server(master, name=name)
    with Client(master.address, strict=True) as client:
        wait_ready(client, 2)
        assert stuck_repair(client, take(client, 0.0)) is None
        for key in ("one", "two"):
            assert client.put(key, b"v", replicas=3)  # wants three, has two
        wait_until(lambda: stuck_repair(client, take(client, 0.0)) is not None)
        stuck = stuck_repair(client, take(client, 0.0))
        assert stuck is not None and stuck.objects_failed == 2
        line = repair_line(stuck)
        assert "2 objects (no other store server can take it)" in line and stuck.id in line
        host.server(master, name="c")
        wait_until(lambda: nodes_of(client, "one") == nodes_of(client, "two") == ["a", "b", "c"])
        wait_until(lambda: stuck_repair(client, take(client, 0.0)) is None)


def test_a_host_that_joins_gets_what_shared_a_host(host: Host) -> None:
    master = host.master(repair_delay_ms=300, copy_bandwidth_bytes_per_s=2 * MIB)
    host.server(master, name="a1", host="a", pool_size_bytes=32 * MIB)
    with Client(master.address, strict=True) as client:
        alone = [f"alone/{index}" for index in range(20)]
        for key in alone:
            client.put(key, value_of(key), replicas=2)  # for want of another server
        host.server(master, name="a2", host="a", pool_size_bytes=32 * MIB)
        wait_until(lambda: all(nodes_of(client, key) == ["a1", "a2"] for key in alone))
        shared = [f"shared/{index}" for index in range(40)]
        large = b"x" * (100 << 10)
        for key in shared:
            client.put(key, large, replicas=2)
        assert client.counters().totals["replicas_share_host_total"] >= 60
        host.server(master, name="b1", host="b")
        began = time.monotonic()

        def spread() -> int:
            return sum("b1" in nodes_of(client, key) for key in alone + shared)

        wait_until(lambda: 0 < spread() < 60)
        repairs = [task for task in client.tasks() if task.kind == "repair"]
        assert repairs and not repairs[0].has_ended
        wait_until(lambda: spread() == 60)
        # Both replicas are written anew, 8 MB in all, at 2 MiB a second.
        assert time.monotonic() - began > 2
        wait_until(lambda: all(task.has_ended for task in client.tasks()))
        assert all(len(nodes_of(client, key)) == 2 for key in alone + shared)
        all_there(client, alone)
        assert all(client.get(key) == large for key in shared)
        assert client.counters().totals["objects_evicted_total"] == 0
        host.running[1].kill()  # one host with all of its servers
        host.running[2].kill()
        all_there(client, alone)
        assert all(client.get(key) == large for key in shared)


def test_status_says_that_replicas_find_no_room_on_another_host(host: Host) -> None:
    master = host.master(repair_delay_ms=300)
    for name in ("a1", "a2"):
        host.server(master, name=name, host="a")
    with Client(master.address, strict=True) as client:
        assert client.put("key", b"x" * (2 * MIB), replicas=2)
        host.server(master, name="b1", host="b", pool_size_bytes=1 * MIB)
        wait_until(lambda: stuck_repair(client, take(client, 0.0)) is not None)
        stuck = stuck_repair(client, take(client, 0.0))
        assert stuck is not None and "1 objects (no room" in repair_line(stuck)
        host.server(master, name="c1", host="c")
        wait_until(lambda: "c1" in nodes_of(client, "key"))
        wait_until(lambda: stuck_repair(client, take(client, 0.0)) is None)


def test_a_put_that_no_server_takes_says_why(host: Host) -> None:
    master = host.master()
    with Client(master.address, strict=True) as client:
        with pytest.raises(UnavailableError, match="no store server has joined this master"):
            client.put("early", b"")
        host.server(master, name="a", pool_size_bytes=8 * MIB)
        wait_ready(client, 1)
        client.put("kept", b"value")
        client.drain("a")
        with pytest.raises(UnavailableError, match="all drain, or are away"):
            client.put("late", b"")
        client.undrain("a")
        assert client.put("late", b"") and client.get("kept") == b"value"
        with pytest.raises(ObjectTooLargeError, match="the largest object that can be placed"):
            client.put("large", bytes(9 * MIB))


def test_copies_keep_the_bound_and_stop_when_cancelled(host: Host) -> None:
    master = host.master(copy_bandwidth_bytes_per_s=4 * MIB)
    for name in "ab":
        host.server(master, name=name, pool_size_bytes=64 * MIB)
    with Client(master.address, strict=True) as client:
        wait_ready(client, 2)
        for index in range(12):
            client.put(f"large/{index}", bytes(MIB))
        # A copy at another node, and one beside the old: two for each.
        task = client.replicate_prefix("large/", 2)
        time.sleep(2.0)
        now = client.task(task.id)
        assert now is not None and now.state == "running" and now.objects_total == 12
        assert 2 <= now.objects_done <= 7  # 4 at most, and what the first burst allows
        client.cancel_task(task.id)
        with pytest.raises(StoreError):
            client.cancel_task(task.id)
        time.sleep(0.3)
        stopped = client.task(task.id)
        assert stopped is not None and stopped.state == "cancelled"
        time.sleep(1.0)
        later = client.task(task.id)
        assert later is not None and later.objects_done == stopped.objects_done < 12
        assert client.counters().totals["tasks_running"] == 0


def test_a_drain_goes_on_with_the_next_master(host: Host) -> None:
    folder = f"local:{host.folder / 'cluster'}"
    settings = {"coordinator": folder, "copy_bandwidth_bytes_per_s": 2 * MIB}
    master = host.master(**settings)
    for name in "ab":
        host.server("", coordinator=folder, name=name, pool_size_bytes=64 * MIB)
    with Client(folder, strict=True) as client:
        wait_ready(client, 2)
        keys = [f"key/{index}" for index in range(60)]
        put_all(client, keys)
        client.put("wanted", bytes(MIB), replicas=2)
        for index in range(6):
            client.put(f"large/{index}", bytes(MIB))
        task = client.drain("a")
        wait_until(lambda: objects_at(client, "a") < 30)
        master.kill()
        host.master(**{**settings, "copy_bandwidth_bytes_per_s": 100 * MIB})
    with Client(folder, strict=True) as client:
        wait_task(client, task, "done")
        assert objects_at(client, "a") == (1 if len(nodes_of(client, "wanted")) == 2 else 0)
        all_there(client, keys)
        found = client.stat("wanted")
        assert found is not None and found.replicas_wanted == 2  # from the servers' records
        states = {member.name: member.state for member in client.members()}
        assert states == {"a": "draining", "b": "ready"}


def test_replicas_go_to_distinct_hosts_where_there_are_any(host: Host) -> None:
    master = host.master()
    for name, machine in (("a", "left"), ("b", "left"), ("c", "right")):
        host.server(master, name=name, host=machine)
    with Client(master.address, strict=True) as client:
        wait_ready(client, 3)
        for index in range(20):
            client.put(f"two/{index}", b"value", replicas=2)
            assert "c" in nodes_of(client, f"two/{index}")
        assert client.counters().totals["replicas_share_host_total"] == 0
        client.put("three", b"value", replicas=3)
        assert nodes_of(client, "three") == ["a", "b", "c"]
        assert client.counters().totals["replicas_share_host_total"] == 1
        # A single object moves at once, to where it is sent.
        source = nodes_of(client, "two/0")[0]
        spare = ({"a", "b"} - {source}).pop()
        numbers = {member.name: member.server for member in client.members()}
        assert client.move("two/0", source=numbers[source], target=numbers[spare]) == 2
        assert nodes_of(client, "two/0") == sorted([spare, "c"])
        task = wait_task(client, client.move_prefix("two/", "c"), "done")
        assert task.objects_done == 20 and objects_at(client, "c") == 1


def test_a_server_that_joins_empty_gets_its_share_only(host: Host) -> None:
    master = host.master(ramp_ms=600_000, ramp_share_permille=100)
    host.server(master, name="a")
    with Client(master.address, strict=True) as client:
        wait_ready(client, 1)
        client.put("first", bytes(MIB))
        host.server(master, name="b")
        wait_ready(client, 2)
        put_all(client, [f"key/{index}" for index in range(100)])
        # Although it has more room. A put that the other one answers late goes there, share or not.
        moved = client.statistics().puts_moved
        assert 5 <= objects_at(client, "b") <= 15 + moved, moved
