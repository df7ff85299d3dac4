"""Any program as a run: its environment, its output, its signals and how it ended.

The program runs as if it were started by hand: what it prints is passed on as it comes, signals
reach it, and its exit code is ours.
"""

from __future__ import annotations

import contextlib
import os
import pty
import select
import shutil
import signal
import subprocess
import termios
import threading
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import IO, NamedTuple

from aboard.runs.manifest import State
from aboard.track import env
from aboard.track.adopt import Adoption
from aboard.track.ending import Ending
from aboard.track.run import Run
from aboard.track.say import say
from aboard.track.segments import OUTPUT
from aboard.track.signals import STOPPING, Signals

_NOT_FOUND, _NOT_EXECUTABLE = 127, 126
_PATIENCE_SECS = 10.0
"""How long a program has to log hyperparameters of its own before ours are written."""
_POLL_SECS = 0.2
_DRAIN_SECS = 2.0
_DRAIN_BYTES = 1 << 20
"""What is left running is waited for so long, and may print so much, after the program's end."""


class CannotStart(Exception):  # noqa: N818 - named by what is wrong
    """The program could not be started; the text says why, `exit_code` what a shell would say."""

    def __init__(self, text: str, exit_code: int) -> None:
        super().__init__(text)
        self.exit_code = exit_code


class Outcome(NamedTuple):
    """How a program ended."""

    ending: Ending
    exit_code: int
    """What to exit with: 128 and the number of the signal that ended it."""


def check_program(command: Sequence[str]) -> None:
    """Find out whether there is a program to run.

    Raises:
        CannotStart: there is none.
    """
    program = command[0]
    if shutil.which(program):
        return
    if "/" in program and Path(program).is_file():
        raise _cannot_start(program, "permission denied", _NOT_EXECUTABLE)
    raise _cannot_start(program, "there is no such program", _NOT_FOUND)


def _cannot_start(program: str, problem: str, exit_code: int) -> CannotStart:
    return CannotStart(f"{program}: {problem}. Check the command after '--'.", exit_code)


def execute(run: Run, command: Sequence[str], *, ranks: str = "first") -> Outcome:
    """Run a program as a run, to its end.

    Args:
        run: what it is recorded as.
        command: the program and its arguments.
        ranks: `all` where every rank of the program logs.

    Raises:
        CannotStart: there is no such program.
    """
    started = time.time()
    records = run.active and not run.joined  # else whoever started us records it all
    with contextlib.ExitStack() as stack:
        log = _output_log(run) if records else None
        if log is not None:
            stack.enter_context(log)
        pumps: list[_Pump] = []
        signals = stack.enter_context(Signals(lambda: list(map(_Pump.resize, pumps))))
        told = env.variables_for(run.root, run.experiment, run.name, run.logdir)
        told |= {env.ATTEMPT: run.uri or "1", env.RANKS: ranks}
        process, streams = _start(command, {**os.environ, **told})
        pumps += [_Pump(source, target, log) for source, target in streams]
        signals.forward_to(process)
        adoption = Adoption(Path(run.logdir), Path.cwd(), started, command)
        if records:
            adoption.start(process.pid)
        patience = threading.Timer(_PATIENCE_SECS, run.flush)
        patience.daemon = True
        patience.start()
        process.wait()
        patience.cancel()
        for pump in pumps:
            pump.drain(signals.hurry)
        if records:
            adoption.stop()
        return _outcome(process.returncode, signals.received)


def _outcome(code: int, received: list[int]) -> Outcome:
    if code < 0:
        name = _signal_name(-code)
        return Outcome(Ending(State.KILLED, 128 - code, name), 128 - code)
    stopping = [number for number in received if number in STOPPING]
    if code and stopping:
        return Outcome(Ending(State.KILLED, code, _signal_name(stopping[-1])), code)
    if code:
        return Outcome(Ending(State.FAILED, code, f"exit code {code}"), code)
    return Outcome(Ending(State.COMPLETED, 0), 0)


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


def _start(
    command: Sequence[str], variables: Mapping[str, str]
) -> tuple[subprocess.Popen[bytes], list[tuple[int, int]]]:
    """Start a program; return it, and pairs of descriptors: its output, and where that goes."""
    streams: list[tuple[int, int]] = []
    theirs: list[int] = []
    # One for both where both go to the same place, lest their order is lost on the way.
    for target in (1,) if _is_one_place(1, 2) else (1, 2):
        source, end = _terminal_like(target) if os.isatty(target) else os.pipe()
        streams.append((source, target))
        theirs.append(end)
    try:
        process = subprocess.Popen(command, env=variables, stdout=theirs[0], stderr=theirs[-1])
    except OSError as error:
        for source, _ in streams:
            os.close(source)
        problem = (error.strerror or str(error)).lower()
        raise _cannot_start(command[0], problem, _NOT_EXECUTABLE) from None
    finally:
        for end in theirs:
            os.close(end)
    return process, streams


def _is_one_place(one: int, other: int) -> bool:
    """Say whether two descriptors are of the same file, pipe or terminal."""
    try:
        return os.path.sameopenfile(one, other)
    except OSError:
        return False


def _terminal_like(target: int) -> tuple[int, int]:
    """Open a pseudo-terminal of the size of ours, so that progress bars draw as they would."""
    source, end = pty.openpty()
    mode = termios.tcgetattr(end)
    mode[1] &= ~termios.OPOST  # our own terminal adds the carriage returns
    termios.tcsetattr(end, termios.TCSANOW, mode)
    _copy_size(target, end)
    return source, end


def _copy_size(terminal: int, to: int) -> None:
    with contextlib.suppress(termios.error, OSError):
        termios.tcsetwinsize(to, termios.tcgetwinsize(terminal))


def _output_log(run: Run) -> IO[bytes] | None:
    """Open the record of the program's output; go without where that is impossible."""
    path = Path(run.logdir, OUTPUT)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        return path.open("ab", buffering=0)
    except OSError as error:
        say(f"the output cannot be recorded in {path}: {error.strerror or error}.")
        return None


class _Pump:
    """Passes one stream on, and records it."""

    def __init__(self, source: int, target: int, log: IO[bytes] | None) -> None:
        self._source = source
        self._target = target
        self._log = log
        self._drains = False
        self._hurry = False
        self._closing = threading.Lock()
        self._closed = False
        self._thread = threading.Thread(target=self._pump, name="aboard-output", daemon=True)
        self._thread.start()

    def drain(self, hurry: threading.Event) -> None:
        """Wait for the rest of a program that has ended, however slowly it is read.

        Args:
            hurry: set when somebody will not wait that long.
        """
        self._drains = True
        while self._thread.is_alive() and not hurry.is_set():
            self._thread.join(_POLL_SECS)
        self._hurry = True

    def resize(self) -> None:
        """Give the program's terminal the size that ours has now."""
        with self._closing:
            if not self._closed and os.isatty(self._source):
                _copy_size(self._target, self._source)

    def _pump(self) -> None:
        left = _DRAIN_BYTES
        waited = 0.0
        ready = select.poll()
        ready.register(self._source, select.POLLIN)
        while left > 0 and waited <= _DRAIN_SECS and not self._hurry:
            before = time.monotonic()
            found = ready.poll(_POLL_SECS * 1000)
            if self._drains:
                waited += time.monotonic() - before
            if not found:
                continue
            try:
                block = os.read(self._source, 1 << 16)
            except OSError:  # how a pseudo-terminal ends
                break
            if not block:
                break
            self._record(block)
            if not self._pass_on(block):
                break
            if self._drains:
                left -= len(block)
        with self._closing:
            self._closed = True
            os.close(self._source)

    def _pass_on(self, block: bytes) -> bool:
        """Write it where it goes; say whether more shall come."""
        rest = memoryview(block)
        while rest:
            try:
                rest = rest[os.write(self._target, rest) :]
            except BlockingIOError:
                room = select.poll()
                room.register(self._target, select.POLLOUT)
                room.poll()
            except BrokenPipeError:
                return False  # as by hand, the program is told that nobody reads on
            except OSError:
                break  # the terminal is gone; the program goes on, and so does its record
        return True

    def _record(self, block: bytes) -> None:
        if self._log is None:
            return
        try:
            self._log.write(block)
        except (OSError, ValueError) as error:
            self._log = None
            say(f"the output is no longer recorded: {error}.")
