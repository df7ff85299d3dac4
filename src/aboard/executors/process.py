"""Boards as processes of the hub's own machine and user.

Each is the leader of a process group, writes to files of its own, and goes on when the hub ends. A
directory per board holds what is needed to find it again:

    log                what it wrote to standard error, of all its starts
    process.json       the handle of its last start
    start-<id>/        one start: `address` (standard output), `token`, `stopping`, `end.json`

The memory limit is kept by looking at each poll. `setrlimit` is no help: Linux ignores
RLIMIT_RSS, and RLIMIT_DATA and RLIMIT_AS count what is reserved, which for numerical libraries
grows with the number of cores and has little to do with what is used. Control groups need rights
that a user's session often lacks. Should a board outgrow the machine between two looks, the kernel
is told to end it rather than the hub. Processes that leave their group are not followed.
"""

from __future__ import annotations

import fcntl
import json
import os
import secrets
import shutil
import signal
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, Any
from urllib.parse import urlsplit

from aboard.executors import proc
from aboard.executors.base import (
    Address,
    Executor,
    ExecutorError,
    Handle,
    Spec,
    State,
    Status,
)
from aboard.executors.inherited import inherited
from aboard.executors.proc import Process
from aboard.storage.place import write_private
from aboard.web.errors import TokenError
from aboard.web.tokens import new_token, read_token_file, write_token_file

GRACE = 10.0
"""Seconds that a board gets to end by itself."""

_WAITING = "aboard-waits-to-start"
# It begins only once the handle is on the disk; if we are killed before, it reads the end of the
# file and is gone. exec keeps the process id and the time it was started.
_LAUNCH = """
read -r word && [ "$word" = go ] || exit 125
{ echo 500 >/proc/self/oom_score_adj; } 2>/dev/null
exec "$@" </dev/null
"""
_RESET_SIGNALS = (signal.SIGPIPE, signal.SIGXFSZ, signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
_CHANGEOVER_SECONDS = 10.0
_ENDING_SECONDS = 1.0
_FOLLOW_SECONDS = 0.2
_BLOCK = 1 << 16
_LONGEST_REASON = 600
_LAST_LINES = 5


class ProcessExecutor(Executor):
    """Runs boards as processes of this machine.

    Args:
        grace: seconds that a board gets to end by itself when it is stopped.
    """

    name = "process"

    def __init__(self, *, grace: float = GRACE) -> None:
        self._grace = grace
        # An exit code can be fetched once: whoever fetches it also writes it down.
        self._fetching = threading.Lock()

    def start(self, spec: Spec) -> Handle:
        """Start a command, or return the handle of the one that runs in the directory."""
        try:
            with _locked(spec.directory):
                return self._start(spec)
        except (OSError, TokenError) as error:
            raise ExecutorError(
                f"{spec.directory}: board {spec.board} cannot be started: {_why(error)}. "
                "Check that the hub may write there and start processes."
            ) from error

    def poll(self, handles: Mapping[str, Handle]) -> dict[str, Status]:
        """Look at all processes once, and tell what became of those asked for."""
        try:
            groups, boot = (proc.by_group(), proc.boot()) if handles else ({}, "")
        except OSError as error:
            unknown = Status(State.UNKNOWN, reason=f"/proc cannot be read: {_why(error)}")
            return dict.fromkeys(handles, unknown)
        found = {}
        for key, handle in handles.items():
            try:
                with self._fetching:
                    found[key] = self._look(_Started(handle, boot), groups)
            except (ExecutorError, OSError, ValueError) as error:
                found[key] = Status(State.UNKNOWN, reason=_why(error))
        return found

    def stop(self, handle: Handle, *, now: bool = False) -> None:
        """Ask the process group to end; `poll` kills what has not after the time of grace."""
        started = _Started(handle)
        try:
            if not started.lives():
                return
            started.ask_to_end(0.0 if now else time.monotonic() + self._grace)
            started.signal(signal.SIGKILL if now else signal.SIGTERM)
        except OSError as error:
            raise ExecutorError(
                f"process {started.pid} cannot be stopped: {_why(error)}. "
                f"Stop it with: kill {started.pid}"
            ) from error

    def logs(
        self, handle: Handle, *, tail: int | None = None, follow: bool = False
    ) -> Iterator[bytes]:
        """Yield the log."""
        started = _Started(handle)
        try:
            with started.log.open("rb") as file:
                file.seek(0 if tail is None else _start_of_tail(file, tail))
                while True:
                    goes_on = follow and started.lives()
                    while block := file.read(_BLOCK):
                        yield block
                    if not goes_on:
                        return
                    time.sleep(_FOLLOW_SECONDS)
                    yield b""
        except FileNotFoundError:
            return
        except OSError as error:
            raise ExecutorError(
                f"{started.log}: the log cannot be read: {_why(error)}. Check the hub's directory."
            ) from error

    def address(self, handle: Handle) -> Address | None:
        """Return what the process told, as long as it lives: its port may be another's by then."""
        started = _Started(handle)
        try:
            return started.address() if started.lives() else None
        except (OSError, TokenError) as error:
            raise ExecutorError(
                f"the address of process {started.pid} cannot be read: {_why(error)}. "
                "Stop the board and start it again."
            ) from error

    def _start(self, spec: Spec) -> Handle:
        record = spec.directory / "process.json"
        before = _read_json(record)
        if isinstance(before, dict):
            running = _Started(before)
            if _settles(running):
                return before
            shutil.rmtree(running.place, ignore_errors=True)
        number = secrets.token_hex(4)
        place = spec.directory / f"start-{number}"
        place.mkdir(mode=0o700)
        token = new_token()
        write_token_file(place / "token", token)
        log = spec.directory / "log"
        log_from = log.stat().st_size if log.exists() else 0
        reading, writing = os.pipe()
        try:
            pid = _spawn(spec, reading, place / "address", log, token)
            try:
                process = proc.find(pid)
                handle = {
                    "board": spec.board,
                    "pid": pid,
                    "started": process.started if process else 0,
                    "boot": proc.boot(),
                    "directory": str(spec.directory.absolute()),
                    "start": number,
                    "log_from": log_from,
                    "memory": spec.memory,
                }
                write_private(record, json.dumps(handle))
            except BaseException:
                os.kill(pid, signal.SIGKILL)
                os.waitpid(pid, 0)
                raise
            with suppress(BrokenPipeError):  # it was killed already, and `poll` will tell
                os.write(writing, b"go\n")
        finally:
            os.close(reading)
            os.close(writing)
        return handle

    def _look(self, started: _Started, groups: Mapping[int, list[Process]]) -> Status:
        verdict = started.verdict()
        members = [] if started.is_foreign() else groups.get(started.pid, [])
        alive = [process for process in members if process.lives]
        leader = next((one for one in members if one.pid == started.pid), None)
        if leader is not None and leader.lives and verdict is None:
            status = self._look_at_living(started, alive)
            verdict = started.verdict()
            if verdict is None:
                return status
        if alive:  # it was ended by us, or has left children behind
            started.signal(signal.SIGKILL)
        gone, code = _fetch_exit_code(started) if members else (True, None)
        if not gone:
            return Status(started.state())
        return verdict or started.end(code, _reason(started, code))

    def _look_at_living(self, started: _Started, alive: list[Process]) -> Status:
        memory = sum(process.resident for process in alive)
        limit = started.memory
        if limit is not None and memory > limit:
            memory = proc.proportional(alive)
        if limit is not None and memory > limit:
            reason = f"used {_amount(memory, limit)} of {_amount(limit, limit)} memory"
            started.end(-signal.SIGKILL, reason)
        deadline = started.deadline()
        if deadline is not None and time.monotonic() >= deadline:
            started.signal(signal.SIGKILL)
        return Status(started.state(), memory=memory)


class _Started:
    """A process that was started, as its handle describes it, and the files it has."""

    def __init__(self, handle: Handle, boot: str = "") -> None:
        try:
            self.pid = int(handle["pid"])
            self.memory: int | None = handle["memory"]
            self.log_from = int(handle["log_from"])
            self.place = Path(handle["directory"]) / f"start-{handle['start']}"
            self._started = int(handle["started"])
            self.of_this_boot = str(handle["boot"]) == (boot or proc.boot())
        except (KeyError, TypeError, ValueError, OSError) as error:
            raise ExecutorError(
                f"this is not the handle of a process: {error!r}. Start the board again."
            ) from error
        if self.pid <= 1:  # 0 and 1 as a group would mean ourselves, and all
            raise ExecutorError(f"there is no board with process id {self.pid}. Start it again.")

    @property
    def log(self) -> Path:
        return self.place.with_name("log")

    def lives(self) -> bool:
        process = proc.find(self.pid)
        return process is not None and process.lives and self._is(process)

    def is_foreign(self) -> bool:
        """Say whether the id belongs to another process now.

        An id is not given out anew while a group has it as its own. So where it is taken by
        another, nothing of ours is left; and where it is free, its group is ours.
        """
        process = proc.find(self.pid)
        return not self.of_this_boot or (process is not None and not self._is(process))

    def is_waiting(self) -> bool:
        """Say whether it waits for the word that lets it begin."""
        return _WAITING in proc.command_of(self.pid)[:4]

    def _is(self, process: Process) -> bool:
        return self.of_this_boot and process.started == self._started

    def signal(self, number: signal.Signals) -> None:
        if not self.is_foreign():
            with suppress(ProcessLookupError):
                os.killpg(self.pid, number)

    def told_address(self) -> str | None:
        """Return the address on its standard output; others may have written there too."""
        try:
            with (self.place / "address").open("rb") as file:
                lines = file.read(_BLOCK).split(b"\n")
        except FileNotFoundError:
            return None
        for line in lines[:-1]:
            with suppress(ValueError, TypeError, KeyError):
                return str(json.loads(line)["address"])
        return None

    def state(self) -> State:
        """Return how far it has come, if it lives."""
        return State.STARTING if self.told_address() is None else State.RUNNING

    def address(self) -> Address | None:
        told = self.told_address()
        if told is None:
            return None
        parts = urlsplit(told)
        host = "127.0.0.1" if parts.hostname == "localhost" else parts.hostname
        if parts.port is None or not host or not parts.path.endswith("/"):
            return None
        return Address(host, parts.port, parts.path, read_token_file(self.place / "token"))

    def ask_to_end(self, deadline: float) -> None:
        """Note until when it may end by itself; that never becomes later."""
        before = self.deadline()
        if before is None or deadline < before:
            write_private(self.place / "stopping", json.dumps(deadline))

    def deadline(self) -> float | None:
        """Return when the time of grace is over, if it was asked to end: see `time.monotonic`."""
        deadline = _read_json(self.place / "stopping")
        return None if deadline is None else float(deadline)

    def verdict(self) -> Status | None:
        """Return how it ended, if that was found out before."""
        end = _read_json(self.place / "end.json")
        return None if end is None else Status(State.ENDED, end["exit_code"], end["reason"])

    def end(self, code: int | None, reason: str) -> Status:
        """Remember how it ended."""
        if self.place.is_dir():
            end = {"exit_code": code, "reason": reason}
            write_private(self.place / "end.json", json.dumps(end))
        return Status(State.ENDED, code, reason)

    def last_words(self) -> str:
        """Return the last lines that this start of the board left in the log, as one."""
        try:
            with self.log.open("rb") as file:
                size = file.seek(0, os.SEEK_END)
                file.seek(max(self.log_from, size - 8 * _LONGEST_REASON))
                text = file.read().decode("utf-8", "replace")
        except OSError:
            return ""
        lines = ["".join(filter(str.isprintable, line)).strip() for line in text.splitlines()]
        said = " | ".join([line for line in lines if line][-_LAST_LINES:])
        return said if len(said) <= _LONGEST_REASON else f"…{said[-_LONGEST_REASON:]}"


def _spawn(spec: Spec, go: int, out: Path, log: Path, token: str) -> int:
    """Start a process in a session of its own, which waits for a word on `go`."""
    append = os.O_WRONLY | os.O_CREAT | os.O_APPEND
    return os.posix_spawn(
        "/bin/sh",
        ["/bin/sh", "-c", _LAUNCH, _WAITING, *spec.command],
        {**inherited(os.environ), **spec.environment, "ABOARD_TOKEN": token},
        file_actions=[
            (os.POSIX_SPAWN_DUP2, go, 0),
            (os.POSIX_SPAWN_OPEN, 1, os.fspath(out), append, 0o600),
            (os.POSIX_SPAWN_OPEN, 2, os.fspath(log), append, 0o600),
        ],
        setsid=True,
        setsigmask=(),
        setsigdef=_RESET_SIGNALS,
    )


def _settles(before: _Started) -> bool:
    """Say whether an earlier start of a board goes on; if not, wait until it is gone."""
    patience = time.monotonic() + _CHANGEOVER_SECONDS
    while before.lives():
        if before.verdict() is not None or before.deadline() is not None:
            before.signal(signal.SIGKILL)
        elif not before.is_waiting():
            return True
        if time.monotonic() > patience:
            raise ExecutorError(
                f"process {before.pid} of this board does not end, although it was killed. "
                "Wait until the file system it reads from answers again."
            )
        time.sleep(0.01)
    if not before.is_foreign():
        before.signal(signal.SIGKILL)
        _fetch_exit_code(before)
    return False


def _fetch_exit_code(started: _Started) -> tuple[bool, int | None]:
    """Wait a moment for a group that ends; say whether its leader is gone, and with which code.

    Fetches all exit codes that are ours to fetch: those of our children, and of their children
    where orphans come to us. What was killed may take a while to give back its memory.
    """
    code, fetched = None, False
    patience = time.monotonic() + _ENDING_SECONDS
    while time.monotonic() < patience:
        try:
            pid, status = os.waitpid(-started.pid, os.WNOHANG)
        except ChildProcessError:
            if not started.lives():
                return True, code
            pid = 0
        if pid == started.pid:
            code, fetched = os.waitstatus_to_exitcode(status), True
        if not pid:
            time.sleep(0.005)
    return fetched, code


def _reason(started: _Started, code: int | None) -> str:
    """Say why a process ended."""
    if started.deadline() is not None:
        return "it was stopped"
    if not started.of_this_boot:
        return "the machine was restarted"
    if not started.place.is_dir():
        return "it was started again since"
    if code is None:
        how = "it ended while nobody looked"
    elif code == -signal.SIGKILL:
        how = "it was killed, by someone or because the machine ran out of memory"
    elif code < 0:
        how = f"it was ended by {_signal_name(-code)}"
    else:
        how = f"it ended with exit code {code}"
    if started.told_address() is None:
        how += " before it could be reached"
    # One that was there and is killed has no last words: what it said before is no reason.
    is_silent = code in {0, -signal.SIGKILL} and started.told_address() is not None
    words = "" if is_silent else started.last_words()
    return f"{how}: {words}" if words else how


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


def _amount(size: int, scale: int) -> str:
    """Return a size in words, in the unit that suits `scale`."""
    if scale >= 1 << 30:
        return f"{size / (1 << 30):.1f} GiB"
    return f"{size / (1 << 20):.1f} MiB"


def _start_of_tail(file: IO[bytes], lines: int) -> int:
    """Return where the last lines of a file begin."""
    end = file.seek(0, os.SEEK_END)
    if lines <= 0:
        return end
    # The newline that ends the last line begins no other.
    position, wanted = max(end - 1, 0), lines
    while position > 0:
        start = max(0, position - _BLOCK)
        file.seek(start)
        block = file.read(position - start)
        found = block.count(b"\n")
        if found >= wanted:
            place = len(block)
            for _ in range(wanted):
                place = block.rindex(b"\n", 0, place)
            return start + place + 1
        wanted -= found
        position = start
    return 0


@contextmanager
def _locked(directory: Path) -> Iterator[None]:
    """Let one at a time start something in a directory, whichever process they are in."""
    directory.mkdir(mode=0o700, parents=True, exist_ok=True)
    descriptor = os.open(directory / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


def _read_json(path: Path) -> Any:
    try:
        return json.loads(path.read_bytes())
    except (FileNotFoundError, ValueError):  # not there, or of before a power failure
        return None


def _why(error: Exception) -> str:
    if isinstance(error, OSError):
        return (error.strerror or str(error)).lower()
    return str(error)
