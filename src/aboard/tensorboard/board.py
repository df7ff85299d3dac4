"""A board: which sources, under which names, and what they hold right now.

A `Board` is a value: a selection that can be stored and compared. A `Listing` is
what the index knows of it at this moment, kept up to date run by run, so that
asking again costs only what changed.
"""

from __future__ import annotations

import itertools
import threading
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from aboard.index import Index, Source, Tag
from aboard.runs.naming import Template, distinct
from aboard.tensorboard.fields import needs_records, template_fields

if TYPE_CHECKING:
    from aboard.runs.known import KnownRun
    from aboard.tensorboard.selection import Records, Selection

BOARD_ID_CHARACTERS = frozenset("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-")


class Member(NamedTuple):
    """A source on a board, and the name its runs go under."""

    source: Source
    name: str = ""

    @classmethod
    def parse(cls, text: str) -> Member:
        """Read `name=path`, a path or a URI; what exists under the whole text is a path."""
        name, equals, rest = text.partition("=")
        is_name = equals and rest and name and not set(name) & set("/\\:.")
        if is_name and not Path(text).exists():
            return cls(Source.parse(rest), name)
        return cls(Source.parse(text))


@dataclass(frozen=True)
class Board:
    """A selection of runs under names of its own.

    Attributes:
        id: its place in URLs.
        title: what the browser's tab shows.
        members: where its runs come from.
        template: how runs are named; by their path where there is none.
        include: shell patterns; a run must match one of them, if there are any.
        exclude: shell patterns; a run must match none of them.
        selection: runs chosen by selectors; those it means now are among the members.
        roots: places above members whose catalog somebody keeps up to date.
    """

    id: str
    title: str
    members: tuple[Member, ...]
    template: Template | None = None
    include: tuple[str, ...] = ()
    exclude: tuple[str, ...] = ()
    selection: Selection | None = None
    roots: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if not self.id or not set(self.id) <= BOARD_ID_CHARACTERS:
            raise ValueError(f"{self.id!r} cannot be a board's id: use letters, digits, '_', '-'")

    def shows(self, name: str) -> bool:
        """Say whether a run of this name is on the board."""
        if self.include and not any(fnmatchcase(name, pattern) for pattern in self.include):
            return False
        return not any(fnmatchcase(name, pattern) for pattern in self.exclude)

    @property
    def location(self) -> str:
        """Where its data is, for a person to read."""
        if self.selection is not None:
            return f"{', '.join(self.selection.selectors)} in {', '.join(self.selection.roots)}"
        return ", ".join(member.source.uri for member in self.members)


@dataclass(frozen=True)
class BoardRun:
    """A run on a board."""

    name: str
    directory: str
    start_time: float | None
    tags: dict[str, Tag] = field(repr=False)


def path_names(board: Board, found: Iterable[tuple[Member, str]]) -> list[str]:
    """Name runs by their path, given their member and their name within it.

    One unnamed member keeps the names that TensorBoard gives to a log directory.
    Where there are several, the member's name, or the last part of its path,
    stands in front.
    """
    found = list(found)
    names = []
    for member, run in found:
        label = member.name
        if not label and len(board.members) > 1:
            label = member.source.uri.rstrip("/").rpartition("/")[2] or member.source.uri
        names.append(run if not label else label if run == "." else f"{label}/{run}")
    return distinct(names)


Key = tuple[Member, str]
"""A member, and the directory of a run of it."""
_VERSIONS = itertools.count()


class Listing:
    """The runs and tags of a board, as far as the index knows them."""

    def __init__(self, board: Board, index: Index) -> None:
        self.board = board
        self._index = index
        self._lock = threading.Lock()
        self._records: Records | None = None
        if needs_records(board.template):
            from aboard.tensorboard.selection import Records

            self._records = Records(index, board.roots)
        self._told: tuple[object, ...] = ()
        self._stamp: int | None = None
        self._marks: dict[Key, tuple[object, ...]] = {}
        self._tags: dict[Key, dict[str, Tag]] = {}
        self._runs: dict[str, BoardRun] = {}
        self._version = next(_VERSIONS)

    def version(self) -> int:
        """Return a number that changes with anything that the board shows, and never comes back."""
        with self._lock:
            self._update()
            return self._version

    def runs(self) -> dict[str, BoardRun]:
        """Return the runs by name, up to date with the index."""
        with self._lock:
            self._update()
            return self._runs

    def find(self, run: str, tag: str) -> Tag | None:
        """Return a tag of a run, or None if the board does not show it."""
        found = self.runs().get(run)
        return found.tags.get(tag) if found else None

    def show(self, board: Board) -> None:
        """Show the board with other members than before; what is known of runs is kept."""
        with self._lock:
            self.board = board
            self._stamp = None
            self._told = (object(),)  # so that runs are named anew

    def _update(self) -> None:
        stamp = self._index.stamp()  # before the marks: what changes meanwhile shows next time
        marks = self._marks if stamp == self._stamp else dict(self._current_marks())
        told = self._records_told(marks)
        if (marks, told) == (self._marks, self._told):
            self._stamp = stamp
            return
        changed: dict[tuple[Source, str], list[dict[str, Tag]]] = {}
        for key, mark in marks.items():
            if self._marks.get(key) != mark:
                self._tags[key] = {}
                changed.setdefault((key[0].source, key[1]), []).append(self._tags[key])
        for place, tag in self._index.tags_of(changed.keys()) if changed else ():
            for tags in changed[place]:
                tags[tag.name] = tag
        self._tags = {key: self._tags[key] for key in marks}
        self._marks, self._told, self._stamp = marks, told, stamp
        self._runs = self._named_runs()
        self._version = next(_VERSIONS)

    def _current_marks(self) -> Iterator[tuple[Key, tuple[object, ...]]]:
        members = self.board.members
        of_members = self._index.marks([member.source for member in members])
        for member, marks in zip(members, of_members, strict=True):
            for directory, mark in marks.items():
                yield (member, directory), mark

    def _named_runs(self) -> dict[str, BoardRun]:
        keys = list(self._tags)
        names = self._names(keys)
        return {
            name: BoardRun(name, key[1], _start_time(self._marks[key]), self._tags[key])
            for name, key in zip(names, keys, strict=True)
            if self.board.shows(name)
        }

    def _record(self, key: Key) -> KnownRun | None:
        return self._records.of(key[0].source, key[1]) if self._records else None

    def _records_told(self, keys: Iterable[Key]) -> tuple[object, ...]:
        """Return a value that changes when a record does, or a heart stops beating."""
        template, records = self.board.template, self._records
        if template is None or records is None:
            return ()
        marks = records.marks(member.source for member in self.board.members)
        if "state" not in template.fields:
            return marks
        now = time.time()
        held = (self._record(key) for key in keys)
        return (*marks, *(one.state_at(now) if one else None for one in held))

    def _names(self, keys: list[Key]) -> list[str]:
        template = self.board.template
        if template is None:
            found = [(member, member.source.run_name(directory)) for member, directory in keys]
            return path_names(self.board, found)
        by_member: dict[Member, dict[str, dict[str, Tag]]] = {}
        for (member, directory), tags in self._tags.items():
            by_member.setdefault(member, {})[directory] = tags
        return distinct(
            template.render(
                template_fields(
                    template,
                    member.source,
                    directory,
                    by_member[member],
                    self._record((member, directory)),
                )
            )
            for member, directory in keys
        )


def _start_time(mark: tuple[object, ...]) -> float | None:
    """Return the wall time of a run's first event; a mark is a tuple of (id, offset, wall)."""
    first = mark[0]
    return first[-1] if isinstance(first, tuple) else None
