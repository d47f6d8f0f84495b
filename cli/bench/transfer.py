"""`bench transfer`: the engine alone, between two processes; no keys, no master."""

from __future__ import annotations

import json
import statistics
import subprocess
from collections.abc import Iterator
from contextlib import ExitStack

from mooncake_store.cli.bench.cases import Case, durations_of, over, run_cases
from mooncake_store.cli.bench.environment import connections_to
from mooncake_store.cli.bench.raw import (
    KIB,
    MIB,
    Direction,
    Memory,
    RawCopy,
    RawPeer,
    size_text,
)
from mooncake_store.cli.bench.report import Watcher, silent
from mooncake_store.cli.bench.rounds import Measure, Row
from mooncake_store.interpreter import module_command
from mooncake_store.transfer_engine.engine import Segment, TransferEngine, TransferRequest

SHAPES = ((1, 64 * KIB), (1, MIB), (1, 16 * MIB), (128, 4 * KIB), (128, 64 * KIB))


class Target:
    """A process that serves memory, and this process's way to it."""

    def __init__(self, engine: TransferEngine, memory_bytes: int, *, is_tcp: bool) -> None:
        command = module_command("mooncake_store.cli.bench.transfer_target")
        command += ["--memory-bytes", str(memory_bytes)] + ["--tcp"] * is_tcp
        self._process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        self.pid = self._process.pid
        assert self._process.stdout is not None
        said = self._process.stdout.readline()
        if not said:
            self.close()
            raise RuntimeError("the target of the transfers did not start; its message is above")
        hello = json.loads(said)
        self.memory: int = hello["memory"]
        self.listening: str = hello["listening"]
        self.segment: Segment = engine.open_segment(self.listening)

    def close(self) -> None:
        """End the process by closing its stdin."""
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe is not None:
                pipe.close()
        try:
            self._process.wait(10)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()


class Transfers:
    """Calls of the engine that rotate over the memory at both ends."""

    def __init__(
        self,
        engine: TransferEngine,
        target: Target,
        memory: Memory,
        segment: Segment | None = None,
    ) -> None:
        self._engine = engine
        self._target = target
        self._segment = segment or target.segment
        self._memory = memory
        self._length = memory.length
        self._base = engine.register_local_memory(memory.buffer)
        self._next: dict[int, int] = {}

    def close(self) -> None:
        self._engine.unregister_local_memory(self._base)

    def _requests(self, direction: Direction, size: int, count: int) -> list[TransferRequest]:
        make = TransferRequest.read if direction == "fetch" else TransferRequest.write
        first = self._next.get(size, 0)
        self._next[size] = first + count
        slots = self._length // size
        return [
            make(
                self._segment,
                self._base + (first + i) % slots * size,
                self._target.memory + (first + i) % slots * size,
                size,
            )
            for i in range(count)
        ]

    def durations(self, direction: Direction, size: int, batch: int, calls: int) -> list[float]:
        """Return the seconds of each call of `batch` requests."""
        groups = [self._requests(direction, size, batch) for _ in range(calls)]
        return durations_of(self._engine.transfer, groups)

    def connections(self, direction: Direction, size: int, batch: int) -> int:
        """Return over how many connections a new engine spreads such a call."""
        port = int(self._target.listening.rpartition(":")[2])
        before = connections_to({port})
        with TransferEngine() as engine:
            segment = engine.open_segment(self._target.listening)
            fresh = Transfers(engine, self._target, self._memory, segment)
            fresh.durations(direction, size, batch, 2)
            return max(connections_to({port}) - before, 1)

    def rate(self, direction: Direction, size: int, batch: int, calls: int) -> Measure:
        """Measure GB/s."""
        return lambda: (
            size * batch * calls / sum(self.durations(direction, size, batch, calls)) / 1e9
        )

    def latency(self, direction: Direction, size: int, calls: int) -> Measure:
        """Measure the median microseconds of single requests."""
        return lambda: statistics.median(self.durations(direction, size, 1, calls)) * 1e6


def cases(
    tcp: Transfers, local: Transfers, raw: RawPeer, copy: RawCopy, *, part: int
) -> Iterator[Case]:
    """Latencies of 4 KiB, then rates of larger requests and of batches, both ways."""
    calls = max(300 // part, 20)
    words: tuple[tuple[Direction, str], ...] = (("fetch", "read"), ("push", "write"))
    for direction, word in words:

        def limit(direction: Direction = direction) -> float:
            return raw.latency_us(direction, "tcp", 4 * KIB, calls)

        yield Case(f"{word} 4 KiB, TCP", "us", tcp.latency(direction, 4 * KIB, calls), limit)
        yield Case(
            f"{word} 4 KiB, same host",
            "us",
            local.latency(direction, 4 * KIB, calls),
            lambda: copy.latency_us("memcpy", 4 * KIB, 4096),
            note="raw: the copy alone",
        )
        for batch, size in SHAPES:
            total = batch * size
            count = max(64 * MIB // total // part, 2)
            connections = tcp.connections(direction, size, batch)
            name = f"{word} {f'{batch} x ' if batch > 1 else ''}{size_text(size)}"

            def stream(
                direction: Direction = direction,
                total: int = total,
                count: int = count,
                connections: int = connections,
            ) -> float:
                return raw.rate(direction, "tcp", total, count, connections)

            def copied(size: int = size, total: int = total, count: int = count) -> float:
                kernel = copy.best_kernel(size, 1, 64 * MIB // part)
                return copy.rate(kernel, 1, size, count * total // size)

            yield Case(
                f"{name}, TCP",
                "GB/s",
                tcp.rate(direction, size, batch, count),
                stream,
                note=over(connections),
            )
            yield Case(
                f"{name}, same host",
                "GB/s",
                local.rate(direction, size, batch, count),
                copied,
                note="raw: the fastest copy, one thread",
            )


def run(*, rounds: int, is_quick: bool = False, watch: Watcher = silent) -> list[Row]:
    """Measure the transfer engine between two processes.

    Args:
        rounds: Rounds for each figure.
        is_quick: Few calls a round: for trying the command, not for quoting.
        watch: Told what is being measured.
    """
    rotation = (32 if is_quick else 256) * MIB
    with ExitStack() as keep:
        source, memory = Memory(rotation, is_shared=True), Memory(rotation, is_shared=False)
        keep.callback(source.close)
        keep.callback(memory.close)
        raw = keep.enter_context(RawPeer(memory))
        ways: list[Transfers] = []
        pids = [raw.pid]
        for is_tcp in (True, False):
            # An engine for each: registered memory belongs to one.
            engine = keep.enter_context(TransferEngine())
            target = Target(engine, rotation, is_tcp=is_tcp)
            keep.callback(target.close)
            pids.append(target.pid)
            ways.append(Transfers(engine, target, memory))
            keep.callback(ways[-1].close)
        tcp, local = ways
        copy = RawCopy(source, memory)
        listed = cases(tcp, local, raw, copy, part=10 if is_quick else 1)
        return run_cases(listed, pids, rounds=rounds, watch=watch)
