"""Event files: their names, and the sequence of files of one writer.

Framed records are written completely or not at all. On a file system that shows a file only after
it is closed, such as a mounted bucket, the file is closed after each write and opened again to
append; if that is refused, each write makes a new file. `writer` decides when to write.
"""

from __future__ import annotations

import contextlib
import errno
import itertools
import os
import re
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import NamedTuple

EVENT_FILE = "tfevents"  # in the name of every event file, as in TensorBoard
STAMPED = re.compile(rf"{EVENT_FILE}\.\d")  # a directory called "tfevents" has no time
MADE_BY = re.compile(rf"{EVENT_FILE}\.(?P<second>\d{{9,11}})\.(?P<rest>.*)")
"""The time at which a file was made; the rest of its name often has the host and the process."""
ADOPTED = ".adopted"
"""The suffix of an adopted copy: `aboard run` copies event files that a program writes elsewhere
into its run. If the original is found too, only the copy is shown."""
_UNIQUE = re.compile(r"(?:^|\.)[^.\d][^.]*\.\d+\.\d+")  # host, process and count

# Errors of file systems that cannot append to an existing file.
_REFUSED = {errno.EACCES, errno.EBADF, errno.EEXIST, errno.EINVAL, errno.ENOSYS, errno.ENOTSUP}
_REFUSED |= {errno.EPERM, errno.EROFS, errno.ESPIPE}
_GONE = {errno.ENOENT, errno.ESTALE}
_CHUNK = 1 << 20
_PREFIX = f"events.out.{EVENT_FILE}."
_SECOND = re.compile(rf"{EVENT_FILE}\.([0-3]\d{{9}})\.")  # until the year 2096

_files_in_process = itertools.count()


def is_event_file(name: str) -> bool:
    return EVENT_FILE in name.rpartition("/")[2]


def newest_second(names: Iterable[str]) -> int:
    """Return the latest second in the names of event files; 0 if none has one."""
    return max((int(found[1]) for name in names if (found := _SECOND.search(name))), default=0)


def adopted_name(name: str) -> str:
    """Return the name of an event file's copy; without the suffix if the name is not unique."""
    made = MADE_BY.search(name)
    return f"{name}{ADOPTED}" if made and _UNIQUE.search(made["rest"]) else name


def adopted_originals(names: Iterable[str]) -> set[str]:
    return {name.removesuffix(ADOPTED) for name in names if name.endswith(ADOPTED)}


class _Progress(NamedTuple):
    """The state of the files. Replaced, never changed: an interrupt sees no partial write."""

    path: Path | None
    descriptor: int | None
    size: int
    taken: int


class EventFiles:
    """The files of one writer, each beginning with the record that `header` makes.

    After an interrupt, the next write writes the interrupted records again, to the same place. With
    `closes`, a file is closed after each write. All names sort after those of the event files in
    the directory, and after any made until the second `after`, whatever the clock says: readers
    take the order of the names as the order of the attempts at a run.
    """

    def __init__(
        self,
        directory: Path,
        *,
        suffix: str = "",
        header: Callable[[], bytes],
        closes: bool = False,
        after: int = 0,
    ) -> None:
        self._progress = _Progress(None, None, 0, 0)
        self.closes = closes
        self.appends = True  # whether a closed file can be appended to, as far as known
        self.doing = ""  # for error messages
        self._directory = directory
        self._suffix = suffix
        self._header = header
        self._stamp = after + 1

    @property
    def path(self) -> Path | None:
        return self._progress.path

    @property
    def size(self) -> int:
        return self._progress.size

    @property
    def taken(self) -> int:
        """The bytes of records in all files, without their headers."""
        return self._progress.taken

    @property
    def is_gone(self) -> bool:
        if self._progress.descriptor is None:
            return False
        try:
            return os.fstat(self._progress.descriptor).st_nlink == 0
        except OSError as error:
            return error.errno in _GONE

    def open(self) -> None:
        """Check that files can be written: create a file, or with `closes` only the directory."""
        self.doing = f"create an event file in {self._directory}"
        if self.closes:
            self._directory.mkdir(parents=True, exist_ok=True)
        else:
            self.write(bytearray(), 0, 0)

    def write(self, records: bytearray, start: int, stop: int) -> None:
        """Write the records from `start` to `stop`; after an OSError, see `taken`."""
        if not self.closes:
            self._write_open(records, start, stop)
        elif not (self.size and self.appends and self._append(records, start, stop)):
            self._write_new(records, start, stop)

    def finish(self) -> None:
        """Close the file; the next write begins another one."""
        progress = self._progress
        self._progress = progress._replace(descriptor=None, size=0)
        if progress.descriptor is not None:
            self.doing = f"close {progress.path}"
            os.close(progress.descriptor)

    def forget(self) -> None:
        """Close the file of the parent process after a fork, without touching its content."""
        with contextlib.suppress(OSError):
            self.finish()
        self._progress = self._progress._replace(path=None)

    def __del__(self) -> None:
        if self._progress.descriptor is not None:
            with contextlib.suppress(OSError):
                os.close(self._progress.descriptor)

    # A file that stays open.

    def _write_open(self, records: bytearray, start: int, stop: int) -> None:
        descriptor = self._progress.descriptor
        if descriptor is None:
            descriptor, path = self._create()
            self._progress = self._progress._replace(path=path, descriptor=descriptor)
        self.doing = f"write to {self.path}"
        if not self.size:
            header = self._header()
            _, error = self._extend(descriptor, header, 0, len(header))
            if error:
                raise error
            self._progress = self._progress._replace(size=len(header))
        whole, error = self._extend(descriptor, records, start, stop)
        self._advance(whole)
        if error:
            raise error

    def _extend(
        self, descriptor: int, records: bytes | bytearray, start: int, stop: int
    ) -> tuple[int, OSError | None]:
        """Write at the end; return the bytes of complete records written, and the error if any."""
        at = start
        try:
            while at < stop:
                part = records[at : min(at + _CHUNK, stop)]
                at += os.pwrite(descriptor, part, self.size + at - start)
        except OSError as error:
            from aboard.events.records import ends  # readers of names do not need it

            found = itertools.takewhile(lambda end: end <= at, ends(records, start, stop))
            whole = max(found, default=start) - start
            with contextlib.suppress(OSError):  # the next write overwrites what is left
                os.ftruncate(descriptor, self.size + whole)
            return whole, error
        return stop - start, None

    def _advance(self, count: int) -> None:
        progress = self._progress
        self._progress = progress._replace(size=progress.size + count, taken=progress.taken + count)

    # A file that is closed after each write.

    def _append(self, records: bytearray, start: int, stop: int) -> bool:
        """Append to the file; False if it cannot be appended to."""
        assert self.path  # noqa: S101 - it has a size
        self.doing = f"append to {self.path}"
        try:
            descriptor = os.open(self.path, os.O_WRONLY | os.O_APPEND)
            try:
                there = os.fstat(descriptor).st_size
                if there < self.size:
                    return False
                if there > self.size:  # from a write that failed when the file was closed
                    os.ftruncate(descriptor, self.size)
                _write_all(descriptor, records, start, stop)
            except BaseException:
                with contextlib.suppress(OSError):
                    os.ftruncate(descriptor, self.size)
                raise
            finally:
                os.close(descriptor)
        except OSError as error:
            if error.errno in _REFUSED:
                self.appends = False
            elif error.errno not in _GONE:
                raise
            return False
        self._advance(stop - start)
        return True

    def _write_new(self, records: bytearray, start: int, stop: int) -> None:
        descriptor, path = self._create()
        self.doing = f"write to {path}"
        header = self._header()
        try:
            try:
                _write_all(descriptor, header, 0, len(header))
                _write_all(descriptor, records, start, stop)
            finally:
                os.close(descriptor)
            size = stop - start
            self._progress = _Progress(path, None, len(header) + size, self.taken + size)
        except BaseException:
            if self.path != path:
                with contextlib.suppress(OSError):
                    path.unlink()
            raise

    # Names.

    def _create(self) -> tuple[int, Path]:
        self.doing = f"create an event file in {self._directory}"
        self._directory.mkdir(parents=True, exist_ok=True)
        while True:
            path = self._next_path()
            with contextlib.suppress(FileExistsError):
                return os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o666), path

    def _next_path(self) -> Path:
        self._stamp = max(self._stamp, int(time.time()))
        ending = f"{os.uname().nodename}.{os.getpid()}.{next(_files_in_process):04}{self._suffix}"
        before = self.path.name if self.path else self._latest()
        self._stamp = max(self._stamp, newest_second([before]))
        while before >= (name := f"{_PREFIX}{self._stamp:010}.{ending}"):
            self._stamp += 1
        return self._directory / name

    def _latest(self) -> str:
        """Return the last name in the directory with a time at the same position as ours."""
        try:
            names = [path.name for path in self._directory.iterdir()]
        except OSError:  # writable, but not listable
            return ""
        ours = (name for name in names if name.startswith(_PREFIX) and _SECOND.search(name))
        return max(ours, default="")


def _write_all(descriptor: int, data: bytes | bytearray, start: int, stop: int) -> None:
    while start < stop:
        start += os.write(descriptor, data[start : min(start + _CHUNK, stop)])
