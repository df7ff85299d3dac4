"""The hub's metrics in the text format of Prometheus."""

from __future__ import annotations

from collections import Counter as Tally
from collections.abc import Iterator

import prometheus_client
from prometheus_client import CollectorRegistry, Counter, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from aboard import __version__
from aboard.boards.model import ENDED, LIVE, DatabaseUnavailable
from aboard.hub.service import Hub
from aboard.storage import traffic

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"

prometheus_client.disable_created_metrics()  # type: ignore[no-untyped-call]


class Requests:
    def __init__(self) -> None:
        registry = self.registry = CollectorRegistry()
        self._count = Counter(
            "aboard_requests_total", "Answered requests.", ["route", "status"], registry=registry
        )
        self._seconds = Counter(
            "aboard_request_seconds_total", "Time spent on requests.", ["route"], registry=registry
        )

    def count(self, route: str, status: int, seconds: float) -> None:
        self._count.labels(route, f"{status // 100}xx").inc()
        self._seconds.labels(route).inc(seconds)


class _HubCollector(Collector):
    def __init__(self, hub: Hub) -> None:
        self._hub = hub

    def collect(self) -> Iterator[Metric]:
        info = GaugeMetricFamily("aboard_info", "The version.", labels=["version"])
        info.add_metric([__version__], 1)
        yield info
        yield from self._boards()
        yield GaugeMetricFamily(
            "aboard_index_lag_seconds",
            "Time since the data in use was last read.",
            self._hub.follower.lag(),
        )
        yield from _storage()

    def _boards(self) -> Iterator[Metric]:
        snapshot = self._hub.lifecycle.snapshot()
        live = Tally(record.state for record in snapshot.boards.values())
        boards = GaugeMetricFamily("aboard_boards", "Boards by state.", labels=["state"])
        for state in sorted(LIVE):
            boards.add_metric([state], live[state])
        try:
            for state in sorted(ENDED):
                total = self._hub.registry.list(states=[state], limit=1).total
                boards.add_metric([state], total)
        except DatabaseUnavailable:
            up = 0
        else:
            up = 1
        yield boards
        yield GaugeMetricFamily("aboard_database_up", "Whether the database answers.", up)


def expose(hub: Hub, requests: Requests) -> str:
    registry = CollectorRegistry()
    registry.register(_HubCollector(hub))
    return (generate_latest(registry) + generate_latest(requests.registry)).decode()


def _storage() -> Iterator[Metric]:
    labels = ["bucket", "kind"]
    requests = CounterMetricFamily("aboard_storage_requests", "Requests to buckets.", labels=labels)
    transferred = CounterMetricFamily(
        "aboard_storage_bytes", "Bytes to and from buckets.", labels=labels
    )
    for key, (count, size) in sorted(traffic.snapshot().items()):
        requests.add_metric(key, count)
        transferred.add_metric(key, size)
    yield requests
    yield transferred
