"""`bench raw`: what this machine can do without us, in bare C (transfer_engine/src/bench_raw.c)."""

from __future__ import annotations

import itertools
import json
import os
import socket
import statistics
import subprocess
import tempfile
from pathlib import Path
from types import TracebackType
from typing import Any, Literal, get_args

from mooncake_store._native import ffi, lib
from mooncake_store.cli.bench.environment import LEFT_ALONE, Placement, placed
from mooncake_store.cli.bench.raw_server import unpace
from mooncake_store.cli.bench.report import Watcher, silent
from mooncake_store.cli.bench.rounds import Measure, Row, repeat
from mooncake_store.interpreter import module_command

KIB, MIB = 1 << 10, 1 << 20

# Many times what a core has of caches, so that what is copied is cold there.
ROTATION_BYTES = 256 * MIB

Kernel = Literal["memcpy", "nontemporal", "interleaved"]
KERNELS: tuple[Kernel, ...] = get_args(Kernel)
COMPARISONS = 5
# tcp: as the system has it; unpaced: as the engine has it within a machine (pacing.c).
Transport = Literal["tcp", "unpaced", "unix"]
Direction = Literal["fetch", "push"]


class Memory:
    """Pages that are all present, private or shared as a segment is."""

    def __init__(self, length: int, *, is_shared: bool) -> None:
        self.length = length
        self.pointer = lib.te_bench_memory_open(length, int(is_shared))
        if self.pointer == ffi.NULL:
            raise MemoryError(f"no {length} bytes of memory for the benchmark")

    @property
    def buffer(self) -> memoryview:
        """The bytes, writable; not to be used after close."""
        return memoryview(ffi.buffer(self.pointer, self.length))

    def close(self) -> None:
        """Give the pages back."""
        lib.te_bench_memory_close(self.pointer, self.length)
        self.pointer = ffi.NULL


class RawCopy:
    """Copies from shared to private memory, rotating over both."""

    def __init__(self, source: Memory, target: Memory) -> None:
        self._source, self._target = source, target
        self._length = min(source.length, target.length)
        self._next: dict[int, int] = {}
        self._best: dict[tuple[int, int], Kernel] = {}

    def _run(self, kernel: Kernel, threads: int, length: int, count: int, samples: Any) -> int:
        kernels = {
            "memcpy": lib.TE_BENCH_MEMCPY,
            "nontemporal": lib.TE_BENCH_NONTEMPORAL,
            "interleaved": lib.TE_BENCH_INTERLEAVED,
        }
        first = self._next.get(length, 0)
        self._next[length] = first + count
        memories = (self._target.pointer, self._source.pointer, self._length)
        return _checked(
            lib.te_bench_copy(kernels[kernel], threads, *memories, length, first, count, samples)
        )

    def rate(self, kernel: Kernel, threads: int, length: int, count: int) -> float:
        """Return GB/s of `count` copies of `length` bytes each."""
        elapsed_ns = self._run(kernel, threads, length, count, ffi.NULL)
        return length * count / elapsed_ns

    def best_kernel(self, length: int, threads: int, round_bytes: int = 64 * MIB) -> Kernel:
        """Return the fastest copy at this length: found once, then the limit for all rounds."""
        if (length, threads) not in self._best:
            count = max(4, round_bytes // length)
            rates: dict[Kernel, list[float]] = {kernel: [] for kernel in KERNELS}
            for _ in range(COMPARISONS):
                for kernel, of_kernel in rates.items():
                    of_kernel.append(self.rate(kernel, threads, length, count))
            medians = {kernel: statistics.median(of_kernel) for kernel, of_kernel in rates.items()}
            self._best[length, threads] = max(KERNELS, key=medians.__getitem__)
        return self._best[length, threads]

    def latency_us(self, kernel: Kernel, length: int, count: int) -> float:
        """Return the microseconds of one copy: the mean of `count`, as a clock costs too much."""
        return self._run(kernel, 1, length, count, ffi.NULL) / count / 1e3


class RawPeer:
    """A process that answers raw exchanges, and the connections to it."""

    def __init__(self, memory: Memory, *, server_memory_bytes: int | None = None) -> None:
        """Start the process.

        Args:
            memory: This end's memory, over which calls rotate.
            server_memory_bytes: The other end's; as much by default, and never less.
        """
        self._memory = memory
        self._folder = tempfile.TemporaryDirectory(prefix="mooncake-bench-")
        self._unix_path = str(Path(self._folder.name, "raw.sock"))
        length = max(server_memory_bytes or 0, memory.length)
        command = module_command("mooncake_store.cli.bench.raw_server")
        command += ["--memory-bytes", str(length), "--unix", self._unix_path]
        self._process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        assert self._process.stdout is not None
        hello = self._process.stdout.readline()
        if not hello:
            self.close()
            raise RuntimeError("the raw server did not start; its message is above")
        self._ports: dict[str, int] = json.loads(hello)["ports"]
        self.pid = self._process.pid
        self._sockets: dict[Transport, list[socket.socket]] = {
            "tcp": [],
            "unpaced": [],
            "unix": [],
        }
        self._next: dict[int, int] = {}

    def __enter__(self) -> RawPeer:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        value: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def close(self) -> None:
        """End the process and forget the connections."""
        for connections in getattr(self, "_sockets", {}).values():
            for connection in connections:
                connection.close()
        self._process.terminate()
        self._process.wait(10)
        if self._process.stdout is not None:
            self._process.stdout.close()
        self._folder.cleanup()

    def _connections(self, transport: Transport, count: int) -> Any:
        sockets = self._sockets[transport]
        while len(sockets) < count:
            if transport == "unix":
                connection = socket.socket(socket.AF_UNIX)
                connection.connect(self._unix_path)
            else:
                connection = socket.socket()
                if transport == "unpaced":
                    unpace(connection)
                connection.settimeout(5)
                connection.connect(("127.0.0.1", self._ports[transport]))
            connection.setblocking(True)
            sockets.append(connection)
        return ffi.new("int[]", [s.fileno() for s in sockets[:count]])

    def _run(
        self,
        direction: Direction,
        transport: Transport,
        length: int,
        calls: int,
        connections: int,
        samples: Any,
        *,
        is_free_running: bool = False,
    ) -> int:
        operations = {"fetch": lib.TE_BENCH_FETCH, "push": lib.TE_BENCH_PUSH}
        first = self._next.get(length, 0)
        self._next[length] = first + calls
        exchange = ffi.new(
            "te_bench_exchange *",
            {
                "operation": operations[direction],
                "call_count": calls,
                "length": length,
                "first": first,
                "memory": ffi.cast("uint8_t *", self._memory.pointer),
                "memory_length": self._memory.length,
                "is_free_running": int(is_free_running),
            },
        )
        sockets = self._connections(transport, connections)
        return _checked(lib.te_bench_exchange_run(exchange, sockets, connections, samples))

    def latency_us(
        self, direction: Direction, transport: Transport, length: int, calls: int
    ) -> float:
        """Return the median microseconds of a call on one connection; push of 0 bytes is a ping."""
        samples = ffi.new("uint64_t[]", calls)
        self._run(direction, transport, length, calls, 1, samples)
        durations: list[int] = list(samples)
        return statistics.median(durations) / 1e3

    def rate(
        self,
        direction: Direction,
        transport: Transport,
        length: int,
        calls: int,
        connections: int = 1,
    ) -> float:
        """Return GB/s of calls that each end when all their connections have ended."""
        elapsed_ns = self._run(direction, transport, length, calls, connections, ffi.NULL)
        return length * calls / elapsed_ns

    def stream_rate(
        self,
        direction: Direction,
        transport: Transport,
        length: int,
        calls: int,
        connections: int = 1,
    ) -> float:
        """Return GB/s when no connection waits for another between calls."""
        elapsed_ns = self._run(
            direction, transport, length, calls, connections, ffi.NULL, is_free_running=True
        )
        return length * calls / elapsed_ns


def _checked(elapsed_ns: int) -> int:
    if elapsed_ns < 0:
        raise OSError(-elapsed_ns, f"raw measurement failed: {os.strerror(-elapsed_ns)}")
    return elapsed_ns


def size_text(length: int) -> str:
    """Write a size as 4 KiB or 16 MiB."""
    if length >= MIB and length % MIB == 0:
        return f"{length // MIB} MiB"
    return f"{length // KIB} KiB" if length >= KIB and length % KIB == 0 else f"{length} B"


COPY_SIZES = tuple(size * KIB for size in (4, 16, 64, 256, 1024, 4096, 16384))
STREAM_SIZES = (128 * 64 * KIB, 16 * MIB, MIB)


def copy_measures(copy: RawCopy, threads: int, round_bytes: int) -> dict[str, Measure]:
    """Return the copy measurements by row name; each copies about `round_bytes` a round."""
    measures: dict[str, Measure] = {}
    for size in COPY_SIZES:
        if threads > 1 and size < 64 * KIB:
            continue  # a hand-over costs more than the copy
        for kernel in KERNELS:
            name = f"copy {size_text(size)}, {kernel}, {threads} thread{'s' * (threads > 1)}"
            count = max(2, round_bytes // size)

            def measure(kernel: Kernel = kernel, size: int = size, count: int = count) -> float:
                return copy.rate(kernel, threads, size, count)

            measures[name] = measure
    return measures


def latency_measures(peer: RawPeer, calls: int) -> dict[str, Measure]:
    """Return the round-trip measurements by row name."""
    return {
        "round trip 64 B, TCP": lambda: peer.latency_us("push", "tcp", 0, calls),
        "round trip 64 B, Unix socket": lambda: peer.latency_us("push", "unix", 0, calls),
        "fetch 4 KiB, TCP": lambda: peer.latency_us("fetch", "tcp", 4 * KIB, calls),
        "push 4 KiB, TCP": lambda: peer.latency_us("push", "tcp", 4 * KIB, calls),
    }


def stream_measures(peer: RawPeer, round_bytes: int) -> dict[str, Measure]:
    """Return the TCP rates by row name, for one, two and four connections and both directions."""
    measures: dict[str, Measure] = {}
    directions: tuple[Direction, ...] = ("fetch", "push")
    transports: dict[str, Transport] = {"TCP": "tcp", "TCP, unpaced": "unpaced"}
    for size in STREAM_SIZES:
        calls = max(2, round_bytes // size)
        for (title, transport), direction in itertools.product(transports.items(), directions):
            for connections in (1, 2, 4):
                name = f"{direction} {size_text(size)}, {title}, {connections} connection"
                name += "s" * (connections > 1)

                def measure(
                    direction: Direction = direction,
                    transport: Transport = transport,
                    size: int = size,
                    calls: int = calls,
                    connections: int = connections,
                ) -> float:
                    return peer.rate(direction, transport, size, calls, connections)

                measures[name] = measure
    for connections in (1, 2, 4):

        def stream(connections: int = connections) -> float:
            calls = max(2, round_bytes // MIB)
            return peer.stream_rate("fetch", "tcp", MIB, calls, connections)

        measures[f"stream, TCP, {connections} connection{'s' * (connections > 1)}"] = stream
    return measures


def run(*, rounds: int, is_quick: bool = False, watch: Watcher = silent) -> list[Row]:
    """Measure the limits of this machine.

    Args:
        rounds: Rounds for each figure.
        is_quick: Few calls a round: for trying the command, not for quoting.
        watch: Told what is being measured.
    """
    calls = 50 if is_quick else 500
    round_bytes = (8 if is_quick else 128) * MIB
    rotation = (32 if is_quick else 256) * MIB
    source, target = Memory(rotation, is_shared=True), Memory(rotation, is_shared=False)
    copy = RawCopy(source, target)
    rows: list[Row] = []

    def measure(title: str, unit: str, measures: dict[str, Measure], where: Placement) -> None:
        with placed(where, [peer.pid]):
            spreads = repeat(
                measures, rounds=rounds, progress=lambda done, of: watch(title, done / of)
            )
        for name, spread in spreads.items():
            rows.append(Row(name, unit, spread, is_pinned=where.is_pinned))

    try:
        with RawPeer(target) as peer:
            apart = Placement.apart()
            placements = [apart, LEFT_ALONE] if apart.is_pinned else [LEFT_ALONE]
            measure("copies", "GB/s", copy_measures(copy, 1, round_bytes), placements[0])
            measure("copies, two threads", "GB/s", copy_measures(copy, 2, round_bytes), LEFT_ALONE)
            for where in placements:
                measure("round trips", "us", latency_measures(peer, calls), where)
            for where in placements:
                measure("streams", "GB/s", stream_measures(peer, round_bytes), where)
    finally:
        source.close()
        target.close()
    return rows
