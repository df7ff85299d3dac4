"""Queries: the runs, tags, files and damage of a source.

A *run* is a directory with event files. `tags` defines tags; `series` reads points. Nothing here
imports numpy, so that lists are quick.
"""

from __future__ import annotations

import json
import math
import sqlite3
from collections import Counter
from collections.abc import Callable, Collection, Container, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import groupby
from operator import itemgetter
from typing import Any, NamedTuple

from aboard.events import messages
from aboard.events.files import ADOPTED, adopted_originals
from aboard.index.schema import SCALARS
from aboard.index.sources import Source, within
from aboard.index.tags import (
    COLUMNS,
    About,
    DescribedNames,
    Kind,
    Segment,
    Tag,
    TagTable,
    kind_of,
    number_of,
    put_together,
)
from aboard.storage.base import is_below, join


class UnknownName(LookupError):
    """No run or tag has this name."""


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
    """A span of bytes without a good record."""

    uri: str
    offset: int
    length: int


_SEGMENTS = (
    f"SELECT f.directory, f.name, {', '.join(f's.{one}' for one in COLUMNS)}"
    " FROM file AS f JOIN segment AS s ON s.file = f.id"
)
_MOST_METRICS = 1000  # whose last values are stored with a run that has no record
_RUNS_AT_ONCE = 100  # keeps the sorted results small
_IN_ORDER = " ORDER BY f.directory, s.tag, f.attempt, f.name, s.form"
_DAMAGED_BYTES = """(SELECT coalesce(sum(length), 0) FROM damage WHERE damage.file = file.id)
+ CASE WHEN damage_start >= 0 THEN offset - damage_start ELSE 0 END"""


def _visible(source: Source) -> tuple[str, tuple[str, ...]]:
    """Return the SQL condition for the files of a source without originals of adopted copies."""
    where, arguments = within(source)
    if source.only:
        return where, arguments
    # A subquery on names only, covered by an index; SQLite runs it once.
    copies = (
        f"SELECT substr(name, 1, length(name) - {len(ADOPTED)}) FROM file {where}"
        f" AND substr(name, -{len(ADOPTED)}) = '{ADOPTED}'"
    )
    return f"{where} AND name NOT IN ({copies})", arguments * 2


def runs(connection: sqlite3.Connection, source: Source) -> list[Run]:
    where, arguments = _visible(source)
    # With min(name), SQLite takes first_wall from the row with the minimum: the first file.
    rows = connection.execute(
        "SELECT directory, count(*), sum(size), sum(events), first_wall,"
        f" sum({_DAMAGED_BYTES}), min(name) FROM file {where}"
        " GROUP BY directory ORDER BY directory",
        arguments,
    )
    name_of = source.run_name
    return [Run(name_of(row[0]), *row[:-1]) for row in rows]


def damages(connection: sqlite3.Connection, source: Source) -> list[Damage]:
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
    """Return a number that changes whenever the mark of any run changes. Cheap."""
    count: int = connection.execute("SELECT count FROM stamp").fetchone()[0]
    return count


def has_roots(connection: sqlite3.Connection) -> bool:
    """Return whether the catalog has runs below any root."""
    return connection.execute("SELECT 1 FROM root LIMIT 1").fetchone() is not None


Marks = dict[str, tuple[object, ...]]  # by directory of a run; changes with the run


def marks(connection: sqlite3.Connection, sources: Sequence[Source]) -> list[Marks]:
    whole = [source.uri.rstrip("/") for source in sources if not source.only]
    rows: Iterable[tuple[str, str, str, *tuple[object, ...]]] = connection.execute(
        # '0' is the character after '/': everything below the source is in between.
        "SELECT given.value, directory, name, file.id, offset, attempt, first_wall"
        " FROM json_each(?) AS given CROSS JOIN file"
        " WHERE directory >= given.value AND directory < given.value || '0'"
        " AND (directory = given.value OR substr(directory, length(given.value) + 1, 1) = '/')"
        " ORDER BY given.key, directory, name",
        (json.dumps(whole),),
    )
    found: dict[str, Marks] = {}
    for source, of_source in groupby(rows, key=itemgetter(0)):
        files = list(of_source)
        adopted = adopted_originals(row[2] for row in files)
        shown = (row for row in files if row[2] not in adopted)
        found[source] = {
            directory: _mark([row[3:] for row in group])
            for directory, group in groupby(shown, key=itemgetter(1))
        }
    return [
        _marks_of_file(connection, one) if one.only else found.get(one.uri.rstrip("/"), {})
        for one in sources
    ]


def _marks_of_file(connection: sqlite3.Connection, source: Source) -> Marks:
    where, arguments = within(source)
    rows = connection.execute(f"SELECT id, offset, first_wall FROM file {where}", arguments)
    return {source.uri: _mark(found)} if (found := rows.fetchall()) else {}


def _mark(files: list[tuple[object, ...]]) -> tuple[object, ...]:
    return files[0], len(files), hash(tuple(files))


def tags(connection: sqlite3.Connection, source: Source) -> Iterator[Tag]:
    where, arguments = _visible(source)
    return (put_together(source, segments) for segments in _grouped(connection, where, arguments))


class Contents(NamedTuple):
    directories: int
    files: int
    bytes: int
    events: int
    tags: int
    points: int
    records: Counter[Kind]  # values that are not scalars, by the kind of their tags


def contents(
    connection: sqlite3.Connection, source: Source, count: Callable[[Tag], int]
) -> Contents:
    """Count everything.

    Tags whose values are in one segment, in order, are counted by SQLite, and `count` counts the
    values of each of the others.
    """
    where, arguments = _visible(source)
    directories, files, size, events = connection.execute(
        "SELECT count(DISTINCT directory), count(*), coalesce(sum(size), 0),"
        f" coalesce(sum(events), 0) FROM file {where}",
        arguments,
    ).fetchone()
    is_simple = (
        "(s.increasing AND NOT EXISTS (SELECT 1 FROM segment AS other"
        " WHERE other.file = s.file AND other.tag = s.tag AND other.form != s.form)"
    )
    counted = f"segment AS s JOIN file AS f ON s.file = f.id {where}"
    if files > directories:
        alone = f"SELECT directory FROM file {where} GROUP BY directory HAVING count(*) = 1"
        is_simple += f" AND f.directory IN ({alone})"
        arguments *= 2  # the condition occurs twice
    elif connection.execute("SELECT count(*) FROM file").fetchone() == (files,):
        counted = "segment AS s"  # the index has nothing else
    is_simple += ")"
    rows = connection.execute(
        f"SELECT {is_simple} AS simple, s.origin, s.metadata, s.form, count(*), sum(s.count)"
        f" FROM {counted} GROUP BY simple, s.origin, s.metadata, s.form",
        arguments if where in counted else (),
    ).fetchall()
    tags, points, records = 0, 0, Counter[Kind]()
    for simple, origin, metadata, form, some, values in rows:
        if not simple:
            continue
        tags += some
        if form == SCALARS:
            points += values
        else:
            records[About.of(origin, metadata, form).kind] += values
    if not all(simple for simple, *_ in rows):
        for segments in _grouped(connection, f"{where} AND NOT {is_simple}", arguments):
            tag = put_together(source, segments)
            tags += 1
            if tag.is_scalar:
                points += count(tag)
            else:
                records[tag.kind] += count(tag)
    return Contents(directories, files, size, events, tags, points, records)


class Crowded(NamedTuple):
    """A run with more tags than are listed."""

    tags: int
    beyond: str  # the first tag, by name, that is left out


def segment_counts(connection: sqlite3.Connection, directories: Collection[str]) -> dict[str, int]:
    return dict(
        connection.execute(
            "SELECT directory, count(*) FROM file JOIN segment ON segment.file = file.id"
            " WHERE directory IN (SELECT value FROM json_each(?)) GROUP BY directory",
            (json.dumps(list(directories)),),
        )
    )


def crowded(
    connection: sqlite3.Connection, directories: Iterable[str], most: int
) -> dict[str, Crowded]:
    """Return the runs with more than `most` tags, by directory."""
    found = {}
    tags = (
        "SELECT DISTINCT tag FROM file JOIN segment ON segment.file = file.id WHERE directory = ?"
    )
    for directory in directories:
        (count,) = connection.execute(f"SELECT count(*) FROM ({tags})", (directory,)).fetchone()
        if count > most:
            (beyond,) = connection.execute(
                f"{tags} ORDER BY tag LIMIT 1 OFFSET ?", (directory, most)
            ).fetchone()
            found[directory] = Crowded(count, beyond)
    return found


def described(
    connection: sqlite3.Connection, directories: Collection[str]
) -> dict[str, list[About]]:
    """Return the distinct metadata of the tags of each run, by directory."""
    rows = connection.execute(
        "SELECT DISTINCT directory, origin, metadata, form FROM file"
        " JOIN segment ON segment.file = file.id"
        " WHERE directory IN (SELECT value FROM json_each(?))",
        (json.dumps(list(directories)),),
    )
    found: dict[str, list[About]] = {}
    for directory, *key in rows:
        found.setdefault(directory, []).append(About.of(*key))
    return found


def tags_of(
    connection: sqlite3.Connection,
    places: Collection[tuple[Source, str]],
    beyond: Mapping[str, Crowded],
) -> Iterator[tuple[tuple[Source, str], TagTable]]:
    """Yield the tags of each run; of crowded runs, only those before `beyond`."""
    by_directory: dict[str, list[Source]] = {}
    for source, directory in places:
        by_directory.setdefault(directory, []).append(source)
    usual = [directory for directory in by_directory if directory not in beyond]
    where = "WHERE f.directory IN (SELECT value FROM json_each(?))"
    conditions: list[tuple[str, tuple[str, ...]]] = [
        (where, (json.dumps(usual[start : start + _RUNS_AT_ONCE]),))
        for start in range(0, len(usual), _RUNS_AT_ONCE)
    ]
    conditions += [
        ("WHERE f.directory = ? AND s.tag < ?", (directory, one.beyond))
        for directory, one in beyond.items()
        if directory in by_directory
    ]
    for condition, arguments in conditions:
        rows = connection.execute(f"{_SEGMENTS} {condition} {_IN_ORDER}", arguments)
        for directory, group in groupby(rows, key=itemgetter(0)):
            held = list(group)
            for source in by_directory[directory]:
                seen = [row for row in held if row[1] == source.only] if source.only else held
                if seen:
                    columns = list(zip(*seen, strict=True))[1:]
                    yield (source, directory), TagTable(source, directory, columns)


def described_names(
    connection: sqlite3.Connection,
    place: tuple[Source, str],
    beyond: str | None,
    *,
    are_alike: bool,
) -> DescribedNames | None:
    """Return the names of a run's tags; None if any tag has several segments.

    With `are_alike`, all tags have the same metadata, which is read once.
    """
    source, directory = place
    conditions, arguments = ["f.directory = ?"], [directory]
    for condition, value in (("f.name = ?", source.only), ("s.tag < ?", beyond)):
        if value:
            conditions.append(condition)
            arguments.append(value)
    within = f"FROM file AS f JOIN segment AS s ON s.file = f.id WHERE {' AND '.join(conditions)}"
    columns = "s.tag" if are_alike else "s.tag, s.origin, s.metadata, s.form"
    rows = connection.execute(f"SELECT {columns} {within} ORDER BY s.tag", arguments).fetchall()
    names = tuple([row[0] for row in rows])
    if not names or len(set(names)) < len(names):
        return None
    if are_alike:
        one = connection.execute(f"SELECT origin, metadata, form {within} LIMIT 1", arguments)
        return DescribedNames(names, one.fetchall())
    return DescribedNames(names, [row[1:] for row in rows])


def find_tag(connection: sqlite3.Connection, source: Source, run: str, tag: str) -> Tag | None:
    where, arguments = "WHERE f.directory = ? AND s.tag = ?", [source.directory_of(run), tag]
    if source.only:
        where += " AND f.name = ?"
        arguments.append(source.only)
    for segments in _grouped(connection, where, arguments):
        return put_together(source, segments)
    return None


def metrics(
    connection: sqlite3.Connection, runs: Collection[Source], names: Collection[str]
) -> dict[tuple[str, str], Tag]:
    """Return the scalar tags of the runs with the given names, by URI of the run and name.

    A metric in a directory below its run is named `DIRECTORY/TAG`. A tag with that name in the
    run's own directory takes precedence. A metric that `add_hparams` writes into a directory named
    by a time is also found without this time; that of the last call, if there are several.
    """
    cuts = {name: [place for place, one in enumerate(name) if one == "/"] for name in names}
    stages = {name[:cut] for name, places in cuts.items() for cut in places}
    tags = set(names) | {name[cut + 1 :] for name, places in cuts.items() for cut in places}
    places = {join(source.uri, stage): (source, f"{stage}/") for stage in stages for source in runs}
    places |= {source.uri: (source, "") for source in runs}  # a run may be inside another
    found: dict[tuple[str, str], Tag] = {}
    where = (
        "WHERE f.directory IN (SELECT value FROM json_each(?))"
        " AND s.tag IN (SELECT value FROM json_each(?))"
    )
    for segments in _grouped(connection, where, (json.dumps(list(places)), json.dumps(list(tags)))):
        source, stage = places[segments[0].directory]
        key = (source.uri, f"{stage}{segments[0].tag}")
        if key[1] in cuts and (key not in found or len(found[key].name) < len(segments[0].tag)):
            tag = put_together(source, segments)
            if tag.is_scalar:
                found[key] = tag
    return _metrics_of_times(connection, runs, names, found) | found


def _metrics_of_times(
    connection: sqlite3.Connection,
    runs: Collection[Source],
    names: Collection[str],
    known: Container[tuple[str, str]],
) -> dict[tuple[str, str], Tag]:
    """Return metrics that are not known, from directories named by a time; see `metric_name`.

    A directory that is a run, or inside one, belongs to that run.
    """
    from aboard.runs.catalog import metric_name, with_parents

    left = {one.uri: one for one in runs if any((one.uri, name) not in known for name in names)}
    rows = connection.execute(
        "SELECT DISTINCT given.value, directory FROM json_each(?) AS given CROSS JOIN file"
        " WHERE directory > given.value || '/' AND directory < given.value || '0'"
        " AND directory GLOB '*/[0-9]*.[0-9]*'",
        (json.dumps(list(left)),),
    )
    above: dict[tuple[str, str, str], list[str]] = {}
    for uri, directory in rows:
        stage = directory[len(uri) + 1 :]
        start = metric_name(stage, "")
        if start != f"{stage}/":
            above[uri, directory, start] = [join(uri, one) for one in with_parents(stage)[:-1]]
    inner = _which_are_runs(connection, {one for held in above.values() for one in held})
    places: dict[str, dict[str, tuple[str, str]]] = {}  # by directory and tag
    for (uri, directory, start), held in above.items():
        if not inner.isdisjoint(held):
            continue
        for name in names:
            if name.startswith(start) and (uri, name) not in known:
                places.setdefault(directory, {})[name[len(start) :]] = (uri, name)
    if not places:
        return {}
    found: dict[tuple[str, str], Tag] = {}
    where = (
        "WHERE f.directory IN (SELECT value FROM json_each(?))"
        " AND s.tag IN (SELECT value FROM json_each(?))"
    )
    tags = {tag for held in places.values() for tag in held}
    for segments in _grouped(connection, where, (json.dumps(list(places)), json.dumps(list(tags)))):
        key = places[segments[0].directory].get(segments[0].tag)
        if key is not None:
            tag = put_together(left[key[0]], segments)
            if tag.is_scalar:
                found[key] = tag
    return found


def _which_are_runs(connection: sqlite3.Connection, directories: Collection[str]) -> set[str]:
    found = set[str]()
    for (root,) in connection.execute("SELECT uri FROM root").fetchall() if directories else ():
        start = len(root.rstrip("/")) + 1
        below = [one[start:] for one in directories if is_below(one, root)]
        rows = connection.execute(
            "SELECT directory FROM run WHERE root = ?"
            " AND directory IN (SELECT value FROM json_each(?))",
            (root, json.dumps(below)),
        )
        found.update(join(root, directory) for (directory,) in rows)
    return found


def logged_names(connection: sqlite3.Connection, root: str) -> set[str]:
    """Return the names of the scalars of all runs below a root, with their stages."""
    from aboard.runs.catalog import metric_name, with_parents

    where, arguments = _visible(Source(root))
    held = connection.execute(f"SELECT id, directory FROM file {where}", arguments).fetchall()
    if not held:
        return set()
    rows = connection.execute("SELECT directory FROM run WHERE root = ?", (root,))
    known = {directory for (directory,) in rows}
    files: dict[str, list[int]] = {}  # by what precedes names in them
    for file, uri in held:
        directory = uri[len(root.rstrip("/")) + 1 :]
        run = next((one for one in with_parents(directory) if one in known), None)
        if run is not None:
            stage = metric_name(directory[len(run) :].lstrip("/"), "")
            files.setdefault(stage, []).append(file)
    return {
        stage + tag
        for stage, some in files.items()
        for (tag,) in connection.execute(
            "SELECT DISTINCT tag FROM segment WHERE file IN (SELECT value FROM json_each(?))"
            f" AND form = {SCALARS}",
            (json.dumps(some),),
        )
    }


class Described(NamedTuple):
    """What event files tell about a run: hyperparameters, and the last values of metrics."""

    hparams: dict[str, messages.HParam]
    metrics: dict[str, float]


def describe(
    connection: sqlite3.Connection,
    runs: Collection[str],
    others: Container[str],
    *,
    with_metrics: bool = True,
) -> dict[str, Described]:
    """Read hyperparameters and metrics from the event files in and below the directories.

    Directories without event files are left out, and so are files of `others`, which are runs
    below the directories. Metrics are named as in `metrics`, and only the first by name returned.
    """
    from aboard.runs.catalog import metric_name, with_parents

    which = f"(form = {SCALARS} OR tag = ?)" if with_metrics else "tag = ?"
    rows = connection.execute(
        "SELECT given.value, directory, tag, form, last_value, metadata"
        " FROM json_each(?) AS given CROSS JOIN file JOIN segment ON segment.file = file.id"
        " WHERE directory >= given.value AND directory < given.value || '0'"
        " AND (directory = given.value OR substr(directory, length(given.value) + 1, 1) = '/')"
        f" AND {which} ORDER BY given.key, attempt, name",
        (json.dumps(list(runs)), messages.SESSION_START),
    )
    found: dict[str, Described] = {}
    for run, of_run in groupby(rows, key=itemgetter(0)):
        own: dict[str, float] = {}
        staged: dict[str, float] = {}
        timed: dict[str, float] = {}
        hparams: dict[str, messages.HParam] = {}
        for _, directory, tag, form, value, metadata in of_run:
            stage = directory[len(run) + 1 :]
            if any(join(run, one) in others for one in with_parents(stage)[:-1]):
                continue
            if form != SCALARS:
                hparams |= _hparams_in(metadata)
            elif directory == run:
                own[tag] = number_of(value)
            elif (name := metric_name(stage, tag)) == f"{stage}/{tag}":
                staged[name] = number_of(value)
            else:
                timed[name] = number_of(value)
        metrics = timed | staged | own
        found[run] = Described(
            hparams, {one: metrics[one] for one in sorted(metrics)[:_MOST_METRICS]}
        )
    return found


def _hparams_in(metadata: bytes | None) -> dict[str, messages.HParam]:
    try:
        return messages.parse_hparams(messages.parse_metadata(metadata or b"").content)
    except messages.Malformed:
        return {}


def directories_of(connection: sqlite3.Connection, files: Collection[int]) -> set[str]:
    """Return the directories of files, given by id."""
    if not files:
        return set()
    rows = connection.execute(
        "SELECT DISTINCT directory FROM file WHERE id IN (SELECT value FROM json_each(?))",
        (json.dumps(list(files)),),
    )
    return {directory for (directory,) in rows}


def tag_counts(connection: sqlite3.Connection, source: Source) -> dict[str, int]:
    where, arguments = _visible(source)
    rows = connection.execute(
        "SELECT directory, count(DISTINCT tag) FROM file JOIN segment ON segment.file = file.id"
        f" {where} GROUP BY directory",
        arguments,
    )
    return {source.run_name(directory): count for directory, count in rows}


def misread(
    connection: sqlite3.Connection, directories: Collection[str]
) -> dict[int, list[tuple[bytes, int]]]:
    """Return the tags to read again, with their correct classes, by id of the file.

    The first metadata of a tag in a run applies to all files of the run. If a file has no metadata,
    or has it after the first value, the scanner decides by shape whether a single number is a
    scalar or a tensor, which may be wrong.
    """
    if not directories:
        return {}
    rows = connection.execute(
        "SELECT f.directory, s.tag, f.id, s.form, s.kind, s.metadata FROM file AS f"
        " JOIN segment AS s ON s.file = f.id WHERE f.directory IN"
        " (SELECT value FROM json_each(?)) AND s.origin = ? AND f.version != ''"
        f" {_IN_ORDER}",
        (json.dumps(list(directories)), messages.ORIGIN_TENSOR),
    )
    found: dict[int, list[tuple[bytes, int]]] = {}
    for (_, tag), group in groupby(rows, key=itemgetter(0, 1)):
        segments = [row[2:] for row in group]
        doubtful = [one for one in segments if one[2] == messages.CLASS_UNKNOWN]
        described = next((one[3] for one in segments if one[3] is not None), None)
        if described is None or not doubtful:
            continue
        is_scalar = kind_of(messages.ORIGIN_TENSOR, described).data_class == "scalar"
        known = (tag.encode(), messages.CLASS_SCALAR if is_scalar else messages.CLASS_OTHER)
        for file, form, *_ in doubtful:
            if (form == SCALARS) != is_scalar:
                found.setdefault(file, []).append(known)
    return found


def of_many_files(connection: sqlite3.Connection, directories: Collection[str]) -> set[str]:
    """Return the directories that have more than one file."""
    if not directories:
        return set()
    rows = connection.execute(
        "SELECT directory FROM file WHERE directory IN (SELECT value FROM json_each(?))"
        " GROUP BY directory HAVING count(*) > 1",
        (json.dumps(list(directories)),),
    )
    return {directory for (directory,) in rows}


@contextmanager
def at_one_moment(connection: sqlite3.Connection) -> Iterator[None]:
    """Run several queries on one snapshot of the index."""
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
    """Return the current state of tags, whose files may have been read again; None if deleted.

    Also return the sources to refresh before a tag counts as deleted: its files may be in the
    middle of being read.
    """
    found: list[Tag | None] = []
    unsure = set()
    for tag in tags:
        now: Tag | None = tag
        if tag.group is not None:
            members, doubtful = current(connection, tag.group.members)
            left = tuple(one for one in members if one is not None)
            name = tag.name if tag.name != tag.group.members[0].name else ""
            now = Tag.of_group(tag.group._replace(members=left), name) if left else None
            unsure |= doubtful
        elif not are_held(connection, [tag]):
            now = find_tag(connection, tag.source, tag.run, tag.name)
            if now is None or _is_being_read(connection, tag.directory):
                unsure.add(tag.source)
        found.append(now)
    return found, unsure


def are_held(connection: sqlite3.Connection, tags: Iterable[Tag]) -> bool:
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
    shared: dict[str | bytes, Any] = {}  # directories, file names and metadata, each kept once
    at = Segment._fields.index("metadata")
    for (_, tag), group in groupby(rows, key=itemgetter(0, 2)):
        yield [
            Segment._make(
                (
                    shared.setdefault(row[0], row[0]),
                    shared.setdefault(row[1], row[1]),
                    tag,
                    *row[3:at],
                    row[at] and shared.setdefault(row[at], row[at]),
                    *row[at + 1 :],
                )
            )
            for row in group
        ]


class EventFile(NamedTuple):
    directory: str
    name: str
    size: int
    incomplete: int  # bytes at its end that are not yet a complete record
    damaged: int
    events: int
    values: int
    first_wall: float | None  # of its first event; None if it is not a finite number
    last_wall: float | None  # the latest of a value


def files(connection: sqlite3.Connection, source: Source) -> list[EventFile]:
    where, arguments = within(source)
    rows = connection.execute(
        f"SELECT directory, name, size, max(0, size - offset), {_DAMAGED_BYTES},"
        " events, (SELECT coalesce(sum(count), 0) FROM segment WHERE segment.file = file.id),"
        " first_wall, (SELECT max(max_wall) FROM segment WHERE segment.file = file.id)"
        f" FROM file {where} ORDER BY directory, name",
        arguments,
    )
    return [
        one._replace(first_wall=_time(one.first_wall), last_wall=_time(one.last_wall))
        for one in (EventFile(*row) for row in rows)
    ]


def _time(wall: float | None) -> float | None:
    return wall if wall is not None and math.isfinite(wall) else None
