"""Interfaces that come, go and change while a watch runs: in a network namespace of its own."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from ipaddress import ip_interface

import pytest

from mooncake_store.transfer_engine.engine import TransferEngine
from mooncake_store.transfer_engine.topology import (
    Nic,
    Topology,
    TopologyChange,
    TopologyWatch,
    rails,
)
from mooncake_store.transfer_engine.topology_follower import TopologyFollower

# Runs inside the namespace: its sysfs shows the interfaces of whoever mounts it.
_INSIDE = r"""
import subprocess, time
from mooncake_store.transfer_engine.topology import TopologyWatch, rank

def ip(*words):
    subprocess.run(["ip", *words], check=True, timeout=10)

def await_change(watch, wanted):
    seen, deadline = set(), time.monotonic() + 10
    while not wanted <= seen:
        assert time.monotonic() < deadline, (wanted, seen)
        change = watch.wait(1.0)
        if change is not None:
            seen |= {f"{item.kind.value} {item.name}" for item in change.changes}
            assert change.topology is watch.topology

subprocess.run(["mount", "-t", "sysfs", "sysfs", "/sys"], check=True, timeout=10)
ip("link", "set", "lo", "up")
with TopologyWatch(rescan_s=3600) as watch:   # nothing here is found by looking now and then
    ip("link", "add", "a0", "type", "veth", "peer", "name", "b0")
    await_change(watch, {"added a0", "added b0"})
    ip("addr", "add", "192.0.2.7/24", "dev", "a0")
    ip("link", "set", "a0", "up")
    ip("link", "set", "b0", "up")
    await_change(watch, {"addresses a0", "up a0"})
    assert [item.nic.name for item in rank(watch.topology, "cpu:0")][0] == "a0"
    ip("addr", "add", "2001:db8::7/64", "dev", "a0", "nodad")
    await_change(watch, {"addresses a0"})
    ip("link", "set", "b0", "down")           # the cable is pulled at the other end
    await_change(watch, {"down a0"})
    ip("link", "set", "b0", "up")
    await_change(watch, {"up a0"})
    ip("link", "set", "a0", "mtu", "9000")
    await_change(watch, {"place a0"})
    ip("link", "del", "a0")
    await_change(watch, {"removed a0", "removed b0"})
    assert watch.wait(0.3) is None            # and then it is quiet
print("seen all")
"""


@pytest.mark.root
@pytest.mark.skipif(os.geteuid() != 0, reason="a network namespace takes root")
def test_changes_of_real_interfaces_are_seen() -> None:
    unshare = shutil.which("unshare")
    assert unshare and shutil.which("ip")
    ended = subprocess.run(
        [unshare, "-n", "-m", sys.executable, "-c", _INSIDE],
        capture_output=True, text=True, timeout=50, env={**os.environ},
    )  # fmt: skip
    assert ended.returncode == 0, ended.stderr
    assert ended.stdout == "seen all\n"


def machine(address: str) -> Topology:
    return Topology((Nic("eth0", (ip_interface(address),)),))


def eventually(check: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 10
    while not check():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_a_peer_is_told_and_told_again_after_a_change() -> None:
    looks = [machine("10.0.0.1/24")]
    changed: list[TopologyChange] = []
    with TransferEngine() as here, TransferEngine() as there:
        address = here.listen("127.0.0.1", local=False)
        assert there.peer_topology(address) == Topology()  # nothing said yet
        watch = TopologyWatch(lambda: looks[-1], rescan_s=0.05)
        with TopologyFollower(here, watch, changed.append):
            assert there.peer_topology(address) == machine("10.0.0.1/24")
            looks.append(machine("10.0.0.2/24"))
            eventually(lambda: len(changed) == 1)
            told = there.peer_topology(address)
            (rail,) = rails(machine("10.0.0.9/24"), told)
            assert str(rail.remote_end) == "10.0.0.2"
    assert [item.kind.value for item in changed[0].changes] == ["addresses"]


def test_a_look_that_fails_is_repeated() -> None:
    failures = [True]
    looks = [machine("10.0.0.1/24")]

    def look() -> Topology:
        if len(looks) > 1 and failures:
            failures.pop()
            raise OSError("no descriptor left")
        return looks[-1]

    changed: list[TopologyChange] = []
    with TransferEngine() as engine:
        with TopologyFollower(engine, TopologyWatch(look, rescan_s=0.05), changed.append):
            looks.append(machine("10.0.0.2/24"))
            eventually(lambda: len(changed) == 1)
    assert not failures


def test_waiting_ends_at_its_deadline_and_when_it_is_woken() -> None:
    with TopologyWatch(lambda: machine("10.0.0.1/24"), rescan_s=3600) as watch:
        started = time.monotonic()
        assert watch.wait(0.2) is None
        assert 0.15 < time.monotonic() - started < 5
        started = time.monotonic()
        threading.Timer(0.1, watch.wake).start()
        assert watch.wait(30.0) is None
        assert time.monotonic() - started < 10


def test_a_follower_ends_with_its_engine_or_before() -> None:
    engine = TransferEngine()
    follower = TopologyFollower(engine, TopologyWatch(lambda: machine("10.0.0.1/24")))
    engine.close()
    follower.close()
    assert not [thread for thread in threading.enumerate() if thread.name == "topology"]
