"""What RDMA costs a machine without it: instructions of gets and puts with it compiled in or not.

    python benchmarks/rdma_cost.py [--json FILE] [--count CALLS] [--rounds ROUNDS]

Two programs are built from the sources as they are, and from a copy of them in which an engine's
`rdma` is the constant NULL, so that the compiler drops whatever asks for it. Both call the same
store (real processes on loopback) under valgrind, which counts the instructions of the caller's
thread in the client and its engine: no other load changes them. What the kernel does is the same
for both. In how many pieces it gives the bytes is chance: the least of all calls counts, and
`quartiles` are those of the first program, over that.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import statistics
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from mooncake_store.cli.bench.cluster import Cluster

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "native"))

import build_ffi  # noqa: E402

ROOMS = ("client", "transfer_engine", "mooncake_store/protocol")
SIZES = (4 << 10, 64 << 10, 1 << 20)
LIMIT_PERCENT = 2.0
RUN_TIMEOUT_S = 300
NOTHING = "((te_rdma *)NULL)"


def without_rdma(folder: Path) -> None:
    """Make an engine's `rdma` the constant NULL in a copy of the sources."""
    for path in [*folder.rglob("*.c"), *folder.rglob("*.h")]:
        text = path.read_text()
        text = text.replace("&engine->rdma)", "&engine->rdma_unused)")
        text = text.replace("engine->rdma = rdma;", "engine->rdma_unused = rdma;")
        text = re.sub(r"(?:(?:\w+->)*\bengine|te_channel_engine\([^()]*\))->rdma\b", NOTHING, text)
        text = re.sub(r"\bte_rdma \*rdma;( *)/\*", r"te_rdma *rdma_unused;\1/*", text)
        path.write_text(text)


def build(root: Path, folder: Path) -> Path:
    """Compile what lies under `root` as a release is, and link the program."""
    folder.mkdir()
    files = [root / "benchmarks/rdma_cost.c"]
    files += [root / path for path in build_ffi.sources() if str(path).startswith(ROOMS)]
    files = [path for path in files if not path.name.startswith("python_")]
    includes = [f"-I{root / name}" for name in build_ffi.include_dirs() if (root / name).is_dir()]
    flags = [*build_ffi.COMPILE_FLAGS, "-D_GNU_SOURCE", "-w", *includes]

    def compile_one(path: Path) -> Path:
        made = folder / f"{str(path.relative_to(root)).replace('/', '-')}.o"
        subprocess.run(["gcc", *flags, "-c", str(path), "-o", str(made)], check=True)
        return made

    with ThreadPoolExecutor(os.cpu_count()) as pool:
        objects = list(pool.map(compile_one, files))
    program = folder / "rdma_cost"
    names = [str(made) for made in objects]
    subprocess.run(["gcc", *names, "-o", str(program), "-pthread", "-lm", "-ldl"], check=True)
    return program


def instructions(
    program: Path, cluster: Cluster, call: str, size: int, count: int, way: str
) -> list[int]:
    """Return how many each of the calls takes."""
    with tempfile.TemporaryDirectory(prefix="mooncake-store-cost-") as folder:
        command = ["valgrind", "--tool=callgrind", f"--callgrind-out-file={folder}/out"]
        command += ["--collect-atstart=no", "--toggle-collect=measured", "--dump-after=measured"]
        command += [str(program), cluster.address, call, str(size), str(count), way]
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=RUN_TIMEOUT_S, env=cluster.environment
        )
        if done.returncode != 0:
            raise SystemExit(f"{' '.join(command)}:\n{done.stderr}")
        texts = [path.read_text() for path in Path(folder).glob("out.*")]
    found = [int(number) for text in texts for number in re.findall(r"^summary: (\d+)", text, re.M)]
    return [number for number in found if number > 0]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--json", type=Path, help="keep the figures there")
    parser.add_argument("--count", type=int, default=100, help="calls of a run")
    parser.add_argument("--rounds", type=int, default=2, help="runs of each")
    options = parser.parse_args()
    if shutil.which("valgrind") is None:
        raise SystemExit("this needs valgrind")
    rows = []
    with tempfile.TemporaryDirectory(prefix="mooncake-store-cost-") as name:
        folder = Path(name)
        for room in (*ROOMS, "third_party"):
            shutil.copytree(ROOT / room, folder / "copy" / room)
        (folder / "copy/benchmarks").mkdir()
        shutil.copy(ROOT / "benchmarks/rdma_cost.c", folder / "copy/benchmarks")
        without_rdma(folder / "copy")
        programs = {"with": build(ROOT, folder / "with")}
        programs["without"] = build(folder / "copy", folder / "without")
        with Cluster(pool_size_bytes=256 << 20) as cluster:
            for way in ("tcp", "local"):
                for call in ("get", "put"):
                    for size in SIZES:
                        counts: dict[str, list[int]] = {kind: [] for kind in programs}
                        for _ in range(options.rounds):
                            for kind, program in programs.items():
                                counts[kind] += instructions(
                                    program, cluster, call, size, options.count, way
                                )
                        row: dict[str, Any] = {"way": way, "call": call, "size": size}
                        row |= {kind: min(found) for kind, found in counts.items()}
                        row["ratio"] = round(row["with"] / row["without"], 4)
                        low, _, high = statistics.quantiles(counts["with"], n=4)
                        row["quartiles"] = [
                            round(low / row["with"], 4),
                            round(high / row["with"], 4),
                        ]
                        rows.append(row)
                        print(json.dumps(row), flush=True)
    if options.json is not None:
        options.json.write_text(json.dumps(rows, indent=1) + "\n")
    is_met = all(row["ratio"] <= 1 + LIMIT_PERCENT / 100 for row in rows)
    print(f"no row has {LIMIT_PERCENT:g} % more" if is_met else "a row has more")
    return 0 if is_met else 1


if __name__ == "__main__":
    sys.exit(main())
