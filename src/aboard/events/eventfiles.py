"""The event files of one writer, one after another: named as readers expect, and never torn.

Records come framed and leave for the disk whole or not at all. Where a file system shows a file
only once it is closed, as mounted buckets do, it is closed after each write and opened again to
append; where that is refused, each write makes a file. When to write is left to `writer`.
"""

from __future__ import annotations

import contextlib
import errno
import itertools
import os
import socket
import time
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from aboard.events.batch import ends

_REFUSED = frozenset(
    {
        errno.EACCES,
        errno.EBADF,
        errno.EEXIST,
        errno.EINVAL,
        errno.ENOSYS,
        errno.ENOTSUP,
        errno.EPERM,
        errno.EROFS,
        errno.ESPIPE,
    }
)
"""What file systems answer that let nothing be appended to a file that is there."""
_GONE = frozenset({errno.ENOENT, errno.ESTALE})
_CHUNK = 1 << 20
_PREFIX = "events.out.tfevents."
_SECONDS_AHEAD = 5
"""A name from further in the future is that of another clock, and no reason to follow it."""

_files_in_process = itertools.count()


class _Progress(NamedTuple):
    """How far the files are. Replaced as a whole, so that an interrupt sees no write half done."""

    path: Path | None
    descriptor: int | None
    size: int
    taken: int


class EventFiles:
    """The files of one writer.

    An interrupt leaves what was being written as not taken: the next write writes it again, to
    the same place.

    Args:
        directory: where they are; made when the first file is.
        suffix: ends each name.
        header: makes the record that opens each file.
        closes: whether a file is closed after each write.
    """

    def __init__(
        self,
        directory: Path,
        *,
        suffix: str = "",
        header: Callable[[], bytes],
        closes: bool = False,
    ) -> None:
        self._progress = _Progress(None, None, 0, 0)
        self.closes = closes
        self.appends = True
        """Whether a file that was closed can be appended to, as far as known."""
        self.doing = ""
        """What was tried last, for a message when it failed."""
        self._directory = directory
        self._suffix = suffix
        self._header = header
        self._stamp = 0

    @property
    def path(self) -> Path | None:
        """The file that is written now, or the last one."""
        return self._progress.path

    @property
    def size(self) -> int:
        """How many bytes of whole records the file has; none before it exists."""
        return self._progress.size

    @property
    def taken(self) -> int:
        """How many bytes of records all files have taken, those that open them aside."""
        return self._progress.taken

    @property
    def is_gone(self) -> bool:
        """Whether the file that is open has been removed: what is written to it nobody will see."""
        if self._progress.descriptor is None:
            return False
        try:
            return os.fstat(self._progress.descriptor).st_nlink == 0
        except OSError as error:
            return error.errno in _GONE

    def open(self) -> None:
        """Find out whether writing will do: make a file, or the directory where files close."""
        self.doing = f"create an event file in {self._directory}"
        if self.closes:
            self._directory.mkdir(parents=True, exist_ok=True)
        else:
            self.write(bytearray(), 0, 0)

    def write(self, records: bytearray, start: int, stop: int) -> None:
        """Write the records between `start` and `stop`.

        Raises:
            OSError: `taken` tells how many of them, all of them whole, reached the file.
        """
        if not self.closes:
            self._write_open(records, start, stop)
        elif not (self.size and self.appends and self._append(records, start, stop)):
            self._write_new(records, start, stop)

    def finish(self) -> None:
        """Let the next write begin another file."""
        progress = self._progress
        self._progress = progress._replace(descriptor=None, size=0)
        if progress.descriptor is not None:
            self.doing = f"close {progress.path}"
            os.close(progress.descriptor)

    def forget(self) -> None:
        """Leave the file to the process that this one was forked from."""
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
        """Write at the end; return how many bytes of whole records got there, and what failed."""
        at = start
        try:
            while at < stop:
                part = records[at : min(at + _CHUNK, stop)]
                at += os.pwrite(descriptor, part, self.size + at - start)
        except OSError as error:
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
        """Append to the file; False if it must be left as it is."""
        assert self.path  # noqa: S101 - it has a size
        self.doing = f"append to {self.path}"
        try:
            descriptor = os.open(self.path, os.O_WRONLY | os.O_APPEND)
            try:
                there = os.fstat(descriptor).st_size
                if there < self.size:
                    return False
                if there > self.size:  # of a write that failed as the file was closed
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
        """Name a file that no other writer has and that sorts after the ones before."""
        self._stamp = max(self._stamp, int(time.time()))
        ending = f"{socket.gethostname()}.{os.getpid()}.{next(_files_in_process):04}{self._suffix}"
        before = self.path.name if self.path else self._latest()
        while before >= (name := f"{_PREFIX}{self._stamp:010}.{ending}"):
            self._stamp += 1
        return self._directory / name

    def _latest(self) -> str:
        """Return the last name of about now: of a process that ended just before this one began."""
        soon = f"{_PREFIX}{self._stamp + _SECONDS_AHEAD:010}"
        try:
            names = [path.name for path in self._directory.iterdir()]
        except OSError:  # it may be written to, but not listed
            return ""
        return max((name for name in names if name < soon), default="")


def _write_all(descriptor: int, data: bytes | bytearray, start: int, stop: int) -> None:
    while start < stop:
        start += os.write(descriptor, data[start : min(start + _CHUNK, stop)])
