"""The lifecycle of boards: a loop that starts, watches, stops and adopts them.

`decide` returns the next transition of a board, and `Lifecycle` runs the loop. It stores every step
before it takes it, and every step can be repeated, so a hub that was killed continues from the
registry.
"""

from __future__ import annotations

import logging
import os
import threading
import time
from collections.abc import Callable, Hashable, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from typing import Any

from aboard import system
from aboard.boards.model import (
    ENDED,
    INSTANT,
    LONGEST_TEXT,
    BadValue,
    BoardRecord,
    BoardsError,
    BoardState,
    Conflict,
    DatabaseUnavailable,
    IllegalTransition,
    Limits,
    NoSuchName,
    Transition,
    check_extension,
    check_number,
    plain,
)
from aboard.boards.registry import Created, Leases, LiveBoards, Registry, Snapshot
from aboard.executors import executor_class, places, split_place, unknown_place
from aboard.executors.base import (
    LOG_HOST,
    Address,
    CommandState,
    Executor,
    ExecutorError,
    Handle,
    Spec,
    Status,
    log_host,
)
from aboard.runs.units import format_duration
from aboard.system import Backoff

_log = logging.getLogger(__name__)
_ATTEMPTS = 20  # to change a board that others change at the same time
_CHANGING = frozenset({BoardState.PENDING, BoardState.STARTING, BoardState.STOPPING})
_SOON_SECONDS = 10.0  # how long a change of state is expected to take
_FIRST_BACKOFF, _LONGEST_BACKOFF = 2.0, 30.0
_MOST_LAUNCHES = 5  # of a board whose start fails unexpectedly, within half a minute
_UNANSWERED = "does not answer"
_NOT_YET = "; not yet: "  # separates the reason for a stop from the reason for its delay


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """The intervals and timeouts of the loop, in seconds; 0 means no timeout."""

    poll: float = 2.0
    poll_soon: float = 0.25  # while a board starts or stops
    grace: float = 30.0  # from a stop until the board is killed
    start_timeout: float = 300.0  # until a started board must report its address
    lease: float = 15.0  # until another hub takes over the boards of a hub that is gone
    unreached: float = 600.0  # until a board that no hub reaches is lost
    orphans: float = 60.0  # between two searches for orphans
    unhealthy: float = 10.0  # without an answer until a board is shown as not answering
    unhealthy_timeout: float = 60.0  # without an answer until a board is stopped

    @property
    def adoption_timeout(self) -> float:
        return self.start_timeout or 300.0


def decide(
    record: BoardRecord,
    status: Status | None,
    now: float,
    settings: Settings,
    *,
    silent: float = 0.0,
    why: str = "",
) -> Transition | None:
    """Return the transition that is due, or None.

    `status` is None if the executor does not know the board; it is ignored for instant boards and
    for boards that no executor has accepted. `silent` is the number of seconds without an answer,
    `why` the reason if it is known.
    """
    if record.on == INSTANT:
        return _instant(record, now)
    if record.state is BoardState.PENDING:
        return Transition(BoardState.STARTING)
    if not record.is_live or (status is not None and status.state is CommandState.UNKNOWN):
        return None
    if record.state is BoardState.STOPPING:
        ended = status is None or status.state is CommandState.ENDED
        return Transition(record.outcome, record.reason.partition(_NOT_YET)[0]) if ended else None
    if status is None:
        return Transition(BoardState.LOST, f"{record.on} has no record of it")
    return (
        _starting(record, status, now, settings)
        if record.state is BoardState.STARTING
        else _running(record, status, now, settings.unhealthy_timeout, silent, why)
    )


def _instant(record: BoardRecord, now: float) -> Transition | None:
    match record.state:
        case BoardState.PENDING:
            return Transition(BoardState.RUNNING)
        case BoardState.RUNNING:
            over = _time_is_up(record, now)
            return Transition(BoardState.STOPPED, over) if over else None
        case BoardState.STOPPING:
            return Transition(record.outcome, record.reason)
        case _:
            return None


def _starting(
    record: BoardRecord, status: Status, now: float, settings: Settings
) -> Transition | None:
    match status.state:
        case CommandState.RUNNING:
            return Transition(BoardState.RUNNING)
        case CommandState.ENDED:
            return Transition(BoardState.FAILED, why_ended(status))
    if status.reason or record.reason:  # it waits for its engine, or did until this poll
        return None
    if settings.start_timeout and now - record.changed >= settings.start_timeout:
        waited = format_duration(settings.start_timeout)
        reason = f"it did not answer within {waited} of its start"
        return Transition(BoardState.STOPPING, reason, outcome=BoardState.FAILED)
    return None


def _running(
    record: BoardRecord, status: Status, now: float, timeout: float, silent: float, why: str
) -> Transition | None:
    if status.state is CommandState.ENDED:
        match status.exit_code:
            case 0:
                return Transition(BoardState.STOPPED, status.reason or "it exited by itself")
            case None:  # nothing observed the exit: the machine may have been switched off
                return Transition(BoardState.LOST, why_ended(status))
        return Transition(BoardState.FAILED, why_ended(status))
    if status.state is CommandState.STARTING:
        return Transition(BoardState.STARTING, status.reason or "its engine starts it again")
    if timeout and silent >= timeout:
        reason = f"it did not answer for {format_duration(timeout)}" + (f": {why}" if why else "")
        return Transition(BoardState.STOPPING, reason, outcome=BoardState.FAILED)
    over = _time_is_up(record, now)
    return Transition(BoardState.STOPPING, over) if over else None


def _time_is_up(record: BoardRecord, now: float) -> str:
    """Return why a running board must stop, or an empty string."""
    if record.expires is not None and now >= record.expires:
        ran = record.expires - (record.started or record.created)
        return f"it reached its time limit of {format_duration(ran)}"
    used = max(record.last_request or 0.0, record.started or record.created)
    if record.idle_timeout and now - used >= record.idle_timeout:
        return f"it was not used for {format_duration(record.idle_timeout)}"
    return ""


def why_ended(status: Status) -> str:
    if status.reason:
        return status.reason
    match status.exit_code:
        case None:
            return "it exited for an unknown reason"
        case code if code < 0:
            return f"it was killed by signal {-code}"
        case code:
            return f"it exited with code {code}"


def why_unanswered(place: str, status: Status) -> str:
    """Return why the status of a board is unknown, or an empty string."""
    if status.state is not CommandState.UNKNOWN:
        return ""
    reason = status.reason
    return reason if _UNANSWERED in reason else f"{place} {_UNANSWERED}: {reason}"


def why_stopping(reason: str, place: str, problem: str) -> str:
    """Return the reason for a stop; `problem` is why the engine delays it."""
    reason = reason.partition(_NOT_YET)[0]
    return f"{reason}{_NOT_YET}{problem}; it stops when {place} answers" if problem else reason


def _is_longer(record: BoardRecord, values: Mapping[str, Any]) -> bool:
    """Return whether changes allow a board more time than its engine does."""
    timeout = values.get("timeout", record.timeout)
    return bool(record.timeout) and (not timeout or timeout > record.timeout)


@dataclass(slots=True)
class _Failures:
    """Failures since the last success, after which the next attempt is delayed."""

    count: int = 0
    last: float = 0.0  # when
    backoff: Backoff = field(default_factory=lambda: Backoff(_FIRST_BACKOFF, _LONGEST_BACKOFF))

    def is_paused(self, now: float) -> bool:
        return 0.0 <= now - self.last < self.backoff.delay  # a clock set back does not count

    def add(self, now: float) -> None:
        self.count += 1
        self.last = now
        self.backoff.grow()

    def reset(self) -> None:
        self.count = 0
        self.backoff.reset()


@dataclass(slots=True)
class _Place:
    """The state that polls of one executor share; one poll runs at a time."""

    executor: Executor
    pool: ThreadPoolExecutor | None = None  # its own: an engine that hangs delays no other
    orphans: dict[str, Handle] = field(default_factory=dict)
    searched: float | None = None  # time of the last search for orphans
    failures: _Failures = field(default_factory=_Failures)  # polls without an answer
    has_leftovers: bool = False  # perhaps, of boards that were abandoned

    def is_search_due(self, now: float, seconds: float) -> bool:
        return self.searched is None or not 0.0 <= now - self.searched < seconds

    def note_answer(self, statuses: Iterable[Status], now: float) -> None:
        """Back off while the executor knows none of the statuses."""
        states = {status.state for status in statuses}
        if states == {CommandState.UNKNOWN}:
            self.failures.add(now)
        else:
            self.failures.reset()


class Lifecycle:
    """The loop that keeps the boards of a hub running.

    `specify` returns the command of a board, always the same for the same board. `probe` returns
    why a board does not answer, or an empty string; without it, unhealthy boards are not stopped.
    `owner` is the process that holds leases. Without `workers`, `tick` does all work itself.
    """

    def __init__(
        self,
        registry: Registry,
        executors: Mapping[str, Executor],
        specify: Callable[[BoardRecord], Spec],
        *,
        limits: Callable[[str], Limits] = lambda _: Limits(),
        settings: Settings | None = None,
        probe: Callable[[Address], str] | None = None,
        clock: Callable[[], float] = time.time,
        owner: str = "",
        workers: int = 8,
    ) -> None:
        self._registry = registry
        self._executors = executors
        self._specify = specify
        self._limits = limits
        self._settings = settings or Settings()
        self._probe = probe
        self._clock = clock
        self._pool = ThreadPoolExecutor(workers, "boards") if workers else None
        # Separate threads: boards that hang block only those that probe them.
        self._probes = ThreadPoolExecutor(workers, "probes") if workers else None
        self._live = LiveBoards()
        owner = owner or system.process_identity()
        self._leases = Leases(registry, owner, self._settings.lease)
        self._places = {
            name: _Place(executor, ThreadPoolExecutor(workers, name) if workers else None)
            for name, executor in executors.items()
        }
        self._launches: dict[tuple[str, int], _Failures] = {}  # each in one thread, see `_submit`
        self._lock = threading.Lock()  # guards `_busy` and `_closing`
        self._busy: set[Hashable] = set()
        self._closing = False
        self._wake = threading.Event()
        self._thread: threading.Thread | None = None

    def create(self, draft: BoardRecord, *, new: bool = False, key: str | None = None) -> Created:
        """Create a board, or find the live one of the same selection; see `Registry.create`."""
        self._check_place(draft)
        begin = None if draft.is_isolated else Transition(BoardState.RUNNING)
        limits = self._limits(draft.owner)
        made = self._registry.create(draft, new=new, key=key, limits=limits, begin=begin)
        return Created(self._begin(made.board), made.is_new)

    def _check_place(self, draft: BoardRecord) -> None:
        executor = self._executors.get(draft.executor)
        known = executor is not None and draft.profile in executor.profiles
        if draft.on == INSTANT or (known and not draft.on.endswith(":")):
            return
        named = places({name: one.profiles for name, one in sorted(self._executors.items())})
        raise BadValue(*unknown_place(draft.on, [INSTANT, *named]))

    def stop(self, board_id: str, *, reason: str = "", now: bool = False) -> BoardRecord:
        """Stop a board, with `now` without the grace period; an ended board does not change."""

        def step(record: BoardRecord) -> BoardRecord:
            if not record.is_live:
                return record
            if record.state is BoardState.STOPPING:
                restarts = record.outcome is BoardState.PENDING
                outcome = BoardState.STOPPED if restarts else record.outcome
                urgent = record.urgent or int(now)
                if (outcome, urgent) == (record.outcome, record.urgent):
                    return record
                return self._registry.update(record, outcome=outcome, urgent=urgent)
            at_once = record.state is BoardState.PENDING or not record.is_isolated
            state = BoardState.STOPPED if at_once else BoardState.STOPPING
            problem = record.reason if _UNANSWERED in record.reason and not at_once else ""
            because = Transition(state, why_stopping(reason, record.executor, problem))
            return self._registry.transition(record, because, urgent=int(now))

        return self._retry_on_conflict(board_id, step)

    def abandon(self, board_id: str) -> BoardRecord:
        """End a board that is stopping without waiting for its engine."""

        def step(record: BoardRecord) -> BoardRecord:
            if record.state is not BoardState.STOPPING:
                return record
            if place := self._places.get(record.executor):
                place.has_leftovers = True
            return self._registry.transition(record, Transition(BoardState.STOPPED, record.reason))

        return self._retry_on_conflict(board_id, step)

    def leftover(self, record: BoardRecord) -> str:
        """Return what may still run of a board that was not seen to end, and how to stop it."""
        unit = self.unit(record) or f"aboard-{record.id}-{record.attempt}"
        what = f"{unit} may still run on {record.on}."
        if record.handle is None:
            return what
        command = self._kind(record).how_to_stop(record.handle)
        host = log_host(record.handle)
        where = f" on {host}" if host else ""
        return f"{what} Stop it{where} with: {command}" if command else what

    def restart(self, board_id: str, *, reason: str = "") -> BoardRecord:
        """Stop a board if it is live, and start it again; its history is kept."""

        def step(record: BoardRecord) -> BoardRecord:
            match record.state:
                case BoardState.PENDING:
                    return record
                case BoardState.STOPPING if record.outcome is not BoardState.PENDING:
                    record = self._registry.update(record, outcome=BoardState.PENDING)
                case BoardState.STARTING | BoardState.RUNNING:
                    # Not through an ended state: a hub killed now would leave the board there.
                    stopping = Transition(BoardState.STOPPING, reason, outcome=BoardState.PENDING)
                    record = self._registry.transition(record, stopping)
            if record.state is BoardState.STOPPING and record.is_isolated:
                return record
            self._check_place(record)
            again = self._registry.transition(
                record, Transition(BoardState.PENDING, reason), limits=self._limits(record.owner)
            )
            return self._begin(again)

        return self._retry_on_conflict(board_id, step)

    def extend(self, board_id: str, seconds: float) -> BoardRecord:
        """Extend the time limit of a board; a board without one does not change.

        An isolated board restarts, because its engine enforces the limit given at its start.
        """
        check_number(seconds, "the time to add")

        def step(record: BoardRecord) -> BoardRecord:
            if record.state is not BoardState.RUNNING:
                hint = f"Start it with: aboard restart {record.id}"
                if record.is_live:
                    hint = "Extend its time limit when it runs."
                message = f"board {record.id} ({record.name}) is {record.state}."
                raise IllegalTransition(message, hint)
            if record.expires is None:
                return record
            now = self._clock()
            expires = max(record.expires, now) + seconds
            check_extension(record, expires, self._limits(record.owner))
            if not record.is_isolated:
                return self._registry.update(record, expires=expires)
            again = Transition(
                BoardState.STOPPING, "its time limit was extended", outcome=BoardState.PENDING
            )
            return self._registry.transition(record, again, expires=expires, timeout=expires - now)

        return self._retry_on_conflict(board_id, step)

    def change(
        self,
        board_id: str,
        changes: Callable[[BoardRecord], Mapping[str, Any]],
        *,
        restart: str = "",
    ) -> BoardRecord:
        """Change fields of a board; see `Registry.update`.

        `changes` returns the new values for the current record. `restart` is the reason why a
        running process restarts with them; empty if it does not. A longer time limit always
        restarts it.
        """

        def step(record: BoardRecord) -> BoardRecord:
            values = changes(record)
            runs = record.state in {BoardState.STARTING, BoardState.RUNNING}
            extended = "its time limit was extended" if _is_longer(record, values) else ""
            reason = restart or extended
            if values and reason and record.is_isolated and runs:
                stopping = Transition(BoardState.STOPPING, reason, outcome=BoardState.PENDING)
                return self._registry.transition(record, stopping, **values)
            return self._registry.update(record, **values) if values else record

        return self._retry_on_conflict(board_id, step)

    def touch(self, board_id: str) -> None:
        """Record that a board is used; cheap enough for every request."""
        self._live.touch(board_id, self._clock())

    def snapshot(self) -> Snapshot:
        return self._live.snapshot()

    def known(self, board_id: str) -> BoardRecord | None:
        """Return a live board as it was last read; cheap enough for every request."""
        return self._live.get(board_id)

    def find(self, board_id: str) -> BoardRecord | None:
        """Return a board from the database, for one that ended or that another hub started."""
        try:
            record = self._registry.get(board_id)
        except (NoSuchName, DatabaseUnavailable):
            return None
        if record.is_live:  # serve it now, not only after the next tick
            self._live.update(record)
            if record.is_isolated and record.state is BoardState.RUNNING:
                work = (("address", record.id), self._find_address, record)
                self._submit(*work, pool=self._probes)
        return record

    def is_unhealthy(self, record: BoardRecord) -> bool:
        if record.state is not BoardState.RUNNING:
            return False
        return self._live.time_unanswered(record)[0] >= self._settings.unhealthy

    def why_silent(self, record: BoardRecord) -> str:
        """Return why an unhealthy board does not answer."""
        return self._live.time_unanswered(record)[1]

    def reaches(self, record: BoardRecord) -> bool:
        """Return whether this hub can open and watch an isolated board; see `Executor.reaches`."""
        executor = self._executors.get(record.executor)
        if executor is None:
            return False
        try:
            return record.handle is None or executor.reaches(record.handle)
        except ExecutorError:  # `poll` reports what is wrong with the handle
            return True

    def address(self, record: BoardRecord) -> Address | None:
        executor = self._executors.get(record.executor)
        if executor is None or record.handle is None:
            return None
        return executor.address(record.handle)

    def unit(self, record: BoardRecord) -> str:
        """Return the engine's name for the last start of a board, such as `job 17`."""
        if not record.handle:
            return ""
        word, key = self._kind(record).unit
        return f"{word} {record.handle[key]}" if key in record.handle else ""

    def _kind(self, record: BoardRecord) -> Executor | type[Executor]:
        """Return the executor of a board, or its class if the hub no longer has it."""
        return self._executors.get(record.executor) or executor_class(record.executor)

    def start(self) -> None:
        self._thread = threading.Thread(target=self._loop, name="boards", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Finish pending work. Isolated boards keep running without the hub."""
        with self._lock:
            self._closing = True
        self._wake.set()
        if self._thread is not None:
            self._thread.join()
        for pool in (self._pool, self._probes, *(one.pool for one in self._places.values())):
            if pool is not None:
                pool.shutdown()
        try:
            self._flush()
            self._leases.release()
        except DatabaseUnavailable as error:
            _log.warning("the last use of boards was not stored: %s", error)

    def _loop(self) -> None:
        while not self._closing:
            self._wake.clear()
            try:
                self.tick()
            except Exception:  # noqa: BLE001 - must not affect other boards
                _log.exception("the boards could not be checked; trying again")
            now = self._clock()
            soon = any(
                record.state in _CHANGING and now - record.changed < _SOON_SECONDS
                for record in self._live.snapshot().boards.values()
            )
            self._wake.wait(self._settings.poll_soon if soon else self._settings.poll)

    def tick(self) -> None:
        """Check every live board once and take the steps that are due."""
        try:
            self._flush()
            live = self._registry.live(self._live.begin_read())
            self._live.end_read(live, self._clock())
            isolated = [record for record in live if record.is_isolated]
            self._leases.renew({record.id for record in isolated if self.reaches(record)})
        except DatabaseUnavailable as error:
            self._live.read_failed(str(error))
            return
        for record in live:
            if not record.is_isolated and self._due(record, None) is not None:
                self._submit(record.id, self._advance, record, None)
        held: dict[str, list[BoardRecord]] = {}
        for record in filter(self._leases.holds, isolated):
            held.setdefault(record.executor, []).append(record)
        for name, place in self._places.items():
            searches = place.is_search_due(self._clock(), self._settings.orphans)
            if name in held or place.orphans or searches:
                self._submit((name,), self._poll, place, held.get(name, []), pool=place.pool)
        for record in isolated:
            if record.state is BoardState.RUNNING and not self._leases.holds(record):
                work = (("address", record.id), self._find_address, record)
                self._submit(*work, pool=self._probes)  # an engine that hangs must not delay starts
        unreached = [record for record in isolated if not self.reaches(record)]
        if unreached:
            self._submit("unreached", self._end_unreached, unreached)

    def _poll(self, place: _Place, records: list[BoardRecord]) -> None:
        """Query an executor once for all its boards and take the steps that are due."""
        executor, now = place.executor, self._clock()
        for record in records:
            if record.handle is None:
                self._submit(record.id, self._launch, executor, record, pool=place.pool)
        # A stop requested since the last failure is tried at once: the engine may be back.
        stops = any(
            record.state is BoardState.STOPPING and record.changed > place.failures.last
            for record in records
        )
        if place.failures.is_paused(now) and not stops:
            return
        if place.is_search_due(now, self._settings.orphans):
            place.searched = now
            self._find_orphans(place)
        started = {record.id: record.handle for record in records if record.handle is not None}
        handles = {**started, **place.orphans}
        if not handles:
            return
        statuses = executor.poll(handles)
        place.note_answer(statuses.values(), self._clock())
        for key in list(place.orphans):
            status = statuses.get(key)
            if status is None or status.state is CommandState.ENDED:
                del place.orphans[key]
        for record in records:
            if record.handle is not None:
                self._follow(place, record, record.handle, statuses.get(record.id))

    def _follow(
        self, place: _Place, record: BoardRecord, handle: Handle, status: Status | None
    ) -> None:
        """Take the step that is due after a poll."""
        executor = place.executor
        if self._advance(record, status):
            return
        if record.state is BoardState.STOPPING:
            problem = "" if status is None else why_unanswered(executor.name, status)
            reason = why_stopping(record.reason, executor.name, problem)
            self._explain(record, reason, record.changed)
            stop = (record.id, self._send_stop, executor, record, handle)
            self._submit(*stop, pool=place.pool)
            return
        if status is not None:
            # The start timeout begins after the engine has stopped waiting.
            waits = record.state is BoardState.STARTING
            changed = self._clock() if waits else record.changed
            reason = why_unanswered(executor.name, status)
            if status.state is CommandState.STARTING:
                reason = status.reason  # what it waits for
            self._explain(record, reason, changed)
        if record.state is BoardState.RUNNING and self._probe is not None:
            probing = (executor, record, self._probe, self._clock())
            self._submit(("probe", record.id), self._check_health, *probing, pool=self._probes)

    def _explain(self, record: BoardRecord, reason: str, changed: float) -> None:
        """Store what a board waits for, if it changed."""
        reason = plain(reason)[:LONGEST_TEXT]
        if reason == record.reason:
            return
        try:
            self._live.update(self._registry.explain(record, reason, changed))
        except (Conflict, NoSuchName):
            return
        _log.info("board %s is %s: %s", record.id, record.state, reason)

    def _find_orphans(self, place: _Place) -> None:
        """Stop commands that an executor runs for this hub without a live board.

        An executor that never ran a board is not queried, because the query may be slow.
        """
        used = {split_place(on)[0] for on in self._registry.places()}
        if place.executor.name not in used and not place.has_leftovers:
            return
        try:
            found = place.executor.found()
        except ExecutorError as error:
            _log.info("cannot search %s for orphans: %s", place.executor.name, error)
            return
        if not found:
            return
        # Read after the search: a board is stored before it is started.
        live = {(record.id, record.attempt): record.handle for record in self._registry.live()}
        for one in found:
            key = (one.board, one.attempt)
            known = live.get(key)
            if key in live and (known is None or place.executor.is_same(known, one.handle)):
                continue
            _log.warning(
                "stopping an orphan on %s: start %d of board %s has no live board",
                place.executor.name,
                one.attempt,
                one.board,
            )
            place.orphans[f"{one.board}-{one.attempt}"] = one.handle
            try:
                place.executor.stop(one.handle, now=True)
            except ExecutorError as error:
                _log.warning("start %d of board %s: %s", one.attempt, one.board, error)

    def _find_address(self, record: BoardRecord) -> None:
        """Find the address of a board that another hub holds, so that this hub can serve it."""
        if record.handle is None or not self.reaches(record):
            return
        try:
            self._executors[record.executor].find_address(record.handle)
        except ExecutorError as error:
            _log.info("board %s cannot be opened here: %s", record.id, error)

    def _end_unreached(self, records: list[BoardRecord]) -> None:
        """Mark boards that no hub reaches as failed or lost."""
        lost = self._leases.take_unreached(
            [record.id for record in records], self._settings.unreached
        )
        for record in records:
            if record.id not in lost:
                continue
            if record.state is BoardState.PENDING:
                reason = f"this hub has no executor {record.executor!r}"
                self._transition(record, Transition(BoardState.FAILED, reason))
            else:
                reason = f"no hub has reached it for {format_duration(self._settings.unreached)}"
                self._advance(record, Status(CommandState.ENDED, None, reason))

    def _advance(self, record: BoardRecord, status: Status | None) -> bool:
        """Take the step that is due, if any; return whether there was one."""
        due = self._due(record, status)
        if due is None:
            return False
        self._transition(record, due)
        return True

    def _due(self, record: BoardRecord, status: Status | None) -> Transition | None:
        record = replace(record, last_request=self._live.last_request(record))
        silent, why = self._live.time_unanswered(record)
        due = decide(record, status, self._clock(), self._settings, silent=silent, why=why)
        if due is None or status is None or status.state is not CommandState.ENDED:
            return due
        return due._replace(exit_code=status.exit_code)

    def _check_health(
        self,
        executor: Executor,
        record: BoardRecord,
        probe: Callable[[Address], str],
        began: float,
    ) -> None:
        address = executor.address(record.handle) if record.handle is not None else None
        if address is None:
            return
        if problem := probe(address):
            self._live.unanswered(record, began, self._clock(), self._settings.poll, problem)
        else:
            self._live.answered(record)

    def _launch(self, executor: Executor, record: BoardRecord) -> None:
        """Start a board that has no handle, or adopt what a killed hub started for it."""
        key = (record.id, record.attempt)
        if key in self._launches and self._launches[key].is_paused(self._clock()):
            return
        started: BoardRecord | None = record
        if record.state is BoardState.PENDING:
            started = self._transition(record, Transition(BoardState.STARTING))
        if started is None or not self._leases.holds(record):
            return
        try:
            handle = executor.start(self._specify(started))
        except (ExecutorError, BoardsError, OSError, ValueError) as error:
            # A killed hub may have started it: retry until the adoption timeout.
            waited = self._clock() - started.changed
            if record.state is BoardState.PENDING or waited >= self._settings.adoption_timeout:
                self._fail_start(started, str(error))
            elif record.state is BoardState.STARTING:
                self._explain(record, str(error), record.changed)
            return
        except Exception as error:  # noqa: BLE001 - must not be repeated for ever
            self._note_unexpected(started, error)
            return
        self._launches.pop(key, None)
        self._store_handle(executor, started, handle)

    def _note_unexpected(self, started: BoardRecord, error: Exception) -> None:
        """Try an unexpected error of a start again a few times, then let the board fail."""
        key = (started.id, started.attempt)
        failures = self._launches.setdefault(key, _Failures())
        failures.add(self._clock())
        is_last = failures.count == _MOST_LAUNCHES
        reason = f"its start failed: {type(error).__name__}: {error}"
        _log.warning(
            "board %s, attempt %d of %d: %s",
            started.id,
            failures.count,
            _MOST_LAUNCHES,
            reason,
            exc_info=error if is_last else None,
        )
        if is_last:
            del self._launches[key]
            self._fail_start(started, reason)
        elif started.state is BoardState.STARTING:
            self._explain(started, f"{reason}; retrying", started.changed)

    def _store_handle(self, executor: Executor, started: BoardRecord, handle: Handle) -> None:
        """Store a handle, or stop the command if its board is gone."""
        for _ in range(_ATTEMPTS):
            try:
                record = self._registry.get(started.id)
            except NoSuchName:
                record = None
            if record is None or record.attempt != started.attempt or not record.is_live:
                known = record.handle if record is not None else None
                if known is None or not executor.is_same(known, handle):
                    executor.stop(handle, now=True)
                return
            if record.handle not in (None, handle):  # another hub started it too
                executor.stop(handle, now=True)
                return
            try:
                self._live.update(self._registry.update(record, handle=handle))
            except (Conflict, NoSuchName):
                continue
            self._wake.set()
            return

    def _fail_start(self, started: BoardRecord, reason: str) -> None:
        for _ in range(_ATTEMPTS):
            record = self._registry.get(started.id)
            if record.attempt != started.attempt or not record.is_live:
                return
            stopping = record.state is BoardState.STOPPING
            due = Transition(record.outcome if stopping else BoardState.FAILED, reason)
            if self._transition(record, due) is not None:
                return

    def _send_stop(self, executor: Executor, record: BoardRecord, handle: Handle) -> None:
        """Tell the executor to stop a board, and to kill it after the grace period."""
        waited = self._clock() - record.changed
        now = bool(record.urgent) or waited >= self._settings.grace
        if not now and self._live.was_stop_sent(record):
            return
        try:
            executor.stop(handle, now=now)
        except ExecutorError as error:
            _log.warning("board %s cannot be stopped yet: %s", record.id, error)
            return
        self._live.stop_sent(record)

    def _begin(self, record: BoardRecord) -> BoardRecord:
        """Mark an instant board as running; wake the loop for an isolated one."""
        if record.state is BoardState.PENDING and not record.is_isolated:
            try:
                record = self._registry.transition(record, Transition(BoardState.RUNNING))
            except Conflict:
                record = self._registry.get(record.id)
        self._live.update(record)
        if record.is_isolated:
            self._wake.set()
        return record

    def _retry_on_conflict(
        self, board_id: str, step: Callable[[BoardRecord], BoardRecord]
    ) -> BoardRecord:
        """Take a step that a user requested; retry if the board changes in between."""
        for attempt in range(_ATTEMPTS):
            record = self._registry.get(board_id)
            try:
                record = step(record)
            except Conflict as error:
                if type(error) is not Conflict or attempt == _ATTEMPTS - 1:
                    raise
                continue
            self._live.update(record)
            self._wake.set()
            return record
        raise AssertionError("unreachable")

    def _transition(self, record: BoardRecord, transition: Transition) -> BoardRecord | None:
        """Change the state of a board; return None if it changed in between."""
        changes: dict[str, Any] = {}
        if transition.state in ENDED and record.handle is not None and self.reaches(record):
            changes["handle"] = {**record.handle, LOG_HOST: os.uname().nodename}
        try:
            after = self._registry.transition(record, transition, **changes)
        except (Conflict, NoSuchName):
            return None
        self._live.update(after)
        _log.info("board %s is %s: %s", after.id, after.state, after.reason)
        if after.state is BoardState.PENDING:
            self._wake.set()
        if after.state is BoardState.STARTING:  # earlier failed probes do not count
            self._live.answered(after)
        return after

    def _flush(self) -> None:
        used = self._live.unsaved()
        self._registry.touch(used)
        self._live.saved(used)

    def _submit(
        self,
        key: Hashable,
        work: Callable[..., object],
        *arguments: object,
        pool: ThreadPoolExecutor | None = None,
    ) -> None:
        """Run work in a thread of the pool, if there is one; never twice at once for one key."""

        def run() -> None:
            try:
                work(*arguments)
            except DatabaseUnavailable as error:
                _log.warning("%s", error)
            except Exception:  # noqa: BLE001 - must not affect other boards
                _log.exception("a board could not be checked; trying again")
            finally:
                with self._lock:
                    self._busy.discard(key)

        pool = pool or self._pool
        with self._lock:
            if key in self._busy or self._closing:
                return
            self._busy.add(key)
            if pool is not None:
                pool.submit(run)
        if pool is None:
            run()
