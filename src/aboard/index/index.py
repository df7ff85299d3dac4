"""The index of everything read so far, shared by threads and processes.

`Index` is the interface; `sources` plans what to read, `reader` reads it, `store` stores it and
`query` queries it. Sources can be refreshed concurrently: bytes that two threads or processes read
at the same time are stored once. A damaged index is replaced; one that cannot be written moves into
memory.
"""

from __future__ import annotations

import errno
import sqlite3
import threading
import time
from collections import deque
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple, TypeVar

from aboard.index import query, schema
from aboard.index.query import (
    Contents,
    Damage,
    EventFile,
    Marks,
    Run,
    UnknownName,
)
from aboard.index.sources import Plan, Source, make_plan, reread
from aboard.index.tags import DescribedNames, LaterTags, Segment, Tag, Tags
from aboard.storage.base import StorageError, bucket_of, is_remote
from aboard.system import NotPrivate, cache_place

if TYPE_CHECKING:
    from aboard.index.catalog import CatalogChanges, CatalogReport
    from aboard.index.columns import Columns
    from aboard.index.curves import GroupCurves
    from aboard.index.reader import Batch, SmallBatch
    from aboard.index.series import Ints, Pointer, Series, Summary
    from aboard.index.store import Forgotten, Store, TrafficHour
    from aboard.runs.catalog import KnownRun
    from aboard.runs.manifest import Manifest

T = TypeVar("T")
MetricKey = tuple[str, str]
Place = tuple[Source, str]  # a source, and the directory of a run of it
_MANY_TAGS = 100_000  # read at once
_LARGE_RUN = 200  # tags of a run that is worth its own query
_ATTEMPTS = 5
_MOST_IDLE = 8  # connections; each has its own cache


class Report:
    """What a refresh has read so far."""

    def __init__(self) -> None:
        self.files_read = 0
        self.files_unchanged = 0
        self.files_gone = 0
        self.files_failed = 0
        self.bytes_total = 0
        self.bytes_read = 0
        self.events = 0
        self.points = 0
        self.records = 0
        self.seconds = 0.0
        self.problems: list[StorageError] = []

    def __repr__(self) -> str:
        return f"Report({', '.join(f'{name}={value!r}' for name, value in vars(self).items())})"

    def add(self, batch: Batch) -> None:
        self.files_read += batch.last
        self.bytes_read += batch.scanned
        self.events += batch.taken.events
        for part in batch.taken.points:
            self.points += part.size
        for part in batch.taken.pointers:
            if part.series >= 0:
                self.records += part.size

    def add_small(self, batch: SmallBatch) -> None:
        self.files_read += len(batch.files)
        self.bytes_read += sum([reading.entry.size for reading in batch.readings])
        for file in batch.files:
            self.events += file.events
            self.points += file.points
            self.records += file.records


Progress = Callable[[Report], None]


class IndexProblem(NamedTuple):
    """Why the index is not stored where it should be, or is not as small as it could be."""

    message: str
    hint: str

    def __str__(self) -> str:
        return f"{self.message}. {self.hint}"


class Index:
    """The index at `path`, by default in the user's cache on this machine.

    A `read_only` index is never changed: if it is damaged or missing, its methods raise.

    Thread-safe: one lock guards what is created on first use. Sources and problems need none: they
    are added one by one, and copied before they are iterated.
    """

    def __init__(self, path: Path | None = None, *, read_only: bool = False) -> None:
        self.problems: list[IndexProblem] = []
        self._sources: dict[Source, None] = {}
        if path is None:
            place = cache_place()
            path = place.directory / schema.FILE_NAME
            if place.reason:
                self.problems.append(
                    IndexProblem(
                        f"{place.reason}, so the index is in {place.directory} on this machine",
                        "Set ABOARD_CACHE to a local directory to choose another place.",
                    )
                )
        self._lock = threading.Lock()
        self._groups: GroupCurves | None = None
        self._columns: Columns | None = None
        self._connections = Connections(path, self._moved_to_memory, read_only=read_only)

    @property
    def path(self) -> Path | None:
        """The index's file; None for an index in memory."""
        return self._connections.path

    @property
    def stored_bytes(self) -> int | None:
        return None if self.path is None else schema.size(self.path)

    def copy_memory(self, known: int = -1) -> tuple[int, bytes]:
        """Return the change count of an index in memory; and its bytes, unless that is `known`."""
        with self._connections.lend() as connection:
            changes = connection.total_changes
            return changes, b"" if changes == known else connection.serialize()

    def close(self) -> None:
        self._connections.close()

    def __enter__(self) -> Index:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def refresh(
        self,
        source: Source,
        *,
        anew: bool = False,
        progress: Progress | None = None,
        part: Source | None = None,
    ) -> Report:
        """Update the index from a source, or only from a part of it; `anew` reads it all again."""
        self._sources[source] = None
        place = source if part is None else part
        try:
            return self._do(
                lambda connection: refresh(connection, place, anew=anew, progress=progress)
            )
        finally:
            if is_remote(source.uri):
                self._save_traffic()

    def runs(self, source: Source) -> list[Run]:
        return self._ask(lambda connection: query.runs(connection, source))

    def tags(self, source: Source, *, most: int | None = None) -> list[Tag]:
        """Return the first `most` tags of a source, sorted by run and name."""
        return self._ask(lambda connection: list(islice(query.tags(connection, source), most)))

    def stamp(self) -> int:
        """Return a number that changes whenever the mark of any run changes. Cheap."""
        return self._ask(query.stamp)

    def marks(self, sources: Sequence[Source]) -> list[Marks]:
        return self._ask(lambda connection: query.marks(connection, sources))

    def tags_of(
        self, places: Collection[Place], *, most: int
    ) -> tuple[dict[Place, Tags], dict[str, int]]:
        """Return the first `most` tags of each run; and the number of tags of runs with more.

        If there are very many, the tags of large runs are read on demand.
        """

        def read(connection: schema.Connection) -> tuple[dict[Place, Tags], dict[str, int]]:
            found: dict[Place, Tags] = {}
            with query.at_one_moment(connection):
                counts = query.segment_counts(connection, {one for _, one in places})
                large = [one for one, count in counts.items() if count > most]
                beyond = query.crowded(connection, large, most)
                later = {one for one, count in counts.items() if count >= _LARGE_RUN}
                if counts and sum(min(one, most) for one in counts.values()) < _MANY_TAGS:
                    later = set()
                described = query.described(connection, later) if later else {}
                now = [place for place in places if place[1] not in later]
                found |= query.tags_of(connection, now, beyond)
            for place in places:
                if place[1] in later:
                    end = beyond.get(place[1])
                    about = described[place[1]]
                    reader = _RunTags(self, place, end, are_alike=len(about) == 1)
                    found[place] = LaterTags(about, reader)
            return found, {directory: one.tags for directory, one in beyond.items()}

        return self._ask(read)

    def find_tag(self, source: Source, run: str, tag: str) -> Tag | None:
        return self._ask(lambda connection: query.find_tag(connection, source, run, tag))

    def metrics(self, runs: Collection[Source], names: Collection[str]) -> dict[MetricKey, Tag]:
        """Return the scalar tags of the runs with the given names, by URI of the run and name."""
        return self._ask(lambda connection: query.metrics(connection, runs, names))

    def tag_counts(self, source: Source) -> dict[str, int]:
        return self._ask(lambda connection: query.tag_counts(connection, source))

    def series(
        self,
        tag: Tag,
        *,
        samples: int | None = None,
        start: int | None = None,
        stop: int | None = None,
    ) -> Series:
        """Return the points of a scalar tag, with steps from `start` to `stop`, both included.

        With `samples`, return at most that many points, which include the first, the last, the
        smallest and the largest.

        Raises:
            UnknownName: the tag was deleted since it was listed.
        """
        return self._read(tag, partial(self._points, samples=samples, start=start, stop=stop))

    def many_series(
        self,
        tags: Sequence[Tag],
        *,
        samples: int | None = None,
        start: int | None = None,
        stop: int | None = None,
        together: bool = False,
    ) -> list[Series | None]:
        """Return the points of many scalar tags, as `series` does; None for a deleted tag.

        With `together`, all tags are sampled at the same steps.
        """
        from aboard.index.series import sample_together

        if not together or samples is None:
            read = partial(self._points, samples=samples, start=start, stop=stop)
            return self._of_tags(tags, read)
        found = self._of_tags(tags, partial(self._points, start=start, stop=stop))
        left = [one for one in found if one is not None]
        sampled = iter(sample_together(left, samples) if left else ())
        return [None if one is None else next(sampled) for one in found]

    def _points(
        self,
        connection: schema.Connection,
        tag: Tag,
        *,
        samples: int | None = None,
        start: int | None = None,
        stop: int | None = None,
    ) -> Series:
        from aboard.index.series import read_series

        if tag.group is None:
            return read_series(connection, tag, samples=samples, start=start, stop=stop)
        series = self._group_curves().read(connection, tag.group).between(start, stop)
        return series if samples is None else series.sample(samples)

    def _group_curves(self) -> GroupCurves:
        from aboard.index.curves import GroupCurves

        with self._lock:
            if self._groups is None:
                self._groups = GroupCurves()
            return self._groups

    def summaries(self, tags: Sequence[Tag]) -> list[Summary | None]:
        """Return the summaries of tags; None for a tag that was deleted or is not a scalar."""
        from aboard.index.series import read_summaries

        return self._of_many(tags, read_summaries)

    def pointers(self, tag: Tag, *, step: int | None = None) -> list[Pointer]:
        """Return where the values of a tag that is not a scalar are stored: all, or of one step.

        Raises:
            UnknownName: the tag was deleted since it was listed.
        """
        from aboard.index.series import read_pointers

        return self._read(tag, partial(read_pointers, step=step))

    def damages(self, source: Source) -> list[Damage]:
        return self._ask(lambda connection: query.damages(connection, source))

    def files(self, source: Source) -> list[EventFile]:
        return self._ask(lambda connection: query.files(connection, source))

    def written_steps(self, segment: Segment) -> Ints:
        from aboard.index.series import written_steps

        return self._ask(lambda connection: written_steps(connection, segment))

    def refresh_catalog(self, root: str, *, marks: bool = True) -> CatalogReport:
        from aboard.index.catalog import refresh_catalog

        try:
            return self._do(lambda connection: refresh_catalog(connection, root, marks=marks))
        finally:
            if is_remote(root):
                self._save_traffic()

    def known_runs(self, roots: Sequence[str]) -> list[KnownRun]:
        from aboard.index.catalog import known_runs, refresh_catalog

        def refill(connection: schema.Connection) -> None:
            for root in roots:
                with suppress(StorageError):
                    refresh_catalog(connection, root)

        return self._do(lambda connection: known_runs(connection, roots), after_replacing=refill)

    def known_run(self, root: str, directory: str) -> KnownRun | None:
        from aboard.index.catalog import known_run

        return self._do(lambda connection: known_run(connection, root, directory))

    @property
    def columns(self) -> Columns:
        from aboard.index.columns import Columns

        with self._lock:
            if self._columns is None:
                self._columns = Columns(self._do)
            return self._columns

    def runs_of(self, ids: Sequence[int]) -> list[KnownRun]:
        """Return the runs with the ids, in this order, without deleted ones."""
        found = self.runs_by_id(ids)
        return [found[one] for one in ids if one in found]

    def runs_by_id(self, ids: Sequence[int]) -> dict[int, KnownRun]:
        from aboard.index.catalog import runs_by_id

        return self._do(lambda connection: runs_by_id(connection, ids))

    def ids_of(self, root: str, directories: Collection[str]) -> dict[str, int]:
        """Return the ids of the runs among `directories`, by directory."""
        from aboard.index.catalog import ids_of

        return self._do(lambda connection: ids_of(connection, root, directories))

    def repeated_runs(self, root: str, inner: str) -> list[tuple[int, int]]:
        """Return the ids of the runs listed both below `root` and below `inner`, a root inside."""
        from aboard.index.catalog import repeated_runs

        return self._do(lambda connection: repeated_runs(connection, root, inner))

    def column_names(self, group: str, roots: Collection[str]) -> list[str]:
        """Return the names of the hyperparameters, tags or metrics of the runs below the roots."""
        from aboard.index.catalog import column_names

        return self._do(lambda connection: column_names(connection, group, roots))

    def experiments_like(self, start: str, roots: Collection[str]) -> list[str]:
        """Return the experiments of the roots that begin with `start`, sorted."""
        from aboard.index.catalog import experiments_like

        return self._do(lambda connection: experiments_like(connection, start, roots))

    def labels_of(
        self, experiment: str, start: str, roots: Collection[str], most: int
    ) -> list[str]:
        """Return up to `most` labels of an experiment's runs whose names begin with `start`.

        They are in natural order: `run10` is after `run9`.
        """
        from aboard.index.catalog import labels_of

        return self._do(lambda connection: labels_of(connection, experiment, start, roots, most))

    def last_change(self) -> tuple[int, int]:
        """Return the epoch of the index and the number of the last change to its runs. Cheap."""
        from aboard.index.catalog import last_change

        return self._do(last_change)

    def changes_since(
        self, since: tuple[int, int], roots: Collection[str]
    ) -> CatalogChanges | None:
        """Return the changes to the runs of the roots; None if `since` is of another index."""
        from aboard.index.catalog import changes_since

        def read(connection: schema.Connection) -> CatalogChanges | None:
            with query.at_one_moment(connection):
                return changes_since(connection, since, roots)

        return self._do(read)

    def put_record(self, root: str, directory: str, record: Manifest) -> KnownRun:
        from aboard.index.catalog import put_record

        return self._do(lambda connection: put_record(connection, root, directory, record))

    def forget_run(self, root: str, directory: str) -> None:
        from aboard.index.catalog import forget_run

        self._do(lambda connection: forget_run(connection, root, directory))

    def catalog_changes(self, root: str) -> int:
        from aboard.index.catalog import catalog_changes

        return self._do(lambda connection: catalog_changes(connection, root))

    def traffic(self, uri: str) -> list[TrafficHour]:
        from aboard.index.store import read_traffic

        bucket = bucket_of(uri)
        return self._ask(lambda connection: read_traffic(connection, bucket))

    def _save_traffic(self) -> None:
        from aboard.index.store import save_untaken_traffic

        self._do(save_untaken_traffic)

    def point_counts(self, tags: Sequence[Tag]) -> list[int]:
        """Return the number of values of each tag, without those superseded by restarts."""
        restarted = [tag for tag in tags if not tag.in_order]
        if not restarted:
            return [tag.points for tag in tags]
        left = iter(self._of_tags(restarted, _values_left))
        return [tag.points if tag.in_order else next(left) or 0 for tag in tags]

    def contents(self, source: Source) -> Contents:
        def count(connection: schema.Connection) -> Contents:
            with query.at_one_moment(connection):
                return query.contents(connection, source, partial(_values_left, connection))

        return self._ask(count)

    def forget(self, source: Source) -> Forgotten:
        from aboard.index.store import forget

        self._sources.pop(source, None)
        return self._do(lambda connection: forget(connection, source))

    def compact(self) -> None:
        """Return unused space to the disk; a failure is added to `problems`."""
        from aboard.index.store import compact

        if self.path is None:
            return
        try:
            with self._connections.lend() as connection:
                compact(connection)
        except sqlite3.Error as error:
            problem = f"the index {self.path} could not be compacted ({error})"
            hint = "Compacting needs as much free space as the index; free some, or try again."
            self.problems.append(IndexProblem(problem, hint))

    def _read(self, tag: Tag, read: Callable[[schema.Connection, Tag], T]) -> T:
        (found,) = self._of_tags([tag], read)
        if found is None:
            raise UnknownName(
                f"tag {tag.name!r} of run {tag.run!r} is no longer in {tag.source.uri}: its files"
                " were deleted or replaced since it was listed. List the tags again."
            )
        return found

    def _of_tags(
        self, tags: Sequence[Tag], read: Callable[[schema.Connection, Tag], T]
    ) -> list[T | None]:
        return self._of_many(tags, lambda connection, some: [read(connection, tag) for tag in some])

    def _of_many(
        self,
        tags: Sequence[Tag],
        read: Callable[[schema.Connection, Sequence[Tag]], Sequence[T | None]],
    ) -> list[T | None]:
        """Read from the current state of tags, which may have changed since they were listed."""
        refreshed: set[Source] = set()

        def attempt(connection: schema.Connection) -> tuple[list[T | None], set[Source]]:
            with query.at_one_moment(connection):
                if query.are_held(connection, tags):
                    return list(read(connection, tags)), set()
                found, unsure = query.current(connection, tags)
                answers = iter(read(connection, [tag for tag in found if tag is not None]))
                return (
                    [None if tag is None else next(answers) for tag in found],
                    {one for one in unsure - refreshed if one in self._sources},
                )

        while True:
            answers, unsure = self._ask(attempt)
            if not unsure:
                return answers
            for source in unsure:
                with suppress(StorageError):
                    self.refresh(source)
            refreshed |= unsure

    def _ask(self, work: Callable[[schema.Connection], T]) -> T:
        return self._do(work, after_replacing=self._refill)

    def _do(
        self,
        work: Callable[[schema.Connection], T],
        after_replacing: Callable[[schema.Connection], None] | None = None,
    ) -> T:
        generation = self._connections.generation
        try:
            with self._connections.lend() as connection:
                return work(connection)
        except sqlite3.Error as error:
            self._connections.replace(error, generation)
        with self._connections.lend() as connection:
            if after_replacing:
                after_replacing(connection)
            return work(connection)

    def _refill(self, connection: schema.Connection) -> None:
        for source in list(self._sources):
            with suppress(StorageError):
                refresh(connection, source)

    def _moved_to_memory(self, reason: str, error: Exception) -> None:
        self.problems.append(
            IndexProblem(
                f"{reason} ({error}), so it is kept in memory and lost when this process exits",
                _hint_for(error),
            )
        )


class _RunTags:
    def __init__(
        self, index: Index, place: Place, beyond: query.Crowded | None, *, are_alike: bool
    ) -> None:
        self._index = index
        self._place = place
        self._beyond = beyond
        self._are_alike = are_alike

    def find(self, name: str) -> Tag | None:
        if self._beyond is not None and name >= self._beyond.beyond:
            return None
        source, directory = self._place
        return self._index.find_tag(source, source.run_name(directory), name)

    def names(self) -> DescribedNames | None:
        end = self._beyond.beyond if self._beyond else None
        return self._index._ask(
            lambda connection: query.described_names(
                connection, self._place, end, are_alike=self._are_alike
            )
        )

    def all(self) -> Tags:
        only = {self._place[1]: self._beyond} if self._beyond else {}
        found = self._index._ask(
            lambda connection: dict(query.tags_of(connection, [self._place], only))
        )
        return found.get(self._place, Tags({}))


def _values_left(connection: schema.Connection, tag: Tag) -> int:
    if tag.in_order:
        return tag.points
    from aboard.index.series import count_survivors

    return count_survivors(connection, tag)


def _hint_for(error: Exception) -> str:
    if isinstance(error, NotPrivate) and error.remedy:
        return f"{error.remedy}, or set ABOARD_CACHE to another directory."
    no_space = getattr(error, "errno", 0) in {errno.ENOSPC, errno.EDQUOT}
    if no_space or schema.has_no_room(error):
        return "Free some space, or set ABOARD_CACHE to a directory on another disk."
    return "Set ABOARD_CACHE to your own directory on a local disk."


def refresh(
    connection: schema.Connection,
    source: Source,
    *,
    anew: bool = False,
    progress: Progress | None = None,
) -> Report:
    """Read what is new in a source and store it. No other thread may use the connection meanwhile.

    Raises:
        StorageError: the source itself cannot be listed.
    """
    report = Report()
    started = time.monotonic()
    touched: set[str] = set()
    hparams_in: set[str] = set()  # where hyperparameters may have changed
    for _ in range(_ATTEMPTS):
        plan = make_plan(connection, source, anew=anew)
        report.files_unchanged = plan.unchanged
        report.problems = list(plan.problems)
        report.files_failed = 0
        report.bytes_total += sum(one.entry.size - one.start for one in plan.readings)
        if not plan.readings and not plan.gone:
            break
        gone = query.directories_of(connection, plan.gone)
        touched |= gone
        touched.update(one.directory for one in plan.readings)
        store = _read_and_store(connection, plan, report, progress)
        hparams_in |= gone | store.hparams_in
        hparams_in.update(one.directory for one in plan.readings if one.known and one.fresh)
        described = query.of_many_files(connection, store.described - store.unsure)
        made = {one.directory for one in plan.readings if one.fresh}
        while misread := query.misread(connection, store.unsure | described):
            again, corrected = Report(), reread(connection, source, misread)
            made.update(one.directory for one in corrected.readings)
            outrun = _read_and_store(connection, corrected, again, None).outrun
            report.problems += again.problems
            if not outrun:
                break
        if not source.only and not plan.problems:  # the listing is complete
            made &= plan.shared
        if shared := query.of_many_files(connection, made):
            from aboard.index.catalog import number_attempts

            number_attempts(connection, shared)
        # Another process has read some of the same files: plan again.
        if not store.outrun:
            break
        anew = False
    if touched and query.has_roots(connection):  # the import of the catalog is slow
        from aboard.index.catalog import describe_runs

        describe_runs(connection, touched, hparams_in)
    report.seconds = time.monotonic() - started
    return report


def _read_and_store(
    connection: schema.Connection, plan: Plan, report: Report, progress: Progress | None
) -> Store:
    from aboard.index.reader import SmallBatch, reading
    from aboard.index.store import Store

    store = Store(connection)
    with reading(plan.readings) as parts:
        if plan.gone:
            store.forget(plan.gone)
            report.files_gone += len(plan.gone)
        for found in parts:
            failures = [item for item in found if isinstance(item, StorageError)]
            report.problems += failures
            report.files_failed += len(failures)
            ready = [item for item in found if not isinstance(item, StorageError)]
            store.put(ready)
            for batch in ready:
                if isinstance(batch, SmallBatch):
                    report.add_small(batch)
                else:
                    report.add(batch)
            if progress:
                progress(report)
    return store


class Connections:
    """A pool of connections to an index; calls `on_move` when the index moves into memory."""

    def __init__(
        self,
        path: Path,
        on_move: Callable[[str, Exception], None],
        *,
        read_only: bool = False,
    ) -> None:
        self.path: Path | None = path
        self.generation = 0  # counts how often the index was replaced
        self._on_move = on_move
        self._read_only = read_only
        self._lock = threading.RLock()
        # Each with its generation. Taken and put back without the lock: every request needs one.
        self._idle: deque[tuple[int, schema.Connection]] = deque()
        self._memory: schema.Connection | None = None
        if read_only:
            return
        try:
            self._idle.append((self.generation, schema.open_file(path)))
        except (OSError, sqlite3.Error) as error:
            self._move_to_memory(f"the index {path} cannot be opened", error)

    @contextmanager
    def lend(self) -> Iterator[schema.Connection]:
        """Lend a connection. An index in memory has only one, lent to one caller at a time."""
        taken = self._take()
        if taken is None:
            with self._lock:
                if self._memory is not None:
                    yield self._memory
                    return
                connection = self._open()
                taken = self.generation, connection
        try:
            yield taken[1]
        finally:
            self._put_back(*taken)

    def _take(self) -> tuple[int, schema.Connection] | None:
        while True:
            try:
                generation, connection = self._idle.pop()
            except IndexError:
                return None
            if generation == self.generation:
                return generation, connection
            connection.close()

    def _put_back(self, generation: int, connection: schema.Connection) -> None:
        if generation != self.generation or len(self._idle) >= _MOST_IDLE:
            connection.close()
            return
        self._idle.append((generation, connection))
        if generation != self.generation:  # the index was replaced or closed meanwhile
            self._close_idle()

    def replace(self, error: sqlite3.Error, generation: int) -> None:
        """Replace an index that is damaged or cannot be written; raise any other error."""
        with self._lock:
            if generation != self.generation:
                return
            if self._read_only:
                raise error
            if self.path is not None and schema.is_damage(error):
                self._close_idle()
                schema.discard_damaged(self.path)
                self._idle.append((self.generation + 1, schema.open_file(self.path)))
            elif self.path is not None and schema.is_full(error):
                self._close_idle()
                self._move_to_memory(f"the index {self.path} cannot be written", error)
            else:
                raise error
            self.generation += 1

    def close(self) -> None:
        """Close idle connections now, and lent ones when they are put back."""
        with self._lock:
            self.generation += 1
            self._close_idle()
            if self._memory is not None:
                self._memory.close()

    def _open(self) -> schema.Connection:
        if self.path is None:
            raise RuntimeError("an index in memory has one connection")
        if self._read_only:
            return schema.open_to_read(self.path)
        connection, is_new = schema.reopen(self.path)
        if is_new:
            self.generation += 1
            self._close_idle()
        return connection

    def _close_idle(self) -> None:
        with suppress(IndexError):
            while True:
                self._idle.pop()[1].close()

    def _move_to_memory(self, reason: str, error: Exception) -> None:
        self.path = None
        self._memory = schema.open_memory()
        self._on_move(reason, error)
