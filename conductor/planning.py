"""How many prefill and how many decode nodes a load needs."""

from __future__ import annotations

import math
from dataclasses import dataclass

from mooncake_store.conductor.decode_time import DecodeTime
from mooncake_store.conductor.prefill_time import PrefillTime
from mooncake_store.errors import RequestError

__all__ = ["Demand", "Plan", "plan_split"]

_NODES_MAX = 1 << 20
_MOST = 1e9  # requests a second, tokens of a prompt or an answer


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
        prefill_s: Of one node, a request.
        decode_batch: Mean batch of a decode node.
        decode_tokens: Mean context in it.
        bound: What of the decode nodes is scarcest: `tbt`, `memory` or `batch`.
        decode_load: How much of it is taken.
    """

    prefill_nodes: int
    decode_nodes: int
    prefill_load: float
    decode_tbt_s: float
    prefill_s: float
    decode_batch: float
    decode_tokens: float
    bound: str
    decode_load: float


def plan_split(
    demand: Demand,
    *,
    prefill_time: PrefillTime,
    decode_time: DecodeTime,
    capacity_tokens: int,
    batch_max: int = 256,
    group_nodes: int = 1,
    ttft_slo_s: float = 30.0,
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
        batch_max: Requests that it decodes at most.
        group_nodes: Prefill nodes come in groups of so many.
        ttft_slo_s: What the mean prefill may take, were it alone.
        tbt_slo_s: What an iteration may take.
        prefill_load_max: At 0.7 the mean wait of an M/D/1 queue is 1.2 services.
        decode_load_max: Share of the TBT's, the memory's and the batch's bound that the mean may
            take; the rest is for what comes in bunches.

    Raises:
        RequestError: A load that makes no sense, or a TTFT or TBT that no number of nodes meets.
    """
    numbers = (demand.requests_per_s, demand.num_tokens, demand.output_tokens)
    if not all(math.isfinite(number) and number > 0 for number in numbers):
        raise RequestError("a load has arrivals, prompts and answers above 0")
    if max(numbers) > _MOST:
        raise RequestError(f"a load of {max(numbers):g} is beyond what can be planned: {_MOST:g}")
    if not 0 <= demand.prefix_tokens < demand.num_tokens:
        raise RequestError("of a prompt 0 tokens or more are cached, and fewer than it has")
    if not (0 < prefill_load_max < 1 and 0 < decode_load_max <= 1):
        raise RequestError("the most that nodes are busy is above 0, and below 1 of a queue")
    prefill_s = prefill_time(max(1, round(demand.num_tokens)), round(demand.prefix_tokens))
    at_best_s = prefill_s / group_nodes  # what a pipeline loses comes on top
    if at_best_s > ttft_slo_s:
        on_group = f" at best, on a group of {group_nodes} nodes" if group_nodes > 1 else ""
        raise RequestError(
            f"no number of prefill nodes meets {ttft_slo_s:g} s until the first token: one prefill "
            f"alone takes {at_best_s:.3g} s{on_group}"
        )
    work_s = demand.requests_per_s * prefill_s
    groups = max(1, math.ceil(work_s / prefill_load_max / group_nodes))
    prefill_nodes = groups * group_nodes
    context = demand.num_tokens + demand.output_tokens / 2
    alone_s, allowed_s = decode_time(1, round(context)), decode_load_max * tbt_slo_s
    hopeless = (
        f"no number of decode nodes meets {tbt_slo_s:g} s a token: one request alone takes "
        f"{alone_s:.3g} s, and {allowed_s:g} s are for the mean iteration"
    )
    # What is left beside t0 must be more than rounding, else there is no end of nodes.
    if alone_s > tbt_slo_s or allowed_s - decode_time.base_s < 1e-9 * allowed_s:
        raise RequestError(hopeless)
    if context > decode_load_max * capacity_tokens:
        raise RequestError(
            f"one request has {context:,.0f} tokens of context, and {decode_load_max:g} of a "
            f"decode node's {capacity_tokens:,} are for all of them"
        )

    def at(nodes: int) -> Plan:
        tbt_s = _iteration_s(demand, context, nodes, decode_time)
        batch = demand.requests_per_s / nodes * demand.output_tokens * tbt_s
        loads = {
            "tbt": tbt_s / tbt_slo_s,
            "memory": batch * context / capacity_tokens,
            "batch": batch / batch_max,
        }
        bound = max(loads, key=lambda name: loads[name])
        return Plan(
            prefill_nodes, nodes, work_s / prefill_nodes, tbt_s, prefill_s, batch,
            batch * context, bound, loads[bound],
        )  # fmt: skip

    too_few, enough = 0, 1
    while at(enough).decode_load > decode_load_max:
        if enough > _NODES_MAX:
            raise RequestError(hopeless)
        too_few, enough = enough, 2 * enough
    while enough - too_few > 1:
        middle = (too_few + enough) // 2
        if at(middle).decode_load > decode_load_max:
            too_few = middle
        else:
            enough = middle
    return at(enough)


def _iteration_s(demand: Demand, context: float, nodes: int, decode_time: DecodeTime) -> float:
    """Solve t = t0 + (kb + kc context) batch, batch = arrivals x output x t, for t."""
    slope = (
        demand.requests_per_s
        / nodes
        * demand.output_tokens
        * (decode_time.per_request_s + decode_time.per_context_token_s * context)
    )
    return decode_time.base_s / (1 - slope) if slope < 1 else math.inf
