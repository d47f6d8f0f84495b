"""What the command loads before it does anything."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from mooncake_store import __version__

ROOT = Path(__file__).parents[3]
HEAVY = ("click", "rich", "grpc", "google.protobuf", "textual", "uvicorn", "starlette", "asyncio")


def loaded(arguments: list[str]) -> tuple[str, set[str]]:
    code = f"""
import sys
sys.argv = ["mooncake-store", *{arguments!r}]
from mooncake_store.cli.main import main
try:
    main()
except SystemExit as end:
    assert not end.code, end.code
print(*sys.modules, sep="\\n", file=sys.stderr)
"""
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True, text=True, timeout=30, env=environment, check=True,
    )  # fmt: skip
    return done.stdout, set(done.stderr.split())


def test_version_loads_nothing_heavy() -> None:
    for flag in ("--version", "-V"):
        out, modules = loaded([flag])
        assert out == f"mooncake-store {__version__}\n"
        assert not modules & {*HEAVY, "mooncake_store._native", "mooncake_store.errors"}


def test_help_loads_no_command_and_no_extension() -> None:
    out, modules = loaded(["--help"])
    assert "Usage: mooncake-store" in out
    assert not modules & {"rich", "grpc", "textual", "asyncio", "mooncake_store._native"}
    ours = {name for name in modules if name.startswith("mooncake_store.cli.")}
    assert ours <= {
        f"mooncake_store.cli.{name}"
        for name in ("main", "app", "exit_codes", "interrupts", "output")
    }


def test_a_command_about_objects_loads_no_grpc() -> None:
    _, modules = loaded(["put", "--help"])
    assert not modules & {"rich", "grpc", "textual", "uvicorn", "starlette"}
