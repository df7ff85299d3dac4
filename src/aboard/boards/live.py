"""Live boards in memory, shared by the hub's threads, and the leases this hub holds on them."""

from __future__ import annotations

import threading
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from types import MappingProxyType

from aboard import system
from aboard.boards.model import BoardRecord
from aboard.boards.registry import Registry

_GAP_POLLS, _GAP_SECONDS = 5, 10.0


@dataclass(frozen=True, slots=True)
class _Unanswered:
    """Consecutive failed probes of one start of a board."""

    attempt: int
    seconds: float
    last: float
    reason: str


@dataclass(frozen=True, slots=True)
class Snapshot:
    boards: Mapping[str, BoardRecord]
    at: float
    problem: str  # why the boards may be out of date


class LiveBoards:
    """The live boards in memory, which serve requests even while the database is down.

    The only owner of the state that the hub's threads share about boards: the records, when boards
    were last used, failed probes, and the stops that were sent. Every method takes the lock. The
    state of a board is dropped when the board has ended.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._boards: dict[str, BoardRecord] = {}
        self._changed: dict[str, BoardRecord] = {}
        self._used: dict[str, float] = {}
        self._unsaved: dict[str, float] = {}
        self._unanswered: dict[str, _Unanswered] = {}
        self._stops_sent: set[tuple[str, int]] = set()
        self._at = 0.0
        self._problem = "the boards have not been read yet."

    def get(self, board_id: str) -> BoardRecord | None:
        with self._lock:
            return self._boards.get(board_id)

    def snapshot(self) -> Snapshot:
        with self._lock:
            return Snapshot(MappingProxyType(dict(self._boards)), self._at, self._problem)

    def update(self, record: BoardRecord) -> None:
        """Store a board; a listing that is being read from the database does not overwrite it."""
        with self._lock:
            self._changed[record.id] = record
            _merge(self._boards, record)

    def begin_read(self) -> Mapping[str, BoardRecord]:
        with self._lock:
            self._changed = {}
            return dict(self._boards)

    def end_read(self, live: Iterable[BoardRecord], now: float) -> None:
        """Store a listing from the database, except for boards that changed since `begin_read`."""
        boards = {record.id: record for record in live}
        with self._lock:
            for record in self._changed.values():
                _merge(boards, record)
            self._boards, self._at, self._problem = boards, now, ""
            for known in (self._used, self._unanswered):
                for gone in known.keys() - boards.keys():
                    del known[gone]
            self._stops_sent = {stop for stop in self._stops_sent if stop[0] in boards}

    def read_failed(self, problem: str) -> None:
        with self._lock:
            self._problem = problem

    def touch(self, board_id: str, now: float) -> None:
        with self._lock:
            self._used[board_id] = self._unsaved[board_id] = now

    def last_request(self, record: BoardRecord) -> float | None:
        with self._lock:
            times = (self._used.get(record.id), record.last_request)
        return max((at for at in times if at is not None), default=None)

    def unsaved(self) -> dict[str, float]:
        with self._lock:
            return dict(self._unsaved)

    def saved(self, used: Mapping[str, float]) -> None:
        with self._lock:
            for board_id, at in used.items():
                if self._unsaved.get(board_id) == at:
                    del self._unsaved[board_id]

    def answered(self, record: BoardRecord) -> None:
        with self._lock:
            self._unanswered.pop(record.id, None)

    def unanswered(
        self, record: BoardRecord, began: float, now: float, poll: float, reason: str
    ) -> None:
        """Record a failed probe and its reason.

        Only observed time counts. After a gap between probes, for example because the database was
        down or the machine slept, counting starts again, and one probe counts at most as long as
        such a gap. So a clock that jumps makes no board unhealthy.
        """
        gap = max(_GAP_POLLS * poll, _GAP_SECONDS)
        seconds = min(max(now - began, 0.0), gap)
        with self._lock:
            before = self._unanswered.get(record.id)
            if before is not None and before.attempt == record.attempt:
                between = began - before.last
                if 0.0 <= between <= gap:
                    seconds += before.seconds + between
            self._unanswered[record.id] = _Unanswered(record.attempt, seconds, now, reason)

    def silence(self, record: BoardRecord) -> tuple[float, str]:
        """Return for how many seconds a board has not answered, and why."""
        with self._lock:
            known = self._unanswered.get(record.id)
        if known is None or known.attempt != record.attempt:
            return 0.0, ""
        return known.seconds, known.reason

    def stop_sent(self, record: BoardRecord) -> None:
        with self._lock:
            self._stops_sent.add((record.id, record.attempt))

    def was_stop_sent(self, record: BoardRecord) -> bool:
        with self._lock:
            return (record.id, record.attempt) in self._stops_sent


def _merge(boards: dict[str, BoardRecord], record: BoardRecord) -> None:
    known = boards.get(record.id)
    if known is not None and known.version > record.version:
        return
    if record.is_live:
        boards[record.id] = record
    else:
        boards.pop(record.id, None)


class Leases:
    """The isolated boards that this hub may act on.

    If several hubs share a database, one of them acts on each board and renews its lease. When a
    lease expires by the database's clock, another hub takes the board over. A hub that cannot
    renew a lease stops acting a little earlier.
    """

    def __init__(self, registry: Registry, owner: str, seconds: float) -> None:
        self._registry = registry
        self._owner = owner
        self._seconds = seconds
        self._lock = threading.Lock()
        self._held: dict[str, float] = {}  # expiry by `system.seconds_since_boot`

    def renew(self, boards: Collection[str]) -> None:
        """Take or renew the leases of boards that are due, in one statement."""
        now = system.seconds_since_boot()
        with self._lock:
            self._held = {board: ends for board, ends in self._held.items() if board in boards}
            due = [one for one in boards if self._held.get(one, 0.0) - now < self._seconds / 2]
        if not due:
            return
        taken = self._registry.claim(due, self._owner, self._seconds, _is_dead)
        with self._lock:
            # The lease began after `now`; this hub treats it as expired before the others do.
            self._held.update(dict.fromkeys(taken, now + self._seconds * 4 / 5))

    def holds(self, record: BoardRecord) -> bool:
        with self._lock:
            return self._held.get(record.id, 0.0) > system.seconds_since_boot()

    def take_unreached(self, boards: Collection[str], seconds: float) -> Collection[str]:
        """Take the boards that no hub has held for this long."""
        return self._registry.claim(boards, self._owner, self._seconds, overdue=seconds)

    def release(self) -> None:
        with self._lock:
            held, self._held = self._held, {}
        if held:
            self._registry.release(self._owner)


def _is_dead(owner: str) -> bool:
    try:
        return system.has_ended(owner)
    except ValueError:
        return False
