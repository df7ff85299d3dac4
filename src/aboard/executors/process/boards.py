"""Boards as processes of the hub's own machine and user.

Each is the leader of a process group, writes to its own files, and survives the hub. The directory
of a board has what is needed to find it again: `process.json`, the handle of its last start, and
the files of `start`. A variable of its environment names that directory, so that another hub with
the same database and other directories finds it too.

The memory limit is checked at each poll. `setrlimit` does not help: Linux ignores RLIMIT_RSS, and
RLIMIT_DATA and RLIMIT_AS count reserved memory, which for numerical libraries grows with the number
of cores. Control groups need permissions that a user's session often lacks. If a board outgrows the
machine between two polls, the kernel kills it rather than the hub. Processes that leave their group
are not tracked. A CPU limit, rounded up, binds a board and its children to that many of the hub's
CPUs, chosen at random to spread boards.
"""

from __future__ import annotations

import json
import math
import os
import platform
import random
import re
import secrets
import shutil
import signal
import sys
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path

from aboard import system
from aboard.executors.base import (
    ADDRESS,
    Address,
    CommandState,
    EngineReport,
    Executor,
    ExecutorError,
    Found,
    Handle,
    Spec,
    Status,
    here,
    is_here,
)
from aboard.executors.start import Start, amount, read_json, why
from aboard.system import Process, write_private
from aboard.web.tokens import TokenError

_PYTHON = (
    "PATH|HOME|WARNINGS|UTF8|HASHSEED|UNBUFFERED|DONTWRITEBYTECODE|PYCACHEPREFIX|IOENCODING"
    "|NOUSERSITE|USERBASE|SAFEPATH|FAULTHANDLER|DEVMODE|TRACEMALLOC|MALLOC"
)
_INHERITED = re.compile(
    r"PATH|HOME|USER|LOGNAME|SHELL|LANG|LANGUAGE|LC_.*|TZ|TZDIR|TMPDIR|TMP|TEMP|XDG_.*_HOME"
    r"|(HTTP|HTTPS|ALL|NO)_PROXY|(http|https|all|no)_proxy|SSL_CERT_(FILE|DIR)"
    rf"|(REQUESTS|CURL)_CA_BUNDLE|PYTHON({_PYTHON})|VIRTUAL_ENV|LD_.*|MALLOC_.*|(OMP|OPENBLAS|MKL)_NUM_THREADS"
    r"|ABOARD_(CACHE|DEBUG|PURE_PYTHON)"
)


def inherited(variables: Mapping[str, str]) -> dict[str, str]:
    return {name: value for name, value in variables.items() if _INHERITED.fullmatch(name)}


_MARK = "ABOARD_START"  # the variable with hub, board, attempt and directory
_WAITING = "aboard-waits-to-start"
# The command begins only when the handle is on the disk; if the hub is killed before, the shell
# reads end-of-file and exits. exec keeps the process id and the start time.
_LAUNCH = """
read -r word && [ "$word" = go ] || exit 125
{ echo 500 >/proc/self/oom_score_adj; } 2>/dev/null
exec "$@" </dev/null
"""
_CHANGEOVER_SECONDS = 10.0
_ENDING_SECONDS = 1.0


class ProcessExecutor(Executor):
    """Runs boards as processes of this machine."""

    name = "process"
    unit = ("process", "pid")

    def open(self) -> None:
        # An exit code can be read only once: the thread that reads it also records it.
        self._fetching = threading.Lock()
        self._addresses: dict[Path, Address] = {}  # by the directory of a start

    def start(self, spec: Spec) -> Handle:
        try:
            spec.directory.mkdir(mode=0o700, parents=True, exist_ok=True)
            with system.file_lock(spec.directory / "lock"):  # one start at a time
                while (handle := self._start(spec)) is None:
                    pass
                return handle
        except (OSError, TokenError) as error:
            raise ExecutorError(
                f"{spec.directory}: board {spec.board} cannot be started: {why(error)}. "
                "Check that the hub may write there and start processes."
            ) from error

    def poll(self, handles: Mapping[str, Handle]) -> dict[str, Status]:
        try:
            groups, boot = (system.processes_by_group(), system.boot_id()) if handles else ({}, "")
        except OSError as error:
            unknown = Status(CommandState.UNKNOWN, reason=f"/proc cannot be read: {why(error)}")
            return dict.fromkeys(handles, unknown)
        found = {}
        for key, handle in handles.items():
            try:
                with self._fetching:
                    found[key] = self._status(_Started(handle, boot), groups)
            except (ExecutorError, OSError, ValueError) as error:
                found[key] = Status(CommandState.UNKNOWN, reason=why(error))
        return found

    def stop(self, handle: Handle, *, now: bool = False) -> None:
        """Send SIGTERM to the process group; `poll` kills it after the grace period."""
        started = _Started(handle)
        try:
            if not started.is_running():
                return
            if started.place.is_dir():
                started.request_stop(0.0 if now else time.monotonic() + self.grace)
            started.signal(signal.SIGKILL if now else signal.SIGTERM)
        except OSError as error:
            raise ExecutorError(
                f"process {started.pid} cannot be stopped: {why(error)}. "
                f"Stop it with: kill {started.pid}"
            ) from error

    def logs(
        self, handle: Handle, *, tail: int | None = None, follow: bool = False
    ) -> Iterator[bytes]:
        started = _Started(handle)
        return started.read_log(tail=tail, follow=follow, is_running=started.is_running)

    def address(self, handle: Handle) -> Address | None:
        """Return the address of a running process; later another may have its port."""
        started = _Started(handle)
        try:
            running = started.is_running()
            # Read only once: the hub's file system may hang.
            known = (self._addresses.get(started.place) or started.address()) if running else None
        except (OSError, TokenError) as error:
            raise ExecutorError(
                f"the address of process {started.pid} cannot be read: {why(error)}. "
                "Stop the board and start it again."
            ) from error
        if known is None:
            self._addresses.pop(started.place, None)
        else:
            self._addresses[started.place] = known
        return known

    def probe(self, profile: str = "") -> EngineReport:  # noqa: ARG002 - one machine
        free = {"cpus": str(os.cpu_count() or 1)}
        with suppress(OSError, ValueError):
            memory = os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
            free["free memory"] = amount(memory, memory)
        return EngineReport(True, platform.release(), free)

    def reaches(self, handle: Handle) -> bool:
        return is_here(handle)

    def found(self) -> list[Found]:
        try:
            return [
                Found(board, attempt, handle)
                for pid, board, attempt, directory in self._marked()
                if (handle := _handle_of(pid, board, attempt, directory)) is not None
            ]
        except OSError as error:
            raise ExecutorError(f"/proc cannot be read: {why(error)}.") from error

    def _marked(self) -> Iterator[tuple[int, str, int, Path]]:
        """Yield pid, board, attempt and directory of starts by hubs of this database."""
        for pid, mark in system.marked_processes(_MARK) if self.hub else ():
            with suppress(ValueError):
                hub, board, attempt, directory = mark.split(":", 3)
                if hub == self.hub:
                    yield pid, board, int(attempt), Path(directory)

    def _find_elsewhere(self, spec: Spec) -> Handle | None:
        """Return the handle of this start if a hub with another directory made it."""
        patience = time.monotonic() + _CHANGEOVER_SECONDS
        while True:
            waiting = 0
            for pid, board, attempt, directory in self._marked():
                if (board, attempt) != (spec.board, spec.attempt):
                    continue
                handle = _handle_of(pid, board, attempt, directory)
                if handle is not None and _is_still_running(_Started(handle)):
                    return handle
                if handle is None and _is_waiting(pid):  # for a running hub, or for its own exit
                    waiting = pid
            if not waiting:
                return None
            if time.monotonic() > patience:
                raise ExecutorError(
                    f"process {waiting} waits for a hub that is suspended. "
                    f"Stop it with: kill {waiting}"
                )
            time.sleep(0.01)

    def _must_yield(self, spec: Spec, pid: int) -> bool:
        """Return whether a start of the same board by another hub has precedence.

        The lease of a suspended hub may expire while it starts a board. Each hub checks when its
        own process is visible, so at least one of them sees the other's. Of two waiting processes,
        the one with the higher id exits, and the other waits for that.
        """
        patience = time.monotonic() + _CHANGEOVER_SECONDS
        while self.hub and time.monotonic() < patience:
            starts = {
                one: directory
                for one, board, attempt, directory in self._marked()
                if (board, attempt) == (spec.board, spec.attempt)
            }
            waiting = {one for one in starts if one != pid and _is_waiting(one)}
            for one in starts.keys() - waiting - {pid}:
                handle = _handle_of(one, spec.board, spec.attempt, starts[one])
                if handle is not None and _is_still_running(_Started(handle)):
                    return True
            if any(one < pid for one in waiting):
                return True
            if (pid in starts and not waiting) or not system.start_ticks(pid):
                return False
            time.sleep(0.01)
        return bool(self.hub)

    def _start(self, spec: Spec) -> Handle | None:
        """Start a board, or find a running one; None if another hub's start has precedence."""
        record = spec.directory / "process.json"
        before = read_json(record)
        if isinstance(before, dict):
            running = _Started(before)
            if _is_still_running(running):
                return before
            shutil.rmtree(running.place, ignore_errors=True)
        if (elsewhere := self._find_elsewhere(spec)) is not None:
            return elsewhere
        number = secrets.token_hex(4)
        handle, token = Start.prepare(spec, number, tls=False)
        place = spec.directory / f"start-{number}"
        reading, writing = os.pipe()
        try:
            given = {
                **inherited(os.environ),
                **spec.listening("localhost", 0),
                **spec.environment,
                "ABOARD_TOKEN": token,
                _MARK: f"{self.hub}:{spec.board}:{spec.attempt}:{handle['directory']}",
            }
            pid = _spawn(spec, reading, place / ADDRESS, spec.directory / "log", given)
            try:
                if spec.cpus:
                    _bind(pid, spec.cpus)
                process = system.find_process(pid)
                handle |= {
                    "pid": pid,
                    "started": process.started if process else 0,
                    "memory": spec.memory,
                    **here(),
                }
                write_private(record, json.dumps(handle))
                yields = self._must_yield(spec, pid)
            except BaseException:
                _kill_waiting(pid)
                raise
            if yields:
                _kill_waiting(pid)
                return None
            with suppress(BrokenPipeError):  # already killed, as `poll` will report
                os.write(writing, b"go\n")
        finally:
            os.close(reading)
            os.close(writing)
        return handle

    def _status(self, started: _Started, groups: Mapping[int, list[Process]]) -> Status:
        ended_status = started.ended_status()
        members = [] if started.is_foreign() else groups.get(started.pid, [])
        alive = [process for process in members if process.is_alive]
        leader = next((one for one in members if one.pid == started.pid), None)
        if leader is not None and leader.is_alive and ended_status is None:
            status = self._status_of_running(started, alive)
            ended_status = started.ended_status()
            if ended_status is None:
                return status
        if alive:  # killed by us, or children are left
            started.signal(signal.SIGKILL)
        gone, code = _fetch_exit_code(started) if members else (True, None)
        if not gone:
            return Status(started.state())
        self._addresses.pop(started.place, None)
        return ended_status or started.end(code, _reason(started, code))

    def _status_of_running(self, started: _Started, alive: list[Process]) -> Status:
        memory = sum(process.resident for process in alive)
        limit = started.memory
        if limit is not None and memory > limit:
            memory = system.proportional_memory(alive)
        if limit is not None and memory > limit:
            reason = f"used {amount(memory, limit)} of {amount(limit, limit)} memory"
            started.end(-signal.SIGKILL, reason)
        deadline = started.deadline()
        if deadline is not None and time.monotonic() >= deadline:
            started.signal(signal.SIGKILL)
        return Status(started.state(), memory=memory)


class _Started(Start):
    """A started process, described by its handle."""

    def __init__(self, handle: Handle, boot: str = "") -> None:
        super().__init__(handle)
        try:
            self.pid = int(handle["pid"])
            self.memory: int | None = handle["memory"]
            self._started = int(handle["started"])
            self.of_this_boot = str(handle["boot"]) == (boot or system.boot_id())
        except (KeyError, TypeError, ValueError, OSError) as error:
            raise ExecutorError(
                f"not the handle of a process: {error!r}. Start the board again."
            ) from error
        if self.pid <= 1:  # as groups, 0 means our own and 1 all processes
            raise ExecutorError(f"invalid process id {self.pid}. Start the board again.")

    def is_running(self) -> bool:
        process = system.find_process(self.pid)
        return process is not None and process.is_alive and self._is(process)

    def is_foreign(self) -> bool:
        """Return whether the id belongs to another process now.

        An id is not reused while a group has it. So if another process has it, nothing of this
        start is left; and if it is free, its group is that of this start.
        """
        process = system.find_process(self.pid)
        return not self.of_this_boot or (process is not None and not self._is(process))

    def is_waiting(self) -> bool:
        return _is_waiting(self.pid)

    def _is(self, process: Process) -> bool:
        return self.of_this_boot and process.started == self._started

    def signal(self, number: signal.Signals) -> None:
        if not self.is_foreign():
            with suppress(ProcessLookupError):
                os.killpg(self.pid, number)


def _kill_waiting(pid: int) -> None:
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)


def _is_waiting(pid: int) -> bool:
    return _WAITING in system.command_line(pid)[:4]


def _handle_of(pid: int, board: str, attempt: int, directory: Path) -> Handle | None:
    """Return the handle of a marked process; None if it waits, or is a child of a board."""
    noted = read_json(directory / "process.json")
    if isinstance(noted, dict):
        return noted if noted.get("pid") == pid and _Started(noted).is_running() else None
    process = system.find_process(pid)
    if process is None or process.group != pid or not process.is_alive or _is_waiting(pid):
        return None
    return {  # its directory is gone
        "board": board,
        "attempt": attempt,
        "directory": str(directory),
        "start": "",
        "log_from": 0,
        "pid": pid,
        "started": process.started,
        "memory": None,
        **here(),
    }


def _spawn(spec: Spec, go: int, out: Path, log: Path, environment: Mapping[str, str]) -> int:
    """Start a process in its own session, which waits for a line on `go`."""
    return system.spawn(
        ["/bin/sh", "-c", _LAUNCH, _WAITING, *spec.words(sys.executable)],
        environment,
        stdin=go,
        stdout=os.fspath(out),
        stderr=os.fspath(log),
    )


def _bind(pid: int, cpus: float) -> None:
    """Bind a waiting process to this number of CPUs; its command inherits them."""
    usable = sorted(os.sched_getaffinity(0))
    os.sched_setaffinity(pid, random.sample(usable, min(math.ceil(cpus), len(usable))))


def _is_still_running(before: _Started) -> bool:
    """Return whether an earlier start of a board is running; if it is stopping, wait."""
    patience = time.monotonic() + _CHANGEOVER_SECONDS
    while before.is_running():
        if before.ended_status() is not None or before.deadline() is not None:
            before.signal(signal.SIGKILL)
        elif not before.is_waiting():
            return True
        if time.monotonic() > patience:
            raise ExecutorError(
                f"process {before.pid} of this board does not exit, although it was killed. "
                "Wait until the file system it reads from answers again."
            )
        time.sleep(0.01)
    if not before.is_foreign():
        before.signal(signal.SIGKILL)
        _fetch_exit_code(before)
    return False


def _fetch_exit_code(started: _Started) -> tuple[bool, int | None]:
    """Wait a moment for a group to exit; return whether its leader is gone, and its exit code.

    Reaps all children of this process, including orphans if it is a subreaper. A killed process
    may take a while to free its memory.
    """
    code, fetched = None, False
    patience = time.monotonic() + _ENDING_SECONDS
    while time.monotonic() < patience:
        try:
            pid, status = os.waitpid(-started.pid, os.WNOHANG)
        except ChildProcessError:
            if not started.is_running():
                return True, code
            pid = 0
        if pid == started.pid:
            code, fetched = os.waitstatus_to_exitcode(status), True
        if not pid:
            time.sleep(0.005)
    return fetched, code


def _reason(started: _Started, code: int | None) -> str:
    if started.deadline() is None:
        if not started.of_this_boot:
            return "the machine was restarted"
        if not started.place.is_dir():
            return "it was started again"
    return started.end_reason(code)
