"""Plans what to read: compares the files of a source with the index.

This costs one listing and one query, however large the files are.
"""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Iterable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from typing import NamedTuple

from aboard.events.files import EVENT_FILE, STAMPED
from aboard.storage.base import (
    Entry,
    NoSuchPath,
    Storage,
    StorageError,
    canonical,
    is_below,
    is_remote,
    join,
    open_storage,
    split,
)

# How often the follower polls sources; doctor estimates requests from these numbers.
REMOTE_SECONDS = 5.0  # between two polls of a bucket that changes
LONGEST_SECONDS = 60.0  # between two polls of a bucket that does not change
UNWATCHED_SECONDS = 60.0  # without a request, then a board is not polled


class Source(NamedTuple):
    """A directory or URI to read, or only the event file `only` in it."""

    uri: str
    only: str = ""

    @classmethod
    def parse(cls, text: str) -> Source:
        uri = canonical(text)
        name = uri.rpartition("/")[2]
        # In a bucket, only the name can tell: event files have a time after "tfevents".
        # A Path raises where access is denied.
        is_file = STAMPED.search(name) if is_remote(uri) else not os.path.isdir(uri)  # noqa: PTH112
        if EVENT_FILE in name and is_file:
            return cls(*split(uri))
        return cls(uri)

    def run_name(self, directory: str) -> str:
        """Return the name of a directory's run: its path below the source, or '.'."""
        return directory[len(self.uri.rstrip("/")) + 1 :] or "."

    def directory_of(self, run: str) -> str:
        return self.uri if run == "." else join(self.uri, run)


class Known(NamedTuple):
    """How far a file was read: a row of the index, whose column `head` is the digest."""

    id: int
    size: int
    version: str
    offset: int
    tail: int  # checksum of the bytes just before the offset
    digest: int  # of all records before it; see `Scanner.digest`
    damage_start: int


_KNOWN = "id, size, version, offset, tail, head, damage_start"


class Reading:
    """What to read of a file: what is new since `known` or, if `fresh`, all of it."""

    __slots__ = ("directory", "entry", "fresh", "known", "name", "storage", "tags")

    def __init__(
        self,
        storage: Storage,
        entry: Entry,
        directory: str,
        name: str,
        known: Known | None,
        *,
        fresh: bool,
        tags: Sequence[tuple[bytes, int]] = (),
    ) -> None:
        self.storage = storage
        self.entry = entry
        self.directory = directory
        self.name = name
        self.known = known
        self.fresh = fresh
        self.tags = tags  # with their classes

    @property
    def uri(self) -> str:
        return join(self.directory, self.name)

    @property
    def start(self) -> int:
        return 0 if self.fresh or self.known is None else self.known.offset


class Plan(NamedTuple):
    readings: list[Reading]
    gone: list[int]
    unchanged: int
    problems: list[StorageError]
    shared: AbstractSet[str] = frozenset()  # directories with more than one file


def needs_reading(entry: Entry, known: Known | None) -> bool | None:
    """Return None if there is nothing to read, True if a file must be read from the start.

    False means that reading can continue, if the bytes before the offset are unchanged.
    """
    if known is None:
        return True
    if entry.version == known.version and entry.size == known.size:
        return None
    return entry.size == known.size or entry.size < known.offset


def make_plan(connection: sqlite3.Connection, source: Source, *, anew: bool = False) -> Plan:
    """List a source and compare it with the index; with `anew`, plan to read everything again.

    Raises:
        StorageError: the source itself cannot be listed.
    """
    storage = open_storage(source.uri)
    problems: list[StorageError] = []
    known = known_files(connection, source)
    readings: list[Reading] = []
    unchanged = 0
    root = storage.uri
    directories: dict[str, str] = {}
    shared: set[str] = set()
    above = f"{root.rstrip('/')}/"
    for entry in _entries(storage, source, problems):
        below, _, name = entry.name.rpartition("/")
        directory = directories.get(below)
        if directory is None:
            directory = directories[below] = above + below if below else root
        else:
            shared.add(directory)
        row = known.pop((directory, name), None)
        fresh = True if anew else needs_reading(entry, row)
        if fresh is None:
            unchanged += 1
        else:
            readings.append(Reading(storage, entry, directory, name, row, fresh=fresh))
    # Files below a directory that could not be listed may still exist.
    gone = [
        row.id
        for key, row in known.items()
        if not any(is_below(join(*key), one.place) for one in problems)
    ]
    for reading in readings:
        if not reading.fresh and reading.known:
            reading.tags = known_tags(connection, reading.known.id)
    return Plan(readings, gone, unchanged, problems, shared)


def _entries(
    storage: Storage, source: Source, problems: list[StorageError]
) -> Iterator[Entry] | Iterable[Entry]:
    if not source.only:
        return storage.list(containing=EVENT_FILE, on_error=problems.append)
    found = [entry for entry in storage.list(source.only) if entry.name == source.only]
    if not found:
        raise NoSuchPath(join(source.uri, source.only), "no such file", "Check the path.")
    return found


def known_files(connection: sqlite3.Connection, source: Source) -> dict[tuple[str, str], Known]:
    where, arguments = within(source)
    rows = connection.execute(f"SELECT directory, name, {_KNOWN} FROM file {where}", arguments)
    directories: dict[str, str] = {}
    return {
        (directories.setdefault(directory, directory), name): Known(*rest)
        for directory, name, *rest in rows
    }


def known_tags(connection: sqlite3.Connection, file: int) -> list[tuple[bytes, int]]:
    """Return the tags of a file whose class is known; see `messages.CLASS_SCALAR`."""
    rows = connection.execute(
        "SELECT tag, max(kind) FROM segment WHERE file = ? AND kind != 0 GROUP BY tag", (file,)
    )
    return [(tag.encode(), kind) for tag, kind in rows]


def reread(
    connection: sqlite3.Connection, source: Source, files: Mapping[int, list[tuple[bytes, int]]]
) -> Plan:
    """Plan to read files of a source again, up to where they were read, with known tags."""
    storage = open_storage(source.uri)
    readings = []
    for file, tags in files.items():
        row = connection.execute(
            f"SELECT directory, name, {_KNOWN} FROM file WHERE id = ?", (file,)
        ).fetchone()
        if row is None:  # another process has replaced or removed it meanwhile
            continue
        directory, name, *rest = row
        known = Known(*rest)
        below = source.run_name(directory)
        entry = Entry(name if below == "." else f"{below}/{name}", known.size, known.version)
        readings.append(Reading(storage, entry, directory, name, known, fresh=True, tags=tags))
    return Plan(readings, [], 0, [])


def within(source: Source) -> tuple[str, tuple[str, ...]]:
    if source.only:
        return "WHERE directory = ? AND name = ?", (source.uri, source.only)
    return f"WHERE {at_or_below('directory')}", span(source.uri)


def at_or_below(column: str) -> str:
    """Return the SQL condition that a place is equal to or below another; see `span`."""
    return f"({column} = ? OR {column} >= ? AND {column} < ?)"


def span(place: str) -> tuple[str, str, str]:
    """Return the arguments of `at_or_below`: a place, and the bounds of the places below it."""
    above = place.rstrip("/")
    return place, f"{above}/", f"{above}0"  # '0' is the character after '/'
