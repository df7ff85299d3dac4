"""Event files out: named as every reader expects, buffered, rotated, and never torn.

A record reaches the disk whole or not at all: when the disk is full, what did not fit stays in
memory for the next flush. What goes into a record is left to `encode`, its frame to `records`.
"""

from __future__ import annotations

import atexit
import contextlib
import itertools
import os
import socket
import threading
import time
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import numpy as np
import numpy.typing as npt

from aboard.events import encode, media
from aboard.events.encode import EncodedValue, HParam
from aboard.events.records import frame

_files_in_process = itertools.count()


class EventWriteError(OSError):
    """An event file that could not be written; the records are kept for the next flush."""


class EventWriter:
    """Append events to a file of its own in a log directory.

    Records gather in memory until there are `buffer_bytes` of them, or until one is written
    `flush_secs` after the oldest; `flush` writes them at once. A file that reaches `max_bytes`
    is followed by another, whose name sorts after it and which can be read without it: the
    first value of each tag repeats its metadata. Safe to share between threads.
    """

    def __init__(
        self,
        directory: str | os.PathLike[str],
        *,
        flush_secs: float = 5.0,
        buffer_bytes: int = 256 * 1024,
        max_bytes: int | None = None,
        suffix: str = "",
        writer: str = encode.WRITER,
    ) -> None:
        self.directory = Path(directory)
        self.path: Path | None = None
        """The file that is written now; none before the first could be created."""
        self._flush_secs = flush_secs
        self._buffer_bytes = buffer_bytes
        self._max_bytes = max_bytes
        self._suffix = suffix
        self._writer = writer
        self._lock = threading.RLock()
        self._closed = False
        self._stamp = 0
        self._begin_file()
        self._buffer(encode.file_version(time.time(), writer))
        self.flush()
        atexit.register(self.close)

    # Any event.

    def write(self, event: bytes) -> None:
        """Append one serialized `Event` as it is; what metadata it carries is up to the caller."""
        with self._lock:
            self._append(event)

    def add(
        self, values: Iterable[EncodedValue], step: int, *, wall_time: float | None = None
    ) -> None:
        """Append values at a step, each tag's metadata only with its first value in the file."""
        with self._lock:
            described: set[str] = set()
            once = []
            for value in values:
                if value.tag in self._described or value.tag in described:
                    once.append(value.bare())
                else:
                    once.append(value)
                    if value.metadata:
                        described.add(value.tag)
            event = encode.event(_or_now(wall_time), step, once)
            self._described |= described
            self._append(event)

    def flush(self) -> None:
        """Write what is buffered to the file, or raise `EventWriteError` and keep it."""
        with self._lock:
            if self._records:
                self._write_records()

    def close(self) -> None:
        """Flush and close; after an error the writer stays open, so that closing can be retried."""
        with self._lock:
            if self._closed:
                return
            self.flush()
            self._close_file()
            self._closed = True
            atexit.unregister(self.close)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    # Every kind of summary.

    def scalar(
        self,
        tag: str,
        number: float,
        step: int,
        *,
        dtype: str | None = None,
        wall_time: float | None = None,
    ) -> None:
        """Append a number; 32 bits of it unless `dtype` asks for a tensor of that type."""
        value = encode.scalar_tensor(tag, number, dtype) if dtype else encode.scalar(tag, number)
        self.add([value], step, wall_time=wall_time)

    def scalars(
        self, numbers: Mapping[str, float], step: int, *, wall_time: float | None = None
    ) -> None:
        """Append the numbers of several tags in one record."""
        values = [encode.scalar(tag, number) for tag, number in numbers.items()]
        self.add(values, step, wall_time=wall_time)

    def tensor(
        self,
        tag: str,
        array: npt.ArrayLike,
        step: int,
        *,
        plugin: str = "",
        wall_time: float | None = None,
    ) -> None:
        """Append an array for a plugin of your choice."""
        self.add([encode.tensor(tag, array, plugin=plugin)], step, wall_time=wall_time)

    def text(
        self, tag: str, text: str | Sequence[Any], step: int, *, wall_time: float | None = None
    ) -> None:
        """Append a text, or a table of texts, in Markdown."""
        self.add([encode.text(tag, text)], step, wall_time=wall_time)

    def histogram(
        self,
        tag: str,
        numbers: npt.ArrayLike,
        step: int,
        *,
        buckets: int = 30,
        wall_time: float | None = None,
    ) -> None:
        """Append the distribution of the finite numbers."""
        rows = encode.histogram_buckets(numbers, buckets)
        self.add([encode.histogram(tag, rows)], step, wall_time=wall_time)

    def images(
        self,
        tag: str,
        pictures: Sequence[npt.ArrayLike],
        step: int,
        *,
        wall_time: float | None = None,
    ) -> None:
        """Append pictures of one size, each `[height, width]` or `[height, width, channels]`."""
        sizes = {np.shape(picture)[:2] for picture in pictures}
        if len(sizes) != 1:
            raise ValueError(f"the images of a tag share one size, not {sorted(sizes)}")
        height, width = sizes.pop()
        encoded = [media.png(picture) for picture in pictures]
        self.add([encode.images(tag, encoded, width, height)], step, wall_time=wall_time)

    def audio(
        self,
        tag: str,
        clips: Sequence[npt.ArrayLike],
        step: int,
        *,
        rate: int,
        labels: Sequence[str] | None = None,
        wall_time: float | None = None,
    ) -> None:
        """Append audio clips, each `[frames]` or `[frames, channels]`."""
        wavs = [media.wav(clip, rate) for clip in clips]
        self.add([encode.audio(tag, wavs, labels)], step, wall_time=wall_time)

    def pr_curve(
        self, tag: str, curve: npt.ArrayLike, step: int, *, wall_time: float | None = None
    ) -> None:
        """Append a precision-recall curve of the six rows that `encode.pr_curve` names."""
        self.add([encode.pr_curve(tag, curve)], step, wall_time=wall_time)

    def mesh(
        self,
        tag: str,
        vertices: npt.ArrayLike,
        step: int,
        *,
        faces: npt.ArrayLike | None = None,
        colors: npt.ArrayLike | None = None,
        config: Mapping[str, Any] | None = None,
        wall_time: float | None = None,
    ) -> None:
        """Append a batch of meshes or point clouds."""
        self.add(encode.mesh(tag, vertices, faces, colors, config), step, wall_time=wall_time)

    def hparams(
        self, hparams: Mapping[str, HParam], *, group: str = "", wall_time: float | None = None
    ) -> None:
        """Append the hyperparameters of the run."""
        now = _or_now(wall_time)
        self.add([encode.hparams_start(hparams, group=group, start_time=now)], 0, wall_time=now)

    def graph(self, graph_def: bytes, *, wall_time: float | None = None) -> None:
        """Append the run's graph, a serialized `GraphDef`."""
        self.write(encode.graph(_or_now(wall_time), graph_def))

    # Records, and the file they go to.

    def _append(self, event: bytes) -> None:
        if self._closed:
            raise ValueError(f"the writer of {self.path} is closed")
        if not self._size and not self._records:
            self._buffer(encode.file_version(time.time(), self._writer))
        self._buffer(event)
        if self._max_bytes is not None and self._size + self._buffered >= self._max_bytes:
            self.flush()
            self._close_file()
        elif (
            self._buffered >= self._buffer_bytes
            or time.monotonic() - self._oldest >= self._flush_secs
        ):
            self.flush()

    def _buffer(self, event: bytes) -> None:
        if not self._records:
            self._oldest = time.monotonic()
        record = frame(event)
        self._records.append(record)
        self._buffered += len(record)

    def _begin_file(self) -> None:
        """Forget the file; the next flush creates another."""
        self._descriptor: int | None = None
        self._described: set[str] = set()
        self._records: list[bytes] = []
        self._buffered = 0
        self._size = 0

    def _write_records(self) -> None:
        descriptor = self._create_file() if self._descriptor is None else self._descriptor
        pending = memoryview(b"".join(self._records))
        written = 0
        try:
            while written < len(pending):
                written += os.pwrite(descriptor, pending[written:], self._size + written)
        except OSError as error:
            self._forget_written(written)
            with contextlib.suppress(OSError):  # the next flush overwrites what is left
                os.ftruncate(descriptor, self._size)
            raise self._failure(f"write to {self.path}", error) from error
        self._forget_written(written)

    def _failure(self, what: str, error: OSError) -> EventWriteError:
        count = len(self._records)
        kept = f"{count} record{'s are' if count != 1 else ' is'} kept for the next flush"
        return EventWriteError(error.errno, f"cannot {what}: {error.strerror}; {kept}")

    def _forget_written(self, written: int) -> None:
        """Drop the records that lie within the first `written` bytes of the buffer."""
        whole = 0
        kept = 0
        for record in self._records:
            if whole + len(record) > written:
                break
            whole += len(record)
            kept += 1
        del self._records[:kept]
        self._buffered -= whole
        self._size += whole

    def _create_file(self) -> int:
        descriptor = None
        try:
            self.directory.mkdir(parents=True, exist_ok=True)
            while descriptor is None:
                path = self._next_path()
                with contextlib.suppress(FileExistsError):
                    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o666)
        except OSError as error:
            raise self._failure(f"create an event file in {self.directory}", error) from error
        self.path = path
        self._descriptor = descriptor
        return descriptor

    def _next_path(self) -> Path:
        """Name a file that no other writer has and that sorts after the one before."""
        self._stamp = max(self._stamp, int(time.time()))
        number = next(_files_in_process)
        ending = f"{socket.gethostname()}.{os.getpid()}.{number:04}{self._suffix}"
        if self.path and self.path.name >= f"events.out.tfevents.{self._stamp:010}.{ending}":
            self._stamp += 1
        return self.directory / f"events.out.tfevents.{self._stamp:010}.{ending}"

    def _close_file(self) -> None:
        descriptor = self._descriptor
        self._begin_file()
        if descriptor is not None:
            os.close(descriptor)


def _or_now(wall_time: float | None) -> float:
    return time.time() if wall_time is None else wall_time
