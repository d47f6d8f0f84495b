"""The ends of `bench rails` through the store: a master and a server there, a client here.

    python -m mooncake_store.cli.bench.rail_store serve --memory-bytes N
    python -m mooncake_store.cli.bench.rail_store ask --memory-bytes N

The serving end prints where its master is, and ends with its stdin. The asking end reads one JSON
command a line and answers each with one line.
"""

from __future__ import annotations

import argparse
import functools
import json
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from mooncake_store import Client, Priority, Share
from mooncake_store.cli.bench.rail_node import pattern
from mooncake_store.cli.processes import Child

MIB = 1 << 20
READY_S = 60.0
THREADS = 2  # one call prepares while the bytes of another are on their way
CALLS = 4  # of a flow that contends with others: it always has something that waits


def serve(memory_bytes: int, hosts: list[str]) -> None:
    """Run a store on all addresses until stdin ends."""
    with tempfile.TemporaryDirectory() as folder, tempfile.TemporaryDirectory(dir="/dev/shm") as at:
        common = ["--address", "0.0.0.0", "--insecure", "--no-grpc", "--no-http"]
        common += ["--log-level", "error"]
        pool = str(3 * memory_bytes)
        master = Child([
            "master", *common, "--port", "7700", "--advertise", hosts[0],
            "--coordinator", f"local:{folder}",
        ])  # fmt: skip
        server = None
        try:
            master.wait_ready(READY_S)
            server = Child([
                "server", *common, "--port", "7801", "--advertise", ",".join(hosts),
                "--master", "127.0.0.1:7700", "--segment-dir", at,
                "--pool-size", pool, "--ready-size", pool,
            ])  # fmt: skip
            server.wait_ready(READY_S)
            print(json.dumps({"master": f"{hosts[0]}:7700"}), flush=True)
            sys.stdin.read()
        finally:
            for child in (server, master):
                if child is not None:
                    child.end()


class Asking:
    """What the asking end can be told to do."""

    def __init__(self, master: str, memory_bytes: int) -> None:
        self._store = Client(master, use_local_paths=False, timeout_s=30.0, strict=True)
        self._bytes = pattern(memory_bytes, 1)
        self._target = bytearray(memory_bytes)
        self._names = 0
        self._is_over = threading.Event()
        self._loop: threading.Thread | None = None
        self._samples: list[tuple[float, int]] = []
        self._failures: list[str] = []
        self._wrong = 0

    def _put(self, size: int, at: int, total: int) -> list[str]:
        """Put the bytes from `at` on as objects of `size`; their keys."""
        self._names += 1
        run = f"{threading.get_ident()}-{self._names}"
        keys = [f"{run}/{offset}" for offset in range(0, total, size)]
        view = memoryview(self._bytes)
        values = [view[at + offset : at + offset + size] for offset in range(0, total, size)]
        for stored in self._store.put_batch(keys, values):
            if isinstance(stored, Exception):
                raise stored
        return keys

    def _get(self, keys: list[str], size: int, at: int) -> bool:
        view = memoryview(self._target)
        buffers = [view[at + i * size : at + (i + 1) * size] for i in range(len(keys))]
        for got in self._store.get_batch_into(keys, buffers):
            if isinstance(got, Exception) or got != size:
                raise RuntimeError(f"get: {got!r}")
        return True

    def _remove(self, keys: list[str]) -> None:
        self._store.remove(keys)

    def move(self, opcode: int, size: int, total: int, count: int) -> dict[str, Any]:
        """Get (0) or put (1) `total` bytes in objects of `size`, `count` times in a row."""
        took = []
        keys = self._put(size, 0, total) if opcode == 0 else []
        for _ in range(count):
            begun = time.perf_counter()
            if opcode == 0:
                self._get(keys, size, 0)
            else:
                keys = self._put(size, 0, total)
            took.append(time.perf_counter() - begun)
            if opcode == 1:
                self._remove(keys)
        if opcode == 0:
            self._remove(keys)
            self._wrong += self._target[:total] != self._bytes[:total]
        return {"seconds": took}

    def stream(self, opcode: int, size: int, total: int, count: int) -> dict[str, Any]:
        """Do the same with two calls at a time; seconds of all together."""
        keys = [self._put(size, i * total, total) for i in range(THREADS)] if opcode == 0 else []
        begun = time.perf_counter()

        def turns(number: int) -> list[list[str]]:
            put = []
            for _ in range(count // THREADS):
                if opcode == 0:
                    self._get(keys[number], size, number * total)
                else:
                    put.append(self._put(size, number * total, total))
                    if len(put) > 1:
                        self._remove(put.pop(0))
            return put

        with ThreadPoolExecutor(THREADS) as pool:
            left = list(pool.map(turns, range(THREADS)))
        took = time.perf_counter() - begun
        for put in (*keys, *(each for of in left for each in of)):
            self._remove(put)
        return {"seconds": took}

    def contend(
        self, opcode: int, size: int, seconds: float, flows: list[dict[str, Any]]
    ) -> dict[str, Any]:
        """Move without end in several flows at once; the bytes that each moved.

        Each has a priority and, or not, a tenant and a weight, and `CALLS` calls under way.
        """
        keys = self._put(size, 0, size)

        def turns(flow: dict[str, Any], number: int, ends: float) -> int:
            named: dict[str, Any] = {"priority": Priority[flow["priority"].upper()]}
            if "tenant" in flow:
                named["share"] = Share(flow["tenant"], flow["weight"])
            target, moved = bytearray(size), 0
            while time.monotonic() < ends:
                if opcode == 0:
                    self._store.get_into(keys[0], target, **named)
                else:
                    key = f"{threading.get_ident()}-{number}"
                    self._store.put(key, memoryview(self._bytes)[:size], **named)
                    self._remove([key])
                moved += size if time.monotonic() < ends else 0
            return moved

        turns(flows[0], 0, time.monotonic() + 0.5)  # opens the rails, for which nobody waits
        ends = time.monotonic() + seconds
        with ThreadPoolExecutor(CALLS * len(flows)) as pool:
            calls = [
                [pool.submit(turns, flow, number, ends) for number in range(CALLS)]
                for flow in flows
            ]
            moved = [sum(call.result() for call in of) for of in calls]
        self._remove(keys)
        return {"moved": moved}

    def start(self, opcode: int, size: int) -> dict[str, Any]:
        """Move without end, two calls at a time, noting when how much has arrived."""
        self._is_over.clear()
        self._samples, self._failures, self._wrong = [], [], 0
        self._loop = threading.Thread(target=self._run, args=(opcode, size))
        self._loop.start()
        return {}

    def _run(self, opcode: int, size: int) -> None:
        total = min(4 * MIB, len(self._bytes) // (2 * THREADS))
        lock = threading.Lock()
        arrived = 0

        def turn(call: Callable[[], Any]) -> Any:
            nonlocal arrived
            answer = None
            try:
                answer = call()
            except Exception as error:
                self._failures.append(repr(error))
            with lock:
                arrived += total if answer is not None else 0
                self._samples.append((time.monotonic(), arrived))
            return answer

        def turns(number: int) -> None:
            at = number * total
            keys = self._put(size, at, total)
            expected = self._bytes[at : at + total]
            while not self._is_over.is_set():
                if opcode == 0:
                    self._target[at : at + total] = bytes(total)
                    got = turn(functools.partial(self._get, keys, size, at))
                    self._wrong += got is True and self._target[at : at + total] != expected
                else:
                    put = turn(lambda: self._put(size, at, total))
                    if put is not None:
                        self._remove(keys)
                        keys = put
            self._get(keys, size, at)
            self._wrong += self._target[at : at + total] != expected
            self._remove(keys)

        with ThreadPoolExecutor(2 * THREADS) as pool:
            list(pool.map(turns, range(2 * THREADS)))

    def stop(self) -> dict[str, Any]:
        """End what `start` began: samples, failed calls, ranges with a wrong byte."""
        assert self._loop is not None
        self._is_over.set()
        self._loop.join(60)
        return {"samples": self._samples, "failures": self._failures, "wrong": self._wrong}


def ask(memory_bytes: int) -> None:
    """Do as told until stdin ends."""
    master = json.loads(sys.stdin.readline())["master"]
    asking = Asking(master, memory_bytes)
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
    parser.add_argument("--hosts", default="")
    arguments = parser.parse_args()
    if arguments.part == "serve":
        serve(arguments.memory_bytes, arguments.hosts.split(","))
    else:
        ask(arguments.memory_bytes)


if __name__ == "__main__":
    main()
