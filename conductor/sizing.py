"""How many nodes and how much DRAM a trace needs: found by simulation."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial

from mooncake_store.conductor.report import Report, report
from mooncake_store.conductor.sim_config import SimConfig
from mooncake_store.conductor.simulation import least_prefill_s, simulate
from mooncake_store.conductor.trace import Trace
from mooncake_store.errors import RequestError

__all__ = ["NODES_MAX", "OutOfReach", "Size", "sizes"]

NODES_MAX = 512


@dataclass(frozen=True, slots=True)
class Size:
    """The smallest cluster for one size of cache.

    Attributes:
        cache_tokens: Of a prefill node; 0: without bound.
        dram_bytes: The same in bytes.
        prefill_nodes: P.
        decode_nodes: D.
        attainment: Share of all requests within both SLOs.
        report: Of that cluster.
    """

    cache_tokens: int
    dram_bytes: int
    prefill_nodes: int
    decode_nodes: int
    attainment: float
    report: Report


@dataclass(frozen=True, slots=True)
class OutOfReach:
    """A size of cache for which no number of nodes that may be tried meets the target.

    Attributes:
        cache_tokens: Of a prefill node; 0: without bound.
        dram_bytes: The same in bytes.
        attainment_best: The best share that was reached; None: nothing was tried, as
            `attainment_max` is below the target.
        attainment_max: No cluster reaches more.
        too_long: Requests that alone, on an idle cluster that has cached all that can be, take
            longer than the TTFT's SLO.
        ttft_s_least: The least SLO of the TTFT with which they leave room for the target.
    """

    cache_tokens: int
    dram_bytes: int
    attainment_best: float | None
    attainment_max: float
    too_long: int
    ttft_s_least: float


def _smallest(meets: Callable[[int], bool], most: int) -> int | None:
    """Return the least number that meets it, if more never hurts; None: not even the most."""
    high = 1
    while not meets(high):
        if high >= most:
            return None
        high = min(2 * high, most)
    low = high // 2  # fails, or is 0
    while high - low > 1:
        middle = (low + high) // 2
        if meets(middle):
            high = middle
        else:
            low = middle
    return high


def _meets(
    attained: Callable[[int, int], tuple[float, Report]], groups: int, target: float, decode: int
) -> bool:
    return attained(groups, decode)[0] >= target


def sizes(
    trace: Trace,
    config: SimConfig,
    *,
    target: float,
    cache_tokens: tuple[int, ...],
    progress: Callable[[str], None] = lambda step: None,
) -> Iterator[Size | OutOfReach]:
    """Yield for each size of cache the smallest cluster, or why `NODES_MAX` are too few.

    Where the requests that alone take too long are too many already nothing is searched (with
    `error_sigma` a prefill may take less than its work, so that it is).

    First the prefill nodes beside plenty of decode nodes, then the decode nodes beside those; more
    nodes are taken to do no harm, which short traces break now and then by a request or two.

    Args:
        trace: What the cluster has to serve.
        config: Everything else; its numbers of nodes do not count.
        target: Share of requests that meet both SLOs, 0 to 1.
        cache_tokens: Of a prefill node, to try.
        progress: Told what is tried.

    Raises:
        RequestError: A target that is no share.
    """
    if not 0 < target <= 1:
        raise RequestError(f"a target is a share above 0 and at most 1, not {target}")
    group = config.cluster.group_nodes
    # A cluster that is too small may take for ever: that it misses the target is enough.
    replay = replace(config.replay, sample_s=0, top_keys=0, drain_max_s=1e18)
    quiet = replace(config, replay=replay)

    has_bound = config.scheduler.error_sigma == 0
    alone_s = sorted(least_prefill_s(trace, config)) if has_bound else [0.0] * len(trace)
    too_long = sum(one > config.slo.ttft_s for one in alone_s)
    most_share = 1 - too_long / len(trace)
    least_s = alone_s[max(math.ceil(target * len(trace)) - 1, 0)]
    best = 0.0

    def out_of_reach(cache: int, reached: float | None) -> OutOfReach:
        dram_bytes = cache * config.model.kv_bytes_per_token
        return OutOfReach(cache, dram_bytes, reached, most_share, too_long, least_s)

    for cache in cache_tokens:
        best = 0.0
        if least_s > config.slo.ttft_s:
            yield out_of_reach(cache, None)
            continue

        def attained(groups: int, decode: int, cache: int = cache) -> tuple[float, Report]:
            nonlocal best
            progress(f"{groups * group}P+{decode}D, {cache:,} tokens")
            cluster = replace(
                config.cluster,
                prefill_nodes=groups * group,
                decode_nodes=decode,
                cache_tokens=cache,
            )
            found = report(simulate(trace, replace(quiet, cluster=cluster)))
            best = max(best, found.good / found.requests)
            return found.good / found.requests, found

        most = NODES_MAX // group
        groups = _smallest(lambda groups: attained(groups, NODES_MAX)[0] >= target, most)
        if groups is None:
            yield out_of_reach(cache, best)
            continue
        while True:  # fewer decode nodes may cost what one prefill group more brings
            meets = partial(_meets, attained, groups, target)
            decode = _smallest(meets, NODES_MAX)
            if decode is not None or groups >= most:
                break
            groups += 1
        if decode is None:
            yield out_of_reach(cache, best)
            continue
        share, found = attained(groups, decode)
        dram_bytes = cache * config.model.kv_bytes_per_token
        yield Size(cache, dram_bytes, groups * group, decode, share, found)
