"""A log directory for TensorBoard's plugins, with a board's runs under the board's names.

Plugins read one log directory and find runs by their paths below it. A board may have runs from
several places, rename some and hide others. Then each run gets a directory with its name, which has
links to the run's own files.
"""

from __future__ import annotations

import os
import posixpath
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import NamedTuple

from aboard.events.files import EVENT_FILE
from aboard.index.library import Library, Member
from aboard.runs.naming import distinct
from aboard.storage.base import BadUri, StorageError, name_parts, open_storage
from aboard.storage.local import is_confined, leads_out
from aboard.tensorboard.board import Board, template_fields

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
            self._apply(*plan_links(self.runs, self._roots(everywhere), everywhere))
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


def plan_links(
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
