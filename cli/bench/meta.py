"""`bench meta`: keys, not bytes: look-ups, small puts, and what a key costs in memory."""

from __future__ import annotations

import json
import os
import random
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from mooncake_store import Client
from mooncake_store.cli.bench.cases import (
    Case,
    now,
    run_cases,
    value_at_least,
    value_at_most,
)
from mooncake_store.cli.bench.cluster import Cluster
from mooncake_store.cli.bench.environment import own_memory_bytes
from mooncake_store.cli.bench.operations import pool_key
from mooncake_store.cli.bench.raw import KIB, MIB, Memory, RawPeer
from mooncake_store.cli.bench.report import Watcher, silent
from mooncake_store.cli.bench.rounds import Measure, Row, Spread
from mooncake_store.cli.processes import Child
from mooncake_store.interpreter import module_command

PAGE = 4 * KIB
SAMPLE_KEYS = 65536


class Keys:
    """Many small objects in a pool, and batches of their keys in rotation."""

    def __init__(self, count: int) -> None:
        self.keys = [pool_key("meta", number) for number in range(count)]
        self._next = 0

    def store(self, client: Client) -> None:
        """Put them all, 16 bytes each."""
        for first in range(0, len(self.keys), 1024):
            part = self.keys[first : first + 1024]
            stored = client.put_batch(part, [b"v" * 16] * len(part))
            if stored.count(True) != len(part):
                raise RuntimeError(f"keys of the measurement were not stored: {stored[:3]}")

    def batches(self, size: int, count: int) -> list[list[str]]:
        """Return the next batches."""
        taken = []
        for _ in range(count):
            if self._next + size > len(self.keys):
                self._next = 0
            taken.append(self.keys[self._next : self._next + size])
            self._next += size
        return taken


def _rate(call: Callable[[list[str]], int], keys: Keys, size: int, count: int) -> Measure:
    """Measure thousands of keys a second of a call that says how many keys it found."""

    def measure() -> float:
        batches = keys.batches(size, count)
        spent = 0.0
        for batch in batches:
            begun = now()
            found = call(batch)
            spent += now() - begun
            if found != size:
                raise RuntimeError(f"{size - found} keys of a measurement were not found")
        return size * count / spent / 1e3

    return measure


def rate_cases(
    tcp: Client, local: Client, keys: Keys, raw: RawPeer, *, part: int
) -> Iterator[Case]:
    """Keys a second, over TCP and over the Unix socket of the same host."""
    calls = max(40 // part, 4)

    def exists(client: Client) -> Callable[[list[str]], int]:
        return lambda batch: client.exists_batch(batch).count(True)

    def match(client: Client) -> Callable[[list[str]], int]:
        return lambda batch: client.match_prefix(batch).count

    def pinned(batch: list[str]) -> int:
        with tcp.match_prefix(batch, pin=True) as found:
            return found.count

    def put(client: Client, size: int) -> Measure:
        values = [b"v" * 16] * size

        def measure() -> float:
            spent, turns = 0.0, 4  # the pool has room for one turn beside the keys that are read
            for _ in range(turns):
                batches = [
                    [pool_key(f"new{time.monotonic_ns()}", n) for n in range(size)]
                    for _ in range(calls)
                ]
                for batch in batches:
                    begun = now()
                    stored = client.put_batch(batch, values)
                    spent += now() - begun
                    if stored.count(True) != size:
                        raise RuntimeError("keys of a measurement were not stored")
                for batch in batches:
                    client.remove(batch)
            return size * calls * turns / spent / 1e3

        return measure

    def ping() -> float:
        return raw.latency_us("push", "tcp", 0, 200)

    yield Case("round trip 64 B, TCP (raw)", "us", ping)
    unit = "k keys/s"
    for title, client in (("TCP", tcp), ("Unix socket", local)):
        yield Case(
            f"exists, 1024 keys, {title}",
            unit,
            _rate(exists(client), keys, 1024, calls),
            bar=value_at_least(2500),
        )
        yield Case(f"exists, 128 keys, {title}", unit, _rate(exists(client), keys, 128, 4 * calls))
        yield Case(
            f"match_prefix, 1024 keys, {title}", unit, _rate(match(client), keys, 1024, calls)
        )
        yield Case(f"put 128 x 16 B, {title}", unit, put(client, 128), bar=value_at_least(400))
    yield Case("match_prefix and unpin, 1024 keys, TCP", unit, _rate(pinned, keys, 1024, calls))


# ---- memory ------------------------------------------------------------------------------------


def _settled_bytes(pid: int) -> int:
    """Return the process's memory once it has been the same for two seconds.

    A new master takes the memory of its history within seconds, and an empty one gives back after
    a second what it keeps for the next object.
    """
    last, unchanged = own_memory_bytes(pid), 0
    for _ in range(120):
        time.sleep(0.25)
        found = own_memory_bytes(pid)
        unchanged = unchanged + 1 if found == last else 0
        if unchanged == 8:
            break
        last = found
    return last


def master_memory_rows(count: int, watch: Watcher = silent) -> list[Row]:
    """Store `count` real objects and see what the master's memory grows by and gives back."""
    rows: list[Row] = []

    def row(name: str, unit: str, value: float, **more: object) -> None:
        rows.append(Row(name, unit, Spread.of([value]), **more))  # type: ignore[arg-type]

    pool = (count + 4096) * PAGE * 9 // 8 + 64 * MIB
    with Cluster(pool_size_bytes=pool) as cluster, Client(cluster.address) as client:
        pid = cluster.master.pid
        warm = Keys(1024)
        warm.keys = [f"warm/{key}" for key in warm.keys]
        warm.store(client)
        title = f"{count:,} keys"
        keys = Keys(count)
        key_bytes = sum(map(len, keys.keys))
        for turn in ("all", "a random 80 %"):
            before = _settled_bytes(pid)
            keys.store(client)
            full = own_memory_bytes(pid)
            watch(f"master's memory, {title}, stored", 0.5)
            grown = full - before
            if turn == "all":
                beyond = (grown - key_bytes) / count
                bar = value_at_most(160)
                row(f"master's memory beyond the key, {title}", "B/key", beyond, bar=bar)
                gone, least = keys.keys, 0.9
            else:
                gone, least = random.Random(1).sample(keys.keys, count * 8 // 10), 0.5
            for first in range(0, len(gone), 4096):
                client.remove(gone[first : first + 4096])
            given_back = (full - _settled_bytes(pid)) / grown
            row(
                f"given back after removing {turn}",
                "of it",
                given_back,
                bar=value_at_least(least),
            )
            watch(f"master's memory, {title}, removed {turn}", 1.0)
    return rows


def core_memory_rows(count: int) -> list[Row]:
    """Fill the metadata core alone, with a simulated server, in a process of its own."""
    done = subprocess.run(
        module_command("mooncake_store.cli.bench.core_memory", [str(count)]),
        capture_output=True,
        text=True,
        timeout=600,
    )
    if done.returncode != 0:
        raise RuntimeError(f"the core could not be measured: {done.stderr[-2000:]}")
    said = json.loads(done.stdout)
    title = f"core alone, {count:,} keys"
    beyond = Spread.of([said["bytes_per_key_beyond_the_key"]])
    gone, thinned = said["given_back_ratio"], said["given_back_ratio_of_80_percent"]
    return [
        Row(f"memory beyond the key, {title}", "B/key", beyond, bar=value_at_most(160)),
        Row(
            f"given back after removing all, {title}",
            "of it",
            Spread.of([gone]),
            bar=value_at_least(0.9),
        ),
        Row(
            f"given back after removing 80 %, {title}",
            "of it",
            Spread.of([thinned]),
            bar=value_at_least(0.5),
        ),
        *(
            Row(f"{call}, {title}", "ns/key", Spread.of([said[f"{call}_ns"]]))
            for call in ("put", "exists", "remove")
        ),
    ]


# ---- what an idle process costs ------------------------------------------------------------------


def _cpu_seconds(pid: int) -> float:
    with open(f"/proc/{pid}/stat") as file:
        fields = file.read().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def idle_rows(*, seconds: float) -> list[Row]:
    """Measure what master and server use of a processor while a client is connected and silent."""
    rows = []
    with Cluster(pool_size_bytes=256 * MIB) as cluster, Client(cluster.address) as client:
        client.put("idle", b"value")
        time.sleep(1)
        pids = {"master": cluster.master.pid, "server": cluster.servers[0].pid}
        before = {name: _cpu_seconds(pid) for name, pid in pids.items()}
        time.sleep(seconds)
        for name, pid in pids.items():
            used = (_cpu_seconds(pid) - before[name]) / seconds * 100
            bar = value_at_most(1.0)
            rows.append(Row(f"{name}, idle", "% of a core", Spread.of([used]), bar=bar))
    return rows


def _seconds_of_up(folder: Path, segments: str) -> float:
    """Start `up` as a user does, and return after how long it serves."""
    config = folder / "up.toml"
    quiet = 'log_level = "error"\n'
    config.write_text(
        f"[master]\n{quiet}[server]\n{quiet}"
        f'name = "bench-up-{os.getpid()}"\nsegment_dir = "{segments}"\n'
    )
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    names = ("XDG_CONFIG_HOME", "XDG_STATE_HOME", "XDG_RUNTIME_DIR")
    environment = {**os.environ, **{name: str(folder) for name in names}}
    begun = now()
    up = Child(
        ["up", "--port", str(port), "--size", "256MiB", "--config", str(config)],
        environment=environment,
    )
    try:
        up.wait_ready(60)
        return now() - begun
    finally:
        up.end()


def startup_rows(rounds: int) -> list[Row]:
    """Measure how long the command's first answer and a complete store take to come."""

    def version() -> float:
        begun = now()
        command = module_command("mooncake_store.cli.main", ["--version"])
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL, timeout=60)
        return now() - begun

    with (
        tempfile.TemporaryDirectory(prefix="mooncake-store-bench-") as folder,
        tempfile.TemporaryDirectory(prefix="mooncake-store-bench-", dir="/dev/shm") as segments,
    ):
        ups = [_seconds_of_up(Path(folder), segments) for _ in range(rounds)]
    versions = [version() * 1e3 for _ in range(rounds)]
    return [
        Row("up, from the command to serving", "s", Spread.of(ups), bar=value_at_most(1.0)),
        Row("mooncake-store --version", "ms", Spread.of(versions), bar=value_at_most(100)),
    ]


CLIENT_PROGRAM = """
import json, os, sys
from mooncake_store import Client

def own(pid="self"):
    total = 0
    for line in open(f"/proc/{pid}/status"):
        if line.startswith(("RssAnon", "RssFile")):
            total += int(line.split()[1]) * 1024
    return total

with Client(sys.argv[1]) as store:
    data = b"x" * 65536
    keys = [f"every/{i}" for i in range(64)]
    buffer = bytearray(65536)
    store.register_memory(buffer)
    memory = store.alloc(65536)
    store.put(keys[0], data); store.put_from(keys[1], memory); store.upsert(keys[0], data)
    store.put_batch(keys, [data] * 64)
    store.get(keys[0]); store.get_into(keys[0], buffer); store.get_batch(keys)
    store.get_batch_into(keys[:1], [buffer]); store.exists(keys[0]); store.exists_batch(keys)
    store.match_prefix(keys, pin=True).unpin()
    with store.view(keys[0]):
        pass
    store.pin(keys[0]); store.unpin(keys[0]); store.touch(keys[0])
    store.annotate(keys[0], soft_pin=True); store.stat(keys[0]); list(store.list("every/"))
    store.members(); store.statistics(); store.change_replica(keys[0], 1)
    store.remove(keys[0]); store.remove_matching("every/"); store.free(memory)
    print(json.dumps({
        "bytes": own(),
        "threads": len(os.listdir("/proc/self/task")),
        "imports_grpc": "grpc" in sys.modules,
    }))
"""


def client_rows() -> list[Row]:
    """Use every method in a fresh process and see what that process has become."""
    with Cluster(pool_size_bytes=256 * MIB) as cluster:
        done = subprocess.run(
            [sys.executable, "-c", CLIENT_PROGRAM, cluster.address],
            capture_output=True,
            text=True,
            timeout=60,
            env=cluster.environment,
        )
    if done.returncode != 0:
        raise RuntimeError(f"a client failed:\n{done.stderr[-2000:]}")
    said = json.loads(done.stdout)
    note = "grpc was imported" if said["imports_grpc"] else "no grpc imported"
    return [
        Row(
            "client's memory after every method",
            "MiB",
            Spread.of([said["bytes"] / MIB]),
            bar=value_at_most(60),
            note=note,
        ),
        Row(
            "client's threads after every method",
            "threads",
            Spread.of([float(said["threads"])]),
            bar=value_at_most(6),
        ),
    ]


def run(
    *,
    rounds: int,
    keys: int = 1_000_000,
    core_keys: int = 10_000_000,
    is_quick: bool = False,
    watch: Watcher = silent,
) -> list[Row]:
    """Measure the metadata path.

    Args:
        rounds: Rounds for each rate.
        keys: Objects for the master's memory; each takes a page of the pool.
        core_keys: Keys for the core alone, which needs no pool.
        is_quick: Few calls and keys: for trying the command, not for quoting.
        watch: Told what is being measured.
    """
    part = 10 if is_quick else 1
    sample = Keys(SAMPLE_KEYS // part)
    memory = Memory(MIB, is_shared=False)
    try:
        with (
            RawPeer(memory) as raw,
            Cluster(pool_size_bytes=(SAMPLE_KEYS + 16384) * PAGE) as cluster,
            Client(cluster.address, use_local_paths=False) as tcp,
            Client(cluster.address) as local,
        ):
            sample.store(local)
            rows = run_cases(
                rate_cases(tcp, local, sample, raw, part=part),
                [raw.pid, *cluster.pids],
                rounds=rounds,
                watch=watch,
            )
    finally:
        memory.close()
    rows += client_rows()
    rows += startup_rows(min(rounds, 5))
    rows += idle_rows(seconds=2 if is_quick else 10)
    rows += master_memory_rows(keys // 20 if is_quick else keys, watch)
    rows += core_memory_rows(core_keys // 100 if is_quick else core_keys)
    return rows
