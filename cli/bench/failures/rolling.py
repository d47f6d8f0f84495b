"""Every process of a cluster is restarted, one after the other, while clients read and write."""

from __future__ import annotations

import random
import threading
import time

from mooncake_store import Client
from mooncake_store.cli.bench.cases import now, value_at_least, value_at_most
from mooncake_store.cli.bench.cluster import READY_TIMEOUT_S, Cluster
from mooncake_store.cli.bench.etcd import Etcd
from mooncake_store.cli.bench.failures.figures import one
from mooncake_store.cli.bench.report import Watcher, silent
from mooncake_store.cli.bench.rounds import Row
from mooncake_store.errors import StoreError, UnavailableError

MIB = 1 << 20
OBJECTS = 2000
VALUE = b"v" * 16384
PAUSE_S = 0.004
SETTLE_S = 2.0  # between restarts, as whoever upgrades waits for health


class Load:
    """Reads and puts, in a thread of its own; every error is kept.

    Args:
        client: Strict.
        keys: Objects that are there.
        name: Of what it puts.
    """

    def __init__(self, client: Client, keys: list[str], name: str) -> None:
        self._client, self._keys, self._name = client, keys, name
        self._is_ending = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self.errors: list[str] = []
        self.calls = self.misses = self.puts = 0
        self.slowest_s = 0.0
        self._thread.start()

    def end(self) -> None:
        """Let the call under way end."""
        self._is_ending.set()
        self._thread.join()

    def _run(self) -> None:
        number = 0
        while not self._is_ending.wait(PAUSE_S):
            number += 1
            begun = now()
            try:
                if number % 5 == 0:
                    self._client.put(f"{self._name}/{number % 500}", VALUE, replicas=2)
                    self.puts += 1
                else:
                    self.misses += self._client.get(random.choice(self._keys)) != VALUE
            except StoreError as error:
                self.errors.append(f"{'put' if number % 5 == 0 else 'get'}: {error}")
            self.slowest_s = max(self.slowest_s, now() - begun)
            self.calls += 1


def _wait(client: Client, servers: int) -> None:
    end = now() + READY_TIMEOUT_S
    while now() < end:
        try:
            if sum(member.state == "ready" for member in client.members()) == servers:
                time.sleep(SETTLE_S)
                return
        except StoreError:
            pass  # between two masters
        time.sleep(0.05)
    raise UnavailableError("a process did not come back")


def run(*, watch: Watcher = silent) -> list[Row]:
    """Restart three masters, three store servers and etcd, each once, as an upgrade does."""
    keys = [f"rolling/{number}" for number in range(OBJECTS)]
    with (
        Etcd() as etcd,
        Cluster(
            pool_size_bytes=192 * MIB, servers=3, masters=3, coordinator=etcd.uri, is_kept=True
        ) as cluster,
        Client(etcd.uri, strict=True) as near,
        Client(etcd.uri, strict=True, use_local_paths=False) as far,
        Client(etcd.uri) as watcher,
    ):
        near.put_batch(keys, [VALUE] * OBJECTS, replicas=2)
        _wait(watcher, 3)
        loads = [Load(near, keys, "near"), Load(far, keys, "far")]
        steps = 7
        for number in range(3):
            cluster.servers[number].end()
            cluster.start_server(number)
            _wait(watcher, 3)
            watch("rolling restart", (number + 1) / steps)
        for number, master in enumerate(list(cluster.masters)):
            master.end()
            cluster.masters.remove(master)
            cluster.add_master()
            _wait(watcher, 3)
            watch("rolling restart", (number + 4) / steps)
        etcd.kill()
        etcd.start()
        _wait(watcher, 3)
        for load in loads:
            load.end()
        with Client(etcd.uri) as fresh:
            there = sum(found is True for found in fresh.exists_batch(keys))
    errors = [error for load in loads for error in load.errors]
    misses = sum(load.misses for load in loads)
    slowest_s = max(load.slowest_s for load in loads)
    return [
        one("rolling restart: calls", "calls", sum(load.calls for load in loads)),
        one("rolling restart: errors", "calls", len(errors), value_at_most(0),
            "; ".join(errors[:3])),
        one("rolling restart: reads that missed", "calls", misses, value_at_most(0)),
        one("rolling restart: slowest call", "s", slowest_s, value_at_most(3.0)),
        one("rolling restart: still there", "of the cache", there / OBJECTS,
            value_at_least(0.99)),
    ]  # fmt: skip
