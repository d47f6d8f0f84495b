"""The papers' figures and tables, simulated, beside what was published.

F is the FAST'25 paper, A is arXiv 2407.00079.  Absolute times depend on coefficients, cache sizes
and splits that the papers do not give: order and ratios are what can be compared.
"""

from __future__ import annotations

from array import array
from collections import OrderedDict
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from itertools import product
from pathlib import Path
from typing import Any

from mooncake_store.conductor.layerwise import layer_times
from mooncake_store.conductor.pipeline import balanced_chunks, equal_chunks, pipeline_times
from mooncake_store.conductor.prefill_time import LLAMA3_70B_A800
from mooncake_store.conductor.report import Report, report
from mooncake_store.conductor.sim_config import (
    ADMISSIONS,
    EVICTIONS,
    ClusterConfig,
    SimConfig,
    with_policy,
)
from mooncake_store.conductor.simulation import Outcome, simulate
from mooncake_store.conductor.trace import Trace, load_trace
from mooncake_store.errors import ConfigError

__all__ = ["FIGURES", "Chart", "Figure", "Traces", "hit_blocks", "lru_hit_blocks"]


@dataclass(frozen=True, slots=True)
class Chart:
    """What of a table is drawn, by place of the column; a cell's number is what it begins with.

    Attributes:
        y_label: Of the axis, with its unit.
        x: Column along the other axis.
        ys: A line or a set of bars each, by label.
        by: Columns that set rows apart: the labels have their text before them.
        is_bars: Bars and names; else lines and numbers.
        is_log: Both axes of lines, or that of bars.
        part: Which of the numbers of a cell that has several, with a slash between.
    """

    y_label: str
    x: int
    ys: dict[str, int]
    by: tuple[int, ...] = ()
    is_bars: bool = False
    is_log: bool = False
    part: int = 0


@dataclass(frozen=True, slots=True)
class Figure:
    """One figure or table.

    Attributes:
        title: What it is of, and with which parameters.
        header: Of the columns; those that end in "published" are read off the paper.
        rows: Text, as it is shown.
        charts: What is drawn of it.
    """

    title: str
    header: list[str]
    rows: list[list[str]]
    charts: tuple[Chart, ...] = ()


class Traces:
    """The published traces in a folder, each read once.

    Args:
        folder: With `conversation_trace.jsonl` and `synthetic_trace.jsonl`, or both as .xz; the
            arXiv paper's `mooncake_trace.jsonl` is used where it is there.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._loaded: dict[str, Trace] = {}

    def _path(self, name: str) -> Path | None:
        paths = [self._folder / f"{name}_trace.jsonl{end}" for end in ("", ".xz")]
        return next((path for path in paths if path.exists()), None)

    def __contains__(self, name: str) -> bool:
        """Return whether the folder has it."""
        return self._path(name) is not None

    def __getitem__(self, name: str) -> Trace:
        """Return "conversation", "synthetic" or "mooncake".

        Raises:
            ConfigError: It is not in the folder.
        """
        if name not in self._loaded:
            found = self._path(name)
            if found is None:
                raise ConfigError(
                    f"{self._folder / name}_trace.jsonl is missing (plain or .xz)",
                    hint="FAST25-release/traces of github.com/kvcache-ai/Mooncake has them",
                )
            self._loaded[name] = load_trace(found)
        return self._loaded[name]


def _config(
    base: SimConfig,
    policy: str,
    *,
    scheduler: dict[str, Any] | None = None,
    slo: dict[str, Any] | None = None,
    speed: float = 1.0,
    **cluster: Any,
) -> SimConfig:
    """Return what a figure starts from, with its changes; `speed` is on top of the replay's."""
    config = replace(
        base,
        cluster=replace(base.cluster, **cluster),
        slo=replace(base.slo, **slo or {}),
        replay=replace(base.replay, speed=base.replay.speed * speed),
    )
    return with_policy(config, policy, **scheduler or {})


def _nodes(base: SimConfig) -> str:
    return f"{base.cluster.prefill_nodes}P+{base.cluster.decode_nodes}D"


def _run(trace: Trace, config: SimConfig) -> Report:
    return report(simulate(trace, config))


_BY_POLICY = ("TRACE", "POLICY", "MEAN TTFT", "/ GLOBAL", "PUBLISHED", "/ GLOBAL")


def _beside(here: float, base: float, paper: float | None, paper_base: float) -> tuple[str, ...]:
    """Return seconds and their multiple of a base, here and as published."""
    there = (f"{paper:.2f} s", f"{paper / paper_base:.2f}") if paper else ("-", "-")
    return (f"{here:.2f} s", f"{here / base:.2f}", *there)


def _mean_ttft(traces: Traces, base: SimConfig, tell: Callable[[str], None]) -> Figure:
    published = {"random": 19.65, "least-load": 5.27, "local": 3.58, "global": 3.07}
    rows = []
    for name in ("conversation", "synthetic"):
        found = {}
        for policy in (*published, "earliest", "ours"):
            tell(f"{name} {policy}")
            found[policy] = _run(traces[name], _config(base, policy))
        best = found["global"].ttft_s.mean
        for policy, one in found.items():
            paper = published.get(policy) if name == "conversation" else None
            rows.append(
                [
                    name,
                    policy,
                    *_beside(one.ttft_s.mean, best, paper, published["global"]),
                    f"{one.ttft_s.p99:.2f} s",
                    f"{one.hit_tokens:.1%}",
                    f"{one.hit_blocks:.1%}",
                ]
            )
    return Figure(
        f"F figure 5: mean TTFT by policy, {_nodes(base)}, {base.replay.speed:g}x",
        [*_BY_POLICY, "P99", "HIT TOKENS", "HIT BLOCKS"],
        rows,
        (
            Chart("mean TTFT (s)", 1, {"here": 2, "published": 4}, (0,), is_bars=True),
            Chart("hits (% of prompt tokens)", 1, {"": 7}, (0,), is_bars=True),
        ),
    )


def lru_hit_blocks(trace: Trace, capacity_blocks: int) -> float:
    """Return the share of whole blocks that one LRU cache hits: the sequence alone, no times.

    Only leading blocks count: a block behind one that is missing is computed.

    Args:
        trace: What is asked for.
        capacity_blocks: Of the cache.
    """
    cache: OrderedDict[int, None] = OrderedDict()
    hits = 0
    for index in range(len(trace)):
        blocks = trace.blocks[trace.first_block[index] : trace.first_block[index + 1]]
        for block in blocks:
            if block not in cache:
                break
            hits += 1
        for block in reversed(blocks):  # the deepest is the oldest
            cache[block] = None
            cache.move_to_end(block)
        while len(cache) > capacity_blocks:
            cache.popitem(last=False)
    return hits / len(trace.blocks)


def hit_blocks(trace: Trace, eviction: str, capacity_blocks: int) -> float:
    """Return the share of whole blocks that the simulator's cache hits: the sequence alone.

    One prefill node, and each request comes when the one before it has ended.

    Args:
        trace: What is asked for.
        eviction: One of `EVICTIONS`.
        capacity_blocks: Of the cache; 0: without bound.
    """
    count = len(trace)
    apart = replace(
        trace, arrival_s=array("d", [1e4 * i for i in range(count)]), output=array("I", [1] * count)
    )
    block = trace.block_tokens
    plain = with_policy(SimConfig(), "local", eviction=eviction)
    config = replace(
        plain,
        cluster=ClusterConfig(
            prefill_nodes=1, decode_nodes=1, block_tokens=block,
            cache_tokens=capacity_blocks * block,
        ),
        replay=replace(plain.replay, sample_s=0, top_keys=0),
    )  # fmt: skip
    return _run(apart, config).hit_blocks


_TABLE_1 = {
    0: (0.51, 0.51, 0.51),
    100_000: (0.51, 0.51, 0.50),
    50_000: (0.50, 0.49, 0.48),
    30_000: (0.48, 0.43, 0.42),
    10_000: (0.40, 0.35, 0.35),
    1_000: (0.30, 0.30, 0.30),
}
"""A table 1: hits of LRU, LFU and LengthAware by blocks, 0 for no bound; of the arXiv trace."""


def _evictions(traces: Traces, base: SimConfig, tell: Callable[[str], None]) -> Figure:
    rows = []
    for name in ("mooncake", "conversation", "synthetic"):
        if name == "mooncake" and name not in traces:
            continue
        most = 0.0
        for capacity, published in _TABLE_1.items():
            shown = f"{capacity:,}" if capacity else "no bound"
            tell(f"{name} {shown}")
            found = [hit_blocks(traces[name], eviction, capacity) for eviction in EVICTIONS]
            most = most or found[0]
            rows.append(
                [
                    name,
                    shown,
                    *(f"{hit:.1%} ({hit / most if most else 0:.2f})" for hit in found),
                    *(f"{hit:.0%} ({hit / 0.51:.2f})" for hit in published),
                ]
            )
    return Figure(
        "A table 1: hits of one cache by eviction and size, whole blocks of 512 tokens, and over "
        "those without bound (published: of the arXiv trace, mooncake_trace.jsonl)",
        [
            "TRACE",
            "BLOCKS",
            *(eviction.upper() for eviction in EVICTIONS),
            "PUBLISHED LRU",
            "PUBLISHED LFU",
            "PUBLISHED LENGTH-AWARE",
        ],
        rows,
        (
            Chart(
                "hits (% of blocks)",
                1,
                {
                    "lru": 2,
                    "lfu": 3,
                    "length-aware-tail": 4,
                    "length-aware-head": 5,
                    "lru, published": 6,
                    "lfu, published": 7,
                    "length-aware-tail, published": 8,
                },
                (0,),
            ),
        ),
    )


def _arxiv(traces: Traces, base: SimConfig, tell: Callable[[str], None]) -> Figure:
    published = {"random": 92.07, "least-load": 60.41, "local": 14.36, "global": 6.26}
    rows = []
    replays = [("mooncake", 1.0)] if "mooncake" in traces else []
    for name, speed in (*replays, *product(("conversation", "synthetic"), (1.0, 2.0))):
        found: dict[str, tuple[float, float, float]] = {}
        for policy in (*published, "ours"):
            tell(f"{name} {speed:g}x, {policy}")
            config = _config(base, policy, speed=speed)
            replay = simulate(traces[name], config)
            one, ttft = report(replay), replay.column(Outcome.TTFT)
            within = sum(value <= config.slo.ttft_s for value in ttft) / len(ttft)
            found[policy] = one.ttft_s.mean, within, one.ttft_s.max
        best = found["global"][0]
        for policy, (mean, within, most) in found.items():
            paper = published.get(policy)
            rows.append(
                [
                    f"{name} {base.replay.speed * speed:g}x",
                    policy,
                    *_beside(mean, best, paper, published["global"]),
                    f"{within:.1%}",
                    f"{most:.1f} s",
                ]
            )
    return Figure(
        f"A figure 8: mean TTFT by policy, {_nodes(base)} (published: of the arXiv trace at 1x, "
        "mooncake_trace.jsonl; only the last keeps its box plot below the SLO)",
        [*_BY_POLICY, "WITHIN THE TTFT", "MOST"],
        rows,
        (Chart("mean TTFT (s)", 1, {"here": 2, "published": 4}, (0,), is_bars=True, is_log=True),),
    )


def _node_seconds(traces: Traces, base: SimConfig, tell: Callable[[str], None]) -> Figure:
    both: dict[str, Any] = {
        "prefill_nodes": 16, "decode_nodes": 16, "group_nodes": 1, "coupled": True,
    }  # fmt: skip
    on_device = base.cluster.decode_capacity_tokens
    kinds: tuple[tuple[str, str, dict[str, Any]], ...] = (
        ("8P+8D, global", "global", {"prefill_nodes": 8, "decode_nodes": 8}),
        (
            "16 coupled, no cache",
            "least-load",
            {**both, "cache_tokens": base.cluster.block_tokens},
        ),
        ("16 coupled, own cache", "least-load", {**both, "cache_tokens": on_device}),
        ("16 coupled, own cache, local", "local", {**both, "cache_tokens": on_device}),
    )
    published = {
        "conversation": (1.06, (1.0, 1.56, 1.43, None), 1.90),
        "synthetic": (0.73, (1.0, 2.76, 2.59, None), 3.33),
    }
    rows = []
    for name, (mooncake, factors, chunked) in published.items():
        first = 0.0
        for (kind, policy, nodes), factor in zip(kinds, factors, strict=True):
            tell(f"{name} {kind}")
            one = _run(traces[name], _config(base, policy, **nodes))
            first = first or one.prefill_gpu_s_per_request
            rows.append(
                [
                    name,
                    kind,
                    *_beside(
                        one.prefill_gpu_s_per_request, first, factor and mooncake * factor, mooncake
                    ),
                    f"{one.hit_tokens:.1%}",
                ]
            )
        paper = [f"{mooncake * chunked:.2f} s", f"{chunked:.2f}"]
        rows.append([name, "chunked prefill: not modelled", "-", "-", *paper, "-"])
    return Figure(
        "F figure 8: prefill node seconds a request on 16 nodes (published: Mooncake, vLLM, vLLM "
        f"with prefix caching; own cache: {on_device:,} tokens of a node's device)",
        ["TRACE", "NODES", "NODE S A REQUEST", "/ FIRST", "PUBLISHED", "/ FIRST", "HIT TOKENS"],
        rows,
        (Chart("prefill (node s a request)", 1, {"here": 2, "published": 4}, (0,), is_bars=True),),
    )


def _capacity_of_cache(traces: Traces, base: SimConfig, tell: Callable[[str], None]) -> Figure:
    published = {
        "conversation": (0.05, 0.08, 0.09, 0.33, 0.40),
        "synthetic": (0.0, 0.01, 0.15, 0.59, 0.66),
    }
    rows = []
    for name, paper in published.items():
        for tokens, value in zip((10**4, 10**5, 10**6, 10**7, 5 * 10**7), paper, strict=True):
            tell(f"{name} {tokens:,} tokens")
            hit = lru_hit_blocks(traces[name], tokens // traces[name].block_tokens)
            rows.append([name, f"{tokens:,}", f"{hit:.1%}", f"{value:.0%}"])
    return Figure(
        "F figure 9: hits of one LRU cache by its size, whole blocks of 512 tokens",
        ["TRACE", "TOKENS", "HIT BLOCKS", "PUBLISHED"],
        rows,
        (Chart("hits (% of blocks)", 1, {"here": 2, "published": 3}, (0,)),),
    )


def _local_and_global(traces: Traces, base: SimConfig, tell: Callable[[str], None]) -> Figure:
    published = {
        "conversation": ("17 -> 37.5 %", "1.38 -> 1.05"),
        "synthetic": ("26.5 -> 62.5 %", "1.49 -> 0.78"),
    }
    rows = []
    for name, (hits, seconds) in published.items():
        short = replace(traces[name], output=array("I", [1] * len(traces[name])))
        found = []
        for policy in ("local", "global"):
            tell(f"{name} {policy}")
            found.append(_run(short, _config(base, policy, prefill_nodes=10)))
        local, everywhere = found
        rows.append(
            [
                name,
                f"{local.hit_tokens:.1%} -> {everywhere.hit_tokens:.1%}",
                hits,
                " -> ".join(f"{one.prefill_gpu_s_per_request:.2f}" for one in found),
                seconds,
            ]
        )
    return Figure(
        "F figure 10: local against global cache, 10 prefill nodes of 3 M tokens, one token out",
        ["TRACE", "HIT TOKENS", "PUBLISHED", "NODE S A REQUEST", "PUBLISHED"],
        rows,
        (
            Chart(
                "hits of the local cache (% of tokens)",
                0,
                {"here": 1, "published": 2},
                is_bars=True,
            ),
        ),
    )


def _bandwidth(traces: Traces, base: SimConfig, tell: Callable[[str], None]) -> Figure:
    variants: tuple[tuple[str, dict[str, Any]], ...] = (
        ("global", {}),
        ("global", {"compare_costs": True}),
        ("earliest", {}),
    )
    published = {24: 5.0, 40: 2.4, 100: 1.6, 200: 1.4, 400: 1.25}
    rows = []
    for gigabits, paper in published.items():
        tell(f"{gigabits} Gbps")
        nic = gigabits / 8 * 1e9
        one, compared, ours = (
            _run(traces["synthetic"], _config(base, policy, nic_bytes_per_s=nic, scheduler=changes))
            for policy, changes in variants
        )
        rows.append(
            [
                str(gigabits),
                f"{one.ttft_s.mean:.2f} s",
                f"{paper:.2f} s",
                f"{compared.ttft_s.mean:.2f} s",
                f"{ours.ttft_s.mean:.2f} s",
                f"{one.fetch_wait_s.p99:.2f} s",
            ]
        )
    tell("recompute")
    alone = _run(
        traces["synthetic"], _config(base, "least-load", cache_tokens=base.cluster.block_tokens)
    )
    rows.append(["recompute", f"{alone.ttft_s.mean:.2f} s", "2.60 s", "-", "-", "-"])
    return Figure(
        f"F figure 13: mean TTFT by bandwidth, synthetic trace, {_nodes(base)}",
        ["GBPS", "GLOBAL", "PUBLISHED", "COMPARING COSTS", "EARLIEST", "P99 WAIT AT NICS"],
        rows,
        (
            Chart(
                "mean TTFT (s)",
                0,
                {"global": 1, "published": 2, "global, comparing costs": 3, "earliest": 4},
            ),
        ),
    )


def _split(traces: Traces, base: SimConfig, tell: Callable[[str], None]) -> Figure:
    published = (78, 97, 99, 99, 99, 98.5, 86)
    rows = []
    for prefill, paper in zip(range(5, 12), published, strict=True):
        tell(f"{prefill}P{16 - prefill}D")
        one = _run(
            traces["synthetic"],
            _config(
                base,
                "global",
                prefill_nodes=prefill,
                decode_nodes=16 - prefill,
                slo={"ttft_s": 10.0},
            ),
        )
        rows.append(
            [
                f"{prefill}P{16 - prefill}D",
                f"{one.good / one.requests:.1%}",
                f"{paper:g} %",
                f"{one.ttft_s.mean:.2f} s",
                f"{one.tbt_s.mean * 1e3:.0f} ms",
                f"{one.tbt_s.p99 * 1e3:.0f} ms",
            ]
        )
    return Figure(
        "F figure 15: effective requests by split, synthetic trace, TTFT 10 s, TBT 100 ms "
        "(published: TTFT 5.8 s at 5P to 1.2 s at 11P, TBT 31 ms at 11D to 58 ms at 5D)",
        ["SPLIT", "EFFECTIVE", "PUBLISHED", "MEAN TTFT", "MEAN TBT", "P99 TBT"],
        rows,
        (
            Chart("effective requests (%)", 0, {"here": 1, "published": 2}, is_bars=True),
            Chart("mean TTFT (s)", 0, {"": 3}, is_bars=True),
        ),
    )


OVERLOADS: dict[str, dict[str, Any]] = {
    "8D, batches of 10": {"decode_batch_max": 10},
    "4D of 300,000 tokens": {"decode_nodes": 4, "decode_capacity_tokens": 300_000},
    "1D": {"decode_nodes": 1},
}
"""What bounds decoding: A names no limit, and with the defaults 8 nodes never reach one."""


SECOND_LOOKS = ("predicted, met", "early, again", "forecast, again", "forecast, again, margin 1")


def _overload(traces: Traces, base: SimConfig, tell: Callable[[str], None]) -> Figure:
    rows = []
    for limit, cluster in OVERLOADS.items():
        for admission in (*ADMISSIONS[1:], *SECOND_LOOKS):
            tell(f"{limit} {admission}")
            changes: dict[str, Any] = {
                "admission": admission.split(",")[0],
                "decode_time": "met" if "met" in admission else "mean",
                "check_again": "again" in admission,
            }
            if "margin" in admission:
                changes["forecast_margin"] = 1.0
            config = _config(base, "global", speed=2.0, scheduler=changes, **cluster)
            one = _run(traces["conversation"], config)
            rows.append(
                [
                    limit,
                    admission,
                    f"{one.good:,}",
                    f"{one.refused:,}",
                    f"{one.rejected_late:,}",
                    f"{one.wasted_gpu_s:,.0f}",
                    f"{one.prefill_gpu_s:,.0f}",
                    f"{one.prefill_load_deviation:.3f}",
                    f"{one.decode_load_deviation:.3f}",
                    f"{one.load_correlation:+.2f}",
                    f"{one.rejected_length:.2f}",
                ]
            )
    return Figure(
        f"A table 3 and figures 9, 10: overload, conversation trace at {2 * base.replay.speed:g}x, "
        f"{base.cluster.prefill_nodes} prefill nodes "
        "(published rejections of another trace: baseline 4,183, early 3,771, prediction 3,589 of "
        "23,000)",
        [
            "DECODE",
            "ADMISSION",
            "GOOD",
            "REFUSED",
            "LATE",
            "WASTED S",
            "OF",
            "SPREAD PREFILL",
            "SPREAD DECODE",
            "CORRELATION",
            "LENGTH OF REFUSED",
        ],
        rows,
        (
            Chart("prefill wasted (node s)", 1, {"": 5}, (0,), is_bars=True),
            Chart("requests within both SLOs", 1, {"": 2}, (0,), is_bars=True),
        ),
    )


def _pipelines(traces: Traces, base: SimConfig, tell: Callable[[str], None]) -> Figure:
    model, cluster = base.model, base.cluster
    rows = []
    for tokens in (32_768, 131_072):
        for nodes in (1, 2, 4):
            cells = [f"{tokens // 1024}k", str(nodes)]
            for chunks in (4096, 8192):
                for ends in (
                    equal_chunks(tokens, chunk_tokens=chunks),
                    balanced_chunks(tokens, prefill_time=LLAMA3_70B_A800, chunk_tokens=chunks),
                ):
                    times = pipeline_times(
                        ends,
                        nodes=nodes,
                        prefill_time=LLAMA3_70B_A800,
                        hop_s=lambda n: n * model.hop_bytes_per_token / cluster.nic_bytes_per_s,
                    )
                    cells.append(f"{times.first_token_s:.2f} s ({times.bubble:.1%})")
            rows.append(cells)
    return Figure(
        "Chunked pipeline: TTFT (and idle share) of one prompt on X nodes; the papers give none",
        ["TOKENS", "X", "4096 EQUAL", "4096 BALANCED", "8192 EQUAL", "8192 BALANCED"],
        rows,
        (Chart("TTFT (s)", 1, {"4096 equal": 2, "8192 equal": 4, "8192 balanced": 5}, (0,)),),
    )


def _layers(traces: Traces, base: SimConfig, tell: Callable[[str], None]) -> Figure:
    published = {8: 0.11, 16: 0.12, 32: 0.23, 64: 0.42, 128: 0.87}
    rows = []
    for kilotokens, paper in published.items():
        tokens = kilotokens * 1024
        times = layer_times(
            tokens,
            0,
            prefill_s=LLAMA3_70B_A800(tokens),
            layers=base.model.layers,
            kv_bytes_per_token=base.model.kv_bytes_per_token,
            load_bytes_per_s=base.cluster.load_bytes_per_s,
            store_bytes_per_s=base.cluster.store_bytes_per_s,
        )
        serial = times.serial_s - times.layers * times.compute_s
        rows.append(
            [
                f"{kilotokens}k",
                f"{serial:.3f} s",
                f"{paper:.2f} s",
                f"{times.added_s:.3f} s",
                "0.10 s",
            ]
        )
    return Figure(
        "A figure 7: latency that storing the KV cache adds (48 GB/s; the paper's has about 0.1 s "
        "besides)",
        ["TOKENS", "SERIAL", "PUBLISHED", "LAYER BY LAYER", "PUBLISHED"],
        rows,
        (
            Chart(
                "added latency (s)",
                0,
                {
                    "serial": 1,
                    "serial, published": 2,
                    "layer by layer": 3,
                    "layer by layer, published": 4,
                },
                is_log=True,
            ),
        ),
    )


def _coupled(traces: Traces, base: SimConfig, tell: Callable[[str], None]) -> Figure:
    rows = []
    kinds: dict[str, dict[str, Any]] = {
        "10P+10D": {"prefill_nodes": 10, "decode_nodes": 10, "coupled": False},
        "20 coupled": {"prefill_nodes": 20, "decode_nodes": 20, "coupled": True},
    }
    for name, speed in product(("conversation", "synthetic"), (1.0, 2.0)):
        for (kind, nodes), policy in product(kinds.items(), ("least-load", "global")):
            tell(f"{name} {speed:g}x, {kind}, {policy}")
            config = _config(base, policy, speed=speed, **nodes)
            replay = simulate(traces[name], config)
            one, slo = report(replay), config.slo
            tbt = [value for value in replay.column(Outcome.TBT) if value == value]
            mean_gap = [value for value in replay.column(Outcome.TBT_MEAN) if value == value]
            ttft = replay.column(Outcome.TTFT)
            rows.append(
                [
                    f"{name} {base.replay.speed * speed:g}x",
                    f"{kind}, {policy}",
                    f"{sum(value <= slo.ttft_s for value in ttft) / len(ttft):.1%}",
                    f"{sum(value <= slo.tbt_s for value in tbt) / len(tbt):.1%}",
                    f"{sum(value <= slo.tbt_s for value in mean_gap) / len(mean_gap):.1%}",
                    f"{one.good / one.requests:.1%}",
                    f"{one.ttft_s.mean:.2f} s",
                ]
            )
    return Figure(
        "A figure 13: nodes that do one thing each, and nodes that do both (published, another "
        "trace: TTFT about 100 % for both, TBT about 100 % and 57 %)",
        ["TRACE", "NODES", "WITHIN THE TTFT", "WITHIN THE TBT", "BY MEAN GAP", "BOTH", "MEAN TTFT"],
        rows,
        (
            Chart("within the TBT's SLO (%)", 0, {"": 3}, (1,), is_bars=True),
            Chart("mean TTFT (s)", 0, {"": 6}, (1,), is_bars=True),
        ),
    )


def _hot_blocks(traces: Traces, base: SimConfig, tell: Callable[[str], None]) -> Figure:
    rows = []
    instances = base.cluster.prefill_nodes // base.cluster.group_nodes
    first = 2 + instances + base.cluster.decode_nodes
    for gigabytes, policy, (classes, weights), (copies, changes) in product(
        (10, 100), ("global", "ours"), _CLASSES.items(), _COPIES.items()
    ):
        tell(f"{gigabytes} GB/s {policy}, {classes}, {copies}")
        given = {**weights, **changes}
        if "replicate_share" in given:  # of 100 GB/s: blocks of one conversation are read seldom
            given["replicate_share"] *= 100 / gigabytes
        config = _config(base, policy, nic_bytes_per_s=gigabytes * 1e9, scheduler=given)
        replay = simulate(traces["conversation"], config)
        one = report(replay)
        samples = [row for row in replay.samples if row[0] > 300]
        hottest = [row[first] for row in samples]
        most = [max(row[first + key] for row in samples) for key in range(100)]
        rows.append(
            [
                f"{gigabytes} GB/s",
                policy,
                classes,
                copies,
                f"{one.replicated_bytes / 1e12:.2f} TB",
                f"{sum(hottest) / len(hottest):.1f}",
                f"{sum(most) / len(most):.1f}",
                str(sum(n >= instances - 1 for n in most)),
                f"{one.nic_wait_s.p99 * 1e3:.0f}",
                f"{one.fetch_wait_s.p99 * 1e3:.0f}",
                f"{one.ttft_s.mean:.2f} s",
            ]
        )
    return Figure(
        f"F figure 11: replicas of hot blocks on {instances} instances, and the wait for NICs, "
        "conversation trace (after 300 s; published: the 100 hottest reach nearly all)",
        [
            "NIC",
            "POLICY",
            "NIC SHARES",
            "COPIES",
            "AHEAD",
            "REPLICAS OF THE HOTTEST",
            "OF THE 100 AT MOST",
            "ON ALL BUT ONE",
            "NIC WAIT P99 MS",
            "OF FETCHES",
            "MEAN TTFT",
        ],
        rows,
        (
            Chart("p99 of waiting for NICs (ms)", 3, {"": 8}, (0, 1, 2), is_bars=True, is_log=True),
            Chart("hottest 100 blocks: most replicas", 3, {"": 6}, (0, 1, 2), is_bars=True),
        ),
    )


_CLASSES: dict[str, dict[str, Any]] = {
    "equal": {},
    "64:8:1": {"fetch_weight": 8.0, "replica_weight": 0.125},  # as the transfer engine's classes
}
_COPIES: dict[str, dict[str, Any]] = {
    "go first": {"keep_fetched": False},
    "stay": {},
    "ahead": {"replicate_interval_s": 1.0, "replicate_share": 3e-6},
}


def _variants() -> Iterator[tuple[str, str, dict[str, Any]]]:
    for threshold in (1.0, 1.2, 1.5, 2.0, 4.0, 8.0):
        yield f"global, threshold {threshold:g}", "global", {"balancing_threshold": threshold}
    yield "global, comparing costs", "global", {"compare_costs": True}
    yield "global, overlap", "global", {"overlap": True}
    yield "global, planned order", "global", {"order": "planned"}
    yield "earliest", "earliest", {}
    yield "earliest, no overlap", "earliest", {"overlap": False}
    yield "ours", "ours", {}
    yield "ours, aiming at the SLO", "ours", {"target_most": 1.0, "target_gain": 0.0}
    yield "ours, whatever was promised", "ours", {"target_least": 1.0}
    yield "ours, in the order of arrival", "ours", {"order": "fcfs-ready"}
    yield "ours, decode by load alone", "ours", {"stream_weight": 0.0}
    yield "ours, no overlap", "ours", {"overlap": False}
    yield "ours, touching sources", "ours", {"touch_source": True}
    yield "ours, copies go first", "ours", {"keep_fetched": False}
    yield "ours, copying ahead", "ours", {"replicate_interval_s": 1.0}


def _ablation(traces: Traces, base: SimConfig, tell: Callable[[str], None]) -> Figure:
    rows = []
    for label, policy, changes in _variants():
        tell(label)
        cells = [label]
        for name in ("conversation", "synthetic"):
            for speed in (1.0, 1.5, 2.0):
                one = _run(traces[name], _config(base, policy, speed=speed, scheduler=changes))
                cells.append(
                    f"{one.ttft_s.mean:.2f} / {one.ttft_s.p99:.2f} / {one.good / one.requests:.1%}"
                )
        rows.append(cells)
    return Figure(
        "Thresholds and parts of the policies: mean / p99 TTFT (s) / within both SLOs, "
        f"{_nodes(base)}",
        [
            "POLICY",
            *(
                f"{name} {base.replay.speed * speed:g}x"
                for name in ("CONV", "SYNTH")
                for speed in (1, 1.5, 2)
            ),
        ],
        rows,
        tuple(
            Chart(
                f"{label} at {base.replay.speed * 2:g}x", 0, {"conversation": 3, "synthetic": 6},
                is_bars=True, part=part,
            )
            for part, label in enumerate(
                ("mean TTFT (s)", "p99 TTFT (s)", "within both SLOs (%)")
            )
        ),
    )  # fmt: skip


FIGURES: dict[str, Callable[[Traces, SimConfig, Callable[[str], None]], Figure]] = {
    "policies": _mean_ttft,
    "arxiv": _arxiv,
    "cache": _capacity_of_cache,
    "eviction": _evictions,
    "work": _node_seconds,
    "global": _local_and_global,
    "coupled": _coupled,
    "hot": _hot_blocks,
    "bandwidth": _bandwidth,
    "split": _split,
    "overload": _overload,
    "pipeline": _pipelines,
    "layers": _layers,
    "ablation": _ablation,
}
"""By name; each takes seconds."""
