"""Files on a disk or a network file system, and the directories a process is confined to.

On a network file system every call is a round trip. So a listing reads each directory once and
calls `stat` only for files whose names match, and `Folders` skips directories that did not change.
New content is written to a temporary file and renamed, so that no reader sees half a file.
"""

# ruff: noqa: PTH100, PTH103, PTH105, PTH108, PTH112, PTH116, PTH118, PTH120
# Strings and descriptors: a Path object per file would double the cost of a walk.

import errno
import os
import stat
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import cached_property
from itertools import islice
from operator import attrgetter
from typing import TYPE_CHECKING, Any, NamedTuple

from aboard.storage.base import (
    JOBS,
    AlreadyExists,
    BadUri,
    Entry,
    ListingProblem,
    NoSuchPath,
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
from aboard.system import compiled, file_system_of, path_of_descriptor

if TYPE_CHECKING:
    from pathlib import Path

TEMPORARY = ".aboard-tmp-"  # prefix of unfinished files, which no listing shows
_COPIED_AT_ONCE = 1 << 20
_NO_HARD_LINKS = {errno.EPERM, errno.EOPNOTSUPP, errno.ENOSYS, errno.EMLINK, errno.EXDEV}
_ERRORS: dict[int, tuple[type[StorageError], str, str]] = {
    errno.ENOENT: (NoSuchPath, "file or directory not found", "Check the path."),
    errno.ENOTDIR: (NoSuchPath, "a part of the path is a file", "Check the path."),
    errno.EISDIR: (NoSuchPath, "this is a directory, not a file", "Name a file in it."),
    errno.EEXIST: (AlreadyExists, "this already exists", "Choose another name."),
    errno.EACCES: (PermissionDenied, "permission denied", "Check the owner and mode of the path."),
    errno.EPERM: (PermissionDenied, "permission denied", "Check the owner and mode of the path."),
    errno.EROFS: (PermissionDenied, "the file system is read-only", "Use another directory."),
    errno.ENOSPC: (StorageFull, "no space left on the device", "Delete files or use another disk."),
    errno.EDQUOT: (StorageFull, "the disk quota is used up", "Delete files or ask for more."),
    errno.ENAMETOOLONG: (BadUri, "the name is too long", "Use a shorter one."),
    errno.ELOOP: (BadUri, "symbolic links form a loop", "Fix the links."),
}
_ERRORS |= dict.fromkeys(
    (errno.EIO, errno.ESTALE, errno.ETIMEDOUT, errno.EHOSTDOWN, errno.ENOTCONN),
    (Unreachable, "the file system does not answer", "Check the disk or the mount."),
)
_UNSETTLED_NS = 2_000_000_000
"""A recent change may be followed by another with the same time: file clocks are coarse."""
_EXACT = frozenset(
    {"bcachefs", "btrfs", "ext2", "ext3", "ext4", "f2fs", "jfs", "overlay", "tmpfs", "xfs", "zfs"}
)
"""File systems that set directory times at once, from this machine's clock."""


NameFilter = Callable[[str], bool]


class Directory:
    __slots__ = ("_identity", "name", "parent", "path")

    def __init__(self, path: str, name: str, parent: "Directory | None" = None) -> None:
        self.path = path
        self.name = name
        self.parent = parent
        self._identity: tuple[int, int] | None = None

    def contains_itself(self) -> bool:
        """Return whether a symbolic link led back to a directory above."""
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


class Contents(NamedTuple):
    files: Sequence[Entry]
    below: Sequence[Directory]
    problems: Sequence[StorageError] = ()
    has_links: bool = False


Reader = Callable[[Directory, Sequence[Directory]], Contents]
"""Reads one directory, given those that follow, the next one last; raises OSError."""


# Of the C core: a file's name, size and version; a directory's mark, device and files.
Described = tuple[str, int, str]
Sight = tuple[str, int, list[Described]]
ReadDirectories = Callable[
    [list[bytes], bytes, int, int], list[tuple[list[Described], list[str]] | None]
]
LookAtDirectories = Callable[[list[tuple[bytes, bytes]], int], list[Sight | None]]


class LocalStorage(Storage):
    def __init__(self, root: str) -> None:
        self.uri = root

    def list(
        self, prefix: str = "", *, containing: str = "", on_error: ListingProblem | None = None
    ) -> Iterator[Entry]:
        """Follow links, but not back to a directory above or out of the confinement."""
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
        yield from _walk(start, _reader(containing), on_error)

    def walk(self, read: Reader, *, on_error: ListingProblem | None = None) -> Iterator[Entry]:
        self._check_root()
        return _walk(Directory(self.uri, ""), read, on_error)

    def read(self, name: str, start: int = 0, end: int | None = None) -> bytes:
        check_range(start, end)
        chunks = []
        with self._open(name) as (descriptor, size):
            end = size if end is None else min(end, size)
            while start < end and (chunk := os.pread(descriptor, end - start, start)):
                chunks.append(chunk)
                start += len(chunk)
        return chunks[0] if len(chunks) == 1 else b"".join(chunks)

    def readinto(self, name: str, start: int, buffer: memoryview) -> int:
        check_range(start, None)
        filled = 0
        with self._open(name) as (descriptor, _):
            while rest := buffer[filled:]:
                count = os.preadv(descriptor, [rest], start + filled)
                if count == 0:
                    break
                filled += count
        return filled

    @property
    def has_paths(self) -> bool:
        return not is_confined()  # else opened files must be checked

    def was_replaced(self, before: str, after: str) -> bool:
        (old_time, _, old_inode), (time_, _, inode) = before.partition("."), after.partition(".")
        return old_inode != inode or int(time_, 16) < int(old_time, 16)

    def write(self, name: str, data: bytes | memoryview) -> None:
        path = self._path(name)
        with _explained(path), _temporary_beside(path, data) as temporary:
            _move_in(temporary, path)

    def upload(self, name: str, path: "Path") -> None:
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

    def create_new(self, name: str, data: bytes | memoryview) -> None:
        path = self._path(name)
        with _explained(path), _temporary_beside(path, data) as temporary:
            try:
                os.link(temporary, path)
            except FileExistsError:
                # NFS may repeat a request whose reply was lost, and then find its own link.
                if os.stat(temporary).st_nlink != 2:
                    raise
            except OSError as error:
                if error.errno not in _NO_HARD_LINKS:
                    raise
                _create_exclusively(path, data)

    def delete(self, name: str) -> None:
        path = self._path(name)
        with _explained(path):
            os.unlink(path)

    def _check_root(self) -> None:
        with _explained(self.uri):
            if not stat.S_ISDIR(os.stat(self.uri).st_mode):
                raise NoSuchPath(self.uri, "this is a file, not a directory", "Open its directory.")
        check_path(self.uri)

    def _path(self, name: str) -> str:
        return os.path.join(self.uri, *name_parts(self.uri, name))

    def _open(self, name: str) -> "_Opened":
        return _Opened(self._path(name))


class _Opened:
    """An open file: its descriptor and size. A class, since a generator is slower."""

    __slots__ = ("_descriptor", "_path")

    def __init__(self, path: str) -> None:
        self._path = path

    def __enter__(self) -> tuple[int, int]:
        try:
            # Without O_NONBLOCK a named pipe in a log directory would block forever.
            with unwatched():
                self._descriptor = os.open(self._path, os.O_RDONLY | os.O_NONBLOCK)
        except OSError as error:
            raise explain(self._path, error) from error
        try:
            status = os.fstat(self._descriptor)
            _check_regular(self._path, status)
            check_opened(self._path, self._descriptor)
        except BaseException as error:
            self.__exit__(None, error, None)
            raise
        return self._descriptor, status.st_size

    def __exit__(self, _: object, error: BaseException | None, __: object) -> None:
        os.close(self._descriptor)
        if isinstance(error, OSError) and not isinstance(error, StorageError):
            raise explain(self._path, error) from error


def _check_regular(path: str, status: os.stat_result) -> None:
    if not stat.S_ISREG(status.st_mode):
        raise NoSuchPath(path, "not a regular file", "Name a file.")


def _walk(start: Directory, read: Reader, on_error: ListingProblem | None) -> Iterator[Entry]:
    pending = [start]
    while pending:
        directory = pending.pop()
        try:
            found = read(directory, pending)
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


def _reader(containing: str) -> Reader:
    """Return a reader that describes the files whose names contain a text.

    The C core does not check where a directory is once it is opened.
    """
    if is_confined():
        return lambda directory, _: scan(directory, lambda name: containing in name)
    return _ManyReader(containing).read


def _core() -> Any:
    """Return the C core, which decodes names as UTF-8; None if it cannot be used."""
    return compiled("aboard.storage._listing") if sys.getfilesystemencoding() == "utf-8" else None


class _ManyReader:
    """Reads directories ahead: many in one call into the C core, with several threads.

    On a slow disk or a network file system, where round trips take most of the time, fewer
    directories are worth a thread, and there may be more threads than cores. What the core leaves
    out, and directories that cannot be read, are left to `scan`.
    """

    def __init__(self, containing: str) -> None:
        self._containing, self._encoded = containing, os.fsencode(containing)
        self._ahead: dict[Directory, Contents | None] = {}
        self._is_slow = False

    @cached_property
    def _read_directories(self) -> ReadDirectories | None:
        return getattr(_core(), "read_directories", None)

    def read(self, directory: Directory, later: Sequence[Directory]) -> Contents:
        if not later and not self._ahead:  # such as the root
            if os.stat(directory.path).st_size > _SMALL:
                self._read_part([directory], 1)
        elif directory not in self._ahead:
            following = [one for one in later[: -_AHEAD - 1 : -1] if one not in self._ahead]
            self._read_ahead([directory, *following])
        found = self._ahead.pop(directory, None)
        return found or scan(directory, lambda name: self._containing in name)

    def _read_ahead(self, directories: Sequence[Directory]) -> None:
        if not self._is_slow:
            first, directories = directories[:_PROBED], directories[_PROBED:]
            self._is_slow = self._takes_long(first)
        self._read_part(directories, _threads_for(len(directories), is_slow=self._is_slow))

    def _takes_long(self, directories: Sequence[Directory]) -> bool:
        """Read directories; return whether they are on a slow disk or a network file system."""
        started = time.perf_counter()
        self._read_part(directories, 1)
        elapsed = time.perf_counter() - started
        found = [one for one in map(self._ahead.get, directories) if one is not None]
        calls = len(directories) + sum(len(one.files) + len(one.below) / 16 for one in found)
        return elapsed > calls * _SLOW_SECONDS

    def _read_part(self, directories: Sequence[Directory], threads: int) -> None:
        if self._read_directories is None:
            return
        paths = [os.fsencode(one.path) for one in directories]
        # The core stops after many entries, so that those read ahead are not too many.
        found = self._read_directories(paths, self._encoded, threads * _ENTRIES, threads)
        for directory, raw in zip(directories, found, strict=False):
            usual = raw if is_unicode(directory.name) else None
            self._ahead[directory] = None if usual is None else _contents(directory, *usual)


def _threads_for(directories: int, *, is_slow: bool = False) -> int:
    wanted = directories // (_LEAST_IF_SLOW if is_slow else _LEAST)
    if wanted <= 1:  # usual, and the number of cores is in a file
        return 1
    return min(wanted, _THREADS if is_slow else os.cpu_count() or 1)


def _contents(directory: Directory, files: Sequence[Described], below: Sequence[str]) -> Contents:
    place, above = directory.path.rstrip("/"), f"{directory.name}/" if directory.name else ""
    return Contents(
        [
            Entry(above + name, size, version)
            for name, size, version in files
            if not name.startswith(TEMPORARY)
        ],
        [Directory(f"{place}/{name}", above + name, directory) for name in below if name != JOBS],
    )


# The size of a directory of few entries, where loading the core would take longer: its bytes on
# most file systems. On some it says little, and a large directory takes somewhat longer.
_SMALL = 4096
_AHEAD = 511  # directories that are read ahead
_THREADS = 4  # on a slow disk
_LEAST_IF_SLOW = 16  # directories that are worth a thread
_LEAST = 128
_PROBED = 2  # directories that are read first, to measure how long it takes
_SLOW_SECONDS = 50e-6  # for a system call: nothing is cached, or each is a round trip
_ENTRIES = 4096  # after which a thread reads no more directories


def scan(
    directory: Directory, is_listed: NameFilter, is_described: NameFilter = lambda _: True
) -> Contents:
    """Read one directory; its files have size and version only if `described`."""
    files: list[Entry] = []
    below: list[Directory] = []
    problems: list[StorageError] = []
    has_links = False
    place = directory.path.rstrip("/")
    with _entries(directory.path) as entries:
        for entry in entries:
            path = f"{place}/{entry.name}"
            name = f"{directory.name}/{entry.name}" if directory.name else entry.name
            try:
                is_link = entry.is_symlink()
                has_links |= is_link
                if entry.is_dir():
                    if entry.name == JOBS:
                        continue
                    child = Directory(path, name, directory)
                    if is_link and (leads_out(path) or child.contains_itself()):
                        continue
                    below.append(child)
                elif is_listed(entry.name) and not entry.name.startswith(TEMPORARY):
                    if not entry.is_file():
                        continue
                    if not is_unicode(name):
                        problems.append(BadUri(path, "the path is not UTF-8", "Rename it."))
                    elif is_described(entry.name):
                        files.append(entry_of(name, entry.stat()))
                    else:
                        files.append(Entry(name, 0, ""))
            except OSError as error:
                # Skip files deleted meanwhile and broken links.
                if error.errno not in {errno.ENOENT, errno.ELOOP}:
                    problems.append(explain(path, error))
    return Contents(files, below, problems, has_links)


@contextmanager
def _entries(path: str) -> Iterator[list[os.DirEntry[str]]]:
    """Read a directory. A confined process checks the one that it has opened."""
    if not is_confined():
        with os.scandir(path) as found:
            yield sorted(found, key=_name_of)
        return
    with unwatched():
        descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
        try:
            if not _is_inside(path_of_descriptor(descriptor)):
                raise PermissionError(errno.EACCES, _REASON, path)
            with os.scandir(descriptor) as found:
                yield sorted(found, key=_name_of)
        finally:
            os.close(descriptor)


_name_of = attrgetter("name")


def is_unicode(name: str) -> bool:
    return name.isascii() or name == name.encode(errors="replace").decode()


def entry_of(name: str, status: os.stat_result) -> Entry:
    return Entry(name, status.st_size, f"{status.st_mtime_ns:x}.{status.st_ino:x}")


@contextmanager
def _temporary_beside(path: str, data: bytes | memoryview) -> Iterator[str]:
    """Write the data to a temporary file next to `path`; delete it afterwards."""
    directory = os.path.dirname(path)
    temporary = os.path.join(directory, TEMPORARY + os.urandom(8).hex())
    try:
        try:
            _create_exclusively(temporary, data)
        except FileNotFoundError:
            _make_directories(directory)
            _create_exclusively(temporary, data)
        yield temporary
    finally:
        with suppress(OSError):
            os.unlink(temporary)


def _make_directories(directory: str) -> None:
    """Create a directory and its parents; an error names the parent that denies it."""
    try:
        os.makedirs(directory, exist_ok=True)
    except OSError as error:
        if error.errno not in {errno.EACCES, errno.EPERM, errno.EROFS}:
            raise
        above = directory
        while above and not os.path.isdir(above):
            above = os.path.dirname(above)
        raise explain(above or directory, error) from None


def _move_in(temporary: str, path: str) -> None:
    try:
        os.replace(temporary, path)
    except IsADirectoryError:
        raise AlreadyExists(path, "a directory has this name", "Choose another name.") from None


def _create_exclusively(path: str, data: bytes | memoryview) -> None:
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o666)
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(data)
    except BaseException:
        os.unlink(path)
        raise


@contextmanager
def _explained(path: str) -> Iterator[None]:
    try:
        yield
    except StorageError:
        raise
    except OSError as error:
        # The error below is already explained.
        raise explain(path, error) from (None if error.errno in _ERRORS else error)


def explain(path: str, error: OSError) -> StorageError:
    kind, problem, hint = _ERRORS.get(
        error.errno or 0, (StorageError, f"{error.strerror or error}".lower(), "Check the path.")
    )
    return kind(path, problem, hint)


# Repeated listings.


class Folder(NamedTuple):
    """The contents of a directory: names joined with '/', and a mark that changes with them."""

    mark: str
    files: str
    below: str


class Folders:
    """Lists a storage, and reuses what an earlier listing found in unchanged directories.

    A directory is read again if it changed or did so a moment ago; if it contains links, since
    their targets change independently; and if it is on another file system, or on one whose times
    are not known to be exact. `known` maps names below the root to earlier contents. Entries that
    are still valid are removed from it; the caller drops the rest and saves `found`.
    """

    def __init__(
        self,
        storage: LocalStorage,
        known: dict[str, Folder],
        is_listed: NameFilter,
        is_described: NameFilter,
    ) -> None:
        self.found: dict[str, Folder] = {}
        self._storage = storage
        self._known = known
        self._is_listed = is_listed
        self._is_described = is_described
        self._settled_before = time.time_ns() - _UNSETTLED_NS
        self._device = _exact_device(storage.uri)
        core = None if self._device is None else _core()
        self._look: LookAtDirectories | None = core and core.look_at_directories
        self._to_look_at = iter(list(known))  # in the order of the listing, or nearly so
        self._ahead: dict[str, tuple[_Names, Sight | None]] = {}

    def list(self, *, on_error: ListingProblem | None = None) -> Iterator[Entry]:
        return self._storage.walk(self._read, on_error=on_error)

    def _read(self, directory: Directory, _: Sequence[Directory]) -> Contents:
        known = self._known.get(directory.name)
        if known is not None:
            names, sight = self._sight(directory, known)
            if sight is not None and sight[0] == known.mark and sight[1] == self._device:
                del self._known[directory.name]
                return self._reuse(directory, known, names, sight[2])
        status = os.stat(directory.path)  # before reading: later changes show next time
        mark = f"{status.st_mtime_ns:x}.{status.st_ctime_ns:x}.{status.st_ino:x}"
        if known is not None and known.mark == mark and status.st_dev == self._device:
            del self._known[directory.name]
            described, problems = _describe(directory, names.described)
            return self._reuse(directory, known, names, described, problems)
        contents = scan(directory, self._is_listed, self._is_described)
        changed = max(status.st_mtime_ns, status.st_ctime_ns)
        is_settled = status.st_dev == self._device and changed < self._settled_before
        if is_settled and not contents.has_links and not contents.problems:
            files = _names(directory, contents.files)
            below = _names(directory, contents.below)
            if is_unicode(directory.name) and is_unicode(below):
                self.found[directory.name] = Folder(mark, files, below)
        return contents

    def _sight(self, directory: Directory, known: Folder) -> "tuple[_Names, Sight | None]":
        """Look at a known directory, and at many that follow; no sight of one that is unusual."""
        while self._look is not None and directory.name not in self._ahead:
            names = list(islice(self._to_look_at, _AHEAD))
            if not names:
                break
            held = [self._names_of(self._known[one]) for one in names]
            above = os.fsencode(f"{self._storage.uri.rstrip('/')}/")
            given = [
                (above + one.encode(), "/".join(files.described).encode())
                for one, files in zip(names, held, strict=True)
            ]
            found = self._look(given, _threads_for(len(names)))
            self._ahead |= zip(names, zip(held, found, strict=True), strict=True)
        return self._ahead.pop(directory.name, None) or (self._names_of(known), None)

    def _names_of(self, known: Folder) -> "_Names":
        names = _Names([], [])
        for name in known.files.split("/") if known.files else ():
            names[not self._is_described(name)].append(name)
        return names

    def _reuse(
        self,
        directory: Directory,
        known: Folder,
        names: "_Names",
        described: Iterable[Described],
        problems: Sequence[StorageError] = (),
    ) -> Contents:
        place, above = directory.path, f"{directory.name}/" if directory.name else ""
        files = [Entry(above + name, size, version) for name, size, version in described]
        files += [Entry(above + name, 0, "") for name in names.others]
        below = known.below.split("/") if known.below else ()
        return Contents(
            files,
            [Directory(f"{place}/{name}", above + name, directory) for name in below],
            problems,
        )


class _Names(NamedTuple):
    """The names of the files in a directory: those to be described, and the others."""

    described: list[str]
    others: list[str]


def _describe(
    directory: Directory, names: Iterable[str]
) -> tuple[list[Described], list[StorageError]]:
    described: list[Described] = []
    problems: list[StorageError] = []
    for name in names:
        path = f"{directory.path}/{name}"
        try:
            status = os.stat(path)
        except OSError as error:
            if error.errno != errno.ENOENT:  # else it was just deleted
                problems.append(explain(path, error))
            continue
        if stat.S_ISREG(status.st_mode):
            described.append(entry_of(name, status))
    return described, problems


def _names(directory: Directory, held: Sequence[Entry] | Sequence[Directory]) -> str:
    above = len(directory.name) + 1 if directory.name else 0
    return "/".join([one.name[above:] for one in held])


def _exact_device(path: str) -> int | None:
    """Return the device of a path, if its times are exact."""
    from pathlib import Path

    try:
        return os.stat(path).st_dev if file_system_of(Path(path)) in _EXACT else None
    except OSError:
        return None


# The directories that a process is confined to.
#
# A team's hub shows what is below its roots. A user who logs there could add a link to any file
# that the hub's user can read. `LocalStorage` checks each file after opening it. Other code, such
# as the plugins of TensorBoard, opens paths with `open`, `os.scandir` or a library: only an audit
# hook sees all of these. (Landlock or a mount namespace would also block the interpreter's files.)
# Python cannot remove a hook, so one is installed only in a confined process.
#
# The hook checks a path before it is opened, so a link that changes in between can still escape.
# It does not see files opened without Python, nor paths relative to an open directory (`dir_fd`) or
# `/proc/self/fd/N`: Python does not report where these are.


_WATCHED = frozenset({"open", "os.listdir", "os.scandir", "sqlite3.connect"})
_REASON = "a link leads out of its root"

_real: tuple[str, ...] = ()
_written: tuple[str, ...] = ()
_is_watching = False
_here = threading.local()


def confine(directories: Iterable[str]) -> None:
    """Restrict reads of local files to these directories; no directories lift the restriction."""
    global _real, _written, _is_watching  # noqa: PLW0603 - it is about the whole process
    given = list(map(os.path.abspath, directories))
    _real = tuple(_with_slash(os.path.realpath(directory)) for directory in given)
    _written = (*_real, *map(_with_slash, given))
    if _real and not _is_watching:
        sys.addaudithook(_watch)
        _is_watching = True


def admit(directory: str) -> None:
    """Allow a confined process to read a private directory, in which it creates links."""
    if _real:
        confine([*_written, directory])


def confinement() -> tuple[str, ...]:
    """Return the directories that this process is confined to, to confine its children."""
    return _written


def is_confined() -> bool:
    return bool(_real)


def leads_out(path: str) -> bool:
    return bool(_real) and not _is_inside(os.path.realpath(path))


def check_path(path: str) -> None:
    if leads_out(path):
        raise PermissionDenied(path, _REASON, "Put the files below the root.")


def check_opened(path: str, descriptor: int) -> None:
    """Check the opened file itself; the path may lead elsewhere by now."""
    # The path of a deleted file ends in " (deleted)", which does not matter here.
    if _real and not _is_inside(path_of_descriptor(descriptor)):
        raise PermissionDenied(path, _REASON, "Put the file below the root.")


class unwatched:  # noqa: N801 - used as a function; a generator is slower
    """Skip the hook for what is checked before or after opening."""

    __slots__ = ("_before",)

    def __enter__(self) -> None:
        self._before = getattr(_here, "is_unwatched", False)
        _here.is_unwatched = True

    def __exit__(self, *_: object) -> None:
        _here.is_unwatched = self._before


def _watch(event: str, arguments: tuple[Any, ...]) -> None:
    if not _real or event not in (_WATCHED or ()):  # None at interpreter exit
        return
    if getattr(_here, "is_unwatched", False):
        return
    given = arguments[0]
    if not isinstance(given, (str, bytes, os.PathLike)):
        return
    path = os.fsdecode(given)
    if event == "sqlite3.connect" and path.startswith("file:"):
        from urllib.parse import unquote, urlsplit  # rarely needed

        path = unquote(urlsplit(path).path)
    as_written = _with_slash(path), _with_slash(os.path.abspath(path))
    if any(text.startswith(_written) for text in as_written) and leads_out(path):
        raise PermissionError(errno.EACCES, _REASON, path)


def _is_inside(real: str) -> bool:
    return _with_slash(real).startswith(_real)


def _with_slash(path: str) -> str:
    return path if path.endswith("/") else f"{path}/"
