"""Measure this store and the peer in alternating rounds of one run: `make bench-peer`.

Each round visits the raw limit of the machine, the peer, the limit again, ours, the limit again.
What is quoted is the median over the rounds of ours over the peer's (and over the raw limit of the
same round), with the spread.  Rows of one host take the faster of the
peer's two clients, its TCP one and its shared-memory one.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from mooncake_store.cli.bench.environment import (
    LEFT_ALONE,
    MachineLoad,
    Placement,
    describe_machine,
    placed_processes,
)
from mooncake_store.cli.bench.raw import KIB, MIB, Memory, RawCopy, RawPeer
from mooncake_store.cli.bench.report import number
from mooncake_store.cli.bench.rounds import Comparison, Spread, interleave

sys.path.insert(0, str(Path(__file__).resolve().parent))
from peer import PeerCluster, is_installed
from processes import WorkerError, WorkerProcess, own_memory_bytes

Way = Literal["tcp", "local"]

SEGMENT_BYTES = 768 * MIB
BUFFER_BYTES = 256 * MIB


@dataclass(frozen=True, slots=True)
class Pool:
    """Objects that exist before a group of rows is measured."""

    name: str
    size: int
    count: int


@dataclass(frozen=True, slots=True)
class Task:
    """One row of the comparison."""

    name: str
    unit: str
    op: str
    arguments: dict[str, Any]
    figure: str
    scale: float = 1.0
    ours: Way = "tcp"
    peers: tuple[Way, ...] = ("tcp",)
    raw: Callable[[Limits], float] | None = None
    is_placed: bool = True  # else both sides are left to the scheduler
    is_cached: bool = False  # ours has read every object before, so it has their locations

    @property
    def is_latency(self) -> bool:
        return self.unit == "us"


@dataclass(frozen=True, slots=True)
class Group:
    """Rows that share their objects."""

    pools: tuple[Pool, ...]
    tasks: tuple[Task, ...]


class Limits:
    """What the machine can do, asked in the same rounds."""

    def __init__(self) -> None:
        self._source = Memory(BUFFER_BYTES, is_shared=True)
        self._target = Memory(BUFFER_BYTES, is_shared=False)
        self.copy = RawCopy(self._source, self._target)
        self.peer = RawPeer(self._target)

    def close(self) -> None:
        self.peer.close()
        self._source.close()
        self._target.close()


@dataclass(slots=True)
class Result:
    """The figures of one row, one entry a round in each list."""

    task: Task
    is_placed: bool
    ours: Comparison
    peers: dict[str, Comparison] = field(default_factory=dict)

    @property
    def best_peer(self) -> str:
        """The peer's client with the better median."""
        choose = min if self.task.is_latency else max
        return choose(self.peers, key=lambda name: statistics.median(self.peers[name].figures))

    @property
    def gain(self) -> Spread:
        """How many times better than the peer, round by round; above 1 is ahead."""
        pairs = zip(self.ours.figures, self.peers[self.best_peer].figures, strict=True)
        return Spread.of([p / o if self.task.is_latency else o / p for o, p in pairs])

    def to_json(self) -> dict[str, Any]:
        has_raw = self.task.raw is not None
        return {
            "name": self.task.name,
            "unit": self.task.unit,
            "placed": self.is_placed,
            "ours": Spread.of(self.ours.figures).to_json(),
            "peers": {n: Spread.of(c.figures).to_json() for n, c in self.peers.items()},
            "faster_peer": self.best_peer,
            "gain": self.gain.to_json(),
            "ahead": self.gain.median > 1,
            "raw": Spread.of(self.ours.references).to_json() if has_raw else None,
            "ours_to_raw": Spread.of(self.ours.ratios).to_json() if has_raw else None,
        }


def groups(rounds: int, *, is_quick: bool) -> list[Group]:
    """Return what is compared: the rows of the design's section 11 that speak of speed."""
    part = 10 if is_quick else 1
    whole = BUFFER_BYTES // part
    calls = max(200 // part, 20)

    def latency(op: str, **arguments: Any) -> dict[str, Any]:
        return {"unit": "us", "op": op, "arguments": arguments, "figure": "median_us"}

    def rate(op: str, **arguments: Any) -> dict[str, Any]:
        return {"unit": "GB/s", "op": op, "arguments": arguments, "figure": "GBps"}

    def keys(op: str, **arguments: Any) -> dict[str, Any]:
        figure = {"figure": "keys_per_s", "scale": 1e-3}
        return {"unit": "k keys/s", "op": op, "arguments": arguments, **figure}

    def per_s(**arguments: Any) -> dict[str, Any]:
        return {"unit": "gets/s", "op": "get_in_threads", "arguments": arguments, "figure": "per_s"}

    small = Pool("small", 4 * KIB, whole // (4 * KIB))
    block = Pool("block", 64 * KIB, whole // (64 * KIB))
    large = Pool("large", MIB, max(whole // MIB, 2))
    huge = Pool("huge", 16 * MIB, max(whole // (16 * MIB), 2))
    # Read once each, so that no client has a cached location: warm-up, rounds, both placements.
    fresh = Pool("fresh", 4 * KIB, calls * 2 * (rounds + 1))
    anywhere: tuple[Way, ...] = ("tcp", "local")
    seconds = 0.3 / part**0.5

    def pushed(limits: Limits) -> float:
        return limits.peer.latency_us("push", "tcp", 4 * KIB, calls)

    def fetched(limits: Limits) -> float:
        return limits.peer.latency_us("fetch", "tcp", 4 * KIB, calls)

    def pinged(limits: Limits) -> float:
        return limits.peer.latency_us("push", "tcp", 0, calls)

    def streamed(size: int, count: int, connections: int) -> Callable[[Limits], float]:
        return lambda limits: limits.peer.rate("fetch", "tcp", size, count, connections)

    def copied(size: int, threads: int) -> Callable[[Limits], float]:
        return lambda limits: limits.copy.rate(
            limits.copy.best_kernel(size, threads, 64 * MIB // part),
            threads,
            size,
            max(2, 64 * MIB // part // size),
        )

    return [
        Group(
            (fresh, small),
            (
                Task(
                    "get 4 KiB, TCP, first",
                    **latency("get", name="fresh", size=4 * KIB, calls=calls, is_fresh=True),
                    raw=fetched,
                ),
                Task(
                    "get 4 KiB, TCP, again",
                    **latency("get", name="small", size=4 * KIB, calls=calls),
                    raw=fetched,
                    is_cached=True,
                ),
                Task(
                    "get 4 KiB, same host, again",
                    **latency("get", name="small", size=4 * KIB, calls=calls),
                    ours="local",
                    peers=anywhere,
                    raw=lambda limits: limits.copy.latency_us("memcpy", 4 * KIB, 4096),
                    is_cached=True,
                ),
                Task("put 4 KiB, TCP", **latency("put", size=4 * KIB, calls=calls), raw=pushed),
                Task(
                    "get 128 x 4 KiB, TCP",
                    **rate("get_batches", name="small", size=4 * KIB, batch=128, calls=10),
                    raw=streamed(512 * KIB, 20, 1),
                    is_cached=True,
                ),
                Task("exists, 1 key", **latency("exists", name="small", calls=calls), raw=pinged),
                Task(
                    "exists, 1024 keys",
                    **keys("exists_batches", name="small", batch=1024, calls=max(20 // part, 4)),
                ),
                Task(
                    "put 128 x 16 B",
                    **keys("put_values", size=16, batch=128, calls=max(40 // part, 8)),
                    peers=anywhere,
                ),
            ),
        ),
        Group(
            (block,),
            (
                Task(
                    "get 128 x 64 KiB, TCP",
                    **rate("get_batches", name="block", size=64 * KIB, batch=128, calls=5),
                    raw=streamed(8 * MIB, 8, 2),
                    is_cached=True,
                ),
                *(
                    Task(
                        f"get 64 KiB, {threads} thread{'s' * (threads > 1)}, TCP",
                        **per_s(name="block", size=64 * KIB, threads=threads, seconds=seconds),
                        is_placed=False,
                    )
                    for threads in (1, 4, 8)
                ),
            ),
        ),
        Group(
            (large,),
            (
                Task(
                    "get 1 MiB, same host",
                    **rate("get", name="large", size=MIB, calls=max(64 // part, 4)),
                    ours="local",
                    peers=anywhere,
                    raw=copied(MIB, 1),
                ),
                Task(
                    "put 1 MiB, same host",
                    **rate("put", size=MIB, calls=max(32 // part, 4)),
                    ours="local",
                    peers=anywhere,
                    raw=copied(MIB, 1),
                ),
            ),
        ),
        Group(
            (huge,),
            (
                Task(
                    "get 16 MiB, TCP",
                    **rate("get", name="huge", size=16 * MIB, calls=8 if not is_quick else 2),
                    raw=streamed(16 * MIB, 4, 2),
                ),
                Task(
                    "get 16 MiB, same host",
                    **rate("get", name="huge", size=16 * MIB, calls=8 if not is_quick else 2),
                    ours="local",
                    peers=anywhere,
                    raw=copied(16 * MIB, 1),
                ),
                Task(
                    "put 16 MiB, same host",
                    **rate("put", size=16 * MIB, calls=8 if not is_quick else 2),
                    ours="local",
                    peers=anywhere,
                    raw=copied(16 * MIB, 1),
                ),
            ),
        ),
    ]


class Contenders:
    """The clusters and measuring clients of both sides, by name."""

    def __init__(self, folder: Path, peer_settings: dict[str, str], *, has_ours: bool) -> None:
        self._stack = ExitStack()
        self.limits = Limits()
        self._stack.callback(self.limits.close)
        self.clients: dict[str, WorkerProcess] = {}
        self._server_pids: list[int] = [self.limits.peer.pid]
        try:
            for way in ("tcp", "local"):
                cluster = PeerCluster(
                    folder, SEGMENT_BYTES, is_thin=way == "local", settings=peer_settings
                )
                self._stack.callback(cluster.close)
                self.clients[f"peer {way}"] = cluster.client(BUFFER_BYTES)
                self._server_pids += cluster.server_pids
            if has_ours:
                from ours import OurCluster

                ours = OurCluster(folder, SEGMENT_BYTES)
                self._stack.callback(ours.close)
                for way in ("tcp", "local"):
                    self.clients[f"ours {way}"] = ours.client(BUFFER_BYTES, is_local=way == "local")
                self._server_pids += ours.server_pids
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        self._stack.close()

    @contextmanager
    def placed(self, where: Placement) -> Iterator[None]:
        """Hold all clients (and the raw loop of this process) and all servers on their cores."""
        clients = [client.pid for client in self.clients.values()]
        with placed_processes(where, clients, self._server_pids):
            yield

    def fill(self, pool: Pool) -> None:
        """Store a pool on every side.  Ours is one cluster with two clients: once is enough."""
        asked = {"name": pool.name, "size": pool.size, "count": pool.count}
        for name, client in self.clients.items():
            if name == "ours local":
                client.ask("know", name=pool.name, count=pool.count)
                continue
            if client.ask("fill", timeout_s=300, **asked)["bad"]:
                raise WorkerError(f"{name}: could not store {pool.count} x {pool.size} bytes")

    def drop(self, pools: Sequence[Pool]) -> None:
        for name, client in self.clients.items():
            client.ask("drop_puts", timeout_s=300)
            for pool in pools:
                if name != "ours local":
                    client.ask("drop", timeout_s=300, name=pool.name)

    def measure(self, name: str, task: Task) -> Callable[[], float]:
        """Return one contender's measurement of a row."""
        client = self.clients[name]

        def run() -> float:
            said = client.ask(task.op, **task.arguments)
            if said["bad"]:
                raise WorkerError(f"{name}, {task.name}: {said['bad']} calls went wrong")
            return float(said[task.figure]) * task.scale

        return run


def compare(contenders: Contenders, task: Task, where: Placement, rounds: int) -> Result:
    """Measure one row in one placement."""
    names = [f"peer {way}" for way in task.peers]
    if any(name.startswith("ours") for name in contenders.clients):
        names.append(f"ours {task.ours}")
    if task.is_cached and names[-1].startswith("ours"):
        arguments = task.arguments
        contenders.clients[names[-1]].ask("warm", name=arguments["name"], size=arguments["size"])
    raw = task.raw
    reference = (lambda: raw(contenders.limits)) if raw is not None else (lambda: 1.0)
    with contenders.placed(where):
        measured = interleave(
            reference,
            {name: contenders.measure(name, task) for name in names},
            rounds=rounds,
        )
    ours = measured.pop(f"ours {task.ours}", Comparison([], []))
    return Result(task, where.is_pinned, ours, measured)


# ---- rows that are not a speed ------------------------------------------------------------------


def memory_per_key(cluster: Any, count: int) -> dict[str, float]:
    """Store small objects and return what the master's memory grew and gave back, per key."""
    client = cluster.client(MIB)
    client.ask("fill_tiny", name="warm", count=1024, size=16, batch=128)
    before = own_memory_bytes(cluster.master.pid)
    said = client.ask("fill_tiny", timeout_s=600, name="m", count=count, size=16, batch=512)
    time.sleep(1)
    full = own_memory_bytes(cluster.master.pid)
    client.ask("drop", timeout_s=600, name="m")
    time.sleep(2)
    after = own_memory_bytes(cluster.master.pid)
    growth = full - before
    return {
        "keys": count,
        "bad_batches": said["bad"],
        "bytes_per_key": growth / count,
        "bytes_per_key_beyond_the_key": (growth - said["key_bytes"]) / count,
        "given_back_ratio": (full - after) / growth if growth > 0 else 0.0,
    }


def full_pool(cluster: Any, size: int, count: int) -> dict[str, float]:
    """Put more than the pool holds, nothing pinned."""
    said = cluster.client(max(size, MIB)).ask("overfill", timeout_s=300, size=size, count=count)
    return {"puts": count, "refused_ratio": said["refused"] / count}


def holder_lost(cluster: Any, number: int) -> dict[str, float]:
    """Kill or freeze one of two holders and read what has a second copy at the other."""
    client = cluster.client(16 * MIB, replicas=2)
    pool = {"name": "copies", "size": MIB}
    client.ask("fill", count=10, **pool)
    client.ask("get_each", first=0, count=2, **pool)
    os.kill(cluster.holders[0].pid, number)
    said = client.ask("get_each", timeout_s=400, first=2, count=4, **pool)
    return {"gets": 4, "failed": said["failed"], "seconds_max": said["seconds_max"]}


def only_holder_frozen(cluster: Any) -> dict[str, float]:
    """Freeze the only holder and read: how long does the caller wait?"""
    client = cluster.client(16 * MIB)
    pool = {"name": "one", "size": MIB}
    client.ask("fill", count=4, **pool)
    client.ask("get_each", first=0, count=1, **pool)
    os.kill(cluster.holders[0].pid, signal.SIGSTOP)
    said = client.ask("get_each", timeout_s=200, first=1, count=1, **pool)
    return {"gets": 1, "failed": said["failed"], "seconds_max": said["seconds_max"]}


@dataclass(frozen=True, slots=True)
class Happening:
    """A row that is done once on either side."""

    name: str
    segment_bytes: int
    holders: int
    run: Callable[[Any], dict[str, float]]
    is_thin: bool = False  # the peer's holder shares its memory with the client


def happenings(is_quick: bool) -> list[Happening]:
    keys = 20_000 if is_quick else 100_000
    listed = [
        Happening(
            f"master's memory at {keys:,} keys",
            keys * 4 * KIB + 128 * MIB,
            1,
            lambda cluster: memory_per_key(cluster, keys),
        ),
        Happening(
            "pool of 256 MiB, 200 puts of 16 MiB",
            256 * MIB,
            1,
            lambda cluster: full_pool(cluster, 16 * MIB, 200),
            is_thin=True,
        ),
        Happening(
            "one of two holders killed, 2 replicas",
            128 * MIB,
            2,
            lambda cluster: holder_lost(cluster, signal.SIGKILL),
        ),
    ]
    if not is_quick:
        listed += [
            Happening(
                "one of two holders frozen, 2 replicas",
                128 * MIB,
                2,
                lambda cluster: holder_lost(cluster, signal.SIGSTOP),
            ),
            Happening("only holder frozen", 128 * MIB, 1, only_holder_frozen),
        ]
    return listed


def happen(row: Happening, folder: Path, *, has_ours: bool) -> dict[str, Any]:
    """Run one such row on both sides."""
    said: dict[str, Any] = {"name": row.name}
    makers: dict[str, Callable[[], Any]] = {
        "peer": lambda: PeerCluster(
            folder, row.segment_bytes, holders=row.holders, is_thin=row.is_thin
        )
    }
    if has_ours:
        from ours import OurCluster

        makers["ours"] = lambda: OurCluster(folder, row.segment_bytes, holders=row.holders)
    for side, make in makers.items():
        cluster = make()
        try:
            said[side] = row.run(cluster)
        except WorkerError as error:
            said[side] = {"error": str(error)}
        finally:
            cluster.close()
    return said


# ---- the command --------------------------------------------------------------------------------


def line(result: Result) -> str:
    """Return one line of the Markdown table."""
    peers = {name: Spread.of(c.figures) for name, c in result.peers.items()}
    best = result.best_peer
    has_raw = result.task.raw is not None
    cells = [
        result.task.name,
        "apart" if result.is_placed else "left alone",
        result.task.unit,
        f"{number(peers[best].median)}{' (shared memory)' if best == 'peer local' else ''}",
    ]
    if result.ours.figures:
        gain = result.gain
        cells += [
            number(Spread.of(result.ours.figures).median),
            f"{number(gain.median)} × ({number(gain.low)}–{number(gain.high)})",
            number(Spread.of(result.ours.references).median) if has_raw else "",
            f"{number(Spread.of(result.ours.ratios).median)} ×" if has_raw else "",
        ]
    else:
        raw = Spread.of(result.peers[best].references)
        cells += ["", "", number(raw.median) if has_raw else "", ""]
    return "| " + " | ".join(cells) + " |"


HEAD = (
    "| what | cores | unit | peer | ours | ours is better by | raw | ours / raw |\n"
    "|---|---|---|--:|--:|--:|--:|--:|"
)


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--quick", action="store_true", help="try the commands; quote nothing")
    parser.add_argument("--only", default="", help="rows whose name contains this")
    parser.add_argument("--peer-only", action="store_true", help="measure only the peer")
    parser.add_argument("--no-faults", action="store_true", help="speed rows only")
    parser.add_argument("--json", type=Path, help="also write everything to this file")
    parser.add_argument(
        "--peer-setting",
        action="append",
        default=[],
        metavar="NAME=VALUE",
        help="environment of the peer's processes, such as MC_TCP_ENABLE_CONNECTION_POOL=1",
    )
    arguments = parser.parse_args(argv)
    if not is_installed():
        print("The peer is not installed: run benchmarks/install-peer", file=sys.stderr)
        return 2
    settings = dict(setting.split("=", 1) for setting in arguments.peer_setting)
    has_ours = not arguments.peer_only
    rounds = 2 if arguments.quick else arguments.rounds
    apart = Placement.apart()
    results: list[Result] = []
    happened: list[dict[str, Any]] = []
    failures: list[str] = []
    machine = describe_machine()

    with tempfile.TemporaryDirectory(prefix="bench-peer-") as name, MachineLoad() as load:
        folder = Path(name)
        wanted = [
            (group, [t for t in group.tasks if arguments.only in t.name])
            for group in groups(rounds, is_quick=arguments.quick)
        ]
        if any(tasks for _, tasks in wanted):
            contenders = Contenders(folder, settings, has_ours=has_ours)
            try:
                print(HEAD, flush=True)
                for group, tasks in wanted:
                    if not tasks:
                        continue
                    for pool in group.pools:
                        contenders.fill(pool)
                    for task in tasks:
                        places = [apart] if task.is_placed and apart.is_pinned else []
                        for where in [*places, LEFT_ALONE]:
                            try:
                                result = compare(contenders, task, where, rounds)
                            except WorkerError as error:
                                failures.append(str(error))
                                print(f"| {task.name} | failed: {error} |", flush=True)
                                continue
                            results.append(result)
                            print(line(result), flush=True)
                    contenders.drop(group.pools)
            finally:
                contenders.close()
        if not arguments.no_faults:
            for row in happenings(arguments.quick):
                if arguments.only in row.name:
                    happened.append(happen(row, folder, has_ours=has_ours))
                    print(json.dumps(happened[-1]), flush=True)

    if arguments.json:
        document = {
            "benchmark": "peer",
            "peer": "mooncake-transfer-engine-non-cuda 0.3.13.post1",
            "machine": machine,
            "machine_busy_ratio": load.busy_ratio,
            "machine_steal_ratio": load.steal_ratio,
            "settings": {"rounds": rounds, "quick": arguments.quick, "peer": settings},
            "rows": [result.to_json() for result in results if result.ours.figures],
            "happened": happened,
            "failures": failures,
        }
        arguments.json.parent.mkdir(parents=True, exist_ok=True)
        arguments.json.write_text(json.dumps(document, indent=1, ensure_ascii=False) + "\n")
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
