"""The follower: keeps the index up to date with the sources of boards in use.

A *feed* is what the follower polls: a root, of which it reads changed runs on boards in use, or a
source that a board shows completely. Changes reported by a local file system are read immediately.
Requests to a bucket cost money: it is polled less and less often while nothing changes, and between
two listings of a large bucket only runs that wrote recently are polled.

One lock guards all state; it is never held during I/O. A bounded number of threads does the work.
"""

from __future__ import annotations

import logging
import math
import threading
import time
from collections.abc import Callable, Collection, Container, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from aboard.events.files import EVENT_FILE
from aboard.index import Report, Source
from aboard.index.sources import LONGEST_SECONDS, REMOTE_SECONDS, UNWATCHED_SECONDS
from aboard.runs.manifest import FILE_NAME
from aboard.storage import StorageError, is_below, is_remote, join, traffic
from aboard.storage.base import JOBS, split
from aboard.storage.local import TEMPORARY
from aboard.system import Backoff
from aboard.tensorboard.board import Board, BoardSelection, needs_records

if TYPE_CHECKING:
    from aboard.index.library import Library, RunSet
    from aboard.runs.catalog import KnownRun
    from aboard.runs.question import Question
    from aboard.tensorboard.provider import Boards

CATCH_UP_SECONDS = 1.5  # how long the first request after a pause waits for new data
_FEW_PAGES = 2  # a listing with up to this many pages may be requested often
_RECENT_SECONDS = 600.0  # how long after its last value a run of a large bucket is polled often
_MOST_REPORTS = 200  # reported paths that are read one by one; for more, the feed is polled
_BETWEEN_ANSWERS = 0.5  # least seconds between two answers to the question of a board
_ANSWER_SHARE = 0.1  # largest share of one processor for answering it
_BETWEEN_REPORTS = 0.4  # most seconds between two readings of what the file system reported
_LONGEST_BACKOFF = 60.0
_TICK_SECONDS = 0.5  # the scheduler wakes at least this often
# Threads: feeds polled at once, runs of roots read at once, local feeds watched.
_POLLERS, _READERS, _WATCHERS = 6, 16, 8
_READERS_OF_ROOT = 4
_MOST_CONDITIONS = 10

_log = logging.getLogger(__name__)


class SourceState(NamedTuple):
    """The result of a poll: what was read, or why the source could not be read."""

    report: Report
    loaded: bool  # whether the first reading is complete
    error: StorageError | None = None
    runs: int | None = None  # shown runs, counted when they have changed


OnPoll = Callable[[Source, SourceState], None]
OnChange = Callable[[Board], None]
OnData = Callable[[str], None]

# How often local feeds are polled; for buckets, see `index.sources`.
_LOCAL_SECONDS = 0.4
_ROOT_SECONDS = 1.0
_LONGEST_LOCAL_SECONDS = 5.0
_CPU_SHARE = 0.1  # of one core, for polling all feeds in use


@dataclass(slots=True)
class Schedule:
    """How long to wait before the next poll. It has no clock."""

    shortest: float  # seconds to wait after a change
    longest: float  # the longest wait in seconds, however slow a poll is
    grows: bool = True  # back off while nothing changes
    wait: float = 0.0
    floor: float = 0.0  # the shortest wait in any case, so that polling is not continuous
    share: float = _CPU_SHARE

    def after(self, *, changed: bool, cost: float) -> float:
        """Return the seconds to wait after a poll that took `cost` seconds of CPU time.

        The cost of a poll that found changes is ignored, because it does not predict the next one.
        """
        if not changed:
            self.floor = min(cost / self.share, self.longest)
        least = max(self.shortest, self.floor)
        longer = self.grows and not changed and self.wait
        self.wait = min(max(least, self.wait * 1.5 if longer else 0.0), self.longest)
        return self.wait


def _schedule_of(uri: str, poll: float | None = None, *, is_root: bool = False) -> Schedule:
    """Return the schedule of a feed; `poll` replaces the shortest wait of a bucket."""
    if not is_remote(uri):
        shortest = _ROOT_SECONDS if is_root else _LOCAL_SECONDS
        return Schedule(shortest, max(shortest, _LONGEST_LOCAL_SECONDS), grows=False)
    shortest = REMOTE_SECONDS if poll is None else poll
    return Schedule(shortest, max(shortest, LONGEST_SECONDS))


@dataclass(eq=False)
class _Feed:
    """A root, or a source that is shown completely; guarded by the follower's lock."""

    source: Source
    is_root: bool
    schedule: Schedule
    backoff: Backoff  # after unforeseen errors
    due: float = 0.0
    whole_due: float = 0.0  # when all of it is due, if only recent runs are polled meanwhile
    busy: bool = False
    again: bool = False  # a request came during a poll, which may have missed changes before it
    polls: int = 0  # completed polls of the whole feed
    polled: float | None = None  # when the last of them began
    fresh_until: float = float("-inf")  # until when the listing of a root may be reused
    loaded: bool = False
    listed: bool = False  # the storage has responded, with a listing or an error
    error: StorageError | None = None
    problems: tuple[StorageError, ...] = ()  # of a source that could be listed
    unread: dict[str, StorageError] = field(default_factory=dict)  # runs that failed, by URI
    marks: dict[str, int] = field(default_factory=dict)  # of each run of a root when last read
    epoch: int | None = None  # of the index that the marks were read into
    changes: int | None = None  # of the catalog of a root, when boards were last resolved
    pages: int = 0  # of the last listing of a root
    recent: tuple[Source, ...] = ()
    reported: set[str] = field(default_factory=set)  # by the file system, not yet read
    reported_due: float = 0.0
    watcher: threading.Event | None = None  # stops the thread that watches the file system
    dropped: bool = False

    @property
    def uri(self) -> str:
        return self.source.uri


@dataclass(eq=False)
class _Shown:
    """A board that is served; guarded by the follower's lock."""

    spec: BoardSelection
    requested: float = float("-inf")
    board: Board | None = None
    feeds: list[_Feed] = field(default_factory=list)
    runs: int | None = None  # how many it shows, once counted
    counted: int = -1  # the version of the listing in which they were counted
    # Feeds to be polled before the board is up to date, and the poll count to reach.
    awaited: list[tuple[_Feed, int]] = field(default_factory=list)
    patience: float = float("-inf")  # until when requests wait for that
    stale: bool = False  # runs have changed since its selectors were resolved
    selected: dict[str, Source] = field(default_factory=dict)  # read with their root, by URI
    dirty: bool = False  # new points were read since its question was answered
    answer_due: float = 0.0  # when the question may be answered again
    unmatched: list[str] = field(default_factory=list)  # what no run has, but its question names

    @property
    def is_current(self) -> bool:
        return all(feed.polls > polls for feed, polls in self.awaited)

    def in_use(self, now: float) -> bool:
        return now - self.requested <= UNWATCHED_SECONDS


class _Poll(NamedTuple):
    changed: bool = False
    error: StorageError | None = None
    report: Report | None = None
    recent: tuple[Source, ...] = ()
    unforeseen: bool = False  # the error is a bug, not an error of the storage
    cached: bool = False  # a recent listing was reused
    inconclusive: bool = False  # only a poll of the whole feed can show what changed

    @property
    def problems(self) -> tuple[StorageError, ...]:
        return tuple(self.report.problems) if self.report is not None else ()


class FollowedBoard(NamedTuple):
    """What is known of a board that is served."""

    runs: int | None  # as last counted
    conditions: list[str]
    """The storage errors of its sources."""
    missing_fields: list[str] | None
    """What its question and templates name and no run has; with it, why no run matches.

    None until all runs are read.
    """
    is_read: bool
    """Whether all its storages have responded."""


def _errors(shown: _Shown) -> list[StorageError]:
    if shown.board is None:
        return []
    found: list[StorageError] = []
    for feed in shown.feeds:
        if feed.error is not None:
            uris = [member.source.uri for member in shown.board.members]
            has_runs = not uris or any(is_below(uri, feed.uri) for uri in uris)
            if has_runs or not feed.is_root:
                found.append(feed.error)
        found += feed.problems
        found += [error for uri, error in feed.unread.items() if uri in shown.selected]
    return found


def _conditions(errors: Iterable[object]) -> list[str]:
    return list(dict.fromkeys(map(str, errors)))[:_MOST_CONDITIONS]


class _Stopped(Exception):
    """What is being read is no longer needed."""


class Follower:
    """Serves boards from the index, and keeps the index up to date for them.

    `poll` is the seconds between two polls of a bucket that changes. `on_poll` is called in a
    thread of the follower, while a source is read and after every poll of it, and after the first
    poll of a root; if it is given, it gets the errors, which are otherwise logged. `on_change` is
    called when the selectors of a board match different runs, and `on_data` with the URI of a
    source from which new data was read.
    """

    def __init__(
        self,
        library: Library,
        boards: Boards,
        *,
        poll: float | None = None,
        watch: bool = True,
        on_poll: OnPoll | None = None,
        on_change: OnChange | None = None,
        on_data: OnData = lambda _: None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._library = library
        self._index = library.index
        self._boards = boards
        self._poll = poll
        self._watch = watch
        self._on_poll = on_poll
        self._on_change = on_change
        self._on_data = on_data
        self._clock = clock
        self._lock = threading.Condition(threading.RLock())
        # Held while selectors are resolved; acquired before `_lock`, never while holding it.
        self._resolving = threading.Lock()
        self._shown: dict[str, _Shown] = {}
        self._feeds: dict[tuple[Source, bool], _Feed] = {}
        self._roots: list[str] = []
        self._followed: dict[str, Source] = {}  # runs that are read without a board
        self._listed = float("-inf")
        self._requested_runs: dict[str, tuple[Source, float]] = {}  # for metrics, and when
        self._requested_feeds: list[tuple[_Feed, int]] = []  # see `_Shown.awaited`
        self._requests_wait_until = float("-inf")
        self._logged: dict[str, str] = {}
        self._closed = threading.Event()
        self._watchers: list[threading.Thread] = []
        self._pollers = ThreadPoolExecutor(_POLLERS, "aboard-follower-poll")
        self._readers = ThreadPoolExecutor(_READERS, "aboard-follower-read")
        self._thread = threading.Thread(target=self._run, name="aboard-follower", daemon=True)
        self._thread.start()

    def close(self) -> None:
        with self._lock:
            self._closed.set()
            for feed in self._feeds.values():
                _end_watcher(feed)
            self._lock.notify_all()
        self._thread.join()
        for pool in (self._pollers, self._readers):
            pool.shutdown(cancel_futures=True)
        for thread in self._watchers:
            thread.join()

    # Boards.

    def show(self, spec: BoardSelection) -> None:
        """Serve a board with this selection; cheap if nothing has changed."""
        with self._lock:
            shown = self._shown.get(spec.id)
            if shown is not None and shown.spec == spec and shown.board is not None:
                return
            shown = _Shown(spec, shown.requested if shown is not None else float("-inf"))
            self._shown[spec.id] = shown
        self._resolve(spec.id)
        with self._lock:
            now = self._clock()
            if shown.in_use(now):
                self._poll_soon(shown, now)

    def hide_all_but(self, kept: Iterable[str]) -> None:
        kept = set(kept)
        with self._resolving, self._lock:
            for gone in self._shown.keys() - kept:
                del self._shown[gone]
                self._boards.remove(gone)
            self._drop_unused()

    def requested(self, board_id: str, *, wait: bool = True) -> None:
        """Record a request: feeds are polled from now on. The first request may wait for data."""
        with self._lock:
            shown = self._shown.get(board_id)
            stale = shown is not None and shown.stale
        if stale:
            self._resolve(board_id)
        with self._lock:
            shown = self._shown.get(board_id)
            if shown is None:
                return
            now = self._clock()
            if not shown.in_use(now):
                self._poll_soon(shown, now)
            shown.requested = now
            if wait and now < shown.patience:
                self._lock.wait_for(
                    lambda: self._closed.is_set() or shown.is_current, shown.patience - now
                )

    def _poll_soon(self, shown: _Shown, now: float) -> None:
        shown.awaited = [(feed, feed.polls + feed.busy) for feed in shown.feeds]
        shown.patience = now + CATCH_UP_SECONDS
        for feed in shown.feeds:
            feed.due, feed.whole_due = min(feed.due, now), 0.0
            feed.again = feed.busy
        self._lock.notify_all()

    def probe(self, board_id: str, seconds: float) -> list[str]:
        """Request a board, and return its conditions once its storages have responded."""
        self.requested(board_id, wait=False)
        with self._lock:
            shown = self._shown.get(board_id)
            if shown is not None:
                feeds = list(shown.feeds)
                self._lock.wait_for(lambda: all(feed.listed for feed in feeds), seconds)
        return self.conditions(board_id)

    def runs_requested(self) -> None:
        """Record a request for the runs of the roots, which are polled from now on."""
        with self._lock:
            now = self._clock()
            paused = now - self._listed > UNWATCHED_SECONDS
            self._listed = now
            if paused:
                self._lock.notify_all()

    def metrics_requested(self, runs: Iterable[KnownRun], *, wait: bool = False) -> None:
        """Record a request for metrics of runs, whose event files are read from now on.

        With `wait`, the first request after a pause waits briefly for new data.
        """
        requested = {run.uri: Source(run.uri) for run in runs}
        self.runs_requested()
        with self._lock:
            now = self._clock()
            before = self._recently_requested(now)
            if not requested.keys() <= before.keys():
                feeds = [self._feed(Source(uri), is_root=True) for uri in self._library.uris]
                self._requested_feeds = [(feed, feed.polls + feed.busy) for feed in feeds]
                self._requests_wait_until = now + CATCH_UP_SECONDS
                for feed in feeds:
                    feed.due, feed.whole_due = min(feed.due, now), 0.0
                    feed.again = feed.busy
                self._lock.notify_all()
            self._requested_runs = before | {
                uri: (source, now) for uri, source in requested.items()
            }
            if wait and now < self._requests_wait_until:
                awaited = self._requested_feeds
                self._lock.wait_for(
                    lambda: (
                        self._closed.is_set() or all(feed.polls > polls for feed, polls in awaited)
                    ),
                    self._requests_wait_until - now,
                )

    def _recently_requested(self, now: float) -> dict[str, tuple[Source, float]]:
        return {
            uri: (source, at)
            for uri, (source, at) in self._requested_runs.items()
            if now - at <= UNWATCHED_SECONDS
        }

    def follow(self, uris: Collection[str]) -> None:
        """Read these runs below the roots as if a board in use showed them, until the next call."""
        with self._lock:
            if self._followed.keys() == set(uris):
                return
            is_more = not self._followed.keys() >= set(uris)
            self._followed = {uri: Source(uri) for uri in uris}
            if is_more:
                now = self._clock()
                for root in self._roots:
                    feed = self._feed(Source(root), is_root=True)
                    feed.due, feed.whole_due = min(feed.due, now), 0.0
                    feed.again = feed.busy
                self._lock.notify_all()

    def count(self, board_id: str, *, now: bool = False) -> int | None:
        """Return how many runs a board shows, as last counted or `now`; None if not served."""
        with self._lock:
            shown = self._shown.get(board_id)
            runs = shown.runs if shown is not None else None
        if shown is None:
            return None
        return self._count(shown) if now or runs is None else runs

    def status(self, board_id: str) -> FollowedBoard:
        """Return what is known of a board, without counting its runs again."""
        with self._lock:  # once, since thousands of boards are listed while it polls
            shown = self._shown.get(board_id)
            if shown is None:
                return FollowedBoard(None, [], None, is_read=False)
            runs, is_read = shown.runs, all(feed.listed for feed in shown.feeds)
            errors = _errors(shown)
            is_known = not math.isinf(shown.requested) and shown.is_current
            unmatched = shown.unmatched
        listing = self._boards.get(board_id)
        if listing is None:
            return FollowedBoard(runs, _conditions(errors), None, is_read=is_read)
        conditions = _conditions([*errors, *listing.problems()])
        missing = [*unmatched, *listing.missing_fields()] if is_known else None
        return FollowedBoard(runs, conditions, missing, is_read=is_read)

    def conditions(self, board_id: str) -> list[str]:
        """Return the storage errors of a board's sources, as text."""
        return self.status(board_id).conditions

    def lag(self) -> float:
        """Return the largest number of seconds since a feed in use was polled."""
        with self._lock:
            now = self._clock()
            polled = [feed.polled for feed in self._in_use(now)]
        return max((now - at for at in polled if at is not None), default=0.0)

    def _resolve(self, board_id: str) -> bool:
        """Resolve the selectors of a board; return whether the result has changed."""
        with self._resolving:
            with self._lock:
                shown = self._shown.get(board_id)
                if shown is None:
                    return False
                shown.stale = False
                shown.dirty = False
            began = time.thread_time()
            try:
                board = shown.spec.board(self._library)
                read = self._library.candidates(shown.spec.selectors, shown.spec.question)
                unmatched = self._unmatched(shown.spec.question, board, read)
            except BaseException:
                with self._lock:
                    shown.stale = True  # the next request tries again
                raise
            cost = time.thread_time() - began
            with self._lock:
                shown.answer_due = self._clock() + max(_BETWEEN_ANSWERS, cost / _ANSWER_SHARE)
                shown.unmatched = unmatched
                if read is not None:
                    shown.selected = {run.uri: Source(run.uri) for run in read}
                if self._shown.get(board_id) is not shown or board == shown.board:
                    return False
                is_first = shown.board is None
                shown.board, shown.runs = board, None
                before, shown.feeds = shown.feeds, self._feeds_of(shown.spec)
                whole = set(shown.spec.sources)
                if read is None:
                    shown.selected = {
                        member.source.uri: member.source
                        for member in board.members
                        if member.source not in whole
                    }
                if before and before != shown.feeds:
                    self._drop_unused()
                self._lock.notify_all()
            listing = self._boards.get(board_id)
            if listing is None:
                self._boards.add(board)
            else:
                listing.show(board)
        if self._on_change is not None and not is_first:
            self._on_change(board)
        return True

    def _unmatched(self, question: Question | None, board: Board, read: RunSet | None) -> list[str]:
        """Return what a question names and no run has, or why it selects no run."""
        from aboard.runs.question import BadQuestion

        table = self._library.table()
        if question is None or not len(table.rows):
            return []
        try:
            table.check(question)
        except BadQuestion as error:
            found = f"{error} The board shows such runs as soon as there are any."
        else:
            found = "" if board.members else self._library.hint_for_nothing(question)
        if not found or (read is not None and self._library.unread(read)):
            return []  # a run that is not read yet may have it
        return [found]

    def _resolve_in_use(self) -> set[str]:
        """Resolve the boards in use; return the ids of changed ones. Others wait for a request."""
        with self._lock:
            now = self._clock()
            in_use = []
            for board_id, shown in self._shown.items():
                if shown.spec.selects_runs:
                    shown.stale = True
                    if shown.in_use(now):
                        in_use.append(board_id)
        return {board_id for board_id in in_use if self._answer(board_id)}

    def _feeds_of(self, spec: BoardSelection) -> list[_Feed]:
        found = [self._feed(source) for source in spec.sources]
        if spec.selects_runs:
            found += [self._feed(Source(uri), is_root=True) for uri in self._library.uris]
        return found

    def _feed(self, source: Source, *, is_root: bool = False) -> _Feed:
        key = (source, is_root)
        if key not in self._feeds:
            schedule = _schedule_of(source.uri, self._poll, is_root=is_root)
            backoff = Backoff(2 * schedule.shortest, _LONGEST_BACKOFF)
            self._feeds[key] = _Feed(source, is_root, schedule, backoff)
        return self._feeds[key]

    def _drop_unused(self) -> None:
        used = {feed for shown in self._shown.values() for feed in shown.feeds}
        for key, feed in list(self._feeds.items()):
            if feed not in used and not feed.is_root:
                feed.dropped = True
                _end_watcher(feed)
                del self._feeds[key]

    def _count(self, shown: _Shown) -> int:
        listing = self._boards.get(shown.spec.id)
        if listing is None:
            return 0
        version, runs = listing.count_runs()
        with self._lock:
            if version >= shown.counted:
                shown.runs, shown.counted = runs, version
        return runs

    # The schedule.

    def _in_use(self, now: float) -> set[_Feed]:
        in_use = (shown.feeds for shown in self._shown.values() if shown.in_use(now))
        found = {feed for feeds in in_use for feed in feeds}
        if self._followed or now - self._listed <= UNWATCHED_SECONDS:
            found |= {self._feed(Source(uri), is_root=True) for uri in self._roots}
        return found

    def _run(self) -> None:
        while not self._closed.is_set():
            try:
                self._tick()
            except Exception:  # noqa: BLE001 - must not stop all other boards
                _log.exception("boards could not be updated; trying again")
                self._closed.wait(1.0)

    def _tick(self) -> None:
        roots = self._library.uris
        if roots != self._roots:
            with self._lock:
                for shown in self._shown.values():
                    if shown.spec.selects_runs:
                        shown.feeds = self._feeds_of(shown.spec)
            self._resolve_in_use()
        with self._lock:
            self._roots = roots
            if self._closed.is_set():
                return
            now = self._clock()
            in_use = self._in_use(now)
            self._update_watchers(in_use)
            wait = self._answer_soon(now)
            for feed in in_use:
                feed.schedule.share = _CPU_SHARE / len(in_use)
                if not feed.busy:
                    self._start_poll(feed, now)
                if not feed.busy:
                    wait = min(wait, _next_poll(feed) - now)
            self._lock.wait(max(wait, 0.001))

    def _answer_soon(self, now: float) -> float:
        """Answer the due questions of boards in use; return when the next one is due."""
        wait = _TICK_SECONDS
        for board_id, shown in self._shown.items():
            if not shown.dirty or not shown.in_use(now):
                continue
            if shown.answer_due <= now:
                shown.dirty = False
                with suppress(RuntimeError):  # the follower is being closed
                    self._pollers.submit(self._answer, board_id)
            else:
                wait = min(wait, shown.answer_due - now)
        return wait

    def _answer(self, board_id: str) -> bool:
        """Resolve a board; a failure is logged and tried again, without stopping other boards."""
        try:
            return self._resolve(board_id)
        except Exception:  # noqa: BLE001 - whatever it was
            _log.exception("board %s could not be resolved; trying again", board_id)
            with self._lock:
                if shown := self._shown.get(board_id):
                    shown.dirty, shown.answer_due = True, self._clock() + _BETWEEN_ANSWERS
            return False

    def _points_came(self, feed: _Feed) -> None:
        """Mark the boards whose questions use metrics below a root, to be answered again."""
        with self._lock:
            for shown in self._shown.values():
                question = shown.spec.question
                if question is not None and question.metrics and feed in shown.feeds:
                    shown.dirty = True
            self._lock.notify_all()

    def _start_poll(self, feed: _Feed, now: float) -> None:
        """Start a poll: of reported paths, of recent runs, or of the whole feed."""
        reported: set[str] = set()
        recent: tuple[Source, ...] = ()
        if feed.due <= now:
            recent = feed.recent if now < feed.whole_due else ()
        elif feed.reported and feed.reported_due <= now:
            reported = feed.reported
        else:
            return
        if not recent:
            feed.reported = set()
        feed.busy = True
        with suppress(RuntimeError):  # the follower is being closed
            self._pollers.submit(self._do_poll, feed, reported, recent)

    def _do_poll(self, feed: _Feed, reported: set[str], recent: tuple[Source, ...]) -> None:
        began, cpu = self._clock(), time.thread_time()
        is_whole = not reported and not recent
        try:
            if is_whole:
                poll = self._poll_root(feed) if feed.is_root else self._poll_source(feed)
            else:
                poll = self._poll_parts(feed, recent or self._reported_parts(feed, reported))
        except _Stopped:
            poll = _Poll()
        except StorageError as error:
            poll = _Poll(error=error, inconclusive=not is_whole)
        except Exception as error:  # noqa: BLE001 - a board that stands still is worse
            problem = f"reading failed: {type(error).__name__}: {error}"
            hint = "Aboard tries again; 'aboard --debug' shows more."
            found = StorageError(feed.uri, problem, hint)
            found.__cause__ = error
            poll = _Poll(error=found, unforeseen=True, inconclusive=not is_whole)
        cost = time.thread_time() - cpu
        if is_whole:
            self._end_whole(feed, poll, began, cost)
        else:
            self._end_parts(feed, poll, cost, reported=bool(reported))

    def _end_whole(self, feed: _Feed, poll: _Poll, began: float, cost: float) -> None:
        with self._lock:
            now = self._clock()
            is_first = not feed.loaded
            is_known = feed.loaded and feed.error is None and not poll.changed
            if not poll.cached or feed.polled is None:
                feed.schedule.after(changed=poll.changed, cost=cost)
                # Each board that is opened requests a poll; they share a slow listing.
                feed.polled = began
                rest = min(cost / _CPU_SHARE, feed.schedule.longest)
                feed.fresh_until = max(began + feed.schedule.shortest, now + rest)
            feed.error, feed.problems, feed.recent = poll.error, poll.problems, poll.recent
            wait = feed.schedule.wait
            if poll.unforeseen:
                wait = feed.backoff.grow()
            else:
                feed.backoff.reset()
            feed.due = began if feed.again else now + wait
            listed = feed.polled if poll.cached else now
            feed.whole_due = (listed or now) + feed.schedule.longest if feed.recent else 0.0
            feed.again = feed.busy = False
            feed.loaded = feed.listed = True
            feed.polls += 1
            if poll.error is not None:
                _end_watcher(feed)
            self._lock.notify_all()
        if poll.error is not None or not feed.is_root or is_first:
            is_counted = poll.error is None and not feed.is_root and not is_known
            runs = self._count_runs(feed) if is_counted else None
            self._notify(feed.source, SourceState(poll.report or Report(), True, poll.error, runs))
        self._log_error(feed.uri, poll.error, unforeseen=poll.unforeseen)

    def _end_parts(self, feed: _Feed, poll: _Poll, cost: float, *, reported: bool) -> None:
        with self._lock:
            now = self._clock()
            if poll.inconclusive:
                # Not before polling may use the processor again.
                soonest = (feed.polled or 0.0) + feed.schedule.floor
                feed.due, feed.whole_due = min(feed.due, max(now, soonest)), 0.0
                feed.fresh_until = now
            elif not reported:
                feed.due = now + feed.schedule.after(changed=poll.changed, cost=cost)
            feed.reported_due = now + min(cost / feed.schedule.share, _BETWEEN_REPORTS)
            if feed.again:
                feed.due, feed.again = now, False
            feed.busy = False
            self._lock.notify_all()

    # Polls. They run in threads of the pool, and hold no lock while they read.

    def _poll_source(self, feed: _Feed) -> _Poll:
        listed = traffic.pages_listed(feed.uri)

        def progress(report: Report) -> None:
            if self._closed.is_set() or feed.dropped:
                raise _Stopped
            if not feed.listed:
                with self._lock:
                    feed.listed = True
                    self._lock.notify_all()
            self._notify(feed.source, SourceState(report, feed.loaded))

        if self._needs_records(feed):
            self._library.refresh_records(feed.source)
        report = self._index.refresh(feed.source, progress=progress)
        changed = bool(report.files_read or report.files_gone)
        if changed:
            self._count_boards(lambda shown: feed in shown.feeds)
            self._on_data(feed.uri)
        recent = self._recent(feed.source, traffic.pages_listed(feed.uri) - listed)
        return _Poll(changed, report=report, recent=tuple(recent))

    def _poll_root(self, feed: _Feed) -> _Poll:
        root = feed.uri
        epoch, _ = self._index.last_change()
        with self._lock:
            if feed.epoch not in (None, epoch):  # the index was replaced: read everything again
                feed.marks.clear()
                feed.changes, feed.fresh_until = None, float("-inf")
            feed.epoch = epoch
            cached = self._clock() < feed.fresh_until
        listed = traffic.pages_listed(root)
        if not cached:
            self._library.refresh(root)
        if (error := self._library.state(root).error) is not None:
            return _Poll(error=error, cached=cached)
        pages = traffic.pages_listed(root) - listed
        changes = self._index.catalog_changes(root)
        with self._lock:
            feed.pages = pages = feed.pages if cached else pages
            is_new = changes != feed.changes
        others = self._resolve_in_use() if is_new or self._has_timed_boards() else set()
        marks = self._library.state(root).marks
        beginning = len(join(root, "-")) - 1
        with self._lock:
            # Only what boards select: each board that is opened requests a poll.
            stale = {
                uri: source
                for uri, source in self._selected().items()
                if (mark := marks.get(uri[beginning:])) is not None
                and feed.marks.get(uri) != mark
                and is_below(uri, root)
            }
        read = self._read_all(list(stale.values()))
        with self._lock:
            feed.changes = changes
            for uri, outcome in zip(stale, read, strict=True):
                if outcome.error is None and not outcome.problems:
                    feed.marks[uri] = marks[uri[beginning:]]
                    feed.unread.pop(uri, None)
                else:  # it is read again at the next poll
                    feed.unread[uri] = outcome.error or outcome.problems[0]
            if not cached:
                for gone in [uri for uri in feed.marks if uri[beginning:] not in marks]:
                    del feed.marks[gone]
                for gone in [uri for uri in feed.unread if uri[beginning:] not in marks]:
                    del feed.unread[gone]
        for uri, outcome in zip(stale, read, strict=True):
            self._log_error(uri, outcome.error or next(iter(outcome.problems), None))
        if any(one.changed for one in read):
            self._points_came(feed)
        self._count_boards(
            lambda shown: shown.spec.id in others or not shown.selected.keys().isdisjoint(stale)
        )
        recent = self._recent(feed.source, pages)
        if recent:
            with self._lock:
                selected = self._selected()
            recent = [one for one in recent if _above(one.uri, selected) is not None]
        changed = is_new or any(one.changed for one in read)
        return _Poll(changed, recent=tuple(recent), cached=cached)

    def _read_all(self, sources: Sequence[Source]) -> list[_Poll]:
        """Read runs of a root, a few at a time: other roots need readers meanwhile."""
        found: dict[Source, _Poll] = {}
        left = iter(sources)
        lock = threading.Lock()

        def work() -> None:
            while True:
                with lock:
                    source = next(left, None)
                if source is None:
                    return
                found[source] = self._read(source)

        count = min(_READERS_OF_ROOT, len(sources))
        for done in [self._readers.submit(work) for _ in range(count)]:
            done.result()
        return [found[source] for source in sources]

    def _read(self, source: Source, part: Source | None = None) -> _Poll:
        if self._closed.is_set():
            return _Poll(inconclusive=True)
        try:
            report = self._index.refresh(source, part=part)
        except StorageError as error:
            return _Poll(error=error, inconclusive=True)
        changed = bool(report.files_read or report.files_gone)
        if changed:
            self._on_data(source.uri)
        return _Poll(changed, report=report)

    def _poll_parts(self, feed: _Feed, parts: Collection[Source] | None) -> _Poll:
        if parts is None:
            return _Poll(inconclusive=True)
        with self._lock:
            selected = self._selected() if feed.is_root else {}
        changed = False
        for part in parts:
            place = _above(part.uri, selected) if feed.is_root else None
            source = feed.source if not feed.is_root else selected.get(place or "")
            if source is None:
                if not self._library.places_of_runs([part.uri]):
                    return _Poll(changed, inconclusive=True)  # may be a new run
                continue  # a run on no board in use
            if feed.source.only and part != feed.source:
                continue
            poll = self._read(source, part)
            if poll.inconclusive:
                return poll
            changed |= poll.changed
        if changed:
            self._points_came(feed)
            self._count_boards(lambda shown: feed in shown.feeds)
            if not feed.is_root:
                self._notify(feed.source, SourceState(Report(), loaded=True, error=feed.error))
        return _Poll(changed)

    def _reported_parts(self, feed: _Feed, paths: set[str]) -> list[Source] | None:
        if len(paths) > _MOST_REPORTS:
            return None
        records = feed.is_root or self._needs_records(feed)
        return parts_of(feed.uri, paths, records=records)

    def _notify(self, source: Source, state: SourceState) -> None:
        if self._on_poll is not None and not self._closed.is_set():
            self._on_poll(source, state)

    def _count_runs(self, feed: _Feed) -> int | None:
        if self._on_poll is None:
            return None
        with self._lock:
            boards = [one for one, shown in self._shown.items() if feed in shown.feeds]
        listings = [listing for one in boards if (listing := self._boards.get(one)) is not None]
        return max((listing.count_runs_of(feed.source) for listing in listings), default=0)

    def _selected(self) -> dict[str, Source]:
        now = self._clock()
        in_use = [shown.selected for shown in self._shown.values() if shown.in_use(now)]
        in_use.append({uri: source for uri, (source, _) in self._recently_requested(now).items()})
        in_use.append(self._followed)
        return {uri: source for selected in in_use for uri, source in selected.items()}

    def _needs_records(self, feed: _Feed) -> bool:
        with self._lock:
            shown = [one for one in self._shown.values() if feed in one.feeds]
        return any(
            needs_records(one.spec.template)
            or (one.spec.grouping is not None and needs_records(one.spec.grouping.template))
            for one in shown
        )

    def _has_timed_boards(self) -> bool:
        with self._lock:
            now = self._clock()
            return any(shown.spec.is_timed for shown in self._shown.values() if shown.in_use(now))

    def _count_boards(self, matches: Callable[[_Shown], bool]) -> None:
        with self._lock:
            boards = [shown for shown in self._shown.values() if matches(shown)]
        for shown in boards:
            self._count(shown)

    def _recent(self, source: Source, pages: int) -> list[Source]:
        """Return the runs of a large bucket that wrote recently, if polling them costs less."""
        if pages <= _FEW_PAGES:
            return []
        since = time.time() - _RECENT_SECONDS
        files = self._index.files(source)
        found = {one.directory for one in files if (one.last_wall or 0.0) > since}
        return [Source(one) for one in sorted(found)] if len(found) < pages else []

    def _log_error(self, uri: str, error: StorageError | None, *, unforeseen: bool = False) -> None:
        """Log an error once, and its end."""
        text = str(error) if error is not None else ""
        with self._lock:
            before = self._logged.pop(uri, "")
            if text:
                self._logged[uri] = text
        if text == before or self._on_poll is not None:
            return
        if error is None:
            _log.info("%s can be read again", uri)
        else:
            _log.warning("%s", text, exc_info=error.__cause__ if unforeseen else None)

    # Notifications of the file system. They only reduce latency.

    def _update_watchers(self, in_use: set[_Feed]) -> None:
        for feed in self._feeds.values():
            if feed not in in_use:
                _end_watcher(feed)
        if not self._watch:
            return
        self._watchers = [thread for thread in self._watchers if thread.is_alive()]
        for feed in in_use:
            if feed.watcher is not None or is_remote(feed.uri) or not feed.loaded:
                continue
            if feed.error is not None or len(self._watchers) >= _WATCHERS:
                continue
            feed.watcher = threading.Event()
            name = f"aboard-follower-watch-{feed.uri}"
            args = (feed, feed.watcher)
            thread = threading.Thread(target=self._notice, args=args, name=name, daemon=True)
            self._watchers.append(thread)
            thread.start()

    def _notice(self, feed: _Feed, ended: threading.Event) -> None:
        from watchfiles import watch

        with suppress(OSError, RuntimeError):
            for changes in watch(
                feed.uri,
                watch_filter=None,
                stop_event=ended,
                debounce=100,
                step=50,
                rust_timeout=1000,
                raise_interrupt=False,
                ignore_permission_denied=True,
            ):
                with self._lock:
                    if len(feed.reported) <= _MOST_REPORTS:
                        feed.reported.update(path for _, path in changes)
                    self._lock.notify_all()


def _end_watcher(feed: _Feed) -> None:
    if feed.watcher is not None:
        feed.watcher.set()
        feed.watcher = None
        feed.reported = set()


def _next_poll(feed: _Feed) -> float:
    return min(feed.due, feed.reported_due) if feed.reported else feed.due


def _above(uri: str, places: Container[str]) -> str | None:
    """Return the place that is equal to a URI or above it."""
    while uri not in places:
        above, last = split(uri)
        if not last or above == uri:
            return None
        uri = above
    return uri


def parts_of(uri: str, paths: Iterable[str], *, records: bool) -> list[Source] | None:
    """Return what to read when paths of a feed have changed; None for the whole feed."""
    found: list[Source] = []
    for path in sorted(paths):
        directory, name = split(path)
        if name.startswith(TEMPORARY) or f"/{JOBS}/" in path[len(uri) :]:
            continue
        if not is_below(path, uri) or path == uri or (records and name == FILE_NAME):
            return None
        if any(is_below(path, one.uri) for one in found if not one.only):
            continue
        if Path(path).is_dir():
            found.append(Source(path))
        elif not Path(path).exists():
            return None  # deleted, of unknown kind
        elif EVENT_FILE in name:
            found.append(Source(directory, name))
    return found
