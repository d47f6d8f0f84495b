"""The engine beside perftest, between the same two NICs, in turns.

tests/rdma/build.py rdma_bench            (on the host)
tests/rdma/guest/run python3 tests/rdma/bench.py
"""

from __future__ import annotations

import json
import math
import statistics
import subprocess
import sys
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent.parent
ROUNDS = 3
TRIES = 6
ASKING, SERVING = "rxe0", "rxe1"


def perftest(program: str, size: int, iterations: int, column: int) -> float:
    """Return one figure of a program of perftest.

    It counts cycles, and finds out beforehand how long one takes. Where reading the clock is slow
    that may fail; then it prints 0.00 or inf, and is asked again.
    """
    for _ in range(TRIES):
        figure = perftest_once(program, size, iterations, column)
        if figure > 0 and math.isfinite(figure):
            return figure
    raise SystemExit(f"{program} has not found out how long a cycle takes, {TRIES} times")


def perftest_once(program: str, size: int, iterations: int, column: int) -> float:
    """Return what stands in the line that begins with the size."""
    common = ["-s", str(size), "-n", str(iterations), "-x", "1", "-F"]
    server = subprocess.Popen(
        [program, "-d", SERVING, *common], stdout=subprocess.PIPE, stderr=subprocess.STDOUT
    )
    time.sleep(1)
    client = subprocess.run(
        [program, "-d", ASKING, *common, "127.0.0.1"], capture_output=True, text=True, timeout=60
    )
    server.communicate(timeout=60)
    for line in client.stdout.splitlines():
        words = line.split()
        if words[:1] == [str(size)]:
            return float(words[column])
    raise SystemExit(f"{program} has no figure:\n{client.stdout}{client.stderr}")


def run_json(command: list[str]) -> dict[str, float]:
    """Return what a program prints as its last line."""
    done = subprocess.run(command, capture_output=True, text=True, timeout=180)
    if done.returncode != 0 or not done.stdout.strip():
        raise SystemExit(f"{command[0]}: status {done.returncode}\n{done.stdout}{done.stderr}")
    return {name: float(value) for name, value in json.loads(done.stdout.splitlines()[-1]).items()}


def one_round() -> dict[str, float]:
    """Measure everything once, one after the other; MiB/s and us."""
    mib = 1 << 20
    found = {
        "perftest_write_mib_per_s": perftest("ib_write_bw", mib, 200, 3),
        "perftest_read_mib_per_s": perftest("ib_read_bw", mib, 200, 3),
        "perftest_read_4k_us": perftest("ib_read_lat", 4096, 1000, 4),
    }
    ours = run_json([str(ROOT / "build/c-test/plain/rdma_bench"), ASKING, SERVING])
    found |= {f"engine_{name}": value for name, value in ours.items()}
    return found


def main() -> int:
    rounds = []
    for _ in range(ROUNDS):
        rounds.append(one_round())
        print(json.dumps(rounds[-1]), flush=True)
    median = {name: statistics.median(each[name] for each in rounds) for name in rounds[0]}
    ratios = {
        f"{kind}_of_{other}": median[f"engine_{kind}"] / median[f"{other}_{kind}"]
        for other in ("perftest",)
        for kind in ("write_mib_per_s", "read_mib_per_s", "read_4k_us")
        if f"{other}_{kind}" in median
    }
    print(json.dumps({name: round(value, 3) for name, value in ratios.items()}))
    return 0


if __name__ == "__main__":
    sys.exit(main())
