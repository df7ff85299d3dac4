"""Asking the index what there is: runs, tags and their last values, and damage.

A *run* is a directory with event files; a *tag* of a run is put together from the
segments of its files, in the order of their names. Points are left to `series`;
nothing here imports numpy unless there was a restart, so that a list is there at once.
"""

from __future__ import annotations

import json
import math
import sqlite3
from collections.abc import Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import groupby, pairwise
from operator import attrgetter, itemgetter
from typing import NamedTuple

from aboard.index.kinds import Kind, kind_of
from aboard.index.plan import Source, within
from aboard.index.schema import RECORDS, SCALARS
from aboard.storage.uri import join


class UnknownName(LookupError):  # noqa: N818 - named by what is wrong
    """There is no run, or no tag, of that name; or there is none any more."""


class Run(NamedTuple):
    """A directory with event files."""

    name: str
    directory: str
    files: int
    bytes: int
    events: int
    first_wall: float | None
    damaged_bytes: int


class Damage(NamedTuple):
    """Bytes of a file in which no good record was found."""

    uri: str
    offset: int
    length: int


class Segment(NamedTuple):
    """The values of a tag in one file: a row of the index, with its file's place."""

    directory: str
    file_name: str
    tag: str
    id: int
    form: int
    origin: int
    metadata: bytes | None
    points: int
    min_step: int
    max_step: int
    increasing: bool
    last_step: int
    max_wall: float
    last_wall: float | None
    last_value: float | None
    rows: int


@dataclass(frozen=True)
class Tag:
    """A tag of a run, and what is known of it without reading its values."""

    run: str
    directory: str
    name: str
    kind: Kind
    metadata: bytes | None
    first_step: int
    last_step: int
    last_wall_time: float
    max_wall_time: float
    last_value: float | None
    """None unless the tag is a scalar."""
    rows: int
    source: Source = field(repr=False)
    """What it is seen from."""
    segments: tuple[Segment, ...] = field(repr=False)
    """Its parts, one per file."""

    @property
    def points(self) -> int:
        """The number of its values, those among them that restarts made void."""
        return sum(one.points for one in self.segments)

    @property
    def is_scalar(self) -> bool:
        """Whether the tag's values are scalars."""
        return self.segments[0].form == SCALARS

    @property
    def in_order(self) -> bool:
        """Whether every step is greater than the one before: there was no restart."""
        return all(one.increasing for one in self.segments) and all(
            before.max_step < after.min_step for before, after in pairwise(self.segments)
        )


_SEGMENTS = """
SELECT f.directory, f.name, s.tag, s.id, s.form, s.origin, s.metadata, s.count, s.min_step,
       s.max_step, s.increasing, s.last_step, s.max_wall, s.last_wall, s.last_value, s.rows
FROM file AS f JOIN segment AS s ON s.file = f.id
"""
_IN_ORDER = " ORDER BY f.directory, s.tag, f.name, s.form"


def runs(connection: sqlite3.Connection, source: Source) -> list[Run]:
    """Return the runs of a source by name."""
    where, arguments = within(source)
    # Beside min(name), SQLite takes first_wall from the row that has it: the first file.
    rows = connection.execute(
        "SELECT directory, count(*), sum(size), sum(events), first_wall,"
        " sum((SELECT coalesce(sum(length), 0) FROM damage WHERE damage.file = file.id)"
        "     + CASE WHEN damage_start >= 0 THEN offset - damage_start ELSE 0 END), min(name)"
        f" FROM file {where} GROUP BY directory ORDER BY directory",
        arguments,
    )
    return [Run(source.run_name(directory), directory, *rest) for directory, *rest, _ in rows]


def damages(connection: sqlite3.Connection, source: Source) -> list[Damage]:
    """Return every damaged span of a source."""
    where, arguments = within(source)
    rows = connection.execute(
        "SELECT directory, name, offset, length FROM ("
        " SELECT file.directory, file.name, damage.offset, damage.length"
        " FROM file JOIN damage ON damage.file = file.id UNION ALL"
        " SELECT directory, name, damage_start, offset - damage_start FROM file"
        f" WHERE damage_start >= 0) {where} ORDER BY directory, name, offset",
        arguments,
    )
    return [
        Damage(join(directory, name), offset, length) for directory, name, offset, length in rows
    ]


def stamp(connection: sqlite3.Connection) -> int:
    """Return a number that changes whenever the mark of any run does."""
    count: int = connection.execute("SELECT count FROM stamp").fetchone()[0]
    return count


Marks = dict[str, tuple[object, ...]]
"""For each run's directory, a value that changes when the run does."""


def marks(connection: sqlite3.Connection, sources: Sequence[Source]) -> list[Marks]:
    """Return the marks of each of many sources, all in one query."""
    whole = [source.uri.rstrip("/") for source in sources if not source.only]
    rows: Iterable[tuple[str, str, *tuple[object, ...]]] = connection.execute(
        # '0' is the character after '/': what begins with the source is in between.
        "SELECT given.value, directory, file.id, offset, first_wall"
        " FROM json_each(?) AS given CROSS JOIN file"
        " WHERE directory >= given.value AND directory < given.value || '0'"
        " AND (directory = given.value OR substr(directory, length(given.value) + 1, 1) = '/')"
        " ORDER BY given.key, directory, name",
        (json.dumps(whole),),
    )
    found: dict[str, Marks] = {}
    for (source, directory), group in groupby(rows, key=itemgetter(0, 1)):
        found.setdefault(source, {})[directory] = tuple(row[2:] for row in group)
    return [
        _marks_of_file(connection, one) if one.only else found.get(one.uri.rstrip("/"), {})
        for one in sources
    ]


def _marks_of_file(connection: sqlite3.Connection, source: Source) -> Marks:
    where, arguments = within(source)
    rows = connection.execute(f"SELECT id, offset, first_wall FROM file {where}", arguments)
    return {source.uri: tuple(found)} if (found := rows.fetchall()) else {}


def tags(connection: sqlite3.Connection, source: Source) -> list[Tag]:
    """Return every tag of every run of a source, by run and name."""
    where, arguments = within(source)
    return [_tag(source, segments) for segments in _grouped(connection, where, arguments)]


def tags_of(
    connection: sqlite3.Connection, places: Collection[tuple[Source, str]]
) -> Iterator[tuple[tuple[Source, str], Tag]]:
    """Yield the tags of many directories, each with the source it is seen from; in one query."""
    by_directory: dict[str, list[Source]] = {}
    for source, directory in places:
        by_directory.setdefault(directory, []).append(source)
    where = "WHERE f.directory IN (SELECT value FROM json_each(?))"
    for segments in _grouped(connection, where, (json.dumps(list(by_directory)),)):
        directory = segments[0].directory
        for source in by_directory[directory]:
            seen = [one for one in segments if source.only in ("", one.file_name)]
            if seen:
                yield (source, directory), _tag(source, seen)


def find_tag(connection: sqlite3.Connection, source: Source, run: str, tag: str) -> Tag | None:
    """Return one tag of one run, or None."""
    where, arguments = "WHERE f.directory = ? AND s.tag = ?", [source.directory_of(run), tag]
    if source.only:
        where += " AND f.name = ?"
        arguments.append(source.only)
    for segments in _grouped(connection, where, arguments):
        return _tag(source, segments)
    return None


def tag_counts(connection: sqlite3.Connection, source: Source) -> dict[str, int]:
    """Return how many tags each run of a source has, without putting any together."""
    where, arguments = within(source)
    rows = connection.execute(
        "SELECT directory, count(DISTINCT tag) FROM file JOIN segment ON segment.file = file.id"
        f" {where} GROUP BY directory",
        arguments,
    )
    return {source.run_name(directory): count for directory, count in rows}


@contextmanager
def at_one_moment(connection: sqlite3.Connection) -> Iterator[None]:
    """Let several questions be answered from one state of the index."""
    if connection.in_transaction:
        yield
        return
    connection.execute("BEGIN")
    try:
        yield
    finally:
        if connection.in_transaction:
            connection.execute("COMMIT")


def current(
    connection: sqlite3.Connection, tags: Sequence[Tag]
) -> tuple[list[Tag | None], set[Source]]:
    """Return tags as they are now: their files may have been read anew since they were listed.

    Returns:
        The tags, None for one that is gone; and the sources that have to be looked at for this to
        be sure, because such a tag may come back, or is being read.
    """
    found: list[Tag | None] = []
    unsure = set()
    for tag in tags:
        now: Tag | None = tag
        if not are_held(connection, [tag]):
            now = find_tag(connection, tag.source, tag.run, tag.name)
            if now is None or _is_being_read(connection, tag.directory):
                unsure.add(tag.source)
        found.append(now)
    return found, unsure


def are_held(connection: sqlite3.Connection, tags: Iterable[Tag]) -> bool:
    """Say whether the index still has what some tags were put together from."""
    ids = {one.id for tag in tags for one in tag.segments}
    if len(ids) == 1:
        held = connection.execute("SELECT count(*) FROM segment WHERE id = ?", (*ids,))
    else:
        held = connection.execute(
            "SELECT count(*) FROM segment WHERE id IN (SELECT value FROM json_each(?))",
            (json.dumps(list(ids)),),
        )
    return bool(held.fetchone() == (len(ids),))


def _is_being_read(connection: sqlite3.Connection, directory: str) -> bool:
    found = connection.execute(
        "SELECT 1 FROM file WHERE directory = ? AND version = '' LIMIT 1", (directory,)
    )
    return found.fetchone() is not None


def _grouped(
    connection: sqlite3.Connection, where: str, arguments: Sequence[object]
) -> Iterator[list[Segment]]:
    rows = connection.execute(f"{_SEGMENTS} {where} {_IN_ORDER}", arguments)
    for _, group in groupby(map(Segment._make, rows), key=attrgetter("directory", "tag")):
        yield list(group)


def _tag(source: Source, segments: list[Segment]) -> Tag:
    """Put a tag together: the first metadata of the run counts, and picks the form."""
    described = next((one for one in segments if one.metadata is not None), segments[0])
    kind = kind_of(described.origin, described.metadata)
    by_class = {"scalar": SCALARS, "": described.form}
    wanted = by_class.get(kind.data_class, RECORDS)
    chosen = [one for one in segments if one.form == wanted] or segments
    chosen = [one for one in chosen if one.form == chosen[0].form]
    is_scalar = chosen[0].form == SCALARS
    if is_scalar and not kind.data_class:
        kind = kind._replace(data_class="scalar")
    last = chosen[-1]
    return Tag(
        run=source.run_name(last.directory),
        directory=last.directory,
        name=last.tag,
        kind=kind,
        metadata=described.metadata,
        first_step=min(one.min_step for one in chosen),
        last_step=last.last_step,
        last_wall_time=_number(last.last_wall),
        max_wall_time=max(one.max_wall for one in chosen),
        last_value=_number(last.last_value) if is_scalar else last.last_value,
        rows=max(one.rows for one in chosen),
        source=source,
        segments=tuple(chosen),
    )


def _number(stored: float | None) -> float:
    """Return a number as it was written: SQLite keeps a NaN as NULL."""
    return math.nan if stored is None else stored
