"""What a simulation is told: cluster, model, service levels and policies."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from mooncake_store.config import load, read_file, setting, settings_of
from mooncake_store.errors import ConfigError

__all__ = [
    "ADMISSIONS",
    "EVICTIONS",
    "HOLDER_TIES",
    "LOADINGS",
    "ORDERS",
    "POLICIES",
    "POOL_LOADS",
    "SELECTIONS",
    "TABLES",
    "TIE_ORDERS",
    "SimConfig",
    "cluster_example",
    "with_policy",
]

SELECTIONS = ("random", "least-time", "least-count", "local", "global", "earliest")
"""In the order of the C enum."""
ADMISSIONS = ("all", "baseline", "early", "predicted", "oracle", "forecast")
"""In the order of the C enum."""
EVICTIONS = ("lru", "lfu", "length-aware-tail", "length-aware-head")
ORDERS = ("fcfs", "fcfs-ready", "planned")
HOLDER_TIES = ("queue", "egress", "first")
"""In the order of the C enum."""
TIE_ORDERS = ("round", "drawn", "first")
"""In the order of the C enum."""
POOL_LOADS = ("rule", "mean", "least", "most")
"""In the order of the C enum."""
LOADINGS = ("hidden", "serial", "layerwise")


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterConfig:
    """[cluster]: the machines."""

    prefill_nodes: int = setting(8, "nodes that prefill", minimum=1, maximum=1024)
    decode_nodes: int = setting(8, "nodes that decode", minimum=1, maximum=1024)
    group_nodes: int = setting(
        1, "prefill nodes that share a long prompt as a pipeline (X of chunked pipeline "
        "parallelism); prefill_nodes is a multiple of it", minimum=1, maximum=64,
    )  # fmt: skip
    coupled: bool = setting(
        False, "each node both prefills and decodes, as engines without disaggregation do: an "
        "iteration, then a prompt that waits, and so on; prefill_nodes and decode_nodes are the "
        "same ones, and so as many",
    )  # fmt: skip
    cache_tokens: int = setting(
        3_000_000, "tokens of KV cache that the DRAM of a prefill node holds (3 M is 1 TB for "
        "LLaMA3-70B); 0: without bound", minimum=0, maximum=2**50,
    )  # fmt: skip
    block_tokens: int = setting(
        512, "tokens of a block; the published traces have 512", minimum=1, maximum=65536
    )
    nic_bytes_per_s: float = setting(
        100e9, "bandwidth of a node's network, each way: 100 GB is 800 Gbps", minimum=1
    )
    transfer_latency_s: float = setting(0.001, "of a transfer, whatever its size", minimum=0)
    load_bytes_per_s: float = setting(
        128e9, "host to device, for a cached prefix; Table 1", minimum=1
    )
    store_bytes_per_s: float = setting(
        48e9, "device to host, for new blocks: about figure 7 of arXiv 2407.00079", minimum=1
    )
    loading: str = setting(
        "layerwise", "how loads and stores overlap computation; hidden: they cost nothing",
        choices=LOADINGS,
    )  # fmt: skip
    decode_capacity_tokens: int = setting(
        1_300_000, "tokens of KV cache that a decode node has room for: 8 x 80 GB x 0.9 less the "
        "weights of 70 B parameters", minimum=1, maximum=2**50,
    )  # fmt: skip
    decode_batch_max: int = setting(
        256, "requests in a decode batch; the papers give no limit", minimum=1, maximum=2**30
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelConfig:
    """[model]: how long things take.  Defaults: LLaMA3-70B on 8 A800, fitted to the papers."""

    prefill_base_s: float = setting(
        0.0, "constant of the prefill polynomial", minimum=0, maximum=1e6
    )
    prefill_token_us: float = setting(
        115.0, "microseconds per computed token (c1)", minimum=0, maximum=1e9
    )
    prefill_pair_ns: float = setting(
        0.733, "nanoseconds per n^2 - p^2 (c2), of attention", minimum=0, maximum=1e9
    )
    decode_base_s: float = setting(
        0.027, "of an iteration, whatever the batch", minimum=0, maximum=1e6
    )
    decode_request_us: float = setting(
        0.0, "microseconds per request of the batch", minimum=0, maximum=1e9
    )
    decode_token_ns: float = setting(
        40.0, "nanoseconds per token of context in the batch; the papers' figures give 30 to 55",
        minimum=0, maximum=1e9,
    )  # fmt: skip
    kv_bytes_per_token: int = setting(327_680, "over all layers", minimum=1, maximum=2**40)
    layers: int = setting(80, "of the model", minimum=1, maximum=2**20)
    hop_bytes_per_token: int = setting(
        16_384, "activations of a token between the stages of a pipeline: width x 2", minimum=0,
        maximum=2**40,
    )  # fmt: skip
    chunk_tokens: int = setting(
        8192, "prefill_chunk; the papers say above 1000", minimum=1, maximum=1 << 30
    )
    chunks: str = setting(
        "balanced", "how a prompt is cut for a pipeline", choices=("equal", "balanced")
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class SloConfig:
    """[slo]: what a request wants."""

    ttft_s: float = setting(30.0, "until the first token; of the papers", minimum=0.001)
    tbt_s: float = setting(
        0.1, "between tokens: mean of a request's longest tenth; of the papers", minimum=0.0001
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class SchedulerConfig:
    """[scheduler]: the policies and what they believe."""

    policy: str = setting(
        "global", "a named set of the settings below; what is set beside it beats it"
    )
    selection: str = setting("global", "choice of the prefill instance", choices=SELECTIONS)
    balancing_threshold: float = setting(
        1.5, "kvcache_balancing_threshold of Algorithm 1: fetch if the best prefix is longer by "
        "more than this factor; the paper's value is not published", minimum=1,
    )  # fmt: skip
    compare_costs: bool = setting(
        False, "Algorithm 1 fetches only where that takes less than computing; its authors do not"
    )
    holder_ties: str = setting(
        "queue", "Algorithm 1: which of several instances with the longest prefix is fetched from: "
        "the one with the shortest queue, as it is the likeliest to be chosen itself, which needs "
        "no fetch; with the least to send (egress), so that one NIC does not bear all; or the "
        "first; the papers do not say", choices=HOLDER_TIES,
    )  # fmt: skip
    tie_order: str = setting(
        "round", "where the search for an instance begins, for the first of equals is taken: one "
        "further with each request, drawn, or at the first instance, which then collects all ties, "
        "and at low load nearly everything is one; the papers do not say", choices=TIE_ORDERS,
    )  # fmt: skip
    count_queued_bytes: bool = setting(
        True,
        "a transfer is predicted to wait for what its sender has to send: the papers stress "
        "congestion there, and do not say how it is predicted",
    )
    overlap: bool = setting(
        False, "count on a transfer to run while the request waits; the paper adds the two"
    )
    work_weight: float = setting(
        0.0, "earliest: seconds of TTFT that a second of computing counts as: it also delays "
        "whoever comes after", minimum=0,
    )  # fmt: skip
    copy_weight: float = setting(
        0.0, "earliest: the same of a second of transfer: a copy takes cache from others", minimum=0
    )
    order: str = setting("fcfs", "of an instance's queue", choices=ORDERS)
    target_most: float = setting(
        0.6, "planned: share of the TTFT's SLO that the queues aim at when much waits; who cannot "
        "have it may take the whole SLO", minimum=0.02, maximum=1,
    )  # fmt: skip
    target_least: float = setting(
        0.75, "planned: share of the aim below which nobody's wait matters; who would have been "
        "served by then in the order of arrival may be let wait for so long, and nobody else for "
        "longer than in that order", minimum=0, maximum=1,
    )  # fmt: skip
    target_miss_share: float = setting(
        0.01, "planned: the aim falls until so many miss it: 0.01 looks after the p99",
        minimum=0, maximum=1,
    )  # fmt: skip
    target_gain: float = setting(
        0.1, "planned: how far one miss moves the aim (of its logarithm); 0: it stays where it is",
        minimum=0, maximum=1,
    )  # fmt: skip
    count_running: bool = setting(
        True, "the queue time has the rest of the running request in it; the papers do not say"
    )
    pin_queued: bool = setting(True, "what a queued request will read is not evicted")
    keep_fetched: bool = setting(
        True, "fetched copies stay as long as any block: so hot blocks spread"
    )
    touch_source: bool = setting(True, "a fetch counts as a use where it is fetched from")
    eviction: str = setting("lru", "of the prefill nodes' caches", choices=EVICTIONS)
    admission: str = setting("all", "who is refused, and when", choices=ADMISSIONS)
    admission_threshold: float = setting(
        1.0, "load above which requests are refused; at 1.0 the SLO is just met", minimum=0.001,
    )  # fmt: skip
    prefill_load: str = setting(
        "chosen", "which load of the prefill pool admission looks at: the TTFT at the instance "
        "that is chosen, since there the request would wait, or that with the mean of all queues, "
        "which one idle instance does not bring to 0; the papers do not say",
        choices=("chosen", "mean"),
    )  # fmt: skip
    pool_load: str = setting(
        "rule", "which load of the decode instances admission looks at: their mean, as A spells it "
        "out for its prediction; that of the least loaded, since a request goes there; or of the "
        "most. rule: the mean, and the least with oracle and forecast, which know each "
        "instance's", choices=POOL_LOADS,
    )  # fmt: skip
    decode_time_initial_s: float = setting(
        10.0, "t_d before any request has finished; then the running mean", minimum=0
    )
    decode_time: str = setting(
        "mean", "predicted: t_d, the running mean of decode times; met: of those that a batch is "
        "made of, in which each counts as long as it stays", choices=("mean", "met"),
    )  # fmt: skip
    output_initial: int = setting(
        256, "expected answer before any has finished", minimum=1, maximum=2**24
    )
    decode_patience_s: float = setting(
        0.0, "how long a request that finds its decode node full waits for room before it is "
        "rejected there; admission `all` waits for ever", minimum=0,
    )  # fmt: skip
    stream_weight: float = setting(
        0.0, "choice of the decode instance: what the wait for its NIC counts beside its load, as "
        "a share of the TBT's SLO: the second token waits for what of the prompt still streams; "
        "0: load alone, as in the papers", minimum=0,
    )  # fmt: skip
    forecast_margin: float = setting(
        0.5, "forecast: standard deviations that the decode batch may exceed its forecast; 1 "
        "wastes less prefill, at 0.5 more requests are through", minimum=0,
    )  # fmt: skip
    check_again: bool = setting(
        False, "before a prefill begins the decode instance is chosen anew, and who would be "
        "refused by then is refused: that wastes nothing but its wait",
    )  # fmt: skip
    admit_length: str = setting(
        "own", "for which length the look at the decode pool is taken: own, or that of the mean "
        "prompt, so that nobody is refused for the length of his: fairer, and more is wasted",
        choices=("own", "mean"),
    )  # fmt: skip
    report_interval_s: float = setting(
        0.0, "how often instances tell their load: between two reports decisions go by the last "
        "one; 0: loads are known at any moment", minimum=0,
    )  # fmt: skip
    count_decided: bool = setting(
        True, "between two reports what was decided since counts, as in the conductor"
    )
    error_sigma: float = setting(
        0.0, "spread of true over predicted prefill time (of its logarithm)", minimum=0, maximum=3
    )
    error_bias: float = setting(
        1.0,
        "what the scheduler believes of prefill times, over the truth",
        minimum=0.01,
        maximum=100,
    )
    fetch_weight: float = setting(
        1.0, "share of a NIC that a fetch has beside 1 of a KV cache that streams to its decode "
        "node: a prefill waits for the one, and the other has the prefill's time", minimum=0.01,
    )  # fmt: skip
    replica_weight: float = setting(
        1.0, "the same of a copy ahead of demand, which nobody waits for", minimum=0.01
    )
    replicate_interval_s: float = setting(
        0.0, "how often hot blocks are looked for and copied ahead of demand; 0: never", minimum=0
    )
    replicate_share: float = setting(
        0.02, "share of a NIC that one replica of a block serves at most", minimum=0.000001
    )
    replicate_bytes_per_s: float = setting(
        10e9, "bandwidth that copying ahead of demand may take in all", minimum=0
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplayConfig:
    """[replay]: how the trace is played."""

    speed: float = setting(1.0, "arrivals so many times as fast", minimum=0.001, maximum=1e6)
    seed: int = setting(1, "of everything that is drawn", minimum=0, maximum=2**63 - 1)
    sample_s: float = setting(15.0, "how often loads and replicas are noted; 0: never", minimum=0)
    top_keys: int = setting(100, "blocks whose replicas are watched", minimum=0, maximum=10_000)
    drain_max_s: float = setting(
        604_800.0, "a replay that has not ended so long after the last arrival, by the cluster's "
        "clock, is given up", minimum=0.001,
    )  # fmt: skip
    events_max: int = setting(
        500_000_000, "events (arrivals, iterations, transfers, samples) after which a replay is "
        "given up: some minutes", minimum=1, maximum=2**62,
    )  # fmt: skip


_OURS: dict[str, Any] = {
    "selection": "earliest",
    "overlap": True,
    "order": "planned",
    "touch_source": False,
    "check_again": True,
    "stream_weight": 1.0,
}

POLICIES: dict[str, dict[str, Any]] = {
    "random": {"selection": "random"},
    "least-load": {"selection": "least-time"},
    "least-count": {"selection": "least-count"},
    "local": {"selection": "local"},
    "global": {"selection": "global"},
    "earliest": {"selection": "earliest", "overlap": True},
    "ours": _OURS,
}
"""Named sets of scheduler settings; whatever is set beside the name beats it."""

TABLES: dict[str, type[Any]] = {
    "cluster": ClusterConfig,
    "model": ModelConfig,
    "slo": SloConfig,
    "scheduler": SchedulerConfig,
    "replay": ReplayConfig,
}


@dataclass(frozen=True, slots=True)
class SimConfig:
    """Everything that a simulation is told beside the trace.

    Attributes:
        given: Fields of `scheduler` that file or flags have set; no policy's name changes them.
    """

    cluster: ClusterConfig = ClusterConfig()
    model: ModelConfig = ModelConfig()
    slo: SloConfig = SloConfig()
    scheduler: SchedulerConfig = SchedulerConfig()
    replay: ReplayConfig = ReplayConfig()
    given: frozenset[str] = field(default=frozenset(), repr=False, compare=False)

    def __post_init__(self) -> None:
        if self.cluster.prefill_nodes % self.cluster.group_nodes:
            raise ConfigError(
                f"{self.cluster.prefill_nodes} prefill nodes make no whole groups of "
                f"{self.cluster.group_nodes}"
            )
        nodes = self.cluster
        if nodes.coupled and (nodes.prefill_nodes, 1) != (nodes.decode_nodes, nodes.group_nodes):
            raise ConfigError(
                f"coupled nodes are the same ones twice, in no groups: prefill_nodes "
                f"({nodes.prefill_nodes}) and decode_nodes ({nodes.decode_nodes}) are as many, "
                f"and group_nodes is 1"
            )

    @classmethod
    def read(
        cls,
        path: Path | None,
        flags: Mapping[str, Mapping[str, Any]] | None = None,
        flag_names: Mapping[str, str] | None = None,
    ) -> SimConfig:
        """Read a cluster file; what it leaves out has its default.

        Args:
            path: TOML with the tables of `TABLES`; None: defaults.
            flags: By table, what beats the file.
            flag_names: What is said of a field instead of `--set TABLE.NAME`.

        Raises:
            ConfigError: The file or a flag says something that cannot be.
        """
        document = read_file(path, TABLES) if path else {}
        values: dict[str, Any] = {}
        named: set[str] = set()  # of the scheduler, by its file or a flag
        for name, kind in TABLES.items():
            given = dict((flags or {}).get(name, {}))
            table = document.get(name, {})
            if name == "scheduler":
                policy = given.get("policy") or table.get("policy", "global")
                if policy not in POLICIES:
                    raise ConfigError(
                        f"there is no policy {policy!r}: {', '.join(POLICIES)} are known"
                    )
                document = {**document, name: {**POLICIES[policy], **table}}
                flags_given = {flag for flag, value in given.items() if value is not None}
                named = {one.replace("-", "_") for one in (*table, *flags_given)}
            values[name] = load(
                kind, name, flags=given, environment={}, document=document, path=path or "",
                flag_prefix=f"--set {name}.", flag_names=flag_names,
            ).values  # fmt: skip
        fields = {
            item.field
            for item in settings_of(SchedulerConfig, "scheduler")
            if item.name in named or item.field in named
        }
        return cls(**values, given=frozenset(fields - {"policy"}))


def with_policy(config: SimConfig, policy: str, **changes: Any) -> SimConfig:
    """Return the configuration with a named policy, and single settings of the scheduler.

    Args:
        config: What its file or flags have set of the scheduler beats the policy.
        policy: One of `POLICIES`.
        changes: By field, what beats both; they stay when another policy is named.

    Raises:
        ConfigError: There is no such policy.
    """
    if policy not in POLICIES:
        raise ConfigError(f"there is no policy {policy!r}: {', '.join(POLICIES)} are known")
    fresh = SchedulerConfig()
    touched = {name for settings in POLICIES.values() for name in settings}
    named: dict[str, Any] = {}
    for item in settings_of(SchedulerConfig, "scheduler"):
        if item.field in config.given:
            continue
        if item.name in POLICIES[policy]:
            named[item.field] = item.parse(POLICIES[policy][item.name])
        elif item.name in touched:
            named[item.field] = getattr(fresh, item.field)
    named = {**named, **changes, "policy": policy}
    return replace(
        config,
        scheduler=replace(config.scheduler, **named),
        given=config.given | changes.keys(),
    )


def cluster_example() -> str:
    """Return a cluster file in which every setting stands at its default, with its reason."""
    lines = ["# A cluster for `mooncake-store sim --cluster FILE`: uncomment what you change."]
    for table, kind in TABLES.items():
        lines += ["", f"[{table}]"]
        for item in settings_of(kind, table):
            lines += ["", f"# {item.help}"]
            if item.choices:
                lines.append(f"# One of: {', '.join(item.choices)}.")
            value = item.format(item.default)
            is_text = item.kind is str or bool(item.unit)
            lines.append(f'#{item.name} = "{value}"' if is_text else f"#{item.name} = {value}")
    return "\n".join(lines) + "\n"
