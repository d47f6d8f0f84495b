"""One run: a cluster under load and faults, what was recorded of it, and the verdict."""

from __future__ import annotations

import dataclasses
import json
import re
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from mooncake_store import Client
from mooncake_store.errors import StoreError

from .checker import Bounds, check
from .cluster import LOCATION_LIFETIME_S, Cluster
from .faults import CLIENTS, MASTERS, Plan
from .history import Outcome, Recorder, read_history
from .nemesis import Nemesis, Ticker, Watch
from .nodes import NodeError
from .worker import TIMEOUT_S

HISTORY = "history.jsonl"
PLAN = "plan.json"
REPORT = "report.json"
HEAL_S = 20.0
"""After the last fault the cluster works again within this."""
_FINISH_S = 60.0
_FREE_S = 30.0
"""Sessions of clients that were killed end within 4 s, their puts within two calls' deadlines."""
_CALM_S = 1.5
"""Of load, after all is well again."""

BOUNDS = Bounds(
    cut_off_s=LOCATION_LIFETIME_S + TIMEOUT_S + 1.0,
    settle_s=1.0,
    unknown_s=25.0,
    # Its own 10 % and 100 ms, and what this machine may take the processor away for.
    deadline_s=TIMEOUT_S * 1.1 + 0.1 + 2.0,
)


@dataclass
class Report:
    """What came of a run."""

    seed: int
    broken: list[str] = field(default_factory=list)
    """Promises that were broken: what is wrong with the store."""
    operations: int = 0
    outcomes: dict[str, int] = field(default_factory=dict)
    faults: dict[str, int] = field(default_factory=dict)
    skipped_faults: int = 0
    stalls: int = 0
    """How often the machine itself stood still for more than a second."""
    packets: dict[str, int] = field(default_factory=dict)
    epochs: int = 0
    healing_s_max: float = 0.0
    seconds: float = 0.0

    def write(self, path: Path) -> None:
        path.write_text(json.dumps(dataclasses.asdict(self), indent=1) + "\n")


def run(plan: Plan, folder: Path, say: Callable[[str], None] = print) -> Report:
    """Carry out a plan, and check what happened.

    Args:
        plan: Of the run.
        folder: Is made; plan, history, logs and report are kept there.
        say: For people.
    """
    folder.mkdir(parents=True)
    plan.write(folder / PLAN)
    report = Report(plan.seed)
    started_s = time.monotonic()
    history = folder / HISTORY
    cluster = Cluster(plan, folder, history)
    try:
        cluster.start()
        _hurt(cluster, plan, history, report, say)
    except NodeError as error:
        report.broken.append(f"NOT_ALIVE: {error}")
    finally:
        cluster.close()
    _check(folder, report)
    report.broken += _second_leaders(folder)
    report.seconds = round(time.monotonic() - started_s, 1)
    report.write(folder / REPORT)
    return report


def _hurt(
    cluster: Cluster, plan: Plan, history: Path, report: Report, say: Callable[[str], None]
) -> None:
    ticker = Ticker(history)
    watch = Watch(cluster.uri, history)
    with Recorder(history, "nemesis") as recorder:
        if plan.evicts:
            recorder.eviction(is_allowed=True)
        nemesis = Nemesis(cluster, recorder, watch, say)
        try:
            nemesis.run(plan.faults, plan.seconds)
            _wait_healed(watch)
            time.sleep(_CALM_S)
            _finish(cluster, report)
            report.packets = cluster.network.counts()
        finally:
            watch.close()
            ticker.close()
            report.stalls = ticker.stalls
            report.faults = dict(nemesis.done)
            report.skipped_faults = nemesis.skipped
            report.healing_s_max = round(max(watch.healing_s.values(), default=0.0), 2)


def _wait_healed(watch: Watch) -> None:
    """Until all faults are over.

    Raises:
        NodeError: They are not, though they were undone long ago.
    """
    end_s = time.monotonic() + HEAL_S
    while waiting := watch.unhealed():
        if time.monotonic() > end_s:
            raise NodeError(f"{HEAL_S:.0f} s after the last fault not all is well: {waiting}")
        time.sleep(0.05)


def _finish(cluster: Cluster, report: Report) -> None:
    """Let clients end what they hold; then nothing may be held, and all can be removed.

    Raises:
        NodeError: Something is not given back.
    """
    for name in CLIENTS:
        cluster.processes[name].say("finish")
    end_s = time.monotonic() + _FINISH_S
    for name in CLIENTS:
        process = cluster.processes[name]
        while True:
            line = process.hear(max(0.0, end_s - time.monotonic()))
            if not line:
                raise NodeError(f"{name} does not finish: {process.log()[-2000:]}")
            word, *counts = line.split()
            if word == "finished":
                break
        if counts[2] != "1":
            raise NodeError(f"{name} cannot end its pins")
    with Client(cluster.uri, use_local_paths=False, connect_timeout_s=10.0) as client:
        held = ("pins", "puts_open", "puts_waiting", "pool_writing_bytes", "pool_pinned_bytes")
        _wait_zero(client, held)
        end_s = time.monotonic() + _FREE_S
        while True:  # what was cut short goes on
            try:
                client.remove_matching("chaos/", timeout_s=10.0)
                break
            except StoreError as error:
                if time.monotonic() > end_s:
                    raise NodeError(f"what is left cannot be removed: {error}") from error
        _wait_zero(client, ("objects", "pool_complete_bytes", "pool_freeing_bytes"))


def _wait_zero(client: Client, names: tuple[str, ...]) -> None:
    end_s = time.monotonic() + _FREE_S
    left: dict[str, Any] = {}
    while True:
        try:
            totals = client.counters(timeout_s=2.0).totals
            left = {name: totals[name] for name in names if totals[name] != 0}
            if not left:
                return
        except StoreError as error:
            left = {"error": str(error)}
        if time.monotonic() > end_s:
            raise NodeError(f"{_FREE_S:.0f} s after the end of the load not all is 0: {left}")
        time.sleep(0.1)


def _check(folder: Path, report: Report) -> None:
    history = read_history(folder / HISTORY)
    report.broken += [str(finding) for finding in check(history, BOUNDS)]
    report.operations = len(history.operations)
    counts = Counter((each.op.value, each.outcome.value) for each in history.operations)
    report.outcomes = {f"{op} {outcome}": n for (op, outcome), n in sorted(counts.items())}
    report.epochs = len({each.epoch for each in history.operations if each.epoch is not None})
    if report.operations and not any(each.outcome is Outcome.OK for each in history.operations):
        report.broken.append("NOT_ALIVE: no operation succeeded")


def _second_leaders(folder: Path) -> list[str]:
    """Epochs that two masters say they have led in."""
    led: dict[str, set[str]] = {}
    for name in MASTERS:
        path = folder / "logs" / f"{name}.log"
        text = path.read_text(errors="replace") if path.exists() else ""
        for epoch in re.findall(r"\bpublished\b.*\bepoch=(\d+)", text):
            led.setdefault(epoch, set()).add(name)
    return [
        f"TWO_LEADERS: epoch {epoch} was led by {' and '.join(sorted(names))}"
        for epoch, names in led.items()
        if len(names) > 1
    ]


def check_again(folder: Path) -> Report:
    """Check a recorded run once more, without a cluster."""
    report = Report(Plan.read(folder / PLAN).seed)
    _check(folder, report)
    report.broken += _second_leaders(folder)
    return report
