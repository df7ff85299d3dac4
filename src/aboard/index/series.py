"""The points of tags, and where records are: arrays from the chunks of the index.

A *series* is a tag's points from all files of its run, less what restarts made
void. Nothing here reads an event file.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from aboard.index.chunks import Columns, Floats, Ints, surviving, survivors, unpack, unpack_steps
from aboard.index.downsample import downsample
from aboard.index.query import Segment, Tag
from aboard.index.schema import CHUNK_BITS
from aboard.storage.uri import join


class Series(NamedTuple):
    """The points of a scalar tag, in the order of their steps."""

    steps: Ints
    wall_times: Floats
    values: Floats

    def sample(self, limit: int) -> Series:
        """Return at most `limit` points, spikes included."""
        if len(self.values) <= limit:
            return self
        places = downsample(self.values, limit)
        return Series(self.steps[places], self.wall_times[places], self.values[places])


class Pointer(NamedTuple):
    """Where a value that is not a scalar is stored."""

    uri: str
    offset: int
    length: int
    step: int
    wall_time: float
    rows: int


def read_series(connection: sqlite3.Connection, tag: Tag) -> Series:
    """Return all points of a scalar tag."""
    whole = _read(connection, tag)
    if whole is None or not tag.is_scalar:
        return Series(np.empty(0, np.int64), np.empty(0), np.empty(0))
    columns = (whole.steps, whole.walls, whole.payload.astype(np.float64, copy=False))
    return Series(*map(_owned, columns))


def read_pointers(
    connection: sqlite3.Connection, tag: Tag, step: int | None = None
) -> list[Pointer]:
    """Return where the values of a tag that is no scalar are stored: all, or those of a step."""
    if tag.is_scalar:
        return []
    parts, uris = [], []
    for number, segment in enumerate(tag.segments):
        uris.append(join(segment.directory, segment.file_name))
        for columns in _chunks(connection, segment):
            origin = np.full((len(columns), 1), number, np.int64)
            payload = np.concatenate([columns.payload, origin], axis=1).astype(np.int64)
            parts.append(Columns(columns.steps, columns.walls, payload))
    whole = surviving(parts)
    if whole is None:
        return []
    wanted = slice(None) if step is None else whole.steps == step
    kept = (column[wanted].tolist() for column in (whole.steps, whole.walls, whole.payload))
    return [
        Pointer(uris[number], offset, length, at, wall, rows)
        for at, wall, (offset, length, rows, number) in zip(*kept, strict=True)
    ]


def _chunks(connection: sqlite3.Connection, segment: Segment) -> Iterator[Columns]:
    rows = connection.execute(
        "SELECT count, steps, walls, payload FROM chunk WHERE id >= ? AND id < ? ORDER BY id",
        (segment.id << CHUNK_BITS, (segment.id + 1) << CHUNK_BITS),
    )
    for row in rows:
        yield unpack(*row, form=segment.form)


def _owned(column: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """Return an array that may be written to: what one chunk alone holds is the index's."""
    return column if column.flags.writeable else column.copy()


def _read(connection: sqlite3.Connection, tag: Tag) -> Columns | None:
    return surviving(
        columns for segment in tag.segments for columns in _chunks(connection, segment)
    )


def count_survivors(connection: sqlite3.Connection, tag: Tag) -> int:
    """Count the values of a tag that restarts have left."""
    steps: list[npt.NDArray[np.int64]] = []
    for segment in tag.segments:
        rows = connection.execute(
            "SELECT count, steps FROM chunk WHERE id >= ? AND id < ? ORDER BY id",
            (segment.id << CHUNK_BITS, (segment.id + 1) << CHUNK_BITS),
        )
        steps += [unpack_steps(*row) for row in rows]
    if not steps:
        return 0
    whole = np.concatenate(steps)
    keep = survivors(whole)
    return len(whole) if keep is None else int(keep.sum())
