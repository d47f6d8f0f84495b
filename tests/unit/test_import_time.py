"""An engine pays for what it uses: importing the package is quick, and loads no tensor library."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
CODE = """
import sys, time
before, started = set(sys.modules), time.process_time()
{statement}
print(time.process_time() - started)
print(sorted({{"torch", "transformers", "numpy", "grpc", "asyncio"}} & (set(sys.modules) - before)))
"""


@pytest.mark.parametrize(
    ("statement", "seconds_max"),
    [("import mooncake_store", 0.1), ("from mooncake_store import Client", 0.1)],
)
def test_importing_is_quick_and_loads_no_torch(statement: str, seconds_max: float) -> None:
    seconds = []
    for _ in range(5):  # the quickest of some: what the machine does beside it does not count
        done = subprocess.run(
            [sys.executable, "-c", CODE.format(statement=statement)],
            cwd=ROOT, capture_output=True, text=True, timeout=50, check=True,
        )  # fmt: skip
        spent, loaded = done.stdout.splitlines()
        assert loaded == "[]"
        seconds.append(float(spent))
    assert min(seconds) <= seconds_max, seconds
