"""How many prefill and how many decode nodes a load needs."""

from __future__ import annotations

import math
from dataclasses import dataclass

from mooncake_store.conductor.decode_time import DecodeTime
from mooncake_store.conductor.prefill_time import PrefillTime
from mooncake_store.errors import RequestError

__all__ = ["Demand", "Plan", "plan_split"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Demand:
    """What a load asks of the cluster, on average.

    Attributes:
        requests_per_s: Arrivals.
        num_tokens: Of a prompt.
        prefix_tokens: Of them cached.
        output_tokens: Of an answer.
    """

    requests_per_s: float
    num_tokens: float
    prefix_tokens: float
    output_tokens: float


@dataclass(frozen=True, slots=True)
class Plan:
    """How many nodes of each kind, and how busy they are then.

    Attributes:
        prefill_nodes: P.
        decode_nodes: D.
        prefill_load: Busy share of the prefill nodes.
        decode_tbt_s: Time of an iteration at the mean batch.
    """

    prefill_nodes: int
    decode_nodes: int
    prefill_load: float
    decode_tbt_s: float


def plan_split(
    demand: Demand,
    *,
    prefill_time: PrefillTime,
    decode_time: DecodeTime,
    capacity_tokens: int,
    tbt_slo_s: float = 0.1,
    prefill_load_max: float = 0.7,
    decode_load_max: float = 0.8,
) -> Plan:
    """Return the smallest numbers of nodes for a load.

    By Little's law: prefill work a second over the load that queues still bear; tokens in decode
    are arrivals times their stay.  Means only: `mooncake-store sim size` tries with a trace.

    Args:
        demand: The load.
        prefill_time: Of a prefill node.
        decode_time: Of a decode node.
        capacity_tokens: KV cache that a decode node has room for.
        tbt_slo_s: What an iteration may take.
        prefill_load_max: At 0.7 the mean wait of an M/D/1 queue is 1.2 services.
        decode_load_max: Share of the TBT's and the memory's bound that the mean may take.

    Raises:
        RequestError: A load that makes no sense, or a TBT that not even one request meets.
    """
    if min(demand.requests_per_s, demand.num_tokens, demand.output_tokens) <= 0:
        raise RequestError("a load has arrivals, prompts and answers above 0")
    work_s = demand.requests_per_s * prefill_time(
        max(1, round(demand.num_tokens)), round(demand.prefix_tokens)
    )
    prefill_nodes = max(1, math.ceil(work_s / prefill_load_max))
    context = demand.num_tokens + demand.output_tokens / 2
    if decode_time(1, round(context)) > tbt_slo_s:
        raise RequestError(f"not even one request decodes in {tbt_slo_s} s a token")
    decode_nodes = 1
    while True:
        tbt_s = _iteration_s(demand, context, decode_nodes, decode_time)
        batch = demand.requests_per_s / decode_nodes * demand.output_tokens * tbt_s
        fits = batch * context <= decode_load_max * capacity_tokens
        if (tbt_s <= decode_load_max * tbt_slo_s and fits) or decode_nodes >= 1 << 20:
            break
        decode_nodes += 1
    return Plan(prefill_nodes, decode_nodes, work_s / prefill_nodes, tbt_s)


def _iteration_s(demand: Demand, context: float, nodes: int, decode_time: DecodeTime) -> float:
    """Solve t = t0 + (kb + kc context) batch, batch = arrivals x output x t, for t."""
    slope = (
        demand.requests_per_s
        / nodes
        * demand.output_tokens
        * (decode_time.per_request_s + decode_time.per_context_token_s * context)
    )
    return decode_time.base_s / (1 - slope) if slope < 1 else math.inf
