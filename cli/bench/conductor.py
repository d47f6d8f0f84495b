"""`bench conductor`: decisions a second, and a trace on a real store under them."""

from __future__ import annotations

import gc
import random
import time

from mooncake_store.cli.bench.conductor_replay import replayed
from mooncake_store.cli.bench.report import Watcher, silent
from mooncake_store.cli.bench.rounds import Bar, Row, Spread
from mooncake_store.cli.bench.ticker import percentile
from mooncake_store.conductor.service.config import ConductorConfig
from mooncake_store.conductor.service.core import ConductorCore
from mooncake_store.conductor.service.decision import Decision
from mooncake_store.conductor.service.decision import Request as Wanted
from mooncake_store.conductor.service.documents import Registration, Report
from mooncake_store.conductor.service.instances import Role

__all__ = ["run"]

INSTANCES = 64
BLOCK_TOKENS = 512
SWEEP_S = 0.2


def _core(policy: str) -> ConductorCore:
    core = ConductorCore(
        ConductorConfig(
            policy=policy, block_tokens=BLOCK_TOKENS, heartbeat_timeout_s=600, forget_after_s=600
        )
    )
    for number in range(INSTANCES):
        role = Role.BOTH if number % 4 == 0 else Role.PREFILL
        core.register(Registration(f"instance-{number}", role, "", "", 1))
    return core


def _prompts(count: int) -> list[list[str]]:
    """Prompts of 4 to 40 blocks that share beginnings, as conversations do."""
    rng = random.Random(1)
    chains = [[rng.randbytes(16).hex() for _ in range(40)] for _ in range(500)]
    found = []
    for _ in range(count):
        length = rng.randint(4, 40)
        own = [rng.randbytes(16).hex() for _ in range(2)]
        found.append(rng.choice(chains)[: length - 2] + own)
    return found


def _decisions(policy: str, rounds: int, count: int, watch: Watcher) -> list[Row]:
    rates, tails = [], []
    core = _core(policy)
    prompts = _prompts(count)
    gc.collect()
    gc.freeze()
    try:
        for turn in range(rounds):
            took: list[float] = []
            swept_s = begun = time.perf_counter()
            for number, keys in enumerate(prompts):
                name, at_s = f"{turn}-{number}", time.perf_counter()
                tokens = len(keys) * BLOCK_TOKENS + 100
                wanted = Wanted(request_id=name, num_tokens=tokens, blocks=core.names.of_keys(keys))
                decided = core.schedule(wanted, is_tracked=True)
                took.append(time.perf_counter() - at_s)
                if isinstance(decided, Decision):
                    core.report(name, Report("prefilled"))
                    core.report(name, Report("finished", 200))
                if time.perf_counter() - swept_s > SWEEP_S:
                    core.sweep()
                    swept_s = time.perf_counter()
            rates.append(len(prompts) / (time.perf_counter() - begun))
            tails.append(percentile(took, 0.99) * 1e3)
            watch(f"decisions, {policy}", (turn + 1) / rounds)
    finally:
        gc.unfreeze()
    note = "with the reports of prefill and end, and sweeps"
    return [
        Row(
            f"decisions at {INSTANCES} instances, {policy}", "1/s", Spread.of(rates),
            bar=Bar(5000, "value", "at least"), note=note,
        ),
        Row(
            f"a decision at {INSTANCES} instances, {policy}, p99", "ms", Spread.of(tails),
            bar=Bar(2, "value", "at most"),
        ),
    ]  # fmt: skip


def run(*, rounds: int, requests: int, is_quick: bool, watch: Watcher = silent) -> list[Row]:
    """Return the rows.

    Args:
        rounds: Repetitions of the decisions.
        requests: Of the trace.
        is_quick: Few of each.
        watch: Told how far it is.
    """
    count = 500 if is_quick else 5000
    rows = []
    for policy in ("earliest", "global"):
        rows += _decisions(policy, 1 if is_quick else rounds, count, watch)
    return rows + replayed(120 if is_quick else requests, watch)
