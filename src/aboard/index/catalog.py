"""The catalog: which runs lie below a root, remembered so that asking again is quick.

A refresh lists the root and reads the records that changed since, and no others; on a disk, only
directories that changed are read again, too. A record that cannot be understood leaves the run as
a raw directory, and is reported for as long as it is there.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import permutations

from aboard.index.schema import transaction
from aboard.runs.catalog import Found, find_runs, is_of_a_run, natural
from aboard.runs.known import KnownRun
from aboard.runs.manifest import FILE_NAME, BadManifest, Manifest
from aboard.storage import NotFound, Storage, StorageError, is_below, is_remote, join, open_storage
from aboard.storage.folders import Folder, Folders
from aboard.storage.local import LocalStorage

_READERS = 32
_UNREAD = ""
"""The version of a record that could not be read: no record has it, so it is read next time."""
_COLUMNS = ", ".join(KnownRun._fields[1:])
_PLACES = ", ".join("?" for _ in ("version", *KnownRun._fields))
_INSERT = f"INSERT OR REPLACE INTO run (version, root, {_COLUMNS}) VALUES ({_PLACES})"


@dataclass(slots=True)
class CatalogReport:
    """What a refresh found.

    Attributes:
        problems: what could not be listed, read or understood.
        changed: whether anything is known now that was not before.
        marks: for each run's directory, a value that changes when its event files do; good for
            comparing with another of this process.
    """

    problems: list[Exception] = field(default_factory=list)
    changed: bool = False
    marks: dict[str, int] = field(default_factory=dict)


def refresh_catalog(
    connection: sqlite3.Connection, root: str, *, marks: bool = True
) -> CatalogReport:
    """Bring what is known of a root up to date.

    Args:
        connection: to the index.
        root: its URI.
        marks: whether to look at every event file, for the marks.

    Raises:
        StorageError: the root itself cannot be listed.
    """
    storage = open_storage(root)
    unlisted: list[StorageError] = []
    folders: _Remembered | None = None
    if isinstance(storage, LocalStorage):
        folders = _Remembered(connection, storage, marks=marks)
        found = find_runs(folders.list(on_error=unlisted.append))
    else:
        found = find_runs(storage.list(on_error=unlisted.append))
    known = {
        directory: (version, problem)
        for directory, version, problem in connection.execute(
            "SELECT directory, version, problem FROM run WHERE root = ?", (storage.uri,)
        )
    }
    changed = {
        directory: run
        for directory, run in found.items()
        if directory not in known or known[directory][0] != run.version
    }
    report = CatalogReport(list(unlisted))
    if marks:
        report.marks = {one: run.mark for one, run in found.items()}
    rows = list(_read_runs(storage, changed, known.keys(), report.problems))
    report.problems += [
        BadManifest(problem)
        for directory, (_, problem) in known.items()
        if problem and directory in found and directory not in changed
    ]
    # What a failed listing did not show may still be there.
    gone = [
        (storage.uri, directory)
        for directory in known.keys() - found.keys()
        if not _is_in_doubt(join(storage.uri, directory), unlisted)
    ]
    if rows or gone:
        _store(connection, storage.uri, rows, gone)
        report.changed = True
    if folders is not None:
        folders.store()
    return report


def _is_in_doubt(directory: str, unlisted: Iterable[StorageError]) -> bool:
    """Say whether a directory, or something in it, could not be looked at."""
    return any(is_below(directory, one.place) or is_below(one.place, directory) for one in unlisted)


def known_runs(connection: sqlite3.Connection, roots: Sequence[str]) -> list[KnownRun]:
    """Return the runs below some roots, as of their last refresh, in natural order.

    A run that lies below two of the roots is returned once, as of the first.
    """
    runs: list[KnownRun] = []
    for root in dict.fromkeys(roots):
        rows = connection.execute(f"SELECT {_COLUMNS} FROM run WHERE root = ?", (root,))
        runs += [KnownRun(root, *row) for row in rows]
    if any(is_below(one, other) for one, other in permutations(set(roots), 2)):
        runs = list({run.uri: run for run in reversed(runs)}.values())[::-1]
    return sorted(runs, key=lambda run: natural(run.label))


def catalog_changes(connection: sqlite3.Connection, root: str) -> int:
    """Return how often what is known of a root has changed."""
    row = connection.execute("SELECT changes FROM root WHERE uri = ?", (root,)).fetchone()
    return row[0] if row else 0


Row = tuple[str | None, KnownRun]
"""The version of a run's record, and the run."""


def _read_runs(
    storage: Storage,
    changed: dict[str, Found],
    known: Iterable[str],
    problems: list[Exception],
) -> Iterator[Row]:
    """Read records side by side, for a bucket answers each after a while."""
    recorded = {one: run.version for one, run in changed.items() if run.version is not None}
    for directory in changed.keys() - recorded.keys():
        yield None, KnownRun.of_path(storage.uri, directory)
    answers: Iterable[KnownRun | StorageError]
    if is_remote(storage.uri) and len(recorded) > 1:
        from concurrent.futures import ThreadPoolExecutor

        with ThreadPoolExecutor(min(_READERS, len(recorded))) as pool:
            answers = list(pool.map(lambda one: _read_run(storage, one), recorded))
    else:
        answers = (_read_run(storage, one) for one in recorded)
    held = frozenset(known)
    for (directory, version), answer in zip(recorded.items(), answers, strict=True):
        if isinstance(answer, KnownRun):
            if answer.problem:
                problems.append(BadManifest(answer.problem))
            yield version, answer
            continue
        if not isinstance(answer, NotFound):  # or it was deleted just now
            problems.append(answer)
        if directory not in held:
            yield _UNREAD, KnownRun.of_path(storage.uri, directory)


def _read_run(storage: Storage, directory: str) -> KnownRun | StorageError:
    name = join(directory, FILE_NAME) if directory else FILE_NAME
    try:
        record = Manifest.from_json(storage.read(name), join(storage.uri, name))
    except StorageError as error:
        return error
    except BadManifest as error:
        return KnownRun.of_path(storage.uri, directory, str(error))
    return KnownRun.of_record(storage.uri, directory, record)


class _Remembered:
    """The directories of a root on a disk, as the index remembers them."""

    def __init__(
        self, connection: sqlite3.Connection, storage: LocalStorage, *, marks: bool
    ) -> None:
        self._connection = connection
        self._root = storage.uri
        rows = connection.execute(
            "SELECT directory, mark, files, below FROM folder WHERE root = ?", (storage.uri,)
        )
        self._known = {directory: Folder(*row) for directory, *row in rows}
        described = is_of_a_run if marks else FILE_NAME.__eq__
        self._folders = Folders(storage, self._known, is_of_a_run, described)
        self.list = self._folders.list

    def store(self) -> None:
        """Remember what was found, and forget what is so no more."""
        found = self._folders.found
        gone = [(self._root, one) for one in self._known if one not in found]
        if not gone and not found:
            return
        with transaction(self._connection):
            self._connection.executemany(
                "DELETE FROM folder WHERE root = ? AND directory = ?", gone
            )
            self._connection.executemany(
                "INSERT OR REPLACE INTO folder VALUES (?, ?, ?, ?, ?)",
                [(self._root, directory, *folder) for directory, folder in found.items()],
            )


def _store(
    connection: sqlite3.Connection,
    root: str,
    rows: Sequence[Row],
    gone: Sequence[tuple[str, str]],
) -> None:
    with transaction(connection):
        connection.executemany("DELETE FROM run WHERE root = ? AND directory = ?", gone)
        connection.executemany(_INSERT, [(version, *run) for version, run in rows])
        connection.execute(
            "INSERT INTO root VALUES (?, 1) ON CONFLICT (uri) DO UPDATE SET changes = changes + 1",
            (root,),
        )
