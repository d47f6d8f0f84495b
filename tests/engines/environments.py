"""Where the engines are installed: `tests/engines/install` puts them there."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.compat.environment import PYTHONPATH

__all__ = ["CANNOT_BE_HAD", "ENVIRONMENTS", "python_of", "variables"]

# The one reason for which continuous integration may leave a test out: see tests/conftest.py.
CANNOT_BE_HAD = "cannot be had here"

_folder = os.environ.get("MOONCAKE_STORE_ENGINES", "")
ENVIRONMENTS = Path(_folder) if _folder else None


def python_of(engine: str) -> Path:
    """Return the interpreter that an engine is installed for; skip, with the reason, without it."""
    assert ENVIRONMENTS is not None, "MOONCAKE_STORE_ENGINES names no folder"
    folder = ENVIRONMENTS / "python"
    if (folder / f".installed/requirements-{engine}").is_file():
        return folder / "bin/python"
    missing = ENVIRONMENTS / f"{engine}.missing"
    if missing.is_file():
        pytest.skip(f"{engine} {CANNOT_BE_HAD}: {missing.read_text().strip()}")
    pytest.skip(f"{engine} is not installed: run tests/engines/install")


def variables() -> dict[str, str]:
    """Return what a process of an engine has beside this one's variables.

    `install` compiles no modules: what is imported is compiled once, and kept beside the
    environment, also where this process is told to keep nothing.
    """
    assert ENVIRONMENTS is not None, "MOONCAKE_STORE_ENGINES names no folder"
    return {
        "PYTHONDONTWRITEBYTECODE": "",
        "PYTHONPYCACHEPREFIX": str(ENVIRONMENTS / "bytecode"),
        "PYTHONPATH": PYTHONPATH,
    }
