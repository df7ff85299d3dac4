"""From the selectors of a board to what it shows: known runs of the hub's roots, and raw places.

A board keeps its selectors, so the answer changes as runs start and end. Whether a place may be
shown at all is decided here; when roots are looked at again is left to `reading`.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import ClassVar, NamedTuple

from aboard.boards.errors import BoardsError, NotFound
from aboard.hub.config import Root
from aboard.index import Index, Source
from aboard.index.catalog import CatalogReport
from aboard.runs.known import KnownRun
from aboard.runs.naming import BadTemplate, Template
from aboard.runs.select import (
    BadSelector,
    NothingMatches,
    Selector,
    exclusion_of,
    is_path,
    left_out,
    matching,
    parse_all,
    select,
    selector_for,
)
from aboard.storage import NotFound as NoSuchPlace
from aboard.storage import StorageError, canonical, is_below, is_remote
from aboard.tensorboard.board import Board, Member

MOST_SOURCES = 100
"""How many sources of a board are remembered for people to read."""


class WrongSelection(BoardsError):  # noqa: N818 - named by what is wrong
    """Selectors that cannot be understood."""

    code: ClassVar[str] = "bad_selector"


class EmptySelection(BoardsError):  # noqa: N818 - named by what is wrong
    """Selectors that mean nothing that exists; the text names the nearest."""

    code: ClassVar[str] = "nothing_matches"


class OutsideRoots(BoardsError):  # noqa: N818 - named by what is wrong
    """A path or URI that this hub does not show."""

    code: ClassVar[str] = "outside_roots"


class WrongTemplate(BoardsError):  # noqa: N818 - named by what is wrong
    """A template for names that cannot be understood."""

    code: ClassVar[str] = "bad_template"


class RootState(NamedTuple):
    """What came of the last look at a root."""

    at: float | None = None
    problem: str = ""
    marks: Mapping[str, int] = {}


class Catalog:
    """The runs below the roots of a hub.

    Args:
        index: remembers them.
        roots: where they are.
        any_path: whether places below no root may be shown.
        clock: seconds since 1970.
    """

    def __init__(
        self,
        index: Index,
        roots: Sequence[Root],
        *,
        any_path: bool,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self.roots = tuple(roots)
        self._index = index
        self._uris = [root.uri for root in roots]
        self._any_path = any_path
        self._clock = clock
        self._lock = threading.Lock()
        self._states = {uri: RootState() for uri in self._uris}
        self._runs: list[KnownRun] = []
        self._changes: list[int] | None = None
        self._real_roots = [os.path.realpath(uri) for uri in self._uris if not is_remote(uri)]

    def state(self, root: str) -> RootState:
        """Return what came of the last look at a root."""
        return self._states[root]

    def refresh(self, root: str) -> CatalogReport | None:
        """Look for runs below a root; what is wrong with it is kept in its state."""
        try:
            report = self._index.refresh_catalog(root)
        except StorageError as error:
            before = self._states[root]
            self._states[root] = RootState(self._clock(), str(error), before.marks)
            return None
        problem = str(report.problems[0]) if report.problems else ""
        self._states[root] = RootState(self._clock(), problem, report.marks)
        return report

    def runs(self) -> list[KnownRun]:
        """Return all known runs that may be shown."""
        with self._lock:
            changes = [self._index.catalog_changes(uri) for uri in self._uris]
            if changes != self._changes:
                known = self._index.known_runs(self._uris)
                self._runs = [run for run in known if self._stays_inside(run.uri)]
                self._changes = changes
            return self._runs

    def find(self, selectors: Sequence[str]) -> list[KnownRun]:
        """Return the known runs that selectors mean, all of them if there are none.

        Raises:
            WrongSelection: one cannot be understood.
            EmptySelection: one means no run.
        """
        if not selectors:
            return self.runs()
        parsed = self._parse(selectors)
        found = self._select(parsed)
        places = [canonical(one.text) for one in parsed if one.is_place]
        if not places:
            return found
        chosen = {run.uri for run in found}
        gone = {run.uri for run in left_out(parsed, self.runs(), self._clock())}
        return [
            run
            for run in self.runs()
            if run.uri not in gone
            and (run.uri in chosen or any(is_below(run.uri, place) for place in places))
        ]

    def words(self, selectors: Sequence[str]) -> tuple[str, ...]:
        """Return selectors one by one, where commas join several, and none twice.

        Raises:
            WrongSelection: one cannot be understood.
        """
        return tuple(dict.fromkeys(one.text for one in self._parse(selectors)))

    def changed(
        self, selectors: Sequence[str], add: Sequence[str], remove: Sequence[str]
    ) -> tuple[str, ...]:
        """Return the selectors of a board with some more and some fewer.

        Runs that no selector names, but that are among what they mean, are left out from then on;
        adding them brings them back.

        Raises:
            NotFound: they do not mean what is to be removed.
            WrongSelection: a selector cannot be understood, or something cannot be left out.
        """
        kept = list(selectors)
        for text in self.words(remove):
            if text in kept:
                kept.remove(text)
            else:
                kept += self._left_out(kept, text)
        more = self.words(add)
        added = self._meant_by([one for one in parse_all(more) if not one.excludes])
        parsed = self._parse([*kept, *more])
        meant = self._meant_by([one for one in parsed if not one.excludes])
        after = []
        for one in parsed:
            gone = self._meant_by([one._replace(excludes=False)]) if one.excludes else set()
            is_over = bool(gone) and (gone <= added or gone.isdisjoint(meant))
            if one.text in more or not is_over:
                after.append(one)
        self._check_places(after)
        was_all = all(one.excludes for one in parse_all(selectors))
        if not was_all and all(one.excludes for one in after):
            return ()
        return tuple(dict.fromkeys(one.text for one in after))

    def _left_out(self, selectors: Sequence[str], text: str) -> list[str]:
        """Return the selectors that leave out those runs of a board that one more means."""
        (one,) = self._parse([text])
        parsed = parse_all(selectors)
        shown = matching(parsed, self.runs(), self._clock())
        if one.is_place:
            meant = [run for run in shown if is_below(run.uri, canonical(one.text))]
        else:
            meant = [] if one.excludes else [shown[at] for at in one.of(shown, self._clock())]
        names = [selector_for(run) for run in meant]
        if not names:
            raise NotFound(
                f"{text[:80]!r} is nothing that a selector of this board means.",
                f"Its selectors are {', '.join(selectors[:8])}."
                " Of a path or URI, no part can be removed.",
            )
        if odd := [name for name in names if is_path(name)]:
            raise WrongSelection(
                f"{odd[0][:200]!r} has no name by which it can be left out.",
                "Select the others by name instead.",
            )
        return [exclusion_of(name) for name in names]

    def _meant_by(self, parsed: Sequence[Selector]) -> set[str]:
        return {run.uri for run in matching(parsed, self.runs(), self._clock())}

    def _check_places(self, parsed: Sequence[Selector]) -> None:
        """Refuse to leave out what is shown with a path or URI, for that is shown as a whole."""
        places = [canonical(one.text) for one in parsed if one.is_place]
        for run in left_out(parsed, self.runs(), self._clock()) if places else ():
            if any(is_below(run.uri, place) for place in places):
                raise WrongSelection(
                    f"{run.label!r} cannot be left out of a path or URI that it is part of.",
                    "Select runs by name instead of by path.",
                )

    def check(self, selectors: Sequence[str], template: str = "") -> tuple[str, ...]:
        """Check what somebody wants to see, and return where it is.

        Raises:
            WrongSelection: a selector cannot be understood.
            EmptySelection: a selector means nothing that exists.
            OutsideRoots: a place may not be shown.
            WrongTemplate: the template cannot be understood.
        """
        read_template(template)
        parsed = self._parse(selectors)
        for one in parsed:
            if one.is_place:
                self._check_place(one.text)
        self._check_places(parsed)
        return _uris_of(self._members(parsed, self._select(parsed)))

    def sources(self, selectors: Sequence[str]) -> tuple[str, ...]:
        """Return where that is what selectors mean now."""
        return _uris_of(self._members(parse_all(selectors)))

    def board(
        self, board_id: str, title: str, selectors: Sequence[str], template: str = ""
    ) -> Board:
        """Return a board as its selectors mean it now."""
        parsed = parse_all(selectors)
        wanted = read_template(template)
        members = tuple(self._members(parsed))
        return Board(board_id, title, members, wanted, roots=tuple(self._uris))

    def environment(self, sources: Iterable[Source]) -> dict[str, str]:
        """Return the variables with which a process of its own reads some sources.

        Raises:
            WrongSelection: they lie below roots whose variables differ.
        """
        found: dict[str, str] = {}
        for source in sources:
            for root in self.roots:
                if not is_below(source.uri, root.uri):
                    continue
                for name, value in root.environment.items():
                    if found.setdefault(name, value) != value:
                        raise WrongSelection(
                            f"the roots of this selection differ in {name}.",
                            "Choose runs of one root, or an instant board.",
                        )
        return found

    def _parse(self, texts: Sequence[str]) -> list[Selector]:
        try:
            parsed = parse_all(texts)
        except BadSelector as error:
            raise WrongSelection(str(error)) from error
        for one in parsed:
            if one.is_place and "://" not in one.text and not one.text.startswith("/"):
                raise WrongSelection(
                    f"{one.text!r}: the hub does not know where you are.",
                    "Write the path from the root of the file system: /data/logs.",
                )
        return parsed

    def _select(self, parsed: Sequence[Selector]) -> list[KnownRun]:
        """Return the runs that are meant; look again at the roots before saying there are none."""
        try:
            return select(parsed, self.runs(), self._clock())
        except NothingMatches:
            for uri in self._uris:
                self.refresh(uri)
        try:
            return select(parsed, self.runs(), self._clock())
        except NothingMatches as error:
            raise EmptySelection(str(error)) from error

    def _members(
        self, parsed: Sequence[Selector], chosen: Sequence[KnownRun] | None = None
    ) -> list[Member]:
        """Return what a board shows: places, and the runs that are meant unless they are given."""
        if chosen is None:
            chosen = matching(parsed, self.runs(), self._clock())
        members = {}
        for one in parsed:
            if one.is_place and self._may_show(one.text):
                members[Source.parse(one.text)] = ""
        for run in chosen:
            members.setdefault(Source(run.uri), run.label)
        return [Member(source, name) for source, name in members.items()]

    def _check_place(self, text: str) -> None:
        try:
            uri = canonical(text)
        except StorageError as error:
            raise WrongSelection(str(error)) from error
        if not self._may_show(uri):
            known = ", ".join(self._uris) or "none"
            raise OutsideRoots(
                f"{text[:200]!r} is not below a root of this hub.", f"The roots are {known}."
            )
        if not is_remote(uri) and not Path(uri).exists():
            raise EmptySelection(str(NoSuchPlace(uri, "there is no such directory", "Check it.")))

    def _may_show(self, text: str) -> bool:
        if self._any_path:
            return True
        uri = canonical(text)
        return any(is_below(uri, root) for root in self._uris) and self._stays_inside(uri)

    def _stays_inside(self, uri: str) -> bool:
        """Say whether links on the way to a place do not lead out of the roots."""
        if self._any_path or is_remote(uri):
            return True
        real = os.path.realpath(uri)
        return any(is_below(real, root) for root in self._real_roots)


def read_template(text: str) -> Template | None:
    """Understand a template for names, if there is one.

    Raises:
        WrongTemplate: it cannot be.
    """
    try:
        return Template.parse(text) if text else None
    except BadTemplate as error:
        raise WrongTemplate(str(error)) from error


def _uris_of(members: Sequence[Member]) -> tuple[str, ...]:
    return tuple(member.source.uri for member in members[:MOST_SOURCES])
