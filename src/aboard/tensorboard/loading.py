"""TensorBoard's own loader of events, made to stop when told and to notice replaced files.

What it reads is kept in memory, sampled as TensorBoard samples, and only ever added
to. A run of which a file was replaced or deleted is read from the start again.
"""

from __future__ import annotations

import logging
import os
import threading
import zlib
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from aboard.events import protos
from aboard.index.plan import EVENT_FILE
from aboard.index.reading import TAIL_BYTES

protos.keep_tensorflow_out()

from tensorboard.backend.event_processing import (  # noqa: E402
    data_ingester,
    directory_watcher,
    plugin_event_multiplexer,
)

_logger = logging.getLogger(__name__)


class Seen(NamedTuple):
    """An event file as it was at the last look."""

    inode: int
    changed: int
    size: int
    tail: int
    """A checksum of the bytes before `size`."""


class RunLoader(plugin_event_multiplexer.EventMultiplexer):  # type: ignore[misc]
    """Reads the events of runs, each time from where it stopped.

    Args:
        samples: how many values of each plugin's series are kept; 0 keeps all.

    Attributes:
        changes: how often a run was read or forgotten.
    """

    def __init__(self, samples: Mapping[str, int]) -> None:
        super().__init__(
            size_guidance=data_ingester.DEFAULT_SIZE_GUIDANCE,
            tensor_size_guidance={**data_ingester.DEFAULT_TENSOR_SIZE_GUIDANCE, **samples},
            # However old its events are, a file may grow; one that does not is not opened.
            event_file_active_filter=lambda _: True,
        )
        self.changes = 0
        self._stopped = threading.Event()
        self._seen: dict[str, dict[str, Seen]] = {}
        self._read: set[str] = set()

    def stop(self) -> None:
        """Let a reading in another thread end after the event it is at."""
        self._stopped.set()

    def load(self, paths: Mapping[str, str], read: Callable[[int], None]) -> None:
        """Read what is new in the runs, given by name and directory, and forget all others.

        `read` is called before each, with how many have been read.
        """
        with self._accumulators_mutex:
            gone = self._accumulators.keys() - paths.keys()
        for name in gone:
            self._forget(name)
        for count, (name, path) in enumerate(paths.items()):
            if self._stopped.is_set():
                return
            read(count)
            try:
                self._load_run(name, path)
            except directory_watcher.DirectoryDeletedError:
                self._forget(name)
            except Exception as error:  # noqa: BLE001 - one run's events must not stop the others'
                _logger.warning("Run %r cannot be read in full: %s", name, error)

    def _load_run(self, name: str, path: str) -> None:
        before = self._seen.get(name, {})
        now = {file.name: look(file, before.get(file.name)) for file in _event_files(path)}
        if now == before and name in self._read:
            return
        if None in now.values() or before.keys() - now.keys():
            self._forget(name)
            now = {file.name: look(file, None) for file in _event_files(path)}
        self._read.discard(name)
        self._seen[name] = {file: seen for file, seen in now.items() if seen is not None}
        self.AddRun(path, name)
        accumulator = self.GetAccumulator(name)
        if not isinstance(accumulator._generator, _Stoppable):
            accumulator._generator = _Stoppable(accumulator._generator, self._stopped)
        accumulator.Reload()
        self._read.add(name)
        self.changes += 1

    def _forget(self, name: str) -> None:
        with self._accumulators_mutex:
            self._accumulators.pop(name, None)
            self._paths.pop(name, None)
        self._seen.pop(name, None)
        self._read.discard(name)
        self.changes += 1


def look(file: os.DirEntry[str] | Path, before: Seen | None) -> Seen | None:
    """Return an event file as it is now; None if it is not the one of before, grown or not."""
    status = file.stat()
    if before and before[:3] == (status.st_ino, status.st_mtime_ns, status.st_size):
        return before
    if before and (status.st_size < before.size or _tail(file, before.size) != before.tail):
        return None
    tail = _tail(file, status.st_size)
    return Seen(status.st_ino, status.st_mtime_ns, status.st_size, tail)


def _tail(file: os.DirEntry[str] | Path, end: int) -> int:
    start = max(0, end - TAIL_BYTES)
    with Path(file).open("rb") as opened:
        opened.seek(start)
        return zlib.crc32(opened.read(end - start))


def _event_files(path: str) -> list[os.DirEntry[str]]:
    try:
        with os.scandir(path) as found:
            return [entry for entry in found if EVENT_FILE in entry.name and entry.is_file()]
    except OSError:
        return []


class _Stoppable:
    """A generator of events that ends when it is told to."""

    def __init__(self, inner: Any, stopped: threading.Event) -> None:
        self._inner = inner
        self._stopped = stopped

    def Load(self) -> Iterator[Any]:  # noqa: N802 - TensorBoard's name
        for event in self._inner.Load():
            if self._stopped.is_set():
                return
            yield event
