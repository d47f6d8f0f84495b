"""Metrics of a conductor for Prometheus, read when somebody scrapes."""

from __future__ import annotations

import platform
from collections import Counter
from collections.abc import Callable, Iterator
from typing import NamedTuple

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    Metric,
)
from prometheus_client.registry import Collector

from mooncake_store.conductor.service.core import ConductorCore
from mooncake_store.protocol.frames import WIRE_VERSION
from mooncake_store.version import __version__

__all__ = ["METRICS", "PREFIX", "exposition"]

PREFIX = "mooncake_store_conductor_"


class MetricRow(NamedTuple):
    """One line of docs/metrics.md."""

    name: str
    kind: str
    labels: str
    help: str


METRICS = (
    MetricRow("requests_accepted_total", "counter", "", "Requests that were given instances."),
    MetricRow("requests_refused_total", "counter", "reason", "Requests that were refused."),
    MetricRow("requests_under_way", "gauge", "stage", "Accepted requests that have not ended."),
    MetricRow("prompt_tokens_total", "counter", "", "Of the prompts of accepted requests."),
    MetricRow("prefix_tokens_total", "counter", "", "Of those, tokens found cached: hits."),
    MetricRow("planned_bytes_total", "counter", "", "That decisions wanted moved between nodes."),
    MetricRow("transfers_measured_total", "counter", "", "Fetches that instances have reported."),
    MetricRow("transfer_latency_seconds", "gauge", "", "Fixed cost of a fetch, as believed now."),
    MetricRow(
        "transfer_bandwidth_bytes_per_second", "gauge", "", "Of a fetch beyond that, as believed."
    ),
    MetricRow(
        "transfer_predicted_ratio", "gauge", "", "Predicted over measured time, median of the last."
    ),
    MetricRow("decision_duration_seconds", "histogram", "", "How long deciding took."),
    MetricRow("instances", "gauge", "state", "Registered instances."),
    MetricRow("prefill_queue_seconds", "gauge", "instance", "Predicted prefill queue."),
    MetricRow("decode_batch", "gauge", "instance", "Requests decoding or promised there."),
    MetricRow("index_blocks", "gauge", "", "Blocks that the prefix index knows."),
    MetricRow("index_forgotten_total", "counter", "", "Blocks that were forgotten for others."),
    MetricRow("store_connected", "gauge", "", "1: the store's events are followed."),
    MetricRow("store_sequence", "gauge", "", "Last event of the store that was applied."),
    MetricRow("store_events_total", "counter", "", "Events of the store that were applied."),
    MetricRow("store_gaps_total", "counter", "", "Times that events of the store were missed."),
    MetricRow("store_snapshots_total", "counter", "", "Times that the store was listed anew."),
    MetricRow("store_from_file", "gauge", "", "1: this process began with its index file."),
    MetricRow("moves_total", "counter", "outcome", "Replicas that the store was told to make."),
    MetricRow("moved_bytes_total", "counter", "", "Of the replicas that were made."),
    MetricRow("moves_waiting", "gauge", "", "Replicas still to be made."),
    MetricRow("extra_replicas", "gauge", "", "Replicas that were made and not taken back."),
    MetricRow("taken_back_total", "counter", "outcome", "Extra replicas of cold blocks."),
    MetricRow("taken_back_bytes_total", "counter", "", "Of those that were taken back."),
    MetricRow("pinned_blocks", "gauge", "", "Blocks pinned for requests under way."),
    MetricRow("grpc_calls", "gauge", "", "Calls of gRPC under way."),
    MetricRow("grpc_refused_total", "counter", "", "Calls of gRPC for which there was no room."),
    MetricRow("proxy_requests_total", "counter", "status", "Answers of the proxy, by HTTP status."),
    MetricRow("proxy_retries_total", "counter", "", "Requests that were sent to another instance."),
)  # fmt: skip
"""Everything that a conductor counts; docs/metrics.md is made from it."""

_HELP = {row.name: row.help for row in METRICS}


class _Collector(Collector):
    def __init__(self, core: ConductorCore, more: Callable[[], dict[str, float]]) -> None:
        self._core = core
        self._more = more

    def _counter(self, name: str, value: float) -> Metric:
        return CounterMetricFamily(PREFIX + name.removesuffix("_total"), _HELP[name], value=value)

    def _gauge(self, name: str, value: float) -> Metric:
        return GaugeMetricFamily(PREFIX + name, _HELP[name], value=value)

    def _by(self, name: str, label: str, values: dict[str, float]) -> Metric:
        family: CounterMetricFamily | GaugeMetricFamily
        if name.endswith("_total"):
            family = CounterMetricFamily(
                PREFIX + name.removesuffix("_total"), _HELP[name], labels=[label]
            )
        else:
            family = GaugeMetricFamily(PREFIX + name, _HELP[name], labels=[label])
        for key, value in values.items():
            family.add_metric([key], value)
        return family

    def collect(self) -> Iterator[Metric]:
        core, scheduler = self._core, self._core.scheduler
        yield self._counter("requests_accepted_total", scheduler.accepted)
        yield self._by("requests_refused_total", "reason", dict(scheduler.refused))
        stages = Counter(flight.stage.value for flight in scheduler.flights.values())
        yield self._by(
            "requests_under_way", "stage", {name: stages[name] for name in ("prefill", "decode")}
        )
        yield self._counter("prompt_tokens_total", scheduler.prompt_tokens)
        yield self._counter("prefix_tokens_total", scheduler.prefix_tokens)
        yield self._counter("planned_bytes_total", scheduler.moved_bytes)
        transfers = scheduler.transfers
        yield self._counter("transfers_measured_total", transfers.measured)
        yield self._gauge("transfer_latency_seconds", transfers.latency_s)
        yield self._gauge("transfer_bandwidth_bytes_per_second", transfers.bandwidth_bytes_per_s)
        yield self._gauge("transfer_predicted_ratio", transfers.ratio)
        yield self._durations()
        states = Counter(one.state.value for one in scheduler.instances)
        yield self._by("instances", "state", dict(states))
        shown = core.instances()
        queues = {one["name"]: one["prefill"]["queue_s"] for one in shown if one["prefill"]}
        batches = {one["name"]: one["decode"]["batch"] for one in shown if one["decode"]}
        yield self._by("prefill_queue_seconds", "instance", queues)
        yield self._by("decode_batch", "instance", batches)
        yield self._gauge("index_blocks", len(scheduler.index))
        yield self._counter("index_forgotten_total", scheduler.index.forgotten)
        yield from self._others()
        info = GaugeMetricFamily(
            "mooncake_store_build_info",
            "1; the labels say what runs.",
            labels=["version", "wire_version", "python", "epoch"],
        )
        info.add_metric([__version__, str(WIRE_VERSION), platform.python_version(), "0"], 1.0)
        yield info

    def _durations(self) -> Metric:
        core, name = self._core, "decision_duration_seconds"
        family = HistogramMetricFamily(PREFIX + name, _HELP[name])
        total, buckets = 0, []
        bounds = [*map(str, core.decide_bounds_s), "+Inf"]
        for bound, count in zip(bounds, core.decide_buckets, strict=True):
            total += count
            buckets.append((bound, total))
        family.add_metric([], buckets, core.decide_sum_s)
        return family

    def _others(self) -> Iterator[Metric]:
        """What store and proxy count: `name` or `name{label's value}`."""
        labels = {row.name: row.labels for row in METRICS}
        grouped: dict[str, dict[str, float]] = {}
        for key, value in self._more().items():
            name, _, label = key.partition("{")
            grouped.setdefault(name, {})[label.rstrip("}")] = value
        for name, values in grouped.items():
            if labels[name]:
                yield self._by(name, labels[name], values)
            elif name.endswith("_total"):
                yield self._counter(name, values[""])
            else:
                yield self._gauge(name, values[""])


def exposition(core: ConductorCore, more: Callable[[], dict[str, float]]) -> bytes:
    """Return one scrape in Prometheus' text format.

    Args:
        core: Of the process.
        more: What the store's follower and the proxy have counted, by metric, with a label's value
            in braces.
    """
    registry = CollectorRegistry(auto_describe=False)
    registry.register(_Collector(core, more))
    return generate_latest(registry)
