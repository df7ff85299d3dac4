"""Forgetting a source: all that the index knows of it goes, whether the source is there or not.

The index is a cache: what is there still is read again when somebody asks for it. The room in the
file is given back by `compact`.
"""

from __future__ import annotations

import sqlite3
from typing import NamedTuple

from aboard.index.plan import Source, at_or_below, known_files, span, within
from aboard.index.schema import transaction
from aboard.index.store import Store


class Forgotten(NamedTuple):
    """What the index knew of a source."""

    runs: int
    files: int
    values: int
    records: int
    """Runs known by their place below a root, with their records."""

    def __bool__(self) -> bool:
        """Return whether it was anything at all."""
        return any(self)


def forget(connection: sqlite3.Connection, source: Source) -> Forgotten:
    """Remove all that is known of a source."""
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
    """Remove the records of runs at a place and below it; return how many that were."""
    run = "rtrim(rtrim(root, '/') || '/' || directory, '/')"
    with transaction(connection):
        gone = connection.execute(f"DELETE FROM run WHERE {at_or_below(run)}", span(place)).rowcount
        connection.execute(f"DELETE FROM folder WHERE {at_or_below('root')}", span(place))
        connection.execute("UPDATE root SET changes = changes + 1")
    return gone


def compact(connection: sqlite3.Connection) -> None:
    """Make the file as small as what is in it."""
    connection.execute("VACUUM")
    connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
