"""What the tests of this room share: the module that makes the golden vectors."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).resolve().parents[3]


def load(path: Path) -> ModuleType:
    """Import a file that is in no package."""
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="session")
def golden() -> ModuleType:
    return load(ROOT / "tests" / "golden" / "make_frames.py")


@pytest.fixture(scope="session")
def protos() -> ModuleType:
    return load(ROOT / "native" / "generate_protos.py")
