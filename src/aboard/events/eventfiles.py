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

_files_in_process = itertools.count()


class EventFiles:
    """The files of one writer.

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
        self.path: Path | None = None
        """The file that is written now, or the last one."""
        self.size = 0
        """How many bytes of whole records the file has; none before it exists."""
        self.closes = closes
        self.appends = True
        """Whether a file that was closed can be appended to, as far as known."""
        self.doing = ""
        """What was tried last, for a message when it failed."""
        self._directory = directory
        self._suffix = suffix
        self._header = header
        self._descriptor: int | None = None
        self._stamp = 0

    def open(self) -> None:
        """Find out whether writing will do: make a file, or the directory where files close."""
        self.doing = f"create an event file in {self._directory}"
        if self.closes:
            self._directory.mkdir(parents=True, exist_ok=True)
        else:
            self.write(bytearray())

    def write(self, records: bytearray) -> None:
        """Write records and take them out of `records`.

        Raises:
            OSError: what is left in `records`, all of it whole, did not reach the file.
        """
        if not self.closes:
            self._write_open(records)
        elif not (self.size and self.appends and self._append(records)):
            self._write_new(records)

    def finish(self) -> None:
        """Let the next write begin another file."""
        descriptor, self._descriptor = self._descriptor, None
        self.size = 0
        if descriptor is not None:
            self.doing = f"close {self.path}"
            os.close(descriptor)

    def forget(self) -> None:
        """Leave the file to the process that this one was forked from."""
        with contextlib.suppress(OSError):
            self.finish()
        self.path = None

    def __del__(self) -> None:
        if self._descriptor is not None:
            with contextlib.suppress(OSError):
                os.close(self._descriptor)

    # A file that stays open.

    def _write_open(self, records: bytearray) -> None:
        header = b"" if self.size else self._header()
        if self._descriptor is None:
            self._descriptor, self.path = self._create()
        self.doing = f"write to {self.path}"
        pending = header + records
        written = 0
        try:
            while written < len(pending):
                chunk = pending[written : written + _CHUNK]
                written += os.pwrite(self._descriptor, chunk, self.size + written)
        except OSError:
            whole = max(itertools.takewhile(lambda end: end <= written, ends(pending)), default=0)
            self.size += whole
            del records[: max(0, whole - len(header))]
            with contextlib.suppress(OSError):  # the next write overwrites what is left
                os.ftruncate(self._descriptor, self.size)
            raise
        self.size += written
        records.clear()

    # A file that is closed after each write.

    def _append(self, records: bytearray) -> bool:
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
                _write_all(descriptor, records)
            except OSError:
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
        self.size += len(records)
        records.clear()
        return True

    def _write_new(self, records: bytearray) -> None:
        descriptor, path = self._create()
        self.doing = f"write to {path}"
        content = self._header() + records
        try:
            try:
                _write_all(descriptor, content)
            finally:
                os.close(descriptor)
        except OSError:
            with contextlib.suppress(OSError):
                path.unlink()
            raise
        self.path = path
        self.size = len(content)
        records.clear()

    # Names.

    def _create(self) -> tuple[int, Path]:
        self.doing = f"create an event file in {self._directory}"
        self._directory.mkdir(parents=True, exist_ok=True)
        while True:
            path = self._next_path()
            with contextlib.suppress(FileExistsError):
                return os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o666), path

    def _next_path(self) -> Path:
        """Name a file that no other writer has and that sorts after the one before."""
        self._stamp = max(self._stamp, int(time.time()))
        number = next(_files_in_process)
        ending = f"{socket.gethostname()}.{os.getpid()}.{number:04}{self._suffix}"
        if self.path and self.path.name >= f"events.out.tfevents.{self._stamp:010}.{ending}":
            self._stamp += 1
        return self._directory / f"events.out.tfevents.{self._stamp:010}.{ending}"


def _write_all(descriptor: int, data: bytes | bytearray) -> None:
    written = 0
    while written < len(data):
        written += os.write(descriptor, data[written : written + _CHUNK])
