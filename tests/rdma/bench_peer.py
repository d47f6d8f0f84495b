"""Mooncake's engine over RDMA, as rdma_bench.c measures ours.

bench_peer.py ASKING_DEVICE SERVING_DEVICE: figures as JSON; batches of 16 requests of 1 MiB, and
single ones of 4 KiB. Its Python is one that has mooncake-transfer-engine-non-cuda.
"""

from __future__ import annotations

import json
import mmap
import os
import statistics
import subprocess
import sys
import time
from ctypes import addressof, c_char
from typing import Any

MIB = 1 << 20
BATCH, ROUNDS, BATCHES, CALLS = 16, 3, 1, 20
HOST = "127.0.0.1"


def open_engine(device: str) -> tuple[Any, mmap.mmap, int]:
    """Return an engine on one device, memory that is registered with it, and its address."""
    from mooncake.engine import TransferEngine  # type: ignore[import-not-found,unused-ignore]

    engine = TransferEngine()
    memory = mmap.mmap(-1, BATCH * MIB)
    for page in range(0, BATCH * MIB, mmap.PAGESIZE):
        memory[page] = 1
    address = addressof(c_char.from_buffer(memory))
    status = engine.initialize(HOST, "P2PHANDSHAKE", "rdma", device)
    status = status or engine.register_memory(address, BATCH * MIB)
    if status != 0:
        raise SystemExit(f"the peer's engine does not open {device}: {status}")
    return engine, memory, address


def serve(device: str) -> None:
    engine, _memory, address = open_engine(device)
    print(json.dumps({"name": f"{HOST}:{engine.get_rpc_port()}", "address": address}), flush=True)
    sys.stdin.read()


def measure(asking: str, name: str, remote: int) -> dict[str, float]:
    """Return MiB/s and microseconds a call: the median of rounds."""
    engine, _memory, local = open_engine(asking)
    here = [local + i * MIB for i in range(BATCH)]
    there = [remote + i * MIB for i in range(BATCH)]
    found: dict[str, float] = {}
    calls = {
        "write": (engine.batch_transfer_sync_write, engine.transfer_sync_write),
        "read": (engine.batch_transfer_sync_read, engine.transfer_sync_read),
    }
    for kind, (batch, single) in calls.items():
        failures = int(single(name, local, remote, 4096) != 0)
        rates, latencies = [], []
        for _ in range(ROUNDS):
            begun = time.perf_counter()
            for _ in range(BATCHES):
                failures += batch(name, here, there, [MIB] * BATCH) != 0
            rates.append(BATCHES * BATCH / (time.perf_counter() - begun))
            begun = time.perf_counter()
            for _ in range(CALLS):
                failures += single(name, local, remote, 4096) != 0
            latencies.append((time.perf_counter() - begun) / CALLS * 1e6)
        if failures:
            raise SystemExit(f"{failures} of the peer's transfers have failed")
        found[f"{kind}_mib_per_s"] = statistics.median(rates)
        found[f"{kind}_4k_us"] = statistics.median(latencies)
    return found


def main() -> None:
    if sys.argv[1] == "--serve":
        serve(sys.argv[2])
        return
    command = [sys.executable, __file__, "--serve", sys.argv[2]]
    server = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    try:
        assert server.stdout is not None
        told = next((line for line in server.stdout if line.startswith('{"name"')), None)
        if told is None:
            raise SystemExit("the peer's server has ended")
        print(json.dumps(measure(sys.argv[1], **_arguments(told))), flush=True)
    finally:
        server.kill()
        server.wait()
    os._exit(0)  # the engine's threads keep an interpreter that ends


def _arguments(line: str) -> dict[str, Any]:
    told = json.loads(line)
    return {"name": told["name"], "remote": told["address"]}


if __name__ == "__main__":
    main()
