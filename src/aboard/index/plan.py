"""What there is to read: the files of a source compared with what the index knows.

Comparing costs one listing and one query, whatever the size of the files. The
rules are pure: a file as listed and a file as known in, a reading out.
"""

from __future__ import annotations

import re
import sqlite3
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import NamedTuple

from aboard.storage.base import Entry, NotFound, Storage, StorageError
from aboard.storage.uri import canonical, is_below, is_remote, join, open_storage, split

EVENT_FILE = "tfevents"
"""A file is an event file if its name contains this, as TensorBoard holds it."""


_EVENT_FILE_NAME = re.compile(r"tfevents\.\d")


@dataclass(frozen=True, slots=True)
class Source:
    """A directory or URI whose runs are read; or one event file in it."""

    uri: str
    only: str = ""

    @classmethod
    def parse(cls, text: str) -> Source:
        """Make a source of what a user typed."""
        uri = canonical(text)
        name = uri.rpartition("/")[2]
        # A bucket has no directories to look at; event files have a time behind the word.
        is_file = _EVENT_FILE_NAME.search(name) if is_remote(uri) else not _is_directory(uri)
        if EVENT_FILE in name and is_file:
            return cls(*split(uri))
        return cls(uri)

    def run_name(self, directory: str) -> str:
        """Return the name of a directory's run: its path below the source, or '.'."""
        return directory[len(self.uri.rstrip("/")) + 1 :] or "."

    def directory_of(self, run: str) -> str:
        """Return the directory of a run."""
        return self.uri if run == "." else join(self.uri, run)


def _is_directory(path: str) -> bool:
    import os

    return os.path.isdir(path)  # noqa: PTH112 (a Path raises where it may not look)


class Known(NamedTuple):
    """A file as the index knows it."""

    id: int
    size: int
    version: str
    offset: int
    tail: int
    head: int
    damage_start: int


@dataclass(slots=True)
class Reading:
    """A file to be read, from where, and what the index says of it so far."""

    storage: Storage
    entry: Entry
    directory: str
    name: str
    known: Known | None
    """The row to continue or, if `fresh`, to replace."""
    fresh: bool
    tags: list[tuple[bytes, int]] = field(default_factory=list)
    """The tags already classified, of a file that is continued."""

    @property
    def uri(self) -> str:
        """Where the file is."""
        return join(self.directory, self.name)

    @property
    def start(self) -> int:
        """The offset from which to read."""
        return 0 if self.fresh or self.known is None else self.known.offset


@dataclass(slots=True)
class Plan:
    """All there is to do to bring the index up to date with a source."""

    readings: list[Reading]
    gone: list[int]
    unchanged: int
    problems: list[StorageError]


def needs_reading(entry: Entry, known: Known | None) -> bool | None:
    """Compare a file as listed and as known.

    Returns:
        None when there is nothing to read, True when it must be read anew, False
        when it can be continued, if its last bytes before the offset are the same.
    """
    if known is None:
        return True
    if entry.version == known.version and entry.size == known.size:
        return None
    return entry.size == known.size or entry.size < known.offset


def make_plan(connection: sqlite3.Connection, source: Source, *, anew: bool = False) -> Plan:
    """List a source and compare it with the index.

    Raises:
        StorageError: the source itself cannot be listed.
    """
    storage = open_storage(source.uri)
    problems: list[StorageError] = []
    known = known_files(connection, source)
    readings: list[Reading] = []
    unchanged = 0
    seen = set()
    root = storage.uri
    for entry in _entries(storage, source, problems):
        below, _, name = entry.name.rpartition("/")
        directory = f"{root.rstrip('/')}/{below}" if below else root
        seen.add((directory, name))
        row = known.get((directory, name))
        fresh = True if anew else needs_reading(entry, row)
        if fresh is None:
            unchanged += 1
        else:
            readings.append(Reading(storage, entry, directory, name, row, fresh))
    # What a failed listing did not show may still be there.
    gone = [
        row.id
        for key, row in known.items()
        if key not in seen and not any(is_below(join(*key), one.place) for one in problems)
    ]
    for reading in readings:
        if not reading.fresh and reading.known:
            reading.tags = known_tags(connection, reading.known.id)
    return Plan(readings, gone, unchanged, problems)


def _entries(
    storage: Storage, source: Source, problems: list[StorageError]
) -> Iterator[Entry] | Iterable[Entry]:
    if not source.only:
        return storage.list(containing=EVENT_FILE, on_error=problems.append)
    found = [entry for entry in storage.list(source.only) if entry.name == source.only]
    if not found:
        raise NotFound(join(source.uri, source.only), "there is no such file", "Check the path.")
    return found


def known_files(connection: sqlite3.Connection, source: Source) -> dict[tuple[str, str], Known]:
    """Return the files of a source that the index knows, by directory and name."""
    where, arguments = within(source)
    rows = connection.execute(
        "SELECT directory, name, id, size, version, offset, tail, head, damage_start"
        f" FROM file {where}",
        arguments,
    )
    return {(directory, name): Known(*rest) for directory, name, *rest in rows}


def known_tags(connection: sqlite3.Connection, file: int) -> list[tuple[bytes, int]]:
    """Return the tags of a file and the class that their metadata gave them."""
    rows = connection.execute("SELECT DISTINCT tag, kind FROM segment WHERE file = ?", (file,))
    return [(tag.encode(), kind) for tag, kind in rows]


def within(source: Source) -> tuple[str, tuple[str, ...]]:
    """Return the SQL condition that picks the files of a source, and its arguments."""
    if source.only:
        return "WHERE directory = ? AND name = ?", (source.uri, source.only)
    return f"WHERE {at_or_below('directory')}", span(source.uri)


def at_or_below(column: str) -> str:
    """Return the SQL condition that a place is another one or below it; see `span`."""
    return f"({column} = ? OR {column} >= ? AND {column} < ?)"


def span(place: str) -> tuple[str, str, str]:
    """Return the arguments of `at_or_below`: a place, and what those below it are between."""
    above = place.rstrip("/")
    return place, f"{above}/", f"{above}0"  # '0' is the character after '/'
