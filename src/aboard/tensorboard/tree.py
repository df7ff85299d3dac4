"""A log directory made of links, in which a board's runs are found under the board's names.

TensorBoard's plugins know one log directory, and a run by its path below it. A board
may take its runs from several places, rename some and leave out others. So each run
gets a directory of that name here, with a link to everything that is beside its events.
"""

from __future__ import annotations

import os
import posixpath
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import NamedTuple

from aboard.index.plan import EVENT_FILE
from aboard.runs.naming import distinct, fields_of_path
from aboard.storage.base import BadUri, StorageError, name_parts
from aboard.storage.uri import open_storage
from aboard.tensorboard.board import Board, Member, path_names


class Place(NamedTuple):
    """A member of a board, and the directory on this machine where its files are."""

    member: Member
    directory: str


class TreeRun(NamedTuple):
    """A run on the board: where its files are, and the one event file it is limited to."""

    directory: str
    only: str = ""


class LogTree:
    """The runs of a board as a directory of links.

    Args:
        board: whose runs; it decides their names, and which are shown.
        places: where they are.
        root: where to make the links; nobody else writes there.
    """

    def __init__(self, board: Board, places: Sequence[Place], root: Path) -> None:
        self.root = root
        self.problems: list[StorageError] = []
        self.runs: dict[str, TreeRun] = {}
        self._board = board
        self._places = places
        self._links: dict[str, str] = {}
        self._directories: set[str] = set()
        root.mkdir(parents=True, exist_ok=True)

    def update(self) -> dict[str, TreeRun]:
        """Look for runs, link what is new and unlink what is gone; return the runs by name."""
        self.problems = []
        found = list(self._find())
        everywhere = {run.directory for _, run in found}
        names = _names(self._board, [(place.member, _relative(place, run)) for place, run in found])
        runs = {
            name: run
            for name, (_, run) in zip(names, found, strict=True)
            if self._board.shows(name) and self._can_be_a_path(name)
        }
        links, directories = plan_links(runs, everywhere)
        self._apply(links, directories)
        self.runs = runs
        return runs

    def path_of(self, name: str) -> str:
        """Return the directory of a run in this tree."""
        return str(self.root if name == "." else self.root / name)

    def directories(self) -> dict[str, str]:
        """Return where the files of each run are, and of each member, by name."""
        found = {name: run.directory for name, run in self.runs.items()}
        taken = set(found.values())
        for member, directory in self._places:
            name = path_names(self._board, [(member, ".")])[0]
            if directory not in taken and name not in found and self._board.shows(name):
                found[name] = directory
        return found

    def _find(self) -> Iterator[tuple[Place, TreeRun]]:
        """Yield every directory with event files, in the order in which runs are named."""
        for place in self._places:
            only = place.member.source.only
            try:
                entries = open_storage(place.directory).list(
                    only, containing=EVENT_FILE, on_error=self.problems.append
                )
                below = {posixpath.dirname(entry.name) for entry in entries}
            except StorageError as error:
                self.problems.append(error)
                continue
            for relative in sorted(below):
                directory = posixpath.join(place.directory, relative).rstrip("/") or "/"
                yield place, TreeRun(directory, only)

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
        """Make the tree what it is planned to be; each step of it may fail alone."""
        for path, target in list(self._links.items()):
            if links.get(path) != target:
                (self.root / path).unlink(missing_ok=True)
                del self._links[path]
        for path in sorted(self._directories - directories, reverse=True):
            # A plugin may have left something there.
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
            problem = f"TensorBoard will not see it: {error.strerror or error}"
            self.problems.append(StorageError(path, problem, "Rename the run."))


def plan_links(
    runs: Mapping[str, TreeRun], everywhere: Iterable[str]
) -> tuple[dict[str, str], set[str]]:
    """Return the links to make, as path to target, and the directories to make for them.

    A directory that leads to other runs is never linked, for those have names of their
    own or are not shown; what else is in it is linked one by one.

    Args:
        runs: the runs to show, by name.
        everywhere: the directories of all runs there are, shown or not.
    """
    everywhere = set(everywhere)
    leading = {above for directory in everywhere for above in _above(directory)} - everywhere
    needed = {name for name in runs if name != "."}
    needed |= {above for name in needed for above in _above(name) if above}
    links: dict[str, str] = {}
    directories = set(needed)
    pending = [("" if name == "." else name, run, True) for name, run in runs.items()]
    while pending:
        path, run, is_run = pending.pop()
        for entry in _entries(run.directory):
            target = posixpath.join(run.directory, entry.name)
            inner = posixpath.join(path, entry.name)
            if _is_directory(entry):
                if target in everywhere:
                    continue
                if target in leading or inner in needed:
                    directories.add(inner)
                    pending.append((inner, TreeRun(target), False))
                    continue
            elif inner in needed or (
                EVENT_FILE in entry.name and (not is_run or run.only not in ("", entry.name))
            ):
                continue
            links.setdefault(inner, target)
    # Nothing is ever made below a link: that would be in somebody's log directory.
    return {path: links[path] for path in links.keys() - directories}, directories


def _names(board: Board, found: list[tuple[Member, str]]) -> list[str]:
    if board.template is None:
        return path_names(board, found)
    template = board.template
    return distinct(
        template.render(fields_of_path(member.source.uri, run)) for member, run in found
    )


def _relative(place: Place, run: TreeRun) -> str:
    return run.directory[len(place.directory.rstrip("/")) + 1 :] or "."


def _above(path: str) -> Iterator[str]:
    """Yield the paths that lead to a path, from the nearest on."""
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
