"""Summaries of series, computed without reading their points.

Totals are stored with every segment, and added up on request. Only if a restart in the middle
superseded points are the chunks examined, and few of them read; see `series`.
"""

from __future__ import annotations

import json
import math
import sqlite3
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from aboard.events.scanner import Totals
from aboard.index.tags import Tag


class Summary(NamedTuple):
    """A series in a few numbers, without points superseded by restarts.

    `min`, `max` and `mean` are of the finite values; without any, they are NaN and their steps
    None.
    """

    count: int  # type: ignore[assignment]
    first_step: int
    last_step: int
    first_wall: float
    last_wall: float
    last: float
    min: float
    min_step: int | None
    max: float
    max_step: int | None
    mean: float
    nans: int
    infinities: int


def added(parts: Iterable[Totals]) -> Totals | None:
    """Add totals in order; None if there are none, or a later part supersedes points."""
    whole: Totals | None = None
    for part in parts:
        whole = part if whole is None else whole.followed_by(part)
        if whole is None:
            return None
    return whole


def _summary_of(totals: Totals) -> Summary:
    finite = totals.size - totals.nans - totals.infinities
    return Summary(
        totals.size,
        totals.first_step,
        totals.last_step,
        totals.first_wall,
        totals.last_wall,
        totals.last,
        totals.low,
        totals.low_step if finite else None,
        totals.high,
        totals.high_step if finite else None,
        totals.total / finite if finite else math.nan,
        totals.nans,
        totals.infinities,
    )


# The columns of a segment with its totals; NaN is stored as null.
STORED = (
    "kept, min_step, last_step, first_wall, last_wall, last_value, low, low_step, high, high_step,"
    " total, nans, infinities"
)


def loaded(row: Sequence[float | None]) -> Totals | None:
    """Return a segment's totals from its columns in the index; None if it has none."""
    if row[0] is None:
        return None
    return Totals._make(math.nan if one is None else one for one in row)


def read_summaries(connection: sqlite3.Connection, tags: Sequence[Tag]) -> list[Summary | None]:
    """Return the summaries of tags in the index; None for those that are not scalars."""
    ids = [one.id for tag in tags if tag.is_scalar for one in tag.segments]
    rows = connection.execute(
        f"SELECT id, {STORED} FROM segment WHERE id IN (SELECT value FROM json_each(?))",
        (json.dumps(ids),),
    )
    stored = {one: loaded(rest) for one, *rest in rows}
    return [_summary(connection, tag, stored) if tag.is_scalar else None for tag in tags]


def _summary(
    connection: sqlite3.Connection, tag: Tag, stored: dict[int, Totals | None]
) -> Summary | None:
    parts = [stored[one.id] for one in tag.segments]
    whole = added(part for part in parts if part is not None)
    if whole is None or None in parts:
        from aboard.index.series import read_totals

        whole = read_totals(connection, tag)
    return _summary_of(whole)
