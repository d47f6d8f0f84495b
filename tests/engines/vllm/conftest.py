"""A small model, and what an engine without a store generates with them."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.engines.vllm.vllm_process import (
    ONE_THREAD,
    PROMPTS,
    Known,
    VllmProcess,
    branch_of,
    made,
)

MARGIN_LEAST = 0.02
BRANCHES = 12  # prompts of which a branch is tried, until both are certain


@pytest.fixture(scope="session")
def model(vllm_python: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A Llama of four layers."""
    return made(vllm_python, tmp_path_factory.mktemp("llama"), "llama")


@pytest.fixture(scope="session")
def logs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("logs")


@pytest.fixture(scope="session")
def known(vllm_python: Path, model: Path, logs: Path) -> Known:
    """What an engine without a store generates."""
    branches = [branch_of(prompt) for prompt in PROMPTS[:BRANCHES]]
    with VllmProcess(vllm_python, model, logs / "reference", environment=ONE_THREAD) as engine:
        answers = engine.generate_all(PROMPTS + branches, margins=True)
    is_certain = [each["margin"] > MARGIN_LEAST for each in answers]
    first = next(n for n in range(BRANCHES) if is_certain[n] and is_certain[len(PROMPTS) + n])
    others = [n for n in range(len(PROMPTS)) if n != first and is_certain[n]]
    order = [first, *others]
    return Known(
        prompts=[PROMPTS[n] for n in order],
        tokens=[answers[n]["tokens"] for n in order],
        branch=branches[first],
        branch_tokens=answers[len(PROMPTS) + first]["tokens"],
    )
