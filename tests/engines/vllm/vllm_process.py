"""vLLM in a process of its own, and the connectors that it is started with."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.engines.environments import ENVIRONMENTS, variables
from tests.engines.line_process import ANSWER_S, START_S, LineProcess

__all__ = [
    "ONE_THREAD",
    "OTHER",
    "PROCESSES",
    "PROMPTS",
    "SCRIPT",
    "Known",
    "VllmProcess",
    "made",
    "ours",
    "theirs",
]

SCRIPT = Path(__file__).with_name("engine.py")
MIB = 1 << 20

# An engine's threads spin while they wait for each other: where others want the cores, too, a step
# of milliseconds takes some hundred.
ONE_THREAD = {"VLLM_CPU_OMP_THREADS_BIND": "nobind", "OMP_NUM_THREADS": "1"}
PROCESSES = {"VLLM_ENABLE_V1_MULTIPROCESSING": "1"}  # scheduler and worker in others, as by default

# Five blocks of 32 tokens and a rest.
PROMPTS = [[((n + 7) * at + 3) % 199 for at in range(163)] for n in range(48)]
OTHER = [(5 * at + 1) % 197 for at in range(150)]


def branch_of(prompt: list[int]) -> list[int]:
    """Return a prompt that begins as this one."""
    return prompt[:100] + [5] * 40


@dataclass(frozen=True, slots=True)
class Known:
    """Prompts, and what an engine without a store generates, which is certain of each token.

    Sums depend, in their last bits, on the machine and on what else is computed in the same step;
    where two tokens are about equally likely, that decides.  Such prompts are not among these.

    Attributes:
        prompts: Many.
        tokens: Of each.
        branch: Begins as the first one.
        branch_tokens: Of it.
    """

    prompts: list[list[int]]
    tokens: list[list[int]]
    branch: list[int]
    branch_tokens: list[int]

    @property
    def prompt(self) -> list[int]:
        """The first one."""
        return self.prompts[0]

    @property
    def first_tokens(self) -> list[int]:
        """Of the first one."""
        return self.tokens[0]


class VllmProcess(LineProcess):
    """An engine that answers prompts.

    Args:
        python: Of vLLM's environment.
        model: Its folder.
        log: File for what the engine prints.
        config: A --kv-transfer-config; empty: none.
        more: More arguments of `LLM`.
        environment: Variables.
    """

    def __init__(
        self,
        python: Path,
        model: Path,
        log: Path,
        config: str = "",
        *,
        more: Mapping[str, Any] | None = None,
        environment: Mapping[str, str] | None = None,
    ) -> None:
        assert ENVIRONMENTS is not None
        super().__init__(
            [python, SCRIPT, "serve", model, config, json.dumps(more or {})],
            log,
            {
                "VLLM_CPU_KVCACHE_SPACE": "1", "VLLM_HOST_IP": "127.0.0.1",
                "VLLM_NO_USAGE_STATS": "1", "HF_HUB_OFFLINE": "1",
                "VLLM_CACHE_ROOT": str(ENVIRONMENTS / "vllm-cache"),
                "VLLM_ENABLE_V1_MULTIPROCESSING": "0", **(environment or {}),
            },
        )  # fmt: skip

    def generate_all(
        self, prompts: Sequence[list[int]], seconds: float = ANSWER_S, **more: Any
    ) -> list[dict[str, Any]]:
        """Return an answer for each prompt."""
        answers: list[dict[str, Any]] = self.ask({"prompts": list(prompts), **more}, seconds)
        return answers

    def generate(self, prompt: list[int], seconds: float = ANSWER_S) -> dict[str, Any]:
        """Return tokens, and how many of the prompt were loaded."""
        (answer,) = self.generate_all([prompt], seconds)
        return {"tokens": answer["tokens"], "loaded": answer["loaded"]}


def ours(address: str, **extra: Any) -> str:
    """Our connector."""
    return json.dumps(
        {
            "kv_connector": "MooncakeStore",
            "kv_role": "kv_both",
            "kv_connector_module_path": "mooncake_store.integrations.vllm.connector",
            "kv_load_failure_policy": "recompute",
            "kv_connector_extra_config": {"master": address, **extra},
        }
    )


def theirs(address: str, folder: Path) -> tuple[str, dict[str, str]]:
    """vLLM's unmodified MooncakeStoreConnector: its configuration, and its variables."""
    settings = folder / "mooncake.json"
    settings.write_text(
        json.dumps(
            {
                "metadata_server": "P2PHANDSHAKE",
                "master_server_address": address,
                "protocol": "tcp",
                "device_name": "",
                "mode": "standalone-store",
                "global_segment_size": 0,
                "local_buffer_size": 64 * MIB,
            }
        )
    )
    config = {
        "kv_connector": "MooncakeStoreConnector",
        "kv_role": "kv_both",
        "kv_load_failure_policy": "recompute",
        "kv_connector_extra_config": {"load_async": True},
    }
    return json.dumps(config), {"MOONCAKE_CONFIG_PATH": str(settings), "PYTHONHASHSEED": "0"}


def made(python: Path, folder: Path, kind: str) -> Path:
    """Make a small model, and return its folder."""
    subprocess.run(
        [str(python), str(SCRIPT), "make", str(folder), kind],
        check=True, capture_output=True, timeout=START_S, env={**os.environ, **variables()},
    )  # fmt: skip
    return folder
