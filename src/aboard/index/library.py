"""The library: the runs below a set of roots, and which of them selectors select.

One `Library` serves a command, a viewer or a hub. It owns the state of its roots: their last
refresh, the runs below them, and the records of runs. `parse` parses selectors; every other method
takes parsed ones. The caller decides when to refresh.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from itertools import permutations
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, overload

from aboard.events.files import EVENT_FILE
from aboard.index.sources import Source
from aboard.runs.catalog import BadName, KnownRun, directory_of_id, job_file, with_parents
from aboard.runs.manifest import FILE_NAME
from aboard.runs.naming import GROUPS, LAST
from aboard.runs.question import Field, Question, UnknownField
from aboard.runs.selectors import (
    BadSelector,
    Exists,
    Known,
    NothingMatches,
    NotSelected,
    OutsideRoots,
    Selector,
    excluded,
    exclusion_of,
    is_path,
    match,
    parse_all,
    select,
    selector_for,
    split_name,
)
from aboard.storage import (
    NoSuchPath,
    StorageError,
    canonical,
    is_below,
    is_remote,
    join,
    open_storage,
)
from aboard.storage.base import split

if TYPE_CHECKING:
    from aboard.index.catalog import CatalogChanges, CatalogReport
    from aboard.index.columns import Metrics, RunTable
    from aboard.index.index import Index
    from aboard.runs.columns import Facet, Ints, Mark

_BUCKET_SECONDS = 5.0  # how long the listing of a bucket is considered current
_LOGGED = ("hparams", "metrics")  # fields that event files may provide
_MOST_ORDERS = 4  # cached for later pages
_LEVELS_ABOVE = 2  # how far above a source its record may be: a source may be a stage or a rank


class Member(NamedTuple):
    """A source on a board, and the prefix of the names of its runs."""

    source: Source
    name: str = ""

    @classmethod
    def parse(cls, text: str) -> Member:
        """Parse `NAME=PLACE`, a path or a URI; text that exists as a path is a path."""
        name, place = split_name(text)
        if name and not Path(text).exists():
            return cls(Source.parse(place), name)
        return cls(Source.parse(text))


@dataclass(frozen=True, slots=True)
class Root:
    """A directory or bucket prefix with runs below it.

    If the name is empty, one is derived from the URI. `environment` has variables for this root
    only, such as `AWS_PROFILE`.
    """

    uri: str
    name: str = ""
    environment: Mapping[str, str] = field(default_factory=dict, repr=False)


class RootState(NamedTuple):
    """The result of the last refresh of a root.

    `error` is why the root could not be listed; `problems` are errors below it.
    """

    at: float | None = None
    error: StorageError | None = None
    problems: tuple[Exception, ...] = ()
    marks: Mapping[str, int] = {}

    @property
    def problem(self) -> str:
        """The first problem of the root; empty if it has none."""
        if self.error is not None:
            return str(self.error)
        return str(self.problems[0]) if self.problems else ""


class RunSet(Sequence[KnownRun]):
    """A sequence of known runs, whose records are read from the index on first access.

    Runs deleted before that are left out.
    """

    def __init__(self, library: Library, rows: Ints | None = None) -> None:
        self._library = library
        self._rows = rows
        self._held: list[KnownRun] | None = None

    @property
    def is_all(self) -> bool:
        """Whether these are all known runs, which can be listed without rows."""
        return self._rows is None

    @property
    def rows(self) -> Ints:
        """The rows of the runs in the table of the library."""
        if self._rows is None:
            self._rows = self._library.table().rows
        return self._rows

    def __len__(self) -> int:
        return len(self._records()) if self._rows is None else len(self._rows)

    def __iter__(self) -> Iterator[KnownRun]:
        return iter(self._records())

    @overload
    def __getitem__(self, place: int) -> KnownRun: ...
    @overload
    def __getitem__(self, place: slice) -> RunSet: ...
    def __getitem__(self, place: int | slice) -> KnownRun | RunSet:
        if isinstance(place, slice):
            return RunSet(self._library, self.rows[place])
        return self._records()[place]

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Sequence) and list(self) == list(other)

    __hash__ = None  # type: ignore[assignment]

    def _records(self) -> list[KnownRun]:
        if self._held is None:
            if self._rows is None:
                self._held = self._library.known_runs()
            else:
                self._held = self._library.index.runs_of(self._rows.tolist())
        return self._held


class RunGroup(NamedTuple):
    """Runs with equal values of the fields that a question groups by."""

    values: tuple[Any, ...]
    runs: RunSet


class RunAnswer(NamedTuple):
    """The runs that a question selects, in its order; see `columns.Answer`."""

    runs: RunSet
    total: int
    groups: list[RunGroup]


class RunPage(NamedTuple):
    """A page of the runs that a question selects, and the number of all of them.

    The next page starts at the offset `end`, after `mark`; the last page has no mark.
    """

    runs: RunSet
    total: int
    end: int
    mark: Mark | None


class _HeldOrder(NamedTuple):
    """All runs that a question selects, in its order; a cache entry."""

    question: Question
    version: tuple[object, ...]
    given: Ints
    rows: Ints


class _Shown(NamedTuple):
    """Which rows of the index are shown; a cache entry."""

    key: tuple[object, ...]
    rows: Ints
    size: int
    held: tuple[object, ...]  # keeps the objects whose ids are in the key alive


class Library:
    """The runs below a set of roots; `any_path` also allows paths and URIs outside them.

    Thread-safe: one lock guards all state, and is never held while a root is listed. The mapping of
    roots is replaced, never changed, so that an event loop can read it without the lock.
    """

    def __init__(
        self,
        index: Index,
        roots: Iterable[Root | str] = (),
        *,
        any_path: bool = True,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self.index = index
        self.any_path = any_path
        self._clock = clock
        self._lock = threading.RLock()
        self._roots: Mapping[str, Root] = {}
        self._real_roots: dict[str, str] = {}  # of local roots
        self._states: dict[str, RootState] = {}
        self._shown: _Shown | None = None
        self._metrics: Metrics | None = None
        self._orders: list[_HeldOrder] = []  # least recently used first
        self._records: dict[str, tuple[int, dict[str, KnownRun | None]]] = {}
        self._record_roots: dict[Source, str] = {}
        for root in roots:
            self.add_root(root)

    # Roots.

    @property
    def roots(self) -> tuple[Root, ...]:
        return tuple(self._roots.values())

    def root_names(self) -> dict[str, str]:
        """Return the names of the roots by URI: the given name, else the shortest distinct one.

        `/a/runs` and `s3://bucket/runs` become `a/runs` and `bucket/runs`; a single one `runs`.
        """
        roots = self.roots
        endings = {root.uri: _endings(root.uri) for root in roots}
        names = {root.uri: root.name for root in roots}
        for uri in (root.uri for root in roots if not root.name):
            others = {name for one, held in endings.items() if one != uri for name in held}
            others |= {root.name for root in roots if root.name}
            names[uri] = next((name for name in endings[uri] if name not in others), uri)
        return names

    @property
    def uris(self) -> list[str]:
        return list(self._roots)

    def add_root(self, root: Root | str) -> Root:
        """Add a root, or replace the one with the same URI."""
        added = Root(canonical(root)) if isinstance(root, str) else root
        real = {} if is_remote(added.uri) else {added.uri: os.path.realpath(added.uri)}
        with self._lock:
            self._roots = {**self._roots, added.uri: added}
            self._real_roots = self._real_roots | real
            self._states.setdefault(added.uri, RootState())
            self._record_roots.clear()
        return added

    def refresh(self, root: str, *, marks: bool = True) -> CatalogReport | None:
        """Look for runs below a root; None if it cannot be listed, for the reason in its state."""
        try:
            report = self.index.refresh_catalog(root, marks=marks)
        except StorageError as error:
            with self._lock:
                before = self.state(root)
                self._states[root] = RootState(self._clock(), error, (), before.marks)
            return None
        with self._lock:
            held = report.marks if marks else self.state(root).marks
            self._states[root] = RootState(self._clock(), None, tuple(report.problems), held)
        return report

    def refresh_all(self) -> None:
        """Look for runs below all roots, except buckets that were listed a moment ago."""
        now = self._clock()
        for uri in self.uris:
            listed = self.state(uri).at
            if listed is None or now - listed > _BUCKET_SECONDS or not is_remote(uri):
                self.refresh(uri)

    def state(self, root: str) -> RootState:
        with self._lock:
            return self._states.get(root) or RootState()

    def environment(self, sources: Iterable[Source]) -> dict[str, str]:
        """Return the environment variables that another process needs to read the sources.

        Raises:
            BadSelector: the sources are below roots with different variables.
        """
        found: dict[str, str] = {}
        for source in sources:
            for root in self.roots:
                if not is_below(source.uri, root.uri):
                    continue
                for name, value in root.environment.items():
                    if found.setdefault(name, value) != value:
                        raise BadSelector(
                            f"the roots of this selection differ in {name}.",
                            "Select runs of one root, or start an instant board.",
                        )
        return found

    def may_show(self, uri: str) -> bool:
        """Return whether a place is below a root, and not behind a link that leads out of it."""
        if self.any_path:
            return True
        return any(is_below(uri, root) for root in self.uris) and self._stays_inside(uri)

    def _stays_inside(self, uri: str) -> bool:
        if self.any_path or is_remote(uri):
            return True
        real = os.path.realpath(uri)
        return any(is_below(real, root) for root in self._real_roots.values())

    # Selectors.

    @staticmethod
    def parse(texts: Iterable[str], *, exists: Exists | None = None) -> tuple[Selector, ...]:
        """Parse selectors; a comma separates several in one text.

        `exists` tells whether a word that could be an experiment is an existing path. Without it,
        relative paths are refused: they are relative to another process.

        Raises:
            BadSelector: a selector is invalid, or a relative path of another process.
        """
        parsed = parse_all(texts) if exists is None else parse_all(texts, exists=exists)
        return tuple(_with_uri(one, is_local=exists is not None) for one in parsed)

    def runs(self) -> RunSet:
        """Return the known runs that may be shown, in natural order."""
        return RunSet(self)

    def known_runs(self) -> list[KnownRun]:
        """Return the records of all known runs that may be shown, in natural order."""
        known = self.index.known_runs(self.uris)
        return known if self.any_path else [run for run in known if self._stays_inside(run.uri)]

    def count(self, root: str) -> int:
        """Return the number of known runs below a root."""
        import numpy as np

        table = self.table()
        return int(np.count_nonzero(table.column(Field("root")).compare("==", root)[table.rows]))

    def places_of_runs(self, uris: Collection[str]) -> set[str]:
        """Return the known runs that contain any of the URIs, or are one of them."""
        found: set[str] = set()
        for root in self.uris:
            start = len(root.rstrip("/")) + 1
            below = {
                one for uri in uris if is_below(uri, root) for one in with_parents(uri[start:])
            }
            if below:
                found.update(join(root, one) for one in self.index.ids_of(root, below))
        return {uri for uri in found if self._stays_inside(uri)}

    def changes_since(self, change: tuple[int, int]) -> CatalogChanges | None:
        """Return the changes to runs since a change; None if it is of another index."""
        changes = self.index.changes_since(change, self.uris)
        if changes is None or self.any_path:
            return changes
        new, changed = (
            [run for run in some if self._stays_inside(run.uri)]
            for some in (changes.new, changes.changed)
        )
        return changes._replace(new=new, changed=changed)

    def lost(self, now: float) -> frozenset[int]:
        """Return the rows of the runs that are lost at the time `now`."""
        table = self.table()
        table.now = now
        return frozenset(table.rows[table.lost[table.rows]].tolist())

    def run(self, identity: str) -> KnownRun | None:
        """Return a known run by its id; None if it does not exist or may not be shown."""
        for root in self.uris:
            directory = directory_of_id(root, identity)
            if directory is None:
                continue
            run = self.index.known_run(root, directory)
            if run is not None and self._stays_inside(run.uri):
                return run
        return None

    def find(self, selectors: Sequence[Selector] = (), *, unambiguous: bool = False) -> RunSet:
        """Return the known runs that the selectors select; all runs without selectors.

        A path or URI selects the runs in and below it, which may be none. With `unambiguous`, the
        name of a run without its experiment must match one run only.

        Raises:
            NothingMatches: a selector other than a path matches no run.
            AmbiguousRun: a name without an experiment matches several runs.
        """
        if not selectors:
            return self.runs()
        selected = self._select(selectors, unambiguous=unambiguous)
        return RunSet(self, self._with_places(selectors, selected))

    # Questions.

    def to_read(self, question: Question, runs: RunSet, fields: Iterable[Field] = ()) -> RunSet:
        """Return the runs whose event files must be read to answer a question.

        `fields` are further fields to read. Hyperparameters and last values of metrics are in
        records; for a run without a record, or a record without any, they are in its event files.
        """
        named = [*question.fields, *fields]
        if not any(one.group in _LOGGED for one in named):
            return self.none()
        raw = self._raw(question, runs, named)
        metrics = [one for one in named if one.group == "metrics"]
        if not metrics:
            return raw
        left = self.narrow(question.prefilter, runs)
        if any(one.statistic != LAST for one in metrics):
            return self._joined(left, raw)
        table, rows = self.table(), left.rows
        rows = rows[rows < len(table)]
        lacks = rows < 0
        for one in metrics:
            lacks |= ~table.stored(f"metrics.{one.name}").present[rows]
        return self._joined(RunSet(self, rows[lacks]), raw)

    def _raw(self, question: Question, runs: RunSet, fields: Iterable[Field]) -> RunSet:
        """Return the runs that a question may select once their event files are read.

        They have no record, or `fields` has hyperparameters and their records have none.
        """
        table = self.table()
        is_raw = ~table.stored("recorded_state").present
        if any(one.group == "hparams" for one in fields):
            is_raw |= table.stored("no_hparams").present
        if not is_raw[table.rows].any():
            return self.none()
        rows = self.narrow(question.prefilter_of_raw, runs).rows
        rows = rows[rows < len(table)]
        return RunSet(self, rows[is_raw[rows]])

    def _joined(self, some: RunSet, more: RunSet) -> RunSet:
        import numpy as np

        return RunSet(self, np.union1d(some.rows, more.rows)) if len(more) else some

    def unread(self, runs: Sequence[KnownRun]) -> int:
        """Return how many of the runs were never read, but may have event files."""
        if not runs:
            return 0
        known = self.index.marks([Source(run.uri) for run in runs])
        left = [run for run, marks in zip(runs, known, strict=True) if not marks]
        return sum(self.state(run.root).marks.get(run.directory) != 0 for run in left)

    def narrow(self, question: Question, runs: RunSet) -> RunSet:
        """Return the runs that a question selects, in its order."""
        if question == Question():  # selects all; counting them would read their records
            return runs
        return self.answer(question, runs, check=False).runs

    def values(self, field: Field, runs: RunSet | Sequence[KnownRun]) -> list[Any]:
        """Return the value of a field for each run; None if it has none."""
        table = self.table()
        rows = self.rows_of(runs)
        known = rows[(rows >= 0) & (rows < len(table))]
        if len(known) == len(rows):
            return table.column(field).values(rows)
        found = dict(zip(known.tolist(), table.column(field).values(known), strict=True))
        return [found.get(row) for row in rows.tolist()]

    def rows_of(self, runs: RunSet | Sequence[KnownRun]) -> Ints:
        """Return the row of each run; -1 if it is not known."""
        if isinstance(runs, RunSet):
            return runs.rows
        import numpy as np

        by_root: dict[str, list[str]] = {}
        for run in runs:
            by_root.setdefault(run.root, []).append(run.directory)
        ids = {root: self.index.ids_of(root, held) for root, held in by_root.items()}
        return np.array([ids[run.root].get(run.directory, -1) for run in runs], np.int64)

    def names(self, group: str, runs: Sequence[KnownRun]) -> list[str]:
        """Return the names of the hyperparameters, tags or metrics of the runs."""
        table, rows = self.table(), self.rows_of(runs)
        rows = rows[(rows >= 0) & (rows < len(table))]
        fields = {
            name: Field(name, group, LAST * (group == "metrics")) for name in table.names(group)
        }
        return [name for name, one in fields.items() if table.column(one).present[rows].any()]

    def table(self) -> RunTable:
        """Return the known runs as a table, whose columns are loaded on demand."""
        from aboard.index.columns import Metrics, RunTable

        shown = self._shown_rows()  # without the lock: links are followed, which may hang
        with self._lock:
            if self._metrics is None:
                self._metrics = Metrics(self.index)
            return RunTable(self._metrics, self.uris, shown.rows, shown.size, self._clock())

    def _shown_rows(self) -> _Shown:
        import numpy as np

        columns = self.index.columns
        order = columns.order()
        roots, linked = columns.cells("root"), columns.cells("linked")
        uris = self.uris
        # These objects stay the same until something in them changes.
        key = (id(order), id(roots), id(linked), *uris)
        held = self._shown
        if held is not None and held.key == key:
            return held
        size = min(len(roots.codes), len(linked.codes))
        shown = np.zeros(size, np.bool_)
        codes = [code for code, one in enumerate(roots.words) if one in self._roots]
        shown[np.isin(roots.codes[:size], codes)] = True
        if not self.any_path:
            rows = np.flatnonzero(shown & linked.has[:size])
            shown[rows] = False  # including those deleted meanwhile
            for row, run in self.index.runs_by_id(rows.tolist()).items():
                shown[row] = self._stays_inside(run.uri)
        for outer, inner in permutations(uris, 2):
            if is_below(inner, outer):
                pairs = self.index.repeated_runs(outer, inner)
                gone = [pair[uris.index(outer) < uris.index(inner)] for pair in pairs]
                shown[[one for one in gone if one < size]] = False
        left = order[order < size]
        self._shown = found = _Shown(key, left[shown[left]], size, (order, roots, linked))
        return found

    def answer(self, question: Question, runs: RunSet, *, check: bool = True) -> RunAnswer:
        """Answer a question over some of the known runs.

        Metrics come from the index; the last value comes from the run's record if that is newer.
        With `check`, each hyperparameter, metric and tag in the question must exist in some run.

        Raises:
            BadQuestion: no run has a hyperparameter, metric or tag that the question names.
        """
        from aboard.runs.columns import answer

        if question == Question():
            return RunAnswer(runs, len(runs), [])
        table = self.table()
        rows = table.rows if runs.is_all else runs.rows
        if check:
            table.check(question)
        found = answer(question, table, rows[rows < len(table)])
        groups = [RunGroup(one.values, RunSet(self, one.rows)) for one in found.groups]
        return RunAnswer(RunSet(self, found.rows), found.total, groups)

    def hint_for_nothing(self, question: Question) -> str:
        """Return why no run may match a question, such as a type that no value has; or nothing."""
        from aboard.runs.columns import hint_for_nothing

        return "" if question.where is None else hint_for_nothing(question.where, self.table())

    def check(self, fields: Iterable[Field]) -> None:
        """Check that each hyperparameter, metric and tag exists in some run.

        Raises:
            BadQuestion: no run has one of them.
        """
        self.table().check(Question(group_by=tuple(fields)))

    def suggest(self, error: UnknownField) -> UnknownField:
        """Return the error with a suggestion of names that some run has."""
        table = self.table()
        return error.suggest({group: table.names(group) for group in GROUPS})

    def page(
        self,
        question: Question,
        runs: RunSet,
        start: int | Mark = 0,
        *,
        limit: int,
        check: bool = True,
    ) -> RunPage:
        """Return a page of the runs that a question selects, from an offset or after a mark.

        The question must not group; its limit is ignored. See `answer` for the rest.
        """
        from aboard.runs.columns import Mark, answer, mark_of, place_behind

        version = self.index.last_change(), self.index.stamp() if question.metrics else 0
        table = self.table()
        if isinstance(start, Mark) and start.now is not None:
            table.now = start.now
        rows = table.rows if runs.is_all else runs.rows
        rows = rows[rows < len(table)]
        if check:
            table.check(question)
        place = 0
        if start == 0:
            found = answer(replace(question, limit=limit), table, rows)
            chosen, total = found.rows, found.total
        else:
            order = self._ordered(replace(question, limit=None), version, table, rows)
            keys = question.sort
            place = start if isinstance(start, int) else place_behind(start, keys, table, order)
            chosen, total = order[place : place + limit], len(order)
        mark, end = None, place + len(chosen)
        if len(chosen) and end < total:
            mark = mark_of(question.sort, table, int(chosen[-1]))
            mark = mark._replace(now=table.now if question.is_timed else None)
        return RunPage(RunSet(self, chosen), total, end, mark)

    def _ordered(
        self, question: Question, version: tuple[object, ...], table: RunTable, rows: Ints
    ) -> Ints:
        """Return the rows that a question selects; cached, since later pages need them again."""
        import numpy as np

        from aboard.runs.columns import answer

        with self._lock:
            held = [
                one
                for one in self._orders
                if one.version == version
                and one.question == question
                and np.array_equal(one.given, rows)
            ]
        order = held[0].rows if held else answer(question, table, rows).rows
        if not question.is_timed:
            used = held[0] if held else _HeldOrder(question, version, rows, order)
            with self._lock:
                others = [one for one in self._orders if one is not used]
                self._orders = [*others, used][-_MOST_ORDERS:]
        return order

    def means(self, field: Field, groups: Iterable[RunSet]) -> list[float | None]:
        """Return the mean of the finite numbers of a field in each group; None if it has none."""
        from aboard.runs.columns import mean_of

        table = self.table()
        column = table.column(field)
        return [mean_of(column, one.rows[one.rows < len(table)]) for one in groups]

    def facet(self, field: Field, runs: RunSet, limit: int) -> Facet:
        """Count the values of a field over some runs."""
        from aboard.runs.columns import facet

        table, rows = self.table(), runs.rows
        return facet(table.column(field), rows[rows < len(table)], limit)

    def recorded_fields(self, runs: RunSet) -> dict[str, int]:
        """Return the number of runs with each hyperparameter, metric and tag in their records."""
        counts = self.index.columns.counts(runs.rows)
        starts = tuple(f"{group}." for group in GROUPS)
        return {name: count for name, count in counts.items() if name.startswith(starts)}

    def resolve(self, selectors: Sequence[Selector]) -> list[Member]:
        """Return what selectors select; a path or URI is one member, with all runs below it.

        A job whose record is below a root may have no runs yet.

        Raises:
            BadSelector: a run is excluded from a path, which is not possible.
            NothingMatches: a selector matches no run, or a directory does not exist.
            OutsideRoots: a place may not be shown.
        """
        for one in selectors:
            if one.place:
                self._check_place(one)
        self._check_exclusions(selectors)
        rows = self._select(selectors, with_jobs=True)
        return self._members(selectors, RunSet(self, rows))

    def roots_of(self, job: str) -> list[str]:
        """Return the roots that have a record of a job."""
        try:
            record = job_file(job)
        except BadName:
            return []
        return [uri for uri in self.uris if _has_file(uri, record)]

    def members(
        self, selectors: Sequence[Selector], question: Question | None = None
    ) -> list[Member]:
        """Return what selectors select now, ignoring those that match nothing any more.

        With a question, the members are the runs that it selects, including those below a path.
        """
        rows = self._matching(selectors)
        if question is None:
            return self._members(selectors, RunSet(self, rows))
        selected = self.narrow(question, RunSet(self, self._with_places(selectors, rows)))
        return [Member(Source(uri), label) for uri, label in self._named(selected)]

    def candidates(self, selectors: Sequence[Selector], question: Question | None) -> RunSet | None:
        """Return the runs whose event files affect the answer to a question; None if none do."""
        if question is None or not any(one.group in _LOGGED for one in question.fields):
            return None
        runs = RunSet(self, self._with_places(selectors, self._matching(selectors)))
        raw = self._raw(question, runs, question.fields)
        if not question.metrics and not raw:
            return None
        return self._joined(self.narrow(question.prefilter, runs), raw)

    def _matching(self, selectors: Sequence[Selector]) -> Ints:
        if all(one.place for one in selectors):  # these match no rows; skips loading the table
            return self.none().rows
        return match(selectors, Known(self.table()))

    def _with_places(self, selectors: Sequence[Selector], rows: Ints) -> Ints:
        """Return rows plus those in and below the paths and URIs among the selectors."""
        places = [one.place for one in selectors if one.place]
        if not places:
            return rows
        import numpy as np

        table = self.table()
        chosen = np.zeros(len(table), np.bool_)
        chosen[rows[rows < len(table)]] = True
        chosen[self._rows_below(table, places)] = True
        for gone in excluded(selectors, Known(table, bounded=True)):
            chosen[gone] = False
        return table.rows[chosen[table.rows]]

    def _rows_below(self, table: RunTable, places: Sequence[str]) -> Ints:
        import numpy as np

        is_inside = _inside(places)
        found = [table.rows[:0]]
        roots = table.column(Field("root"))
        directories = table.column(Field("directory"))
        for root in self.uris:
            of_root = table.rows[roots.compare("==", root)[table.rows]]
            if is_inside(root):
                found.append(of_root)
            elif any(is_below(place, root) for place in places):
                held = directories.values(of_root)
                inside = [is_inside(join(root, str(one or ""))) for one in held]
                found.append(of_root[np.array(inside, np.bool_)])
        return np.concatenate(found)

    def none(self) -> RunSet:
        """Return an empty set of runs."""
        import numpy as np

        return RunSet(self, np.zeros(0, np.int64))

    def _named(self, runs: RunSet) -> Iterator[tuple[str, str]]:
        """Yield the URI and the label of each run."""
        table, rows = self.table(), runs.rows
        rows = rows[rows < len(table)]
        names = ("root", "directory", "experiment", "name")
        columns = (table.column(Field(one)).values(rows) for one in names)
        for root, directory, experiment, name in zip(*columns, strict=True):
            if root is not None:  # None if deleted
                yield join(root, directory or ""), f"{experiment}/{name}" if experiment else name

    def changed(
        self, selectors: Sequence[Selector], add: Sequence[Selector], remove: Sequence[Selector]
    ) -> tuple[Selector, ...]:
        """Return selectors with some added and some removed.

        Selectors that name removed runs are removed. If another selects them too, a `not:` selector
        is added; adding the run again removes that selector.

        Raises:
            NotSelected: the selectors do not select what is to be removed.
            BadSelector: a run cannot be excluded, or the selectors examine too many runs.
        """
        known = Known(self.table(), bounded=True)

        def rows_of(some: Iterable[Selector]) -> set[int]:
            return set(match(list(some), known).tolist())

        kept = {one.text: one for one in selectors}
        shown: Ints | None = None  # the rows that the kept selectors select
        for one in remove:
            if kept.pop(one.text, None) is not None:
                shown = None
                continue
            if shown is None:
                shown = match(tuple(kept.values()), known)
            known.look(len(shown) // 10)  # names cost less than patterns
            gone_runs = self._removed(one, shown, selectors)
            gone_rows = set(self.rows_of(gone_runs).tolist())
            for text, held in list(kept.items()):
                is_below_it = one.is_word and text.startswith(f"{one.text}/")
                if is_below_it or (held.names_one_run and rows_of([held]) & gone_rows):
                    del kept[text]
            left_out = parse_all(exclusion_of(selector_for(run)) for run in gone_runs)
            kept |= {more.text: more for more in left_out}
            shown = shown[[row not in gone_rows for row in shown.tolist()]]
        added = rows_of(one for one in add if not one.excludes)
        after = kept | {one.text: one for one in add}
        selected = rows_of(one for one in after.values() if not one.excludes)
        given = {one.text for one in add}
        changed = []
        for one in after.values():
            gone = rows_of([replace(one, excludes=False)]) if one.excludes else set()
            is_over = bool(gone) and (gone <= added or gone.isdisjoint(selected))
            if one.text in given or not is_over:
                changed.append(one)
        self._check_exclusions(changed)
        selected_all = all(one.excludes for one in selectors)
        if not selected_all and all(one.excludes for one in changed):
            return ()
        return tuple(changed)

    def _removed(
        self, removed: Selector, rows: Ints, selectors: Sequence[Selector]
    ) -> Sequence[KnownRun]:
        """Return the shown runs that a selector removes; raise if names cannot exclude them."""
        shown = RunSet(self, rows)
        gone: Sequence[KnownRun] = ()
        if removed.place:
            gone = [run for run in shown if is_below(run.uri, removed.place)]
        elif not removed.excludes:
            gone = RunSet(self, removed.rows(Known(self.table(), rows=rows)))
        if not gone:
            hint = f"Its selectors are {', '.join(one.text for one in selectors[:8])}."
            if any(one.place for one in selectors):
                hint += " Part of a path or URI cannot be removed."
            message = f"no selector of this board selects {removed.text[:80]!r}."
            raise NotSelected(message, hint)
        labels = {run.label for run in gone}
        uris = {run.uri for run in gone}
        for uri, label in self._named(shown):
            if label in labels and uri not in uris:
                raise BadSelector(
                    f"{label!r} is below several roots, and cannot be excluded from only one.",
                    "Select the others by path instead.",
                )
        if odd := [text for text in map(selector_for, gone) if is_path(text)]:
            raise BadSelector(
                f"{odd[0][:200]!r} cannot be excluded by name.",
                "Select the others by name instead.",
            )
        return gone

    def _select(
        self,
        selectors: Sequence[Selector],
        *,
        unambiguous: bool = False,
        with_jobs: bool = False,
    ) -> Ints:
        if all(one.place for one in selectors):
            return self.none().rows
        return select(
            selectors,
            Known(self.table(), bounded=True),
            unambiguous=unambiguous,
            is_expected=lambda one: with_jobs and bool(one.job and self.roots_of(one.job)),
        )

    def _members(self, selectors: Sequence[Selector], runs: RunSet) -> list[Member]:
        names = {
            Source.parse(one.place): one.name
            for one in selectors
            if one.place and self.may_show(one.place)
        }
        for uri, label in self._named(runs) if len(runs) else ():
            names.setdefault(Source(uri), label)
        return [Member(source, name) for source, name in names.items()]

    def _check_place(self, selector: Selector) -> None:
        uri = selector.place
        if not self.may_show(uri):
            known = ", ".join(self.uris) or "none"
            raise OutsideRoots(
                f"{selector.text[:200]!r} is not below a root of this hub.",
                f"The roots are {known}.",
            )
        if is_remote(uri):
            return
        with suppress(PermissionError):  # the follower reports it
            if not Path(uri).exists():
                error = NoSuchPath(uri, "no such directory", "Check the path.")
                raise NothingMatches(str(error))
            if EVENT_FILE not in Path(uri).name and not Path(uri).is_dir():
                problem = f"not an event file, whose name contains '{EVENT_FILE}'"
                error = NoSuchPath(uri, problem, "Name a directory or an event file.")
                raise NothingMatches(str(error))

    def _check_exclusions(self, selectors: Sequence[Selector]) -> None:
        """Refuse to exclude a run from a path or URI, which is always shown completely."""
        places = [one.place for one in selectors if one.place]
        if not places or not any(one.excludes for one in selectors):
            return
        is_inside = _inside(places)
        for rows in excluded(selectors, Known(self.table(), bounded=True)):
            for run in RunSet(self, rows):
                if is_inside(run.uri):
                    raise BadSelector(
                        f"{run.label!r} cannot be excluded from a path or URI that contains it.",
                        "Select runs by name instead of by path.",
                    )

    # Records of runs.

    def refresh_records(self, source: Source) -> None:
        """Read the records of a source again, unless it is below a root of this library."""
        place = self._record_root(source)
        if place not in self.uris:
            self.index.refresh_catalog(place, marks=False)

    def record_marks(self, sources: Iterable[Source]) -> tuple[int, ...]:
        """Return numbers that change when a record of one of the sources changes."""
        places = dict.fromkeys(self._record_root(source) for source in sources)
        return tuple(self.index.catalog_changes(place) for place in places)

    def record_of(self, source: Source, directory: str) -> KnownRun | None:
        """Return the run that contains a directory of a source, if it has a record."""
        place = self._record_root(source)
        changes = self.index.catalog_changes(place)
        with self._lock:
            if place not in self._records or self._records[place][0] != changes:
                self._records[place] = changes, {}
            runs = self._records[place][1]
            while len(directory) >= len(place):
                if directory not in runs:
                    runs[directory] = self.index.known_run(place, directory[len(place) + 1 :])
                found = runs[directory]
                if found is not None and found.is_recorded:
                    return found
                directory = directory.rpartition("/")[0]
        return None

    def _record_root(self, source: Source) -> str:
        with self._lock:
            found = self._record_roots.get(source)
            if found is None:
                found = next((uri for uri in self._roots if is_below(source.uri, uri)), None)
        if found is None:
            found = _run_above(source.uri) or source.uri
        with self._lock:
            return self._record_roots.setdefault(source, found)


def _with_uri(selector: Selector, *, is_local: bool) -> Selector:
    place = selector.place
    if not place:
        return selector
    if not is_local and (selector.name or ("://" not in place and not place.startswith("/"))):
        raise BadSelector(
            f"{selector.text!r}: the hub does not know your working directory.",
            "Use an absolute path: /data/logs.",
        )
    try:
        return replace(selector, place=canonical(place))
    except StorageError as error:
        raise BadSelector(str(error)) from error


def _has_file(uri: str, name: str) -> bool:
    try:
        open_storage(uri).read(name, 0, 1)
    except StorageError:
        return False
    return True


def _run_above(uri: str) -> str | None:
    """Return the nearest parent directory that has a record; None if `uri` itself has one."""
    place = uri
    for level in range(_LEVELS_ABOVE + 1):
        if _has_file(place, FILE_NAME):
            return place if level else None
        above, last = split(place)
        if not last or (is_remote(uri) and above.endswith("//")):
            return None
        place = above
    return None


def _endings(uri: str) -> list[str]:
    parts = [part for part in uri.partition("://")[2 if "://" in uri else 0].split("/") if part]
    return ["/".join(parts[-count:]) for count in range(1, len(parts) + 1)]


def _inside(places: Iterable[str]) -> Callable[[str], bool]:
    """Return a function that tells whether a URI is one of the places or below one."""
    exact = set(places)
    above = {place.rstrip("/") + "/" for place in exact}
    lengths = sorted({len(place) for place in above})

    def is_inside(uri: str) -> bool:
        return uri in exact or any(uri[:length] in above for length in lengths)

    return is_inside
