"""One index of everything read so far, for many threads and many processes.

The verbs are thin: `refresh` and `query` do the work, `connections` sees to it
that there is a sound index to do it with. Sources are refreshed side by side; what
two threads or processes read at once is stored once.
"""

from __future__ import annotations

import errno
import sqlite3
from collections.abc import Callable, Collection, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple, TypeVar

from aboard.index import query, schema, traffic
from aboard.index.connections import Connections
from aboard.index.plan import Source
from aboard.index.query import Damage, Marks, Run, Segment, Tag, UnknownName
from aboard.index.refresh import Progress, Report, refresh
from aboard.index.traffic import TrafficHour
from aboard.storage.base import StorageError
from aboard.storage.place import NotPrivate, cache_place
from aboard.storage.traffic import bucket_of
from aboard.storage.uri import is_remote

if TYPE_CHECKING:
    from aboard.index.catalog import CatalogReport
    from aboard.index.chunks import Ints
    from aboard.index.files import EventFile
    from aboard.index.forgetting import Forgotten
    from aboard.index.series import Pointer, Series
    from aboard.runs.known import KnownRun

T = TypeVar("T")


class IndexProblem(NamedTuple):
    """Why the index is not where, or not what, it should be; and what to do."""

    message: str
    hint: str

    def __str__(self) -> str:
        return f"{self.message}. {self.hint}"


class Index:
    """The index.

    Args:
        path: the file, by default `cache_place()`'s.
    """

    def __init__(self, path: Path | None = None) -> None:
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
        self._connections = Connections(path, self._moved_to_memory)

    @property
    def path(self) -> Path | None:
        """The index's file; None for one that lives in memory."""
        return self._connections.path

    @property
    def stored_bytes(self) -> int | None:
        """How much room it takes on the disk; None for one that lives in memory."""
        return None if self.path is None else schema.size(self.path)

    def close(self) -> None:
        """Close every connection."""
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
        """Bring the index up to date with a source; see `aboard.index.refresh`.

        With a part of it, a directory or a file, look at nothing else.
        """
        self._sources[source] = None
        place = source if part is None else part
        try:
            return self._do(
                lambda connection: refresh(connection, place, anew=anew, progress=progress)
            )
        finally:
            if is_remote(source.uri):
                self._do(traffic.save_untaken)

    def runs(self, source: Source) -> list[Run]:
        """Return the runs of a source by name."""
        return self._ask(lambda connection: query.runs(connection, source))

    def tags(self, source: Source) -> list[Tag]:
        """Return every tag of every run of a source, by run and name."""
        return self._ask(lambda connection: query.tags(connection, source))

    def stamp(self) -> int:
        """Return a number that changes whenever the mark of any run does: a cheap question."""
        return self._ask(query.stamp)

    def marks(self, sources: Sequence[Source]) -> list[Marks]:
        """Return, for each run's directory of each source, a value that changes when it does."""
        return self._ask(lambda connection: query.marks(connection, sources))

    def tags_of(
        self, places: Collection[tuple[Source, str]]
    ) -> list[tuple[tuple[Source, str], Tag]]:
        """Return the tags of many directories, each with the source it is seen from."""
        return self._ask(lambda connection: list(query.tags_of(connection, places)))

    def find_tag(self, source: Source, run: str, tag: str) -> Tag | None:
        """Return one tag of one run, or None."""
        return self._ask(lambda connection: query.find_tag(connection, source, run, tag))

    def tag_counts(self, source: Source) -> dict[str, int]:
        """Return how many tags each run of a source has: a cheap question."""
        return self._ask(lambda connection: query.tag_counts(connection, source))

    def series(self, tag: Tag, *, samples: int | None = None) -> Series:
        """Return the points of a scalar tag, all of them unless a number is given.

        Raises:
            UnknownName: the tag is gone since it was listed.
        """
        from aboard.index.series import read_series

        whole = self._read(tag, read_series)
        return whole if samples is None else whole.sample(samples)

    def many_series(self, tags: Sequence[Tag], *, samples: int) -> list[Series | None]:
        """Return the points of many scalar tags, sampled down one by one; None for those gone."""
        from aboard.index.series import read_series

        return self._of_tags(
            tags, lambda connection, tag: read_series(connection, tag).sample(samples)
        )

    def pointers(self, tag: Tag, *, step: int | None = None) -> list[Pointer]:
        """Return where the values of a tag that is no scalar are stored: all, or those of a step.

        Raises:
            UnknownName: the tag is gone since it was listed.
        """
        from aboard.index.series import read_pointers

        return self._read(tag, partial(read_pointers, step=step))

    def damages(self, source: Source) -> list[Damage]:
        """Return every damaged span of a source's files."""
        return self._ask(lambda connection: query.damages(connection, source))

    def files(self, source: Source) -> list[EventFile]:
        """Return the event files of a source, and how far each was read."""
        from aboard.index.files import files

        return self._ask(lambda connection: files(connection, source))

    def written_steps(self, segment: Segment) -> Ints:
        """Return the steps of a tag in one file in the order in which they were written."""
        from aboard.index.files import written_steps

        return self._ask(lambda connection: written_steps(connection, segment))

    def refresh_catalog(self, root: str, *, marks: bool = True) -> CatalogReport:
        """Find the runs below a root, and read the records that changed; see `catalog`."""
        from aboard.index.catalog import refresh_catalog

        try:
            return self._do(lambda connection: refresh_catalog(connection, root, marks=marks))
        finally:
            if is_remote(root):
                self._do(traffic.save_untaken)

    def known_runs(self, roots: Sequence[str]) -> list[KnownRun]:
        """Return the runs below some roots, as of their last refresh."""
        from aboard.index.catalog import known_runs, refresh_catalog

        def refill(connection: sqlite3.Connection) -> None:
            for root in roots:
                with suppress(StorageError):
                    refresh_catalog(connection, root)

        return self._do(lambda connection: known_runs(connection, roots), after_replacing=refill)

    def catalog_changes(self, root: str) -> int:
        """Return how often the known runs of a root have changed: a cheap question."""
        from aboard.index.catalog import catalog_changes

        return self._do(lambda connection: catalog_changes(connection, root))

    def traffic(self, uri: str, hours: int = 24) -> list[TrafficHour]:
        """Return the requests made to the bucket of a URI in the last hours, oldest first."""
        bucket = bucket_of(uri)
        return self._ask(lambda connection: traffic.read(connection, bucket, hours))

    def point_counts(self, tags: Sequence[Tag]) -> list[int]:
        """Return the number of values of each tag, less what restarts made void."""
        restarted = [tag for tag in tags if not tag.in_order]
        if not restarted:
            return [tag.points for tag in tags]
        from aboard.index.series import count_survivors

        left = iter(self._of_tags(restarted, count_survivors))
        return [tag.points if tag.in_order else next(left) or 0 for tag in tags]

    def forget(self, source: Source) -> Forgotten:
        """Remove all that is known of a source; return how much that was."""
        from aboard.index.forgetting import forget

        self._sources.pop(source, None)
        return self._do(lambda connection: forget(connection, source))

    def compact(self) -> None:
        """Give the disk the room back that is not in use; what prevents it is a problem."""
        from aboard.index.forgetting import compact

        if self.path is None:
            return
        try:
            with self._connections.lend() as connection:
                compact(connection)
        except sqlite3.Error as error:
            problem = f"the index {self.path} could not be made smaller ({error})"
            hint = "It needs as much free space as it takes; free some, or try again."
            self.problems.append(IndexProblem(problem, hint))

    def _read(self, tag: Tag, read: Callable[[sqlite3.Connection, Tag], T]) -> T:
        (found,) = self._of_tags([tag], read)
        if found is None:
            raise UnknownName(
                f"tag {tag.name!r} of run {tag.run!r} is gone from {tag.source.uri}: its files were"
                " deleted or replaced since it was listed. List the tags again."
            )
        return found

    def _of_tags(
        self, tags: Sequence[Tag], read: Callable[[sqlite3.Connection, Tag], T]
    ) -> list[T | None]:
        """Read from tags as they are now, whatever happened since they were listed.

        No id is ever used again: what the index holds after it was read was there throughout.
        """
        looked_at: set[Source] = set()

        def question(connection: sqlite3.Connection) -> tuple[list[T | None], set[Source]]:
            answers: list[T | None] = [read(connection, tag) for tag in tags]
            if query.are_held(connection, tags):
                return answers, set()
            with query.at_one_moment(connection):
                found, unsure = query.current(connection, tags)
                answers = [None if tag is None else read(connection, tag) for tag in found]
                return answers, (unsure & self._sources.keys()) - looked_at

        while True:
            answers, unsure = self._ask(question)
            if not unsure:
                return answers
            for source in unsure:
                with suppress(StorageError):
                    self.refresh(source)
            looked_at |= unsure

    def _ask(self, question: Callable[[sqlite3.Connection], T]) -> T:
        """Ask the index; one that had to be replaced is first filled again."""
        return self._do(question, after_replacing=self._refill)

    def _do(
        self,
        work: Callable[[sqlite3.Connection], T],
        after_replacing: Callable[[sqlite3.Connection], None] | None = None,
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

    def _refill(self, connection: sqlite3.Connection) -> None:
        for source in list(self._sources):
            with suppress(StorageError):
                refresh(connection, source)

    def _moved_to_memory(self, reason: str, error: Exception) -> None:
        self.problems.append(
            IndexProblem(
                f"{reason} ({error}), so it is kept in memory and will be gone with this process",
                _hint_for(error),
            )
        )


def _hint_for(error: Exception) -> str:
    """Say what to do about an index that cannot be where it should be."""
    if isinstance(error, NotPrivate) and error.remedy:
        return f"{error.remedy}, or set ABOARD_CACHE to another directory."
    no_space = getattr(error, "errno", 0) in {errno.ENOSPC, errno.EDQUOT}
    if no_space or schema.has_no_room(error):
        return "Free some space, or set ABOARD_CACHE to a directory on another disk."
    return "Set ABOARD_CACHE to a directory of your own on a local disk."
