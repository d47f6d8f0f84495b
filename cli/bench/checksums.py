"""`bench checksums`: what CRC32C costs where it is asked for, beside the same call without.

The modes take turns within each round, so that a machine that changes speed changes it for all.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterator

from mooncake_store import Client
from mooncake_store.cli.bench.cases import now
from mooncake_store.cli.bench.cluster import Cluster
from mooncake_store.cli.bench.report import Watcher, silent
from mooncake_store.cli.bench.rounds import Row, Spread
from mooncake_store.config import MIB
from mooncake_store.errors import UnavailableError

SIZES = ((4096, "4 KiB"), (MIB, "1 MiB"))
ROUND_BYTES = 64 * MIB  # of one mode, at most
CALLS_MAX = 1000
MODES = ("off", "put", "verify")


def run(*, rounds: int = 10, is_quick: bool = False, watch: Watcher = silent) -> list[Row]:
    """Put and get with and without checksums, on the same host and over TCP.

    Args:
        rounds: Turns of all modes.
        is_quick: Two rounds.
        watch: Told what is being measured.
    """
    count = 2 if is_quick else rounds
    rows: list[Row] = []
    with Cluster(pool_size_bytes=512 * MIB) as cluster:
        for is_local in (True, False):
            clients = {
                mode: Client(cluster.address, checksums=mode, use_local_paths=is_local)
                for mode in MODES
            }
            try:
                for size, name in SIZES:
                    what = f"{name}, {'same host' if is_local else 'TCP'}"
                    rows += _compare(clients, size, what, count, watch)
            finally:
                for client in clients.values():
                    client.close()
    return rows


def _compare(
    clients: dict[str, Client], size: int, what: str, rounds: int, watch: Watcher
) -> Iterator[Row]:
    calls = min(CALLS_MAX, ROUND_BYTES // size // 2)
    value, target = bytes(range(256)) * (size // 256), bytearray(size)
    took: dict[tuple[str, str], list[float]] = {}
    for turn in range(rounds + 1):
        for mode, client in clients.items():
            keys = [f"{mode}-{turn}-{number}" for number in range(calls)]

            def put(client: Client = client, keys: list[str] = keys) -> bool:
                return all([client.put(key, value) for key in keys])

            def get(client: Client = client, keys: list[str] = keys) -> bool:
                return all([client.get_into(key, target) == size for key in keys])

            for verb, work in (("put", put), ("get", get)):
                seconds = _timed(work)
                if turn > 0:  # the first one warms up
                    took.setdefault((verb, mode), []).append(seconds / calls * 1e6)
            client.remove(keys)
        watch(what, (turn + 1) / (rounds + 1))
    for verb, mode in (("put", "put"), ("get", "verify")):
        without, with_it = took[verb, "off"], took[verb, mode]
        yield Row(f"{verb} {what}", "us", Spread.of(without))
        price = statistics.median(with_it) / statistics.median(without) - 1
        yield Row(
            f"{verb} {what}, checksums={mode}", "us", Spread.of(with_it), note=f"{price:+.0%}"
        )


def _timed(work: Callable[[], bool]) -> float:
    begun = now()
    if not work():
        raise UnavailableError("an object of the measurement was not stored or not found")
    return now() - begun
