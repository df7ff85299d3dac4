"""The loop that brings boards to where they should be: started, watched, stopped, adopted.

Every step is remembered before it is taken, and can be taken again: a hub that was killed goes on
where the registry says, because starting what runs already gives its handle and stopping what
ended is no error. Which step is due is `decide`'s business; commands are the executors'.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Hashable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any

from aboard.boards.decide import Settings, decide
from aboard.boards.errors import (
    BadValue,
    BoardsError,
    Conflict,
    DatabaseUnavailable,
    IllegalTransition,
    NotFound,
)
from aboard.boards.limits import Limits, check_extension
from aboard.boards.model import INSTANT, BoardRecord, State, Transition, extended
from aboard.boards.registry import Created, Registry
from aboard.boards.silence import Silence
from aboard.boards.snapshot import Seen, Snapshot
from aboard.boards.wanted import Wanted, check_number
from aboard.executors.base import Address, Executor, ExecutorError, Handle, Spec, Status

_log = logging.getLogger(__name__)
_ATTEMPTS = 20
"""How often a change is tried again that others come before."""
_CHANGING = frozenset({State.PENDING, State.STARTING, State.STOPPING})


class Lifecycle:
    """The boards of a hub, kept going.

    Args:
        registry: remembers them.
        executors: where isolated boards run, by name.
        specify: says how a board's command is started; always the same for the same board.
        limits: what a user may have.
        settings: how patient to be; of an executor's own if it is in `settings_of`.
        settings_of: by executor.
        probe: says whether a board that should run answers; where there is one, a board that is
            silent for too long is ended.
        clock: seconds since 1970.
        workers: threads that wait for executors; without any, `tick` does all there is to do.
    """

    def __init__(
        self,
        registry: Registry,
        executors: Mapping[str, Executor],
        specify: Callable[[BoardRecord], Spec],
        *,
        limits: Callable[[str], Limits] = lambda _: Limits(),
        settings: Settings | None = None,
        settings_of: Mapping[str, Settings] | None = None,
        probe: Callable[[Address], bool] | None = None,
        clock: Callable[[], float] = time.time,
        workers: int = 8,
    ) -> None:
        self._registry = registry
        self._executors = executors
        self._specify = specify
        self._limits = limits
        self._settings = settings or Settings()
        self._settings_of = settings_of or {}
        self._probe = probe
        self._clock = clock
        self._pool = ThreadPoolExecutor(workers, "boards") if workers else None
        # Boards that hang keep whoever asks them waiting, and nobody else.
        self._asking = ThreadPoolExecutor(workers, "asking") if workers else None
        self._lock = threading.Lock()
        self._busy: set[Hashable] = set()
        self._seen = Seen()
        self._statuses: dict[str, Status] = {}
        self._silence = Silence()
        self._stop_now: set[str] = set()
        self._asked_to_stop: set[tuple[str, int]] = set()
        self._wake = threading.Event()
        self._closing = False
        self._thread: threading.Thread | None = None

    # What users ask for.

    def create(self, wanted: Wanted, *, new: bool = False, key: str | None = None) -> Created:
        """Make a board, or find the one that is meant; see `Registry.create`.

        Raises:
            BadValue: it cannot run where it is wanted, or something else cannot be meant.
            BoardLimitExceeded: its owner may not have it.
        """
        places = [INSTANT, *sorted(self._executors)]
        if wanted.on not in places:
            hint = f"Use one of: {', '.join(places)}."
            raise BadValue(f"boards cannot run on {wanted.on[:80]!r} here.", hint)
        made = self._registry.create(wanted, new=new, key=key, limits=self._limits(wanted.owner))
        return Created(self._begin(made.board), made.is_new)

    def stop(self, board_id: str, *, reason: str = "", now: bool = False) -> BoardRecord:
        """Make a board end; one that has ended stays as it is.

        Args:
            board_id: which.
            reason: why, for its history.
            now: without time to end by itself.

        Raises:
            NotFound: there is no such board.
        """
        if now:
            self._stop_now.add(board_id)

        def step(record: BoardRecord) -> BoardRecord:
            if not record.is_live:
                return record
            if record.state is State.STOPPING:
                if record.outcome is not State.PENDING:
                    return record
                return self._registry.update(record, outcome=State.STOPPED)
            at_once = record.state is State.PENDING or not record.is_isolated
            state = State.STOPPED if at_once else State.STOPPING
            return self._registry.transition(record, Transition(state, reason))

        return self._insist(board_id, step)

    def restart(self, board_id: str, *, reason: str = "") -> BoardRecord:
        """Start a board anew, after stopping it if it has not ended; its history is kept.

        Raises:
            NotFound: there is no such board.
            BoardLimitExceeded: its owner may not have one more.
            NameTaken: its name was given to another board after it ended.
        """

        def step(record: BoardRecord) -> BoardRecord:
            match record.state:
                case State.PENDING:
                    return record
                case State.STOPPING if record.outcome is not State.PENDING:
                    record = self._registry.update(record, outcome=State.PENDING)
                case State.STARTING | State.RUNNING:
                    # Never through an end: it would stay there if the hub were killed now.
                    stopping = Transition(State.STOPPING, reason, outcome=State.PENDING)
                    record = self._registry.transition(record, stopping)
            if record.state is State.STOPPING and record.is_isolated:
                return record
            again = self._registry.transition(
                record, Transition(State.PENDING, reason), limits=self._limits(record.owner)
            )
            return self._begin(again)

        return self._insist(board_id, step)

    def extend(self, board_id: str, seconds: float) -> BoardRecord:
        """Give a board more time to run; one without an end has enough.

        Raises:
            NotFound: there is no such board.
            Conflict: it does not run.
            BoardLimitExceeded: it would run longer than a board may.
        """
        check_number(seconds, "the time to add")

        def step(record: BoardRecord) -> BoardRecord:
            if record.state is not State.RUNNING:
                hint = f"Start it with: aboard restart {record.id}"
                raise IllegalTransition(f"board {record.id} is {record.state}.", hint)
            expires = extended(record, seconds, self._clock()).expires
            if expires is None:
                return record
            check_extension(record, expires, self._limits(record.owner))
            return self._registry.update(record, expires=expires)

        return self._insist(board_id, step)

    def change(
        self,
        board_id: str,
        wanted: Callable[[BoardRecord], Mapping[str, Any]],
        *,
        restart: str = "",
    ) -> BoardRecord:
        """Change what a board is, not how it stands; see `Registry.update`.

        Args:
            board_id: which.
            wanted: gives the new values of its fields, for the board as it is.
            restart: why one with a process, if it runs, starts anew with them.

        Raises:
            NotFound: there is no such board.
            BadValue: a value cannot be meant.
            NameTaken: the owner has a live board of that name.
        """

        def step(record: BoardRecord) -> BoardRecord:
            changes = wanted(record)
            runs = record.state in {State.STARTING, State.RUNNING}
            if changes and restart and record.is_isolated and runs:
                stopping = Transition(State.STOPPING, restart, outcome=State.PENDING)
                return self._registry.transition(record, stopping, **changes)
            return self._registry.update(record, **changes) if changes else record

        return self._insist(board_id, step)

    def touch(self, board_id: str) -> None:
        """Note that a board is being used; cheap enough for every request."""
        self._seen.touch(board_id, self._clock())

    # What is known without asking the database.

    def snapshot(self) -> Snapshot:
        """Return the live boards as they were last seen."""
        return self._seen.snapshot()

    def known(self, board_id: str) -> BoardRecord | None:
        """Return a live board as it was last seen; cheap enough for every request."""
        return self._seen.get(board_id)

    def status(self, board_id: str) -> Status | None:
        """Return what an isolated board's executor said last."""
        return self._statuses.get(board_id)

    def is_silent(self, record: BoardRecord) -> bool:
        """Say whether a running board has not answered for a while."""
        quiet = self._settings_for(record).quiet
        return record.state is State.RUNNING and self._silence.of(record) >= quiet

    def address(self, record: BoardRecord) -> Address | None:
        """Return where an isolated board listens, if it does.

        Raises:
            ExecutorError: its executor could not tell.
        """
        executor = self._executors.get(record.on)
        if executor is None or record.handle is None:
            return None
        return executor.address(record.handle)

    # The loop.

    def start(self) -> None:
        """Keep the boards going in a thread, until `close`."""
        self._thread = threading.Thread(target=self._loop, name="boards", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Finish what is under way. Boards with a process of their own go on without the hub."""
        self._closing = True
        self._wake.set()
        if self._thread is not None:
            self._thread.join()
        for pool in (self._pool, self._asking):
            if pool is not None:
                pool.shutdown()
        try:
            self._flush()
        except DatabaseUnavailable as error:
            _log.warning("when boards were last used is not remembered: %s", error)

    def _loop(self) -> None:
        while not self._closing:
            self._wake.clear()
            try:
                self.tick()
            except Exception:  # noqa: BLE001 - whatever it was, the other boards go on
                _log.exception("the boards could not be looked after; trying again")
            boards = self._seen.snapshot().boards.values()
            soon = any(record.state in _CHANGING for record in boards)
            self._wake.wait(self._settings.poll_soon if soon else self._settings.poll)

    def tick(self) -> None:
        """Look at every live board once, and take the steps that are due."""
        try:
            self._flush()
            live = self._registry.live(self._seen.about_to_read())
        except DatabaseUnavailable as error:
            self._seen.could_not_read(str(error))
            return
        self._seen.was_read(live, self._clock())
        self._forget_all_but({record.id for record in live})
        places: dict[str, list[BoardRecord]] = {}
        for record in live:
            if record.is_isolated:
                places.setdefault(record.on, []).append(record)
            elif self._due(record, None) is not None:
                self._do(record.id, self._decided, record, None)
        for name, records in places.items():
            self._do((name,), self._look, name, records)

    def _look(self, name: str, records: list[BoardRecord]) -> None:
        """Ask one executor about its boards, and take the steps that are due."""
        executor = self._executors.get(name)
        if executor is None:
            for record in records:
                if record.state is State.PENDING:
                    self._move(record, Transition(State.FAILED, f"there is no {name!r} here"))
            return
        handles = {record.id: record.handle for record in records if record.handle is not None}
        statuses = executor.poll(handles) if handles else {}
        with self._lock:
            self._statuses.update(statuses)
        for record in records:
            if record.handle is None:
                self._do(record.id, self._launch, executor, record)
            elif self._decided(record, statuses.get(record.id)):
                continue
            elif record.state is State.STOPPING:
                self._do(record.id, self._make_end, executor, record, record.handle)
            elif record.state is State.RUNNING and self._probe is not None:
                asking = (executor, record, self._probe, self._clock())
                self._do(("ask", record.id), self._ask, *asking, pool=self._asking)

    def _decided(self, record: BoardRecord, status: Status | None) -> bool:
        """Take the step that is due, and say whether one was."""
        due = self._due(record, status)
        if due is None:
            return False
        self._move(record, due)
        return True

    def _due(self, record: BoardRecord, status: Status | None) -> Transition | None:
        seen = replace(record, last_request=self._seen.last_request(record))
        silent = self._silence.of(record)
        return decide(seen, status, self._clock(), self._settings_for(record), silent=silent)

    def _ask(
        self,
        executor: Executor,
        record: BoardRecord,
        probe: Callable[[Address], bool],
        asked: float,
    ) -> None:
        """Find out whether a running board answers."""
        address = executor.address(record.handle) if record.handle is not None else None
        if address is None:
            return
        if probe(address):
            self._silence.answered(record)
        else:
            poll = self._settings_for(record).poll
            self._silence.unanswered(record, asked, self._clock(), poll)

    def _launch(self, executor: Executor, record: BoardRecord) -> None:
        """Start a board that has no handle yet, or find what a killed hub started for it."""
        started: BoardRecord | None = record
        if record.state is State.PENDING:
            started = self._move(record, Transition(State.STARTING))
        if started is None:
            return
        try:
            handle = executor.start(self._specify(started))
        except (ExecutorError, BoardsError, OSError, ValueError) as error:
            # A killed hub may have started it: as long as that can be found out, it is tried.
            waited = self._clock() - started.changed
            if record.state is State.PENDING or waited >= self._settings_for(record).patience:
                self._not_started(started, str(error))
            return
        self._keep(executor, started, handle)

    def _keep(self, executor: Executor, started: BoardRecord, handle: Handle) -> None:
        """Remember a handle; what was started for a board that is gone is ended."""
        for _ in range(_ATTEMPTS):
            try:
                record = self._registry.get(started.id)
            except NotFound:
                record = None
            if record is None or record.attempt != started.attempt or not record.is_live:
                if record is None or record.handle != handle:
                    executor.stop(handle, now=True)
                return
            try:
                self._seen.changed(self._registry.update(record, handle=handle))
            except (Conflict, NotFound):
                continue
            self._wake.set()
            return

    def _not_started(self, started: BoardRecord, reason: str) -> None:
        for _ in range(_ATTEMPTS):
            record = self._registry.get(started.id)
            if record.attempt != started.attempt or not record.is_live:
                return
            stopping = record.state is State.STOPPING
            due = Transition(record.outcome if stopping else State.FAILED, reason)
            if self._move(record, due) is not None:
                return

    def _make_end(self, executor: Executor, record: BoardRecord, handle: Handle) -> None:
        """Ask a board to end, and make it when it had time enough."""
        waited = self._clock() - record.changed
        now = record.id in self._stop_now or waited >= self._settings_for(record).grace
        asked = (record.id, record.attempt)
        if not now and asked in self._asked_to_stop:
            return
        try:
            executor.stop(handle, now=now)
        except ExecutorError as error:
            _log.warning("board %s cannot be stopped yet: %s", record.id, error)
            return
        self._asked_to_stop.add(asked)

    # Small steps.

    def _begin(self, record: BoardRecord) -> BoardRecord:
        """Let an instant board run, and an isolated one be started soon."""
        if record.state is State.PENDING and not record.is_isolated:
            try:
                record = self._registry.transition(record, Transition(State.RUNNING))
            except Conflict:
                record = self._registry.get(record.id)
        self._seen.changed(record)
        if record.is_isolated:
            self._wake.set()
        return record

    def _insist(self, board_id: str, step: Callable[[BoardRecord], BoardRecord]) -> BoardRecord:
        """Take a step that a user asked for, also when the board changes meanwhile."""
        for attempt in range(_ATTEMPTS):
            record = self._registry.get(board_id)
            try:
                record = step(record)
            except Conflict as error:
                if type(error) is not Conflict or attempt == _ATTEMPTS - 1:
                    raise
                continue
            self._seen.changed(record)
            self._wake.set()
            return record
        raise AssertionError("unreachable")

    def _move(self, record: BoardRecord, transition: Transition) -> BoardRecord | None:
        """Bring a board into a state, unless it was changed since it was looked at."""
        try:
            after = self._registry.transition(record, transition)
        except (Conflict, NotFound):
            return None
        self._seen.changed(after)
        _log.info("board %s is %s: %s", after.id, after.state, after.reason)
        if after.state is State.PENDING:
            self._wake.set()
        return after

    def _settings_for(self, record: BoardRecord) -> Settings:
        return self._settings_of.get(record.on, self._settings)

    def _flush(self) -> None:
        """Remember when boards were last used."""
        touched = self._seen.take_touched()
        try:
            self._registry.touch(touched)
        except DatabaseUnavailable:
            self._seen.put_back(touched)
            raise

    def _forget_all_but(self, live: set[str]) -> None:
        """Drop what is kept in memory of boards that have ended."""
        self._silence.forget_all_but(live)
        with self._lock:
            for gone in self._statuses.keys() - live:
                del self._statuses[gone]
            self._stop_now &= live
            self._asked_to_stop = {asked for asked in self._asked_to_stop if asked[0] in live}

    def _do(
        self,
        key: Hashable,
        work: Callable[..., object],
        *arguments: object,
        pool: ThreadPoolExecutor | None = None,
    ) -> None:
        """Do some work in a thread if there are any, but never twice at once under one key."""
        with self._lock:
            if key in self._busy or self._closing:
                return
            self._busy.add(key)

        def run() -> None:
            try:
                work(*arguments)
            except DatabaseUnavailable as error:
                _log.warning("%s", error)
            except Exception:  # noqa: BLE001 - whatever it was, the other boards go on
                _log.exception("the boards could not be looked after; trying again")
            finally:
                with self._lock:
                    self._busy.discard(key)

        pool = pool or self._pool
        if pool is None:
            run()
        else:
            pool.submit(run)
