"""What the metadata core alone needs for a key, with a simulated server, in a process of its own.

Run as `python -m mooncake_store.cli.bench.core_memory KEYS`; it prints one JSON line.
"""

from __future__ import annotations

import json
import sys

from mooncake_store._native import ffi, lib
from mooncake_store.cli.bench.environment import own_memory_bytes

KEY_BYTES = 80  # master/src/core_bench.c
STEP = 5


def _checked(elapsed_ns: int) -> int:
    if elapsed_ns < 0:
        raise SystemExit(f"the core answered status {-elapsed_ns}")
    return elapsed_ns


def measure(keys: int) -> dict[str, float]:
    """Store, look up and remove keys; all of them, then all but a fifth."""
    bench = lib.md_bench_open(keys + keys // 8 + 4096)
    if bench == ffi.NULL:
        raise SystemExit("the core could not be opened")
    empty = own_memory_bytes("self")
    put_ns = _checked(lib.md_bench_put(bench, 0, 1, keys))
    full = own_memory_bytes("self")
    exists_ns = _checked(lib.md_bench_exists(bench, 0, 1, keys))
    remove_ns = _checked(lib.md_bench_remove(bench, 0, 1, keys))
    after = own_memory_bytes("self")
    _checked(lib.md_bench_put(bench, 0, 1, keys))
    full_again = own_memory_bytes("self")
    # Hashes scatter these keys over the whole index: four of five are gone everywhere.
    for rest in range(STEP - 1):
        _checked(lib.md_bench_remove(bench, rest, STEP, len(range(rest, keys, STEP))))
    thinned = own_memory_bytes("self")
    lib.md_bench_close(bench)
    return {
        "keys": keys,
        "bytes_per_key_beyond_the_key": (full - empty) / keys - KEY_BYTES,
        "given_back_ratio": (full - after) / (full - empty),
        "given_back_ratio_of_80_percent": (full_again - thinned) / (full_again - empty),
        "put_ns": put_ns / keys,
        "exists_ns": exists_ns / keys,
        "remove_ns": remove_ns / keys,
    }


if __name__ == "__main__":
    print(json.dumps(measure(int(sys.argv[1]))))
