"""Requests to buckets by hour, as counted by `aboard.storage.traffic`, stored in the index.

The counts are sums over all of the user's processes on this machine.
"""

from __future__ import annotations

import sqlite3
import time
from typing import NamedTuple

from aboard.index.schema import transaction
from aboard.storage.base import Counts, Kind, traffic

_KEPT_HOURS = 90 * 24


class TrafficHour(NamedTuple):
    hour: int  # since 1970, in UTC
    kind: Kind
    requests: int
    bytes: int


def save(connection: sqlite3.Connection, counts: Counts, now: float | None = None) -> None:
    hour = this_hour(now)
    with transaction(connection):
        connection.execute("DELETE FROM traffic WHERE hour < ?", (hour - _KEPT_HOURS,))
        connection.executemany(
            "INSERT INTO traffic VALUES (?, ?, ?, ?, ?) ON CONFLICT DO UPDATE SET"
            " requests = requests + excluded.requests, bytes = bytes + excluded.bytes",
            [(bucket, hour, kind, *one) for (bucket, kind), one in counts.items()],
        )


def save_untaken(connection: sqlite3.Connection) -> None:
    """Save the counts of this process; if that fails, they are saved next time."""
    counts = traffic.take()
    if not counts:
        return
    try:
        save(connection, counts)
    except sqlite3.Error:
        traffic.give_back(counts)


def read(
    connection: sqlite3.Connection, bucket: str, hours: int = 24, now: float | None = None
) -> list[TrafficHour]:
    rows = connection.execute(
        "SELECT hour, kind, requests, bytes FROM traffic WHERE bucket = ? AND hour > ?"
        " ORDER BY hour, kind",
        (bucket, this_hour(now) - hours),
    )
    return [TrafficHour(*row) for row in rows]


def this_hour(now: float | None = None) -> int:
    return int((time.time() if now is None else now) // 3600)
