"""Runs a program as a run, and records its environment, its output and how it exited.

The program behaves as if it were started by hand: its output is forwarded at once, signals reach
it, and its exit code becomes ours. Its command line can be read as hyperparameters.
"""

from __future__ import annotations

import contextlib
import os
import pty
import queue
import re
import select
import shutil
import signal
import subprocess
import sys
import termios
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from types import FrameType
from typing import IO, NamedTuple, Self

from aboard import system
from aboard.runs.manifest import State
from aboard.system import signal_name
from aboard.track import environment, notify, notify_once
from aboard.track.adoption import Adoption
from aboard.track.exit_status import ExitStatus
from aboard.track.redaction import hides, looks_secret, without_secret_values
from aboard.track.run import Run
from aboard.track.shipping.segments import OUTPUT_LOG

_NOT_FOUND, _NOT_EXECUTABLE = 127, 126
_HPARAMS_SECS = 10.0  # after which ours are written, unless the program logged its own
_POLL_SECS = 0.2
# Limits of the wait for output of processes that the program left running.
_DRAIN_SECS, _DRAIN_BYTES = 2.0, 1 << 20

# After any other signal, the exit code of the program decides.
STOPPING = {signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT}
_SENT_TO_GROUPS = {*STOPPING, signal.SIGUSR1, signal.SIGUSR2}
_FORWARDED = (*sorted(_SENT_TO_GROUPS), signal.SIGCONT, signal.SIGWINCH)
_HOLD_SECS = 0.2  # by then a sender that signals processes one by one has reached all


class CannotStart(Exception):
    """The program could not be started; `exit_code` is what a shell would return."""

    def __init__(self, program: str, problem: str, exit_code: int) -> None:
        super().__init__(f"{program or repr('')}: {problem}. Check the command.")
        self.exit_code = exit_code


def check_program(command: Sequence[str]) -> None:
    """Raise `CannotStart` if the program does not exist or is not executable."""
    program = command[0]
    if shutil.which(program):
        return
    if "/" in program and Path(program).is_file():
        raise CannotStart(program, "permission denied", _NOT_EXECUTABLE)
    raise CannotStart(program, "program not found", _NOT_FOUND)


def execute(run: Run, command: Sequence[str], *, ranks: str = "first") -> ExitStatus:
    """Run a program until it exits; return its status with the exit code of a shell."""
    started = time.time()
    records = run.active and not run.joined  # if joined, an outer `aboard run` records everything
    with contextlib.ExitStack() as stack:
        log = _output_log(run) if records else None
        if log is not None:
            stack.enter_context(log)
        pumps: list[_Pump] = []
        signals = stack.enter_context(SignalForwarder(lambda: list(map(_Pump.resize, pumps))))
        variables = environment.variables_for(run.root, run.experiment, run.name, run.logdir)
        variables |= {environment.ATTEMPT: run.uri or "1", environment.RANKS: ranks}
        process, streams = _start(command, {**os.environ, **variables})
        # Before output is forwarded: a reader may react to it with a signal.
        signals.forward_to(process)
        pumps += [_Pump(source, target, log) for source, target in streams]
        adoption = Adoption(Path(run.logdir), Path.cwd(), started, command, ranks=ranks)
        if records:
            adoption.start(process.pid)
        hparams = threading.Timer(_HPARAMS_SECS, run.flush)
        hparams.daemon = True
        hparams.start()
        process.wait()
        hparams.cancel()
        for pump in pumps:
            pump.drain(signals.hurry)
        if records:
            adoption.stop()
        return _exit_status(process.returncode, signals.received)


def _exit_status(code: int, received: list[int]) -> ExitStatus:
    if code < 0:
        return ExitStatus(State.KILLED, 128 - code, signal_name(-code))
    stopping = [number for number in received if number in STOPPING]
    if code and stopping:
        return ExitStatus(State.KILLED, code, signal_name(stopping[-1]))
    if code:
        return ExitStatus(State.FAILED, code, f"exit code {code}")
    return ExitStatus(State.COMPLETED, 0)


def _start(
    command: Sequence[str], variables: Mapping[str, str]
) -> tuple[subprocess.Popen[bytes], list[tuple[int, int]]]:
    """Start a program; return it, and pairs of descriptors: its output and the target."""
    streams: list[tuple[int, int]] = []
    theirs: list[int] = []
    # One stream if both have the same target, to keep their order.
    for target in (1,) if _is_same_file(1, 2) else (1, 2):
        source, end = _terminal_like(target) if os.isatty(target) else os.pipe()
        streams.append((source, target))
        theirs.append(end)
    try:
        process = subprocess.Popen(command, env=variables, stdout=theirs[0], stderr=theirs[-1])
    except OSError as error:
        for source, _ in streams:
            os.close(source)
        problem = (error.strerror or str(error)).lower()
        raise CannotStart(command[0], problem, _NOT_EXECUTABLE) from None
    finally:
        for end in theirs:
            os.close(end)
    return process, streams


def _is_same_file(one: int, other: int) -> bool:
    try:
        return os.path.sameopenfile(one, other)
    except OSError:
        return False


def _terminal_like(target: int) -> tuple[int, int]:
    """Open a pseudo-terminal of the size of ours, so that progress bars look as usual."""
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
    path = Path(run.logdir, OUTPUT_LOG)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        return path.open("ab", buffering=0)
    except OSError as error:
        notify(f"the output cannot be recorded in {path}: {error.strerror or error}.")
        return None


class _Pump:
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
        """Wait for the rest of the output, even with a slow reader, or until `hurry` is set."""
        self._drains = True
        while self._thread.is_alive() and not hurry.is_set():
            self._thread.join(_POLL_SECS)
        self._hurry = True

    def resize(self) -> None:
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
            except OSError:  # the end of a pseudo-terminal
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
        rest = memoryview(block)
        while rest:
            try:
                rest = rest[os.write(self._target, rest) :]
            except BlockingIOError:
                room = select.poll()
                room.register(self._target, select.POLLOUT)
                room.poll()
            except BrokenPipeError:
                return False  # so that the program gets SIGPIPE
            except OSError:
                break  # the terminal is gone; the program and its record continue
        return True

    def _record(self, block: bytes) -> None:
        if self._log is None:
            return
        try:
            self._log.write(block)
        except (OSError, ValueError) as error:
            self._log = None
            notify(f"the output is no longer recorded: {error}.")


# Hyperparameters on a command line: `--lr=0.1`, `--layers 3`, `--no-bias`, `depth=4`.
_OPTION = re.compile(r"--?([A-Za-z][\w.-]*)(?:=(.*))?", re.DOTALL)
_SETTING = re.compile(r"\+{0,2}([A-Za-z_][\w.]*)=(.*)", re.DOTALL)
_INTEGER = re.compile(r"[-+]?\d{1,15}")
_MODULE_OPTIONS = {"-m", "-c"}

HParam = bool | int | float | str


def command_hparams(command: Sequence[str]) -> dict[str, HParam]:
    """Return the options of a command as hyperparameters, without likely secrets."""
    shown = {
        name.replace("-", "_"): value
        for name, value in _options(_script_arguments(command))
        if not looks_secret(name) and not hides(name, str(value))
    }
    return without_secret_values(shown)


def _script_arguments(command: Sequence[str]) -> Sequence[str]:
    """Skip the options of the interpreter or launcher before a script."""
    for place, argument in enumerate(command[1:], 1):
        if argument.endswith(".py") and not argument.startswith("-"):
            return command[place + 1 :]
    for place, argument in enumerate(command[1:-1], 1):
        if argument in _MODULE_OPTIONS:
            return command[place + 2 :]
    return command[1:]


def parse_hparam(text: str) -> HParam:
    """Parse a value as a boolean, a number or, failing that, text."""
    lowered = text.lower()
    if lowered in ("true", "false"):
        return lowered == "true"
    if _INTEGER.fullmatch(text):
        return int(text)
    try:
        return text if "_" in text else float(text)
    except ValueError:
        return text


def _options(arguments: Sequence[str]) -> Iterator[tuple[str, HParam]]:
    place = 0
    while place < len(arguments):
        argument = arguments[place]
        place += 1
        if argument == "--":
            return
        if found := _OPTION.fullmatch(argument):
            name, value = found[1], found[2]
            if value is None and place < len(arguments) and not _is_option(arguments[place]):
                value = arguments[place]
                place += 1
            if value is not None:
                yield name, parse_hparam(value)
            elif name.startswith(("no-", "no_")):
                yield name[3:], False
            else:
                yield name, True
        elif found := _SETTING.fullmatch(argument):
            yield found[1], parse_hparam(found[2])


def _is_option(argument: str) -> bool:
    """Return whether an argument is an option; `-1e-3` is a value."""
    return bool(_OPTION.fullmatch(argument) or _SETTING.fullmatch(argument)) or argument == "--"


class _Received(NamedTuple):
    number: int  # 0 stops the forwarding
    at: float = 0.0


class SignalForwarder:
    """Forwards signals to a program, so that each arrives there once; SIGWINCH after `resize`.

    A signal may be sent to `aboard run` only, which then forwards it, or to the program as well: a
    terminal, `timeout`, systemd and Slurm signal every process of a group. A handler cannot tell
    the difference. So a *witness*, a process that does nothing, is in the group and blocks these
    signals: those pending there were sent to the group. A signal that arrives before the program
    starts is forwarded when it does.
    """

    def __init__(self, resize: Callable[[], object]) -> None:
        self.received: list[int] = []
        self.hurry = threading.Event()  # set by a signal after the program has exited
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
        early = self._drain()  # the program did not exist to get them itself
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
        """Start another witness, since the signal stays pending in the old one."""
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
    """Start a process in our group that blocks signals, and exits with this one."""
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
