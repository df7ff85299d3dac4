"""For how long running boards have not answered, as far as somebody asked.

Only what was seen counts. While nobody asks, because the database is gone or the machine sleeps,
no board is said to be silent.
"""

from __future__ import annotations

import threading
from collections.abc import Set as AbstractSet
from dataclasses import dataclass

from aboard.boards.model import BoardRecord


@dataclass(frozen=True, slots=True)
class _Unanswered:
    """Questions in a row that one start of a board left without an answer."""

    attempt: int
    first: float
    last: float


class Silence:
    """What boards left unanswered since they last answered."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._unanswered: dict[str, _Unanswered] = {}

    def answered(self, record: BoardRecord) -> None:
        """Note that a board gave an answer."""
        with self._lock:
            self._unanswered.pop(record.id, None)

    def unanswered(self, record: BoardRecord, asked: float, now: float) -> None:
        """Note that a board was asked at a time, and has given no answer until now."""
        with self._lock:
            before = self._unanswered.get(record.id)
            if before is not None and before.attempt == record.attempt:
                asked = before.first
            self._unanswered[record.id] = _Unanswered(record.attempt, asked, now)

    def of(self, record: BoardRecord) -> float:
        """Return for how many seconds a board has not answered."""
        known = self._unanswered.get(record.id)
        if known is None or known.attempt != record.attempt:
            return 0.0
        return max(known.last - known.first, 0.0)

    def forget_all_but(self, live: AbstractSet[str]) -> None:
        """Drop what is known of boards that have ended."""
        with self._lock:
            for gone in self._unanswered.keys() - live:
                del self._unanswered[gone]
