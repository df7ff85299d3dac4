"""Connections to one index: lent to whoever needs one, and replaced when it must be.

A cache may turn out damaged, or its disk full. A damaged file is deleted and made
anew; where none can be written, the index moves into memory. Both are noticed by
the one who meets the error, and everybody else's next connection is a good one.
"""

from __future__ import annotations

import sqlite3
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from aboard.index import schema

_KEPT = 8
"""Idle connections kept open; each has a cache of its own."""


class Connections:
    """The connections to an index.

    Args:
        path: the file.
        moved: is told what cannot be done, and why, when the index has to move into memory.
    """

    def __init__(self, path: Path, moved: Callable[[str, Exception], None]) -> None:
        self.path: Path | None = path
        self.generation = 0
        """Counts how often the index was replaced."""
        self._moved = moved
        self._lock = threading.RLock()
        self._idle: list[sqlite3.Connection] = []
        self._memory: sqlite3.Connection | None = None
        try:
            self._idle.append(schema.open_file(path))
        except (OSError, sqlite3.Error) as error:
            self._move_to_memory(f"the index {path} cannot be opened", error)

    @contextmanager
    def lend(self) -> Iterator[sqlite3.Connection]:
        """Lend a connection; the one to an index in memory to one borrower at a time."""
        with self._lock:
            if self._memory is not None:
                yield self._memory
                return
            connection = self._idle.pop() if self._idle else self._open()
            generation = self.generation
        try:
            yield connection
        finally:
            with self._lock:
                if generation == self.generation and len(self._idle) < _KEPT:
                    self._idle.append(connection)
                else:
                    connection.close()

    def replace(self, error: sqlite3.Error, generation: int) -> None:
        """Get to a sound index after an error, or raise it again.

        Args:
            error: what a borrower met.
            generation: the generation it was met in; if another borrower has
                replaced the index since, nothing is left to do.
        """
        with self._lock:
            if generation != self.generation:
                return
            if self.path is not None and schema.is_damage(error):
                self._close_idle()
                schema.discard_damaged(self.path)
                self._idle.append(schema.open_file(self.path))
            elif self.path is not None and schema.is_full(error):
                self._close_idle()
                self._move_to_memory(f"the index {self.path} cannot be written", error)
            else:
                raise error
            self.generation += 1

    def close(self) -> None:
        """Close the idle connections, and those lent when they come back."""
        with self._lock:
            self.generation += 1
            self._close_idle()
            if self._memory is not None:
                self._memory.close()

    def _open(self) -> sqlite3.Connection:
        if self.path is None:
            raise RuntimeError("an index in memory has one connection")
        connection, made_anew = schema.reopen(self.path)
        if made_anew:
            self.generation += 1
            self._close_idle()
        return connection

    def _close_idle(self) -> None:
        for connection in self._idle:
            connection.close()
        self._idle.clear()

    def _move_to_memory(self, reason: str, error: Exception) -> None:
        self.path = None
        self._memory = schema.open_memory()
        self._moved(reason, error)
