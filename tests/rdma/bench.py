"""The engine beside perftest, and beside Mooncake's engine, between the same two NICs, in turns.

    tests/rdma/build.py rdma_bench            (on the host)
    tests/rdma/guest/run python3 tests/rdma/bench.py [ROUNDS]

MOONCAKE_STORE_PEER_PYTHON names a Python that has mooncake-transfer-engine-non-cuda; without it
that part is left out. Every part must have moved its bytes over the NICs, by their counters.
"""

from __future__ import annotations

import json
import math
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent.parent
BUILT = ROOT / "build/c-test/plain"
MIB = 1 << 20
PART_S = 90
PERFTEST_REPEATS = 128
ENGINE_BYTES = 2 * 3 * 16 * MIB  # what bench_peer.py moves; rdma_bench.c moves more
ASKING, SERVING = "rxe0", "rxe1"
PACKETS = Path(f"/sys/class/infiniband/{ASKING}/ports/1/hw_counters")
BYTES_A_PACKET_MAX = 4096


def packets() -> int:
    """Return how many packets the asking NIC has sent and received."""
    return sum(int((PACKETS / name).read_text()) for name in ("sent_pkts", "rcvd_pkts"))


@contextmanager
def over_the_nic(length: int) -> Iterator[None]:
    """End everything unless packets for as many bytes go through the NIC within it."""
    before = packets()
    yield
    moved = packets() - before
    if moved < length // BYTES_A_PACKET_MAX:
        raise SystemExit(f"{moved} packets for {length} bytes: they have gone another way")


def perftest(program: str, size: int, repeats: int, column: int, *options: str) -> float:
    """Return what stands in a column of the line that begins with the size."""
    common = ["-s", str(size), "-n", str(repeats), "-x", "1", "-F", *options]
    environment = os.environ | {"LD_PRELOAD": str(BUILT / "lib/steady_clock/libsteady_clock.so")}
    server = subprocess.Popen(
        [program, "-d", SERVING, *common],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        env=environment,
    )
    try:
        time.sleep(1)
        client = subprocess.run(
            [program, "-d", ASKING, *common, "127.0.0.1"],
            capture_output=True,
            text=True,
            timeout=PART_S,
            env=environment,
        )
        server.communicate(timeout=PART_S)
    finally:
        server.kill()
        server.wait()
    for line in client.stdout.splitlines():
        words = line.split()
        if words[:1] == [str(size)]:
            figure = float(words[column])
            if figure > 0 and math.isfinite(figure):
                return figure
    raise SystemExit(f"{program} has no figure:\n{client.stdout}{client.stderr}")


def run_json(command: list[str]) -> dict[str, float]:
    """Return what a program prints as its last line."""
    done = subprocess.run(command, capture_output=True, text=True, timeout=PART_S)
    if done.returncode != 0 or not done.stdout.strip():
        raise SystemExit(f"{command[0]}: status {done.returncode}\n{done.stdout}{done.stderr}")
    return {name: float(value) for name, value in json.loads(done.stdout.splitlines()[-1]).items()}


def one_round() -> dict[str, float]:
    """Measure everything once, one after the other; MiB/s and us."""
    found = {}
    # ib_read_bw polls, or sleeps until there is an event: on one processor that is not the same.
    for name, options in (("write", ()), ("read", ()), ("read_events", ("-e",))):
        with over_the_nic(PERFTEST_REPEATS * MIB):
            found[f"perftest_{name}_mib_per_s"] = perftest(
                f"ib_{name.split('_')[0]}_bw", MIB, PERFTEST_REPEATS, 3, *options
            )
    found["perftest_read_4k_us"] = perftest("ib_read_lat", 4096, 1000, 4)
    parts = {"engine": [str(BUILT / "rdma_bench")]}
    if peer_python := os.environ.get("MOONCAKE_STORE_PEER_PYTHON"):
        parts["peer"] = [peer_python, str(ROOT / "tests/rdma/bench_peer.py")]
    for part, command in parts.items():
        with over_the_nic(ENGINE_BYTES):
            figures = run_json([*command, ASKING, SERVING])
        found |= {f"{part}_{name}": value for name, value in figures.items()}
    return found


def main() -> None:
    rounds = []
    for _ in range(int(sys.argv[1]) if len(sys.argv) > 1 else 3):
        rounds.append(one_round())
        print(json.dumps(rounds[-1]), flush=True)
    ratios = {}
    for theirs in rounds[0]:
        other, kind = theirs.split("_", 1)
        kind = kind.replace("_events", "")
        for ours in (f"engine_{kind}", f"engine_one_place_{kind}", f"engine_lanes_{kind}"):
            if other != "engine" and ours in rounds[0]:
                values = [round(each[ours] / each[theirs], 2) for each in rounds]
                ratios[f"{ours} of {theirs}"] = values
    print("ratios, each round and their median:")
    for name, values in ratios.items():
        print(f"  {name}: {values} {statistics.median(values)}")


if __name__ == "__main__":
    main()
