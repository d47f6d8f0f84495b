"""Settings of an engine."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from mooncake_store._native import ffi, lib
from mooncake_store.transfer_engine.priority import CLASS_WEIGHTS, parse_class_weights

__all__ = ["EngineConfig", "c_config"]


@dataclass(frozen=True, slots=True)
class EngineConfig:
    """Settings of an engine; 0 means the default of C (transfer_engine/include/te.h).

    Attributes:
        io_threads: Threads that serve peers; None for the default, 0 for an engine that only asks.
        worker_threads: Threads that carry batches and second halves of large copies.
        stream_copy_bytes: Copies from this size pass the caches by.
        helper_copy_bytes: Copies from this size use a second thread.
        stall_timeout_s: A frame that a peer has begun must end within this.
        class_weights: How the priorities share, `("urgent=64", "prefetch=2")`; what is not named
            keeps its default.
    """

    io_threads: int | None = None
    worker_threads: int = 0
    stream_copy_bytes: int = 0
    helper_copy_bytes: int = 0
    stall_timeout_s: float = 0.0
    class_weights: tuple[str, ...] = CLASS_WEIGHTS


def c_config(config: EngineConfig) -> Any:
    made: Any = ffi.new("te_engine_config *")
    lib.te_engine_config_default(made)
    if config.io_threads is not None:
        made.io_threads = config.io_threads
    for name in ("worker_threads", "stream_copy_bytes", "helper_copy_bytes"):
        if value := getattr(config, name):
            setattr(made, name, value)
    made.class_weights = parse_class_weights(config.class_weights)
    if config.stall_timeout_s:
        made.stall_timeout_ms = int(config.stall_timeout_s * 1000)
    return made
