"""How a process ends: by itself, by `sys.exit`, by an exception nobody caught, or by SIGTERM.

Python tells the functions it calls at exit nothing of this, so it is noted on the way there. What
was in place before stays in place and is called: hooks chain, and a signal that somebody handles
is left to them. What was noted is dropped when the training turns out to go on. A `SystemExit` that
is raised without `sys.exit` is seen by nobody; what the exit code was is then not known.
"""

from __future__ import annotations

import builtins
import os
import signal
import sys
import threading
import time
from types import FrameType, TracebackType
from typing import Any, NamedTuple, NoReturn

from aboard.runs.manifest import State

_NOT_TORN = ("aboard.events.", "aboard.runs.", "aboard.storage.")
_PATIENCE_SECS = 2.0
"""SIGTERM waits that long for records that are just being written."""
_REPEAT_SECS = 2.0
"""Another SIGTERM so soon is the same: `timeout`, systemd and Slurm signal all processes of a job,
and those that start others hand it on once more."""


class Ending(NamedTuple):
    """How a process ends, in the words of a run's record."""

    state: State
    exit_code: int | None = None
    reason: str = ""


_BY_ITSELF = Ending(State.COMPLETED)
_ending = _BY_ITSELF
is_noted = False
"""Whether something was noted, for those who ask at every step."""
_watching: int | None = None
"""The process that is watched; a child that was forked from it is another."""


def watch() -> None:
    """Note from now on how this process ends."""
    global _watching
    known, _watching = _watching, os.getpid()
    if known is None:
        _watch_exceptions()
        _watch_exit()
        os.register_at_fork(
            before=_hold_sigterm, after_in_parent=_release_sigterm, after_in_child=_restore_sigterm
        )
    if known != _watching:
        _watch_sigterm()


def ending() -> Ending:
    """Return how the process is about to end."""
    return _ending


def ending_of(error: BaseException | None) -> Ending:
    """Return how a block ends that raised an error, or none."""
    if error is None:
        return Ending(State.COMPLETED, 0)
    if isinstance(error, KeyboardInterrupt):
        return Ending(State.KILLED, 128 + signal.SIGINT, "interrupted")
    if isinstance(error, Terminated):
        return Ending(State.KILLED, 128 + signal.SIGTERM, "SIGTERM")
    if isinstance(error, SystemExit):
        return _ending_of_exit(error.code)
    text = " ".join(f"{type(error).__name__}: {error}".split())
    return Ending(State.FAILED, 1, text[:500])


class Terminated(SystemExit):
    """SIGTERM, as an exit that unwinds the stack, so that everything is closed on the way."""


def _ending_of_exit(code: object) -> Ending:
    if code is None or code == 0:
        return Ending(State.COMPLETED, 0)
    if isinstance(code, int):
        return Ending(State.FAILED, code, f"exit code {code}")
    return Ending(State.FAILED, 1, str(code)[:500])


def _note(ending: Ending) -> None:
    global _ending, is_noted
    _ending, is_noted = ending, ending is not _BY_ITSELF


def went_on() -> None:
    """Forget what was noted, unless what is logged now is logged on the way out.

    That is while an exception is handled (in a `finally`, say), by a thread that is left, or by a
    function that is called at exit.
    """
    main = threading.main_thread()
    if threading.current_thread() is main and main.is_alive() and sys.exception() is None:
        _note(_BY_ITSELF)


def _watch_exceptions() -> None:
    previous = sys.excepthook

    def hook(
        kind: type[BaseException], error: BaseException, traceback: TracebackType | None
    ) -> None:
        _note(ending_of(error))
        previous(kind, error, traceback)

    sys.excepthook = hook


def _watch_exit() -> None:
    previous = sys.exit

    def leave(status: object = None, /) -> NoReturn:
        if threading.current_thread() is threading.main_thread():  # others end only themselves
            _note(_ending_of_exit(status))
        previous(status)  # type: ignore[arg-type]

    sys.exit = leave
    for name in ("exit", "quit"):  # what the site module offers raises by itself
        if hasattr(builtins, name):
            setattr(builtins, name, _Leave(leave, name))


class _Leave:
    """The built-in `exit`, noted."""

    def __init__(self, leave: Any, name: str) -> None:
        self._leave = leave
        self._original = getattr(builtins, name)

    def __call__(self, code: object = None) -> NoReturn:
        self._leave(code)
        raise AssertionError  # it does not return

    def __repr__(self) -> str:
        return repr(self._original)


def _watch_sigterm() -> None:
    if threading.current_thread() is not threading.main_thread():
        return
    if signal.getsignal(signal.SIGTERM) is not signal.SIG_DFL:
        return
    signal.signal(signal.SIGTERM, _terminate)


_came: list[float] = []
"""When SIGTERM came, each time."""
_left: list[float] = []
"""When the stack began to unwind because of it."""


def _terminate(number: int, frame: FrameType | None) -> None:
    now = time.monotonic()
    if _left and now - _left[0] < _REPEAT_SECS:
        return
    _came.append(now)
    if _is_writing(frame) and now - _came[0] < _PATIENCE_SECS:
        again = threading.Timer(0.01, os.kill, (os.getpid(), number))
        again.daemon = True
        again.start()
        return
    if _left:  # a second one means it
        signal.signal(number, signal.SIG_DFL)
        os.kill(os.getpid(), number)
    _left.append(now)
    _came.clear()
    error = Terminated(128 + number)
    _note(ending_of(error))
    raise error


# A forked child shall die of SIGTERM as it would without us, and from its first moment on: Python
# forgets, in the child, what arrived before it looked after its signals.


_held = threading.local()


def _hold_sigterm() -> None:
    _held.before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})


def _release_sigterm() -> None:
    signal.pthread_sigmask(signal.SIG_SETMASK, _held.before)


def _restore_sigterm() -> None:
    if signal.getsignal(signal.SIGTERM) is _terminate:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
    _release_sigterm()


def _is_writing(frame: FrameType | None) -> bool:
    """Say whether an exception would now cut a record short."""
    while frame is not None:
        if str(frame.f_globals.get("__name__", "")).startswith(_NOT_TORN):
            return True
        frame = frame.f_back
    return False
