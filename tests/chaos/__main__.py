"""python -m tests.chaos: runs the fault suite, or checks a recorded run again."""

from __future__ import annotations

import argparse
import random
import shutil
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from .cluster import missing_tools
from .faults import Plan
from .planted import build_planted
from .run import check_again, run
from .schedule import make_plan, subset


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m tests.chaos",
        description="Real processes under load and faults; what they did is recorded and checked.",
    )
    parser.add_argument("--seed", type=int, help="of the schedule (default: any, printed)")
    parser.add_argument("--seconds", type=float, default=60.0, help="of load (60)")
    parser.add_argument("--runs", type=int, default=1, help="one after the other, seeds count up")
    parser.add_argument("--faults", type=Path, help="a plan.json to repeat, instead of a seed")
    parser.add_argument("--subset", default="1/1", help="part k/n of the matrix of faults")
    parser.add_argument("--planted", default="", help="a rule to leave out, in a test build")
    parser.add_argument("--out", type=Path, help="keep each run there (default: only failures)")
    parser.add_argument("--check", type=Path, metavar="FOLDER", help="check a kept run again")
    parser.add_argument("--print-plan", action="store_true", help="print the plan, and do nothing")
    given = parser.parse_args(arguments)
    if given.check is not None:
        return _tell(check_again(given.check).broken, given.check)
    part, _, parts = given.subset.partition("/")
    pairs = subset(int(part), int(parts))
    seed = random.SystemRandom().randrange(1 << 32) if given.seed is None else given.seed
    plans = [
        make_plan(seed + number, given.seconds, pairs=pairs, planted=given.planted)
        for number in range(given.runs)
    ]
    if given.faults is not None:
        plans = [Plan.read(given.faults)]
    if given.print_plan:
        for plan in plans:
            plan.write(Path("/dev/stdout"))
        return 0
    missing = missing_tools()
    if missing:
        print(f"this machine cannot run it: {missing}", file=sys.stderr)
        return 2
    if any(plan.planted for plan in plans):
        build_planted()
    failures = 0
    for plan in plans:
        failures += _run(plan, given.out)
    return min(failures, 1)


def _run(plan: Plan, out: Path | None) -> int:
    base = out or Path(tempfile.mkdtemp(prefix="mooncake-store-chaos-"))
    folder = base / f"seed-{plan.seed}"
    print(f"seed {plan.seed}: {len(plan.faults)} faults in {plan.seconds:g} s", flush=True)
    started_s = time.monotonic()

    def say(line: str) -> None:
        print(f"  {time.monotonic() - started_s:6.1f} s  {line}", flush=True)

    report = run(plan, folder, say)
    print(
        f"  {report.operations} operations, {sum(report.faults.values())} faults, "
        f"{report.epochs} epochs, {report.stalls} stalls of this machine, "
        f"well again after {report.healing_s_max:g} s at most; packets: {report.packets}",
        flush=True,
    )
    status = _tell(report.broken, folder)
    if status == 0 and out is None:
        shutil.rmtree(base, ignore_errors=True)
    return status


def _tell(broken: list[str], folder: Path) -> int:
    if not broken:
        print("  every promise was kept")
        return 0
    for line in broken[:20]:
        print(f"  BROKEN {line}")
    if len(broken) > 20:
        print(f"  and {len(broken) - 20} more")
    print(f"  kept in {folder}: plan, history, logs")
    print(f"  repeat: python -m tests.chaos --faults {folder}/plan.json")
    print(f"  check:  python -m tests.chaos --check {folder}", flush=True)
    return 1


if __name__ == "__main__":
    sys.exit(main())
