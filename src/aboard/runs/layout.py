"""The layout of runs below a root, `<root>/<experiment>/<run>/`: claiming names, deleting runs.

The record of a job is in the same root, at `.jobs/<job>/job.json`.

A process claims a name by creating its `run.json`, which only one process can do, on a disk and in
a bucket; no server is needed. Deleting a run deletes its record last, so that a failed deletion can
be repeated. Links are removed and never followed; a run inside another is a separate run.
"""

from __future__ import annotations

import os
import random
import re
import secrets
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from aboard.events.files import EVENT_FILE
from aboard.runs.catalog import KnownRun, run_of
from aboard.runs.manifest import FILE_NAME, BadManifest, Manifest, State, file_in
from aboard.runs.manifest import read as read_record
from aboard.storage import (
    AlreadyExists,
    Entry,
    NoSuchPath,
    PermissionDenied,
    Storage,
    StorageError,
    is_remote,
    open_storage,
)
from aboard.storage.base import JOBS

DEFAULT_EXPERIMENT = "default"
_FORBIDDEN = re.compile(r'[/\\:*?"<>|\x00-\x1f\x7f]')
_LONGEST_NAME = 128
_CLAIM = "claim"  # the field that differs between processes that claim a name at the same time
_JUMPS = (1, 4, 16, 64, 256, 1024)
_AT_ONCE = 16

Describe = Callable[[str], Manifest]  # from the name of a run


class BadName(ValueError):  # noqa: N818 - named by what is wrong
    """An invalid name of an experiment, a run or a job."""


class RunExists(Exception):  # noqa: N818 - named by what is wrong
    """The name is taken."""


def directory_of(experiment: str, name: str) -> str:
    return f"{experiment}/{name}" if experiment else name


def job_directory(job: str) -> str:
    """Return the directory of a job, or raise `BadName`."""
    return f"{JOBS}/{check_name(job, 'job')}"


def job_file(job: str) -> str:
    """Return the record of a job, or raise `BadName`."""
    return f"{job_directory(job)}/job.json"


def check_name(name: str, what: str) -> str:
    """Return a name that can be a directory on every storage, or raise `BadName`."""
    problem = ""
    if not name or name != name.strip():
        problem = "is empty, or begins or ends with a space"
    elif found := _FORBIDDEN.search(name):
        problem = f"contains the character {found[0]!r}"
    elif name.startswith("."):
        problem = "begins with a dot"
    elif len(name.encode(errors="replace")) > _LONGEST_NAME:
        problem = f"is longer than {_LONGEST_NAME} bytes"
    if problem:
        hint = "Use letters, digits, '-', '_', '.' and '='"
        raise BadName(f"the name of the {what}, {name!r:.60}, {problem}. {hint}.")
    return name


def claim(storage: Storage, experiment: str, name: str, describe: Describe) -> Manifest:
    """Claim a name; raise `RunExists` if the run, or a directory with files, already exists."""
    directory = directory_of(experiment, name)
    manifest = describe(name)
    if _has_files(storage, directory) or not create_record(storage, directory, manifest):
        where = f"{storage.uri}/{directory}"
        raise RunExists(f"the run {where} already exists. Resume it, or choose another name.")
    return manifest


def claim_next(storage: Storage, experiment: str, describe: Describe, first: int = 1) -> Manifest:
    """Claim the next free name of `run1`, `run2`, …, from the number `first` on.

    The last name is found by galloping and binary search, with one request per step. A process that
    loses a name to another skips ahead, further each time, so that many processes spread out.
    """
    number = _end_of_row(
        lambda number: (
            number < first or _has_record(storage, directory_of(experiment, f"run{number}"))
        )
    )
    lost = 0
    while True:
        manifest = describe(f"run{number}")
        directory = directory_of(experiment, manifest.name)
        if not create_record(storage, directory, manifest):
            furthest = _JUMPS[min(lost, len(_JUMPS) - 1)]
            number += random.randint(1, furthest)  # noqa: S311 - no secret
            lost += 1
            continue
        record = file_in(directory)
        if all(file.name == record for file in storage.list(directory)):
            return manifest
        storage.delete(record)  # the directory has other files
        number += 1


def create_record(storage: Storage, directory: str, manifest: Manifest) -> bool:
    """Create the record of a run that has none; return whether this process created it.

    If a response is lost, the repeated request finds the record that the first one created.
    """
    manifest.others[_CLAIM] = secrets.token_hex(8)
    record, content = file_in(directory), manifest.to_json()
    try:
        storage.create_new(record, content)
    except AlreadyExists:
        with suppress(NoSuchPath, PermissionDenied):
            return storage.read(record) == content
        return False
    return True


def unclaimed_name(name: str | None) -> str:
    """Return a unique name without a claim, for a storage that cannot be reached."""
    return f"{name or time.strftime('run-%Y%m%d-%H%M%S')}-{secrets.token_hex(3)}"


def _has_record(storage: Storage, directory: str) -> bool:
    try:
        storage.read(file_in(directory), 0, 1)
    except NoSuchPath:
        return False
    return True


def _has_files(storage: Storage, directory: str) -> bool:
    try:
        return next(iter(storage.list(directory)), None) is not None
    except NoSuchPath:  # the root does not exist yet
        return False


def _end_of_row(is_taken: Callable[[int], bool]) -> int:
    """Return a free number whose predecessor is taken, or 1."""
    low, high = 0, 1
    while is_taken(high):
        low, high = high, high * 2
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if is_taken(middle) else (low, middle)
    return high


@dataclass(slots=True)
class Deletion:
    files: int = 0
    bytes: int = 0
    problems: list[StorageError] = field(default_factory=list)


def delete_run(run: KnownRun) -> Deletion:
    """Delete a run; without a record, only its event files."""
    storage = open_storage(run.root)
    record = file_in(run.directory)
    mine = files_of(run)
    deleted = Deletion()
    _delete_all(storage, [entry for entry in mine if entry.name != record], deleted)
    if not deleted.problems:
        _delete_all(storage, [entry for entry in mine if entry.name == record], deleted)
    if not is_remote(run.root):
        for directory, _, _ in os.walk(run.uri, topdown=False):
            with suppress(OSError):  # not empty
                Path(directory).rmdir()
    return deleted


def files_of(run: KnownRun) -> list[Entry]:
    """Return what `delete_run` deletes."""
    entries = [
        (*entry.name.rpartition("/")[::2], entry) for entry in _entries(open_storage(run.root), run)
    ]
    recorded = {directory for directory, name, _ in entries if name == FILE_NAME}
    has_record = run.directory in recorded
    return [
        entry
        for directory, name, entry in entries
        if run_of(directory, recorded) == run.directory and (has_record or EVENT_FILE in name)
    ]


def seconds_silent(run: KnownRun, now: float) -> float | None:
    """Read the record of a run; return the seconds since its last heartbeat.

    None if the run is not running, or has no record.
    """
    try:
        record = read_record(open_storage(run.uri))
    except (BadManifest, StorageError):
        return None
    current = run._replace(recorded_state=record.state.value, heartbeat=record.heartbeat)
    if current.state_at(now) is not State.RUNNING:
        return None
    return max(0.0, now - max(record.heartbeat, run.seen))


def _entries(storage: Storage, run: KnownRun) -> Iterator[Entry]:
    """Yield the files below a run, with names relative to its root; on a disk, links too."""
    if is_remote(run.root):
        yield from storage.list(run.directory)
        return
    top = Path(run.uri)
    if top.is_symlink():
        problem = "this run is a link, and its target may belong to another run"
        raise StorageError(run.uri, problem, "Delete the target, or remove the link.")
    if not top.is_dir():
        raise NoSuchPath(run.uri, "no such run", "Check the path.")
    for directory, below, names in os.walk(top):
        links = [name for name in below if Path(directory, name).is_symlink()]
        for name in (*names, *links):
            path = Path(directory, name)
            with suppress(FileNotFoundError):
                size = path.lstat().st_size
                yield Entry(path.relative_to(run.root).as_posix(), size, "")


def _delete_all(storage: Storage, entries: Sequence[Entry], deleted: Deletion) -> None:
    def delete(entry: Entry) -> StorageError | None:
        try:
            storage.delete(entry.name)
        except NoSuchPath:
            return None  # another process deleted it
        except StorageError as error:
            return error
        return None

    if is_remote(storage.uri):
        with ThreadPoolExecutor(_AT_ONCE) as pool:
            problems = list(pool.map(delete, entries))
    else:
        problems = [delete(entry) for entry in entries]
    for entry, problem in zip(entries, problems, strict=True):
        if problem is not None:
            deleted.problems.append(problem)
        else:
            deleted.files += 1
            deleted.bytes += entry.size
