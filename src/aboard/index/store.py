"""Writes to the index: stores batches in transactions, removes sources, counts requests.

A batch's values and the new offset of its file are committed together, and only if the file's row
has not changed since the batch was read. So a crash between two commits loses and repeats nothing,
and if two processes read the same bytes, one stores them and the other notices. Small chunks are
joined and never cut, so that a segment that grows point by point has few, and a first reading needs
no numpy. `scanner.Chunk` defines the layout of a chunk.
"""

from __future__ import annotations

import math
import sqlite3
import struct
import time
from array import array
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from itertools import repeat
from operator import itemgetter
from typing import NamedTuple
from zlib import crc32

from aboard.events.messages import CLASS_UNKNOWN, ORIGIN_TENSOR, SESSION_START
from aboard.events.scanner import CHUNK_VALUES, Chunk, Part, Series, SmallFile, Totals, sketch
from aboard.index.reader import SKETCHED, Batch, SmallBatch
from aboard.index.schema import (
    CHUNK_BITS,
    RECORDS,
    SCALARS,
    Connection,
    insert_rows,
    next_change,
    transaction,
)
from aboard.index.sources import Known, Reading, Source, at_or_below, known_files, span, within
from aboard.index.tags import COLUMNS
from aboard.storage.base import Counts, Kind, traffic

# The columns of a segment's totals, in the order of `Totals`; NaN is stored as null.
_RENAMED = {"size": "kept", "first_step": "min_step", "last": "last_value"}
_TOTALS = [_RENAMED.get(one, one) for one in Totals._fields]
STORED = ", ".join(_TOTALS)
_own_totals = itemgetter(*[at for at, one in enumerate(_TOTALS) if one not in COLUMNS])
_NO_TOTALS = (None,) * len(_own_totals(_TOTALS))

# The columns of a segment; after the file in the order of `_segment_row`, and of the columns that
# the scanner returns for a small file.
_CHANGING = (*COLUMNS[COLUMNS.index("count") :], *_own_totals(_TOTALS))
_COLUMNS = ("id", "file", "tag", "form", "origin", "kind", "metadata", *_CHANGING)
_INSERT = f"INSERT INTO segment ({', '.join(_COLUMNS)})"
_IF_STORED = (
    "ON CONFLICT (id) DO UPDATE SET"
    " origin = CASE origin WHEN 0 THEN excluded.origin ELSE origin END,"
    " kind = CASE kind WHEN 0 THEN excluded.kind ELSE kind END,"
    " metadata = coalesce(metadata, excluded.metadata), "
    + ", ".join(f"{one} = excluded.{one}" for one in _CHANGING)
)
# Places among the columns of a small file's segment.
_TAG, _ORIGIN, _KIND, _METADATA = map(_COLUMNS[2:].index, ("tag", "origin", "kind", "metadata"))


def totals_of(row: Sequence[float | None]) -> Totals | None:
    """Return a segment's totals from its columns in the index; None if it has none."""
    if row[0] is None:
        return None
    return Totals._make([math.nan if one is None else one for one in row] if None in row else row)


_LOADED = f"id, count, min_step, max_step, increasing, last_step, max_wall, rows, {STORED}"


class _Segment:
    """A segment as stored, and the sizes of its last chunks, in order."""

    def __init__(
        self,
        id: int,  # noqa: A002 - the name of the column
        count: int = 0,
        min_step: int = 0,
        max_step: int = 0,
        increasing: bool = True,
        last_step: int = 0,
        max_wall: float = -math.inf,
        rows: int = 0,
        *totals: float | None,
    ) -> None:
        self.id = id
        self.count = count
        self.min_step = min_step
        self.max_step = max_step
        self.increasing = increasing
        self.last_step = last_step
        self.max_wall = max_wall
        self.rows = rows
        self.totals = totals_of(totals) if totals else None
        self.next_seq = 0
        self.tail: list[int] = []

    def take_in(self, part: Part) -> None:
        self._take_in_totals(part.chunks)
        if self.count:
            rising = part.rising and self.increasing
            self.increasing = rising and part.first_step > self.last_step
            self.min_step = min(self.min_step, part.min_step)
            self.max_step = max(self.max_step, part.max_step)
            self.max_wall = max(self.max_wall, part.max_wall)
            self.rows = max(self.rows, part.rows)
        else:
            self.min_step, self.max_step = part.min_step, part.max_step
            self.increasing, self.max_wall, self.rows = part.rising, part.max_wall, part.rows
        self.count += part.size
        self.last_step = part.last_step

    def _take_in_totals(self, chunks: Iterable[Chunk]) -> None:
        lowest = self.min_step if self.count else None
        for chunk in chunks:
            if not chunk.sketch:
                return
            one = Totals.of(chunk.sketch)
            if lowest is None or one.first_step <= lowest:  # it supersedes all before it
                self.totals, lowest = one, one.first_step
            elif self.totals is not None:
                self.totals = self.totals.followed_by(one)


_MOST_OPEN = 20_000  # cached segments of a file
_MOST_REMEMBERED = 1_000  # cached segments of a connection, between two refreshes


class _OpenFile:
    def __init__(self, id: int) -> None:  # noqa: A002 - the name of the column
        self.id = id
        self.offset = 0  # up to which the segments are known
        self.segments: dict[tuple[str, int], _Segment] = {}  # cached
        self.has_others = False


class _Outrun(Exception):
    """Another process has already stored this part of the file, or has replaced it."""


class Store:
    """Stores batches, those of a file in order. Must not be used after an error."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._open: dict[int, _OpenFile] = {}
        self._grown: list[_OpenFile] = []  # read to their ends in this transaction
        self._inserted: dict[int, int] = {}  # the ids of new files, by reading
        self._next_file = self._next_segment = 0
        self._segment_rows: list[tuple[object, ...]] = []
        self._chunk_rows: list[tuple[object, ...]] = []
        self.outrun: set[int] = set()  # ids of readings that another process has overtaken
        # Directories with a possible scalar that has no metadata, or has got some.
        self.unsure: set[str] = set()
        self.described: set[str] = set()
        self.hparams_in: set[str] = set()  # directories with new hyperparameters

    def put(self, batches: Sequence[Batch | SmallBatch]) -> None:
        with self._transaction():
            self._insert_new([one for one in batches if isinstance(one, Batch)])
            for batch in batches:
                if isinstance(batch, Batch):
                    self._put(batch)
                else:
                    self._put_small(batch)
            self._save()
        self._remember_grown()

    def forget(self, files: Iterable[int]) -> None:
        with self._transaction():
            for file in files:
                self._delete(file)

    @contextmanager
    def _transaction(self) -> Iterator[None]:
        connection = self._connection
        with transaction(connection):
            used = dict(connection.execute("SELECT name, seq FROM sqlite_sequence"))
            self._next_file, self._next_segment = used["file"] + 1, used["segment"] + 1
            self._inserted.clear()
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
                self._save()  # the next batches may be merged with it
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
        elif batch.reading.known is not None:
            opened.offset = batch.offset
            self._grown.append(opened)

    def _remember_grown(self) -> None:
        """Keep what is known of files that grow for the next refresh; forget the oldest."""
        remembered = self._connection.growing_files
        for opened in self._grown:
            if 0 < len(opened.segments) <= _MOST_REMEMBERED and not opened.has_others:
                remembered[opened.id] = opened
        self._grown.clear()
        total = sum(len(one.segments) for one in remembered.values())
        while total > _MOST_REMEMBERED:
            total -= len(remembered.pop(next(iter(remembered))).segments)

    def _put_small(self, batch: SmallBatch) -> None:
        pairs = list(zip(batch.readings, batch.files, strict=True))
        outrun = [one for one in batch.readings if one.known and not self._remove(one.known)]
        if outrun:
            self.outrun.update(map(id, outrun))
            pairs = [pair for pair in pairs if id(pair[0]) not in self.outrun]
        ids = self._insert_files([_small_file_row(*pair) for pair in pairs])
        for file_id, (reading, file) in zip(ids, pairs, strict=True):
            if file_id is None:
                self.outrun.add(id(reading))
                continue
            for segment, chunk in file.parts:
                if segment[_TAG] == SESSION_START:
                    self.hparams_in.add(reading.directory)
                if segment[_ORIGIN] == ORIGIN_TENSOR:
                    if segment[_METADATA] is not None:
                        self.described.add(reading.directory)
                    if segment[_KIND] == CLASS_UNKNOWN:
                        self.unsure.add(reading.directory)
                self._segment_rows.append((self._next_segment, file_id, *segment))
                self._chunk_rows.append((self._next_segment << CHUNK_BITS, *chunk))
                self._next_segment += 1

    def _begin(self, batch: Batch) -> _OpenFile:
        known = batch.reading.known
        if known is not None and not batch.reading.fresh:
            # Another process may have stored more; a file that is replaced gets another id.
            remembered: _OpenFile | None = self._connection.growing_files.pop(known.id, None)
            if remembered is not None and remembered.offset == known.offset:
                opened = remembered
            else:
                opened = _OpenFile(known.id)
                self._load_segments(opened)
            self._advance(opened, batch)
            return opened
        if known is not None:
            if not self._remove(known):
                raise _Outrun
            self._insert([batch])
        inserted = self._inserted.get(id(batch.reading))
        if inserted is None:
            raise _Outrun
        return _OpenFile(inserted)

    def _remove(self, known: Known) -> bool:
        """Delete a file that is to be replaced; False if another process has changed it."""
        row = self._connection.execute("SELECT offset FROM file WHERE id = ?", (known.id,))
        if row.fetchone() != (known.offset,):
            return False
        self._delete(known.id)
        return True

    def _insert_new(self, batches: Sequence[Batch]) -> None:
        """Insert all files that are new to the index."""
        new: dict[int, Batch] = {}
        for batch in batches:
            key = id(batch.reading)
            if batch.reading.known is None and key not in self._open and key not in self.outrun:
                new.setdefault(key, batch)
        self._insert(list(new.values()))

    def _insert(self, batches: Sequence[Batch]) -> None:
        ids = self._insert_files([_file_row(batch) for batch in batches])
        for one, batch in zip(ids, batches, strict=True):
            if one is not None:
                self._inserted[id(batch.reading)] = one

    def _insert_files(self, files: Sequence[tuple[object, ...]]) -> Sequence[int | None]:
        """Insert files; return their ids, None for those that another process has inserted."""
        first = self._next_file
        self._next_file += len(files)
        ids = range(first, self._next_file)
        rows = [(one, *file, 0) for one, file in zip(ids, files, strict=True)]
        if insert_rows(self._connection, "INSERT OR IGNORE INTO file", rows) == len(rows):
            return ids
        found = self._connection.execute("SELECT id FROM file WHERE id >= ?", (first,))
        stored = {one for (one,) in found}
        return [one if one in stored else None for one in ids]

    def _advance(self, opened: _OpenFile, batch: Batch) -> None:
        cursor = self._connection.execute(
            "UPDATE file SET size = ?, version = ?, offset = ?, tail = ?, head = ?,"
            " damage_start = ?, events = events + ?, first_wall = coalesce(first_wall, ?)"
            " WHERE id = ? AND offset = ?",
            (*_file_row(batch)[2:], opened.id, batch.start),
        )
        if cursor.rowcount != 1:
            raise _Outrun

    def _store_values(self, opened: _OpenFile, batch: Batch) -> None:
        touched: set[int] = set()
        for form, part in _parts(batch):
            series = batch.series[part.series]
            kind = CLASS_UNKNOWN if series.unsure else series.kind
            tag = series.tag.decode("utf-8", "backslashreplace")
            segment = opened.segments.get((tag, form))
            if segment is None and opened.has_others:
                segment = self._load_segment(opened, tag, form)
            if segment is None:
                segment = opened.segments[tag, form] = _Segment(self._next_segment)
                self._next_segment += 1
                if tag == SESSION_START:
                    self.hparams_in.add(batch.reading.directory)
                if series.origin == ORIGIN_TENSOR and series.metadata is not None:
                    self.described.add(batch.reading.directory)
            if series.origin == ORIGIN_TENSOR and kind == CLASS_UNKNOWN:
                self.unsure.add(batch.reading.directory)
            if segment.id in touched:  # two tags of different bytes can decode to the same text
                self._save()
            touched.add(segment.id)
            self._append(segment, part)
            key = (segment.id, opened.id, tag, form)
            self._segment_rows.append((*key, *_segment_row(segment, series, part, kind)))
        if len(opened.segments) > _MOST_OPEN:
            self._save()
            opened.segments, opened.has_others = {}, True

    def _save(self) -> None:
        """Write the pending rows of segments and chunks."""
        # In the order of the index on file and tag; otherwise each row would touch another page.
        self._segment_rows.sort(key=itemgetter(1, 2))
        insert_rows(self._connection, _INSERT, self._segment_rows, _IF_STORED)
        insert_rows(self._connection, "INSERT OR REPLACE INTO chunk", self._chunk_rows)
        self._segment_rows, self._chunk_rows = [], []

    def _append(self, segment: _Segment, part: Part) -> None:
        """Append values to a segment, merging small chunks at its end."""
        if segment.count and not segment.tail:
            self._load_tail(segment)
        segment.take_in(part)
        chunks, before = part.chunks, segment.next_seq
        base = segment.id << CHUNK_BITS
        merged = to_merge(segment.tail, [chunk.size for chunk in chunks]) if segment.tail else 0
        if merged:
            segment.next_seq -= merged
            del segment.tail[-merged:]
            rows = self._connection.execute(
                "SELECT count, steps, walls, payload, sketch FROM chunk WHERE id >= ? AND id < ?"
                " ORDER BY id",
                (base + segment.next_seq, base + before),
            )
            chunks = merge([*map(Chunk._make, rows), *chunks])
        for chunk in chunks:
            size, steps, walls, payload, sketched = chunk
            if size < SKETCHED:
                sketched = b""
            row = base + segment.next_seq, size, sketched, steps, walls, payload
            self._chunk_rows.append(row)
            segment.tail.append(size)
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

    def _load_segments(self, opened: _OpenFile) -> None:
        rows = self._connection.execute(
            f"SELECT tag, form, {_LOADED} FROM segment WHERE file = ? LIMIT {_MOST_OPEN + 1}",
            (opened.id,),
        )
        opened.segments = {(tag, form): _Segment(*rest) for tag, form, *rest in rows}
        opened.has_others = len(opened.segments) > _MOST_OPEN

    def _load_segment(self, opened: _OpenFile, tag: str, form: int) -> _Segment | None:
        row = self._connection.execute(
            f"SELECT {_LOADED} FROM segment WHERE file = ? AND tag = ? AND form = ?",
            (opened.id, tag, form),
        ).fetchone()
        if row is None:
            return None
        segment = opened.segments[tag, form] = _Segment(*row)
        return segment

    def _delete(self, file: int) -> None:
        connection = self._connection
        ids = connection.execute("SELECT id FROM segment WHERE file = ?", (file,)).fetchall()
        connection.executemany(
            "DELETE FROM chunk WHERE id >= ? AND id < ?",
            [(one << CHUNK_BITS, (one + 1) << CHUNK_BITS) for (one,) in ids],
        )
        for table, column in (("segment", "file"), ("damage", "file"), ("file", "id")):
            connection.execute(f"DELETE FROM {table} WHERE {column} = ?", (file,))


def _file_row(batch: Batch) -> tuple[object, ...]:
    """Return the columns of a file after its id, without the attempt."""
    entry = batch.reading.entry
    size, version = (entry.size, entry.version) if batch.last else (batch.offset, "")
    return (
        batch.reading.directory,
        batch.reading.name,
        size,
        version,
        batch.offset,
        batch.tail,
        batch.digest,
        batch.damage_start,
        batch.taken.events,
        batch.first_wall,
    )


def _small_file_row(reading: Reading, file: SmallFile) -> tuple[object, ...]:
    return (
        reading.directory,
        reading.name,
        reading.entry.size,
        reading.entry.version,
        file.reached,
        crc32(file.tail),
        file.digest,
        -1,
        file.events,
        file.first_wall,
    )


def _segment_row(segment: _Segment, series: Series, part: Part, kind: int) -> tuple[object, ...]:
    return (
        series.origin,
        kind,
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
        *(_NO_TOTALS if segment.totals is None else _own_totals(segment.totals)),
    )


def _parts(batch: Batch) -> Iterator[tuple[int, Part]]:
    for part in batch.taken.points:
        yield SCALARS, part
    for part in batch.taken.pointers:
        if part.series >= 0:
            yield RECORDS, part


def to_merge(tail: Sequence[int], new: Sequence[int]) -> int:
    """Return how many of the last chunks to merge with the new ones, given the sizes.

    A chunk less than twice as large as what follows is merged, so that each point is rewritten only
    a few times. A chunk without room for the next one is left alone.
    """
    merged, total = 0, sum(new)
    for size in reversed(tail):
        if size >= CHUNK_VALUES or size > 2 * total:
            break
        merged, total = merged + 1, total + size
    sizes = [*tail, new[0]]
    while merged and sizes[-merged - 1] + sizes[-merged] > CHUNK_VALUES:
        merged -= 1
    return merged


def merge(chunks: Sequence[Chunk]) -> list[Chunk]:
    groups: list[list[Chunk]] = []
    room = 0
    for chunk in chunks:
        if chunk.size > room:
            groups.append([])
            room = CHUNK_VALUES
        groups[-1].append(chunk)
        room -= chunk.size
    return [_joined(group) if len(group) > 1 else group[0] for group in groups]


def _joined(chunks: Sequence[Chunk]) -> Chunk:
    widths = {len(chunk.payload) // chunk.size for chunk in chunks}
    payloads = [chunk.payload if len(widths) == 1 else _widened(chunk) for chunk in chunks]
    size = sum(chunk.size for chunk in chunks)
    columns = (
        _joined_steps(chunks),
        b"".join(chunk.walls for chunk in chunks),
        b"".join(payloads),
    )
    is_points = max(widths) <= 8
    return Chunk(size, *columns, sketch(size, *columns) if is_points else b"")


def _widened(chunk: Chunk) -> bytes:
    if len(chunk.payload) == 8 * chunk.size:
        return chunk.payload
    return array("d", array("f", chunk.payload)).tobytes()


def _joined_steps(chunks: Sequence[Chunk]) -> bytes:
    """Join steps; the result is evenly spaced if all parts are, and continue each other."""
    starts = [_first_steps(chunk) for chunk in chunks]
    first, second, *_ = (step for start in starts for step in start)
    stride = second - first
    at, even = 0, stride >= 0
    for chunk, start in zip(chunks, starts, strict=True):
        expected = [first + stride * (at + i) for i in range(len(start))]
        even = even and start == expected and (chunk.size < 3 or _is_short(chunk))
        at += chunk.size
    if even and at > 2:
        return struct.pack("2q", first, stride)
    return b"".join(map(_all_steps, chunks))


def _is_short(chunk: Chunk) -> bool:
    return len(chunk.steps) < 8 * chunk.size


def _first_steps(chunk: Chunk) -> list[int]:
    if chunk.size == 1:
        return list(struct.unpack("q", chunk.steps))
    first, second = struct.unpack_from("2q", chunk.steps)
    return [first, first + second if _is_short(chunk) else second]


def _all_steps(chunk: Chunk) -> bytes:
    if not _is_short(chunk):
        return chunk.steps
    first, stride = struct.unpack("2q", chunk.steps)
    last = first + stride * (chunk.size - 1)
    steps = range(first, last + 1, stride) if stride else repeat(first, chunk.size)
    return array("q", steps).tobytes()


class Forgotten(NamedTuple):
    runs: int
    files: int
    values: int
    records: int  # of runs below a root

    def __bool__(self) -> bool:
        return any(self)


def forget(connection: Connection, source: Source) -> Forgotten:
    where, arguments = within(source)
    runs, files = connection.execute(
        f"SELECT count(DISTINCT directory), count(*) FROM file {where}", arguments
    ).fetchone()
    (values,) = connection.execute(
        f"SELECT coalesce(sum(count), 0) FROM file JOIN segment ON segment.file = file.id {where}",
        arguments,
    ).fetchone()
    Store(connection).forget([one.id for one in known_files(connection, source).values()])
    records = 0 if source.only else _forget_records(connection, source.uri)
    return Forgotten(runs, files, values, records)


def _forget_records(connection: sqlite3.Connection, place: str) -> int:
    run = "rtrim(rtrim(root, '/') || '/' || directory, '/')"
    with transaction(connection):
        change = next_change(connection)
        where = at_or_below(run)
        connection.execute(
            f"INSERT INTO gone SELECT id, root, directory, {change} FROM run WHERE {where}",
            span(place),
        )
        gone = connection.execute(f"DELETE FROM run WHERE {where}", span(place)).rowcount
        connection.execute(f"DELETE FROM folder WHERE {at_or_below('root')}", span(place))
        connection.execute("UPDATE root SET changes = ?", (change,))
    return gone


def compact(connection: sqlite3.Connection) -> None:
    connection.execute("VACUUM")
    connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")


# Requests to buckets by hour, summed over all of the user's processes on this machine.

_KEPT_HOURS = 90 * 24


class TrafficHour(NamedTuple):
    hour: int  # since 1970, in UTC
    kind: Kind
    requests: int
    bytes: int


def save_traffic(connection: sqlite3.Connection, counts: Counts, now: float | None = None) -> None:
    hour = _hour(now)
    with transaction(connection):
        connection.execute("DELETE FROM traffic WHERE hour < ?", (hour - _KEPT_HOURS,))
        connection.executemany(
            "INSERT INTO traffic VALUES (?, ?, ?, ?, ?) ON CONFLICT DO UPDATE SET"
            " requests = requests + excluded.requests, bytes = bytes + excluded.bytes",
            [(bucket, hour, kind, *one) for (bucket, kind), one in counts.items()],
        )


def save_untaken_traffic(connection: sqlite3.Connection) -> None:
    """Save the counts of this process; if that fails, they are saved next time."""
    counts = traffic.take()
    if not counts:
        return
    try:
        save_traffic(connection, counts)
    except sqlite3.Error:
        traffic.give_back(counts)


def read_traffic(
    connection: sqlite3.Connection, bucket: str, hours: int = 24, now: float | None = None
) -> list[TrafficHour]:
    rows = connection.execute(
        "SELECT hour, kind, requests, bytes FROM traffic WHERE bucket = ? AND hour > ?"
        " ORDER BY hour, kind",
        (bucket, _hour(now) - hours),
    )
    return [TrafficHour(*row) for row in rows]


def _hour(now: float | None = None) -> int:
    return int((time.time() if now is None else now) // 3600)
