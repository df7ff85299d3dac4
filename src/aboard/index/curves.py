"""Curves computed from curves: smoothed, over another axis, or aggregated over a group of runs.

All but `GroupCurves` are pure functions of arrays. Curves are smoothed before they are sampled, so
the result does not depend on the number of samples.
"""

from __future__ import annotations

import math
import sqlite3
import threading
from collections import OrderedDict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, fields
from enum import StrEnum
from typing import NamedTuple

import numpy as np

from aboard.index.series import Floats, Ints, Series, downsample, read_series
from aboard.index.tags import Tag, TagGroup
from aboard.runs.naming import Band, Line

MOST_POINTS = 4_000_000  # read for a curve of a group; with more, members are sampled
KEPT_POINTS = 32_768  # of a computed curve
_KEPT_CURVES = 16
_BLOCK_VALUES = 1 << 18

# Smoothing.


def smooth(values: Floats, weight: float) -> Floats:
    """Return the exponential moving average as TensorBoard computes it; weight 0 changes nothing.

    Each value counts `weight` times as much as the next one, without a bias towards zero at the
    start. Values that are not finite are ignored and kept. A constant curve is returned unchanged,
    without rounding errors.
    """
    if not 0 <= weight < 1:
        raise ValueError(f"weight must be at least 0 and less than 1, not {weight}")
    if weight == 0 or not len(values) or (values == values[0]).all():
        return values
    smoothed = values.copy()
    sums, count = 0.0, 0
    for start in range(0, len(values), _BLOCK):
        part = smoothed[start : start + _BLOCK]
        finite = np.isfinite(part)
        kept = part if finite.all() else part[finite]
        if not len(kept):
            continue
        weighted = _accumulate((1 - weight) * kept, weight, sums)
        sums = float(weighted[-1])
        if weight**count > _NOTHING:
            weighted /= -np.expm1(np.arange(count + 1, count + len(kept) + 1) * math.log(weight))
        count += len(kept)
        part[finite] = weighted
    return smoothed


_BLOCK = 1 << 16  # values that fit into the processor's cache
_NOTHING = 1e-18  # negligible compared with 1


def _accumulate(values: Floats, weight: float, inherited: float) -> Floats:
    """Return the running sums in which each value counts `weight` times as much as the next one.

    The values are laid out as rows of a square and summed column by column; then each row adds the
    sum of the row before it. This takes as many numpy operations as a row has values.
    """
    width = math.isqrt(len(values) - 1) + 1
    rows = -(-len(values) // width)
    square = np.zeros(rows * width)
    square[: len(values)] = values
    columns = np.ascontiguousarray(square.reshape(rows, width).T)
    for place in range(1, width):
        columns[place] += weight * columns[place - 1]
    fading = weight ** np.arange(1, width + 1)
    before = np.empty(rows)
    for row, last in enumerate(columns[-1].tolist()):
        before[row] = inherited
        inherited = last + fading[-1] * inherited
    columns += fading[:, None] * before
    return columns.T.ravel()[: len(values)]


def smooth_window(values: Floats, width: int) -> Floats:
    """Return the mean of the `width` points around each point; an even width is increased by one.

    The window is cut off at the ends. Values that are not finite are ignored and kept.
    """
    if width < 1:
        raise ValueError(f"width must be at least 1, not {width}")
    half = min(width // 2, len(values))
    if half == 0 or (values == values[0]).all():
        return values
    smoothed = values.copy()
    block = max(_BLOCK, 4 * half)
    for start in range(0, len(values), block):
        first = max(0, start - half)
        around = values[first : start + block + half]
        counted = np.isfinite(around)
        sums = _window_sums(np.where(counted, around, 0.0), half)
        counts = _window_sums(counted.astype(np.float64), half)
        part = smoothed[start : start + block]
        inner = slice(start - first, start - first + len(part))
        np.divide(sums[inner], counts[inner], out=part, where=counted[inner])
    return smoothed


def _window_sums(values: Floats, half: int) -> Floats:
    """Return the sum of each value and its `half` neighbors on both sides.

    With the values cut into blocks as wide as a window, each window is the end of one block and the
    beginning of the next. Differences of cumulative sums would lose digits.
    """
    width = 2 * half + 1
    blocks = -(-(len(values) + 2 * half) // width)
    padded = np.zeros(blocks * width)
    padded[half : half + len(values)] = values
    rows = padded.reshape(blocks, width)
    beginnings = np.cumsum(rows, axis=1).ravel()[width - 1 :][: len(values)]
    ends = np.cumsum(rows[:, ::-1], axis=1)[:, ::-1].ravel()[: len(values)]
    beginnings[::width] = 0.0  # these windows are exactly one block
    return beginnings + ends


# Axes.


class Axis(StrEnum):
    """The x-axis of a curve."""

    STEP = "step"
    WALL = "wall_time"
    RELATIVE = "relative_time"  # seconds since the first point of the curve
    METRIC = "metric"  # the values of another metric at the same steps


class Curve(NamedTuple):
    """The points of a curve, in the order of their steps."""

    x: Floats
    y: Floats

    def within(self, start: float | None, stop: float | None) -> Curve:
        """Return the points with `x` from `start` to `stop`, both included."""
        if start is None and stop is None:
            return self
        kept = np.ones(len(self.x), np.bool_)
        if start is not None:
            kept &= self.x >= start
        if stop is not None:
            kept &= self.x <= stop
        return Curve(self.x[kept], self.y[kept])


def over(series: Series, axis: Axis) -> Curve:
    if axis is Axis.STEP:
        return Curve(series.steps.astype(np.float64), series.values)
    if axis is Axis.RELATIVE:
        return Curve(series.wall_times - series.wall_times[:1], series.values)
    return Curve(series.wall_times, series.values)


def over_metric(series: Series, metric: Series) -> Curve:
    """Return a series over the values of a metric, without points where the metric has none."""
    x = interpolate(metric, series.steps)
    kept = np.isfinite(x)
    return Curve(x[kept], series.values[kept])


@dataclass(frozen=True, slots=True)
class Shape:
    """How to derive a curve: axis, range, smoothing and number of samples.

    `smoothing` is the weight of `smooth`, `window` the width of `smooth_window`.
    """

    axis: Axis = Axis.STEP
    start: float | None = None
    stop: float | None = None
    samples: int | None = None
    smoothing: float = 0.0
    window: int = 1

    @property
    def needs_all(self) -> bool:
        """Whether the curve depends on points outside the range or between the samples."""
        return self.axis is not Axis.STEP or self.smoothing > 0 or self.window > 1

    def derive(self, series: Series, metric: Series | None = None) -> Curve:
        """Return the curve of a series, over `metric` if given."""
        values = smooth_window(smooth(series.values, self.smoothing), self.window)
        smoothed = series._replace(values=values)
        curve = over(smoothed, self.axis) if metric is None else over_metric(smoothed, metric)
        curve = curve.within(self.start, self.stop)
        if self.samples is None or len(curve.y) <= self.samples:
            return curve
        places = downsample(curve.y, self.samples)
        return Curve(curve.x[places], curve.y[places])


# Groups.


def interpolate(series: Series, steps: Ints) -> Floats:
    """Return the values of a series at `steps`; NaN before its first and after its last step."""
    if not len(series.steps):
        return np.full(len(steps), np.nan)
    if np.array_equal(series.steps, steps):
        return series.values
    return np.interp(steps, series.steps, series.values, left=np.nan, right=np.nan)


def common_steps(members: Iterable[Ints], most: int) -> Ints:
    """Return all steps of the members of a group, at most `most`, evenly chosen."""
    steps = np.empty(0, np.int64)
    for one in members:
        if not np.array_equal(one, steps):
            steps = np.union1d(steps, one)
    if len(steps) > most:
        steps = steps[np.linspace(0, len(steps) - 1, most).round().astype(np.int64)]
    return steps


@dataclass(frozen=True, slots=True)
class Statistics:
    """Statistics over the members of a group, at each step.

    A member counts at a step if it has a finite value there. Without members the statistics are
    NaN; with one, `std` and `sem` are. `std` is the sample standard deviation.
    """

    count: Ints
    mean: Floats
    std: Floats
    sem: Floats  # the standard error of the mean
    min: Floats
    max: Floats
    median: Floats
    low: Floats  # the first quartile
    high: Floats  # the third


def statistics(rows: Floats) -> Statistics:
    """Return the statistics of members, one row of values each, at the same steps."""
    finite = np.isfinite(rows)
    count = finite.sum(axis=0)
    with np.errstate(all="ignore"):  # no values, or very large ones
        mean = np.where(finite, rows, 0.0).sum(axis=0) / count
        squares = np.where(finite, rows - mean, 0.0) ** 2
        std = np.sqrt(squares.sum(axis=0) / (count - 1))
        std[count < 2] = np.nan
        ordered = np.sort(np.where(finite, rows, np.nan), axis=0)  # NaN come last
        low, median, high = (_quantile(ordered, count, part) for part in (0.25, 0.5, 0.75))
        return Statistics(
            count=count,
            mean=mean,
            std=std,
            sem=std / np.sqrt(count),
            min=_quantile(ordered, count, 0.0),
            max=_quantile(ordered, count, 1.0),
            median=median,
            low=low,
            high=high,
        )


def _quantile(ordered: Floats, count: Ints, part: float) -> Floats:
    """Return a quantile of the first `count` values of each column, interpolated as in numpy."""
    columns = np.arange(ordered.shape[1])
    place = part * np.maximum(count - 1, 0)
    below = np.floor(place).astype(np.int64)
    above = np.minimum(below + 1, np.maximum(count - 1, 0))
    value: Floats = ordered[below, columns]
    share = place - below
    between = share > 0
    value[between] += share[between] * (ordered[above, columns] - value)[between]
    return value


def mean_times(members: Sequence[Series], steps: Ints) -> Floats:
    """Return when a group reached the steps: the mean time since each member's start.

    The mean is added to the start of the earliest member, so that the curve is comparable with
    those of the members over time. A step without a time gets the time of the step before.
    """
    total, count = np.zeros(len(steps)), np.zeros(len(steps))
    starts = []
    for one in members:
        if not len(one.steps):
            continue
        starts.append(float(one.wall_times[0]))
        since = Series(one.steps, one.wall_times, one.wall_times - starts[-1])
        times = interpolate(since, steps)
        known = np.isfinite(times)
        total[known] += times[known]
        count += known
    times = np.divide(total, count, out=np.zeros(len(steps)), where=count > 0)
    return min(starts, default=0.0) + np.maximum.accumulate(times)


class _Computed(NamedTuple):
    steps: Ints
    wall_times: Floats
    statistics: Statistics

    def line(self, band: Band, line: Line) -> Series:
        """Return a curve of the group, with points only where it is defined."""
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
            spread = {Band.STD: found.std, Band.SEM: found.sem}[band]
            values = found.mean + (spread if line is Line.UPPER else -spread)
        if line is not Line.MIDDLE:
            values = np.where(found.count > 1, values, np.nan)
        return Series(self.steps, self.wall_times, values).at(np.flatnonzero(np.isfinite(values)))


class GroupCurves:
    """Reads curves of groups. Caches recent statistics: a group's curves share their members."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._kept: OrderedDict[tuple[Tag, ...], _Computed] = OrderedDict()

    def read(self, connection: sqlite3.Connection, group: TagGroup) -> Series:
        with self._lock:
            found = self._kept.get(group.members)
        if found is None:
            found = compute(_read_members(connection, group.members))
        with self._lock:
            self._kept[group.members] = found
            self._kept.move_to_end(group.members)
            while len(self._kept) > _KEPT_CURVES:
                self._kept.popitem(last=False)
        return found.line(group.band, group.line)


def _read_members(connection: sqlite3.Connection, tags: Sequence[Tag]) -> list[Series]:
    total = sum(tag.points for tag in tags)
    most = max(1, MOST_POINTS // len(tags)) if total > MOST_POINTS else None
    return [read_series(connection, tag, samples=most) for tag in tags]


def compute(members: Sequence[Series]) -> _Computed:
    """Return the statistics of members at all their steps, sampled if there are too many."""
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
