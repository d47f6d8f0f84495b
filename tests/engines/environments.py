"""Where the engines are installed: `tests/engines/install` puts them there."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

__all__ = ["ENVIRONMENTS", "python_of"]

_folder = os.environ.get("MOONCAKE_STORE_ENGINES", "")
ENVIRONMENTS = Path(_folder) if _folder else None


def python_of(engine: str) -> Path:
    """Return the interpreter of an engine's environment; skip, with the reason, without one."""
    assert ENVIRONMENTS is not None, "MOONCAKE_STORE_ENGINES names no folder"
    folder = ENVIRONMENTS / engine
    if not (folder / ".installed").is_file():
        missing = ENVIRONMENTS / f"{engine}.missing"
        reason = missing.read_text().strip() if missing.is_file() else "it was not tried"
        pytest.skip(f"{engine} is not installed: {reason}")
    return folder / "bin/python"
