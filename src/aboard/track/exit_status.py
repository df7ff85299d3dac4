"""How this process exits: normally, by `sys.exit`, an uncaught exception, or SIGTERM.

Python does not pass this to `atexit` functions, so hooks record it. Earlier hooks are still called,
and a signal that has a handler is not touched. A `SystemExit` raised without `sys.exit` is not
noticed.
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
from aboard.track.redaction import without_secrets

_LONGEST_REASON = 500
_ATOMIC_PACKAGES = ("aboard.events.", "aboard.runs.", "aboard.storage.")
_PATIENCE_SECS = 2.0  # how long SIGTERM waits for records that are being written
# Another SIGTERM within this time counts as the same one: `timeout`, systemd and Slurm signal all
# processes of a job, and launchers forward the signal too.
_REPEAT_SECS = 2.0


class ExitStatus(NamedTuple):
    state: State
    exit_code: int | None = None
    reason: str = ""


_NORMAL = ExitStatus(State.COMPLETED)
_current = _NORMAL
is_set = False  # whether another status is recorded; checked by every call that logs
_watched_pid: int | None = None


def watch() -> None:
    global _watched_pid
    known, _watched_pid = _watched_pid, os.getpid()
    if known is None:
        _watch_exceptions()
        _watch_exit()
        os.register_at_fork(
            before=_block_sigterm, after_in_parent=_unblock_sigterm, after_in_child=_reset_sigterm
        )
    if known != _watched_pid:
        _watch_sigterm()


def current() -> ExitStatus:
    return _current


def status_of(error: BaseException | None) -> ExitStatus:
    if error is None:
        return ExitStatus(State.COMPLETED, 0)
    if isinstance(error, KeyboardInterrupt):
        return ExitStatus(State.KILLED, 128 + signal.SIGINT, "interrupted")
    if isinstance(error, Terminated):
        return ExitStatus(State.KILLED, 128 + signal.SIGTERM, "SIGTERM")
    if isinstance(error, SystemExit):
        return _status_of_code(error.code)
    text = " ".join(f"{type(error).__name__}: {error}".split())
    return ExitStatus(State.FAILED, 1, without_secrets(text)[:_LONGEST_REASON])


class Terminated(SystemExit):
    """SIGTERM as an exit that unwinds the stack, so that everything is closed on the way."""


def _status_of_code(code: object) -> ExitStatus:
    if code is None or code == 0:
        return ExitStatus(State.COMPLETED, 0)
    if isinstance(code, int):
        return ExitStatus(State.FAILED, code, f"exit code {code}")
    return ExitStatus(State.FAILED, 1, without_secrets(str(code))[:_LONGEST_REASON])


def _set(status: ExitStatus) -> None:
    global _current, is_set
    _current, is_set = status, status is not _NORMAL


def clear() -> None:
    """Forget the recorded status, because the training continues.

    It is kept if the caller logs on the way out: in a `finally`, another thread, or at exit.
    """
    main = threading.main_thread()
    if threading.current_thread() is main and main.is_alive() and sys.exception() is None:
        _set(_NORMAL)


def _watch_exceptions() -> None:
    previous = sys.excepthook

    def hook(
        kind: type[BaseException], error: BaseException, traceback: TracebackType | None
    ) -> None:
        _set(status_of(error))
        previous(kind, error, traceback)

    sys.excepthook = hook


def _watch_exit() -> None:
    previous = sys.exit

    def leave(status: object = None, /) -> NoReturn:
        if threading.current_thread() is threading.main_thread():  # not for other threads
            _set(_status_of_code(status))
        previous(status)  # type: ignore[arg-type]

    sys.exit = leave
    for name in ("exit", "quit"):  # those of `site` do not call sys.exit
        if hasattr(builtins, name):
            setattr(builtins, name, _Exit(leave, getattr(builtins, name)))


class _Exit:
    def __init__(self, leave: Any, original: object) -> None:
        self._leave = leave
        self._original = original

    def __call__(self, code: object = None) -> NoReturn:
        self._leave(code)
        raise AssertionError  # unreachable

    def __repr__(self) -> str:
        return repr(self._original)


def _watch_sigterm() -> None:
    is_main = threading.current_thread() is threading.main_thread()
    if is_main and signal.getsignal(signal.SIGTERM) is signal.SIG_DFL:
        signal.signal(signal.SIGTERM, _terminate)


_received: list[float] = []  # when SIGTERM arrived, since the stack last began to unwind
_unwinding: list[float] = []  # when the stack began to unwind because of it


def _terminate(number: int, frame: FrameType | None) -> None:
    now = time.monotonic()
    if _unwinding and now - _unwinding[0] < _REPEAT_SECS:
        return
    _received.append(now)
    if _is_writing(frame) and now - _received[0] < _PATIENCE_SECS:
        again = threading.Timer(0.01, os.kill, (os.getpid(), number))
        again.daemon = True
        again.start()
        return
    if _unwinding:  # a second signal kills the process at once
        signal.signal(number, signal.SIG_DFL)
        os.kill(os.getpid(), number)
    _unwinding.append(now)
    _received.clear()
    error = Terminated(128 + number)
    _set(status_of(error))
    raise error


def _is_writing(frame: FrameType | None) -> bool:
    while frame is not None:
        if str(frame.f_globals.get("__name__", "")).startswith(_ATOMIC_PACKAGES):
            return True
        frame = frame.f_back
    return False


# A forked child must die of SIGTERM as usual, from the start. Python
# discards, in the child, signals that arrived before its handlers ran; so SIGTERM is blocked
# across the fork.

_mask = threading.local()


def _block_sigterm() -> None:
    _mask.before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})


def _unblock_sigterm() -> None:
    signal.pthread_sigmask(signal.SIG_SETMASK, _mask.before)


def _reset_sigterm() -> None:
    if signal.getsignal(signal.SIGTERM) is _terminate:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
    _unblock_sigterm()
