"""The columns of all runs in the index: how they are stored, loaded and kept up to date.

The id of a run is its row in every column. The rows of runs are the source of truth; columns derive
from them. A *fold* builds the columns of a chunk of 16,384 rows and stores them with the number of
the last change, in one transaction. A crash leaves either the old columns or the new ones, and a
fold can wait: later changes are read from the rows.

`Columns` keeps the columns in use in memory; an update costs as much as has changed. `RunTable`
maps the fields of a question to columns of records, and to summaries from event files. `Metrics`
caches these; only runs that were read since are looked up again.
"""

from __future__ import annotations

import json
import math
import sqlite3
import struct
import threading
from bisect import bisect_left
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import compress
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

import numpy as np
import numpy.typing as npt

from aboard.index.catalog import (
    CHUNK_SHIFT,
    Values,
    built_chunks,
    changed_rows,
    chunks,
    count_unfolded,
    forget_removed,
    last_change,
    last_id,
    named_runs,
    parts_of_chunk,
)
from aboard.index.query import UnknownName, at_one_moment
from aboard.index.schema import transaction
from aboard.index.sources import Source
from aboard.runs.catalog import directory_of_id, natural, with_parents
from aboard.runs.columns import EXACT, Bools, Column, Floats, Held, Ints, Mixed, Numbers, Words
from aboard.runs.manifest import BEATS_MISSED, State
from aboard.runs.naming import AT, LAST
from aboard.runs.question import Field, Question
from aboard.storage import join

if TYPE_CHECKING:
    from aboard.index.index import Index
    from aboard.index.series import Summary
    from aboard.index.tags import Tag

T = TypeVar("T")
Ask = Callable[[Callable[[sqlite3.Connection], T]], T]
Codes = npt.NDArray[np.int32]
Bits = npt.NDArray[np.uint16]

CHUNK = 1 << CHUNK_SHIFT
_HEAD = struct.Struct("<BIIII")  # flags, rows, numbers, words in rows, bytes of the dictionary
_WHOLE, _JSON = 1, 2
_MANY_WORDS = 4096  # in a chunk: more are not compared with those of other chunks
_MOST_BYTES = 384 << 20  # of columns in memory
_WORD_BYTES = 70
_ORDER, _OF_ALL = "", -1  # the name and the chunk under which the order of all runs is stored
_ORDER_HEAD = struct.Struct("<q")
_MOST_MOVED = 20_000  # runs that are put into the order one by one


@dataclass(slots=True, eq=False)
class Cells:
    """The values of a column: a number where `has` is true, else a word where its code is not -1.

    Arrays are never changed in place; `patched` makes new ones.
    """

    numbers: Floats
    has: Bools
    codes: Codes
    words: list[Held]
    whole: bool = True
    _column: Column | None = None

    @classmethod
    def empty(cls, size: int) -> Cells:
        return cls(np.zeros(size), np.zeros(size, np.bool_), np.full(size, -1, np.int32), [])

    @property
    def nbytes(self) -> int:
        arrays = self.numbers.nbytes + self.has.nbytes + self.codes.nbytes
        return arrays + _WORD_BYTES * len(self.words)

    @property
    def column(self) -> Column:
        if self._column is None:
            self._column = self._made()
        return self._column

    def _made(self) -> Column:
        if not self.words:
            return Numbers(self.numbers, ~self.has, self.whole)
        words = Words(self.codes, self.words)
        if not self.has.any():
            return words
        if not any(type(one) is int for one in self.words):
            return Mixed(Numbers(self.numbers, ~self.has, self.whole), words)
        # Some integers are not exact as floats: compare each number as an object.
        codes = self.codes.copy()
        codes[self.has] = len(self.words) + np.arange(np.count_nonzero(self.has))
        numbers = Numbers(self.numbers, None, self.whole)
        return Words(codes, [*self.words, *numbers.values(np.flatnonzero(self.has))])  # type: ignore[list-item]

    def get(self, row: int) -> Held | None:
        if self.has[row]:
            return float(self.numbers[row])
        code = self.codes[row]
        return None if code < 0 else self.words[code]

    def _holds(self, row: int, value: Held | None) -> bool:
        if self.has[row]:
            is_same = _is_number(value) and self.numbers[row] == value
            return bool(is_same) and not (self.whole and type(value) is float)
        held = self.get(row)
        return type(held) is type(value) and held == value

    def patched(self, size: int, items: Sequence[tuple[int, Held | None]]) -> Cells:
        """Return a copy of another size, with the values in `items` replaced."""
        if size == len(self.codes):
            items = [(row, value) for row, value in items if not self._holds(row, value)]
            if not items:
                return self
        after = Cells(
            _resized(self.numbers, size, 0.0),
            _resized(self.has, size, fill=False),
            _resized(self.codes, size, -1),
            self.words,
            self.whole,
        )
        places: dict[tuple[type, Held], int] = {}
        added: list[Held] = []
        if len(self.words) <= _MANY_WORDS:
            places = {(type(one), one): at for at, one in enumerate(self.words)}
        for row, value in items:
            is_number = _is_number(value)
            after.has[row] = is_number
            after.numbers[row] = value if is_number else 0.0  # type: ignore[assignment]
            after.codes[row] = -1
            if is_number:
                after.whole = after.whole and type(value) is int
            elif value is not None:
                code = places.setdefault((type(value), value), len(self.words) + len(added))
                if code == len(self.words) + len(added):
                    added.append(value)
                after.codes[row] = code
        if added:
            after.words = [*self.words, *added]
        return after


def _is_number(value: object) -> bool:
    return type(value) is float or (type(value) is int and -EXACT <= value <= EXACT)


def _resized(array: npt.NDArray[Any], size: int, fill: Any) -> npt.NDArray[Any]:
    made = np.full(size, fill, array.dtype)
    made[: len(array)] = array
    return made


# Columns in the index.


def _encode(offsets: Sequence[int], values: Sequence[Held]) -> bytes:
    """Encode the values of a column in a chunk, at offsets from its first row."""
    kinds = set(map(type, values))
    if kinds == {float} or kinds.isdisjoint({int, float}):  # true for most columns
        are_numbers = [kinds == {float}] * len(values)
    else:
        are_numbers = [_is_number(one) for one in values]
    are_words = [not one for one in are_numbers]
    numbers, numbered = list(compress(values, are_numbers)), list(compress(offsets, are_numbers))
    held, worded = list(compress(values, are_words)), list(compress(offsets, are_words))
    kept: Sequence[Any] = held if kinds == {str} else [(type(one), one) for one in held]
    places = {one: at for at, one in enumerate(dict.fromkeys(kept))}
    codes = [places[one] for one in kept]
    words: list[Any] = list(places) if kinds == {str} else [one for _, one in places]
    whole = all(type(one) is int for one in numbers)
    flags = _WHOLE * whole
    if all(type(one) is str and "\0" not in one for one in words):
        dictionary = "\0".join(words).encode()
    else:
        flags |= _JSON
        listed = [sorted(one) if isinstance(one, frozenset) else one for one in words]
        dictionary = json.dumps(listed).encode()
    return b"".join(
        [
            _HEAD.pack(flags, len(words), len(numbers), len(codes), len(dictionary)),
            dictionary,
            np.array(numbered, "<u2").tobytes(),
            np.array(numbers, "<f8").tobytes(),
            np.array(worded, "<u2").tobytes(),
            np.array(codes, "<u2").tobytes(),
        ]
    )


class _Part(NamedTuple):
    """A decoded result of `_encode`."""

    numbered: npt.NDArray[np.uint16]
    numbers: Floats
    worded: npt.NDArray[np.uint16]
    codes: npt.NDArray[np.uint16]
    words: list[Held]
    whole: bool


def _decode(data: bytes) -> _Part:
    flags, word_count, number_count, code_count, length = _HEAD.unpack_from(data)
    end = _HEAD.size + length
    dictionary = data[_HEAD.size : end]
    words: list[Held] = []
    if flags & _JSON:
        words = [frozenset(one) if isinstance(one, list) else one for one in json.loads(dictionary)]
    elif word_count:
        words = dictionary.decode().split("\0")  # type: ignore[assignment]
    arrays: list[Any] = []
    for kind, count in (("<u2", number_count), ("<f8", number_count), *[("<u2", code_count)] * 2):
        arrays.append(np.frombuffer(data, kind, count, end))
        end += arrays[-1].nbytes
    numbered, numbers, worded, codes = arrays
    return _Part(numbered, numbers, worded, codes, words, bool(flags & _WHOLE))


def _load(connection: sqlite3.Connection, name: str, size: int) -> Cells:
    """Return a column as of the last folds of its chunks."""
    cells = Cells.empty(size)
    places: dict[tuple[type, Held], int] = {}
    rows = connection.execute(
        "SELECT chunk, data FROM run_column WHERE name = ? AND chunk >= 0", (name,)
    )
    for chunk, data in rows:
        part = _decode(data)
        base = chunk << CHUNK_SHIFT
        if len(part.numbers):
            at = _places(part.numbered, base)
            cells.numbers[at], cells.has[at] = part.numbers, True
            cells.whole = cells.whole and part.whole
        if not len(part.codes):
            continue
        if len(part.words) > _MANY_WORDS:
            codes = part.codes + np.int32(len(cells.words))
            cells.words += part.words
        else:
            known = len(cells.words)
            found = []
            for one in part.words:
                code = places.setdefault((type(one), one), known)
                if code == known:
                    cells.words.append(one)
                    known += 1
                found.append(code)
            codes = np.array(found, np.int32)[part.codes]
        cells.codes[_places(part.worded, base)] = codes
    return cells


def _load_presence(connection: sqlite3.Connection, size: int) -> dict[str, Bits]:
    found: dict[str, Bits] = {}
    width = CHUNK // 16
    for name, chunk, bits in connection.execute("SELECT name, chunk, bits FROM run_presence"):
        if name not in found:
            found[name] = np.zeros(size // 16, np.uint16)
        found[name][chunk * width : (chunk + 1) * width] = np.frombuffer(bits, np.uint16)
    return found


def _places(offsets: npt.NDArray[np.uint16], base: int) -> slice | Ints:
    """Return where to put values: a slice if they are contiguous, which is faster."""
    first, last = int(offsets[0]) + base, int(offsets[-1]) + base
    if last - first + 1 == len(offsets):
        return slice(first, last + 1)
    return offsets + np.int64(base)


def fold(connection: sqlite3.Connection, most: int) -> None:
    """Fold chunks, those with most unfolded rows first, until `most` unfolded rows are left."""
    unfolded = count_unfolded(connection)
    left = sum(unfolded.values())
    for chunk in sorted(unfolded, key=unfolded.__getitem__, reverse=True):
        if left <= most:
            break
        fold_chunk(connection, chunk)
        left -= unfolded[chunk]
    _store_order(connection)


def fold_chunk(connection: sqlite3.Connection, chunk: int) -> None:
    with transaction(connection):
        _, change = last_change(connection)
        parts = parts_of_chunk(connection, chunk)
        of_rows, roots_of_rows = parts.get("root", ([], []))
        root_of = dict(zip(of_rows, roots_of_rows, strict=True))
        first = chunk << CHUNK_SHIFT
        for table in ("run_column", "run_presence"):
            connection.execute(f"DELETE FROM {table} WHERE chunk = ?", (chunk,))
        for name, (rows, values) in parts.items():
            offsets = [row - first for row in rows]
            roots = json.dumps(sorted({root_of[row] for row in rows}))
            connection.execute(
                "INSERT INTO run_column VALUES (?, ?, ?, ?)",
                (name, chunk, roots, _encode(offsets, values)),
            )
            connection.execute(
                "INSERT INTO run_presence VALUES (?, ?, ?)",
                (name, chunk, _bits(offsets, CHUNK).tobytes()),
            )
        connection.execute("INSERT OR REPLACE INTO fold VALUES (?, ?)", (chunk, change))


def _bits(rows: Sequence[int] | Ints, size: int) -> Bits:
    """Return `size` bits, of which those of `rows` are set."""
    flags = np.zeros(size, np.bool_)
    flags[rows] = True
    return np.packbits(flags).view(np.uint16)


def _count_bits(bits: Bits) -> int:
    return int(_ONES[bits].sum(dtype=np.int64))


_ONES = np.unpackbits(np.arange(1 << 16, dtype=np.uint16).view(np.uint8))
_ONES = _ONES.reshape(-1, 16).sum(1, dtype=np.uint8)  # bits set in each number


def _store_order(connection: sqlite3.Connection) -> None:
    with transaction(connection):
        columns = Columns(lambda work: work(connection))
        order = columns.order().astype("<i4")
        _, change = last_change(connection)
        connection.execute(
            "INSERT OR REPLACE INTO run_column VALUES (?, ?, '[]', ?)",
            (_ORDER, _OF_ALL, _ORDER_HEAD.pack(change) + order.tobytes()),
        )
        forget_removed(connection)


# Columns in memory.


class _Order(NamedTuple):
    """All runs in natural order of their labels, and the columns that labels consist of."""

    change: int
    rows: Ints
    labels: _Labels | None  # None until needed


class _Labels(NamedTuple):
    experiments: Cells
    names: Cells
    roots: Cells
    directories: Cells

    def label(self, row: int) -> str | None:
        if row >= len(self.names.codes) or self.roots.get(row) is None:
            return None
        experiment, name = self.experiments.get(row), self.names.get(row) or ""
        return f"{experiment}/{name}" if experiment else str(name)

    def key(self, row: int) -> tuple[str, str, str]:
        roots, directories = self.roots.get(row), self.directories.get(row) or ""
        return natural(self.label(row) or ""), str(roots), str(directories)


class Columns:
    """The columns of an index; `ask` runs a function on a connection to it. Thread-safe."""

    def __init__(self, ask: Ask[Any]) -> None:
        self._ask = ask
        self._lock = threading.RLock()
        self._epoch: int | None = None  # of the index
        self._built: dict[int, int] = {}
        self._change = -1
        self._size = 0
        self._recent: dict[int, tuple[int, Values | None]] = {}  # rows newer than their columns
        self._cells: dict[str, tuple[int, Cells]] = {}  # least recently used first
        self._order: _Order | None = None
        self._presence: dict[str, Bits] | None = None  # as of the folds; None until needed
        self._counts: tuple[int, Ints, dict[str, int]] | None = None  # by change and rows

    def cells(self, name: str) -> Cells:
        """Return a column, up to date."""
        return self._at_one_moment(lambda connection: self._current(connection, name))

    def order(self) -> Ints:
        """Return the rows of all runs in natural order."""
        return self._at_one_moment(self._ordered)

    def counts(self, rows: Ints) -> dict[str, int]:
        """Return in how many of the rows each column has a value, without loading columns."""
        return self._at_one_moment(lambda connection: self._counted(connection, rows))

    def named(self, name: str, experiments: Iterable[str]) -> Ints:
        """Return the rows of the runs with a name in any of the experiments."""
        found = self._ask(lambda connection: named_runs(connection, name, list(experiments)))
        return np.array(found, np.int64)

    def _at_one_moment(self, work: Callable[[sqlite3.Connection], T]) -> T:
        def locked(connection: sqlite3.Connection) -> T:
            with self._lock, at_one_moment(connection):
                self._advance(connection)
                return work(connection)

        found: T = self._ask(locked)
        return found

    def _advance(self, connection: sqlite3.Connection) -> None:
        """Read the rows that changed since the last call."""
        epoch, change = last_change(connection)
        if (epoch, change) == (self._epoch, self._change):
            return
        built = built_chunks(connection)
        is_folded = (epoch, built) != (self._epoch, self._built) or change < self._change
        if is_folded:
            since = {chunk: built.get(chunk, -1) for chunk in chunks(connection)}
        else:
            since = dict.fromkeys(chunks(connection), self._change)
        found = changed_rows(connection, since.__getitem__)
        recent = {row: (changed, values) for row, changed, values in found}
        size = last_id(connection) + 1
        # Nothing is kept of a look that failed.
        if is_folded:
            self._recent.clear()
            self._cells.clear()
            self._order = self._presence = self._counts = None
        self._recent |= recent
        self._epoch, self._built, self._change, self._size = epoch, built, change, size

    def _current(self, connection: sqlite3.Connection, name: str) -> Cells:
        held = self._cells.pop(name, None)
        if held is None:
            held = -1, _load(connection, name, self._size)
        since, cells = held
        if since != self._change:
            items = [
                (row, None if values is None else values.get(name))
                for row, (changed, values) in self._recent.items()
                if changed > since
            ]
            cells = cells.patched(self._size, items)
        self._cells[name] = self._change, cells
        self._forget_unused()
        return cells

    def _forget_unused(self) -> None:
        total = sum(cells.nbytes for _, cells in self._cells.values())
        while total > _MOST_BYTES and len(self._cells) > 1:
            oldest = next(iter(self._cells))
            total -= self._cells.pop(oldest)[1].nbytes

    def _counted(self, connection: sqlite3.Connection, rows: Ints) -> dict[str, int]:
        if self._counts is not None and self._counts[0] == self._change:
            _, of_rows, counts = self._counts
            if of_rows is rows:
                return counts
        size = len(chunks(connection)) * CHUNK
        if self._presence is None:
            self._presence = _load_presence(connection, size)
        flags = np.zeros(size, np.bool_)
        flags[rows[rows < self._size]] = True
        recent = [row for row in self._recent if flags[row]]
        flags[recent] = False
        chosen = np.packbits(flags).view(np.uint16)
        counts = {
            name: _count_bits(bits & chosen[: len(bits)]) for name, bits in self._presence.items()
        }
        for row in recent:
            for name in self._recent[row][1] or ():
                counts[name] = counts.get(name, 0) + 1
        counts = {name: count for name, count in counts.items() if count}
        self._counts = self._change, rows, counts
        return counts

    def _labels(self, connection: sqlite3.Connection) -> _Labels:
        names = ("experiment", "name", "root", "directory")
        return _Labels(*(self._current(connection, name) for name in names))

    def _ordered(self, connection: sqlite3.Connection) -> Ints:
        if self._order is not None and self._order.change == self._change:
            return self._order.rows
        before, self._order = self._order, None
        rows: Ints | None = None
        if before is not None:
            rows = before.rows
            moved = [row for row, (changed, _) in self._recent.items() if changed > before.change]
        else:
            rows, moved = self._stored_order(connection)
        labels = before.labels if before is not None else None
        if moved or rows is None:
            known, labels = labels, self._labels(connection)
            if known is not None:
                moved = [row for row in moved if known.label(row) != labels.label(row)]
            if rows is None or len(moved) > _MOST_MOVED:
                rows = _sorted(connection, labels)
            elif moved:
                rows = _moved(rows, moved, labels)
        self._order = _Order(self._change, rows, labels)
        return rows

    def _stored_order(self, connection: sqlite3.Connection) -> tuple[Ints | None, list[int]]:
        """Return the stored order, and the rows that have changed since."""
        stored = connection.execute(
            "SELECT data FROM run_column WHERE name = ? AND chunk = ?", (_ORDER, _OF_ALL)
        ).fetchone()
        if stored is None:
            return None, []
        (change,) = _ORDER_HEAD.unpack_from(stored[0])
        moved: list[int] = []
        for chunk in chunks(connection):
            for table in ("run", "gone"):
                moved += [
                    row
                    for (row,) in connection.execute(
                        f"SELECT id FROM {table} WHERE id >> {CHUNK_SHIFT} = ? AND changed > ?",
                        (chunk, change),
                    )
                ]
        return np.frombuffer(stored[0], "<i4", offset=_ORDER_HEAD.size).astype(np.int64), moved


def _sorted(connection: sqlite3.Connection, labels: _Labels) -> Ints:
    rows = [row for (row,) in connection.execute("SELECT id FROM run ORDER BY root, directory")]
    keys = {row: natural(labels.label(row) or "") for row in rows}
    return np.array(sorted(rows, key=keys.__getitem__), np.int64)


def _moved(rows: Ints, moved: Sequence[int], labels: _Labels) -> Ints:
    """Return rows in their new order after the labels of `moved` have changed."""
    is_moved = np.zeros(len(labels.names.codes), np.bool_)
    is_moved[list(moved)] = True
    left = rows[~is_moved[rows]]
    added = sorted((row for row in moved if labels.label(row) is not None), key=labels.key)
    places = [
        bisect_left(left, labels.key(row), key=lambda at: labels.key(int(at))) for row in added
    ]
    return np.insert(left, places, added) if added else left


# Runs as a table, with a column for each field of a question.

_FIRST = "first"
_OF_FINITE = ("min", "max", "mean")
_INTEGERS = ("count", "nans", "infinities", "first_step", "last_step", "min_step", "max_step")
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
        self._columns = metrics.index.columns
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
        return Numbers(numbers, ~has, whole=field.statistic in _INTEGERS)

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
