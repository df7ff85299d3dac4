"""The change stream: events about runs, boards, jobs and new points, for any number of listeners.

While there are listeners, one thread looks for changes and appends them to one ring of events. A
listener is only a position in that ring. One that falls behind, or comes back too late, gets a
`reset` and has to list everything again.
"""

from __future__ import annotations

import asyncio
import logging
import re
import secrets
import threading
import time
from collections import Counter, deque
from collections.abc import Collection, Mapping, Sequence
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass, field
from enum import StrEnum
from typing import TYPE_CHECKING, Any, NamedTuple

import orjson

from aboard.boards.accounts import User
from aboard.boards.model import (
    INSTANT,
    BoardRecord,
    BoardState,
    Busy,
    DatabaseUnavailable,
    NoSuchName,
    to_document,
)
from aboard.executors.base import ExecutorError
from aboard.hub.jobs import JobFilter, job_document
from aboard.hub.permissions import Action, may
from aboard.hub.runs import run_document
from aboard.jobs import JobError
from aboard.jobs.model import JobStatus
from aboard.runs.catalog import KnownRun, dump_json, run_id
from aboard.storage import StorageError, is_remote

if TYPE_CHECKING:
    from aboard.hub.service import Hub

MOST_LISTENERS, MOST_OF_USER = 4096, 64
MOST_FOLLOWED = 1000  # runs per listener
_MOST_EVENTS, _MOST_BYTES = 4096, 8 << 20  # in the ring
_MOST_CHANGES = 200  # of one scan that are separate events
_MOST_POINTS = 1000  # runs with new points in one event
_LARGEST_DOCUMENT = 16 << 10
_SCAN_SECONDS = 0.5
_GATHER_SECONDS = 0.1  # after new points, so that those of many runs are one event
_STATE_SECONDS = 5.0  # between two searches for lost runs
_JOB_SECONDS, _REMOTE_JOB_SECONDS = 5.0, 30.0
_MOST_JOBS = 200
_FIRST_SECONDS = 30.0  # to wait for the first listing of roots
_CPU_SHARE = 0.1  # of one core, for comparing runs
_LINGER_SECONDS = 30.0  # to keep scanning after the last listener has left: it may come back
_log = logging.getLogger(__name__)


class Kind(StrEnum):
    """The kinds of events."""

    RUN = "run"
    BOARD = "board"
    JOB = "job"
    POINTS = "points"


class Event(NamedTuple):
    """An event, encoded once for all listeners."""

    kind: Kind
    name: str
    data: bytes
    boards: tuple[BoardRecord, ...] = ()  # users who see one of these get `data`
    before: BoardRecord | None = None  # users who saw only this one get `gone`
    gone: bytes = b""
    runs: tuple[str, ...] = ()  # with new points


@dataclass(eq=False, slots=True)
class Listener:
    """A user's position in the ring; `wake` is set when there may be new events."""

    user: User
    kinds: frozenset[Kind]
    follow: Mapping[str, str]  # URIs of runs by id; empty for all that boards show
    position: int
    auth_changes: int
    reset: bool = False
    wake: asyncio.Event = field(default_factory=asyncio.Event)


class Events:
    """The change stream of a hub. Call `listen`, `leave` and `take` from one event loop.

    One lock guards what the loop and the thread of the scan share, except for the scanned kinds:
    they are replaced, never changed.
    """

    def __init__(self, hub: Hub) -> None:
        self._hub = hub
        self._lock = threading.Condition()
        self._listeners: set[Listener] = set()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None
        self._closed = False
        self._epoch = ""
        self._ring: deque[Event] = deque()
        self._end = 0  # the number of the next event
        self._bytes = 0
        self._fresh: set[str] = set()  # sources with new points
        self._known: frozenset[Kind] = frozenset()  # kinds whose changes become events

    def close(self) -> None:
        with self._lock:
            self._closed = True
            thread = self._thread
            self._lock.notify_all()
        if thread is not None:
            thread.join()

    def note_data(self, uri: str) -> None:
        """Record that new points of a source were read."""
        with self._lock:
            if self._thread is not None:
                self._fresh.add(uri)
                self._lock.notify_all()

    # Listeners.

    def listen(
        self, user: User, kinds: frozenset[Kind], follow: Mapping[str, str], last: str | None
    ) -> Listener:
        """Add a listener, which continues after the event `last` if that is still in the ring.

        Raises:
            Busy: too many listeners, in total or of this user.
        """
        loop = asyncio.get_running_loop()
        with self._lock:
            if len(self._listeners) >= MOST_LISTENERS:
                raise Busy(f"{MOST_LISTENERS:,} clients already listen.", "Try again later.")
            if sum(one.user.name == user.name for one in self._listeners) >= MOST_OF_USER:
                raise Busy(f"{MOST_OF_USER} of your clients already listen.", "Close some.")
            if self._thread is None and not self._closed:
                self._begin(loop)
            position = self._end if last is None else self._position(last)
            changes = self._hub.auth.changes
            listener = Listener(
                user, kinds, follow, self._end if position is None else position, changes
            )
            listener.reset = position is None
            self._listeners.add(listener)
            self._lock.notify_all()
        return listener

    def leave(self, listener: Listener) -> None:
        with self._lock:
            self._listeners.discard(listener)
            self._lock.notify_all()

    def take(self, listener: Listener) -> bytes:
        """Return the encoded events since the last call for this listener; empty if none."""
        with self._lock:
            first = self._end - len(self._ring)
            if listener.position < first:
                listener.position, listener.reset = self._end, True
            behind = self._end - listener.position
            found = [self._ring[at] for at in range(len(self._ring) - behind, len(self._ring))]
            number, listener.position = listener.position, self._end
            epoch = self._epoch
        text = bytearray()
        if listener.reset:
            listener.reset = False
            text += _text(f"{epoch}.{number - 1}", "reset", b"{}")
        for at, event in enumerate(found, number):
            data = _shown(event, listener)
            if data:
                text += _text(f"{epoch}.{at}", event.name, data)
        return bytes(text)

    def hello(self, listener: Listener) -> bytes:
        """Return the first event of a stream, with the position where it begins."""
        with self._lock:
            return _text(f"{self._epoch}.{listener.position - 1}", "hello", b"{}")

    def is_ready(self, listener: Listener) -> bool:
        """Return whether all changes of the listener's kinds are events from now on."""
        return self._known.issuperset(listener.kinds)

    def is_current(self, listener: Listener) -> bool:
        """Return whether permissions are unchanged since the listener was added."""
        return listener.auth_changes == self._hub.auth.changes

    def _position(self, last: str) -> int | None:
        epoch, _, number = last.rpartition(".")
        if epoch != self._epoch or not re.fullmatch(r"[0-9]{1,18}", number):
            return None
        after = int(number) + 1
        return after if self._end - len(self._ring) <= after <= self._end else None

    # The scan.

    def _begin(self, loop: asyncio.AbstractEventLoop) -> None:
        self._epoch = secrets.token_hex(4)
        self._ring.clear()
        self._bytes, self._end = 0, 1
        self._fresh.clear()
        self._known = frozenset()
        self._loop = loop
        self._thread = threading.Thread(
            target=self._run, args=(loop,), name="aboard-events", daemon=True
        )
        self._thread.start()

    def _run(self, loop: asyncio.AbstractEventLoop) -> None:
        scan, has_missed = _Scan(self._hub, loop), False
        idle_since: float | None = None
        while True:
            with self._lock:
                listeners = list(self._listeners)
                fresh, self._fresh = self._fresh, set()
                now = time.monotonic()
                idle_since = None if listeners else idle_since or now
                is_over = idle_since is not None and now - idle_since > _LINGER_SECONDS
                if self._closed or is_over:
                    self._hub.follower.follow(())  # before another thread can start
                    self._thread = None
                    return
            try:
                kinds = {kind for one in listeners for kind in one.kinds} or set(Kind)
                follow = {uri for one in listeners for uri in one.follow.values()}
                events = scan.changes(kinds, follow, fresh)
                is_more, self._known = scan.known > self._known, scan.known
                if has_missed:
                    self._reset()
                self._publish(events, wake=is_more or has_missed)
                has_missed = False
            except Exception:  # noqa: BLE001 - the next scan may succeed
                _log.exception("the scan for changes failed; trying again")
                scan, has_missed = _Scan(self._hub, loop), True
                self._wait_closed(1.0)
            with self._lock:
                fresh_or_closed = self._lock.wait_for(
                    lambda: self._closed or bool(self._fresh), _SCAN_SECONDS
                )
            if fresh_or_closed:
                self._wait_closed(_GATHER_SECONDS)

    def _wait_closed(self, seconds: float) -> None:
        with self._lock:
            self._lock.wait_for(lambda: self._closed, seconds)

    def _reset(self) -> None:
        """Make every listener list everything again: a scan failed, and its events are lost."""
        with self._lock:
            self._epoch = secrets.token_hex(4)
            self._ring.clear()
            self._bytes = 0
            for one in self._listeners:
                one.position, one.reset = self._end, True

    def _publish(self, events: Sequence[Event], *, wake: bool) -> None:
        if not events and not wake:
            return
        with self._lock:
            for event in events:
                self._ring.append(event)
                self._bytes += len(event.data)
                self._end += 1
            while len(self._ring) > _MOST_EVENTS or self._bytes > _MOST_BYTES:
                self._bytes -= len(self._ring.popleft().data)
            loop = self._loop
        if loop is not None:
            with suppress(RuntimeError):  # the server has stopped
                loop.call_soon_threadsafe(self._wake)

    def _wake(self) -> None:
        with self._lock:
            listeners = list(self._listeners)
        for one in listeners:
            one.wake.set()


def _text(identity: str, name: str, data: bytes) -> bytes:
    return f"id: {identity}\nevent: {name}\ndata: ".encode() + data + b"\n\n"


def _shown(event: Event, listener: Listener) -> bytes:
    """Return the data of an event for a listener; empty if it is not allowed or not requested.

    It is JSON, so it has no line breaks, which would end the data.
    """
    if event.kind not in listener.kinds:
        return b""
    if event.kind is Kind.BOARD or event.boards:
        if any(may(listener.user, Action.SEE, board) for board in event.boards):
            return event.data
        could_see = event.before is not None and may(listener.user, Action.SEE, event.before)
        return event.gone if could_see else b""
    if not may(listener.user, Action.SEE_RUNS):
        return b""
    if event.kind is Kind.POINTS and listener.follow:
        runs = [run for run in event.runs if run in listener.follow]
        return orjson.dumps({"runs": runs}) if runs else b""
    return event.data


class _Scan:
    """The state at the last scan; used by one thread."""

    def __init__(self, hub: Hub, loop: asyncio.AbstractEventLoop) -> None:
        self._hub = hub
        self._loop = loop
        self._change: tuple[int, int] | None = None  # of the catalog, at the last scan
        self._runs_due = 0.0
        self._lost: frozenset[int] = frozenset()  # rows of runs
        self._states_at = 0.0
        self._boards: dict[str, tuple[BoardRecord, object]] | None = None
        self._jobs: dict[str, dict[str, Any]] | None = None
        self._jobs_at = float("-inf")
        self._jobs_found: Future[tuple[list[JobStatus], int | None]] | None = None
        self._began = time.monotonic()
        self.known: frozenset[Kind] = frozenset()  # kinds that were scanned at least once

    def changes(
        self, kinds: Collection[Kind], follow: Collection[str], fresh: Collection[str]
    ) -> list[Event]:
        """Return the changes since the last call; the first call returns none."""
        events: list[Event] = []
        self._hub.follower.follow(follow)
        if Kind.RUN in kinds:
            self._hub.follower.runs_requested()
            events += self._of_runs()
            if self._change is not None:
                self.known |= {Kind.RUN}
        if Kind.BOARD in kinds:
            events += self._of_boards()
        if Kind.JOB in kinds:
            events += self._of_jobs()
        self.known |= {*kinds} - {Kind.RUN}
        return events + self._of_points(fresh)

    def _of_runs(self) -> list[Event]:
        began = time.monotonic()
        if began < self._runs_due or (self._change is None and self._is_early()):
            return []
        cpu = time.thread_time()
        events = self._changed_runs()
        self._runs_due = began + (time.thread_time() - cpu) / _CPU_SHARE
        return events

    def _is_early(self) -> bool:
        """Return whether a root of a new hub is still being listed, so its runs are not new."""
        library = self._hub.library
        unlisted = any(library.state(root).at is None for root in library.uris)
        return unlisted and time.monotonic() - self._began < _FIRST_SECONDS

    def _changed_runs(self) -> list[Event]:
        library = self._hub.library
        if self._change is None:
            self._change = library.index.last_change()
            self._newly_lost()
            return []
        changes = library.changes_since(self._change)
        if changes is None:  # the index was replaced and is being filled again
            self._change = library.index.last_change()
            return [Event(Kind.RUN, "runs", orjson.dumps({"new": 0, "changed": 0, "gone": 0}))]
        self._change = changes.change
        found = [("new", run) for run in changes.new]
        found += [("changed", run) for run in changes.changed]
        gone = [run_id(*one) for one in changes.gone]
        if time.monotonic() - self._states_at > _STATE_SECONDS:
            reported = {run.id for _, run in found}
            found += [("changed", run) for run in self._newly_lost() if run.id not in reported]
        if len(found) + len(gone) > _MOST_CHANGES or not changes.is_complete:
            counts = Counter(change for change, _ in found)
            data = {"new": counts["new"], "changed": counts["changed"], "gone": len(gone)}
            return [Event(Kind.RUN, "runs", orjson.dumps(data))]
        events = [self._run_event(change, run) for change, run in found]
        return events + [
            Event(Kind.RUN, "run", orjson.dumps({"change": "gone", "id": one})) for one in gone
        ]

    def _newly_lost(self) -> Sequence[KnownRun]:
        """Return the runs that are lost now because they sent no heartbeat."""
        self._states_at = time.monotonic()
        before, self._lost = self._lost, self._hub.library.lost(self._hub.clock())
        return self._hub.library.index.runs_of(sorted(before ^ self._lost))

    def _run_event(self, change: str, run: KnownRun) -> Event:
        data: dict[str, Any] = {"change": change, "id": run.id}
        body = dump_json(data | {"run": run_document(run, self._hub.clock())})
        if len(body) > _LARGEST_DOCUMENT:
            body = orjson.dumps(data)
        return Event(Kind.RUN, "run", body)

    def _of_boards(self) -> list[Event]:
        snapshot = self._hub.lifecycle.snapshot()
        now: dict[str, tuple[BoardRecord, object]] = {
            board.id: (board, (board.version, self._count(board)))
            for board in snapshot.boards.values()
        }
        before, self._boards = self._boards, now
        if before is None:
            return []
        events = []
        for board_id, (board, mark) in now.items():
            known = before.get(board_id)
            if known is None:
                events.append(self._board_event("new", board))
            elif known[1] != mark:
                events.append(self._board_event("changed", board, known[0]))
        for board_id in before.keys() - now.keys():
            known_board = before[board_id][0]
            try:
                ended = self._hub.registry.get(board_id)
            except NoSuchName:
                events.append(_gone(known_board))
            except DatabaseUnavailable:
                now[board_id] = before[board_id]  # the next scan tries again
            else:
                events.append(self._board_event("changed", ended, known_board))
        return events

    def _count(self, board: BoardRecord) -> int | None:
        is_shown = board.on == INSTANT and board.state is BoardState.RUNNING
        return self._hub.follower.count(board.id) if is_shown else None

    def _board_event(
        self, change: str, board: BoardRecord, before: BoardRecord | None = None
    ) -> Event:
        document = to_document(self._hub.describe(board, closely=False))
        data = orjson.dumps({"change": change, "id": board.id, "board": document})
        gone = b"" if before is None else _gone(before).gone
        return Event(Kind.BOARD, "board", data, (board,), before, gone)

    def _of_jobs(self) -> list[Event]:
        """Return events of changed jobs; does not wait for engines, which may be slow."""
        if self._jobs_found is None:
            remote = any(map(is_remote, self._hub.library.uris))
            pause = _REMOTE_JOB_SECONDS if remote else _JOB_SECONDS
            if time.monotonic() - self._jobs_at > pause:
                self._jobs_at = time.monotonic()
                page = self._hub.jobs.page(JobFilter(), None, start=0, limit=_MOST_JOBS)
                self._jobs_found = asyncio.run_coroutine_threadsafe(page, self._loop)
            return []
        if not self._jobs_found.done():
            return []
        future, self._jobs_found = self._jobs_found, None
        try:
            listed = future.result()[0]
        except (StorageError, ExecutorError, JobError):
            return []
        found = {f"{one.record.root} {one.id}": job_document(one) for one in listed}
        before, self._jobs = self._jobs, found
        if before is None:  # the first scan has nothing to compare with
            return [Event(Kind.JOB, "jobs", b"{}")]
        oldest = min((job["created"] for job in found.values()), default="")
        oldest = oldest if len(found) == _MOST_JOBS else ""
        events = [
            _job_event("changed" if key in before else "new", job)
            for key, job in found.items()
            if before.get(key) != job
        ]
        missing = [job for key, job in before.items() if key not in found]
        return events + [_job_event("gone", job) for job in missing if job["created"] > oldest]

    def _of_points(self, fresh: Collection[str]) -> list[Event]:
        runs: list[str] = []
        events: list[Event] = []
        for uri in fresh:
            run = self._run_at(uri)
            if run is not None:
                runs.append(run.id)
            else:
                shown = self._hub.lifecycle.snapshot().boards.values()
                if boards := tuple(board for board in shown if uri in board.sources):
                    data = orjson.dumps({"source": uri})
                    events.append(Event(Kind.POINTS, "points", data, boards))
        for at in range(0, len(runs), _MOST_POINTS):
            part = tuple(runs[at : at + _MOST_POINTS])
            data = orjson.dumps({"runs": part})
            events.append(Event(Kind.POINTS, "points", data, runs=part))
        return events

    def _run_at(self, uri: str) -> KnownRun | None:
        library = self._hub.library
        for root in library.uris:
            if uri == root or uri.startswith(f"{root}/"):
                run = library.index.known_run(root, uri[len(root) + 1 :])
                if run is not None:
                    return run
        return None


def _gone(board: BoardRecord) -> Event:
    data = orjson.dumps({"change": "gone", "id": board.id})
    return Event(Kind.BOARD, "board", data, (board,), board, data)


def _job_event(change: str, job: dict[str, Any]) -> Event:
    held = {} if change == "gone" else {"job": job}
    data = {"change": change, "id": job["id"], "root": job["root"], **held}
    return Event(Kind.JOB, "job", dump_json(data))
