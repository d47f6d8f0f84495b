"""The doctor in the guest: it opens the NICs with pyverbs, where that is installed."""

from __future__ import annotations

import subprocess
import sys

import pytest

pytest.importorskip("pyverbs.device", reason="pyverbs is not installed")


def test_doctor_opens_the_nics() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "mooncake_store.cli.main", "doctor"],
        capture_output=True,
        text=True,
        timeout=120,
    )
    line = next(line for line in done.stdout.splitlines() if "verbs" in line and "rxe0:" in line)
    assert "queue pairs" in line, done.stdout
