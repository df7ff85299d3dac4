"""Numbers about the hub, as Prometheus reads them."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Iterator, Mapping

from aboard import __version__
from aboard.boards.errors import DatabaseUnavailable
from aboard.boards.model import ENDED, LIVE
from aboard.hub.service import Hub
from aboard.storage import traffic

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"


class Requests:
    """Requests that were answered, by what was asked and how it went."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._count: Counter[tuple[str, str]] = Counter()
        self._seconds: Counter[str] = Counter()

    def count(self, route: str, status: int, seconds: float) -> None:
        """Count one."""
        with self._lock:
            self._count[route, f"{status // 100}xx"] += 1
            self._seconds[route] += seconds  # type: ignore[assignment]

    def lines(self) -> Iterator[str]:
        """Yield them as Prometheus reads them."""
        with self._lock:
            counted, seconds = dict(self._count), dict(self._seconds)
        yield from _head("aboard_requests_total", "counter", "Requests that were answered.")
        for (route, status), number in sorted(counted.items()):
            yield _line("aboard_requests_total", number, route=route, status=status)
        yield from _head("aboard_request_seconds_total", "counter", "Time spent on requests.")
        for route, spent in sorted(seconds.items()):
            yield _line("aboard_request_seconds_total", spent, route=route)


def expose(hub: Hub, requests: Requests) -> str:
    """Return all numbers."""
    lines = [
        *_head("aboard_info", "gauge", "The version."),
        _line("aboard_info", 1, version=__version__),
        *_boards(hub),
        *requests.lines(),
        *_head("aboard_index_lag_seconds", "gauge", "Since what is in use was last looked at."),
        _line("aboard_index_lag_seconds", hub.reader.lag()),
        *_storage(),
    ]
    return "\n".join(lines) + "\n"


def _boards(hub: Hub) -> Iterator[str]:
    snapshot = hub.lifecycle.snapshot()
    live = Counter(str(record.state) for record in snapshot.boards.values())
    numbers: dict[str, int] = {str(state): live[str(state)] for state in sorted(LIVE)}
    try:
        for state in sorted(ENDED):
            numbers[str(state)] = hub.registry.list(states=[state], limit=1).total
    except DatabaseUnavailable:
        up = 0
    else:
        up = 1
    yield from _head("aboard_boards", "gauge", "Boards by state.")
    for name, number in numbers.items():
        yield _line("aboard_boards", number, state=name)
    yield from _head("aboard_database_up", "gauge", "Whether the database answers.")
    yield _line("aboard_database_up", up)


def _storage() -> Iterator[str]:
    counts = traffic.snapshot()
    for name, help_, which in (
        ("aboard_storage_requests_total", "Requests to buckets.", 0),
        ("aboard_storage_bytes_total", "Bytes to and from buckets.", 1),
    ):
        yield from _head(name, "counter", help_)
        for (bucket, kind), one in sorted(counts.items()):
            yield _line(name, one[which], bucket=bucket, kind=kind)


def _head(name: str, kind: str, text: str) -> Iterator[str]:
    yield f"# HELP {name} {text}"
    yield f"# TYPE {name} {kind}"


def _line(name: str, value: float, **labels: str) -> str:
    return (
        f"{name}{_labels(labels)} {value:g}"
        if value < 1e6
        else f"{name}{_labels(labels)} {value:.0f}"
    )


def _labels(labels: Mapping[str, str]) -> str:
    if not labels:
        return ""
    escaped = (
        f'{name}="{text.replace(chr(92), chr(92) * 2).replace(chr(34), chr(92) + chr(34))}"'
        for name, text in labels.items()
    )
    return "{" + ",".join(escaped) + "}"
