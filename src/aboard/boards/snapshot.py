"""The live boards in memory: what is read while the database is gone, and on every request.

Threads that change a board tell here, so that whoever made one finds it at once, also while an
older listing is still on its way from the database.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from types import MappingProxyType

from aboard.boards.model import BoardRecord


@dataclass(frozen=True, slots=True)
class Snapshot:
    """The live boards as they were last seen.

    Attributes:
        boards: by id.
        at: when they were read.
        problem: why they may be out of date; empty if they are not.
    """

    boards: Mapping[str, BoardRecord]
    at: float
    problem: str


class Seen:
    """What was last seen of the live boards, and when they were used since."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._boards: dict[str, BoardRecord] = {}
        self._changed: dict[str, BoardRecord] = {}
        self._touched: dict[str, float] = {}
        self._at = 0.0
        self._problem = "the boards were not read yet."

    def get(self, board_id: str) -> BoardRecord | None:
        """Return a live board."""
        return self._boards.get(board_id)

    def snapshot(self) -> Snapshot:
        """Return all of them."""
        with self._lock:
            return Snapshot(MappingProxyType(dict(self._boards)), self._at, self._problem)

    def about_to_read(self) -> Mapping[str, BoardRecord]:
        """Return what is known, before it is compared with the database."""
        with self._lock:
            self._changed = {}
            return dict(self._boards)

    def was_read(self, live: Iterable[BoardRecord], now: float) -> None:
        """Take over what the database said, less what was changed while it spoke."""
        boards = {record.id: record for record in live}
        with self._lock:
            for record in self._changed.values():
                _update(boards, record)
            self._boards, self._at, self._problem = boards, now, ""

    def could_not_read(self, problem: str) -> None:
        """Note that what is known may be out of date."""
        with self._lock:
            self._problem = problem

    def changed(self, record: BoardRecord) -> None:
        """Take over one board."""
        with self._lock:
            self._changed[record.id] = record
            _update(self._boards, record)

    def touch(self, board_id: str, now: float) -> None:
        """Note that a board is used."""
        with self._lock:
            self._touched[board_id] = now

    def last_request(self, record: BoardRecord) -> float | None:
        """Return when a board was last used, as far as anybody knows."""
        touched = self._touched.get(record.id)
        known = [at for at in (touched, record.last_request) if at is not None]
        return max(known, default=None)

    def take_touched(self) -> dict[str, float]:
        """Return when boards were used since this was last asked."""
        with self._lock:
            touched, self._touched = self._touched, {}
            return touched

    def put_back(self, touched: Mapping[str, float]) -> None:
        """Take back what could not be remembered elsewhere."""
        with self._lock:
            self._touched = {**touched, **self._touched}


def _update(boards: dict[str, BoardRecord], record: BoardRecord) -> None:
    known = boards.get(record.id)
    if known is not None and known.version > record.version:
        return
    if record.is_live:
        boards[record.id] = record
    else:
        boards.pop(record.id, None)
