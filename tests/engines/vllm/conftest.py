"""Small models, and what an engine without a store generates with them."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.engines.vllm.vllm_process import ONE_THREAD, PROMPTS, VllmProcess, made

MARGIN_LEAST = 0.02


@pytest.fixture(scope="session")
def model(vllm_python: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A Llama of four layers."""
    return made(vllm_python, tmp_path_factory.mktemp("llama"), "llama")


@pytest.fixture(scope="session")
def logs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("logs")


@pytest.fixture(scope="session")
def computed(vllm_python: Path, model: Path, logs: Path) -> dict[str, list[int]]:
    """What an engine without a store generates for PROMPTS, as far as it is certain of each token.

    Sums depend, in their last bits, on what else is computed in the same step; where two tokens are
    about equally likely, that decides.
    """
    with VllmProcess(vllm_python, model, logs / "reference", environment=ONE_THREAD) as engine:
        answers = engine.generate_all(list(PROMPTS.values()), margins=True)
    return {
        name: each["tokens"]
        for name, each in zip(PROMPTS, answers, strict=True)
        if each["margin"] > MARGIN_LEAST
    }
