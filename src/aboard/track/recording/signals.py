"""Forward signals from `aboard run` to its program, so that each arrives there once.

A signal may be sent to `aboard run` alone, which then forwards it, or to the program as well: a
terminal, `timeout`, systemd and Slurm signal every process of a group. The kernel does not tell a
handler which it was. So a *witness*, a process that does nothing, is part of the group and blocks
these signals: what is pending there was sent to the group.
"""

from __future__ import annotations

import contextlib
import os
import queue
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from types import FrameType
from typing import NamedTuple, Self

from aboard import system
from aboard.track.console import notify_once

# After any other signal, the exit code is the program's own.
STOPPING = {signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT}
_SENT_TO_GROUPS = {*STOPPING, signal.SIGUSR1, signal.SIGUSR2}
_FORWARDED = (*sorted(_SENT_TO_GROUPS), signal.SIGCONT, signal.SIGWINCH)
_HOLD_SECS = 0.2  # a sender that signals one process after the other has reached all by then


class _Received(NamedTuple):
    number: int  # 0 ends the forwarding
    at: float = 0.0


class SignalForwarder:
    """Forwards signals to a program, also those that came before it; SIGWINCH after `resize`."""

    def __init__(self, resize: Callable[[], object]) -> None:
        self.received: list[int] = []
        self.hurry = threading.Event()  # set by a signal that comes after the program's end
        self._resize = resize
        self._process: subprocess.Popen[bytes] | None = None
        self._witness: subprocess.Popen[bytes] | None = None
        self._pending: queue.SimpleQueue[_Received] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._forward, name="aboard-signals", daemon=True)

    def __enter__(self) -> Self:
        # Ignored signals stay ignored, here and in the program: that is how `nohup` works.
        handled = [one for one in _FORWARDED if signal.getsignal(one) is not signal.SIG_IGN]
        self._witness = _start_witness()
        self._previous = {number: signal.signal(number, self._receive) for number in handled}
        return self

    def __exit__(self, *_error: object) -> None:
        for number, handler in self._previous.items():
            signal.signal(number, handler)
        if self._thread.is_alive():
            self._pending.put(_Received(0))
            self._thread.join()
        _end_witness(self._witness)

    def forward_to(self, process: subprocess.Popen[bytes]) -> None:
        self._process = process
        early = self._drain()  # the program was not there to get them itself
        for signal_ in early:
            self._send(signal_.number)
        if early:
            self._replace_witness()
        self._thread.start()

    def _receive(self, number: int, _frame: FrameType | None) -> None:
        if self._process is not None and self._process.returncode is not None:
            if number in STOPPING:
                self.hurry.set()
            return
        if number != signal.SIGWINCH:
            self.received.append(number)
        self._pending.put(_Received(number, time.monotonic()))

    def _forward(self) -> None:
        ignored_until: dict[int, float] = {}
        while (signal_ := self._pending.get()).number:
            number = signal_.number
            if number == signal.SIGWINCH:
                self._resize()
            if number in _SENT_TO_GROUPS:
                # `timeout` signals this process and then the group: both are one signal.
                if signal_.at <= ignored_until.get(number, 0.0):
                    continue
                time.sleep(max(0.0, signal_.at + _HOLD_SECS - time.monotonic()))
                if self._process is not None and self._was_sent_to_group(self._process.pid, number):
                    ignored_until[number] = time.monotonic() + _HOLD_SECS
                    continue
            self._send(number)

    def _was_sent_to_group(self, program: int, number: int) -> bool:
        with contextlib.suppress(OSError):
            if os.getpgid(program) != os.getpgrp():
                return False  # it left our group
        witness = self._witness
        pending = system.has_pending_signal(witness.pid, number) if witness else None
        if pending is None:
            return number == signal.SIGINT and _is_in_foreground()
        if pending:
            self._replace_witness()
        return pending

    def _replace_witness(self) -> None:
        """Start another witness, since a signal stays pending in the old one."""
        previous, self._witness = self._witness, _start_witness()
        _end_witness(previous)

    def _drain(self) -> list[_Received]:
        found: list[_Received] = []
        with contextlib.suppress(queue.Empty):
            while True:
                found.append(self._pending.get_nowait())
        return found

    def _send(self, number: int) -> None:
        if self._process is not None:
            try:
                self._process.send_signal(number)
            except ProcessLookupError:
                pass
            except OSError as error:  # it belongs to another user
                notify_once(f"signals do not reach the program: {(error.strerror or '').lower()}.")


def _start_witness() -> subprocess.Popen[bytes] | None:
    """Start a process of our group that blocks signals, and ends when this one does."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, _SENT_TO_GROUPS)
    try:
        return subprocess.Popen(
            [sys.executable, "-I", "-S", "-c", "import sys; sys.stdin.read()"],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
    except OSError:
        return None
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _end_witness(witness: subprocess.Popen[bytes] | None) -> None:
    if witness is not None:
        witness.kill()
        witness.communicate()


def _is_in_foreground() -> bool:
    try:
        return os.tcgetpgrp(sys.stdin.fileno()) == os.getpgrp()
    except (OSError, ValueError, AttributeError):
        return False
