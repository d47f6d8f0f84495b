"""Chunked pipeline parallelism: one long prefill over several nodes, each with some layers."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from mooncake_store.conductor.prefill_time import PrefillTime
from mooncake_store.errors import RequestError

__all__ = ["PREFILL_CHUNK_TOKENS", "PipelineTimes", "balanced_chunks", "equal_chunks",
           "pipeline_times"]  # fmt: skip

PREFILL_CHUNK_TOKENS = 8192
"""The papers say above 1000; long enough that a chunk keeps a node's compute units busy, short
enough that a prompt of 128k tokens fills a pipeline of 4 nodes."""


def equal_chunks(
    num_tokens: int, prefix_tokens: int = 0, *, chunk_tokens: int = PREFILL_CHUNK_TOKENS
) -> list[int]:
    """Return the ends of chunks of equal length, the last one shorter: `[8192, 16384, 20000]`.

    Raises:
        RequestError: Nothing to compute, or no chunk size.
    """
    _check(num_tokens, prefix_tokens, chunk_tokens)
    ends = list(range(prefix_tokens + chunk_tokens, num_tokens, chunk_tokens))
    return [*ends, num_tokens]


def balanced_chunks(
    num_tokens: int,
    prefix_tokens: int = 0,
    *,
    prefill_time: PrefillTime,
    chunk_tokens: int = PREFILL_CHUNK_TOKENS,
) -> list[int]:
    """Return the ends of as many chunks that take equally long: later ones are shorter.

    Attention makes a token dearer the later it stands.  A pipeline waits for its longest chunk on
    every stage, so of all cuts into m chunks the one with equal times ends first.

    Raises:
        RequestError: Nothing to compute, or no chunk size.
    """
    _check(num_tokens, prefix_tokens, chunk_tokens)
    count = math.ceil((num_tokens - prefix_tokens) / chunk_tokens)
    c1, c2 = prefill_time.per_token_s, prefill_time.per_token_pair_s
    begin = c1 * prefix_tokens + c2 * prefix_tokens**2
    whole = c1 * num_tokens + c2 * num_tokens**2 - begin
    ends: list[int] = []
    for index in range(1, count):
        work = begin + whole * index / count
        # The root of c2 x^2 + c1 x = work, in the form that c2 = 0 does not break.
        root = math.sqrt(c1 * c1 + 4 * c2 * work) + c1
        end = round(2 * work / root) if root else prefix_tokens + index
        previous = ends[-1] if ends else prefix_tokens
        ends.append(min(max(end, previous + 1), num_tokens - (count - index)))
    return [*ends, num_tokens]


def _check(num_tokens: int, prefix_tokens: int, chunk_tokens: int) -> None:
    if not 0 <= prefix_tokens < num_tokens:
        raise RequestError(f"0 <= prefix < tokens is needed, not {prefix_tokens}, {num_tokens}")
    if chunk_tokens < 1:
        raise RequestError(f"a chunk has at least one token, not {chunk_tokens}")


@dataclass(frozen=True, slots=True)
class PipelineTimes:
    """What a prefill takes in a pipeline.

    Attributes:
        first_token_s: Until the last chunk has left the last stage.
        stage_free_s: For each stage, when it can begin with the next request.
        work_s: Of all chunks: what one node would take.
    """

    first_token_s: float
    stage_free_s: tuple[float, ...]
    work_s: float

    @property
    def bubble(self) -> float:
        """Share of the stages' time until the end in which they wait."""
        return 1 - self.work_s / (self.first_token_s * len(self.stage_free_s))


def pipeline_times(
    chunk_ends: Sequence[int],
    prefix_tokens: int = 0,
    *,
    nodes: int,
    prefill_time: PrefillTime,
    hop_s: Callable[[int], float] = lambda tokens: 0.0,
    chunk_overhead_s: float = 0.0,
    stage_free_s: Sequence[float] = (),
) -> PipelineTimes:
    """Return when each stage is through with a prefill that may begin at time 0.

    start(j, k) = max(end(j, k-1) + hop, end(j-1, k)); a chunk takes 1/nodes of its time a stage.
    The polynomial's constant is paid once; what each chunk costs beside its tokens is
    `chunk_overhead_s`, so that one stage takes as long as a plain prefill when that is 0.

    Args:
        chunk_ends: From `equal_chunks` or `balanced_chunks`.
        prefix_tokens: Cached tokens before the first chunk.
        nodes: X, stages of equally many layers.
        prefill_time: Of one node that has all layers.
        hop_s: Seconds that a chunk's activations take to the next stage, by its tokens.
        chunk_overhead_s: Beside its tokens, of each chunk.
        stage_free_s: When each stage is free: what runs before.  Empty: now.

    Raises:
        RequestError: No nodes, no chunks or chunks that do not grow.
    """
    if nodes < 1 or not chunk_ends or (stage_free_s and len(stage_free_s) != nodes):
        raise RequestError("a pipeline has at least one node and one chunk")
    free = list(stage_free_s or [0.0] * nodes)
    begin, work = prefix_tokens, 0.0
    for index, end in enumerate(chunk_ends):
        if end <= begin:
            raise RequestError(f"chunks end one after the other, not at {list(chunk_ends)}")
        chunk_s = prefill_time(end, begin) - (prefill_time.base_s if index else 0.0)
        chunk_s += chunk_overhead_s
        work += chunk_s
        ready = 0.0
        for stage in range(nodes):
            ready = max(ready, free[stage]) + chunk_s / nodes
            free[stage] = ready
            if stage + 1 < nodes:
                ready += hop_s(end - begin)
        begin = end
    return PipelineTimes(free[-1], tuple(free), work)
