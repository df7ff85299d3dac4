"""The files of jobs, on a disk or in a bucket: records beside their runs, and logs.

The record of a job is `<root>/.jobs/<id>/job.json`. A process claims an id by creating its record,
which only one process can do. The files of the engine, and those with secrets, are private and on
the submitting machine: in the job's directory if the root is on a disk that preserves owners, else
in the user's state directory.

The log of a member is the recorded output of its run. Until the run has begun, it is the engine's
log of its task, of which only the beginning is shown. Logs may be larger than memory, so they are
read in blocks.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

from aboard.executors.start import Read, start_of_tail
from aboard.jobs import JobError, JobExists, NoSuchJob
from aboard.jobs.model import JobRecord
from aboard.runs.catalog import BadName, find_roots, job_file
from aboard.runs.manifest import change_file
from aboard.sdk.personal import state_directory
from aboard.storage import (
    AlreadyExists,
    NoSuchPath,
    PermissionDenied,
    StorageError,
    canonical,
    is_remote,
    join,
    open_storage,
)
from aboard.storage.base import JOBS
from aboard.system import make_private, write_private
from aboard.track.shipping.segments import OUTPUT_LOG

_ROOTS_FILE, _MOST_ROOTS = "job-roots.json", 20
_AT_ONCE = 16
_SETTLING_SECONDS = 2.0  # the resolution of file times


class JobStore:
    """The jobs below one root.

    Thread-safe without a lock: the cache of `records` is replaced, never changed.
    """

    def __init__(self, root: str) -> None:
        self.root = root
        self._storage = open_storage(root)
        self._is_remote = is_remote(root)
        self._known: dict[str, tuple[str, JobRecord]] = {}  # with versions

    def ids(self) -> list[str]:
        if self._is_remote:
            return list(self._versions_in_bucket())
        try:  # not recursive: there may be thousands of logs
            with os.scandir(Path(self.root, JOBS)) as entries:
                return [one.name for one in entries if one.is_dir(follow_symlinks=False)]
        except FileNotFoundError:
            return []
        except OSError as error:
            problem = (error.strerror or str(error)).lower()
            raise StorageError(self.root, f"jobs cannot be listed: {problem}") from error

    def _versions_in_bucket(self) -> dict[str, str]:
        """Return the ids of all jobs with the versions of their records."""
        versions: dict[str, str] = {}
        with suppress(NoSuchPath):  # empty
            for one in self._storage.list(JOBS, containing="job.json"):
                job = one.name.split("/")[1]
                if one.name == f"{JOBS}/{job}/job.json":
                    versions[job] = one.version
        return versions

    def _version_on_disk(self, job: str) -> str:
        """Return the version of a record; empty if it may change without a new version."""
        try:
            status = Path(self.root, job_file(job)).stat()
        except (OSError, BadName):  # reading it raises the error
            return ""
        if time.time() - status.st_mtime < _SETTLING_SECONDS:
            return ""
        return f"{status.st_mtime_ns}.{status.st_ino}.{status.st_size}"

    def records(self, on_error: Callable[[Exception], None] = lambda _: None) -> list[JobRecord]:
        """Return all records, the newest first; `on_error` receives read errors.

        A record that has not changed since the last call is not read again.
        """

        def read(job: str) -> JobRecord | None:
            version, known = self._known.get(job, ("", None))
            if known is None or not version or version != versions[job]:
                known = read_again(job)
            if known is None:
                return None
            kept[job] = versions[job], known
            # A copy: the caller may settle members.
            return replace(known, settled=dict(known.settled))

        def read_again(job: str) -> JobRecord | None:
            try:
                return self.read(job)
            except NoSuchJob:  # being created or deleted
                return None
            except (JobError, StorageError) as error:
                on_error(error)
                return None

        kept: dict[str, tuple[str, JobRecord]] = {}
        if self._is_remote:
            versions = self._versions_in_bucket()
            with ThreadPoolExecutor(_AT_ONCE) as pool:
                found = list(pool.map(read, versions))
        else:
            versions = {job: self._version_on_disk(job) for job in self.ids()}
            found = [read(job) for job in versions]
        self._known = kept
        return sorted((one for one in found if one), key=lambda one: (-one.created, one.id))

    def read(self, job: str) -> JobRecord:
        try:
            record = JobRecord.from_json(self._storage.read(job_file(job)), self.root)
        except (NoSuchPath, BadName):
            raise NoSuchJob(f"{self.root} has no job {job!r}. List the jobs there.") from None
        if record.id != job:
            raise JobError(f"{self.root}/{job_file(job)}: the record of another job.")
        return record

    def create(self, record: JobRecord) -> None:
        content = record.to_json()
        try:
            self._storage.create_new(job_file(record.id), content)
        except AlreadyExists:
            # A retried request may find the record that it created itself.
            is_mine = False
            with suppress(NoSuchPath, PermissionDenied):
                is_mine = self._storage.read(job_file(record.id)) == content
            if not is_mine:
                raise JobExists(
                    f"{self.root} already has a job {record.id!r}. Choose another name."
                ) from None
        if not self._is_remote and _owner(Path(self.root, job_file(record.id))) != os.getuid():
            # NFS may map root to another user, and some mounts give all files one owner: such
            # directories cannot have private files.
            self._private(record.id).mkdir(mode=0o700, parents=True, exist_ok=True)

    def update(self, job: str, change: Callable[[JobRecord], None]) -> JobRecord:
        """Change a record, excluding other processes; `change` may be called again."""

        def changed(content: bytes) -> tuple[bytes, JobRecord]:
            record = JobRecord.from_json(content, self.root)
            change(record)
            return record.to_json(), record

        try:
            return change_file(self._storage, job_file(job), changed)
        except NoSuchPath:
            raise NoSuchJob(f"{self.root} has no job {job!r}. List the jobs there.") from None

    def delete(self, record: JobRecord) -> None:
        """Remove a record, and the files of its submissions on this machine."""
        with suppress(NoSuchPath):
            self._storage.delete(job_file(record.id))
        places = [self._private(record.id)]
        if not self._is_remote:
            places.append(Path(self.root, JOBS, record.id))
        for place in places:
            shutil.rmtree(place, ignore_errors=True)
            with suppress(OSError):  # not empty
                place.parent.rmdir()

    def is_own(self, job: str) -> bool:
        """Return whether this user submitted a job; for a bucket, whether from this machine.

        Other users may write records with arbitrary handles and paths below a shared root. Only
        the owner of the files proves who submitted a job.
        """
        if self._private(job).is_dir():
            return True
        if self._is_remote:
            return False
        own = self._directory(job)
        paths = (own, self.submission_file(job), Path(self.root, job_file(job)))
        owners = {_owner(path) for path in paths} - {None}
        return owners == {os.getuid()} and not own.is_symlink()

    def submission_file(self, job: str) -> Path:
        """Return the private file with the payload of a job."""
        return self._directory(job) / "submission.json"

    def directory(self, job: str, attempt: int) -> Path:
        """Return the directory of the engine's files of a submission, on this machine."""
        return self._directory(job) / str(attempt)

    def _directory(self, job: str) -> Path:
        private = self._private(job)
        return private if self._is_remote or private.is_dir() else Path(self.root, JOBS, job)

    def _private(self, job: str) -> Path:
        """Return a directory for a job that only this user can create."""
        root = hashlib.sha256(self.root.encode()).hexdigest()[:8]
        return state_directory() / "jobs" / f"{job}-{root}"


def _owner(path: Path) -> int | None:
    try:
        return path.lstat().st_uid
    except OSError:
        return None


# The roots to which the user submitted jobs.


def find_job_roots(given: Sequence[str] = ()) -> list[str]:
    """Return the roots to search for jobs: those given, else the default and remembered ones."""
    roots = find_roots(given)
    if not given:
        roots += [one for one in _known_roots() if is_remote(one) or Path(one).is_dir()]
    return list(dict.fromkeys(roots))


def remember_root(root: str) -> None:
    """Remember a root to which the user submitted a job, to search it from anywhere."""
    known = _known_roots()
    if known[:1] == [root]:
        return
    kept = [root, *(one for one in known if one != root)][:_MOST_ROOTS]
    with suppress(OSError):  # only a convenience
        make_private(state_directory())
        write_private(state_directory() / _ROOTS_FILE, json.dumps(kept))


def _known_roots() -> list[str]:
    try:
        known = json.loads((state_directory() / _ROOTS_FILE).read_bytes())
        return [canonical(one) for one in known]
    except (OSError, ValueError, TypeError, AttributeError, StorageError):
        return []


# Logs.

_BLOCK = 1 << 20
_MOST_OF_ENGINE = 16 << 20
_CUT = b"aboard: the rest of the engine's log is not shown, because its run has not begun.\n"

EngineLog = Callable[[JobRecord, int], Iterable[bytes]]


class RunLog:
    """Reads the recorded output of a run, then what is appended to it."""

    def __init__(self, root: str, directory: str) -> None:
        self._directory = directory
        self._storage = open_storage(root)
        self._is_remote = is_remote(root)
        self._position = 0

    def size(self) -> int:
        """Return the current number of bytes."""
        return sum(self._files().values())

    def seek(self, position: int) -> None:
        """Set the offset at which `read` begins."""
        self._position = position

    def read_range(self, begin: int, end: int) -> Iterator[bytes]:
        """Yield the bytes from one offset to another, in blocks."""
        read = self._reader(self._files())
        while begin < end and (block := read(begin, min(begin + _BLOCK, end))):
            yield block
            begin += len(block)

    def read(self, *, tail: int | None = None, to_end: bool) -> Iterator[bytes]:
        """Yield new lines; with `to_end`, also an incomplete last one.

        Chunks consist of complete lines, unless one is longer than a block.
        """
        files = self._files()
        read, end = self._reader(files), sum(files.values())
        for piece, position in _pieces(read, self._position, end, tail, to_end=to_end):
            self._position = position
            if piece:
                yield piece

    def _files(self) -> dict[str, int]:
        """Return the files of the recorded output and their sizes; none before the run has begun.

        In a bucket, a log is a sequence of files, of which the last is replaced as it grows.
        """
        name = join(self._directory, OUTPUT_LOG) if self._directory else OUTPUT_LOG
        place = self._directory if self._is_remote else name
        try:
            found = sorted(self._storage.list(place, containing=OUTPUT_LOG))
        except NoSuchPath:
            return {}
        return {one.name: one.size for one in found if one.name.startswith(name)}

    def _reader(self, files: Mapping[str, int]) -> Read:
        def read(begin: int, end: int) -> bytes:
            pieces: list[bytes] = []
            for name, size in files.items():
                if begin < size and end > 0:
                    pieces.append(self._storage.read(name, max(begin, 0), min(end, size)))
                begin, end = begin - size, end - size
            return b"".join(pieces)

        return read


class MemberLog(RunLog):
    """Reads the log of a member, then what is appended to it."""

    def __init__(self, record: JobRecord, number: int, engine_log: EngineLog) -> None:
        super().__init__(record.root, record.run_directory(number))
        self._record = record
        self._number = number
        self._engine_log = engine_log
        self._of_engine = 0  # how much of the engine's log was read

    def read(self, *, tail: int | None = None, to_end: bool) -> Iterator[bytes]:
        """Yield lines as `RunLog.read` does; those of the engine while the run has none."""
        if self._files():
            yield from super().read(tail=tail, to_end=to_end)
            return
        text = self._text_of_engine()

        def read(first: int, last: int) -> bytes:
            return text[first:last]

        for piece, position in _pieces(read, self._of_engine, len(text), tail, to_end=to_end):
            self._of_engine = position
            if piece:
                yield piece

    def _text_of_engine(self) -> bytes:
        """Return the beginning of the engine's log."""
        text = bytearray()
        for piece in self._engine_log(self._record, self._number):
            text += piece
            if len(text) > _MOST_OF_ENGINE:
                del text[_MOST_OF_ENGINE:]
                del text[text.rfind(b"\n") + 1 or len(text) :]
                text += _CUT
                break
        return bytes(text)


def _pieces(
    read: Read, begin: int, end: int, tail: int | None, *, to_end: bool
) -> Iterator[tuple[bytes, int]]:
    """Yield a part of a log in blocks, each with the offset after it."""
    if not to_end and begin < end:
        first = max(begin, end - _BLOCK)
        complete = read(first, end).rfind(b"\n") + 1
        if complete or first == begin:
            end = first + complete
    if tail is not None:
        begin = start_of_tail(read, begin, end, tail)
        yield b"", begin  # skips what is before it
    while begin < end:
        block = read(begin, min(begin + _BLOCK, end))
        if not block:  # it was truncated
            return
        if begin + len(block) < end:
            block = block[: block.rfind(b"\n") + 1] or block
        begin += len(block)
        yield block, begin
