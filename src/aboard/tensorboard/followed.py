"""One place that is followed: its thread, what wakes it, and how much of it is looked at.

Listing a large tree takes long, so paths that the file system reports are looked at by
themselves, and at once. The whole is still looked at in its rhythm: not every file system
reports everything, and a bucket reports nothing. Of a large bucket, the runs that changed
lately are looked at meanwhile.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Collection, Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from aboard.index import Source
from aboard.index.plan import EVENT_FILE
from aboard.runs.manifest import FILE_NAME
from aboard.storage import StorageError, is_below
from aboard.storage.local import TEMPORARY
from aboard.storage.uri import split

if TYPE_CHECKING:
    from aboard.tensorboard.live import Rhythm, SourceState

_MOST_PARTS = 200
"""Reported paths that are looked at one by one; of more, the whole is."""
_BETWEEN_PARTS = 0.4
"""Seconds to wait at most after a look at parts."""
_LONGEST_PAUSE = 60.0
"""Seconds to wait at most after what nobody foresaw."""


class Look(Protocol):
    """Looks at a place, or only at parts of it, until it is told to stop."""

    def __call__(
        self, state: SourceState, stopped: threading.Event, parts: Collection[Source] = ()
    ) -> bool | None:
        """Tell whether anything had changed; None if parts do not tell, and the whole would."""


class Followed:
    """One place, followed by a thread until it is stopped.

    Args:
        uri: the place.
        look: looks at it.
        tell: is called when a look failed in a way that nobody foresaw.
        rhythm: when to look at the whole.
        state: what is known of it.
        unwatched: says whether nobody wants to see it.
        watch: whether to let the file system report changes.
        records: whether the records of runs are looked at, too.
    """

    def __init__(
        self,
        uri: str,
        look: Look,
        tell: Callable[[SourceState], None],
        rhythm: Rhythm,
        state: SourceState,
        *,
        unwatched: Callable[[], bool],
        watch: bool,
        records: bool,
    ) -> None:
        self.state = state
        self._uri = uri
        self._look_at = look
        self._tell = tell
        self._rhythm = rhythm
        self._unwatched = unwatched
        self._records = records
        self._failures = 0
        self._wake = threading.Event()
        self._done = threading.Event()
        self._reported: set[str] = set()
        self._lock = threading.Lock()
        name = f"aboard-follow-{uri}"
        self._threads = [threading.Thread(target=self._run, name=name, daemon=True)]
        if watch:
            watcher = threading.Thread(target=self._watch, name=f"{name}-watch", daemon=True)
            self._threads.append(watcher)
        for thread in self._threads:
            thread.start()

    def wake(self) -> None:
        """Look at the whole soon."""
        self._report([self._uri])

    def stop(self) -> None:
        """Stop looking."""
        self._done.set()
        self._wake.set()

    def join(self) -> None:
        """Wait until it has stopped."""
        for thread in self._threads:
            thread.join()

    def _run(self) -> None:
        while not self._done.is_set():
            with self._lock:
                self._reported.clear()
            started = time.thread_time()
            changed = self._look()
            wait = self._rhythm.after(changed=bool(changed), cost=time.thread_time() - started)
            if self._failures:
                pause = self._rhythm.shortest * 2**self._failures
                self._done.wait(min(pause, _LONGEST_PAUSE))
            elif self.state.lately:
                self._look_at_lately()
            else:
                self._wait(wait)
            while self._unwatched() and not self._done.is_set():
                self._wake.wait(1.0)
                self._wake.clear()

    def _wait(self, seconds: float) -> None:
        """Wait until the whole is to be looked at again, and look at what is reported meanwhile."""
        now = time.monotonic()
        due, earliest = now + seconds, now + self._rhythm.floor
        while not self._done.is_set() and (left := due - time.monotonic()) > 0:
            if not self._wake.wait(left):
                return
            self._wake.clear()
            parts = self._reported_parts()
            started = time.thread_time()
            if parts is None or (parts and self._look(parts) is None):
                due = min(due, earliest)
            elif parts:
                cost = time.thread_time() - started
                self._done.wait(min(cost / self._rhythm.share, _BETWEEN_PARTS))

    def _look_at_lately(self) -> None:
        """Look at what changed lately, in the rhythm, until the whole is to be looked at again."""
        due = time.monotonic() + self._rhythm.longest
        while not self._unwatched() and (left := due - time.monotonic()) > 0:
            if self._wake.wait(min(self._rhythm.wait, left)):
                self._wake.clear()
                return
            started = time.thread_time()
            changed = self._look(self.state.lately)
            if changed is None:
                return
            self._rhythm.after(changed=changed, cost=time.thread_time() - started)

    def _look(self, parts: Collection[Source] = ()) -> bool | None:
        """Look once; what nobody foresaw is told once, and does not end the following."""
        try:
            changed = self._look_at(self.state, self._done, parts)
        except Exception as error:  # noqa: BLE001 - a board that stands still for ever is worse
            if parts:
                return None
            self._failures = min(self._failures + 1, 10)
            problem = f"this cannot be read: {type(error).__name__}: {error}"
            hint = "It will be tried again; 'aboard --debug' shows more."
            self.state.error, self.state.loaded = StorageError(self._uri, problem, hint), True
            self.state.error.__cause__ = error
            self.state.looks += 1
            self._tell(self.state)
            return False
        self._failures = 0
        return changed

    def _report(self, paths: Iterable[str]) -> None:
        with self._lock:
            if len(self._reported) <= _MOST_PARTS:  # nobody may look for long
                self._reported.update(paths)
        self._wake.set()

    def _reported_parts(self) -> list[Source] | None:
        with self._lock:
            paths, self._reported = self._reported, set()
        if len(paths) > _MOST_PARTS:
            return None
        return parts_of(self._uri, paths, records=self._records)

    def _watch(self) -> None:
        """Take notice of what the file system reports; only an accelerator."""
        from watchfiles import watch

        try:
            for changes in watch(
                self._uri,
                watch_filter=None,
                stop_event=self._done,
                debounce=100,
                step=50,
                rust_timeout=1000,
                raise_interrupt=False,
                ignore_permission_denied=True,
            ):
                self._report(path for _, path in changes)
        except (OSError, RuntimeError):
            return


def parts_of(uri: str, paths: Iterable[str], *, records: bool) -> list[Source] | None:
    """Return what to look at because of some paths that changed; None means the whole.

    Args:
        uri: the place that they are in.
        paths: as the file system reports them.
        records: whether the records of runs are of interest.
    """
    found: list[Source] = []
    for path in sorted(paths):
        directory, name = split(path)
        if name.startswith(TEMPORARY):
            continue
        if not is_below(path, uri) or path == uri or (records and name == FILE_NAME):
            return None
        if any(is_below(path, one.uri) for one in found if not one.only):
            continue
        if Path(path).is_dir():
            found.append(Source(path))
        elif not Path(path).exists():
            return None  # whatever it was
        elif EVENT_FILE in name:
            found.append(Source(directory, name))
    return found
