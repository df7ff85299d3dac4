"""Points of tags from the chunks of the index, and records from event files.

A *series* is a tag's points from all files of its run, without those superseded by a restart. Long
ones can be sampled. The *outline* of a series consists of the sketches of its chunks: it shows
which chunks a window needs and which of their points remain, and a long window is sampled from it
alone. Totals are stored with every segment, and a *summary* adds them up; only if a restart in the
middle superseded points are chunks examined. A value that is not a scalar is a *record*: the index
has a pointer to it.
"""

from __future__ import annotations

import json
import math
import sqlite3
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from functools import lru_cache
from itertools import islice, pairwise
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import numpy.typing as npt

from aboard.events.records import OVERHEAD, unframe
from aboard.events.scanner import CODES, Sketch, Totals, sketch
from aboard.index.schema import CHUNK_BITS, SCALARS
from aboard.index.store import STORED, totals_of
from aboard.index.tags import Segment, Tag
from aboard.storage.base import Storage, StorageError, is_remote, join, open_storage, split

if TYPE_CHECKING:
    from aboard.events.messages import Value

Ints = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]

_REMOTE_READERS = 16


class Series(NamedTuple):
    """The points of a scalar tag, in the order of their steps."""

    steps: Ints
    wall_times: Floats
    values: Floats

    def sample(self, limit: int) -> Series:
        if len(self.values) <= limit:
            return self
        return self.at(downsample(self.values, limit))

    def between(self, start: int | None, stop: int | None) -> Series:
        """Return the points with steps from `start` to `stop`, both included."""
        first = 0 if start is None else int(np.searchsorted(self.steps, start))
        last = len(self.steps) if stop is None else int(np.searchsorted(self.steps, stop, "right"))
        return self.at(slice(first, last))

    def at(self, places: Ints | slice) -> Series:
        return Series(self.steps[places], self.wall_times[places], self.values[places])


class Pointer(NamedTuple):
    """Where a value that is not a scalar is stored."""

    uri: str
    offset: int
    length: int
    step: int
    wall_time: float
    rows: int


def read_series(
    connection: sqlite3.Connection,
    tag: Tag,
    *,
    samples: int | None = None,
    start: int | None = None,
    stop: int | None = None,
) -> Series:
    """Return the points with steps from `start` to `stop`, both included, sampled if needed."""
    if not tag.is_scalar:
        return _series([])
    is_whole = start is None and stop is None
    if is_whole and (samples is None or tag.points <= _READ_WHOLE):
        whole = surviving(part for one in tag.segments for part in _chunks(connection, one))
        series = _series([] if whole is None else [whole])
        return series if samples is None else series.sample(samples)
    return _read_window(connection, tag, samples, _Window(start, stop))


def _series(parts: Sequence[Arrays]) -> Series:
    if not parts:
        return Series(np.empty(0, np.int64), np.empty(0), np.empty(0))
    whole = joined(parts)
    columns = (whole.steps, whole.walls, whole.payload.astype(np.float64, copy=False))
    return Series(*map(_owned, columns))


# Windows, and sketches that replace reading chunks.


_READ_WHOLE = 1 << 19  # points; up to this many are read and sampled in a few milliseconds
_STEPS = np.iinfo(np.int64)
_SKETCH = np.dtype(list(zip(Sketch._fields, CODES, strict=True)))
_SKETCHED = ("first", "last", "low", "high")
_ODD = {"nan": math.nan, "up": math.inf, "down": -math.inf}
_FEW = len(_SKETCHED) + len(_ODD)  # points of a sketch


class _Window(NamedTuple):
    start: int | None
    stop: int | None

    @property
    def first(self) -> int:
        return _STEPS.min if self.start is None else max(self.start, _STEPS.min)

    @property
    def last(self) -> int:
        return _STEPS.max if self.stop is None else min(self.stop, _STEPS.max)


_EVERYTHING = _Window(None, None)


class _Outline(NamedTuple):
    """The chunks of a tag that have current points, in order; `ends` has their last steps."""

    ids: Ints
    sketches: npt.NDArray[Any]
    ends: Ints  # steps

    def at(self, places: npt.NDArray[np.bool_]) -> _Outline:
        return _Outline(self.ids[places], self.sketches[places], self.ends[places])

    def within(self, window: _Window) -> npt.NDArray[np.bool_]:
        """Return which chunks are completely within a window."""
        firsts, lasts = self.sketches["first_step"], self.sketches["last_step"]
        found: npt.NDArray[np.bool_] = lasts <= np.minimum(self.ends, window.last)
        return found & (firsts >= window.first)


def _outline(connection: sqlite3.Connection, tag: Tag) -> _Outline:
    ids, sketches = [], []
    for segment in tag.segments:
        rows = connection.execute(
            "SELECT id, sketch FROM chunk WHERE id >= ? AND id < ? ORDER BY id", _ids(segment)
        ).fetchall()
        ids += [chunk for chunk, _ in rows]
        sketches += [stored or _sketch_of(connection, chunk) for chunk, stored in rows]
    whole = np.frombuffer(b"".join(sketches), _SKETCH)
    # A chunk ends before the smallest step of what was written after it.
    ends = np.full(len(ids), _STEPS.max)
    firsts = whole["first_step"]
    ends[:-1] = np.minimum.accumulate(firsts[:0:-1])[::-1]
    left = np.ones(len(ids), np.bool_)
    left[:-1] = firsts[:-1] < ends[:-1]
    ends[:-1] -= left[:-1]
    return _Outline(np.array(ids, np.int64), whole, ends).at(left)


def _sketch_of(connection: sqlite3.Connection, chunk: int) -> bytes:
    """Compute the sketch of a chunk that is too small to have one in the index."""
    columns = "SELECT count, steps, walls, payload FROM chunk WHERE id = ?"
    return sketch(*connection.execute(columns, (chunk,)).fetchone())


def _read_window(
    connection: sqlite3.Connection, tag: Tag, samples: int | None, window: _Window
) -> Series:
    outline = _outline(connection, tag)
    firsts, lasts = outline.sketches["first_step"], outline.sketches["last_step"]
    outline = outline.at((firsts <= window.last) & (lasts >= window.first))
    inner = outline.within(window)
    if samples is not None and outline.sketches["size"][inner].sum() > _READ_WHOLE:
        sketched = _sketched(outline.sketches[inner])
        if len(sketched.steps) >= samples:
            edges = _read_chunks(connection, outline.at(~inner), window)
            few = [_sampled([edge], _FEW) for edge in edges]
            columns = (np.concatenate(column) for column in zip(sketched, *few, strict=True))
            whole = Series(*columns)
            return whole.at(np.argsort(whole.steps)).sample(samples)
    parts = list(_read_chunks(connection, outline, window))
    return _series(parts) if samples is None else _sampled(parts, samples)


def _sampled(parts: Sequence[Arrays], limit: int) -> Series:
    """Sample parts of a series; only their values are joined before."""
    if not parts:
        return _series([])
    values = np.concatenate([part.payload for part in parts], dtype=np.float64)
    places = downsample(values, limit)
    starts = np.cumsum([0, *map(len, parts)])
    cuts = np.searchsorted(places, starts)
    chosen = [
        (part.steps[at], part.walls[at])
        for part, start, (first, last) in zip(parts, starts, pairwise(cuts), strict=False)
        for at in [places[first:last] - start]
    ]
    steps, walls = (np.concatenate(column) for column in zip(*chosen, strict=True))
    return Series(steps, walls, values[places])


def _sketched(sketches: npt.NDArray[Any]) -> Series:
    """Return the distinct points of sketches, in order."""
    parts = []
    for name in _SKETCHED:
        there = sketches[~np.isnan(sketches["low"])] if name in ("low", "high") else sketches
        parts.append((there[f"{name}_step"], there[f"{name}_wall"], there[name]))
    for name, value in _ODD.items():
        there = sketches[sketches[f"{name}s"] > 0]
        parts.append((there[f"{name}_step"], there[f"{name}_wall"], np.full(len(there), value)))
    whole = Series(*(np.concatenate(column) for column in zip(*parts, strict=True)))
    return whole.at(np.unique(whole.steps, return_index=True)[1])


def _read_chunks(
    connection: sqlite3.Connection, outline: _Outline, window: _Window
) -> Iterator[Arrays]:
    """Yield the current points of chunks within a window."""
    inner, sizes = outline.within(window), outline.sketches["size"].tolist()
    breaks = np.flatnonzero(np.diff(outline.ids) != 1) + 1
    for span in np.split(np.arange(len(outline.ids)), breaks):
        if not len(span):
            return
        rows = connection.execute(
            "SELECT count, steps, walls, payload FROM chunk WHERE id BETWEEN ? AND ? ORDER BY id",
            (int(outline.ids[span[0]]), int(outline.ids[span[-1]])),
        )
        for place, row in zip(span.tolist(), rows, strict=True):
            columns = unpack(*row, form=SCALARS)
            if inner[place] and sizes[place] == len(columns):
                yield columns
                continue
            steps = columns.steps
            keep = (steps >= window.first) & (steps <= min(int(outline.ends[place]), window.last))
            local = survivors(steps)
            if local is not None:
                keep &= local
            yield Arrays(steps[keep], columns.walls[keep], columns.payload[keep])


def read_totals(connection: sqlite3.Connection, tag: Tag) -> Totals:
    """Return the totals of a scalar tag; reads only chunks that a restart superseded partly."""
    outline = _outline(connection, tag)
    parts = [Totals.of(one.tobytes()) for one in outline.sketches]
    for place in np.flatnonzero(~outline.within(_EVERYTHING)).tolist():
        (part,) = _read_chunks(connection, outline.at(np.arange(len(parts)) == place), _EVERYTHING)
        columns = (part.steps.tobytes(), part.walls.tobytes(), part.payload.tobytes())
        parts[place] = Totals.of(sketch(len(part), *columns))
    totals = added(parts)
    if totals is None:
        raise LookupError(f"tag {tag.name!r} of run {tag.run!r} has no points")
    return totals


def read_pointers(
    connection: sqlite3.Connection, tag: Tag, step: int | None = None
) -> list[Pointer]:
    if tag.is_scalar:
        return []
    parts, uris = [], []
    for number, segment in enumerate(tag.segments):
        uris.append(join(segment.directory, segment.file_name))
        for columns in _chunks(connection, segment):
            origin = np.full((len(columns), 1), number, np.int64)
            payload = np.concatenate([columns.payload, origin], axis=1).astype(np.int64)
            parts.append(Arrays(columns.steps, columns.walls, payload))
    whole = surviving(parts)
    if whole is None:
        return []
    rows = slice(None) if step is None else whole.steps == step
    kept = (column[rows].tolist() for column in (whole.steps, whole.walls, whole.payload))
    return [
        Pointer(uris[number], offset, length, at, wall, count)
        for at, wall, (offset, length, count, number) in zip(*kept, strict=True)
    ]


def _chunks(connection: sqlite3.Connection, segment: Segment) -> Iterator[Arrays]:
    rows = connection.execute(
        "SELECT count, steps, walls, payload FROM chunk WHERE id >= ? AND id < ? ORDER BY id",
        _ids(segment),
    )
    for row in rows:
        yield unpack(*row, form=segment.form)


def _ids(segment: Segment) -> tuple[int, int]:
    """Return the first id of a segment's chunks, and the first id after them."""
    return segment.id << CHUNK_BITS, (segment.id + 1) << CHUNK_BITS


def _owned(column: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """Return a writable array; the array of a single chunk is a view of bytes from the index."""
    return column if column.flags.writeable else column.copy()


def written_steps(connection: sqlite3.Connection, segment: Segment) -> Ints:
    rows = connection.execute(
        "SELECT count, steps FROM chunk WHERE id >= ? AND id < ? ORDER BY id", _ids(segment)
    )
    return np.concatenate([np.empty(0, np.int64), *(unpack_steps(*row) for row in rows)])


def count_survivors(connection: sqlite3.Connection, tag: Tag) -> int:
    whole = np.concatenate([written_steps(connection, segment) for segment in tag.segments])
    keep = survivors(whole)
    return len(whole) if keep is None else int(keep.sum())


def sample_together(series: Sequence[Series], limit: int) -> list[Series]:
    """Sample series that are drawn together, at the same steps.

    Series that were not logged at the same steps are sampled separately. A series may lack the last
    step, which is still being written.
    """
    counts = [len(one.steps) for one in series]
    count = min(counts)
    heads = [one.at(slice(count)) for one in series]
    if max(counts) > count + 1 or any((one.steps != heads[0].steps).any() for one in heads):
        return [one.sample(limit) for one in series]
    if max(counts) <= limit:
        return list(series)
    places = downsample(np.stack([one.values for one in heads]), limit)
    return [one.at(places) for one in heads]


def downsample(values: Floats, limit: int) -> Ints:
    """Return the positions, in order, of up to `limit` points that represent `values`.

    They include the first, last, smallest and largest point of every bucket of points, and one of
    each kind of value that is not finite. What remains of the limit goes to the edges of gaps, then
    evenly to other points. With several series, one row each, the positions represent all of them.
    """
    if limit < 1:
        raise ValueError(f"cannot sample a series down to {limit} points")
    rows = np.atleast_2d(values)
    count = rows.shape[1]
    if count <= limit:
        return np.arange(count)
    low = high = rows
    odd: list[npt.NDArray[np.bool_]] = []
    finite = np.isfinite(rows)
    if not finite.all():
        low, high = np.where(finite, rows, np.inf), np.where(finite, rows, -np.inf)
        kinds = (np.isnan(rows), rows == np.inf, rows == -np.inf)
        odd = [row for kind in kinds for row in kind if row.any()]
    chosen = np.zeros(count, np.bool_)
    buckets = limit // (2 + 2 * len(rows) + len(odd))
    if buckets:
        width = -(-count // buckets)
        chosen[::width] = chosen[width - 1 :: width] = chosen[-1] = True
        for pick, picked in ((np.argmin, low), (np.argmax, high), (np.argmax, odd)):
            for row in picked:
                chosen[_in_buckets(pick, row, width)] = True
    else:
        chosen[_few(rows)[:limit]] = True
    if odd:
        _choose(chosen, _edges(odd), limit)
    _choose(chosen, ~chosen, limit)
    return np.flatnonzero(chosen)


def _in_buckets(pick: Callable[..., Any], row: npt.NDArray[Any], width: int) -> Ints:
    """Return the position that `pick` finds in each bucket of a row; the last may be shorter."""
    whole = len(row) // width * width
    places: Ints = pick(row[:whole].reshape(-1, width), axis=1)
    places += np.arange(0, whole, width)
    return places if whole == len(row) else np.append(places, whole + pick(row[whole:]))


def _few(rows: Floats) -> list[int]:
    """Return the most important positions: the last, the first, the largest, the smallest."""
    places = [rows.shape[1] - 1, 0]
    for row in rows:
        missing = np.isnan(row)
        places += [
            int(np.argmax(np.where(missing, -np.inf, row))),
            int(np.argmin(np.where(missing, np.inf, row))),
            int(np.argmax(missing)),
        ]
    return list(dict.fromkeys(places))


def _edges(odd: Sequence[npt.NDArray[np.bool_]]) -> npt.NDArray[np.bool_]:
    """Return the points on both sides of each beginning and end of a gap."""
    edges = np.zeros(len(odd[0]), np.bool_)
    for row in odd:
        change = row[1:] != row[:-1]
        edges[1:] |= change
        edges[:-1] |= change
    return edges


def _choose(chosen: npt.NDArray[np.bool_], candidates: npt.NDArray[np.bool_], limit: int) -> None:
    """Choose candidates until there are `limit` points, evenly if there are too many."""
    room = limit - int(np.count_nonzero(chosen))
    left = np.flatnonzero(candidates & ~chosen)
    if len(left) > room:
        left = left[np.linspace(0, len(left), room, endpoint=False).astype(np.int64)]
    chosen[left] = True


# Chunks as arrays, and what restarts leave of them; `scanner.Chunk` defines their layout.


@dataclass(frozen=True, slots=True)
class Arrays:
    """Values of a segment, as arrays; `payload` has one column for scalars, three for pointers."""

    steps: Ints
    walls: Floats
    payload: Floats | Ints

    def __len__(self) -> int:
        return len(self.steps)


def joined(parts: Sequence[Arrays]) -> Arrays:
    if len(parts) == 1:
        return parts[0]
    return Arrays(
        np.concatenate([part.steps for part in parts]),
        np.concatenate([part.walls for part in parts]),
        np.concatenate([part.payload for part in parts]),
    )


def unpack(count: int, steps: bytes, walls: bytes, payload: bytes, *, form: int) -> Arrays:
    return Arrays(
        unpack_steps(count, steps),
        np.frombuffer(walls, np.float64),
        _unpack_payload(count, payload, form),
    )


def unpack_steps(count: int, steps: bytes) -> Ints:
    stored = np.frombuffer(steps, np.int64)
    if len(stored) == count:
        return stored
    first, stride = stored.tolist()
    end = first + stride * count
    if stride and end <= _STEPS.max:
        return np.arange(first, end, stride)
    even: Ints = stored[0] + stored[1] * np.arange(count, dtype=np.int64)
    return even


def _unpack_payload(count: int, payload: bytes, form: int) -> Floats | Ints:
    if form:
        return np.frombuffer(payload, np.int64).reshape(count, 3)
    if len(payload) == 4 * count:
        return np.frombuffer(payload, np.float32).astype(np.float64)
    return np.frombuffer(payload, np.float64)


def survivors(steps: Ints) -> npt.NDArray[np.bool_] | None:
    """Return which values restarts leave: those without an equal or smaller step after them.

    A run that restarts from a checkpoint writes some steps again, which supersede those that it
    wrote the first time. None means that all values remain.
    """
    if len(steps) < 2 or (steps[1:] > steps[:-1]).all():
        return None
    later = np.minimum.accumulate(steps[::-1])[::-1]
    keep = np.ones(len(steps), np.bool_)
    keep[:-1] = steps[:-1] < later[1:]
    return keep


def surviving(parts: Iterable[Arrays]) -> Arrays | None:
    """Join the parts of a series in order, without values superseded by restarts."""
    held = [part for part in parts if len(part)]
    if not held:
        return None
    whole = joined(held)
    keep = survivors(whole.steps)
    if keep is None:
        return whole
    return Arrays(whole.steps[keep], whole.walls[keep], whole.payload[keep])


# Records, which are read from their event files.

Unreadable = Callable[[Pointer, Exception], None]


def read_records(
    tag: Tag, pointers: Sequence[Pointer], *, on_error: Unreadable | None = None
) -> Iterator[Value]:
    """Read the value of each record of a tag, in order; from a bucket, several at a time.

    Of several values in one record the last counts, as for scalars. `on_error` is called for each
    record that was deleted or changed; without it, the first such record raises.
    """

    def read(pointer: Pointer) -> list[Value]:
        try:
            return _values(tag, _read(pointer))
        except (StorageError, ValueError) as error:
            if on_error is None:
                raise
            on_error(pointer, error)
            return []

    if len(pointers) > 1 and is_remote(pointers[0].uri):
        yield from _some_ahead(read, pointers)
    else:
        for pointer in pointers:
            yield from read(pointer)


def _some_ahead(
    read: Callable[[Pointer], list[Value]], pointers: Sequence[Pointer]
) -> Iterator[Value]:
    """Read records in threads, ahead of the caller by at most one record per thread."""
    todo = iter(pointers)
    readers = ThreadPoolExecutor(min(_REMOTE_READERS, len(pointers)))
    try:
        waiting: deque[Future[list[Value]]] = deque(
            readers.submit(read, one) for one in islice(todo, _REMOTE_READERS)
        )
        while waiting:
            values = waiting.popleft().result()
            waiting.extend(readers.submit(read, one) for one in islice(todo, 1))
            yield from values
    finally:
        readers.shutdown(wait=False, cancel_futures=True)


def _read(pointer: Pointer) -> bytes:
    directory, name = split(pointer.uri)
    end = pointer.offset + pointer.length + OVERHEAD
    return unframe(_storage(directory).read(name, pointer.offset, end))


@lru_cache(maxsize=64)
def _storage(uri: str) -> Storage:
    return open_storage(uri)


def _values(tag: Tag, data: bytes) -> list[Value]:
    from aboard.events.messages import decode

    metadata = {} if tag.metadata is None else {tag.name: tag.metadata}
    return [value for value in decode(data, metadata) if value.tag == tag.name][-1:]


# Summaries.


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


def read_summaries(connection: sqlite3.Connection, tags: Sequence[Tag]) -> list[Summary | None]:
    """Return the summaries of tags in the index; None for those that are not scalars."""
    ids = [one.id for tag in tags if tag.is_scalar for one in tag.segments]
    rows = connection.execute(
        f"SELECT id, {STORED} FROM segment WHERE id IN (SELECT value FROM json_each(?))",
        (json.dumps(ids),),
    )
    stored = {one: totals_of(rest) for one, *rest in rows}
    return [_summary(connection, tag, stored) if tag.is_scalar else None for tag in tags]


def _summary(
    connection: sqlite3.Connection, tag: Tag, stored: dict[int, Totals | None]
) -> Summary | None:
    parts = [stored[one.id] for one in tag.segments]
    whole = added(part for part in parts if part is not None)
    if whole is None or None in parts:
        whole = read_totals(connection, tag)
    return _summary_of(whole)
