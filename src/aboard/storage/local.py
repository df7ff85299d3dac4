"""Files on a disk or a network file system, reached through the operating system.

Listing asks for as little as it can: one directory read per directory and one `stat` per file
whose name matches, because on a network file system each is a round trip; what was listed before
is listed again by `folders`. New content is written beside its place under a temporary name and
moved in, so that no reader ever sees half a file.
"""

# ruff: noqa: PTH103, PTH105, PTH108, PTH116, PTH118, PTH120
# Strings and descriptors throughout: a Path object per file would double the cost of a walk.

import errno
import os
import stat
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

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
    check_range,
    name_parts,
    prefix_parts,
    unreadable,
)
from aboard.storage.confines import check_opened, check_path, leads_out, unwatched

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


Wanted = Callable[[str], bool]
"""Says whether a file of this name is asked for."""


@dataclass(slots=True, eq=False)
class Directory:
    """A directory on the walk, and the one it was found in."""

    path: str
    name: str
    parent: "Directory | None" = None
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
        """Return what tells the directory from all others, whatever led to it."""
        if self._identity is None:
            status = os.stat(self.path)
            self._identity = (status.st_dev, status.st_ino)
        return self._identity


class Contents(NamedTuple):
    """What was found in a directory: files, directories to go on with, what went wrong.

    Attributes:
        has_links: whether there is a symbolic link in it, of any kind.
    """

    files: Sequence[Entry]
    below: Sequence[Directory]
    problems: Sequence[StorageError] = ()
    has_links: bool = False


Look = Callable[[Directory], Contents]
"""Finds out what is in a directory."""


class LocalStorage(Storage):
    """The files below one directory."""

    def __init__(self, root: str) -> None:
        self.uri = root

    def list(
        self, prefix: str = "", *, containing: str = "", on_error: ListingProblem | None = None
    ) -> Iterator[Entry]:
        """Yield the files below `prefix`, directory by directory, each in the order of names.

        Symbolic links are followed; a link back to a directory above it is not entered again, nor
        is one that leads out of where this process is confined to.
        """
        parts = prefix_parts(self.uri, prefix)
        self._check_root()
        start = Directory(os.path.join(self.uri, *parts), "/".join(parts))
        check_path(start.path)
        try:
            status = os.stat(start.path)
        except OSError as error:
            if error.errno in {errno.ENOENT, errno.ENOTDIR}:
                return
            raise explain(start.path, error) from error
        if not stat.S_ISDIR(status.st_mode):
            if stat.S_ISREG(status.st_mode) and containing in parts[-1]:
                yield entry_of(start.name, status)
            return
        yield from _walk(start, lambda one: scan(one, lambda name: containing in name), on_error)

    def walk(self, look: Look, *, on_error: ListingProblem | None = None) -> Iterator[Entry]:
        """Yield the files that looks at every directory find, in the order of `list`."""
        self._check_root()
        return _walk(Directory(self.uri, ""), look, on_error)

    def read(self, name: str, start: int = 0, end: int | None = None) -> bytes:
        """Return the bytes from `start` up to `end`, fewer where the file ends before that."""
        check_range(start, end)
        chunks = []
        with self._open(name) as (descriptor, size):
            end = size if end is None else min(end, size)
            while start < end and (chunk := os.pread(descriptor, end - start, start)):
                chunks.append(chunk)
                start += len(chunk)
        return b"".join(chunks)

    def readinto(self, name: str, start: int, buffer: memoryview) -> int:
        """Fill `buffer` from `start` on, without a copy in between."""
        check_range(start, None)
        filled = 0
        with self._open(name) as (descriptor, _):
            while rest := buffer[filled:]:
                count = os.preadv(descriptor, [rest], start + filled)
                if count == 0:
                    break
                filled += count
        return filled

    def was_replaced(self, before: str, after: str) -> bool:
        """Say whether the file has another inode than before."""
        return before.rpartition(".")[2] != after.rpartition(".")[2]

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

    def _check_root(self) -> None:
        with _explained(self.uri):
            if not stat.S_ISDIR(os.stat(self.uri).st_mode):
                raise NotFound(self.uri, "this is a file, not a directory", "Open its directory.")
        check_path(self.uri)

    def _path(self, name: str) -> str:
        return os.path.join(self.uri, *name_parts(self.uri, name))

    @contextmanager
    def _open(self, name: str) -> Iterator[tuple[int, int]]:
        """Open a regular file for reading; give its descriptor and its size."""
        path = self._path(name)
        with _explained(path):
            # Without O_NONBLOCK a named pipe in a log directory would block us for ever.
            with unwatched():
                descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
            try:
                status = os.fstat(descriptor)
                if not stat.S_ISREG(status.st_mode):
                    raise NotFound(path, "this is not a regular file", "Name a file.")
                check_opened(path, descriptor)
                yield descriptor, status.st_size
            finally:
                os.close(descriptor)


def _walk(start: Directory, look: Look, on_error: ListingProblem | None) -> Iterator[Entry]:
    pending = [start]
    while pending:
        directory = pending.pop()
        try:
            found = look(directory)
        except OSError as error:
            problem = explain(directory.path, error)
            if directory is start:
                raise problem from error
            found = Contents((), (), [problem])
        for problem in found.problems:
            if on_error is None:
                raise problem
            on_error(problem)
        yield from found.files
        pending += found.below[::-1]


def scan(
    directory: Directory, is_wanted: Wanted, is_described: Wanted = lambda _: True
) -> Contents:
    """Read one directory: files that are wanted, with size and version if those are, too.

    Raises:
        OSError: the directory itself cannot be read.
    """
    files: list[Entry] = []
    below: list[Directory] = []
    problems: list[StorageError] = []
    has_links = False
    with unwatched(), os.scandir(directory.path) as found:
        entries = sorted(found, key=lambda entry: entry.name)
    for entry in entries:
        name = f"{directory.name}/{entry.name}" if directory.name else entry.name
        try:
            is_link = entry.is_symlink()
            has_links |= is_link
            if entry.is_dir():
                child = Directory(entry.path, name, directory)
                if is_link and (leads_out(entry.path) or child.contains_itself()):
                    continue
                below.append(child)
            elif is_wanted(entry.name) and not entry.name.startswith(TEMPORARY):
                if not entry.is_file():
                    continue
                if not is_unicode(name):
                    problems.append(BadUri(entry.path, "the path is not UTF-8", "Rename it."))
                elif is_described(entry.name):
                    files.append(entry_of(name, entry.stat()))
                else:
                    files.append(Entry(name, 0, ""))
        except OSError as error:
            # A file deleted since, and a link that leads nowhere, are no files.
            if error.errno not in {errno.ENOENT, errno.ELOOP}:
                problems.append(explain(entry.path, error))
    return Contents(files, below, problems, has_links)


def is_unicode(name: str) -> bool:
    """Say whether a name can be written in UTF-8."""
    try:
        name.isascii() or name.encode()
    except UnicodeEncodeError:
        return False
    return True


def entry_of(name: str, status: os.stat_result) -> Entry:
    """Describe a file as a listing shows it."""
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
    except StorageError:
        raise
    except OSError as error:
        raise explain(path, error) from error


def explain(path: str, error: OSError) -> StorageError:
    """Say in our words what the operating system could not do."""
    kind, problem, hint = _ERRORS.get(
        error.errno or 0, (StorageError, f"{error.strerror or error}".lower(), "Check the path.")
    )
    return kind(path, problem, hint)
