"""For how long running boards have not answered, as far as somebody asked.

Only what was seen counts. Where nobody asked for a while, because the database was gone or the
machine slept, it begins anew, and one question counts no longer than such a while, whatever
happened before it ended. So a clock that jumps makes no board silent either.
"""

from __future__ import annotations

import threading
from collections.abc import Set as AbstractSet
from dataclasses import dataclass

from aboard.boards.model import BoardRecord

_POLLS, _LEAST_SECONDS = 5, 10.0


@dataclass(frozen=True, slots=True)
class _Unanswered:
    """Questions in a row that one start of a board left without an answer."""

    attempt: int
    seconds: float
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

    def unanswered(self, record: BoardRecord, asked: float, now: float, poll: float) -> None:
        """Note that a board gave no answer.

        Args:
            record: the board.
            asked: when somebody set out to ask it.
            now: when it was given up.
            poll: seconds between two questions, if all is well.
        """
        a_while = max(_POLLS * poll, _LEAST_SECONDS)
        seconds = min(max(now - asked, 0.0), a_while)
        with self._lock:
            before = self._unanswered.get(record.id)
            if before is not None and before.attempt == record.attempt:
                between = asked - before.last
                if 0.0 <= between <= a_while:
                    seconds += before.seconds + between
            self._unanswered[record.id] = _Unanswered(record.attempt, seconds, now)

    def of(self, record: BoardRecord) -> float:
        """Return for how many seconds a board has not answered."""
        known = self._unanswered.get(record.id)
        return known.seconds if known is not None and known.attempt == record.attempt else 0.0

    def forget_all_but(self, live: AbstractSet[str]) -> None:
        """Drop what is known of boards that have ended."""
        with self._lock:
            for gone in self._unanswered.keys() - live:
                del self._unanswered[gone]
