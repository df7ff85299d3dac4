"""One index of everything read so far, for many threads and many processes.

Opens the file, hands each thread a connection of its own, and survives what can
happen to a cache: a damaged file is replaced, and where the disk is full or
cannot be written to, the index goes on in memory and says so.
"""

from __future__ import annotations

import sqlite3
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple, TypeVar

from aboard.index import query, schema
from aboard.index.place import index_place
from aboard.index.plan import Source
from aboard.index.query import Damage, Pointer, Run, Series, Tag
from aboard.index.refresh import Progress, Report, refresh

T = TypeVar("T")


class IndexProblem(NamedTuple):
    """Why the index is not where, or not what, it should be; and what to do."""

    message: str
    hint: str

    def __str__(self) -> str:
        return f"{self.message}. {self.hint}"


class Index:
    """The index; `path` is None for one that lives in memory only.

    Args:
        path: the file, by default `index_place()`'s.
    """

    def __init__(self, path: Path | None = None) -> None:
        self.problems: list[IndexProblem] = []
        self._threads = threading.local()
        self._connections: list[sqlite3.Connection] = []
        self._write_lock = threading.RLock()
        self._memory: sqlite3.Connection | None = None
        self._generation = 0
        self._sources: dict[Source, None] = {}
        if path is None:
            place = index_place()
            path = place.directory / schema.FILE_NAME
            if place.reason:
                self.problems.append(
                    IndexProblem(
                        f"{place.reason}, so the index is in {place.directory} on this machine",
                        "Set ABOARD_CACHE to a local directory to choose another place.",
                    )
                )
        self.path: Path | None = path
        try:
            self._writer = schema.open_file(path)
        except (OSError, sqlite3.Error) as error:
            self._go_to_memory(f"the index {path} cannot be opened ({error})")

    def close(self) -> None:
        """Close every connection."""
        with self._write_lock:
            for connection in [*self._connections, self._writer]:
                connection.close()
            self._connections.clear()

    def __enter__(self) -> Index:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def refresh(
        self, source: Source, *, anew: bool = False, progress: Progress | None = None
    ) -> Report:
        """Bring the index up to date with a source; see `aboard.index.refresh`."""
        with self._write_lock:
            self._sources[source] = None
            try:
                return refresh(self._writer, source, anew=anew, progress=progress)
            except sqlite3.Error as error:
                self._recover(error)
            return refresh(self._writer, source, anew=anew, progress=progress)

    def runs(self, source: Source) -> list[Run]:
        """Return the runs of a source by name."""
        return self._ask(lambda connection: query.runs(connection, source))

    def tags(self, source: Source) -> list[Tag]:
        """Return every tag of every run of a source, by run and name."""
        return self._ask(lambda connection: query.tags(connection, source))

    def find_tag(self, source: Source, run: str, tag: str) -> Tag | None:
        """Return one tag of one run, or None."""
        return self._ask(lambda connection: query.find_tag(connection, source, run, tag))

    def series(self, tag: Tag, *, samples: int | None = None) -> Series:
        """Return the points of a scalar tag, all of them unless a number is given."""
        whole = self._ask(lambda connection: query.read_series(connection, tag))
        return whole if samples is None else whole.sample(samples)

    def pointers(self, tag: Tag) -> list[Pointer]:
        """Return where the values of a tag that is no scalar are stored."""
        return self._ask(lambda connection: query.read_pointers(connection, tag))

    def damages(self, source: Source) -> list[Damage]:
        """Return every damaged span of a source's files."""
        return self._ask(lambda connection: query.damages(connection, source))

    def point_counts(self, tags: Sequence[Tag]) -> list[int]:
        """Return the number of values of each tag, less what restarts made void."""
        return self._ask(lambda connection: [query.count_points(connection, tag) for tag in tags])

    def _ask(self, question: Callable[[sqlite3.Connection], T]) -> T:
        generation = self._generation
        try:
            with self._reader() as connection:
                return question(connection)
        except sqlite3.Error as error:
            with self._write_lock:
                if generation == self._generation:
                    self._recover(error)
                    for source in self._sources:
                        refresh(self._writer, source)
        with self._reader() as connection:
            return question(connection)

    @contextmanager
    def _reader(self) -> Iterator[sqlite3.Connection]:
        if self._memory is not None:
            with self._write_lock:
                yield self._memory
            return
        held = getattr(self._threads, "held", None)
        if held is None or held[0] != self._generation:
            if self.path is None:
                raise RuntimeError("an index in memory has no file")
            held = (self._generation, schema.reopen(self.path))
            self._threads.held = held
            self._connections.append(held[1])
        yield held[1]

    def _recover(self, error: sqlite3.Error) -> None:
        """Get to an index that can be written, or raise the error again."""
        self._generation += 1
        if self.path is not None and schema.is_damage(error):
            self._writer.close()
            schema.discard_damaged(self.path)
            self._writer = schema.open_file(self.path)
        elif self.path is not None and schema.is_full(error):
            self._writer.close()
            self._go_to_memory(f"the index {self.path} cannot be written ({error})")
        else:
            raise error

    def _go_to_memory(self, message: str) -> None:
        self.problems.append(
            IndexProblem(
                f"{message}, so it is kept in memory and will be gone with this process",
                "Free some space, or set ABOARD_CACHE to a directory on another disk.",
            )
        )
        self.path = None
        self._memory = self._writer = schema.open_memory()
