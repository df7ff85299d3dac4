"""Signals on their way through `aboard run` to its program, each of which arrives there once.

Whoever sends a signal may send it to us alone, and then it is handed on, or to the program as well:
a terminal, `timeout`, systemd and Slurm signal every process of a group. A handler in Python is not
told which, so a process of ours that only waits stands by in the group: what pends there was sent
to all.
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
from pathlib import Path
from types import FrameType
from typing import Self

from aboard.track.say import say_once

STOPPING = {signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT}
"""What asks a program to end; after any other signal, its exit code is its own doing."""
_SENT_TO_ALL = {*STOPPING, signal.SIGUSR1, signal.SIGUSR2}
_FORWARDED = (*sorted(_SENT_TO_ALL), signal.SIGCONT, signal.SIGWINCH)
_END = 0
_HOLD_SECS = 0.2
"""A sender that goes from process to process is through with all of them by then."""


class Signals:
    """Hands signals on to a program, also those that came before it was there.

    Args:
        resize: what to do, before the program hears of it, when the terminal changes its size.
    """

    def __init__(self, resize: Callable[[], object]) -> None:
        self.received: list[int] = []
        self.hurry = threading.Event()
        """Set by a signal that comes when the program has ended already."""
        self._resize = resize
        self._process: subprocess.Popen[bytes] | None = None
        self._witness: _Witness | None = None
        self._pending: queue.SimpleQueue[int] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._pass_on, name="aboard-signals", daemon=True)

    def __enter__(self) -> Self:
        # What is ignored stays so, here and in the program: that is how `nohup` works.
        wanted = [one for one in _FORWARDED if signal.getsignal(one) is not signal.SIG_IGN]
        self._witness = _witness()
        self._previous = {number: signal.signal(number, self._take) for number in wanted}
        return self

    def __exit__(self, *_error: object) -> None:
        for number, handler in self._previous.items():
            signal.signal(number, handler)
        if self._thread.is_alive():
            self._pending.put(_END)
            self._thread.join()
        if self._witness is not None:
            self._witness.leave()

    def forward_to(self, process: subprocess.Popen[bytes]) -> None:
        """Hand on to this process what has come and what will come."""
        self._process = process
        early = self._drained()  # it was not there to get them itself
        for number in early:
            self._send(number)
        if early:
            self._replace_witness()
        self._thread.start()

    def _take(self, number: int, _frame: FrameType | None) -> None:
        if self._process is not None and self._process.returncode is not None:
            if number in STOPPING:
                self.hurry.set()
            return
        if number != signal.SIGWINCH:
            self.received.append(number)
        self._pending.put(number)

    def _pass_on(self) -> None:
        """Send what comes, once it is known that the program has not got it already."""
        while (number := self._pending.get()) != _END:
            if number == signal.SIGWINCH:
                self._resize()
            if number in _SENT_TO_ALL:
                time.sleep(_HOLD_SECS)
                if self._process is not None and self._reached_all(self._process.pid, number):
                    # `timeout` signals us alone, and then everyone.
                    for one in self._drained():
                        if one != number:
                            self._pending.put(one)
                    continue
            self._send(number)

    def _reached_all(self, program: int, number: int) -> bool:
        with contextlib.suppress(OSError):
            if os.getpgid(program) != os.getpgrp():
                return False  # it left our group
        seen = self._witness.has_seen(number) if self._witness is not None else None
        if seen is None:
            return number == signal.SIGINT and _typed()
        if seen:
            self._replace_witness()
        return seen

    def _replace_witness(self) -> None:
        """Get another one: what was sent to this one pends for ever."""
        if self._witness is not None:
            self._witness.leave()
        self._witness = _witness()

    def _drained(self) -> list[int]:
        found: list[int] = []
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
                say_once(f"signals do not reach the program: {(error.strerror or '').lower()}.")


class _Witness:
    """A process of our group that leaves every signal pending, and ends when we do."""

    def __init__(self) -> None:
        before = signal.pthread_sigmask(signal.SIG_BLOCK, _SENT_TO_ALL)
        try:
            self._process = subprocess.Popen(
                [sys.executable, "-I", "-S", "-c", "import sys; sys.stdin.read()"],
                stdin=subprocess.PIPE,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
            )
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)

    def has_seen(self, number: int) -> bool | None:
        """Say whether a signal was sent to it; None where that cannot be known."""
        with contextlib.suppress(OSError, ValueError):
            for line in Path(f"/proc/{self._process.pid}/status").read_text().splitlines():
                if line.startswith("ShdPnd:"):
                    return bool(int(line.split()[1], 16) >> (number - 1) & 1)
        return None

    def leave(self) -> None:
        self._process.kill()
        self._process.communicate()


def _witness() -> _Witness | None:
    try:
        return _Witness()
    except OSError:
        return None


def _typed() -> bool:
    """Say whether we are what the terminal talks to, so that Ctrl-C reaches everyone."""
    try:
        return os.tcgetpgrp(sys.stdin.fileno()) == os.getpgrp()
    except (OSError, ValueError, AttributeError):
        return False
