"""`bench restart`: processes are killed and started again while a client stays open.

Times count from the kill, the start of the next process and its interpreter included; whoever
restarts it is taken to do so at once.  Every object that was acknowledged must come back: first one
is read by the client that stayed open, then by a new one, which knows no location and asks the
master, then each of them by that one.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from mooncake_store import Client
from mooncake_store._native import lib
from mooncake_store.cli.bench.cases import now, value_at_most
from mooncake_store.cli.bench.cluster import Cluster
from mooncake_store.cli.bench.meta import PAGE, Keys
from mooncake_store.cli.bench.report import Watcher, silent
from mooncake_store.cli.bench.rounds import Row, Spread
from mooncake_store.errors import StoreError, UnavailableError

BATCH = 1024
KEY_BYTES = 64
DEADLINE_S = 60.0
BACK_S, BACK_S_LARGE = 3.0, 5.0  # service, by how many objects there are
LARGE = 200_000
ALL_S, ALL_COUNT_MAX = 1.0, 100_000  # each object has been read, if there are no more
VALUE = b"v" * 16


class Outage:
    """What one kill cost, in seconds from it."""

    def __init__(self) -> None:
        self.started_s: list[float] = []  # the next process says that it serves
        self.first_s: list[float] = []  # one object is read by the client that stayed open
        self.found_s: list[float] = []  # and by a new one: the index is there
        self.all_s: list[float] = []  # each object has been read
        self.lost: list[float] = []


def read_all(client: Client, keys: list[str], deadline_s: float) -> int:
    """Read every object, those that do not come again and again; return how many never came."""
    left = keys
    while left:
        missing = []
        for first in range(0, len(left), BATCH):
            part = left[first : first + BATCH]
            values = client.get_batch(part)
            missing += [key for key, value in zip(part, values, strict=True) if value != VALUE]
        left = missing
        if now() > deadline_s:
            break
    return len(left)


def outage_of(
    client: Client, address: str, keys: Keys, outage: Outage, restart: Callable[[], None]
) -> None:
    """Kill and start something, and see how long its objects are away."""
    begun = now()
    restart()
    outage.started_s.append(now() - begun)
    while not _reads(client, keys.keys[len(keys.keys) // 2]):
        if now() > begun + DEADLINE_S:
            raise UnavailableError("nothing can be read after a restart")
    outage.first_s.append(now() - begun)
    with Client(address) as fresh:
        while not _reads(fresh, keys.keys[0]):
            if now() > begun + DEADLINE_S:
                raise UnavailableError("nothing can be found after a restart")
        outage.found_s.append(now() - begun)
        outage.lost.append(float(read_all(fresh, keys.keys, begun + DEADLINE_S)))
    outage.all_s.append(now() - begun)


def _reads(client: Client, key: str) -> bool:
    try:
        return client.get(key) == VALUE
    except StoreError:
        return False


def rows_of(what: str, outage: Outage, *, back_s: float, count: int) -> list[Row]:
    """Say what kills of one kind cost."""
    all_bar = value_at_most(ALL_S) if count <= ALL_COUNT_MAX else None
    return [
        Row(f"{what}: next process serves", "s", Spread.of(outage.started_s)),
        Row(f"{what}: open client reads", "s", Spread.of(outage.first_s)),
        Row(f"{what}: new client reads", "s", Spread.of(outage.found_s),
            bar=value_at_most(back_s)),
        Row(f"{what}: every object read", "s", Spread.of(outage.all_s), bar=all_bar),
        Row(f"{what}: lost", "objects", Spread.of(outage.lost), bar=value_at_most(0)),
    ]  # fmt: skip


def inventory_bytes(segment_dir: str) -> int:
    """Return what the logs of all servers take."""
    return sum(
        path.stat().st_blocks * 512
        for path in Path(segment_dir).rglob("inventory-*")
        if path.is_file()
    )


def inventory_ns(folder: str, count: int, rounds: int) -> list[float]:
    """Return what a record of the inventory costs a put, without anything around it."""
    found = []
    for number in range(rounds):
        own = Path(folder) / f"inventory-bench-{number}"
        own.mkdir()
        took_ns = lib.st_bench_inventory(str(own).encode(), count, KEY_BYTES)
        own.rmdir()
        if took_ns < 0:
            raise UnavailableError("the inventory could not be measured: no room in /dev/shm?")
        found.append(took_ns / count)
    return found


def run(
    *, rounds: int = 3, keys: int = 100_000, is_quick: bool = False, watch: Watcher = silent
) -> list[Row]:
    """Kill master, server and both, in turns.

    Args:
        rounds: Kills of each kind.
        keys: Objects of 16 bytes, a page of the pool each.
        is_quick: A tenth of the keys, one kill of each kind.
        watch: Told what is being measured.
    """
    count = keys // 10 if is_quick else keys
    kills = 1 if is_quick else rounds
    back_s = BACK_S_LARGE if count > LARGE else BACK_S
    stored = Keys(count)
    rows: list[Row] = []
    with (
        Cluster(pool_size_bytes=count * PAGE * 5 // 4) as cluster,
        Client(cluster.address) as client,
    ):
        begun = now()
        stored.store(client)
        rows.append(Row("put, 16 B, batches of 1024", "us/put",
                        Spread.of([(now() - begun) / count * 1e6])))  # fmt: skip
        rows.append(Row("inventory on the server", "bytes/put",
                        Spread.of([inventory_bytes(cluster.segment_dir) / count])))  # fmt: skip
        alone = inventory_ns(cluster.segment_dir, count, max(3, kills))
        rows.append(Row("inventory on the server, alone", "ns/put", Spread.of(alone)))
        begun = now()
        with Client(cluster.address) as fresh:
            lost = read_all(fresh, stored.keys, begun + DEADLINE_S)
        if lost:
            raise UnavailableError(f"{lost} objects of the measurement were not stored")
        rows.append(Row("every object read, nothing restarted", "s", Spread.of([now() - begun])))

        def master() -> None:
            cluster.kill_master()
            cluster.start_master()

        def server() -> None:
            cluster.kill_server(0)
            cluster.start_server(0)

        def both() -> None:
            cluster.kill_server(0)
            cluster.kill_master()
            cluster.start_both(0)

        for number, (what, restart) in enumerate(
            (("master killed", master), ("server killed", server), ("both killed", both))
        ):
            outage = Outage()
            for _ in range(kills):
                outage_of(client, cluster.address, stored, outage, restart)
                watch(what, (number * kills + len(outage.all_s)) / (3 * kills))
            rows += rows_of(what, outage, back_s=back_s, count=count)
        listed = sum(1 for _ in client.list(""))
        rows.append(Row("objects listed at the end", "objects", Spread.of([float(listed)])))
    return rows
