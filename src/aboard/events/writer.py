"""The event writer: queues what a training loop logs, and writes it in the background.

An `Outbox` encodes records, and `files` writes them atomically. One thread per process flushes
every writer in time, and never keeps the process alive. At exit all writers are closed, and a
forked child starts without its parent's records.
"""

from __future__ import annotations

import atexit
import math
import os
import re
import sys
import threading
import time
import weakref
from collections import deque
from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from itertools import islice, takewhile
from pathlib import Path
from typing import Any, NamedTuple, Self, SupportsFloat, cast

import numpy.typing as npt

from aboard.events import encode
from aboard.events.encode import EncodedValue
from aboard.events.files import EventFiles
from aboard.events.records import ends, frame
from aboard.system import Backoff, compiled, is_fuse

MIB = 1 << 20

_FUSE_MAX_BYTES = 16 * MIB
_SECONDS_PER_FILE = 10.0
_FIRST_BACKOFF, _LONGEST_BACKOFF = 1.0, 30.0
_SCALAR_BYTES = 48  # approximately, in a file
_QUEUED_BYTES = 256  # approximately, in the queue
_MIN_STEP, _MAX_STEP = -(1 << 63), (1 << 63) - 1


Scalars = tuple[str | tuple[str, ...], float | tuple[float, ...], int, float]
"""A tag and its number, or as many tags as numbers, then step and wall time: one record."""


class Values(NamedTuple):
    values: Sequence[EncodedValue]
    step: int
    wall_time: float


Entry = Scalars | Values | bytes  # becomes one record; bytes are a serialized `Event`


class EventWriteError(OSError):
    """An event file could not be written; the records are kept for the next flush."""


class EventWriter:
    """Append events to a new file in a log directory.

    A background thread, shared by all writers of the process, writes what was logged within
    `flush_secs` (0: each call writes itself), or as soon as about `buffer_bytes` are queued. A
    process that is killed loses no more than that; one that exits closes its writers. A file that
    reaches `max_bytes` is followed by another, whose name sorts after it and which can be read
    without it: the first value of each tag repeats its metadata. Writers are thread-safe. A forked
    child that logs with a writer of its parent gets its own file.

    If a file cannot be written, the records are kept and written later, also in the background
    (after a second, then with increasing delays of up to 30 seconds). More than about `keep_bytes`
    are not kept: then the newest are dropped. The error is raised by the call that met it or, if it
    occurred in the background, by the next call. With `on_error` no call raises it. Instead
    `on_error` is called with it, in the thread that met it, when a problem begins, changes, or
    begins to cost records; `on_recovered` is called with the number of dropped records after all
    kept records are written. `close` then returns even if writing fails, and the background keeps
    trying until the process exits.

    Mounted buckets (FUSE file systems) show a file only once it is closed. It is closed there after
    each flush and opened again to append, and `max_bytes` is 16 MiB by default, since many upload
    the complete file each time. If the mount refuses to append, each flush makes a separate file,
    and the background makes one at most every 10 seconds. `close_after_flush` overrides the
    detection of such mounts.

    `purge_step` is the step from which an interrupted run continues: TensorBoard drops its earlier
    points from this step on. The names of the files sort after those in the directory, and after
    any made until the second `after`.
    """

    def __init__(
        self,
        directory: str | os.PathLike[str],
        *,
        flush_secs: float = 1.0,
        buffer_bytes: int = 256 * 1024,
        max_bytes: int | None = None,
        keep_bytes: int = 64 * MIB,
        suffix: str = "",
        writer: str = encode.WRITER,
        purge_step: int | None = None,
        close_after_flush: bool | None = None,
        after: int = 0,
        on_error: Callable[[EventWriteError], object] | None = None,
        on_recovered: Callable[[int], object] | None = None,
    ) -> None:
        self.directory = _checked(directory)
        _check_least(0, flush_secs=flush_secs, buffer_bytes=buffer_bytes, keep_bytes=keep_bytes)
        if max_bytes is not None:
            _check_least(1, max_bytes=max_bytes)
        if close_after_flush is None:
            close_after_flush = is_fuse(self.directory)
        if close_after_flush and max_bytes is None:
            max_bytes = _FUSE_MAX_BYTES
        self._files = EventFiles(
            self.directory,
            suffix=suffix,
            header=lambda: frame(encode.file_version(time.time(), writer)),
            closes=close_after_flush,
            after=after,
        )
        self._flush_secs = flush_secs
        self._buffer_bytes = buffer_bytes
        self._max_bytes = max_bytes
        self._keep_bytes = keep_bytes
        self._on_error = on_error
        self._on_recovered = on_recovered
        self._tags: set[str] = set()
        self._closed = False  # nothing more can be logged
        self._sealed = False  # nothing more is taken from the queue
        self._done = False  # everything is written
        self._begin()
        try:
            self._files.open()
        except OSError as error:
            failure = self._failure(error)
            if not on_error:
                raise failure from error
            self._report_failure(error, failure)
        _writers.add(self)
        _close_at_exit()
        if purge_step is not None:
            self.write(encode.session_start(time.time(), purge_step))

    def _begin(self) -> None:
        self._lock = threading.RLock()
        self._queue: deque[Entry] = deque()
        self._weight = 0  # approximate bytes queued, without single scalars
        self._trigger = 0 if self._closed else 1
        self._weight_trigger = self._buffer_bytes  # at either trigger, `_schedule_flush` is called
        self._outbox = Outbox(self._files, self._max_bytes, self._keep_bytes)
        self._busy = False
        self._failed: EventWriteError | None = None  # in the background; the next call raises it
        self._problem: tuple[int | None, bool] | None = None  # errno, whether dropping
        self._dropped_before = 0
        self._backoff = Backoff(_FIRST_BACKOFF, _LONGEST_BACKOFF)

    @property
    def path(self) -> Path | None:
        """The current file; None before the first one is created."""
        return self._files.path

    @property
    def dropped(self) -> int:
        """The number of records dropped because nothing could be written for too long."""
        return self._outbox.dropped

    @property
    def waiting(self) -> int:
        """The number of records not yet in a file."""
        return len(self._outbox) + len(self._queue)

    def write(self, event: bytes) -> None:
        """Append a serialized `Event` unchanged; the caller adds the metadata of tags."""
        self._enqueue(bytes(event), len(event))

    def add(
        self, values: Iterable[EncodedValue], step: int, *, wall_time: float | None = None
    ) -> None:
        """Append values at a step; a tag's metadata is written with its first value in the file."""
        entry = Values(list(values), encode.step_number(step), _or_now(wall_time))
        self._enqueue(entry, sum([len(value.fields) for value in entry.values]))

    def flush(self) -> None:
        """Write what is buffered to the file, or raise `EventWriteError` and keep it."""
        with self._lock:
            error = self._attempt(self._post)
            self._failed = None
            if error and not self._on_error:
                raise error

    def close(self) -> None:
        """Flush and close; after an error the writer stays open, so that closing can be retried."""
        with self._lock:
            if self._done or self._busy:
                return
            self.flush()
            self._closed = True  # for other threads, whose last records are written below
            self.flush()
            self._sealed = True
            if len(self._outbox):
                return
            self._done = True
            _writers.discard(self)
            if (error := self._attempt(self._files.finish)) and not self._on_error:
                raise error

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def scalar(
        self,
        tag: str,
        number: SupportsFloat,
        step: int,
        *,
        dtype: str | None = None,
        wall_time: float | None = None,
    ) -> None:
        """Append a number, as float32 unless `dtype` is given."""
        if dtype:
            value = encode.scalar_tensor(tag, cast(npt.ArrayLike, number), dtype)
            self.add([value], step, wall_time=wall_time)
            return
        if tag not in self._tags:
            self._learn(tag)
        if type(number) is not float:
            number = _number(tag, number)
        if type(step) is not int or not _MIN_STEP <= step <= _MAX_STEP:
            step = encode.step_number(step)
        now = time.time() if wall_time is None else float(wall_time)
        queue = self._queue
        queue.append((tag, number, step, now))
        if len(queue) >= self._trigger:
            self._schedule_flush()

    def scalars(
        self, numbers: Mapping[str, SupportsFloat], step: int, *, wall_time: float | None = None
    ) -> None:
        """Append the numbers of several tags in one record."""
        if len(numbers) == 1:
            [(tag, number)] = numbers.items()
            self.scalar(tag, number, step, wall_time=wall_time)
            return
        tags = tuple(numbers)
        if not self._tags.issuperset(tags):
            for tag in tags:
                self._learn(tag)
        floats: tuple[Any, ...] = tuple(numbers.values())
        if {*map(type, floats)} != {float}:
            floats = tuple(map(_number, tags, floats))
        entry = (tags, floats, encode.step_number(step), _or_now(wall_time))
        self._enqueue(entry, _SCALAR_BYTES * len(tags))

    # The queue. Other threads append to it at any time without the lock.

    def _learn(self, tag: str) -> None:
        """Check a new tag before it is queued; later it could not be refused."""
        if not isinstance(tag, str):
            raise TypeError(f"tag must be a string, not {type(tag).__name__}: {tag!r:.60}")
        tag.encode()
        self._tags.add(tag)

    def _enqueue(self, entry: Entry, weight: int) -> None:
        self._queue.append(entry)
        self._weight += weight
        if len(self._queue) >= self._trigger or self._weight >= self._weight_trigger:
            self._schedule_flush()

    def _schedule_flush(self) -> None:
        """Schedule a flush: the queue has its first entry or is full, or raise a pending error."""
        if self._closed:
            with self._lock:
                self._queue.clear()
            raise ValueError(f"the writer of {self.path} is closed")
        count, weight = len(self._queue), self._weight
        full = max(1, self._buffer_bytes // _SCALAR_BYTES)
        flood = max(full, self._keep_bytes // _QUEUED_BYTES)
        if self._flush_secs <= 0 or count >= flood or weight >= self._keep_bytes:
            self.flush()
            return
        is_full = count >= full or weight >= self._buffer_bytes
        # Set these first, since the flush resets them.
        self._trigger = flood if is_full else full
        self._weight_trigger = self._keep_bytes if is_full else self._buffer_bytes
        try:
            delay = self._delay(0.0 if is_full else self._flush_secs)
            scheduled = _schedule(self, delay)
        except BaseException:  # an interrupt: the next entry tries again
            self._trigger = 1
            raise
        if not scheduled:
            self.flush()
        error, self._failed = self._failed, None
        if error:
            raise error

    def _delay(self, seconds: float) -> float:
        seconds = max(seconds, self._backoff.delay)
        return seconds if self._files.appends else max(seconds, _SECONDS_PER_FILE)

    def _flush_in_background(self) -> None:
        with self._lock:
            if self._backoff.delay:
                self._backoff.grow()
            error = self._attempt(self._post)
            if error and not self._on_error:
                self._failed = error
                self._trigger = 0
            elif self._closed:
                self.close()

    def _forget(self) -> None:
        self._begin()
        self._files.forget()

    # From the queue to the files, under the lock.

    def _post(self) -> None:
        # Reset these first: what is queued from now on needs another flush.
        self._trigger = 0 if self._closed else 1
        self._weight_trigger = self._buffer_bytes
        if not self._sealed:
            self._outbox.take(self._queue)
        self._weight = 0
        if self._problem and not (self.path or len(self._outbox)):
            self._files.open()  # check whether the problem persists
        else:
            self._outbox.post()

    def _attempt(self, action: Callable[[], None]) -> EventWriteError | None:
        """Run an action on the files; report an error to the callbacks, and return it."""
        if self._busy:  # a signal handler has interrupted this thread
            return None
        self._busy = True
        try:
            action()
        except OSError as error:
            failure = self._failure(error)
            failure.__cause__ = error
            self._report_failure(error, failure)
            return failure
        finally:
            self._busy = False
        self._backoff.reset()
        if self._problem and self.path:  # a directory without a file proves nothing
            self._problem = None
            lost, self._dropped_before = self.dropped - self._dropped_before, self.dropped
            if self._on_recovered:
                self._on_recovered(lost)
        return None

    def _report_failure(self, error: OSError, failure: EventWriteError) -> None:
        if not self._backoff.delay:
            self._backoff.grow()
        if not self._done:
            _schedule(self, self._delay(self._flush_secs))
        problem = (error.errno, self._outbox.dropping)
        is_new, self._problem = problem != self._problem, problem
        if is_new and self._on_error:
            self._on_error(failure)

    def _failure(self, error: OSError) -> EventWriteError:
        text = f"cannot {self._files.doing}: {error.strerror}"
        if count := len(self._outbox):
            text += f"; {count} record{'s are' if count != 1 else ' is'} kept for the next flush"
        if lost := self.dropped - self._dropped_before:
            text += f"; newer ones are dropped until it succeeds ({lost} so far)"
        return EventWriteError(error.errno, text)


def _checked(directory: str | os.PathLike[str]) -> Path:
    """Refuse a URI, which would become a directory `s3:`; a Path of a URI has a single slash."""
    text = os.fspath(directory)
    if re.match(r"[A-Za-z][A-Za-z0-9+.-]+:/", text):
        hint = "aboard.init and aboard.SummaryWriter write to buckets"
        raise ValueError(f"EventWriter writes to a directory, not to a URI ({text}); {hint}")
    return Path(text)


def _check_least(least: int, **options: float) -> None:
    for name, value in options.items():
        if not value >= least:
            raise ValueError(f"{name} must be at least {least}, not {value}")


def _number(tag: str, number: SupportsFloat) -> float:
    try:
        if not isinstance(number, str | bytes | bytearray):
            return float(number)
    except OverflowError:  # an integer beyond float64: infinite, as after a cast
        return math.inf if number > 0 else -math.inf  # type: ignore[operator]
    except (TypeError, ValueError):
        pass
    raise TypeError(f"the value of {tag!r} is not a number: {number!r:.60}")


def _or_now(wall_time: float | None) -> float:
    return time.time() if wall_time is None else float(wall_time)


# From the queue to the files; the C core or its Python twin encodes successive scalars in one call.


def python_records(entries: Sequence[object], start: int, /) -> tuple[bytes, int]:
    """Frame the scalars from `start` to the next entry of another kind; return also its index."""
    records = []
    stop = start
    for entry in entries[start:]:
        if not isinstance(entry, tuple) or len(entry) != 4:
            break
        tags, numbers, step, wall_time = entry
        if isinstance(tags, str):
            tags, numbers = (tags,), (numbers,)
        values = map(encode.scalar, tags, numbers)
        records.append(frame(encode.event(wall_time, step, values)))
        stop += 1
    return b"".join(records), stop


_encoder = compiled("aboard.events._encoder")
scalar_records: Callable[[Sequence[object], int], tuple[bytes, int]] = (
    _encoder.records if _encoder else python_records
)


def values_record(entry: Values, described: Container[str]) -> tuple[bytes, set[str]]:
    """Frame values, with metadata of tags not in `described`; return also the new such tags."""
    now: set[str] = set()
    once = []
    for value in entry.values:
        once.append(value.bare() if value.tag in described or value.tag in now else value)
        if value.metadata:
            now.add(value.tag)
    return frame(encode.event(entry.wall_time, entry.step, once)), now


_NO_ENTRY = object()


class _Stock(NamedTuple):
    """The state of the outbox. Replaced, never changed: an interrupt sees no partial step."""

    entries: list[Entry]  # taken from the queue; before `at` they are encoded
    at: int
    records: bytearray  # past `end` is what an interrupt left, to be encoded again
    base: int
    end: int  # where `records` begins and ends in the stream of all records
    total: int  # records in that stream
    dropped: int
    dropping: bool


class Outbox:
    """Between a writer's queue and its files: encodes entries, and writes records.

    It splits the stream into files by size, and keeps records that cannot be written, up to a
    bound; then it drops the newest ones, so that there are no gaps. An interrupt at any point loses
    and repeats nothing.
    """

    def __init__(self, files: EventFiles, max_bytes: int | None, keep_bytes: int) -> None:
        self._files = files
        self._max_bytes = max_bytes  # then another file follows; a failure may make it longer
        self._keep_bytes = keep_bytes  # while nothing can be written
        self._stock = _Stock([], 0, bytearray(), files.taken, files.taken, 0, 0, False)
        self._written = (files.taken, 0)
        """A position in the stream, at or before what is written, and the records before it."""
        self._described: set[str] = set()  # tags whose metadata is in the file, or will be

    def __len__(self) -> int:
        stock = self._stock
        return stock.total - self._count_written() + len(stock.entries) - stock.at

    @property
    def dropped(self) -> int:
        return self._stock.dropped

    @property
    def dropping(self) -> bool:
        return self._stock.dropping and self._left() > 0

    def take(self, queue: deque[Entry]) -> None:
        # One atomic call: each entry is always in one place or the other.
        self._stock.entries.extend(islice(iter(queue.popleft, _NO_ENTRY), len(queue)))

    def post(self) -> None:
        """Encode what was taken and write it after what is kept; on an OSError, keep or drop it."""
        is_gone = self._files.is_gone
        if is_gone or self._files.closes:
            self._described.clear()  # the next records may begin a file
        if is_gone:
            self._files.finish()
        failed = self._try(self._stop()) if self._left() else None
        while self._stock.at < len(self._stock.entries):
            self._encode(self._room() if failed else None)
            while not failed and (cut := self._full_at()):
                failed = self._try(cut)
        if self._left() and not failed:
            failed = self._try(self._stop())
        self._tidy()
        if failed:
            raise failed

    def _encode(self, room: int | None) -> None:
        """Encode the next entries; drop those for which there is no room."""
        stock = self._stock
        entry = stock.entries[stock.at]
        described: set[str] = set()
        after = stock.at + 1
        if isinstance(entry, bytes):
            records = frame(entry)
        elif isinstance(entry, Values):
            records, described = values_record(entry, self._described)
        else:
            records, after = scalar_records(stock.entries, stock.at)
        size, count, lost = len(records), after - stock.at, 0
        if room is not None and size > room:
            fitting = list(takewhile(lambda end: end <= room, ends(records)))
            size = fitting[-1] if fitting else 0
            count, lost = len(fitting), count - len(fitting)
            described = set()
        del stock.records[stock.end - stock.base :]
        stock.records.extend(records[:size])
        self._stock = stock._replace(
            at=after,
            end=stock.end + size,
            total=stock.total + count,
            dropped=stock.dropped + lost,
            dropping=self.dropping or lost > 0,
        )
        self._described |= described

    def _room(self) -> int:
        return 0 if self.dropping else max(0, self._keep_bytes - self._left())

    def _left(self) -> int:
        return self._stock.end - self._files.taken

    def _start(self) -> int:
        return self._files.taken - self._stock.base

    def _stop(self) -> int:
        return self._stock.end - self._stock.base

    def _full_at(self) -> int:
        """Return the end of the record that completes the file, or 0 if none does."""
        if self._max_bytes is None or self._files.size + self._left() < self._max_bytes:
            return 0
        start = self._start()
        least = start + self._max_bytes - self._files.size
        found = ends(self._stock.records, start, self._stop())
        return next((end for end in found if end >= least), 0)

    def _try(self, cut: int) -> OSError | None:
        try:
            self._files.write(self._stock.records, self._start(), cut)
            if self._max_bytes is not None and self._files.size >= self._max_bytes:
                self._described.clear()
                self._files.finish()
        except OSError as error:
            return error
        return None

    def _tidy(self) -> None:
        """Drop the encoded entries, and the written records once they are the greater part."""
        self._count_written()
        stock = self._stock
        start, stop = self._start(), self._stop()
        if start * 2 >= stop:
            stock = stock._replace(records=stock.records[start:stop], base=stock.base + start)
        self._stock = stock._replace(entries=stock.entries[stock.at :], at=0)

    def _count_written(self) -> int:
        stock, taken = self._stock, self._files.taken
        place, count = self._written
        if taken == stock.end:
            count = stock.total
        else:
            count += sum(1 for _ in ends(stock.records, place - stock.base, taken - stock.base))
        self._written = (taken, count)
        return count


# The thread that flushes every writer in time, and the exit of the process.


class _Flusher:
    """The thread, and when to flush which writer."""

    def __init__(self) -> None:
        self._changed = threading.Condition()  # re-entrant: a signal handler may log as well
        self._deadlines: dict[EventWriter, float] = {}
        self._thread: threading.Thread | None = None

    def schedule(self, writer: EventWriter, seconds: float) -> bool:
        at = time.monotonic() + seconds
        with self._changed:
            if at < self._deadlines.get(writer, float("inf")):
                self._changed.notify()  # first: an interrupt after the entry would leave it unseen
                self._deadlines[writer] = at
            if self._thread is None:
                return self._start()
        return True

    def _start(self) -> bool:
        thread = threading.Thread(target=self._run, name="aboard-flush", daemon=True)
        try:
            thread.start()
        except RuntimeError:  # the interpreter is shutting down, or there are too many threads
            self._deadlines.clear()
            return False
        self._thread = thread
        return True

    def _run(self) -> None:
        try:
            while True:
                self._next()._flush_in_background()
        finally:  # a user's callback has raised; continue with the other writers
            with self._changed:
                self._thread = None
                if self._deadlines:
                    self._start()

    def _next(self) -> EventWriter:
        with self._changed:
            while True:
                if not self._deadlines:
                    self._changed.wait()
                    continue
                writer, at = min(self._deadlines.items(), key=lambda item: item[1])
                remaining = at - time.monotonic()
                if remaining <= 0:
                    del self._deadlines[writer]
                    return writer
                self._changed.wait(min(remaining, threading.TIMEOUT_MAX))


_flusher = _Flusher()
_writers: weakref.WeakSet[EventWriter] = weakref.WeakSet()
_closing_in: int | None = None  # the process that closes its writers at exit


def _schedule(writer: EventWriter, seconds: float) -> bool:
    """Flush a writer in the background within `seconds`; False if no thread can be started."""
    _close_at_exit()
    return _flusher.schedule(writer, seconds)


def _close_at_exit() -> None:
    """Close all writers at exit, also in a child of `multiprocessing`, which skips `atexit`."""
    global _closing_in  # noqa: PLW0603 - a fact about the process, as are the writers
    if _closing_in == os.getpid():
        return
    _closing_in = os.getpid()
    multiprocessing = sys.modules.get("multiprocessing.process")
    if multiprocessing and multiprocessing.parent_process():
        # Not documented: checked with Python 3.11 by tests/events/test_flushing.py.
        from multiprocessing.util import Finalize

        Finalize(None, _close_all, exitpriority=0)


def _close_all() -> None:
    for writer in list(_writers):
        try:
            writer.close()
        except OSError as error:
            sys.stderr.write(f"aboard: {error}\n")


def _after_fork() -> None:
    global _flusher  # noqa: PLW0603 - its lock may be held, and its thread is not in the child
    _flusher = _Flusher()
    for writer in list(_writers):
        writer._forget()


os.register_at_fork(after_in_child=_after_fork)
# Registered at import, so that it is called last: other exit handlers may still log.
atexit.register(_close_all)
