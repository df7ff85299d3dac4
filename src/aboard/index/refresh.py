"""Bringing the index up to date with a source: plan, read in parallel, store.

The calling thread stores; workers read. They meet in a short queue, so memory is
bounded by the number of workers and not by what there is to read. A file that
cannot be read is a problem to report, and the others go on.
"""

from __future__ import annotations

import os
import queue
import sqlite3
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

from aboard.index.plan import Plan, Reading, Source, make_plan
from aboard.index.reading import LOCAL_BLOCK, REMOTE_BLOCK, Batch, read_file
from aboard.index.store import Store
from aboard.storage.base import StorageError
from aboard.storage.uri import is_remote

_INLINE_BYTES = 4 << 20
"""Less than this is read by the calling thread: starting others would take longer."""
_ATTEMPTS = 5


@dataclass(slots=True)
class Report:
    """What a refresh did."""

    files_read: int = 0
    files_unchanged: int = 0
    files_gone: int = 0
    bytes_total: int = 0
    bytes_read: int = 0
    events: int = 0
    points: int = 0
    records: int = 0
    seconds: float = 0.0
    problems: list[StorageError] = field(default_factory=list)

    def add(self, batch: Batch) -> None:
        """Count a batch that was stored."""
        self.files_read += batch.last
        self.bytes_read += batch.scanned
        self.events += batch.taken.events
        self.points += len(batch.taken.points.series)
        self.records += int((batch.taken.pointers.series >= 0).sum())


Progress = Callable[[Report], None]


def refresh(
    connection: sqlite3.Connection,
    source: Source,
    *,
    anew: bool = False,
    progress: Progress | None = None,
) -> Report:
    """Read what is new in a source and store it.

    Args:
        connection: the index; only this thread may write through it meanwhile.
        source: what to read.
        anew: read everything again.
        progress: is called, in this thread, whenever something was stored.

    Raises:
        StorageError: the source itself cannot be listed.
    """
    report = Report()
    started = time.monotonic()
    for _ in range(_ATTEMPTS):
        plan = make_plan(connection, source, anew=anew)
        report.files_unchanged = plan.unchanged
        report.problems += plan.problems
        report.bytes_total += sum(one.entry.size - one.start for one in plan.readings)
        store = Store(connection)
        if plan.gone:
            store.forget(plan.gone)
            report.files_gone += len(plan.gone)
        _read_and_store(plan, store, report, progress)
        # Another process was reading the same files: see what is left to do.
        if not store.outrun:
            break
        anew = False
    report.seconds = time.monotonic() - started
    return report


def _read_and_store(plan: Plan, store: Store, report: Report, progress: Progress | None) -> None:
    if not plan.readings:
        return
    for found in _batches(plan.readings):
        report.problems += [item for item in found if isinstance(item, StorageError)]
        batches = [item for item in found if isinstance(item, Batch)]
        store.put(batches)
        for batch in batches:
            report.add(batch)
        if progress:
            progress(report)


_Found = Batch | StorageError


def _batches(readings: Sequence[Reading]) -> Iterator[list[_Found]]:
    """Read all files; yield what is ready, a few batches at a time."""
    remote = is_remote(readings[0].storage.uri)
    total = sum(one.entry.size - one.start for one in readings)
    workers = min(16 if remote else os.cpu_count() or 1, len(readings))
    block = REMOTE_BLOCK if remote else LOCAL_BLOCK
    if workers < 2 or (total < _INLINE_BYTES and not remote and len(readings) < 64):
        buffer = bytearray(block)
        for one in readings:
            for found in _guarded(one, buffer):
                yield [found]
        return
    with _Workers(readings, workers, block) as pool:
        yield from pool.results()


def _guarded(reading: Reading, buffer: bytearray) -> Iterator[_Found]:
    try:
        yield from read_file(reading, buffer)
    except StorageError as error:
        yield error


class _Workers:
    """Threads that read files from a shared list into a short queue."""

    def __init__(self, readings: Sequence[Reading], count: int, block: int) -> None:
        # The largest first, so that no worker is left alone with one at the end.
        ordered = sorted(readings, key=lambda one: one.start - one.entry.size)
        self._todo = iter(ordered)
        self._lock = threading.Lock()
        self._done: queue.Queue[_Found | BaseException | None] = queue.Queue(maxsize=count)
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
        for thread in self._threads:
            while thread.is_alive():
                self._drain()
                thread.join(0.01)

    def _drain(self) -> None:
        try:
            while True:
                self._done.get_nowait()
        except queue.Empty:
            pass

    def _next(self) -> Reading | None:
        with self._lock:
            return None if self._stop else next(self._todo, None)

    def _work(self) -> None:
        buffer = bytearray(self._block)
        try:
            while (reading := self._next()) is not None:
                for found in _guarded(reading, buffer):
                    self._done.put(found)
                    if self._stop:
                        return
        except BaseException as error:  # noqa: BLE001 - carried to the thread that stores
            self._done.put(error)
        finally:
            self._done.put(None)

    def results(self) -> Iterator[list[_Found]]:
        """Yield what the workers found, all that is ready at a time."""
        working = len(self._threads)
        while working:
            ready = [self._done.get()]
            while not self._done.empty():
                ready.append(self._done.get_nowait())
            found: list[_Found] = []
            for item in ready:
                if item is None:
                    working -= 1
                elif isinstance(item, (Batch, StorageError)):
                    found.append(item)
                else:
                    raise item
            if found:
                yield found
