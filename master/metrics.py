"""Metrics for Prometheus: read from C when somebody scrapes, so that counting costs nothing."""

from __future__ import annotations

import platform
from collections.abc import Iterator
from itertools import accumulate

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    Metric,
)
from prometheus_client.registry import Collector

from mooncake_store.master.service import MasterService
from mooncake_store.protocol.frames import WIRE_VERSION
from mooncake_store.version import __version__

__all__ = ["PREFIX", "MasterCollector", "exposition"]

PREFIX = "mooncake_store_"


class MasterCollector(Collector):
    """Everything that a master counts."""

    def __init__(self, service: MasterService) -> None:
        self._service = service

    def collect(self) -> Iterator[Metric]:
        yield _build_info(self._service.leadership.epoch)
        yield from self._listed()
        yield from self._op_times()

    def _listed(self) -> Iterator[Metric]:
        nodes = {member.server: member.name for member in self._service.members()}
        families: dict[int, CounterMetricFamily | GaugeMetricFamily] = {}
        for number, metric in enumerate(self._service.metrics):
            kind = CounterMetricFamily if metric.is_counter else GaugeMetricFamily
            labels = ["node"] if metric.is_labelled else []
            families[number] = kind(PREFIX + metric.name, metric.help, labels=labels)
        for sample in self._service.samples():
            labels = []
            if sample.server is not None:
                labels = [nodes.get(sample.server) or str(sample.server)]
            families[sample.metric].add_metric(labels, float(sample.value))
        yield from families.values()

    def _op_times(self) -> Iterator[Metric]:
        durations = HistogramMetricFamily(
            f"{PREFIX}master_request_duration_seconds",
            "How long requests took inside the master, waiting for holders or room included.",
            labels=["op"],
        )
        requests = CounterMetricFamily(
            f"{PREFIX}master_requests_total",
            "Requests answered; failed: as a whole, items of a batch have their own outcomes.",
            labels=["op", "outcome"],
        )
        bounds = self._service.op_bounds_s
        for op in self._service.op_times():
            cumulative = list(accumulate(op.buckets))
            buckets = [
                (f"{bound:g}", float(n)) for bound, n in zip(bounds, cumulative, strict=True)
            ]
            buckets.append(("+Inf", float(op.count)))
            durations.add_metric([op.name], buckets, op.sum_s)
            requests.add_metric([op.name, "ok"], op.count - op.failed)
            requests.add_metric([op.name, "failed"], op.failed)
        yield durations
        yield requests


def _build_info(epoch: int) -> Metric:
    info = GaugeMetricFamily(
        f"{PREFIX}build_info",
        "1; the labels say what runs.",
        labels=["version", "wire_version", "python", "epoch"],
    )
    info.add_metric([__version__, str(WIRE_VERSION), platform.python_version(), str(epoch)], 1.0)
    return info


class _Standby(Collector):
    """What there is to say of a master that does not lead."""

    def collect(self) -> Iterator[Metric]:
        yield _build_info(0)


def exposition(service: MasterService | None) -> bytes:
    """Return one scrape in Prometheus' text format; None: it stands by."""
    registry = CollectorRegistry(auto_describe=False)
    registry.register(_Standby() if service is None else MasterCollector(service))
    return generate_latest(registry)
