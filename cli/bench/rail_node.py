"""One end of `bench rails`: a process in a network namespace with an engine that follows it.

    python -m mooncake_store.cli.bench.rail_node serve --memory-bytes N --seed S
    python -m mooncake_store.cli.bench.rail_node ask --memory-bytes N

The serving end prints where it listens and where its memory is, and ends with its stdin. The asking
end reads one JSON command a line and answers each with one line.
"""

from __future__ import annotations

import argparse
import json
import random
import sys
import threading
import time
from typing import Any

from mooncake_store.transfer_engine.engine import (
    Opcode,
    Segment,
    TransferEngine,
    TransferRequest,
    TransferState,
)
from mooncake_store.transfer_engine.topology import TopologyWatch
from mooncake_store.transfer_engine.topology_follower import TopologyFollower

MIB = 1 << 20
STEP = MIB // 4  # of work on memory that keeps this process's other threads waiting


def pattern(length: int, seed: int) -> bytes:
    """Return bytes that say where they come from."""
    return random.Random(seed).randbytes(length)


def serve(memory_bytes: int) -> None:
    """Serve a memory on all addresses until stdin ends."""
    with TransferEngine() as engine, TopologyFollower(engine, TopologyWatch()):
        memory = bytearray(pattern(memory_bytes, 1))
        address = engine.register_local_memory(memory)
        port = engine.listen("0.0.0.0", local=False).rpartition(":")[2]
        print(json.dumps({"port": int(port), "memory": address}), flush=True)
        for line in sys.stdin:
            wanted = int(line)  # a seed: is it what a WRITE of that seed brought?
            print(json.dumps({"same": memory == pattern(memory_bytes, wanted)}), flush=True)


class Asking:
    """What the asking end can be told to do."""

    def __init__(self, engine: TransferEngine, memory_bytes: int) -> None:
        self._engine = engine
        self._memory = bytearray(memory_bytes)
        self._address = engine.register_local_memory(self._memory)
        self._segment: Segment | None = None
        self._far = 0
        self._loop: threading.Thread | None = None
        self._is_over = threading.Event()
        self._samples: list[tuple[float, int]] = []
        self._failures: list[str] = []
        self._wrong = 0

    def open(self, address: str, memory: int) -> dict[str, Any]:
        self._segment = self._engine.open_segment(address)
        self._far = memory
        return {}

    def _requests(self, opcode: Opcode, size: int, total: int) -> list[TransferRequest]:
        assert self._segment is not None
        return [
            TransferRequest(
                opcode, self._segment, self._address + at, self._far + at, min(size, total - at)
            )
            for at in range(0, total, size)
        ]

    def fill(self, seed: int) -> dict[str, Any]:
        self._memory[:] = pattern(len(self._memory), seed)
        return {}

    def check(self, seed: int) -> dict[str, Any]:
        return {"same": self._memory == pattern(len(self._memory), seed)}

    def move(self, opcode: int, size: int, total: int, count: int) -> dict[str, Any]:
        """Move `total` bytes in requests of `size`, `count` times one after the other."""
        requests = self._requests(Opcode(opcode), size, total)
        took = []
        for _ in range(count):
            begun = time.perf_counter()
            self._engine.transfer(requests)
            took.append(time.perf_counter() - begun)
        return {"seconds": took}

    def stream(self, opcode: int, size: int, total: int, count: int) -> dict[str, Any]:
        """Do the same with two batches at a time; seconds of all together."""
        requests = self._requests(Opcode(opcode), size, total)
        engine, waiting = self._engine, []
        begun = time.perf_counter()
        for _ in range(count):
            batch = engine.allocate_batch_id(len(requests))
            engine.submit_transfer(batch, requests)
            waiting.append(batch)
            if len(waiting) == 2:
                self._end(waiting.pop(0), len(requests))
        for batch in waiting:
            self._end(batch, len(requests))
        return {"seconds": time.perf_counter() - begun}

    def _end(self, batch: int, count: int) -> None:
        assert self._engine.wait(batch)
        for i in range(count):
            status = self._engine.get_transfer_status(batch, i)
            if status.state is not TransferState.COMPLETED:
                self._failures.append(f"{status.state.name} {status.status.name}")
        self._engine.free_batch_id(batch)

    def start(self, opcode: int, size: int) -> dict[str, Any]:
        """Move without end, noting each 10 ms how much has arrived.

        One half of the memory is checked and prepared while the other half is on its way.
        """
        self._is_over.clear()
        self._samples, self._failures, self._wrong = [], [], 0
        self._loop = threading.Thread(target=self._run, args=(Opcode(opcode), size))
        self._loop.start()
        return {}

    def _run(self, opcode: Opcode, size: int) -> None:
        half = len(self._memory) // 2
        whole = self._requests(opcode, size, 2 * half)
        sides = (whole[: len(whole) // 2], whole[len(whole) // 2 :])
        expected = pattern(2 * half, 1)
        engine, arrived = self._engine, 0
        running: list[tuple[int, int]] = []
        side = 0
        while not self._is_over.is_set() or running:
            if len(running) < 2 and not self._is_over.is_set():
                if opcode is Opcode.READ:
                    self._blank(side * half, half)
                batch = engine.allocate_batch_id(len(sides[side]))
                engine.submit_transfer(batch, sides[side], timeout_s=20)
                running.append((side, batch))
                side = 1 - side
                continue
            engine.wait(running[0][1], timeout_s=0.01)
            # Not only of requests that have ended: those of a batch end together.
            moved = sum(
                engine.explain(batch, i).bytes for _, batch in running for i in range(len(sides[0]))
            )
            self._samples.append((time.monotonic(), arrived + moved))
            first, batch = running[0]
            if not engine.wait(batch, timeout_s=0):
                continue
            running.pop(0)
            arrived += half
            self._end(batch, len(sides[first]))
            if opcode is Opcode.READ and not self._is_same(expected, first * half, half):
                self._wrong += 1

    def _blank(self, at: int, length: int) -> None:
        blank = bytes(STEP)
        for begin in range(at, at + length, STEP):
            end = min(begin + STEP, at + length)
            self._memory[begin:end] = blank[: end - begin]

    def _is_same(self, expected: bytes, at: int, length: int) -> bool:
        memory, wanted = memoryview(self._memory), memoryview(expected)
        ends = ((begin, min(begin + STEP, at + length)) for begin in range(at, at + length, STEP))
        return all(memory[begin:end] == wanted[begin:end] for begin, end in ends)

    def stop(self) -> dict[str, Any]:
        """End what `start` began: samples, failed requests, halves with a wrong byte."""
        assert self._loop is not None
        self._is_over.set()
        self._loop.join(60)
        return {"samples": self._samples, "failures": self._failures, "wrong": self._wrong}

    def await_rail(
        self, remote: str, direction: str, is_up: bool, timeout_s: float
    ) -> dict[str, Any]:
        """Wait until that rail is up in that direction, or is not; when that was, and why."""
        assert self._segment is not None
        until = time.monotonic() + timeout_s
        while time.monotonic() < until:
            found = [
                rail
                for rail in self._engine.rails(self._segment)
                if rail.direction == direction and rail.remote.startswith(remote)
            ]
            if is_up == any(rail.is_up for rail in found):
                return {"at": time.monotonic(), "notes": [rail.note for rail in found]}
            time.sleep(0.001)
        return {"at": None, "notes": []}

    def rails(self) -> dict[str, Any]:
        assert self._segment is not None
        return {
            "rails": [
                [rail.local, rail.remote, rail.direction, rail.is_up, rail.resets, rail.note]
                for rail in self._engine.rails(self._segment)
            ]
        }


def ask(memory_bytes: int) -> None:
    """Do as told until stdin ends."""
    with TransferEngine() as engine, TopologyFollower(engine, TopologyWatch()):
        asking = Asking(engine, memory_bytes)
        print(json.dumps({}), flush=True)
        for line in sys.stdin:
            wanted = json.loads(line)
            name = wanted.pop("do")
            print(json.dumps(getattr(asking, name)(**wanted)), flush=True)


def main() -> None:
    """Be one of both."""
    parser = argparse.ArgumentParser()
    parser.add_argument("part", choices=("serve", "ask"))
    parser.add_argument("--memory-bytes", type=int, required=True)
    arguments = parser.parse_args()
    sys.setswitchinterval(0.0005)  # who watches the rails does not wait for who checks the bytes
    (serve if arguments.part == "serve" else ask)(arguments.memory_bytes)


if __name__ == "__main__":
    main()
