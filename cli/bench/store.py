"""`bench store`: the SDK's calls beside the raw limit of the same kind, both in one run."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from typing import Any

from mooncake_store import Client
from mooncake_store.cli.bench.cases import (
    Case,
    at_least,
    at_most,
    is_wanted,
    over,
    run_cases,
    value_at_least,
    value_at_most,
)
from mooncake_store.cli.bench.cluster import Cluster
from mooncake_store.cli.bench.environment import connections_to
from mooncake_store.cli.bench.operations import PAGE, Operations
from mooncake_store.cli.bench.raw import (
    KIB,
    MIB,
    Direction,
    Kernel,
    Memory,
    RawCopy,
    RawPeer,
    Transport,
    size_text,
)
from mooncake_store.cli.bench.report import Watcher, silent
from mooncake_store.cli.bench.rounds import Measure, Row
from mooncake_store.cli.bench.sdk_store import SdkStore
from mooncake_store.cli.bench.ticker import ticker_rows

UNPACED_NOTE = "raw: unpaced sockets, as the engine has them within a machine"
POOL_BYTES = 768 * MIB
# 65,536 objects of 4 KiB are what rotates: a cache of the default size would just not hold them.
LOCATIONS = 1 << 17
# More than the processes grow by in one run.
GROWTH_BYTES = 512 * MIB


class Bench:
    """The cluster, the clients and the limits that the cases of this file use."""

    def __init__(self, *, rounds: int, is_quick: bool) -> None:
        self.rounds = rounds
        self.part = 10 if is_quick else 1
        self.rotation = (256 if not is_quick else 64) * MIB
        self.calls = max(300 // self.part, 20)
        self._stack = ExitStack()
        keep = self._stack
        try:
            self.source = Memory(self.rotation, is_shared=True)
            keep.callback(self.source.close)
            self.memory = Memory(self.rotation, is_shared=False)
            keep.callback(self.memory.close)
            self.copy = RawCopy(self.source, self.memory)
            self.raw = keep.enter_context(RawPeer(self.memory))
            self.cluster = keep.enter_context(Cluster(pool_size_bytes=POOL_BYTES))
            self.tcp = self._operations(use_local_paths=False)
            self.tcp_relayed = self._operations(use_local_paths=False, use_relay=True)
            self.local_client = keep.enter_context(
                Client(self.cluster.address, location_count_max=LOCATIONS)
            )
            self.local = Operations(SdkStore(self.local_client, self.memory.buffer))
            self.local_one_thread = self._operations(worker_threads=0)
            self.local_alloc = self._operations(is_alloc=True)
            # What master and server will take: the first touch of a page costs a virtual machine
            # many times a later one.
            Memory(GROWTH_BYTES, is_shared=False).close()
        except BaseException:
            keep.close()
            raise

    def _operations(self, *, is_alloc: bool = False, **settings: Any) -> Operations:
        settings = {"location_count_max": LOCATIONS, **settings}
        client = self._stack.enter_context(Client(self.cluster.address, **settings))
        memory = client.alloc(self.rotation) if is_alloc else self.memory.buffer
        return Operations(SdkStore(client, memory, is_registered=not is_alloc))

    def __enter__(self) -> Bench:
        return self

    def __exit__(self, *exception: object) -> None:
        self._stack.close()

    @property
    def server_pids(self) -> list[int]:
        return [self.raw.pid, *self.cluster.pids]

    def fill(self, name: str, size: int, count: int) -> None:
        """Store a pool and let every client know its keys."""
        good(self.tcp_relayed.fill(name, size, count))
        for operations in (self.tcp, self.local, self.local_one_thread):
            operations.know(name, count)

    def drop(self, *names: str) -> None:
        """Remove pools and what the measured puts have left."""
        every = (self.tcp, self.tcp_relayed, self.local, self.local_alloc)
        for operations in every:
            operations.drop_puts()
        for name in names:
            self.tcp_relayed.drop(name)

    def connections_of(self, use: Callable[[Operations], dict[str, Any]]) -> int:
        """Return over how many connections to the servers the engine spreads such a call."""
        with Client(self.cluster.address, use_local_paths=False) as client:
            ports = {int(at.rpartition(":")[2]) for m in client.members() for at in m.addresses}
            before = connections_to(ports)
            operations = Operations(SdkStore(client, self.memory.buffer))
            for name, keys in self.tcp.objects.items():
                operations.know(name, len(keys))
            good(use(operations))
            good(use(operations))
            used = connections_to(ports) - before
            operations.drop_puts()
        return max(used, 1)

    def best_kernel(self, size: int, threads: int) -> Kernel:
        """Return the fastest copy at this size, which is then the limit for all rounds."""
        return self.copy.best_kernel(size, threads, 64 * MIB // self.part)


def good(said: dict[str, Any]) -> dict[str, Any]:
    """Return what an operation said, unless some of its calls went wrong."""
    if said.get("bad"):
        raise RuntimeError(f"{said['bad']} calls of a measurement went wrong")
    return said


def _measure(
    call: Callable[..., dict[str, Any]], figure: str, scale: float = 1.0, **arguments: Any
) -> Measure:
    return lambda: float(good(call(**arguments))[figure]) * scale


def _warm(operations: Operations, name: str, size: int) -> Callable[[], object]:
    return lambda: good(operations.warm(name, size))


def _rotate(bench: Bench, operations: Operations, size: int) -> Callable[[], object]:
    """Put as much as the pool holds: sources and pages of the pool have been used once."""
    return lambda: good(operations.put(size, POOL_BYTES // bench.part // size))


def _rotate_values(
    bench: Bench, operations: Operations, size: int, batch: int
) -> Callable[[], object]:
    """Put as many small objects as the pool has pages.

    Pages, records and index have been used once, as of a store that serves.
    """
    calls = POOL_BYTES // bench.part // PAGE // batch
    return lambda: good(operations.put_values(size, batch, calls))


def _exchange(
    bench: Bench,
    direction: Direction,
    size: int,
    calls: int,
    connections: int,
    transport: Transport = "tcp",
) -> Measure:
    return lambda: bench.raw.rate(direction, transport, size, calls, connections)


def small_cases(bench: Bench) -> Iterator[Case]:
    """Single keys and values of 4 KiB: latencies."""
    calls, size = bench.calls, 4 * KIB
    # Every round of both placements reads objects that this client has not looked up before.
    bench.fill("fresh", size, calls * 2 * (bench.rounds + 1))
    bench.fill("small", size, bench.rotation // size)

    def ping() -> float:
        return bench.raw.latency_us("push", "tcp", 0, calls)

    def fetch() -> float:
        return bench.raw.latency_us("fetch", "tcp", size, calls)

    def push() -> float:
        return bench.raw.latency_us("push", "tcp", size, calls)

    def latency(call: Callable[..., dict[str, Any]], **arguments: Any) -> Measure:
        return _measure(call, "median_us", calls=calls, **arguments)

    exists_tcp = latency(bench.tcp.exists, name="small")
    yield Case("exists, 1 key, TCP", "us", exists_tcp, ping, at_most(1.3), note="raw: 64 B ping")
    yield Case(
        "exists, 1 key, Unix socket",
        "us",
        latency(bench.local.exists, name="small"),
        exists_tcp,
        at_most(1.0),
        note="raw: the same call over TCP",
    )
    yield Case(
        "get 4 KiB, TCP, first",
        "us",
        latency(bench.tcp.get, name="fresh", size=size, is_fresh=True),
        fetch,
        at_most(2.2),
        note="raw: 64 B there, 4 KiB back; ours looks the key up first",
    )
    yield Case(
        "get 4 KiB, TCP, cached location",
        "us",
        latency(bench.tcp.get, name="small", size=size),
        fetch,
        at_most(1.3),
        prepare=_warm(bench.tcp, "small", size),
    )
    yield Case(
        "get 4 KiB, same host, cached location",
        "us",
        latency(bench.local.get, name="small", size=size),
        lambda: bench.copy.latency_us("memcpy", size, 4096),
        value_at_most(6),
        note="raw: the copy alone",
        prepare=_warm(bench.local, "small", size),
    )
    yield Case(
        "put 4 KiB, TCP, relayed",
        "us",
        latency(bench.tcp_relayed.put, size=size),
        push,
        at_most(2.7),
        note="raw: 4 KiB there, 64 B back",
    )
    yield Case(
        "put 4 KiB, TCP, not relayed",
        "us",
        latency(bench.tcp.put, size=size),
        push,
        at_most(3.2),
    )
    yield Case("put 4 KiB, same host", "us", latency(bench.local.put, size=size), push)
    batches = {"batch": 128, "calls": max(20 // bench.part, 4)}
    raw_calls = max(40 // bench.part, 8)
    get_of, put_of = (
        bench.connections_of(lambda by: by.get_batches("small", size, 128, 2)),
        bench.connections_of(lambda by: by.put_batches(size, 128, 2)),
    )
    yield Case(
        "get 128 x 4 KiB, TCP, cached locations",
        "GB/s",
        _measure(bench.tcp.get_batches, "GBps", name="small", size=size, **batches),
        _exchange(bench, "fetch", 128 * size, raw_calls, get_of),
        at_least(0.7),
        note=over(get_of),
        prepare=_warm(bench.tcp, "small", size),
    )
    yield Case(
        "put 128 x 4 KiB, TCP",
        "GB/s",
        _measure(bench.tcp.put_batches, "GBps", size=size, **batches),
        _exchange(bench, "push", 128 * size, raw_calls, put_of),
        note=over(put_of),
    )
    yield Case(
        "get 128 x 4 KiB, same host",
        "GB/s",
        _measure(bench.local.get_batches, "GBps", name="small", size=size, **batches),
        lambda: bench.copy.rate("memcpy", 1, size, 8192 // bench.part),
        prepare=_warm(bench.local, "small", size),
    )
    yield Case(
        "put 128 x 16 B",
        "k keys/s",
        _measure(
            bench.tcp.put_values,
            "keys_per_s",
            1e-3,
            size=16,
            batch=128,
            calls=max(256 // bench.part, 4),
        ),
        bar=value_at_least(400),
        prepare=_rotate_values(bench, bench.tcp, 16, 128),
    )
    bench.drop("fresh", "small")


def block_cases(bench: Bench) -> Iterator[Case]:
    """Batches of 64 KiB, and reading from several threads."""
    size = 64 * KIB
    bench.fill("block", size, bench.rotation // size)
    batches = {"batch": 128, "calls": max(6 // bench.part, 2)}
    raw_calls = max(12 // bench.part, 2)
    get_of = bench.connections_of(lambda by: by.get_batches("block", size, 128, 2))
    put_of = bench.connections_of(lambda by: by.put_batches(size, 128, 2))
    yield Case(
        "get 128 x 64 KiB, TCP",
        "GB/s",
        _measure(bench.tcp.get_batches, "GBps", name="block", size=size, **batches),
        _exchange(bench, "fetch", 128 * size, raw_calls, get_of),
        at_least(0.9),
        note=over(get_of),
        prepare=_warm(bench.tcp, "block", size),
    )
    yield Case(
        "get 128 x 64 KiB, TCP, against unpaced",
        "GB/s",
        _measure(bench.tcp.get_batches, "GBps", name="block", size=size, **batches),
        _exchange(bench, "fetch", 128 * size, raw_calls, get_of, "unpaced"),
        note=UNPACED_NOTE,
    )
    yield Case(
        "put 128 x 64 KiB, TCP",
        "GB/s",
        _measure(bench.tcp.put_batches, "GBps", size=size, **batches),
        _exchange(bench, "push", 128 * size, raw_calls, put_of),
        at_least(0.85),
        note=over(put_of),
    )
    yield Case(
        "put 128 x 64 KiB, TCP, against unpaced",
        "GB/s",
        _measure(bench.tcp.put_batches, "GBps", size=size, **batches),
        _exchange(bench, "push", 128 * size, raw_calls, put_of, "unpaced"),
        note=UNPACED_NOTE,
    )
    kernel = bench.best_kernel(size, 1)
    yield Case(
        "get 128 x 64 KiB, same host",
        "GB/s",
        _measure(bench.local.get_batches, "GBps", name="block", size=size, **batches),
        lambda: bench.copy.rate(kernel, 1, size, 1024 // bench.part),
        prepare=_warm(bench.local, "block", size),
    )
    seconds = 0.3 / bench.part**0.5
    for title, operations in (("TCP", bench.tcp), ("same host", bench.local)):

        def threads(count: int, operations: Operations = operations) -> Measure:
            return _measure(
                operations.get_in_threads,
                "per_s",
                1e-3,
                name="block",
                size=size,
                threads=count,
                seconds=seconds,
            )

        for count, bar in ((4, 1.2), (8, 1.0)):
            yield Case(
                f"get 64 KiB, {count} threads, {title}",
                "k gets/s",
                threads(count),
                threads(1),
                at_least(bar),
                is_placed=False,
                note="raw: one thread of the same client",
            )
    bench.drop("block")


def copy_cases(bench: Bench, size: int) -> Iterator[Case]:
    """Large values on the same host against the best copy, and over TCP against the stream."""
    text = size_text(size)
    is_huge = size >= 16 * MIB
    name = f"of {text}"
    bench.fill(name, size, bench.rotation // size)
    calls = max(64 * MIB // size // bench.part, 2)
    asked: dict[str, Any] = {"name": name, "size": size, "calls": calls}
    put: dict[str, Any] = {"size": size, "calls": calls}

    def copied(threads: int) -> tuple[Measure, str]:
        kernel = bench.best_kernel(size, threads)
        count = max(128 * MIB // size // bench.part, 2)
        note = f"raw: {kernel} copy, {threads} thread{'s' * (threads > 1)}"
        return (lambda: bench.copy.rate(kernel, threads, size, count)), note

    one, one_note = copied(1)
    two, two_note = copied(2)
    yield Case(
        f"get {text}, same host, one thread",
        "GB/s",
        _measure(bench.local_one_thread.get, "GBps", **asked),
        one,
        at_least(0.9 if is_huge else 0.85),
        note=one_note,
        prepare=_warm(bench.local_one_thread, name, size),
    )
    yield Case(
        f"get {text}, same host, two threads",
        "GB/s",
        _measure(bench.local.get, "GBps", **asked),
        two,
        at_least(0.85) if is_huge else None,
        is_placed=False,
        note=two_note,
        prepare=_warm(bench.local, name, size),
    )
    yield Case(
        f"view {text}",
        "us",
        lambda: _view_us(bench, name, bench.calls),
        note="open and close; no byte is copied",
    )
    get_of = bench.connections_of(lambda by: by.get(name, size, 2))
    put_of = bench.connections_of(lambda by: by.put(size, 2))
    fetch = _exchange(bench, "fetch", size, calls, get_of)
    push = _exchange(bench, "push", size, calls, put_of)
    yield Case(
        f"get {text}, TCP",
        "GB/s",
        _measure(bench.tcp.get, "GBps", **asked),
        fetch,
        at_least(0.9) if is_huge else None,
        note=over(get_of),
        prepare=_warm(bench.tcp, name, size),
    )
    put_tcp = _measure(bench.tcp.put, "GBps", **put)
    least = at_least(0.85 if is_huge else 0.7)
    yield Case(f"put {text}, TCP", "GB/s", put_tcp, push, least, note=over(put_of))
    yield Case(
        f"get {text}, TCP, against unpaced",
        "GB/s",
        _measure(bench.tcp.get, "GBps", **asked),
        _exchange(bench, "fetch", size, calls, get_of, "unpaced"),
        note=UNPACED_NOTE,
    )
    yield Case(
        f"put {text}, TCP, against unpaced",
        "GB/s",
        put_tcp,
        _exchange(bench, "push", size, calls, put_of, "unpaced"),
        note=UNPACED_NOTE,
    )
    put_alloc = _measure(bench.local_alloc.put, "GBps", **put)
    put_any = _measure(bench.local.put, "GBps", **put)
    yield Case(
        f"put {text}, same host, from store.alloc",
        "GB/s",
        put_alloc,
        one,
        at_least(0.8 if is_huge else 0.6),
        note=one_note,
        prepare=_rotate(bench, bench.local_alloc, size),
    )
    yield Case(
        f"put {text}, same host, other memory",
        "GB/s",
        put_any,
        one,
        at_least(0.45) if is_huge else None,
        prepare=_rotate(bench, bench.local, size),
    )
    for title, measure in (("store.alloc", put_alloc), ("other memory", put_any)):
        yield Case(
            f"put {text}, same host against TCP, {title}",
            "GB/s",
            measure,
            put_tcp,
            at_least(1.0),
            note="raw: our own put over TCP",
        )
    bench.drop(name)


def _view_us(bench: Bench, name: str, calls: int) -> float:
    keys, client = bench.local.objects[name], bench.local_client
    durations = []
    for number in range(calls):
        key = keys[number % len(keys)]
        begun = time.perf_counter()
        with client.view(key) as memory:
            is_there = memory is not None
        durations.append(time.perf_counter() - begun)
        if not is_there:
            raise RuntimeError("an object of a measurement is not there")
    return statistics.median(durations) * 1e6


def cases(bench: Bench) -> Iterator[Case]:
    """Every case, pools being stored and removed in between."""
    yield from small_cases(bench)
    yield from block_cases(bench)
    for size in (MIB, 16 * MIB):
        yield from copy_cases(bench, size)


def run(
    *, rounds: int, is_quick: bool = False, only: Sequence[str] = (), watch: Watcher = silent
) -> list[Row]:
    """Measure the store against this machine.

    Args:
        rounds: Rounds for each figure.
        is_quick: Few calls a round: for trying the command, not for quoting.
        only: Measure the rows whose name holds one of these; all when empty.
        watch: Told what is being measured.
    """
    with Bench(rounds=rounds, is_quick=is_quick) as bench:
        wanted = (case for case in cases(bench) if is_wanted(case.name, only))
        rows = run_cases(wanted, bench.server_pids, rounds=rounds, watch=watch)
        rows += ticker_rows(bench.cluster.address, is_quick=is_quick, only=only, watch=watch)
    return rows
