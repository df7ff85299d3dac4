"""Files as the index knows them: how far each was read, what was in it, and when.

For those who ask about the writers of a log tree rather than about its values.
"""

from __future__ import annotations

import math
import sqlite3
from typing import NamedTuple

import numpy as np

from aboard.index.chunks import Ints, unpack_steps
from aboard.index.plan import Source, within
from aboard.index.query import Segment
from aboard.index.schema import CHUNK_BITS


class EventFile(NamedTuple):
    """An event file, read to its end."""

    directory: str
    name: str
    size: int
    incomplete: int
    """Bytes at its end that are not yet a whole record."""
    damaged: int
    events: int
    values: int
    first_wall: float | None
    """Of its first event; None for a time that is no number."""
    last_wall: float | None
    """The latest wall time of a value."""


def files(connection: sqlite3.Connection, source: Source) -> list[EventFile]:
    """Return the event files of a source, by directory and name."""
    where, arguments = within(source)
    rows = connection.execute(
        "SELECT directory, name, size, max(0, size - offset),"
        " (SELECT coalesce(sum(length), 0) FROM damage WHERE damage.file = file.id)"
        " + CASE WHEN damage_start >= 0 THEN offset - damage_start ELSE 0 END,"
        " events, (SELECT coalesce(sum(count), 0) FROM segment WHERE segment.file = file.id),"
        " first_wall, (SELECT max(max_wall) FROM segment WHERE segment.file = file.id)"
        f" FROM file {where} ORDER BY directory, name",
        arguments,
    )
    return [
        one._replace(first_wall=_time(one.first_wall), last_wall=_time(one.last_wall))
        for one in (EventFile(*row) for row in rows)
    ]


def _time(wall: float | None) -> float | None:
    return wall if wall is not None and math.isfinite(wall) else None


def written_steps(connection: sqlite3.Connection, segment: Segment) -> Ints:
    """Return the steps of a tag in one file in the order in which they were written."""
    rows = connection.execute(
        "SELECT count, steps FROM chunk WHERE id >= ? AND id < ? ORDER BY id",
        (segment.id << CHUNK_BITS, (segment.id + 1) << CHUNK_BITS),
    )
    return np.concatenate([np.empty(0, np.int64), *(unpack_steps(*row) for row in rows)])
