"""Storing batches: the half of a refresh that writes, in one thread, in transactions.

A batch's values and the offset it takes its file to are committed together, and
only if the file's row still says what the batch was read against. So a crash
between two commits loses nothing and repeats nothing, and of two processes that
read the same bytes one stores them and the other notices.
"""

from __future__ import annotations

import math
import sqlite3
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from aboard.events.scanner import Chunk, Part, Series
from aboard.index.merging import merge, to_merge
from aboard.index.reading import Batch
from aboard.index.schema import CHUNK_BITS, RECORDS, SCALARS, transaction

_SAVE_SEGMENT = """
INSERT INTO segment VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)
ON CONFLICT (id) DO UPDATE SET
    origin = CASE origin WHEN 0 THEN excluded.origin ELSE origin END,
    kind = CASE kind WHEN 0 THEN excluded.kind ELSE kind END,
    metadata = coalesce(metadata, excluded.metadata),
    count = excluded.count, min_step = excluded.min_step, max_step = excluded.max_step,
    increasing = excluded.increasing, last_step = excluded.last_step,
    max_wall = excluded.max_wall, last_wall = excluded.last_wall,
    last_value = excluded.last_value, rows = excluded.rows
"""


@dataclass(slots=True)
class _Segment:
    """A segment as stored, and the sizes of its last chunks, the last one at the end."""

    id: int
    count: int = 0
    min_step: int = 0
    max_step: int = 0
    increasing: bool = True
    last_step: int = 0
    max_wall: float = -math.inf
    rows: int = 0
    next_seq: int = 0
    tail: list[int] = field(default_factory=list)

    def take_in(self, part: Part) -> None:
        """Account for values that are appended."""
        low, high, rising = part.min_step, part.max_step, part.rising
        if self.count:
            rising = rising and self.increasing and part.first_step > self.last_step
            low, high = min(low, self.min_step), max(high, self.max_step)
        self.count += part.size
        self.min_step, self.max_step, self.increasing = low, high, rising
        self.last_step = part.last_step
        self.max_wall = max(self.max_wall, part.max_wall)
        self.rows = max(self.rows, part.rows)


@dataclass(slots=True)
class _OpenFile:
    """A file of which not all batches were stored yet."""

    id: int
    segments: dict[tuple[str, int], _Segment] = field(default_factory=dict)


class _Outrun(Exception):  # noqa: N818
    """Another process has stored this part of the file, or replaced it."""


class Store:
    """Writes batches, each file's in their order. Of no use after an error."""

    def __init__(self, connection: sqlite3.Connection) -> None:
        self._connection = connection
        self._open: dict[int, _OpenFile] = {}
        self._next_segment = 0
        self._segment_rows: list[tuple[object, ...]] = []
        self._chunk_rows: list[tuple[object, ...]] = []
        """Rows of several batches, written together: see `_save`."""
        self.outrun: set[int] = set()
        """The readings, by identity, that another process got ahead of."""

    def put(self, batches: Iterable[Batch]) -> None:
        """Store some batches in one transaction."""
        with self._transaction():
            for batch in batches:
                self._put(batch)
            self._save()

    def forget(self, files: Iterable[int]) -> None:
        """Remove files and all that was read from them."""
        with self._transaction():
            for file in files:
                self._delete(file)

    @contextmanager
    def _transaction(self) -> Iterator[None]:
        connection = self._connection
        with transaction(connection):
            used = connection.execute("SELECT seq FROM sqlite_sequence WHERE name = 'segment'")
            (last,) = used.fetchone() or (0,)
            self._next_segment = last + 1
            yield

    def _put(self, batch: Batch) -> None:
        key = id(batch.reading)
        if key in self.outrun:
            return
        try:
            opened = self._open.pop(key, None)
            if opened is None:
                opened = self._begin(batch)
            else:
                self._save()  # what follows may be merged with it
                self._advance(opened, batch)
        except _Outrun:
            self.outrun.add(key)
            return
        self._store_values(opened, batch)
        if batch.taken.damage:
            self._connection.executemany(
                "INSERT OR REPLACE INTO damage VALUES (?, ?, ?)",
                [(opened.id, *span) for span in batch.taken.damage],
            )
        if not batch.last:
            self._open[key] = opened

    def _begin(self, batch: Batch) -> _OpenFile:
        """Store the row of a file for its first batch, if nobody else has."""
        known = batch.reading.known
        if known is None:
            return self._insert(batch)
        if not batch.reading.fresh:
            opened = _OpenFile(known.id, self._segments_of(known.id))
            self._advance(opened, batch)
            return opened
        row = self._connection.execute("SELECT offset FROM file WHERE id = ?", (known.id,))
        if row.fetchone() != (known.offset,):
            raise _Outrun
        self._delete(known.id)
        return self._insert(batch)

    def _insert(self, batch: Batch) -> _OpenFile:
        cursor = self._connection.execute(
            "INSERT OR IGNORE INTO file VALUES (NULL, :directory, :name, :size, :version, :offset,"
            " :tail, :head, :damage_start, :events, :first_wall)",
            _file_row(batch),
        )
        if cursor.rowcount != 1:
            raise _Outrun
        return _OpenFile(cursor.lastrowid or 0)

    def _advance(self, opened: _OpenFile, batch: Batch) -> None:
        """Move the file's offset, if it is where this batch starts."""
        cursor = self._connection.execute(
            "UPDATE file SET size = :size, version = :version, offset = :offset, tail = :tail,"
            " head = :head, damage_start = :damage_start, events = events + :events,"
            " first_wall = coalesce(first_wall, :first_wall)"
            " WHERE id = :id AND offset = :start",
            _file_row(batch) | {"id": opened.id, "start": batch.start},
        )
        if cursor.rowcount != 1:
            raise _Outrun

    def _store_values(self, opened: _OpenFile, batch: Batch) -> None:
        touched: set[int] = set()
        for form, part in _parts(batch):
            series = batch.series[part.series]
            tag = series.tag.decode("utf-8", "backslashreplace")
            segment = opened.segments.get((tag, form))
            if segment is None:
                segment = opened.segments[tag, form] = _Segment(self._next_segment)
                self._next_segment += 1
            if segment.id in touched:  # two tags in bytes that read the same are one
                self._save()
            touched.add(segment.id)
            self._chunk_rows += self._append(segment, part)
            key = (segment.id, opened.id, tag, form)
            self._segment_rows.append((*key, *_segment_row(segment, series, part)))

    def _save(self) -> None:
        """Write the rows of segments and chunks; whoever reads chunks of these must do so first."""
        self._connection.executemany(_SAVE_SEGMENT, self._segment_rows)
        self._connection.executemany(
            "INSERT OR REPLACE INTO chunk VALUES (?, ?, ?, ?, ?)", self._chunk_rows
        )
        self._segment_rows, self._chunk_rows = [], []

    def _append(self, segment: _Segment, part: Part) -> Iterator[tuple[object, ...]]:
        """Yield the rows that append values to a segment, merging small chunks at its end."""
        if segment.count and not segment.tail:
            self._load_tail(segment)
        segment.take_in(part)
        chunks, before = part.chunks, segment.next_seq
        base = segment.id << CHUNK_BITS
        merged = to_merge(segment.tail, [chunk.size for chunk in chunks])
        if merged:
            segment.next_seq -= merged
            del segment.tail[-merged:]
            rows = self._connection.execute(
                "SELECT count, steps, walls, payload FROM chunk WHERE id >= ? AND id < ?"
                " ORDER BY id",
                (base + segment.next_seq, base + before),
            )
            chunks = merge([*map(Chunk._make, rows), *chunks])
        for chunk in chunks:
            yield (base + segment.next_seq, *chunk)
            segment.tail.append(chunk.size)
            segment.next_seq += 1
        if segment.next_seq < before:
            self._connection.execute(
                "DELETE FROM chunk WHERE id >= ? AND id < ?",
                (base + segment.next_seq, base + before),
            )
        del segment.tail[:-32]

    def _load_tail(self, segment: _Segment) -> None:
        base = segment.id << CHUNK_BITS
        rows = self._connection.execute(
            "SELECT id, count FROM chunk WHERE id >= ? AND id < ? ORDER BY id DESC LIMIT 32",
            (base, base + (1 << CHUNK_BITS)),
        ).fetchall()
        segment.tail = [count for _, count in reversed(rows)]
        segment.next_seq = rows[0][0] - base + 1 if rows else 0

    def _segments_of(self, file: int) -> dict[tuple[str, int], _Segment]:
        rows = self._connection.execute(
            "SELECT tag, form, id, count, min_step, max_step, increasing, last_step, max_wall, rows"
            " FROM segment WHERE file = ?",
            (file,),
        )
        return {(tag, form): _Segment(*rest) for tag, form, *rest in rows}

    def _delete(self, file: int) -> None:
        connection = self._connection
        ids = connection.execute("SELECT id FROM segment WHERE file = ?", (file,)).fetchall()
        connection.executemany(
            "DELETE FROM chunk WHERE id >= ? AND id < ?",
            [(one << CHUNK_BITS, (one + 1) << CHUNK_BITS) for (one,) in ids],
        )
        for table, column in (("segment", "file"), ("damage", "file"), ("file", "id")):
            connection.execute(f"DELETE FROM {table} WHERE {column} = ?", (file,))


def _file_row(batch: Batch) -> dict[str, object]:
    """Return a file as it is once a batch of it is stored."""
    entry = batch.reading.entry
    size, version = (entry.size, entry.version) if batch.last else (batch.offset, "")
    return {
        "directory": batch.reading.directory,
        "name": batch.reading.name,
        "size": size,
        "version": version,
        "offset": batch.offset,
        "tail": batch.tail,
        "head": batch.head,
        "damage_start": batch.damage_start,
        "events": batch.taken.events,
        "first_wall": batch.first_wall,
    }


def _segment_row(segment: _Segment, series: Series, part: Part) -> tuple[object, ...]:
    return (
        series.origin,
        series.kind,
        series.metadata,
        segment.count,
        segment.min_step,
        segment.max_step,
        segment.increasing,
        segment.last_step,
        segment.max_wall,
        part.last_wall,
        part.last_value,
        segment.rows,
    )


def _parts(batch: Batch) -> Iterator[tuple[int, Part]]:
    """Yield the parts of a batch that belong to a tag, each with its form."""
    for part in batch.taken.points:
        yield SCALARS, part
    for part in batch.taken.pointers:
        if part.series >= 0:
            yield RECORDS, part
