"""The local log directory that TensorBoard's own loaders and plugins read for a board.

They read one log directory and find runs by their paths below it. A board may have runs from
several places, rename some and hide others. Then each run gets a directory with its name, which has
links to the run's own files (`LogTree`). Files in a bucket are copied to a local directory, and
updated while there are requests (`Mirror`): event files, the `plugins` directories and the files
named in projector configurations. Other files, such as checkpoints, are not copied.
"""

from __future__ import annotations

import os
import posixpath
import threading
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from aboard.events.files import EVENT_FILE, is_event_file
from aboard.index.library import Library, Member
from aboard.index.reader import TAIL_BYTES
from aboard.index.sources import LONGEST_SECONDS
from aboard.runs.naming import distinct
from aboard.storage.base import BadUri, Entry, Storage, StorageError, join, name_parts, open_storage
from aboard.storage.local import TEMPORARY, is_confined, leads_out
from aboard.tensorboard.board import Board, template_fields
from aboard.tensorboard.follower import Schedule
from aboard.tensorboard.plugins import CONFIG_FILE, BadConfig, named_files, read_config, resolve

_PLUGINS = "plugins"  # where plugins keep their own files, below the directory of a run


class MemberDirectory(NamedTuple):
    member: Member
    directory: str  # a local one


class TreeRun(NamedTuple):
    directory: str
    only: str = ""  # the only event file to read, if any


class LogTree:
    """The runs of a board as one log directory; only this tree may use `links`."""

    def __init__(
        self,
        board: Board,
        places: Sequence[MemberDirectory],
        links: Path,
        library: Library | None = None,
    ) -> None:
        self._library = library
        self.problems: list[StorageError] = []
        self.runs: dict[str, TreeRun] = {}
        self.found: list[tuple[Member, str]] = []  # all runs, shown or not
        self._board = board
        self._places = places
        self._links: dict[str, str] = {}
        self._directories: set[str] = set()
        self._is_plain = _is_plain(board, places)
        self.root = Path(places[0].directory) if self._is_plain else links
        if not self._is_plain:
            links.mkdir(parents=True, exist_ok=True)

    def update(self) -> dict[str, TreeRun]:
        """Find the runs, link new ones and unlink removed ones; return the runs by name."""
        self.problems = []
        found = list(self._find())
        names = self._names(
            (place.member, run.directory[len(place.directory.rstrip("/")) + 1 :] or ".")
            for place, run in found
        )
        self.found = [(place.member, name) for name, (place, _) in zip(names, found, strict=True)]
        self.runs = {
            name: run
            for name, (_, run) in zip(names, found, strict=True)
            if self._board.shows(name) and self._can_be_a_path(name)
        }
        if not self._is_plain:
            everywhere = {run.directory for _, run in found}
            self._apply(*_plan_links(self.runs, self._roots(everywhere), everywhere))
        return self.runs

    def path_of(self, name: str) -> str:
        return str(self.root if name == "." else self.root / name)

    def directories(self) -> dict[str, str]:
        found = {name: run.directory for name, run in self.runs.items()}
        return self._roots(found.values()) | found

    def _roots(self, taken: Collection[str]) -> dict[str, str]:
        """Return the members whose own directory is not a run; it may have files of plugins."""
        return {
            name: directory
            for member, directory in self._places
            for name in [self._board.path_name(member, ".")]
            if directory not in taken and self._board.shows(name)
        }

    def _find(self) -> Iterator[tuple[MemberDirectory, TreeRun]]:
        for place in self._places:
            only = place.member.source.only
            try:
                entries = open_storage(place.directory).list(
                    only, containing=EVENT_FILE, on_error=self.problems.append
                )
                below = {
                    posixpath.dirname(entry.name)
                    for entry in entries
                    if not leads_out(posixpath.join(place.directory, entry.name))
                }
            except StorageError as error:
                self.problems.append(error)
                continue
            for relative in sorted(below):
                directory = posixpath.join(place.directory, relative).rstrip("/") or "/"
                yield place, TreeRun(directory, only)

    def _names(self, found: Iterable[tuple[Member, str]]) -> list[str]:
        template = self._board.template
        if template is None:
            return distinct(self._board.path_name(member, run) for member, run in found)
        names = []
        for member, run in found:
            directory = member.source.directory_of(run)
            record = self._library.record_of(member.source, directory) if self._library else None
            fields = template_fields(template, member.source, directory, {}, record)
            names.append(template.render(fields))
        return distinct(names)

    def _can_be_a_path(self, name: str) -> bool:
        if name == ".":
            return True
        try:
            name_parts(str(self.root), name)
        except BadUri as error:
            self.problems.append(error)
            return False
        return True

    def _apply(self, links: dict[str, str], directories: set[str]) -> None:
        for path, target in list(self._links.items()):
            if links.get(path) != target:
                (self.root / path).unlink(missing_ok=True)
                del self._links[path]
        for path in sorted(self._directories - directories, reverse=True):
            # A plugin may have left files there.
            with suppress(OSError):
                (self.root / path).rmdir()
                self._directories.discard(path)
        for path in sorted(directories - self._directories):
            with self._reporting(path):
                (self.root / path).mkdir()
                self._directories.add(path)
        for path in sorted(links.keys() - self._links.keys()):
            above = posixpath.dirname(path)
            if not above or above in self._directories:
                with self._reporting(path):
                    (self.root / path).symlink_to(links[path])
                    self._links[path] = links[path]

    @contextmanager
    def _reporting(self, path: str) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            problem = f"TensorBoard cannot show it: {error.strerror or error}"
            self.problems.append(StorageError(path, problem, "Rename the run."))


def _plan_links(
    runs: Mapping[str, TreeRun], roots: Mapping[str, str], everywhere: Collection[str]
) -> tuple[dict[str, str], set[str]]:
    """Return the links to create, as path to target, and the directories to create for them.

    A directory that contains other runs is never linked, because those have their own names or are
    hidden; its other entries are linked one by one. Nor are directories of plugins, because plugins
    walk the log directory and may not follow links. Entries outside the directories to which this
    process is confined are left out. `everywhere` has the directories of all runs, shown or not.
    """
    leading = {above for directory in everywhere for above in _above(directory)}
    leading.difference_update(everywhere)
    needed = (runs.keys() | roots.keys()) - {"."}
    needed |= {above for name in needed for above in _above(name) if above}
    links: dict[str, str] = {}
    directories = set(needed)
    pending = [(name, run, True) for name, run in runs.items()]
    pending += [(name, TreeRun(root), False) for name, root in roots.items() if name not in runs]
    while pending:
        path, run, is_run = pending.pop()
        for entry in _entries(run.directory):
            target = posixpath.join(run.directory, entry.name)
            if leads_out(target):
                continue
            inner = posixpath.normpath(posixpath.join(path, entry.name))
            if not _is_directory(entry):
                is_event_file = EVENT_FILE in entry.name
                if not is_event_file or (is_run and run.only in ("", entry.name)):
                    links.setdefault(inner, target)
            elif target in everywhere:
                continue
            elif target in leading or inner in needed or _is_of_plugins(entry, inner):
                directories.add(inner)
                pending.append((inner, TreeRun(target), False))
            else:
                links.setdefault(inner, target)
    # Create nothing below a link: that would be in the user's log directory.
    return {path: links[path] for path in links.keys() - directories}, directories


def _is_of_plugins(entry: os.DirEntry[str], path: str) -> bool:
    """Return whether a directory belongs to a plugin or contains only directories of plugins."""
    if entry.is_symlink():
        return False
    return _PLUGINS in path.split("/") or Path(entry.path, _PLUGINS).is_dir()


def _is_plain(board: Board, places: Sequence[MemberDirectory]) -> bool:
    """Return whether TensorBoard would show the runs of a board under the same names."""
    if len(places) != 1 or board.template is not None or board.include or board.exclude:
        return False
    if is_confined():
        return False  # TensorBoard reads all it finds, and fails at files it may not read
    member = places[0].member
    return not member.name and not member.source.only


def _above(path: str) -> Iterator[str]:
    while (above := posixpath.dirname(path)) != path:
        yield above
        path = above


def _entries(directory: str) -> list[os.DirEntry[str]]:
    try:
        with os.scandir(directory) as found:
            return sorted(found, key=lambda entry: entry.name)
    except OSError:
        return []


def _is_directory(entry: os.DirEntry[str]) -> bool:
    try:
        return entry.is_dir()
    except OSError:
        return False


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
        chosen = {name for name in entries if _is_copied(name)}
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
        if block[:overlap] != _read_range(path, start, copy.held):
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


def _is_copied(name: str) -> bool:
    *directories, last = name.split("/")
    return EVENT_FILE in last or last == CONFIG_FILE or _PLUGINS in directories


def _read_range(path: Path, start: int, end: int) -> bytes:
    if start == end:
        return b""
    with path.open("rb") as file:
        file.seek(start)
        return file.read(end - start)
