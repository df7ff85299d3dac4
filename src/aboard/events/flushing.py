"""One thread per process that flushes every writer in time, and what becomes of writers at a fork.

The thread starts with the first record that waits, sleeps while none does, and never keeps the
process alive. At exit all writers are closed. A forked child starts with none of its parent's
records: each writer is told to forget them. How a writer flushes is its own business.
"""

from __future__ import annotations

import atexit
import os
import sys
import threading
import time
import weakref
from typing import Protocol


class Flushed(Protocol):
    """What is flushed in the background; what is private in here is so to the package."""

    def _flush_in_background(self) -> None:
        """Write what waits; called by the thread, about when it was asked for."""

    def _forget(self) -> None:
        """Leave to the parent what is the parent's; called in a child, right after the fork."""

    def close(self) -> None:
        """Write what waits, for the last time; called as the process ends."""


class _Flusher:
    """The thread and its appointments, of which each writer has at most one."""

    def __init__(self) -> None:
        self._changed = threading.Condition()  # re-entrant: a signal handler may log as well
        self._appointments: dict[Flushed, float] = {}
        self._thread: threading.Thread | None = None

    def appoint(self, writer: Flushed, seconds: float) -> bool:
        """Have a writer flushed within so many seconds; False if no thread can be started."""
        at = time.monotonic() + seconds
        with self._changed:
            if at < self._appointments.get(writer, float("inf")):
                self._changed.notify()  # first: what is noted and not told would never be
                self._appointments[writer] = at
            if self._thread is None:
                return self._start()
        return True

    def _start(self) -> bool:
        thread = threading.Thread(target=self._run, name="aboard-flush", daemon=True)
        try:
            thread.start()
        except RuntimeError:  # the interpreter is ending, or there are too many threads
            self._appointments.clear()
            return False
        self._thread = thread
        return True

    def _run(self) -> None:
        try:
            while True:
                self._next()._flush_in_background()
        finally:  # a callback of the user's has raised; the other writers shall not notice
            with self._changed:
                self._thread = None
                if self._appointments:
                    self._start()

    def _next(self) -> Flushed:
        """Wait for the next appointment."""
        with self._changed:
            while True:
                if not self._appointments:
                    self._changed.wait()
                    continue
                writer, at = min(self._appointments.items(), key=lambda item: item[1])
                remaining = at - time.monotonic()
                if remaining <= 0:
                    del self._appointments[writer]
                    return writer
                self._changed.wait(remaining)


_flusher = _Flusher()
_writers: weakref.WeakSet[Flushed] = weakref.WeakSet()
_leaving: int | None = None
"""The process that is known to close its writers when it ends."""


def look_after(writer: Flushed) -> None:
    """Close a writer at exit, and have it forget its records in a forked child."""
    _writers.add(writer)
    _close_at_exit()


def let_go(writer: Flushed) -> None:
    """Take a writer that is closed out of care."""
    _writers.discard(writer)


def appoint(writer: Flushed, seconds: float) -> bool:
    """Have a writer flushed within so many seconds; False if it must do so itself."""
    if _leaving != os.getpid():
        _close_at_exit()
    return _flusher.appoint(writer, seconds)


def _close_at_exit() -> None:
    """Close all writers when this process ends, be it a child of `multiprocessing`.

    Such a child ends without `atexit`, but runs the finalizers of `multiprocessing`.
    """
    global _leaving  # noqa: PLW0603 - a fact about the process, as are the writers
    if _leaving == os.getpid():
        return
    _leaving = os.getpid()
    multiprocessing = sys.modules.get("multiprocessing.process")
    if multiprocessing and multiprocessing.parent_process():
        from multiprocessing.util import Finalize

        Finalize(None, _close_all, exitpriority=0)


def _close_all() -> None:
    for writer in list(_writers):
        try:
            writer.close()
        except OSError as error:
            sys.stderr.write(f"aboard: {error}\n")


def _after_fork() -> None:
    global _flusher  # noqa: PLW0603 - its lock may be held, and its thread is not in the child
    _flusher = _Flusher()
    for writer in list(_writers):
        writer._forget()


os.register_at_fork(after_in_child=_after_fork)
# First of all, so that it is called last: who writes something at exit still can.
atexit.register(_close_all)
