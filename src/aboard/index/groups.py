"""The curves of groups of runs, computed from the points of their members and kept for a while."""

from __future__ import annotations

import sqlite3
import threading
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import fields
from typing import NamedTuple

import numpy as np

from aboard.index.derived import Statistics, common_steps, interpolate, mean_times, statistics
from aboard.index.series import Floats, Ints, Series, downsample, read_series
from aboard.index.tags import GroupTag, Tag
from aboard.runs.groups import Band, Line

MOST_POINTS = 4_000_000  # that are read for a curve; of more, members are sampled
KEPT_POINTS = 32_768  # of a curve
_KEPT_CURVES = 16
_BLOCK_VALUES = 1 << 18


class _Computed(NamedTuple):
    steps: Ints
    wall_times: Floats
    statistics: Statistics

    def line(self, band: Band, line: Line) -> Series:
        """Return a curve of the group; where it is not defined, it has no points."""
        found = self.statistics
        if line is Line.COUNT:
            return Series(self.steps, self.wall_times, found.count.astype(np.float64))
        quartiles = {Line.MIDDLE: found.median, Line.UPPER: found.high, Line.LOWER: found.low}
        if band is Band.QUARTILES:
            values = quartiles[line]
        elif line is Line.MIDDLE:
            values = found.mean
        elif band is Band.MINMAX:
            values = found.max if line is Line.UPPER else found.min
        else:
            spread = found.std if band is Band.STD else found.sem
            values = found.mean + (spread if line is Line.UPPER else -spread)
        if line is not Line.MIDDLE:
            values = np.where(found.count > 1, values, np.nan)
        return Series(self.steps, self.wall_times, values).at(np.flatnonzero(np.isfinite(values)))


class GroupCurves:
    """Reads the tags of groups; their curves have the same members, so the last ones are kept."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._kept: OrderedDict[tuple[Tag, ...], _Computed] = OrderedDict()

    def read(self, connection: sqlite3.Connection, tag: GroupTag) -> Series:
        with self._lock:
            found = self._kept.get(tag.members)
        if found is None:
            found = compute(_read_members(connection, tag.members))
        with self._lock:
            self._kept[tag.members] = found
            self._kept.move_to_end(tag.members)
            while len(self._kept) > _KEPT_CURVES:
                self._kept.popitem(last=False)
        return found.line(tag.band, tag.line)


def _read_members(connection: sqlite3.Connection, tags: Sequence[Tag]) -> list[Series]:
    total = sum(tag.points for tag in tags)
    most = max(1, MOST_POINTS // len(tags)) if total > MOST_POINTS else None
    return [read_series(connection, tag, samples=most) for tag in tags]


def compute(members: Sequence[Series]) -> _Computed:
    """Return the statistics of members at all of their steps, or those that represent them."""
    steps = common_steps([one.steps for one in members], most=MOST_POINTS)
    same = [np.array_equal(one.steps, steps) for one in members]
    block = max(1, _BLOCK_VALUES // max(1, len(members)))
    parts = []
    for start in range(0, max(1, len(steps)), block):
        some = slice(start, start + block)
        rows = [
            one.values[some] if is_same else interpolate(one, steps[some])
            for one, is_same in zip(members, same, strict=True)
        ]
        parts.append(statistics(np.stack(rows)))
    names = [one.name for one in fields(Statistics)]
    columns = {name: np.concatenate([getattr(one, name) for one in parts]) for name in names}
    times = mean_times(members, steps)
    if len(steps) > KEPT_POINTS:
        drawn = np.stack([columns["mean"], columns["min"], columns["max"]])
        places = downsample(drawn, KEPT_POINTS)
        steps, times = steps[places], times[places]
        columns = {name: column[places] for name, column in columns.items()}
    return _Computed(steps, times, Statistics(**columns))
