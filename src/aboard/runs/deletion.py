"""Deleting a run: its files and no others, its record last.

While the record is there the run is listed and can be deleted again, so an interrupted deletion
is not a run nobody knows of. Links are removed and never followed, and a run that lies inside
another is a run of its own.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from aboard.runs.catalog import EVENTS, run_of
from aboard.runs.known import KnownRun
from aboard.runs.manifest import FILE_NAME
from aboard.storage import Entry, NotFound, Storage, StorageError, is_remote, join, open_storage

_AT_ONCE = 16


@dataclass(slots=True)
class Deleted:
    """What was deleted of a run, and what could not be."""

    files: int = 0
    bytes: int = 0
    problems: list[StorageError] = field(default_factory=list)


def delete_run(run: KnownRun) -> Deleted:
    """Delete a run; of a directory without a record, only its event files.

    Raises:
        StorageError: the run cannot be listed.
    """
    storage = open_storage(run.root)
    record = join(run.directory, FILE_NAME) if run.directory else FILE_NAME
    entries = list(_entries(storage, run))
    recorded = {_directory(one) for one in entries if _file_name(one) == FILE_NAME}
    has_record = run.directory in recorded
    mine = [
        entry
        for entry in entries
        if run_of(_directory(entry), recorded) == run.directory
        and (has_record or EVENTS in _file_name(entry))
    ]
    deleted = Deleted()
    _delete_all(storage, [entry for entry in mine if entry.name != record], deleted)
    if not deleted.problems:
        _delete_all(storage, [entry for entry in mine if entry.name == record], deleted)
    if not is_remote(run.root):
        _remove_empty(Path(run.uri))
    return deleted


def _directory(entry: Entry) -> str:
    return entry.name.rpartition("/")[0]


def _file_name(entry: Entry) -> str:
    return entry.name.rpartition("/")[2]


def _entries(storage: Storage, run: KnownRun) -> Iterator[Entry]:
    """Yield the files below a run, named as from its root; on a disk, links as what they are."""
    if is_remote(run.root):
        yield from storage.list(run.directory)
        return
    top = Path(run.uri)
    if top.is_symlink():
        problem = "this run is a link, and what it leads to may be another's"
        raise StorageError(run.uri, problem, "Delete what it leads to, or remove the link.")
    if not top.is_dir():
        raise NotFound(run.uri, "there is no such run", "Check the path.")
    for directory, below, names in os.walk(top):
        links = [name for name in below if Path(directory, name).is_symlink()]
        for name in (*names, *links):
            path = Path(directory, name)
            with suppress(FileNotFoundError):
                size = path.lstat().st_size
                yield Entry(path.relative_to(run.root).as_posix(), size, "")


def _delete_all(storage: Storage, entries: Sequence[Entry], deleted: Deleted) -> None:
    def delete(entry: Entry) -> StorageError | None:
        try:
            storage.delete(entry.name)
        except NotFound:
            return None  # somebody was quicker
        except StorageError as error:
            return error
        return None

    for entry, problem in zip(entries, _each(delete, entries, storage.uri), strict=True):
        if problem is not None:
            deleted.problems.append(problem)
        else:
            deleted.files += 1
            deleted.bytes += entry.size


def _each(
    delete: Callable[[Entry], StorageError | None], entries: Sequence[Entry], uri: str
) -> list[StorageError | None]:
    if not is_remote(uri) or len(entries) < 2:
        return [delete(entry) for entry in entries]
    with ThreadPoolExecutor(min(_AT_ONCE, len(entries))) as pool:
        return list(pool.map(delete, entries))


def _remove_empty(top: Path) -> None:
    """Remove the directories in which nothing is left, the run's own among them."""
    for directory, _, _ in os.walk(top, topdown=False):
        with suppress(OSError):
            Path(directory).rmdir()
