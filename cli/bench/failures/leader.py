"""The leading master dies or freezes, with others standing by.

Counted from the fault until one client, which tries all the time, has put an object and looked it
up again.  Beside it another client reads objects that it has read before, which takes no master.
There are three masters: the one that was hit last may still be on its way back to stand by.
"""

from __future__ import annotations

import random
import time

from mooncake_store import Client
from mooncake_store.cli.bench.cases import now, value_at_most
from mooncake_store.cli.bench.cluster import Cluster
from mooncake_store.cli.bench.etcd import Etcd
from mooncake_store.cli.bench.failures.figures import one, rows_of
from mooncake_store.cli.bench.failures.reader import Reader
from mooncake_store.cli.bench.report import Watcher, silent
from mooncake_store.cli.bench.rounds import Row
from mooncake_store.errors import StoreError, UnavailableError

MIB = 1 << 20
BACK_S = 3.0
DEADLINE_S = 30.0
MASTERS = 3
STANDS_BY_S = 2.0  # between faults
RENEWAL_S = 0.5  # a leader's: faults come at any moment of it
VALUE = b"v" * 4096


def service_back_s(client: Client, key: str) -> tuple[float, int]:
    """Return when a new key could be put and looked up, and how many errors came first."""
    begun = now()
    errors = 0
    is_put = False
    while True:
        try:
            is_put = is_put or client.put(key, VALUE)
            if client.get(key) == VALUE:
                return now() - begun, errors
        except StoreError:
            errors += 1
        if now() > begun + DEADLINE_S:
            raise UnavailableError("no master leads after a fault")


def run(*, rounds: int, is_frozen: bool, watch: Watcher = silent) -> list[Row]:
    """Let the leader die (or freeze) `rounds` times."""
    name = "leader frozen" if is_frozen else "leader killed"
    backs: list[float] = []
    errors = 0
    keys = [f"kept/{number}" for number in range(64)]
    with (
        Etcd() as etcd,
        Cluster(
            pool_size_bytes=64 * MIB, servers=2, coordinator=etcd.uri, masters=MASTERS
        ) as cluster,
        Client(etcd.uri, strict=True) as client,
        Client(etcd.uri, strict=True, use_local_paths=False) as beside,
    ):
        client.put_batch(keys, [VALUE] * len(keys), replicas=2)
        beside.get_batch(keys)
        time.sleep(STANDS_BY_S)
        with Reader(beside, keys, VALUE) as reader:
            for number in range(rounds):
                time.sleep(random.random() * RENEWAL_S)
                pid = etcd.leader_pid()
                leader = next(master for master in cluster.masters if master.pid == pid)
                if is_frozen:
                    leader.freeze()
                else:
                    leader.kill()
                back_s, failed = service_back_s(client, f"{name}/{number}")
                backs.append(back_s)
                errors += failed
                if is_frozen:
                    leader.thaw()
                else:
                    cluster.masters.remove(leader)
                    cluster.add_master()
                watch(name, (number + 1) / rounds)
                time.sleep(STANDS_BY_S)
    note = reader.first_failure
    return [
        *rows_of(f"{name}: put and look-up again", "s", backs, value_at_most(BACK_S)),
        one(f"{name}: errors of that client", "errors", errors),
        one(f"{name}: reads of known objects that failed", "reads", reader.failures,
            value_at_most(0), note),
        one(f"{name}: reads of known objects", "reads", reader.reads),
        one(f"{name}: slowest of these", "ms", reader.slowest_s * 1e3, value_at_most(100)),
    ]  # fmt: skip
