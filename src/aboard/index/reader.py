"""The reading half of a refresh: threads scan files into batches.

A worker scans one file at a time and yields batches, so that the number of workers bounds memory.
A file that cannot be read yields its error. Nothing here touches the index.
"""

from __future__ import annotations

import os
import queue
import sys
import threading
import time
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import NamedTuple

from aboard.events.scanner import (
    Scanned,
    Scanner,
    Series,
    SmallFile,
    Taken,
    scan_blocks,
    scan_small_files,
)
from aboard.index.sources import Known, Reading
from aboard.storage.base import Storage, StorageError, is_remote

BLOCK = 1 << 20
_SMALLEST_BLOCK = 64 << 10
BATCH_VALUES = 120_000  # roughly 4 MB of columns
FEW_VALUES = 10_000  # in a batch of a file with more series than this: each series is costly
REMOTE_BATCH_VALUES = 60_000  # smaller, since more files are read at the same time
BATCH_BYTES = 64 << 20  # scanned for a batch at most, however few values they have
TAIL_BYTES = 256  # before the offset; unchanged if a file was appended to
COMPARED_BYTES = 256 << 10  # up to this size, all that was read is compared when a file has grown


SMALL_BYTES = 64 << 10  # largest file that is read completely, in one call with others
SMALL_FILES = 64  # files in such a call
SKETCHED = 64  # least values of a chunk whose sketch is stored; fewer are read just as fast


class Batch(NamedTuple):
    """A part of a file, ready to be stored."""

    reading: Reading
    taken: Taken
    series: Mapping[int, Series] | Sequence[Series]  # those with values, by number
    start: int
    offset: int  # once this batch is stored, everything before it is in the index
    tail: int
    digest: int
    damage_start: int
    first_wall: float | None  # of the first event of this reading
    values: int
    scanned: int  # bytes
    last: bool

    @property
    def weight(self) -> int:
        """Its memory in units of a value; a batch and a series take more than one."""
        return self.values + 8 * len(self.series) + 40


class SmallBatch(NamedTuple):
    """Complete small files, ready to be stored; each is new, or replaces a file."""

    readings: list[Reading]
    files: list[SmallFile]

    @property
    def weight(self) -> int:
        return sum([one.points + one.records + 8 * len(one.parts) + 40 for one in self.files])


Found = Batch | SmallBatch | StorageError


class _Download:
    """The rest of a file in a bucket, read in blocks from one request.

    If a request fails after it has returned bytes, another one continues from there.
    """

    def __init__(self, storage: Storage, name: str, start: int, size: int) -> None:
        self._storage = storage
        self._name = name
        self._size = size
        self._end = start  # of the last block
        self._part = memoryview(b"")
        self._last = b""  # its last bytes: the next block begins after its last complete record
        self._open(start)

    def readinto(self, offset: int, room: memoryview) -> int:
        again = self._end - offset
        if not 0 <= again <= min(len(self._last), len(room)):
            self._open(offset)
            again = 0
        room[:again] = self._last[len(self._last) - again :]
        done = again
        while done < len(room) and (self._part or self._receive()):
            part = self._part[: len(room) - done]
            self._part = self._part[len(part) :]
            room[done : done + len(part)] = part
            done += len(part)
        self._end = offset + done
        self._last = bytes(room[max(0, done - _OVERLAP) : done])
        return done

    def _open(self, offset: int) -> None:
        self._parts = self._storage.stream(self._name, offset, self._size)
        self._part = memoryview(b"")
        self._received = self._opened = offset

    def _receive(self) -> bool:
        while True:
            try:
                self._part = memoryview(next(self._parts, b""))
            except StorageError:
                if self._received == self._opened:
                    raise
                self._open(self._received)
            else:
                self._received += len(self._part)
                return len(self._part) > 0


class _Reader:
    """Reads one file, with one request if little is new."""

    def __init__(self, storage: Storage, name: str, size: int) -> None:
        self._storage = storage
        self._name = name
        self._size = size
        self._held = b""
        self._held_start = 0
        self._is_remote = is_remote(storage.uri)
        self.batch_values = REMOTE_BATCH_VALUES if self._is_remote else BATCH_VALUES
        self._download: _Download | None = None

    def hold(self, start: int, length: int) -> bytes:
        self._held = self._storage.read(self._name, start, min(start + length, self._size))
        self._held_start = start
        return self._held

    def readinto(self, offset: int, room: memoryview) -> int:
        begin = offset - self._held_start
        if self._held and begin >= 0 and begin + len(room) <= len(self._held):
            room[:] = self._held[begin : begin + len(room)]
            return len(room)
        self._held = b""
        if self._is_remote:
            if self._download is None:
                self._download = _Download(self._storage, self._name, offset, self._size)
            return self._download.readinto(offset, room)
        return self._storage.readinto(self._name, offset, room)

    def tail_before(self, offset: int, block: Scanned) -> int:
        """Return the checksum of the bytes before `offset`, without a request if possible."""
        first = max(0, offset - TAIL_BYTES)
        if first >= self._held_start and offset <= self._held_start + len(self._held):
            return zlib.crc32(self._held[first - self._held_start : offset - self._held_start])
        if first >= block.start and offset <= block.end:
            return zlib.crc32(block.content[first - block.start : offset - block.start])
        return zlib.crc32(self._storage.read(self._name, first, offset))


class Workspace:
    """The memory in which a thread reads files, one after the other."""

    def __init__(self, size: int) -> None:
        self.buffer = bytearray(size)
        self._scanner = Scanner()

    def scanner(self, known: Known | None, tags: Iterable[tuple[bytes, int]]) -> Scanner:
        if known is None:
            self._scanner.reset(known=tags)
        else:
            self._scanner.reset(known.damage_start, tags, known.digest)
        return self._scanner


def read_file(
    reading: Reading, workspace: Workspace, stopped: Callable[[], bool] = lambda: False
) -> Iterator[Batch]:
    """Scan what is new in a file; yield at least one batch.

    Raises:
        StorageError: the file cannot be read. Earlier batches remain valid.
    """
    reader = _Reader(reading.storage, reading.entry.name, reading.entry.size)
    buffer = workspace.buffer
    if not reading.fresh and not _is_continued(reading, reader, buffer):
        reading.fresh, reading.tags = True, ()
    scanner = workspace.scanner(None if reading.fresh else reading.known, reading.tags)
    stored = scanned = reading.start
    for block in scan_blocks(scanner, reader.readinto, stored, reading.entry.size, buffer):
        if stopped():
            return
        looked_at = block.end - scanned
        enough = reader.batch_values if scanner.series_count <= FEW_VALUES else FEW_VALUES
        if scanner.pending < enough and looked_at < BATCH_BYTES and not block.at_end:
            continue
        offset, damage_start = scanner.resume(block.reached)
        tail = reader.tail_before(offset, block)
        values, taken = scanner.pending, scanner.take()
        yield Batch(
            reading=reading,
            taken=taken,
            series=scanner.series_of(taken),
            start=stored,
            offset=offset,
            tail=tail,
            digest=scanner.digest,
            damage_start=damage_start,
            first_wall=scanner.first_wall,
            values=values,
            scanned=looked_at,
            last=block.at_end,
        )
        stored, scanned = offset, block.end


def read_small_files(
    readings: Sequence[Reading], workspace: Workspace, stopped: Callable[[], bool] = lambda: False
) -> list[Found]:
    """Scan small files; return a batch of them, and a batch or an error for each other one."""
    files = [(os.fsencode(one.uri), one.entry.size) for one in readings]
    scans = scan_small_files(files, SKETCHED)
    batch = SmallBatch([], [])
    found: list[Found] = [batch]
    for reading, scan in zip(readings, scans, strict=True):
        if scan is None:
            found += _guarded(reading, workspace, stopped)
        else:
            batch.readings.append(reading)
            batch.files.append(scan)
    return found


def _is_small(reading: Reading) -> bool:
    is_new = reading.fresh and not reading.tags
    return is_new and reading.entry.size <= SMALL_BYTES and reading.storage.has_paths


def _groups(readings: Sequence[Reading]) -> Iterator[list[Reading]]:
    """Yield the files that one worker reads together: small ones in groups, others alone.

    The largest come first, so that no worker starts a large one at the end.
    """
    small: list[Reading] = []
    for one in sorted(readings, key=lambda one: one.start - one.entry.size):
        if _is_small(one):
            small.append(one)
        else:
            yield [one]
    for start in range(0, len(small), SMALL_FILES):
        yield small[start : start + SMALL_FILES]


def _is_continued(reading: Reading, reader: _Reader, buffer: bytearray) -> bool:
    """Return whether the bytes before the offset are still the ones that were read.

    The last bytes before it are always checked, in the request that reads what follows. All bytes
    are compared if they are few, if the file was replaced or truncated or has an older time, and
    each time its size passes a power of two. So a growing file is compared about twice in total.
    """
    known = reading.known
    if known is None:
        return False
    is_short = known.offset <= COMPARED_BYTES
    first = 0 if is_short else known.offset - TAIL_BYTES
    held = reader.hold(first, known.offset - first + len(buffer))
    tail = held[max(0, known.offset - TAIL_BYTES) - first : known.offset - first]
    if zlib.crc32(tail) != known.tail:
        return False
    storage, entry = reading.storage, reading.entry
    was_read = known.version != ""  # to its end, without interruption
    is_doubtful = was_read and (
        storage.was_replaced(known.version, entry.version)
        or entry.size < known.size
        or entry.size.bit_length() > known.size.bit_length()
    )
    if not is_short and not is_doubtful:
        return True
    scanner = Scanner(digest_only=True)
    if is_short:
        content = memoryview(held)[: known.offset]
        reached = scanner.scan(content, 0, len(content))
        while scanner.again:
            reached = scanner.scan(content[reached:], reached, len(content))
    else:
        for _ in scan_blocks(scanner, reader.readinto, 0, known.offset, buffer):
            pass
    return scanner.digest == known.digest


_OVERLAP = 64 << 10  # kept from a block; most records are not larger
_INLINE_BYTES = 4 << 20  # less is read by the calling thread: starting workers would take longer

_WAITING_VALUES = 180_000  # read but not stored, at which workers begin to wait; half if remote

_DOWNLOADS = 16
_DOWNLOADED_BYTES = 32 << 20  # in memory, of all files that are read at the same time
_FILE_BYTES = 8 << 20  # at most for each file: its block and its values

_GATHER_SECS = 0.05  # wait for a quarter of the values that may wait, at most this long


@contextmanager
def reading(readings: Sequence[Reading]) -> Iterator[Iterator[list[Found]]]:
    remote = bool(readings) and is_remote(readings[0].storage.uri)
    total = sum(one.entry.size - one.start for one in readings)
    if total < _INLINE_BYTES and len(readings) < (2 if remote else 64):
        yield _one_by_one(readings)
        return
    if remote:
        sizes = [_weight(one) for one in readings]
        most = min(_DOWNLOADS, max(2, _DOWNLOADED_BYTES * len(sizes) // max(1, sum(sizes))))
    else:
        most = os.cpu_count() or 1
    with _Workers(readings, min(most, len(readings)), remote=remote) as workers:
        yield workers.results()


def _weight(reading: Reading) -> int:
    """Return roughly how many bytes of memory reading a file takes."""
    return min(reading.entry.size - reading.start, _FILE_BYTES)


def _one_by_one(readings: Sequence[Reading]) -> Iterator[list[Found]]:
    most = max([one.entry.size - one.start for one in readings], default=0)
    workspace = Workspace(min(max(most, _SMALLEST_BLOCK), BLOCK))
    for group in _groups(readings):
        yield from _read(group, workspace)


def _read(
    group: list[Reading], workspace: Workspace, stopped: Callable[[], bool] = lambda: False
) -> Iterator[list[Found]]:
    if _is_small(group[0]):
        yield read_small_files(group, workspace, stopped)
    else:
        yield from ([found] for found in _guarded(group[0], workspace, stopped))


def _guarded(
    reading: Reading, workspace: Workspace, stopped: Callable[[], bool] = lambda: False
) -> Iterator[Found]:
    try:
        yield from read_file(reading, workspace, stopped)
    except StorageError as error:
        yield error


def _weight_of(found: Sequence[Found]) -> int:
    return sum([one.weight for one in found if not isinstance(one, StorageError)])


class _Room:
    """A budget of values or bytes; a thread waits while it is used up."""

    def __init__(self, size: int) -> None:
        self._left = size
        self._changed = threading.Condition()
        self._open = False

    def take(self, size: int) -> None:
        with self._changed:
            self._changed.wait_for(lambda: self._open or self._left > 0)
            self._left -= size

    def give(self, size: int) -> None:
        with self._changed:
            self._left += size
            self._changed.notify_all()

    def open(self) -> None:
        with self._changed:
            self._open = True
            self._changed.notify_all()


class _Workers:
    """Threads that read files from a shared list into a bounded queue."""

    def __init__(self, readings: Sequence[Reading], count: int, *, remote: bool) -> None:
        self._todo = _groups(readings)
        self._lock = threading.Lock()
        self._done: queue.Queue[list[Found] | BaseException | None] = queue.Queue()
        waiting = _WAITING_VALUES // 2 if remote else _WAITING_VALUES
        self._room = _Room(waiting)
        self._enough = waiting // 4
        self._files = _Room(_DOWNLOADED_BYTES if remote else sys.maxsize)
        self._stop = False
        self._threads = [
            threading.Thread(target=self._work, name=f"aboard-read-{i}", daemon=True)
            for i in range(count)
        ]

    def __enter__(self) -> _Workers:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop = True
        self._room.open()
        self._files.open()
        for thread in self._threads:
            thread.join()

    def _next(self) -> list[Reading] | None:
        with self._lock:
            return None if self._stop else next(self._todo, None)

    def _work(self) -> None:
        workspace = Workspace(BLOCK)
        try:
            while (group := self._next()) is not None:
                weight = sum(map(_weight, group))
                self._files.take(weight)
                for found in _read(group, workspace, lambda: self._stop):
                    self._room.take(_weight_of(found))
                    self._done.put(found)
                    if self._stop:
                        return
                self._files.give(weight)
        except BaseException as error:  # noqa: BLE001 - carried to the thread that stores
            self._done.put(error)
        finally:
            self._done.put(None)

    def results(self) -> Iterator[list[Found]]:
        working = len(self._threads)
        while working:
            found: list[Found] = []
            weight = 0
            until = time.monotonic() + _GATHER_SECS
            while working and weight < self._enough:
                try:
                    item = self._done.get(
                        timeout=max(until - time.monotonic(), 0) if found else None
                    )
                except queue.Empty:
                    break
                if item is None:
                    working -= 1
                elif isinstance(item, BaseException):
                    raise item
                else:
                    found += item
                    weight += _weight_of(item)
            if found:
                yield found
                self._room.give(weight)
