"""A local copy of a board's files in a bucket, updated while there are requests.

TensorBoard's own loaders and plugins open files, so event files, the `plugins` directories and the
files named in projector configurations are copied. Other files, such as checkpoints, are not.
"""

from __future__ import annotations

import os
import posixpath
import threading
import time
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from aboard.events.files import EVENT_FILE, is_event_file
from aboard.index.reader import TAIL_BYTES
from aboard.storage.base import Entry, Storage, StorageError, join, name_parts
from aboard.storage.local import TEMPORARY
from aboard.tensorboard.projector import CONFIG_FILE, BadConfig, named_files, read_config, resolve
from aboard.tensorboard.schedule import LONGEST_SECONDS, Schedule

_PLUGINS = "plugins"
_BLOCK = 4 << 20
_THREADS = 8  # files copied at once; requests mostly wait


@dataclass(slots=True)
class Update:
    copied: int = 0
    grown: int = 0
    removed: int = 0
    bytes_read: int = 0
    problems: list[StorageError] = field(default_factory=list)

    @property
    def changed(self) -> bool:
        return bool(self.copied or self.grown or self.removed)

    def add(self, other: Update) -> None:
        self.copied += other.copied
        self.grown += other.grown
        self.removed += other.removed
        self.bytes_read += other.bytes_read
        self.problems += other.problems


@dataclass(slots=True)
class _Copy:
    """A copied file: the number of bytes copied, and the version if it is complete."""

    held: int = 0
    version: str = ""


class Mirror:
    """A directory with a copy of a storage's event files and of the files that plugins need.

    New data of an event file is appended, so that readers see a growing file. Other files, and
    event files that were replaced, are replaced atomically. Only this mirror may use the directory.
    """

    def __init__(self, storage: Storage, directory: Path, *, only: str = "") -> None:
        self._storage = storage
        self._directory = directory
        self._only = only
        self._copies: dict[str, _Copy] = {}
        self._stopped = threading.Event()
        directory.mkdir(parents=True, exist_ok=True)

    def stop(self) -> None:
        self._stopped.set()

    def update(self) -> Update:
        """Copy new data and remove deleted files; raise `StorageError` only if listing fails."""
        update = Update()
        listing_problems: list[StorageError] = []
        entries = {
            entry.name: entry
            for entry in self._storage.list(self._only, on_error=listing_problems.append)
        }
        update.problems += listing_problems
        chosen = {name for name in entries if is_copied(name)}
        self._copy_all((entries[name] for name in sorted(chosen)), update)
        named = self._named_by_projectors(chosen) & entries.keys() - chosen
        self._copy_all((entries[name] for name in sorted(named)), update)
        # Files missing from an incomplete listing may still exist.
        if not listing_problems:
            for name in self._copies.keys() - chosen - named:
                self._remove(name)
                update.removed += 1
        return update

    def _named_by_projectors(self, names: Iterable[str]) -> set[str]:
        found: set[str] = set()
        home = self._directory.resolve()
        for name in names:
            if posixpath.basename(name) != CONFIG_FILE or name not in self._copies:
                continue
            place = self._directory / name
            with suppress(BadConfig, OSError):
                for path in named_files(read_config(place)):
                    with suppress(BadConfig):
                        found.add(resolve(path, place).relative_to(home).as_posix())
        return found

    def _copy_all(self, entries: Iterable[Entry], update: Update) -> None:
        due = [entry for entry in entries if self._is_due(entry)]
        if not due:
            return
        with ThreadPoolExecutor(min(_THREADS, len(due)), "aboard-mirror") as pool:
            for one in pool.map(self._copy, due):
                update.add(one)

    def _is_due(self, entry: Entry) -> bool:
        copy = self._copies.get(entry.name)
        return copy is None or (copy.held, copy.version) != (entry.size, entry.version)

    def _copy(self, entry: Entry) -> Update:
        update = Update()
        if self._stopped.is_set():
            return update
        try:
            path = self._directory.joinpath(*name_parts(self._storage.uri, entry.name))
            path.parent.mkdir(parents=True, exist_ok=True)
            if not is_event_file(entry.name) or not self._append(entry, path, update):
                self._replace(entry, path, update)
        except StorageError as error:
            update.problems.append(error)
        except OSError as error:
            uri = join(self._storage.uri, entry.name)
            problem = f"cannot copy it to {self._directory}: {error.strerror or error}"
            update.problems.append(StorageError(uri, problem, "Check the disk."))
        return update

    def _append(self, entry: Entry, path: Path, update: Update) -> bool:
        """Append the new data of a file; return False if the file was replaced."""
        copy = self._copies.setdefault(entry.name, _Copy())
        if entry.size < copy.held or (entry.size == copy.held and copy.version):
            return False
        start = max(0, copy.held - TAIL_BYTES)
        overlap = copy.held - start
        block = self._storage.read(entry.name, start, min(start + _BLOCK, entry.size))
        if block[:overlap] != _read(path, start, copy.held):
            return False
        update.grown, update.copied = (1, 0) if copy.held else (0, 1)
        block = block[overlap:]
        with path.open("ab", buffering=0) as file:
            while block and not self._stopped.is_set():
                written = file.write(block)
                copy.held += written
                update.bytes_read += written
                end = min(copy.held + _BLOCK, entry.size)
                block = self._storage.read(entry.name, copy.held, end) if copy.held < end else b""
        copy.version = entry.version if copy.held == entry.size else ""
        return True

    def _replace(self, entry: Entry, path: Path, update: Update) -> None:
        temporary = path.with_name(TEMPORARY + os.urandom(8).hex())
        held = 0
        try:
            with temporary.open("xb") as file:
                while held < entry.size and not self._stopped.is_set():
                    end = min(held + _BLOCK, entry.size)
                    block = self._storage.read(entry.name, held, end)
                    if not block:
                        break
                    held += file.write(block)
            if self._stopped.is_set():
                return
            temporary.replace(path)
        finally:
            temporary.unlink(missing_ok=True)
        self._copies[entry.name] = _Copy(held, entry.version if held == entry.size else "")
        update.copied = 1
        update.bytes_read += held

    def _remove(self, name: str) -> None:
        del self._copies[name]
        path = self._directory / name
        with suppress(OSError):
            path.unlink(missing_ok=True)
            while (path := path.parent) != self._directory:
                path.rmdir()


class MirrorUpdater:
    """Updates a mirror in a thread, often while it changes and less often while it does not.

    `changed` is called in the thread after every update. While `unwatched()`, the storage is not
    polled.
    """

    def __init__(
        self,
        mirror: Mirror,
        shortest: float,
        changed: Callable[[Update], None],
        unwatched: Callable[[], bool],
    ) -> None:
        self._mirror = mirror
        self._schedule = Schedule(shortest, max(shortest, LONGEST_SECONDS))
        self._changed = changed
        self._unwatched = unwatched
        self._done = threading.Event()
        self._wake = threading.Event()
        self._thread = threading.Thread(target=self._run, name="aboard-mirror", daemon=True)
        self._thread.start()

    def wake(self) -> None:
        self._wake.set()

    def close(self) -> None:
        self._done.set()
        self._mirror.stop()
        self._wake.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._done.is_set():
            started = time.monotonic()
            try:
                update = self._mirror.update()
            except StorageError as error:
                update = Update(problems=[error])
            self._changed(update)
            cost = time.monotonic() - started
            self._wake.wait(self._schedule.after(changed=update.changed, cost=cost))
            self._wake.clear()
            while self._unwatched() and not self._done.is_set():
                self._wake.wait(1.0)
                self._wake.clear()


def is_copied(name: str) -> bool:
    *directories, last = name.split("/")
    return EVENT_FILE in last or last == CONFIG_FILE or _PLUGINS in directories


def _read(path: Path, start: int, end: int) -> bytes:
    if start == end:
        return b""
    with path.open("rb") as file:
        file.seek(start)
        return file.read(end - start)
