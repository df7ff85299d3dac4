"""Following sources while somebody looks: new data goes into the index by itself.

Each source has a thread and a rhythm. A directory is looked at several times a
second, less often where looking is slow; what the file system reports is looked at
at once. A bucket costs money, so it is asked every few seconds, less and less often
while nothing changes, and not at all when nobody has asked for a minute.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass, field
from functools import partial

from aboard.index import Index, Report, Source
from aboard.storage import traffic
from aboard.storage.base import StorageError
from aboard.storage.uri import is_remote
from aboard.tensorboard.followed import Followed, Look

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
_FEW_PAGES = 2
"""Requests of a listing that may be repeated often."""
_LATELY_SECONDS = 600.0
"""How long after its last value a run of a large bucket is looked at more often than others."""


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
    share: float = _SHARE_OF_TIME
    """Of one core, which looking may take."""

    def after(self, *, changed: bool, cost: float) -> float:
        """Return the seconds to wait after a look that took `cost` seconds of a core.

        What a look cost that found something says little about the next one, so the
        last that found nothing counts.
        """
        if not changed:
            self.floor = min(cost / self.share, self.longest)
        least = max(self.shortest, self.floor)
        longer = self.grows and not changed and self.wait
        self.wait = min(max(least, self.wait * 1.5 if longer else 0.0), self.longest)
        return self.wait


def rhythm_of(uri: str, poll: float | None, local: float) -> Rhythm:
    """Return when to look at a place.

    Args:
        uri: the place.
        poll: seconds between two looks at a bucket where something changes, if that was told.
        local: the same for a directory.
    """
    if not is_remote(uri):
        return Rhythm(local, LONGEST_LOCAL_SECONDS, grows=False)
    shortest = REMOTE_SECONDS if poll is None else poll
    return Rhythm(shortest, max(shortest, LONGEST_SECONDS))


@dataclass(slots=True)
class SourceState:
    """What a follower knows of a source."""

    report: Report = field(default_factory=Report)
    loaded: bool = False
    error: StorageError | None = None
    looks: int = 0
    """How often the whole of it was looked at."""
    lately: Collection[Source] = ()
    """The parts that changed lately, of a place that is too large to be listed often."""


Changed = Callable[[Source, SourceState], None]


class Follower:
    """Keeps the index up to date with some sources, in the background.

    Args:
        index: where the data goes.
        changed: is called, in a thread of the follower's, after every look.
        beside: is called with a source before every look at it, to bring up to date what else
            is shown of it.
        watch: whether to let the file system report changes.
        poll: seconds between two looks at a bucket where something changes.
        clock: seconds, for tests.
    """

    def __init__(
        self,
        index: Index,
        changed: Changed | None = None,
        *,
        beside: Callable[[Source], None] | None = None,
        watch: bool = True,
        poll: float | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._index = index
        self._changed = changed
        self._beside = beside
        self._watch = watch
        self._poll = poll
        self._clock = clock
        self._asked = clock()
        self._stop = threading.Event()
        self._lock = threading.Lock()
        self._followed: dict[Source, Followed] = {}
        self._roots: dict[str, Followed] = {}

    def follow(self, sources: Iterable[Source]) -> None:
        """Follow more sources, each at once and then in its rhythm."""
        with self._lock:
            for source in sources:
                if source not in self._followed:
                    look = partial(self.look, source)
                    records = self._beside is not None
                    self._followed[source] = self._new(source, look, records=records)

    def follow_root(self, root: str, look: Look) -> None:
        """Follow a root in the rhythm of a source; looking at it is the caller's."""
        with self._lock:
            if root not in self._roots:
                self._roots[root] = self._new(Source(root), look, records=True)

    def _new(self, source: Source, look: Look, *, records: bool) -> Followed:
        return Followed(
            source.uri,
            look,
            partial(self.tell, source),
            rhythm_of(source.uri, self._poll, LOCAL_SECONDS),
            SourceState(),
            unwatched=lambda: self.unwatched,
            watch=self._watch and not is_remote(source.uri),
            records=records,
        )

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
            followed.wake()
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

    def _all(self) -> list[Followed]:
        return [*self._followed.values(), *self._roots.values()]

    def look(
        self,
        source: Source,
        state: SourceState,
        stopped: threading.Event,
        parts: Collection[Source] = (),
        *,
        tell: bool = True,
    ) -> bool | None:
        """Bring the index up to date with a source, or only with parts of it.

        Returns:
            Whether anything had changed; None if parts could not be read, so that only a look
            at the whole can tell.
        """
        changed_now = self._changed if tell else None
        if parts:
            changed = self._look_at_parts(source, stopped, parts)
            if changed and changed_now:
                changed_now(source, state)
            return changed

        def progress(report: Report) -> None:
            if stopped.is_set():
                raise _Stopped
            state.report = report
            if changed_now:
                changed_now(source, state)

        listed = pages_listed(source.uri)
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
            state.lately = self.lately(source, pages_listed(source.uri) - listed)
        state.loaded = True
        state.looks += 1
        if changed_now:
            changed_now(source, state)
        return changed

    def _look_at_parts(
        self, source: Source, stopped: threading.Event, parts: Collection[Source]
    ) -> bool | None:
        changed = False
        for part in parts:
            if stopped.is_set():
                break
            if source.only and part != source:
                continue
            try:
                report = self._index.refresh(source, part=part)
            except StorageError:
                return None
            changed |= bool(report.files_read or report.files_gone)
        return changed

    def lately(self, source: Source, pages: int) -> list[Source]:
        """Return the runs of a large bucket that wrote lately, if they cost less than all of it."""
        if pages <= _FEW_PAGES:
            return []
        since = time.time() - _LATELY_SECONDS
        files = self._index.files(source)
        found = {one.directory for one in files if (one.last_wall or 0.0) > since}
        return [Source(one) for one in sorted(found)] if len(found) < pages else []


def pages_listed(uri: str) -> int:
    """Return how many pages of listings this process has asked of the bucket of a URI."""
    if not is_remote(uri):
        return 0
    return traffic.snapshot().get((traffic.bucket_of(uri), "list"), traffic.Traffic()).requests


class _Stopped(Exception):  # noqa: N818 - named by what it is
    """Nobody wants what is being read any more."""
