"""Following sources while somebody looks: new data goes into the index by itself.

Each source has a thread and a rhythm. A directory is looked at several times a
second, less often where looking is slow, and at once when the file system reports
a change. A bucket costs money, so it is asked every few seconds, less and less
often while nothing changes, and not at all when nobody has asked for a minute.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from functools import partial

from aboard.index import Index, Report, Source
from aboard.storage.base import StorageError
from aboard.storage.uri import is_remote

LOCAL_SECONDS = 0.4
LONGEST_LOCAL_SECONDS = 5.0
REMOTE_SECONDS = 5.0
LONGEST_SECONDS = 60.0
CATCH_UP_SECONDS = 1.5
"""How long the first request after a pause waits for new data."""
UNWATCHED_SECONDS = 60.0
"""After this long without a request, nothing is read any more."""
_SHARE_OF_TIME = 0.1
"""Looking at a large tree takes at most this share of one core."""


@dataclass(slots=True)
class Rhythm:
    """How long to wait before looking at a source again: pure, so that it can be tested.

    Attributes:
        shortest: seconds to wait after a change.
        longest: seconds to wait at most, however slow a look is.
        grows: whether to wait longer and longer while nothing changes.
    """

    shortest: float
    longest: float
    grows: bool = True
    wait: float = 0.0
    floor: float = 0.0
    """Seconds to wait whatever happens, so that looking does not fill the time."""

    def after(self, *, changed: bool, cost: float) -> float:
        """Return the seconds to wait after a look that took `cost` seconds of a core.

        What a look cost that found something says little about the next one, so the
        last that found nothing counts.
        """
        if not changed:
            self.floor = min(cost / _SHARE_OF_TIME, self.longest)
        least = max(self.shortest, self.floor)
        longer = self.grows and not changed and self.wait
        self.wait = min(max(least, self.wait * 1.5 if longer else 0.0), self.longest)
        return self.wait


@dataclass(slots=True)
class SourceState:
    """What a follower knows of a source."""

    report: Report = field(default_factory=Report)
    loaded: bool = False
    error: StorageError | None = None
    looks: int = 0


_log = logging.getLogger(__name__)

Changed = Callable[[Source, SourceState], None]
Look = Callable[[SourceState, threading.Event], bool]
"""Looks at a place until it is told to stop; tells whether anything had changed."""


class Follower:
    """Keeps the index up to date with some sources, in the background.

    Args:
        index: where the data goes.
        changed: is called, in a thread of the follower's, after every look.
        beside: is called with a source before every look at it, to bring up to date what else
            is shown of it.
        watch: whether to let the file system report changes.
        clock: seconds, for tests.
    """

    def __init__(
        self,
        index: Index,
        changed: Changed | None = None,
        *,
        beside: Callable[[Source], None] | None = None,
        watch: bool = True,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._index = index
        self._changed = changed
        self._beside = beside
        self._watch = watch
        self._clock = clock
        self._asked = clock()
        self._stop = threading.Event()
        self._lock = threading.Lock()
        self._followed: dict[Source, _Followed] = {}
        self._roots: dict[str, _Followed] = {}

    def follow(self, sources: Iterable[Source]) -> None:
        """Follow more sources, each at once and then in its rhythm."""
        with self._lock:
            for source in sources:
                if source not in self._followed:
                    self._followed[source] = _Followed(self, source.uri, partial(self.look, source))

    def follow_root(self, root: str, look: Look) -> None:
        """Follow a root in the rhythm of a source; looking at it is the caller's."""
        with self._lock:
            if root not in self._roots:
                self._roots[root] = _Followed(self, root, look)

    def forget(self, source: Source) -> None:
        """Stop following a source."""
        with self._lock:
            followed = self._followed.pop(source, None)
        if followed:
            followed.stop()

    def asked(self) -> None:
        """Note that somebody looks.

        The first to look after a pause waits a little, so as not to be shown old data.
        """
        slept, self._asked = self.unwatched, self._clock()
        if not slept:
            return
        waiting = [(one, one.state.looks) for one in self._all()]
        for followed, _ in waiting:
            followed.wake.set()
        deadline = time.monotonic() + CATCH_UP_SECONDS
        for followed, looks in waiting:
            while followed.state.looks == looks and time.monotonic() < deadline:
                time.sleep(0.01)

    @property
    def unwatched(self) -> bool:
        """Whether nobody has asked for a while."""
        return self._clock() - self._asked > UNWATCHED_SECONDS

    def states(self) -> dict[Source, SourceState]:
        """Return what is known of each source."""
        with self._lock:
            return {source: followed.state for source, followed in self._followed.items()}

    def close(self) -> None:
        """Stop, and wait until nothing is being read."""
        self._stop.set()
        for followed in self._all():
            followed.stop()
        for followed in self._all():
            followed.join()

    def tell(self, source: Source, state: SourceState) -> None:
        """Tell whoever wants to know how a source stands."""
        if self._changed:
            self._changed(source, state)

    def _all(self) -> list[_Followed]:
        return [*self._followed.values(), *self._roots.values()]

    def look(
        self, source: Source, state: SourceState, stopped: threading.Event, *, tell: bool = True
    ) -> bool:
        """Bring the index up to date with a source; tell whether anything had changed."""
        changed_now = self._changed if tell else None

        def progress(report: Report) -> None:
            if stopped.is_set():
                raise _Stopped
            state.report = report
            if changed_now:
                changed_now(source, state)

        try:
            if self._beside:
                self._beside(source)
            report = self._index.refresh(source, progress=progress)
        except StorageError as error:
            state.error, changed = error, False
        except _Stopped:
            return False
        else:
            state.report, state.error = report, None
            changed = bool(report.files_read or report.files_gone)
        state.loaded = True
        state.looks += 1
        if changed_now:
            changed_now(source, state)
        return changed


class _Stopped(Exception):  # noqa: N818 - named by what it is
    """Nobody wants what is being read any more."""


class _Followed:
    """One place: its thread, its rhythm, and what wakes it."""

    def __init__(self, follower: Follower, uri: str, look: Look) -> None:
        self.state = SourceState()
        self.wake = threading.Event()
        self._follower = follower
        self._uri = uri
        self._look_at = look
        self._remote = is_remote(uri)
        self._done = threading.Event()
        name = f"aboard-follow-{uri}"
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()
        self._watcher: threading.Thread | None = None
        if not self._remote and follower._watch:
            self._watcher = threading.Thread(target=self._watch, name=f"{name}-watch", daemon=True)
            self._watcher.start()

    def stop(self) -> None:
        self._done.set()
        self.wake.set()

    def join(self) -> None:
        self._thread.join()
        if self._watcher:
            self._watcher.join()

    def _run(self) -> None:
        if self._remote:
            rhythm = Rhythm(REMOTE_SECONDS, LONGEST_SECONDS)
        else:
            rhythm = Rhythm(LOCAL_SECONDS, LONGEST_LOCAL_SECONDS, grows=False)
        while not self._done.is_set():
            started = time.thread_time()
            changed = self._look()
            wait = rhythm.after(changed=changed, cost=time.thread_time() - started)
            self._done.wait(rhythm.floor)
            self.wake.wait(max(0.0, wait - rhythm.floor))
            self.wake.clear()
            while self._follower.unwatched and not self._done.is_set():
                self.wake.wait(1.0)
                self.wake.clear()

    def _look(self) -> bool:
        """Look once; what nobody foresaw is logged, and does not end the following."""
        try:
            return self._look_at(self.state, self._done)
        except Exception:  # noqa: BLE001 - a board that stands still for ever is worse
            _log.exception("cannot bring the index up to date with %s", self._uri)
            self.state.looks += 1
            return False

    def _watch(self) -> None:
        """Wake up when the file system reports a change; only an accelerator."""
        from watchfiles import watch

        try:
            for _ in watch(
                self._uri,
                stop_event=self._done,
                debounce=100,
                step=50,
                rust_timeout=1000,
                raise_interrupt=False,
                ignore_permission_denied=True,
            ):
                self.wake.set()
        except (OSError, RuntimeError):
            return
