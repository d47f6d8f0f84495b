"""The hot calls of `mooncake.store`, of whichever package this interpreter imports under that name.

    benchmarks/.venv-peer/bin/python benchmarks/compat_calls.py     # after benchmarks/install-peer
    .venv/bin/python benchmarks/compat_calls.py

Each starts a `mooncake_master` of its own package and prints medians in microseconds, for a client
that holds the objects itself and for another one of the same host.
"""

from __future__ import annotations

import ctypes
import json
import socket
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

from mooncake.store import MooncakeDistributedStore

MIB = 1 << 20
OBJECTS, PIECES = 64, 32
READY_S = 30.0


def free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return int(found.getsockname()[1])


def median_us(call: Callable[[], object], times: int) -> float:
    for _ in range(3):
        call()
    taken = []
    for _ in range(times):
        began = time.perf_counter()
        call()
        taken.append(time.perf_counter() - began)
    return round(statistics.median(taken) * 1e6, 1)


def open_store(master: str, segment_bytes: int) -> MooncakeDistributedStore:
    store = MooncakeDistributedStore()
    answer = store.setup("127.0.0.1", "P2PHANDSHAKE", segment_bytes, 64 * MIB, "tcp", "", master)
    if answer != 0:
        raise SystemExit(f"setup answered {answer}")
    return store


def measure(store: MooncakeDistributedStore, name: str) -> dict[str, float]:
    figures: dict[str, float] = {}
    memory = ctypes.create_string_buffer(OBJECTS * PIECES * 16384)
    at = ctypes.addressof(memory)
    store.register_buffer(at, len(memory))
    keys = [f"model@tp_rank:0@{name}@{index:064x}" for index in range(1000)]
    addresses = [at + index * 128 for index in range(len(keys))]
    assert not any(store.batch_put_from(keys, addresses, [128] * len(keys)))
    figures["batch_is_exist, 1,000 keys"] = median_us(lambda: store.batch_is_exist(keys), 200)
    for size in (1024, 4096, 16384):
        objects = [f"{name}/{size}/{index}" for index in range(OBJECTS)]
        pieces = [
            [at + (index * PIECES + piece) * size for piece in range(PIECES)]
            for index in range(OBJECTS)
        ]
        sizes = [[size] * PIECES for _ in range(OBJECTS)]
        assert not any(store.batch_put_from_multi_buffers(objects, pieces, sizes))

        def get(
            objects: list[str] = objects,
            pieces: list[list[int]] = pieces,
            sizes: list[list[int]] = sizes,
        ) -> list[int]:
            return store.batch_get_into_multi_buffers(objects, pieces, sizes)

        assert get() == [size * PIECES] * OBJECTS
        figures[f"batch_get_into_multi_buffers, 64 x 32 x {size} B"] = median_us(get, 50)
        store.batch_remove(objects, True)
    store.unregister_buffer(at)
    return figures


def main() -> None:
    port = free_port()
    command = [str(Path(sys.executable).parent / "mooncake_master")]
    command += [f"--rpc_port={port}", f"--metrics_port={free_port()}"]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        end = time.monotonic() + READY_S
        while True:
            try:
                socket.create_connection(("127.0.0.1", port), 1).close()
                break
            except OSError:
                if time.monotonic() > end or process.poll() is not None:
                    raise
                time.sleep(0.1)
        holder = open_store(f"127.0.0.1:{port}", 256 * MIB)
        other = open_store(f"127.0.0.1:{port}", 0)
        results = {
            "the client that holds them": measure(holder, "holder"),
            "another client of the host": measure(other, "other"),
        }
        other.close()
        holder.close()
    finally:
        process.terminate()
        process.wait(10)
    print(json.dumps(results, indent=2))


if __name__ == "__main__":
    main()
