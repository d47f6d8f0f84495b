"""A short run of the fault suite, and the faults that are planted for its checker to find.

Each day another part of the matrix of faults, and another planted one; `make chaos` runs longer,
and plants all. A failure prints where seed, plan, history and logs are kept; nothing is run again.
"""

from __future__ import annotations

import datetime
import json
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from chaos.cluster import ROOT, missing_tools
from chaos.planted import build_planted

PLANS = ROOT / "tests" / "chaos" / "plans"
TODAY = datetime.date.today().toordinal()
PARTS = 25
RUN_S = 24
FOUND_WITHIN_S = 60.0
FINDS = {
    "answer_last": "VANISHED_PUT",
    "busy_inventory": "TORN_VALUE",
    "check_always": "FOREIGN_BYTES",
    "fence": "FOREIGN_BYTES|TORN_VALUE",
    "freed_waits": "TORN_VALUE",
    "leader_clock": "TWO_LEADERS",
    "pin_ends": "not all is 0: {'pins'",
    "pin_spares": "BROKEN_PIN",
    "strict_remove": "STALE_READ",
    "tombstone": "STALE_READ",
}
"""Rules that the test build leaves out, by their names in docs/protocol.md, and what shows it."""

pytestmark = [pytest.mark.slow, pytest.mark.root, pytest.mark.timeout(240)]


@pytest.fixture(autouse=True)
def machine() -> None:
    missing = missing_tools()
    if missing:
        pytest.skip(f"the fault suite: {missing}")


def chaos(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "tests.chaos", *arguments]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=220)


def test_faults_break_no_promise() -> None:
    part = f"{TODAY % PARTS + 1}/{PARTS}"
    done = chaos("--seed", str(TODAY), "--seconds", str(RUN_S), "--subset", part)
    assert done.returncode == 0, done.stdout + done.stderr


def planted_today() -> list[str]:
    names = sorted(FINDS)
    if os.environ.get("CHAOS_PLANTED") == "all":
        return names
    return [names[TODAY % len(names)]]


@pytest.fixture(scope="module")
def built() -> None:
    build_planted()


@pytest.mark.parametrize("rule", planted_today())
def test_a_planted_fault_is_found(rule: str, built: None, tmp_path: Path) -> None:
    plan = PLANS / f"{rule}.json"
    assert json.loads(plan.read_text())["planted"] == rule
    started_s = time.monotonic()
    done = chaos("--faults", str(plan), "--out", str(tmp_path))
    took_s = time.monotonic() - started_s
    assert done.returncode == 1, f"not found: {done.stdout}{done.stderr}"
    reports = list(tmp_path.glob("*/report.json"))
    assert len(reports) == 1, done.stdout + done.stderr
    (report,) = reports
    broken = json.loads(report.read_text())["broken"]
    assert any(word in line for word in FINDS[rule].split("|") for line in broken), broken[:5]
    assert took_s < FOUND_WITHIN_S
    # The same is concluded from what was recorded.
    again = chaos("--check", str(report.parent))
    assert (again.returncode == 1) == (rule != "pin_ends"), again.stdout


def test_every_planted_fault_has_a_plan() -> None:
    assert {path.stem for path in PLANS.glob("*.json")} == set(FINDS)


def test_what_ships_has_no_trace_of_it() -> None:
    from mooncake_store import _native

    assert b"MOONCAKE_STORE_PLANTED" not in Path(_native.__file__).read_bytes()
