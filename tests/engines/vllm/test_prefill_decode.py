"""Prefill and decode in two engines: vLLM's unmodified MooncakeConnector on our mooncake.engine."""

from __future__ import annotations

import json
import socket
from pathlib import Path
from typing import Any

import pytest

from tests.engines.line_process import TEST_S
from tests.engines.vllm.vllm_process import Known, VllmProcess

pytestmark = [pytest.mark.timeout(TEST_S), pytest.mark.extensive]

PREFILL = "prefill-engine"


def config(role: str, **more: Any) -> str:
    return json.dumps(
        {
            "kv_connector": "MooncakeConnector",
            "kv_role": role,
            "kv_load_failure_policy": "recompute",
            "kv_connector_extra_config": {"mooncake_protocol": "tcp"},
            **more,
        }
    )


def prefill(engine: VllmProcess, prompt: list[int], transfer: str) -> None:
    """Compute a prompt, and keep it for whoever names the transfer."""
    params = {"do_remote_decode": True, "do_remote_prefill": False, "transfer_id": transfer}
    (answer,) = engine.generate_all([prompt], transfers=[params], max_tokens=1)
    assert answer["finish"] == "length"


def test_prefill_and_decode_in_two_engines(
    vllm_python: Path, model: Path, logs: Path, known: Known
) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    variables = {
        "VLLM_MOONCAKE_BOOTSTRAP_PORT": str(port),
        "VLLM_MOONCAKE_ABORT_REQUEST_TIMEOUT": "20",
    }

    def decode(engine: VllmProcess, prompt: list[int], transfer: str) -> dict[str, Any]:
        params = {
            "do_remote_decode": False,
            "do_remote_prefill": True,
            "remote_engine_id": PREFILL,
            "remote_bootstrap_addr": f"http://127.0.0.1:{port}",
            "transfer_id": transfer,
        }
        (answer,) = engine.generate_all([prompt], transfers=[params])
        return answer

    def start(role: str, **more: Any) -> VllmProcess:
        return VllmProcess(
            vllm_python, model, logs / role, config(role, **more),
            more={"names_a_device": True}, environment=variables,
        )  # fmt: skip

    with (
        start("kv_producer", engine_id=PREFILL) as producer,
        start("kv_consumer") as consumer,
    ):
        prefill(producer, known.prompt, "first")
        prefill(producer, known.branch, "second")
        first, second = (
            decode(consumer, known.prompt, "first"),
            decode(consumer, known.branch, "second"),
        )
        assert (first["tokens"], first["finish"]) == (known.first_tokens, "length")
        assert (second["tokens"], second["finish"]) == (known.branch_tokens, "length")
        assert first["loaded"] >= len(known.prompt) - 1
        assert second["loaded"] >= len(known.branch) - 1

        # Another prompt's blocks give other tokens: what is sent is what counts.
        prefill(producer, known.prompt[::-1], "another")
        assert decode(consumer, known.prompt, "another")["tokens"] != known.first_tokens

        # Who prefilled is gone before it has sent: the other one computes by itself.
        prefill(producer, known.prompt, "lost")
        producer.kill()
        lost = decode(consumer, known.prompt, "lost")
        assert (lost["tokens"], lost["finish"]) == (known.first_tokens, "length")
