"""Metrics for Prometheus: read from C when somebody scrapes, so that counting costs nothing."""

from __future__ import annotations

import platform
from collections.abc import Iterator

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from mooncake_store.protocol.frames import WIRE_VERSION
from mooncake_store.store.service import StoreService
from mooncake_store.version import __version__

__all__ = ["PREFIX", "StoreCollector", "exposition"]

PREFIX = "mooncake_store_server_"
_TOTAL = "_total"


class StoreCollector(Collector):
    """Everything that a store server counts."""

    def __init__(self, service: StoreService) -> None:
        self._service = service

    def collect(self) -> Iterator[Metric]:
        yield self._build_info()
        for counter in self._service.counters():
            if counter.name.endswith(_TOTAL):
                name = PREFIX + counter.name.removesuffix(_TOTAL)
                yield CounterMetricFamily(name, counter.help, value=counter.value)
            else:
                yield GaugeMetricFamily(PREFIX + counter.name, counter.help, value=counter.value)

    def _build_info(self) -> Metric:
        info = GaugeMetricFamily(
            "mooncake_store_build_info",
            "1; the labels say what runs.",
            labels=["version", "wire_version", "python", "epoch"],
        )
        epoch = str(self._service.status().epoch)
        info.add_metric([__version__, str(WIRE_VERSION), platform.python_version(), epoch], 1.0)
        return info


def exposition(service: StoreService) -> bytes:
    """Return one scrape in Prometheus' text format."""
    registry = CollectorRegistry(auto_describe=False)
    registry.register(StoreCollector(service))
    return generate_latest(registry)
