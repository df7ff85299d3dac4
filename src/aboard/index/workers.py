"""Reading many files at once: threads that take them from a list into a short queue.

Memory is bounded by the number of workers and not by what there is to read. A
file that cannot be read is handed over as its error, and the others go on.
"""

from __future__ import annotations

import os
import queue
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

from aboard.index.plan import Reading
from aboard.index.reading import LOCAL_BLOCK, REMOTE_BLOCK, Batch, read_file
from aboard.storage.base import StorageError
from aboard.storage.uri import is_remote

_INLINE_BYTES = 4 << 20
"""Less than this is read by the calling thread: starting others would take longer."""

_WAITING_VALUES = 180_000
"""Values that were read and not stored yet, at which workers begin to wait."""

_ENOUGH_VALUES = 20_000
_GATHER_SECS = 0.05
"""So many values are worth a transaction, and no fewer are stored at once for so long."""

Found = Batch | StorageError


@contextmanager
def reading(readings: Sequence[Reading]) -> Iterator[Iterator[list[Found]]]:
    """Begin to read files; give what is ready, some batches at a time."""
    remote = bool(readings) and is_remote(readings[0].storage.uri)
    total = sum(one.entry.size - one.start for one in readings)
    block = REMOTE_BLOCK if remote else LOCAL_BLOCK
    if total < _INLINE_BYTES and len(readings) < (2 if remote else 64):
        yield _one_by_one(readings, block)
        return
    count = min(16 if remote else os.cpu_count() or 1, len(readings))
    with _Workers(readings, count, block) as workers:
        yield workers.results()


def _one_by_one(readings: Sequence[Reading], block: int) -> Iterator[list[Found]]:
    buffer = bytearray(block)
    for one in readings:
        for found in _guarded(one, buffer):
            yield [found]


def _guarded(
    reading: Reading, buffer: bytearray, stopped: Callable[[], bool] = lambda: False
) -> Iterator[Found]:
    try:
        yield from read_file(reading, buffer, stopped)
    except StorageError as error:
        yield error


class _Room:
    """Room for a number of values; whoever finds none left waits."""

    def __init__(self, values: int) -> None:
        self._left = values
        self._changed = threading.Condition()
        self._open = False

    def take(self, values: int) -> None:
        """Take some room as soon as there is any left."""
        with self._changed:
            self._changed.wait_for(lambda: self._open or self._left > 0)
            self._left -= values

    def give(self, values: int) -> None:
        """Give room back."""
        with self._changed:
            self._left += values
            self._changed.notify_all()

    def open(self) -> None:
        """Let everybody through from now on."""
        with self._changed:
            self._open = True
            self._changed.notify_all()


class _Workers:
    """Threads that read files from a shared list into a queue of bounded content."""

    def __init__(self, readings: Sequence[Reading], count: int, block: int) -> None:
        # The largest first, so that no worker is left alone with one at the end.
        ordered = sorted(readings, key=lambda one: one.start - one.entry.size)
        self._todo = iter(ordered)
        self._lock = threading.Lock()
        self._done: queue.Queue[Found | BaseException | None] = queue.Queue()
        self._room = _Room(_WAITING_VALUES)
        self._stop = False
        self._block = block
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
        for thread in self._threads:
            thread.join()

    def _next(self) -> Reading | None:
        with self._lock:
            return None if self._stop else next(self._todo, None)

    def _work(self) -> None:
        buffer = bytearray(self._block)
        try:
            while (reading := self._next()) is not None:
                for found in _guarded(reading, buffer, lambda: self._stop):
                    if isinstance(found, Batch):
                        self._room.take(found.values)
                    self._done.put(found)
                    if self._stop:
                        return
        except BaseException as error:  # noqa: BLE001 - carried to the thread that stores
            self._done.put(error)
        finally:
            self._done.put(None)

    def results(self) -> Iterator[list[Found]]:
        """Yield what the workers found, all that is ready at a time."""
        working = len(self._threads)
        while working:
            found: list[Found] = []
            values = 0
            until = time.monotonic() + _GATHER_SECS
            while working and values < _ENOUGH_VALUES:
                try:
                    item = self._done.get(
                        timeout=max(until - time.monotonic(), 0) if found else None
                    )
                except queue.Empty:
                    break
                if item is None:
                    working -= 1
                elif isinstance(item, (Batch, StorageError)):
                    found.append(item)
                    values += item.values if isinstance(item, Batch) else 0
                else:
                    raise item
            if found:
                yield found
                self._room.give(values)
