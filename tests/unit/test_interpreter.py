"""Processes of this package are of this package, whatever lies in the working directory."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path

import pytest

from mooncake_store.interpreter import module_command

TELLS = "import json, sys; print(json.dumps([__name__, sys.argv[1:], 'REAL']))"


def package(folder: Path, name: str, text: str) -> Path:
    (folder / name).mkdir(parents=True)
    (folder / name / "__init__.py").write_text("")
    (folder / name / "tells.py").write_text(text)
    return folder


@pytest.fixture
def real(tmp_path: Path) -> Path:
    return package(tmp_path / "installed", "told", TELLS)


def run(real: Path, at: Path, monkeypatch: pytest.MonkeyPatch, **more: str) -> object:
    monkeypatch.chdir(at)
    command = module_command("told.tells", ["--a", "b c"], root=real)
    environment = {**os.environ, "PYTHONPATH": str(real), **more}
    done = subprocess.run(command, env=environment, capture_output=True, check=True, timeout=50)
    return json.loads(done.stdout)


def test_a_package_in_the_working_directory_is_another_one(
    real: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    checkout = package(tmp_path / "checkout", "told", "raise SystemExit('of the checkout')")
    expected = ["__main__", ["--a", "b c"], "REAL"]
    assert run(real, checkout, monkeypatch) == expected
    assert run(real, checkout, monkeypatch, PYTHONSAFEPATH="1") == expected


def test_the_working_directory_may_be_where_the_package_is(
    real: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert run(real, real, monkeypatch, PYTHONPATH="") == ["__main__", ["--a", "b c"], "REAL"]
