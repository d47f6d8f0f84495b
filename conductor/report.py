"""What a replay says, in numbers."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from mooncake_store.conductor.simulation import Outcome, Replay, State

__all__ = ["Distribution", "Report", "correlation", "pool_loads", "report", "without_nan"]


@dataclass(frozen=True, slots=True)
class Distribution:
    """Of one quantity over requests; NaN of none."""

    mean: float
    p50: float
    p90: float
    p99: float
    max: float

    @classmethod
    def of(cls, values: Sequence[float]) -> Distribution:
        """Return the distribution of values, by nearest rank."""
        if not values:
            return cls(*[math.nan] * 5)
        ordered = sorted(values)

        def rank(share: float) -> float:
            return ordered[max(0, math.ceil(share * len(ordered)) - 1)]

        mean = math.fsum(ordered) / len(ordered)
        return cls(mean, rank(0.5), rank(0.9), rank(0.99), ordered[-1])


@dataclass(frozen=True, slots=True)
class Report:
    """One replay in numbers.

    Attributes:
        requests: In the trace.
        finished: To the last token.
        rejected_prefill: At arrival, for the TTFT.
        rejected_decode: At arrival, for the decode pool.
        rejected_queued: After a wait, before the prefill, for the decode pool.
        rejected_late: After a prefill that was wasted.
        good: Finished within both SLOs.
        goodput_per_s: Of them a second of the trace; NaN of one moment.
        ttft_s: Of all that were prefilled.
        tbt_s: Of finished ones: each one's mean of its longest tenth.
        queue_s: Until the prefill began.
        hit_tokens: Share of prompt tokens that were not computed.
        hit_tokens_local: ... that the instance itself had.
        hit_blocks: Share of whole blocks that were hits.
        hit_tokens_max: What one cache without bound would hit.
        prefill_gpu_s: Work of the prefill nodes.
        prefill_gpu_s_per_request: Of those that were prefilled.
        wasted_gpu_s: Of it for requests that were rejected late.
        prefill_busy: Share of the prefill nodes' time, over the trace's span; NaN of one moment.
        fetched_bytes: Between prefill nodes, for a request.
        fetch_wait_s: What fetches took beyond an idle network's time.
        nic_wait_s: The same of all that were prefilled, 0 where nothing was fetched: copies save
            fetches, and those that are left say nothing of it.
        replicated_bytes: Ahead of demand.
        mispredicted_tokens: Promised from a cache that did not have them any more.
        prefill_load: Mean over instances and samples.
        prefill_load_deviation: Standard deviation over time of the instances' mean.
        decode_load: As above, of decode instances.
        decode_load_deviation: As above.
        load_correlation: Of the two over time; below 0 they swing against each other.
        rejected_length: Mean prompt of those rejected before a prefill, over the trace's mean.
        top_replicas: Mean replicas of the top keys at the end.
    """

    requests: int
    finished: int
    rejected_prefill: int
    rejected_decode: int
    rejected_queued: int
    rejected_late: int
    good: int
    goodput_per_s: float
    ttft_s: Distribution
    tbt_s: Distribution
    queue_s: Distribution
    hit_tokens: float
    hit_tokens_local: float
    hit_blocks: float
    hit_tokens_max: float
    prefill_gpu_s: float
    prefill_gpu_s_per_request: float
    wasted_gpu_s: float
    prefill_busy: float
    fetched_bytes: float
    fetch_wait_s: Distribution
    nic_wait_s: Distribution
    replicated_bytes: float
    mispredicted_tokens: float
    prefill_load: float
    prefill_load_deviation: float
    decode_load: float
    decode_load_deviation: float
    load_correlation: float
    rejected_length: float
    top_replicas: float

    @property
    def refused(self) -> int:
        """How many were rejected before a prefill."""
        return self.rejected_prefill + self.rejected_decode + self.rejected_queued

    def document(self) -> dict[str, Any]:
        """Return it for JSON; what is not known is None."""
        from dataclasses import asdict

        return without_nan(asdict(self))


def without_nan(values: dict[str, Any]) -> dict[str, Any]:
    """Return a document with None for what JSON has no number for."""
    return {
        name: without_nan(value)
        if isinstance(value, dict)
        else None
        if isinstance(value, float) and not math.isfinite(value)
        else value
        for name, value in values.items()
    }


def _mean(values: Sequence[float]) -> float:
    return math.fsum(values) / len(values) if values else math.nan


def _deviation(values: Sequence[float]) -> float:
    mean = _mean(values)
    return math.sqrt(_mean([(value - mean) ** 2 for value in values])) if values else math.nan


def correlation(left: Sequence[float], right: Sequence[float]) -> float:
    """Return Pearson's correlation; NaN if one of them never changes."""
    a, b = _mean(left), _mean(right)
    spread = _deviation(left) * _deviation(right)
    if not left or spread < 1e-12:
        return math.nan
    return _mean([(x - a) * (y - b) for x, y in zip(left, right, strict=True)]) / spread


def pool_loads(replay: Replay) -> tuple[list[float], list[float], list[float]]:
    """Return times and the mean load of both pools, from the samples while requests arrive."""
    prefill = replay.config.cluster.prefill_nodes // replay.config.cluster.group_nodes
    decode = replay.config.cluster.decode_nodes
    last_s = replay.trace.arrival_s[-1] / replay.config.replay.speed
    rows = [row for row in replay.samples if row[0] <= last_s]
    return (
        [row[0] for row in rows],
        [_mean(row[1 : 1 + prefill]) for row in rows],
        [_mean(row[1 + prefill : 1 + prefill + decode]) for row in rows],
    )


def report(replay: Replay) -> Report:
    """Return a replay's numbers."""
    trace, slo = replay.trace, replay.config.slo
    states = [State(int(state)) for state in replay.column(Outcome.STATE)]
    ttft, tbt = replay.column(Outcome.TTFT), replay.column(Outcome.TBT)
    prefix, local = replay.column(Outcome.PREFIX_TOKENS), replay.column(Outcome.LOCAL_TOKENS)
    work, missing = replay.column(Outcome.PREFILL_WORK), replay.column(Outcome.MISPREDICTED_TOKENS)
    prefilled = [i for i, value in enumerate(ttft) if not math.isnan(value)]
    finished = [i for i, state in enumerate(states) if state is State.FINISHED]
    late = [i for i, state in enumerate(states) if state is State.REJECTED_LATE]
    early = [
        i
        for i, state in enumerate(states)
        if state in (State.REJECTED_PREFILL, State.REJECTED_DECODE, State.REJECTED_QUEUED)
    ]
    good = [i for i in finished if ttft[i] <= slo.ttft_s and not tbt[i] > slo.tbt_s]
    span_s = trace.span_s / replay.config.replay.speed or math.nan  # no rates of one moment
    tokens = math.fsum(trace.tokens[i] for i in prefilled)
    blocks = sum(trace.tokens[i] // trace.block_tokens for i in prefilled)
    used = [prefix[i] - missing[i] for i in prefilled]
    hit_blocks = sum(-(-int(value) // trace.block_tokens) for value in used)
    fetches = [i for i in prefilled if not math.isnan(replay.column(Outcome.FETCH)[i])]
    fetch, alone = replay.column(Outcome.FETCH), replay.column(Outcome.FETCH_ALONE)
    waits = [max(0.0, fetch[i] - alone[i]) for i in fetches]
    _, prefill_loads, decode_loads = pool_loads(replay)
    mean_length = _mean(trace.tokens)
    first_top = (
        2
        + replay.config.cluster.prefill_nodes // replay.config.cluster.group_nodes
        + replay.config.cluster.decode_nodes
    )
    total_work = math.fsum(work)
    return Report(
        requests=len(trace),
        finished=len(finished),
        rejected_prefill=states.count(State.REJECTED_PREFILL),
        rejected_decode=states.count(State.REJECTED_DECODE),
        rejected_queued=states.count(State.REJECTED_QUEUED),
        rejected_late=len(late),
        good=len(good),
        goodput_per_s=len(good) / span_s,
        ttft_s=Distribution.of([ttft[i] for i in prefilled]),
        tbt_s=Distribution.of([tbt[i] for i in finished if not math.isnan(tbt[i])]),
        queue_s=Distribution.of([replay.column(Outcome.QUEUED)[i] for i in prefilled]),
        hit_tokens=math.fsum(used) / tokens if tokens else math.nan,
        hit_tokens_local=math.fsum(min(local[i], used[k]) for k, i in enumerate(prefilled)) / tokens
        if tokens
        else math.nan,
        hit_blocks=hit_blocks / blocks if blocks else math.nan,
        hit_tokens_max=trace.reusable_tokens / sum(trace.tokens),
        prefill_gpu_s=total_work,
        prefill_gpu_s_per_request=total_work / len(prefilled) if prefilled else math.nan,
        wasted_gpu_s=math.fsum(work[i] for i in late),
        prefill_busy=replay.busy_s / (replay.config.cluster.prefill_nodes * span_s),
        fetched_bytes=math.fsum(replay.column(Outcome.FETCH_BYTES)),
        fetch_wait_s=Distribution.of(waits),
        nic_wait_s=Distribution.of([*waits, *[0.0] * (len(prefilled) - len(waits))]),
        replicated_bytes=replay.replicated_bytes,
        mispredicted_tokens=math.fsum(missing),
        prefill_load=_mean(prefill_loads),
        prefill_load_deviation=_deviation(prefill_loads),
        decode_load=_mean(decode_loads),
        decode_load_deviation=_deviation(decode_loads),
        load_correlation=correlation(prefill_loads, decode_loads),
        rejected_length=_mean([trace.tokens[i] for i in early]) / mean_length,
        top_replicas=_mean(replay.samples[-1][first_top:]) if replay.samples else math.nan,
    )
