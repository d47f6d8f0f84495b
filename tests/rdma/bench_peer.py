"""Mooncake's engine over RDMA, as rdma_bench.c measures ours.

bench_peer.py ASKING_DEVICE SERVING_DEVICE: figures as JSON; batches of 16 requests of 1 MiB, and
single ones of 4 KiB. bench.py looks into its log whether it found the devices: without them
it goes over TCP, and says nothing else.
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

MIB = 1 << 20
BATCH, ROUNDS, CALLS = 16, 9, 200
HOST = "127.0.0.1"


def open_engine(device: str):  # type: ignore[no-untyped-def]
    from mooncake.engine import TransferEngine

    engine = TransferEngine()
    memory = mmap.mmap(-1, BATCH * MIB)
    for page in range(0, BATCH * MIB, 4096):
        memory[page] = 1
    address = addressof(c_char.from_buffer(memory))
    status = engine.initialize(HOST, "P2PHANDSHAKE", "rdma", device)
    status = status or engine.register_memory(address, BATCH * MIB)
    if status != 0:
        raise SystemExit(f"the peer's engine does not open {device}: {status}")
    return engine, memory, address


def serve(device: str) -> None:
    engine, memory, address = open_engine(device)
    print(json.dumps({"name": f"{HOST}:{engine.get_rpc_port()}", "address": address}), flush=True)
    sys.stdin.read()
    del memory


def measure(asking: str, serving: str) -> dict[str, float]:
    server = subprocess.Popen(
        [sys.executable, __file__, "--serve", serving],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert server.stdin is not None and server.stdout is not None
    told = None
    while told is None:
        line = server.stdout.readline()
        if not line:
            raise SystemExit("the peer's server has ended")
        if line.startswith('{"name"'):
            told = json.loads(line)
    engine, memory, local = open_engine(asking)
    name, remote = told["name"], told["address"]
    here = [local + i * MIB for i in range(BATCH)]
    there = [remote + i * MIB for i in range(BATCH)]
    found: dict[str, float] = {}
    calls = {
        "write": (engine.batch_transfer_sync_write, engine.transfer_sync_write),
        "read": (engine.batch_transfer_sync_read, engine.transfer_sync_read),
    }
    for kind, (batch, single) in calls.items():
        bad, rates, latencies = 0, [], []
        bad += single(name, local, remote, 4096) != 0
        for _ in range(ROUNDS):
            begun = time.perf_counter()
            for _ in range(4):
                bad += batch(name, here, there, [MIB] * BATCH) != 0
            rates.append(4 * BATCH / (time.perf_counter() - begun))
            begun = time.perf_counter()
            for _ in range(CALLS):
                bad += single(name, local, remote, 4096) != 0
            latencies.append((time.perf_counter() - begun) / CALLS * 1e6)
        if bad:
            raise SystemExit(f"{bad} of the peer's transfers have failed")
        found[f"{kind}_mib_per_s"] = statistics.median(rates)
        found[f"{kind}_4k_us"] = statistics.median(latencies)
    server.stdin.close()
    server.kill()
    server.wait()
    del memory
    return found


def main() -> int:
    if sys.argv[1] == "--serve":
        serve(sys.argv[2])
        return 0
    figures = measure(sys.argv[1], sys.argv[2])
    print(json.dumps(figures), flush=True)
    os._exit(0)  # its threads keep an interpreter that ends


if __name__ == "__main__":
    sys.exit(main())
