"""Traces made of a few requests, and configurations to replay them with."""

from __future__ import annotations

from array import array
from dataclasses import replace
from typing import Any

from mooncake_store.conductor.sim_config import SimConfig, with_policy
from mooncake_store.conductor.simulation import Outcome, Replay
from mooncake_store.conductor.trace import Trace

BLOCK = 512


def make(requests: list[tuple[float, int, int, list[int]]]) -> Trace:
    """A trace of (arrival, tokens, output, whole blocks)."""
    first, blocks = array("Q", [0]), array("I")
    for _, _, _, ids in requests:
        blocks.extend(ids)
        first.append(len(blocks))
    return Trace(
        "made",
        array("d", [arrival for arrival, _, _, _ in requests]),
        array("I", [tokens for _, tokens, _, _ in requests]),
        array("I", [output for _, _, output, _ in requests]),
        first,
        blocks,
        max(blocks, default=-1) + 1,
        BLOCK,
    )


def configure(policy: str = "global", **changes: Any) -> SimConfig:
    """A configuration with single fields changed, wherever they stand; transfers cost nothing."""
    base = with_policy(SimConfig(), policy)
    changes = {"loading": "hidden", "transfer_latency_s": 0.0, **changes}
    tables = {}
    for table in ("cluster", "model", "slo", "scheduler", "replay"):
        values = getattr(base, table)
        mine = {name: changes.pop(name) for name in list(changes) if hasattr(values, name)}
        tables[table] = replace(values, **mine)
    assert not changes
    return SimConfig(**tables)


def tight(**changes: Any) -> SimConfig:
    """A cluster in which everything is short: cache, decode, network."""
    setup: dict[str, Any] = {
        "prefill_nodes": 4, "decode_nodes": 2, "cache_tokens": 200_000, "decode_batch_max": 20,
        "nic_bytes_per_s": 5e9, "loading": "layerwise", "transfer_latency_s": 0.001,
        "error_sigma": 0.2, "speed": 2.0,
    }  # fmt: skip
    return configure(**{**setup, **changes})


def column(replay: Replay, outcome: Outcome) -> list[float]:
    return list(replay.column(outcome))
