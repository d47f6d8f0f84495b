"""Tests with real engines, each in an environment of its own: `make test-engines` only."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.engines.environments import ENVIRONMENTS, python_of

if ENVIRONMENTS is None:
    collect_ignore_glob = ["*/test_*.py", "test_*.py"]


@pytest.fixture(scope="session")
def vllm_python() -> Path:
    """The interpreter of vLLM's environment."""
    return python_of("vllm")
