"""Runs on a board that are chosen by selectors, and what the records of runs say.

A selection is a value: selectors, and the roots they are asked of. Which runs it means changes as
runs come and go, so it is asked again whenever the catalog has changed.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass, replace
from functools import partial

from aboard.index import Index, Source
from aboard.runs.known import KnownRun
from aboard.runs.manifest import FILE_NAME
from aboard.runs.select import matching, parse_all
from aboard.storage.base import StorageError
from aboard.storage.uri import is_below, is_remote, join, open_storage, split
from aboard.tensorboard.board import Board, Member
from aboard.tensorboard.live import Follower, SourceState, pages_listed

_LEVELS_ABOVE = 2
"""How far above a source its record may lie: a stage or a rank of a run may be opened alone."""


@dataclass(frozen=True, slots=True)
class Selection:
    """Runs that selectors mean, below some roots.

    Attributes:
        selectors: as they were typed; none of them a path.
        roots: canonical URIs.
        beside: what else is on the board, whatever is selected.
    """

    selectors: tuple[str, ...]
    roots: tuple[str, ...]
    beside: tuple[Member, ...] = ()

    def members(self, index: Index) -> tuple[Member, ...]:
        """Return what is meant now: each run a member under its own label."""
        runs = matching(parse_all(self.selectors), index.known_runs(self.roots), time.time())
        return *self.beside, *(Member(Source(run.uri), run.label) for run in runs)


class Chooser:
    """Keeps the members of a board what its selection means, and the index up to date with them.

    A root is listed once per look, however many runs are chosen; of those, only the ones whose
    event files have changed are looked at more closely.

    Args:
        board: a board with a selection.
        index: where runs and their data are known.
        follower: what the roots are followed by.
        changed: is called with the board as it is to be shown, whenever that changes.
    """

    def __init__(
        self,
        board: Board,
        index: Index,
        follower: Follower,
        changed: Callable[[Board], None],
    ) -> None:
        self._board = board
        self._index = index
        self._follower = follower
        self._changed = changed
        self._lock = threading.Lock()
        self._read: dict[str, int] = {}

    def start(self) -> None:
        """Begin to follow the roots of the selection, and what is beside it."""
        if (selection := self._board.selection) is not None:
            self._follower.follow(member.source for member in selection.beside)
            for root in selection.roots:
                self._follower.follow_root(root, partial(self._look, selection, root))

    def _look(
        self,
        selection: Selection,
        root: str,
        state: SourceState,
        stopped: threading.Event,
        parts: Collection[Source] = (),
    ) -> bool | None:
        if parts:
            return self._look_at_parts(stopped, parts)
        listed = pages_listed(root)
        try:
            report = self._index.refresh_catalog(root)
        except StorageError as error:
            state.error, state.loaded = error, True
            state.looks += 1
            self._follower.tell(Source(root), state)
            return False
        state.error = None
        marks = {join(root, run): mark for run, mark in report.marks.items()}
        members = selection.members(self._index)
        changed = report.changed
        for member in members[len(selection.beside) :]:
            mark = marks.get(member.source.uri)
            if mark is None or self._read.get(member.source.uri) == mark:
                continue
            if stopped.is_set():
                return changed
            read = SourceState()
            changed |= bool(self._follower.look(member.source, read, stopped, tell=False))
            if read.error is None and not read.report.problems:  # else it is tried again
                self._read[member.source.uri] = mark
        with self._lock:
            if members != self._board.members:
                self._board = replace(self._board, members=members)
                self._changed(self._board)
                changed = True
        lately = self._follower.lately(Source(root), pages_listed(root) - listed)
        state.lately = [one for one in lately if _member_of(one, members) is not None]
        state.loaded = True
        state.looks += 1
        return changed

    def _look_at_parts(self, stopped: threading.Event, parts: Collection[Source]) -> bool | None:
        """Read what changed in runs that are on the board; what else it is, a listing tells."""
        changed = False
        for part in parts:
            member = _member_of(part, self._board.members)
            if member is None:
                return None
            read = self._follower.look(member.source, SourceState(), stopped, [part], tell=False)
            if read is None:
                return None
            changed |= read
        return changed


def _member_of(part: Source, members: Iterable[Member]) -> Member | None:
    """Return the member of a board that something is a part of."""
    return next((one for one in members if is_below(part.uri, one.source.uri)), None)


class Records:
    """The records of the runs of some sources, as far as the catalog knows them.

    Args:
        index: which holds the catalog.
        roots: those that somebody else keeps up to date.
    """

    def __init__(self, index: Index, roots: Collection[str] = ()) -> None:
        self._index = index
        self._kept = roots
        self._lock = threading.Lock()
        self._roots: dict[Source, str] = {}
        self._held: dict[str, tuple[int, dict[str, KnownRun]]] = {}

    def refresh(self, source: Source) -> None:
        """Bring the catalog up to date with the records of a source."""
        root = self._root(source)
        if root not in self._kept:
            self._index.refresh_catalog(root, marks=False)

    def marks(self, sources: Iterable[Source]) -> tuple[int, ...]:
        """Return numbers that change when a record of one of the sources does."""
        roots = dict.fromkeys(self._root(source) for source in sources)
        return tuple(self._index.catalog_changes(root) for root in roots)

    def of(self, source: Source, directory: str) -> KnownRun | None:
        """Return the run that a directory of event files is part of, if it is recorded."""
        root = self._root(source)
        runs = self._runs(root)
        while len(directory) >= len(root):
            if directory in runs:
                return runs[directory]
            directory = directory.rpartition("/")[0]
        return None

    def _runs(self, root: str) -> dict[str, KnownRun]:
        changes = self._index.catalog_changes(root)
        with self._lock:
            if root not in self._held or self._held[root][0] != changes:
                known = self._index.known_runs([root])
                runs = {run.uri: run for run in known if run.is_recorded}
                self._held[root] = changes, runs
            return self._held[root][1]

    def _root(self, source: Source) -> str:
        """Return where to look for records: the source, or the run that it is a part of."""
        with self._lock:
            if source not in self._roots:
                kept = (one for one in self._kept if f"{source.uri}/".startswith(f"{one}/"))
                self._roots[source] = next(kept, None) or _run_above(source.uri) or source.uri
            return self._roots[source]


def _run_above(uri: str) -> str | None:
    """Return the nearest directory above one that has a record, unless it has one itself."""
    place = uri
    for level in range(_LEVELS_ABOVE + 1):
        try:
            open_storage(place).read(FILE_NAME, 0, 1)
        except StorageError:
            pass
        else:
            return place if level else None
        above, last = split(place)
        if not last or (is_remote(uri) and above.endswith("//")):
            return None
        place = above
    return None
