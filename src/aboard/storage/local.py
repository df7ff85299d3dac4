"""Files on a disk or a network file system, reached through the operating system.

Listing asks for as little as it can: one directory read per directory and one `stat` per file
whose name matches, because on a network file system each is a round trip. New content is written
beside its place under a temporary name and moved in, so that no reader ever sees half a file.
"""

# ruff: noqa: PTH103, PTH105, PTH108, PTH116, PTH118, PTH120
# Strings and descriptors throughout: a Path object per file would double the cost of a walk.

import errno
import os
import stat
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from aboard.storage.base import (
    AlreadyExists,
    BadUri,
    Entry,
    ListingProblem,
    NotFound,
    PermissionDenied,
    Storage,
    StorageError,
    StorageFull,
    Unreachable,
    name_parts,
    prefix_parts,
    unreadable,
)

if TYPE_CHECKING:
    from pathlib import Path

TEMPORARY = ".aboard-tmp-"
"""What the names of unfinished files begin with; no listing shows them."""
_COPIED_AT_ONCE = 1 << 20
_NO_HARD_LINKS = {errno.EPERM, errno.EOPNOTSUPP, errno.ENOSYS, errno.EMLINK, errno.EXDEV}
_ERRORS: dict[int, tuple[type[StorageError], str, str]] = {
    errno.ENOENT: (NotFound, "there is no such file or directory", "Check the path."),
    errno.ENOTDIR: (NotFound, "a part of the path is a file", "Check the path."),
    errno.EISDIR: (NotFound, "this is a directory, not a file", "Name a file in it."),
    errno.EEXIST: (AlreadyExists, "this exists already", "Choose another name."),
    errno.EACCES: (PermissionDenied, "permission denied", "Check the owner and mode of the path."),
    errno.EPERM: (PermissionDenied, "permission denied", "Check the owner and mode of the path."),
    errno.EROFS: (PermissionDenied, "the file system is read-only", "Use another directory."),
    errno.ENOSPC: (StorageFull, "no space is left on the device", "Delete files or move."),
    errno.EDQUOT: (StorageFull, "the disk quota is used up", "Delete files or ask for more."),
    errno.ENAMETOOLONG: (BadUri, "the name is too long", "Use a shorter one."),
    errno.ELOOP: (BadUri, "symbolic links go round in a circle", "Repair the links."),
}
_ERRORS |= dict.fromkeys(
    (errno.EIO, errno.ESTALE, errno.ETIMEDOUT, errno.EHOSTDOWN, errno.ENOTCONN),
    (Unreachable, "the file system does not answer", "Check the disk or the mount."),
)


@dataclass(slots=True, eq=False)
class _Directory:
    """A directory on the walk, and the one it was found in."""

    path: str
    name: str
    parent: "_Directory | None" = None
    _identity: tuple[int, int] | None = field(default=None)

    def contains_itself(self) -> bool:
        """Say whether a symbolic link led back to a directory we came through."""
        above = self.parent
        while above is not None:
            if above.identity() == self.identity():
                return True
            above = above.parent
        return False

    def identity(self) -> tuple[int, int]:
        if self._identity is None:
            status = os.stat(self.path)
            self._identity = (status.st_dev, status.st_ino)
        return self._identity


_confines: list[str] = []


def confine(directories: Iterable[str]) -> None:
    """Let this process read no local file outside of these directories, wherever links lead.

    Without any, it may read them all.
    """
    _confines[:] = [os.path.realpath(directory) for directory in directories]


def _check_confines(path: str, descriptor: int) -> None:
    if not _confines:
        return
    # What was opened, and not what the path means by now.
    real = os.path.realpath(f"/proc/self/fd/{descriptor}")
    if not any(real.startswith(f"{directory.rstrip('/')}/") for directory in _confines):
        raise PermissionDenied(path, "a link leads out of its root", "Put the file below the root.")


class LocalStorage(Storage):
    """The files below one directory."""

    def __init__(self, root: str) -> None:
        self.uri = root

    def list(
        self, prefix: str = "", *, containing: str = "", on_error: ListingProblem | None = None
    ) -> Iterator[Entry]:
        """Yield the files below `prefix`, directory by directory, each in the order of names.

        Symbolic links are followed, and a link back to a directory above it is not entered again.
        """
        parts = prefix_parts(self.uri, prefix)
        with _explained(self.uri):
            if not stat.S_ISDIR(os.stat(self.uri).st_mode):
                raise NotFound(self.uri, "this is a file, not a directory", "Open its directory.")
        start = _Directory(os.path.join(self.uri, *parts), "/".join(parts))
        try:
            status = os.stat(start.path)
        except OSError as error:
            if error.errno in {errno.ENOENT, errno.ENOTDIR}:
                return
            raise _explain(start.path, error) from error
        if not stat.S_ISDIR(status.st_mode):
            if stat.S_ISREG(status.st_mode) and containing in parts[-1]:
                yield _entry(start.name, status)
            return
        yield from _walk(start, containing, on_error)

    def read(self, name: str, start: int = 0, end: int | None = None) -> bytes:
        """Return the bytes from `start` up to `end`, fewer where the file ends before that."""
        chunks = []
        with self._open(name) as (descriptor, size):
            end = size if end is None else min(end, size)
            while start < end and (chunk := os.pread(descriptor, end - start, start)):
                chunks.append(chunk)
                start += len(chunk)
        return b"".join(chunks)

    def readinto(self, name: str, start: int, buffer: memoryview) -> int:
        """Fill `buffer` from `start` on, without a copy in between."""
        filled = 0
        with self._open(name) as (descriptor, _):
            while rest := buffer[filled:]:
                count = os.preadv(descriptor, [rest], start + filled)
                if count == 0:
                    break
                filled += count
        return filled

    def write(self, name: str, data: bytes) -> None:
        """Create or replace a file in one step."""
        path = self._path(name)
        with _explained(path), _temporary_beside(path, data) as temporary:
            _move_in(temporary, path)

    def upload(self, name: str, path: "Path") -> None:
        """Create or replace a file with a copy of another, in one step."""
        import shutil

        place = self._path(name)
        try:
            source = path.open("rb")
        except OSError as error:
            raise unreadable(path, error) from error
        with source, _explained(place), _temporary_beside(place, b"") as temporary:
            with open(temporary, "wb") as copy:  # noqa: PTH123
                shutil.copyfileobj(source, copy, _COPIED_AT_ONCE)
            _move_in(temporary, place)

    def create_new(self, name: str, data: bytes) -> None:
        """Create a file in one step, complete from the moment it exists."""
        path = self._path(name)
        with _explained(path), _temporary_beside(path, data) as temporary:
            try:
                os.link(temporary, path)
            except FileExistsError:
                # NFS may repeat a request whose answer was lost: then the link in the way is ours.
                if os.stat(temporary).st_nlink != 2:
                    raise
            except OSError as error:
                if error.errno not in _NO_HARD_LINKS:
                    raise
                _create_exclusively(path, data)

    def delete(self, name: str) -> None:
        """Remove a file."""
        path = self._path(name)
        with _explained(path):
            os.unlink(path)

    def _path(self, name: str) -> str:
        return os.path.join(self.uri, *name_parts(self.uri, name))

    @contextmanager
    def _open(self, name: str) -> Iterator[tuple[int, int]]:
        """Open a regular file for reading; give its descriptor and its size."""
        path = self._path(name)
        with _explained(path):
            # Without O_NONBLOCK a named pipe in a log directory would block us for ever.
            descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
            try:
                status = os.fstat(descriptor)
                if not stat.S_ISREG(status.st_mode):
                    raise NotFound(path, "this is not a regular file", "Name a file.")
                _check_confines(path, descriptor)
                yield descriptor, status.st_size
            finally:
                os.close(descriptor)


def _walk(start: _Directory, containing: str, on_error: ListingProblem | None) -> Iterator[Entry]:
    pending = [start]
    while pending:
        directory = pending.pop()
        try:
            files, below, problems = _scan(directory, containing)
        except OSError as error:
            problem = _explain(directory.path, error)
            if directory is start:
                raise problem from error
            files, below, problems = [], [], [problem]
        for problem in problems:
            if on_error is None:
                raise problem
            on_error(problem)
        yield from files
        pending.extend(reversed(below))


def _scan(
    directory: _Directory, containing: str
) -> tuple[list[Entry], list[_Directory], list[StorageError]]:
    """Read one directory: files whose names match, directories to go on with, what went wrong."""
    files: list[Entry] = []
    below: list[_Directory] = []
    problems: list[StorageError] = []
    with os.scandir(directory.path) as found:
        entries = sorted(found, key=lambda entry: entry.name)
    for entry in entries:
        name = f"{directory.name}/{entry.name}" if directory.name else entry.name
        try:
            if entry.is_dir():
                child = _Directory(entry.path, name, directory)
                if entry.is_symlink() and child.contains_itself():
                    continue
                below.append(child)
            elif containing in entry.name and not entry.name.startswith(TEMPORARY):
                status = entry.stat()
                if not stat.S_ISREG(status.st_mode):
                    continue
                if not _is_unicode(name):
                    problems.append(BadUri(entry.path, "the path is not UTF-8", "Rename it."))
                    continue
                files.append(_entry(name, status))
        except OSError as error:
            # A file deleted since, and a link that leads nowhere, are no files.
            if error.errno not in {errno.ENOENT, errno.ELOOP}:
                problems.append(_explain(entry.path, error))
    return files, below, problems


def _is_unicode(name: str) -> bool:
    try:
        name.isascii() or name.encode()
    except UnicodeEncodeError:
        return False
    return True


def _entry(name: str, status: os.stat_result) -> Entry:
    return Entry(name, status.st_size, f"{status.st_mtime_ns:x}.{status.st_ino:x}")


@contextmanager
def _temporary_beside(path: str, data: bytes) -> Iterator[str]:
    """Write the data to a temporary file next to `path`, and leave none behind."""
    directory = os.path.dirname(path)
    temporary = os.path.join(directory, TEMPORARY + os.urandom(8).hex())
    try:
        try:
            _create_exclusively(temporary, data)
        except FileNotFoundError:
            os.makedirs(directory, exist_ok=True)
            _create_exclusively(temporary, data)
        yield temporary
    finally:
        with suppress(OSError):
            os.unlink(temporary)


def _move_in(temporary: str, path: str) -> None:
    try:
        os.replace(temporary, path)
    except IsADirectoryError:
        raise AlreadyExists(path, "a directory has this name", "Choose another name.") from None


def _create_exclusively(path: str, data: bytes) -> None:
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o666)
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(data)
    except BaseException:
        os.unlink(path)
        raise


@contextmanager
def _explained(path: str) -> Iterator[None]:
    """Turn the operating system's errors into ours."""
    try:
        yield
    except OSError as error:
        raise _explain(path, error) from error


def _explain(path: str, error: OSError) -> StorageError:
    kind, problem, hint = _ERRORS.get(
        error.errno or 0, (StorageError, f"{error.strerror or error}".lower(), "Check the path.")
    )
    return kind(path, problem, hint)
