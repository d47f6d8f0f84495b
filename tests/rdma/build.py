"""Builds the C programs of this folder, and of tests/c those that every transport must pass.

tests/rdma/build.py [NAME ...]: prints the paths of the programs. Runs on the host, which is faster.
"""

from __future__ import annotations

import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent.parent
sys.path.insert(0, str(ROOT / "tests" / "c"))

import run  # noqa: E402


def main() -> int:
    builder = run.Builder()
    for name in sys.argv[1:] or ["rdma_test"]:
        folder = ROOT / "tests" / ("rdma" if (ROOT / "tests/rdma" / f"{name}.c").exists() else "c")
        print(builder.program(run.Test.read(folder / f"{name}.c"), "plain"))
    return 0


if __name__ == "__main__":
    sys.exit(main())
