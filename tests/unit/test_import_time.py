"""An engine pays for what it uses: importing the package loads little, and no tensor library.

What is loaded is looked at, not how long it takes: a busy machine changes only the latter.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PLAIN = "atexit, copy, dataclasses, inspect, logging, math, threading, typing"
"""What may be needed of the standard library; with what it needs itself in this Python."""

CODE = """
import sys
import {plain}
before = set(sys.modules)
{statement}
print(*sorted(set(sys.modules) - before))
"""
CLIENTS = {
    "mooncake_store._native",
    "mooncake_store._native.lib",
    "mooncake_store.config",
    "mooncake_store.errors",
    "mooncake_store.runtime",
    "mooncake_store.transfer_engine",
    "mooncake_store.transfer_engine.priority",
    "mooncake_store.transfer_engine.spinners",
}


@pytest.mark.parametrize(
    ("statement", "others", "ours"),
    [
        ("import mooncake_store", set(), set()),
        ("from mooncake_store import Client", {"_cffi_backend"}, CLIENTS),
    ],
)
def test_importing_loads_only_what_a_client_needs(
    statement: str, others: set[str], ours: set[str]
) -> None:
    done = subprocess.run(
        [sys.executable, "-c", CODE.format(plain=PLAIN, statement=statement)],
        cwd=ROOT, capture_output=True, text=True, timeout=50, check=True,
    )  # fmt: skip
    loaded = set(done.stdout.split())
    ours = ours | {"mooncake_store", "mooncake_store.version"}
    if "Client" in statement:  # its room has a module for each kind of call
        ours |= {name for name in loaded if f"{name}.".startswith("mooncake_store.client.")}
    assert "mooncake_store.version" in loaded
    assert loaded <= others | ours, sorted(loaded - others - ours)
