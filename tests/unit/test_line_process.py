"""What a process of an engine leaves behind in the process that runs it."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from tests.engines import environments
from tests.engines.line_process import LineProcess
from tests.waiting import until

# A child keeps its output, and ends when somebody has opened the file and closed it again.
KEEPING = """
import subprocess, sys
print("READY", flush=True)
subprocess.Popen([sys.executable, "-c", f"open({sys.argv[1]!r}).read(); print('late')"])
print("ANSWER 1", flush=True)
sys.stdin.read()
"""


def is_open(path: Path) -> bool:
    folder = Path("/proc/self/fd")
    found = []
    for each in folder.iterdir():
        try:
            found.append(os.readlink(each))
        except FileNotFoundError:  # that of the listing
            continue
    return str(path) in found


@pytest.mark.parametrize("is_kept", [False, True])
def test_its_log_is_open_as_long_as_somebody_writes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_kept: bool
) -> None:
    monkeypatch.setattr(environments, "ENVIRONMENTS", tmp_path)
    gate, log = tmp_path / "gate", tmp_path / "log"
    os.mkfifo(gate)
    process = LineProcess([sys.executable, "-c", KEEPING, gate], log)
    assert process.receive() == 1
    if not is_kept:
        gate.open("w").close()
    process.kill()
    process.end(0)
    if is_kept:
        assert is_open(log)
        gate.open("w").close()
    until(lambda: not is_open(log))
    assert log.read_text() == "late\n"
