"""A whole store while its etcd is slow, frozen, killed, or loses a member: all of it comes back.

Nothing is restarted here but etcd itself. Reads are of cached locations, which need neither master
nor etcd; a master that cannot renew its lease says nothing to clients until it can.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from mooncake_store import Client
from mooncake_store.coordination.etcd_client.address import EtcdAddress
from mooncake_store.coordination.etcd_client.gateway import Gateway
from mooncake_store.errors import StoreError

from .test_failover import Cluster, until

pytestmark = [pytest.mark.slow, pytest.mark.timeout(120)]

AWAY_S = 6.5  # more than three times the lease
KEYS = [f"key-{number}" for number in range(40)]


def value_of(key: str) -> bytes:
    return key.encode() * 700


class Reader(threading.Thread):
    """Reads what it has locations of, until it is told to end."""

    def __init__(self, client: Client) -> None:
        super().__init__()
        self._client = client
        self._ended = threading.Event()
        self.wrong: list[str] = []
        self.gap_s = 0.0
        self.count = 0

    def run(self) -> None:
        before_s = time.monotonic()
        while not self._ended.wait(0.002):
            for key in KEYS:
                if (got := self._client.get(key)) != value_of(key):
                    self.wrong.append(f"{key}: {self._client.last_error if got is None else got!r}")
                now_s = time.monotonic()
                self.gap_s, before_s = max(self.gap_s, now_s - before_s), now_s
                self.count += 1

    def finish(self) -> None:
        self._ended.set()
        self.join(20)


class SlowProxy:
    """Passes connections on, each piece of bytes `delay_s` later."""

    def __init__(self, endpoint: str) -> None:
        self.delay_s = 0.0
        self._target = endpoint.rpartition(":")
        self._loop = asyncio.new_event_loop()
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.endpoint = f"127.0.0.1:{self._listener.getsockname()[1]}"
        self._thread = threading.Thread(target=self._loop.run_until_complete, args=(self._serve(),))
        self._ended = asyncio.Event()
        self._thread.start()

    async def _serve(self) -> None:
        server = await asyncio.start_server(self._pass_on, sock=self._listener)
        await self._ended.wait()
        server.close()
        for task in asyncio.all_tasks() - {asyncio.current_task()}:
            task.cancel()

    async def _pass_on(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError, asyncio.CancelledError):
            there, back = await asyncio.open_connection(self._target[0], int(self._target[2]))
            await asyncio.gather(self._copy(reader, back), self._copy(there, writer))

    async def _copy(self, source: asyncio.StreamReader, target: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError), contextlib.closing(target):
            while data := await source.read(65536):
                await asyncio.sleep(self.delay_s)
                target.write(data)
                await target.drain()

    def close(self) -> None:
        self._loop.call_soon_threadsafe(self._ended.set)
        self._thread.join(10)


def started(uri: str) -> Cluster:
    made = Cluster(uri)
    leader = made.start_master()
    until(lambda: leader.is_ready, leader.log)
    made.start_master()
    for _ in range(2):
        made.start_server()
    with Client(made.uri) as client:
        until(lambda: sum(m.state == "ready" for m in client.members()) == 2, made.logs)
    return made


@contextlib.contextmanager
def reading(client: Client) -> Iterator[Reader]:
    for key in KEYS:
        assert client.put(key, value_of(key)) is True
        assert client.get(key) == value_of(key)
    reader = Reader(client)
    reader.start()
    try:
        yield reader
    finally:
        reader.finish()
    assert not reader.wrong, reader.wrong[:5]
    assert reader.count > 500
    assert reader.gap_s < 1.0


def epoch_of(uri: str) -> int:
    address = EtcdAddress.parse(uri)
    found = Gateway(address).read(f"{address.prefix}/leader".encode(), 5.0)
    return 0 if found is None else int(json.loads(found)["epoch"])


def is_written(client: Client, key: str) -> bool:
    with contextlib.suppress(StoreError):
        return client.put(key, b"later", timeout_s=1.0) or client.get(key) == b"later"
    return False


def test_while_etcd_is_away_reads_go_on_and_nothing_is_written(
    start_etcd: Callable[..., Any],
) -> None:
    etcd = start_etcd()
    asyncio.run(etcd.wait_ready())
    member = etcd.members[0]
    proxy = SlowProxy(member.endpoint)
    cluster = started(f"etcd://{proxy.endpoint}/away")
    try:
        with Client(cluster.uri) as client, reading(client):
            epoch = epoch_of(cluster.uri)
            proxy.delay_s = 0.15  # a renewal takes 0.3 s and more: no reason to lose the lead
            for number in range(15):
                assert is_written(client, f"slow-{number}")
                time.sleep(0.2)
            proxy.delay_s = 0.0
            assert epoch_of(cluster.uri) == epoch
            assert "lease_suspended" not in cluster.logs()
            for fault, end in ((member.freeze, member.thaw), (member.kill, member.start)):
                suspensions = cluster.logs().count("lease_suspended")
                began_s = time.monotonic()
                fault()
                until(lambda n=suspensions: cluster.logs().count("lease_suspended") > n)
                assert time.monotonic() - began_s < 3.0
                while time.monotonic() - began_s < AWAY_S:
                    assert not is_written(client, f"away-{time.monotonic()}")
                    time.sleep(0.3)
                end()
                key = f"after-{time.monotonic()}"
                until(lambda k=key: is_written(client, k), cluster.logs)
                assert client.remove(key) is True
                assert epoch_of(cluster.uri) >= epoch
        assert all(each.process.poll() is None for each in [*cluster.masters, *cluster.servers])
        with Client(cluster.uri) as fresh:
            assert [fresh.get(key) for key in KEYS] == [value_of(key) for key in KEYS]
    finally:
        cluster.close()
        proxy.close()


@pytest.mark.timeout(240)
def test_a_minute_without_etcd(start_etcd: Callable[..., Any]) -> None:
    """Reads of what is known go on; shorter lifetimes end in misses; all comes back."""
    etcd = start_etcd()
    asyncio.run(etcd.wait_ready())
    member = etcd.members[0]
    uris = [f"etcd://{member.endpoint}/{name}" for name in ("brief", "usual")]
    setting = ["config", "cluster", "set", "location_lifetime", "10s", "--coordinator", uris[0]]
    command = [sys.executable, "-m", "mooncake_store.cli.main", *setting]
    subprocess.run(command, check=True, capture_output=True, timeout=60)
    clusters: list[Cluster] = []
    try:
        clusters += [started(uri) for uri in uris]
        with Client(uris[0]) as brief, Client(uris[1]) as usual, reading(usual):
            for key in KEYS:
                assert brief.put(key, value_of(key)) is True
                assert brief.get(key) == value_of(key)
            began_s = time.monotonic()
            misses: list[float] = []
            member.freeze()
            while time.monotonic() - began_s < 60.0:
                for key in KEYS[:10]:
                    asked_s = time.monotonic()
                    got = brief.get(key, timeout_s=1.0)
                    assert got in (None, value_of(key))
                    if got is None:
                        assert brief.last_error is not None  # not "there is no such object"
                        misses.append(asked_s - began_s)
                    assert time.monotonic() - asked_s < 1.3
                time.sleep(0.25)
            member.thaw()
            # Locations are good for 10 s from the look-up; renewed at half of it.
            assert misses and min(misses) > 4.0, misses[:3]
            for client, cluster in zip((brief, usual), clusters, strict=True):
                until(lambda c=client: is_written(c, "after"), cluster.logs)
            assert [brief.get(key) for key in KEYS] == [value_of(key) for key in KEYS]
        for cluster in clusters:
            assert all(each.process.poll() is None for each in [*cluster.masters, *cluster.servers])
    finally:
        for cluster in clusters:
            cluster.close()


def test_one_member_of_three_is_not_missed(start_etcd: Callable[..., Any]) -> None:
    etcd = start_etcd(3)
    asyncio.run(etcd.wait_ready())
    cluster = started(f"etcd://{','.join(each.endpoint for each in etcd.members)}/three")
    try:
        with Client(cluster.uri) as client, reading(client):
            member = etcd.members[0]  # the one in use, and one time in three their leader
            member.freeze()
            for number in range(10):
                until(lambda n=number: is_written(client, f"frozen-{n}"), cluster.logs)
                time.sleep(0.2)
            new = cluster.start_server()
            until(lambda: new.is_ready, new.log)
            until(lambda: sum(m.state == "ready" for m in client.members()) == 3, cluster.logs)
            member.kill()
            until(lambda: is_written(client, "killed"), cluster.logs)
    finally:
        cluster.close()
