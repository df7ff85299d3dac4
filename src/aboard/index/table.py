"""Runs as a table: the columns for the fields of a question, from records and from summaries.

`columns` has the columns of records. `Metrics` caches the summaries of metrics from event files;
only runs that were read since are looked up again.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from aboard.index.query import UnknownName
from aboard.index.sources import Source
from aboard.runs.catalog import directory_of_id, with_parents
from aboard.runs.columns import Bools, Column, Floats, Ints, Mixed, Numbers, Words
from aboard.runs.manifest import BEATS_MISSED, State
from aboard.runs.question import AT, LAST, Field, Question
from aboard.storage import join

if TYPE_CHECKING:
    from aboard.index.columns import Columns
    from aboard.index.index import Index
    from aboard.index.summary import Summary
    from aboard.index.tags import Tag

_FIRST = "first"
_OF_FINITE = ("min", "max", "mean")
_MOST_METRICS = 64  # whose summaries are cached


class RunTable:
    """All runs of the index at a time; `rows` are those of the roots, in natural order.

    If a run changes meanwhile, some columns may have its old values and some the new ones.
    """

    def __init__(
        self, metrics: Metrics, roots: Sequence[str], rows: Ints, size: int, now: float
    ) -> None:
        self.rows = rows
        self.roots = roots
        self.now = now
        self._metrics = metrics
        self._index = metrics.index
        self._columns: Columns = metrics.index.columns
        self._size = size
        self._made: dict[Field, Column] = {}

    def __len__(self) -> int:
        return self._size

    def named(self, name: str, experiments: Iterable[str]) -> Ints:
        """Return the rows of the runs with a name in the experiments, also of other roots."""
        found = self._columns.named(name, experiments)
        return found[found < self._size]

    def identified(self, identity: str) -> Ints:
        for root in self.roots:
            directory = directory_of_id(root, identity)
            if directory is not None:
                found = self._index.ids_of(root, [directory]).values()
                return np.array([one for one in found if one < self._size], np.int64)
        return self.rows[:0]

    def column(self, field: Field) -> Column:
        if field not in self._made:
            self._made[field] = self._make(field)
        return self._made[field]

    def _make(self, field: Field) -> Column:
        if field.group == "metrics":
            return self._metrics.column(field, self)
        if field.group:
            return self.stored(f"{field.group}.{field.name}")
        if field.name in ("run", "uri"):
            return self._joined(field.name)
        if field.name == "state":
            return self._states()
        return self._durations() if field.name == "duration" else self.stored(field.name)

    def stored(self, name: str) -> Column:
        return _cut(self._columns.cells(name).column, self._size)

    def numbers(self, name: str) -> Floats:
        """Return the numbers of a column, 0 if missing."""
        return self._columns.cells(name).numbers[: self._size]

    def _joined(self, name: str) -> Words:
        codes = np.full(self._size, -1, np.int32)
        codes[self.rows] = np.arange(len(self.rows))
        firsts, lasts = ("experiment", "name") if name == "run" else ("root", "directory")
        pairs = zip(
            self.stored(firsts).values(self.rows), self.stored(lasts).values(self.rows), strict=True
        )
        if name == "run":
            return Words(
                codes, [f"{first}/{last}" if first else str(last) for first, last in pairs]
            )
        return Words(codes, [join(str(first), str(last or "")) for first, last in pairs])

    def _states(self) -> Words:
        recorded = self.stored("recorded_state")
        if not isinstance(recorded, Words):
            return Words(np.full(self._size, -1, np.int32), [])
        codes = recorded.codes.copy()
        codes[self.lost] = len(recorded.words)
        return Words(codes, [*recorded.words, State.LOST.value])

    @property
    def lost(self) -> Bools:
        """Which runs are lost: running according to their records, but without heartbeats."""
        heartbeat, seen = self.numbers("heartbeat"), self.numbers("seen")
        # The clock of the run's host may be behind, or ahead.
        beat = np.where((seen != 0) & (heartbeat > self.now), seen, np.maximum(heartbeat, seen))
        silent = self.now - beat > BEATS_MISSED * self.numbers("heartbeat_secs")
        return silent & self.running

    @property
    def running(self) -> Bools:
        """Which runs are running according to their records."""
        return self.stored("recorded_state").compare("==", State.RUNNING.value)

    def _durations(self) -> Numbers:
        started, ended = self.numbers("started"), self.numbers("ended")
        runs = self.running & ~self.lost
        end = np.where(ended != 0, ended, np.where(runs, self.now, self.numbers("heartbeat")))
        return Numbers(np.where(started != 0, np.maximum(0.0, end - started), 0.0), started == 0)

    def check(self, question: Question) -> None:
        """Check that each hyperparameter, metric and tag in a question exists in some run.

        Raises:
            BadQuestion: no run has one of them.
        """
        named = [one for one in question.fields if one.group]
        held = [one for one in named if self.column(one).present[self.rows].any()]
        if len(held) < len(named) and len(self.rows):
            known = {one.group: self.names(one.group) for one in named if one not in held}
            for one in held:
                known.setdefault(one.group, []).append(one.name)
            question.check_names(known)

    def names(self, group: str) -> list[str]:
        """Return the names of the hyperparameters, tags or metrics of runs."""
        return self._index.column_names(group, self.roots)


def _cut(column: Column, size: int) -> Column:
    """Return the first `size` rows of a column: runs may have been added since."""
    if len(column) == size:
        return column
    if isinstance(column, Numbers):
        missing = None if column.missing is None else column.missing[:size]
        return Numbers(column.array[:size], missing, column.whole)
    if isinstance(column, Words):
        return Words(column.codes[:size], column.words)
    numbers = Numbers(column.numbers.array[:size], column.numbers.missing, column.numbers.whole)
    if column.numbers.missing is not None:
        numbers = Numbers(numbers.array, column.numbers.missing[:size], numbers.whole)
    return Mixed(numbers, Words(column.words.codes[:size], column.words.words))


class Metrics:
    """Summaries of the metrics of runs, cached until the event files of a run change.

    Metrics are named as in `run.json`: `STAGE/TAG` for a tag in the run's subdirectory STAGE, `TAG`
    for one in the run's own directory, which takes precedence.
    """

    def __init__(self, index: Index) -> None:
        self.index = index
        self._lock = threading.Lock()
        self._stamp: int | None = None
        self._rows: Ints | None = None  # of the table when directories were assigned to runs
        self._runs: dict[str, int | None] = {}  # by the directory of event files
        self._uris: dict[int, str] = {}
        self._marks: dict[int, list[object]] = {}  # by the row of a run
        self._found: dict[str, dict[int, tuple[Tag, Summary] | None]] = {}  # by metric and row
        self._points: dict[Field, dict[int, float | None]] = {}  # of `.first` and `.at`

    def column(self, field: Field, table: RunTable) -> Numbers:
        """Return a statistic of a metric for each row."""
        size = len(table)
        recorded: Column = Numbers(np.zeros(size), np.ones(size, np.bool_))
        newest: Floats | None = None
        if field.statistic == LAST:
            recorded = table.stored(f"metrics.{field.name}")
            newest = table.numbers("heartbeat")
        with self._lock:
            self._refresh(table)
            found = self._summaries(field.name)
            if field.statistic in (_FIRST, AT):
                values = self._values_at(field, found)
            else:
                values = {row: _statistic(one, field.statistic) for row, one in found.items()}
            if not isinstance(recorded, Numbers):
                raise TypeError("metrics of records must be numbers")
            if not values:
                return recorded
            numbers, has = recorded.array.copy(), recorded.present
            for row, value in values.items():
                held = found[row]
                if value is None or held is None or row >= size:
                    continue
                # The record of a run may be newer than what was read from its event files.
                if newest is None or not has[row] or not newest[row] > held[1].last_wall:
                    numbers[row], has[row] = value, True
        return Numbers(numbers, ~has)

    def _refresh(self, table: RunTable) -> None:
        """Drop cached values of runs whose event files were read again."""
        stamp = self.index.stamp()  # before the marks, so that no change is missed
        if table.rows is not self._rows:
            self._runs.clear()  # a run may have been added inside another
        elif stamp == self._stamp:
            return
        marks: dict[int, list[object]] = {}
        found = self.index.marks([Source(root) for root in table.roots])
        for root, of_root in zip(table.roots, found, strict=True):
            self._assign(root, of_root, table)
        for directory, mark in {one: mark for held in found for one, mark in held.items()}.items():
            row = self._runs[directory]
            if row is not None:
                marks.setdefault(row, []).append((directory, mark))
        for row in {*marks, *self._marks}:
            if self._marks.get(row) != marks.get(row):
                for values in (*self._found.values(), *self._points.values()):
                    values.pop(row, None)  # type: ignore[attr-defined]
        self._marks, self._stamp, self._rows = marks, stamp, table.rows

    def _assign(self, root: str, directories: Iterable[str], table: RunTable) -> None:
        """Find the runs that contain the directories."""
        start = len(root.rstrip("/")) + 1
        new = [one for one in directories if self._runs.get(one) is None]
        above = {one: with_parents(one[start:]) for one in new}
        ids = self.index.ids_of(root, {place for places in above.values() for place in places})
        shown = np.zeros(len(table), np.bool_)
        shown[table.rows] = True
        for directory, places in above.items():
            place = next((one for one in places if one in ids), None)
            row = None if place is None else ids[place]
            is_shown = row is not None and row < len(table) and bool(shown[row])
            self._runs[directory] = row if is_shown else None
            if row is not None and place is not None:
                self._uris[row] = join(root, place)

    def _summaries(self, metric: str) -> dict[int, tuple[Tag, Summary] | None]:
        known = _kept(self._found, metric)
        left = {self._uris[row]: row for row in self._marks if row not in known}
        tags = {
            left[uri]: tag
            for (uri, _), tag in self.index.metrics([Source(uri) for uri in left], [metric]).items()
            if self._runs.get(tag.directory) == left[uri]  # else it is of a run inside this one
        }
        summaries = self.index.summaries(list(tags.values()))
        known |= dict.fromkeys(left.values())
        for (row, tag), summary in zip(tags.items(), summaries, strict=True):
            if summary is not None:
                known[row] = tag, summary
        return known

    def _values_at(
        self, field: Field, found: Mapping[int, tuple[Tag, Summary] | None]
    ) -> dict[int, float | None]:
        known = _kept(self._points, field)
        for row, held in found.items():
            if row not in known:
                known[row] = None if held is None else self._value_at(field, *held)
        return known

    def _value_at(self, field: Field, tag: Tag, summary: Summary) -> float | None:
        """Return the first value, or for `.at` the last up to that step, if the run reached it."""
        step = summary.first_step if field.statistic == _FIRST else field.step
        if not summary.count or not summary.first_step <= step <= summary.last_step:
            return None
        try:
            series = self.index.series(tag, start=step, stop=step)
            if not len(series.values):
                series = self.index.series(tag, stop=step, samples=2)  # includes the last
        except UnknownName:  # deleted meanwhile
            return None
        return float(series.values[-1]) if len(series.values) else None


def _kept(held: dict[Any, dict[int, Any]], key: object) -> dict[int, Any]:
    """Return the values of a key in an LRU cache."""
    found = held.pop(key, {})
    held[key] = found
    if len(held) > _MOST_METRICS:
        del held[next(iter(held))]
    return found


def _statistic(held: tuple[Tag, Summary] | None, name: str) -> float | None:
    """Return a statistic; None for the minimum, maximum and mean without a finite value."""
    if held is None:
        return None
    value: float | None = getattr(held[1], name)
    return None if value is None or (name in _OF_FINITE and math.isnan(value)) else value
