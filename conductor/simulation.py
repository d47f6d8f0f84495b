"""Replays a trace against a modelled cluster in virtual time."""

from __future__ import annotations

import math
from array import array
from collections.abc import Callable
from dataclasses import asdict, dataclass
from enum import IntEnum
from typing import Any

from mooncake_store._native import ffi, lib
from mooncake_store.conductor.sim_config import (
    ADMISSIONS,
    EVICTIONS,
    HOLDER_TIES,
    LOADINGS,
    ORDERS,
    POOL_LOADS,
    SELECTIONS,
    TABLES,
    TIE_ORDERS,
    SimConfig,
)
from mooncake_store.conductor.trace import Trace
from mooncake_store.config import settings_of
from mooncake_store.errors import ConfigError, InternalError, LimitError

__all__ = ["Outcome", "Replay", "State", "least_prefill_s", "simulate"]

_EVENTS_A_STEP = (
    20_000  # a hundredth of a second: how often progress is told and bounds are looked at
)
_TIMES_MAX = {
    "sample_s": 1_000_000,
    "report_interval_s": 10_000_000,
    "replicate_interval_s": 1_000_000,
}
"""How often something may happen while requests arrive: each time takes memory, or time a node."""


class State(IntEnum):
    """How a request ended."""

    PENDING = 0
    FINISHED = 1
    REJECTED_PREFILL = 2
    """At arrival: no prefill instance would meet the TTFT."""
    REJECTED_DECODE = 3
    """At arrival: the decode pool is, or will be, full."""
    REJECTED_LATE = 4
    """After its prefill, which was wasted."""
    REJECTED_QUEUED = 5
    """Before its prefill, which it had waited for: the decode pool has become full."""


class Outcome(IntEnum):
    """The columns of a replay, in the order of the C enum; seconds, tokens or bytes."""

    STATE = 0
    ARRIVAL = 1
    TTFT = 2
    TTFT_PREDICTED = 3
    QUEUED = 4
    PREFILL = 5
    PREFILL_WORK = 6
    PREFIX_TOKENS = 7
    LOCAL_TOKENS = 8
    FETCH = 9
    FETCH_ALONE = 10
    FETCH_BYTES = 11
    TBT = 12
    TBT_MEAN = 13
    END = 14
    DECODE_WAIT = 15
    PREFILL_INSTANCE = 16
    DECODE_INSTANCE = 17
    TBT_PREDICTED = 18
    MISPREDICTED_TOKENS = 19


@dataclass(frozen=True, slots=True)
class Replay:
    """What a simulation gave.

    Attributes:
        config: What it was told.
        trace: What was replayed.
        columns: One array an `Outcome`, by request; NaN where there is nothing to tell.
        samples: Rows of time, load of each prefill instance, of each decode instance, bytes to be
            sent, replicas of each of the top keys.
        end_s: Virtual time of the last event.
        busy_s: Work of all prefill nodes.
        replicated_bytes: Copied ahead of demand.
        evicted_blocks: From all caches.
    """

    config: SimConfig
    trace: Trace
    columns: tuple[array[float], ...]
    samples: list[list[float]]
    end_s: float
    busy_s: float
    replicated_bytes: float
    evicted_blocks: int

    def column(self, outcome: Outcome) -> array[float]:
        """Return one column."""
        return self.columns[outcome]


def simulate(
    trace: Trace, config: SimConfig, progress: Callable[[float], None] = lambda done: None
) -> Replay:
    """Replay a trace; the same trace, configuration and seed give the same result.

    Args:
        trace: From `load_trace`.
        config: Cluster, model, service levels, policies.
        progress: Called now and then with the share of requests that have arrived.

    Raises:
        ConfigError: Blocks of the trace and of the cluster have different sizes, or a setting is
            no number, or something is to happen more than a million times over the trace.
        LimitError: Not enough memory, or a bound of the replay is reached: what was set makes it
            last for ever.
    """
    if len(trace.blocks) and trace.block_tokens != config.cluster.block_tokens:
        raise ConfigError(
            f"the trace has blocks of {trace.block_tokens} tokens, the cluster of "
            f"{config.cluster.block_tokens}"
        )
    _check_intervals(trace, config)
    native = _native_config(config)
    last_s = trace.arrival_s[-1] / config.replay.speed
    columns: Any = ffi.new("cd_trace *")
    keep = [ffi.from_buffer("double[]", trace.arrival_s)]
    keep += [ffi.from_buffer("uint32_t[]", part) for part in (trace.tokens, trace.output)]
    keep.append(ffi.from_buffer("uint64_t[]", trace.first_block))
    keep.append(ffi.from_buffer("uint32_t[]", trace.blocks or array("I", [0])))
    columns.requests, columns.distinct_blocks = len(trace), trace.distinct_blocks
    columns.arrival_s, columns.tokens, columns.output, columns.first_block, columns.blocks = keep
    handle = lib.cd_sim_open(native, columns)
    if handle == ffi.NULL:
        raise LimitError(f"no memory to simulate {len(trace)} requests")
    events = 0
    try:
        while (more := lib.cd_sim_step(handle, _EVENTS_A_STEP)) > 0:
            events += _EVENTS_A_STEP
            progress(lib.cd_sim_arrived(handle) / len(trace))
            _check_bounds(handle, config, last_s, events)
        if more < 0:
            raise LimitError(f"no memory to simulate {len(trace)} requests")
        _check_bounds(handle, config, last_s, events)
        return _results(handle, trace, config)
    finally:
        lib.cd_sim_close(handle)


def _check_intervals(trace: Trace, config: SimConfig) -> None:
    span_s = trace.arrival_s[-1] / config.replay.speed
    for table in ("replay", "scheduler"):
        for item in settings_of(TABLES[table], table):
            most = _TIMES_MAX.get(item.field)
            every_s = getattr(getattr(config, table), item.field) if most else 0.0
            if most and every_s and span_s / every_s > most:
                raise ConfigError(
                    f"{table}.{item.name} = {item.format(every_s)} is {span_s / every_s:,.0f} "
                    f"times in the {span_s:,.0f} s in which requests arrive, and {most:,} at most",
                    hint=f"{_rounded_up(span_s / most)} or more, or 0 for "
                    + ("loads known at any moment" if "report" in item.name else "never"),
                )


def _rounded_up(seconds: float) -> str:
    """Return a duration as settings are written, not shorter."""
    return f"{math.ceil(seconds * 1000):,}ms" if seconds < 1 else f"{math.ceil(seconds):,}s"


def _check_bounds(handle: Any, config: SimConfig, last_s: float, events: int) -> None:
    """Raise if a replay goes on for longer than anybody wants to know."""
    replay = config.replay
    late_s = lib.cd_sim_now_s(handle) - last_s
    if late_s > replay.drain_max_s:
        raise LimitError(
            f"{replay.drain_max_s:,.0f} s after the last arrival, by the cluster's clock, not all "
            f"requests have ended",
            hint="a setting that makes everything slow (cluster.nic, model.*, --speed)? Else "
            "admit fewer, add nodes, or allow more with --set replay.drain_max=",
        )
    if events > replay.events_max:
        arrived = lib.cd_sim_arrived(handle)
        raise LimitError(
            f"the replay is not through after {replay.events_max:,} events: at "
            f"{lib.cd_sim_now_s(handle):,.0f} s of the cluster's clock, {arrived:,} requests have "
            f"arrived",
            hint="fewer requests (--limit) or longer intervals; --set replay.events_max= "
            "allows more",
        )


def least_prefill_s(trace: Trace, config: SimConfig) -> list[float]:
    """Return the least that each request's prefill can take, whatever the number of groups.

    That is the simulator's own time of a node's work, with all cached that can be.  The nodes of a
    group share it at best; what a pipeline loses, loads and stores come on top.
    """
    native = _native_config(config)  # owns the costs
    cost = ffi.addressof(native.cost)
    return [
        lib.cd_prefill_node_s(cost, tokens, cached)
        for tokens, cached in zip(trace.tokens, trace.reusable_by_request(), strict=True)
    ]


def _results(handle: Any, trace: Trace, config: SimConfig) -> Replay:
    size = len(trace) * 8
    columns = []
    for outcome in Outcome:
        column = array("d")
        column.frombytes(ffi.buffer(lib.cd_sim_column(handle, int(outcome)), size))
        columns.append(column)
    pending = columns[Outcome.STATE].count(float(State.PENDING))
    if pending:
        raise InternalError(f"{pending} simulated requests never ended")
    rows: Any = ffi.new("const double **")
    count, width = lib.cd_sim_samples(handle, rows), lib.cd_sim_sample_width(handle)
    flat = array("d")
    if count:
        flat.frombytes(ffi.buffer(rows[0], count * width * 8))
    return Replay(
        config=config,
        trace=trace,
        columns=tuple(columns),
        samples=[flat[row * width : (row + 1) * width].tolist() for row in range(count)],
        end_s=lib.cd_sim_now_s(handle),
        busy_s=lib.cd_sim_busy_s(handle),
        replicated_bytes=lib.cd_sim_replicated_bytes(handle),
        evicted_blocks=lib.cd_sim_evicted_blocks(handle),
    )


def _breaks(table: str, value: float) -> bool:
    """Return whether the simulator's times would come out as no numbers: it trusts what it is told.

    A policy's bound may be infinite.
    """
    return math.isnan(value) if table == "scheduler" else not math.isfinite(value)


def _native_config(config: SimConfig) -> Any:
    for table in TABLES:
        for name, value in asdict(getattr(config, table)).items():
            if isinstance(value, float) and _breaks(table, value):
                raise ConfigError(f"{table}.{name} is a number, not {value}")
    cluster, model, slo = config.cluster, config.model, config.slo
    scheduler, replay = config.scheduler, config.replay
    native: Any = ffi.new("cd_sim_config *")
    native.prefill_instances = cluster.prefill_nodes // cluster.group_nodes
    native.decode_instances = cluster.decode_nodes
    native.is_coupled = cluster.coupled
    native.block_tokens = cluster.block_tokens
    if cluster.cache_tokens:
        blocks = cluster.cache_tokens * cluster.group_nodes // cluster.block_tokens
        native.cache_blocks = max(1, blocks)
    native.eviction = EVICTIONS.index(scheduler.eviction)
    for cost, bias in ((native.cost, 1.0), (native.believed, scheduler.error_bias)):
        cost.prefill_base_s = model.prefill_base_s * bias
        cost.prefill_token_s = model.prefill_token_us * 1e-6 * bias
        cost.prefill_pair_s = model.prefill_pair_ns * 1e-9 * bias
        cost.decode_base_s = model.decode_base_s
        cost.decode_request_s = model.decode_request_us * 1e-6
        cost.decode_token_s = model.decode_token_ns * 1e-9
        cost.kv_bytes_per_token = model.kv_bytes_per_token
        cost.nic_bytes_per_s = cluster.nic_bytes_per_s
        cost.transfer_latency_s = cluster.transfer_latency_s
        cost.group_nodes = cluster.group_nodes
        cost.chunk_tokens = model.chunk_tokens
        cost.is_balanced = model.chunks == "balanced"
        cost.forgets_queued = not scheduler.count_queued_bytes
    native.error_sigma = scheduler.error_sigma
    native.loading = LOADINGS.index(cluster.loading)
    native.layers = model.layers
    native.load_bytes_per_s = cluster.load_bytes_per_s
    native.store_bytes_per_s = cluster.store_bytes_per_s
    native.hop_bytes_per_token = model.hop_bytes_per_token
    native.selection.rule = SELECTIONS.index(scheduler.selection)
    native.selection.balancing_threshold = scheduler.balancing_threshold
    native.selection.compares_costs = scheduler.compare_costs
    native.selection.overlaps = scheduler.overlap
    native.selection.work_weight = scheduler.work_weight
    native.selection.copy_weight = scheduler.copy_weight
    native.selection.holder_ties = HOLDER_TIES.index(scheduler.holder_ties)
    native.tie_order = TIE_ORDERS.index(scheduler.tie_order)
    native.order = ORDERS.index(scheduler.order)
    native.target.most = scheduler.target_most
    native.target_least = scheduler.target_least
    native.target.miss_share = scheduler.target_miss_share
    native.target.gain = scheduler.target_gain
    native.counts_running = scheduler.count_running
    native.pins_queued = scheduler.pin_queued
    native.keeps_fetched = scheduler.keep_fetched
    native.touches_source = scheduler.touch_source
    native.admission = ADMISSIONS.index(scheduler.admission)
    native.threshold = scheduler.admission_threshold
    native.pool = POOL_LOADS.index(scheduler.pool_load)
    native.averages_prefill = scheduler.prefill_load == "mean"
    native.ttft_slo_s = slo.ttft_s
    native.decode.tbt_slo_s = slo.tbt_s
    native.decode.capacity_tokens = cluster.decode_capacity_tokens
    native.decode.batch_max = cluster.decode_batch_max
    native.decode.stream_weight = scheduler.stream_weight
    native.decode_s_initial = scheduler.decode_time_initial_s
    native.weighs_decode_s = scheduler.decode_time == "met"
    native.output_initial = scheduler.output_initial
    patience_s = math.inf if scheduler.admission == "all" else scheduler.decode_patience_s
    native.decode_patience_s = patience_s
    native.is_length_neutral = scheduler.admit_length == "mean"
    native.report_s = scheduler.report_interval_s
    native.counts_decided = scheduler.count_decided
    native.checks_again = scheduler.check_again
    native.margin = scheduler.forecast_margin
    native.fetch_weight = scheduler.fetch_weight
    native.replica_weight = scheduler.replica_weight
    native.hotspot_interval_s = scheduler.replicate_interval_s
    native.hotspot_share = scheduler.replicate_share
    native.hotspot_bytes_per_s = scheduler.replicate_bytes_per_s
    native.speed = replay.speed
    native.seed = replay.seed
    native.sample_s = replay.sample_s
    native.top_keys = replay.top_keys
    return native
