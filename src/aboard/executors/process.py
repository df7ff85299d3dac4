"""Boards and the tasks of jobs as processes of this machine and user.

A board is the leader of a process group, writes to its own files, and survives the hub. The
directory of a board has what is needed to find it again: `process.json`, the handle of its last
start, and the files of `start`. A variable of its environment names that directory, so that another
hub with the same database and other directories finds it too.

A task runs in a `queue`. The leader of its process group is a small shell: it waits until the start
of the task is recorded, runs the command, and writes the exit code to a file in case the supervisor
was killed meanwhile. It also holds the locks of the task's GPUs. A task has the environment of the
submitter.

The memory limit is checked at each poll. `setrlimit` does not help: Linux ignores RLIMIT_RSS, and
RLIMIT_DATA and RLIMIT_AS count reserved memory, which for numerical libraries grows with the number
of cores. Control groups need permissions that a user's session often lacks. If a board outgrows the
machine between two polls, the kernel kills it rather than the hub. Processes that leave their group
are not tracked. A CPU limit, rounded up, binds a board and its children to that many of the hub's
CPUs, chosen at random to spread boards; it only limits how many tasks run at a time.
"""

from __future__ import annotations

import json
import math
import os
import platform
import random
import re
import secrets
import select
import shlex
import shutil
import signal
import sys
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from aboard import system
from aboard.executors.base import (
    ADDRESS,
    PAYLOAD,
    PYTHON,
    Address,
    Batch,
    CommandState,
    EngineReport,
    Executor,
    ExecutorError,
    Found,
    Handle,
    Spec,
    Status,
    TaskState,
    TaskStatus,
    here,
    is_here,
)
from aboard.executors.queue import Device, Ended, Queue, QueueBatches, Runner, Unit
from aboard.executors.start import (
    Addresses,
    Start,
    describe_exit,
    last_output,
    read_json,
    why,
)
from aboard.runs.units import format_memory
from aboard.system import Process, write_private

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
    stop_command = "kill {pid}"

    def open(self) -> None:
        # An exit code can be read only once: the thread that reads it also records it.
        self._fetching = threading.Lock()
        self._addresses = Addresses()

    def start(self, spec: Spec) -> Handle:
        from aboard.web.tokens import TokenError

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
                f"Stop it with: {self.how_to_stop(handle)}"
            ) from error

    def logs(
        self, handle: Handle, *, tail: int | None = None, follow: bool = False
    ) -> Iterator[bytes]:
        started = _Started(handle)
        return started.read_log(tail=tail, is_running=started.is_running if follow else None)

    def address(self, handle: Handle) -> Address | None:
        """Return the address of a running process; later another may have its port."""
        from aboard.web.tokens import TokenError

        started = _Started(handle)
        try:
            running = started.is_running()
            known = self._addresses.get(started, started.address) if running else None
        except (OSError, TokenError) as error:
            raise ExecutorError(
                f"the address of process {started.pid} cannot be read: {why(error)}. "
                "Stop the board and start it again."
            ) from error
        if known is None:
            self._addresses.forget(started)
        else:
            self._addresses.note(started, known)
        return known

    def probe(self, profile: str = "") -> EngineReport:  # noqa: ARG002 - one machine
        free = {"cpus": str(os.cpu_count() or 1)}
        with suppress(OSError, ValueError):
            memory = os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
            free["free memory"] = format_memory(memory)
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
        self._addresses.forget(started)
        return ended_status or started.end(code, _reason(started, code))

    def _status_of_running(self, started: _Started, alive: list[Process]) -> Status:
        memory = sum(process.resident for process in alive)
        limit = started.memory
        if limit is not None and memory > limit:
            memory = system.proportional_memory(alive)
        if limit is not None and memory > limit:
            reason = f"used {format_memory(memory, limit)} of {format_memory(limit)} memory"
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


# The command gets the signals of the group; the shell ignores them and waits for its exit. The
# state file is created, empty, when the task begins, and gets the exit code at the end.
_KEEP = """
read -r word && [ "$word" = go ] || exit 125
state=$1 workdir=$2
shift 2
{ : >"$state"; } || exit 125
trap : TERM INT HUP QUIT USR1 USR2
(
  { echo 500 >/proc/self/oom_score_adj; } 2>/dev/null
  cd -- "$workdir" || exit 127
  exec "$@" </dev/null
)
code=$?
echo "$code" >"$state"
exit "$code"
"""
_NOT_BEGUN = 125


class ProcessBatches(QueueBatches):
    """Runs batches as processes of this machine."""

    name = "process"

    def check(self, batch: Batch) -> Mapping[str, Any]:
        if batch.image:
            raise ExecutorError(
                f"a process cannot use an image ({batch.image}). Submit the job to docker."
            )
        if not batch.workdir.is_dir():
            raise ExecutorError(f"{batch.workdir}: working directory not found. Create it.")
        return {"python": sys.executable}

    def variables(self, batch: Batch) -> Mapping[str, str]:  # noqa: ARG002
        return os.environ

    def preview(self, batch: Batch) -> str:
        self.find_devices_for(batch.resources)
        self.check(batch)
        first, *others = batch.command
        words = [sys.executable if first == PYTHON else first, *others]
        words.append(str(batch.directory / PAYLOAD))
        lines = [f"cd {shlex.quote(str(batch.workdir))}"]
        lines += [shlex.join([*words, str(number)]) for number in batch.numbers]
        return "\n".join(lines)

    @staticmethod
    def status_of(queue: Queue, number: int, unit: Unit, problem: str | None) -> TaskStatus:
        pid = str(unit[0])
        if problem is not None or _is_task_running(unit):
            return TaskStatus(TaskState.RUNNING, unit=pid)
        if (code := _task_code(queue, number)) is not None:
            return TaskStatus(TaskState.ENDED, code, describe_exit(code) if code < 0 else "", pid)
        # The next supervisor finds out whether it has begun at all.
        return TaskStatus(TaskState.RUNNING, reason="its queue is restarting", unit=pid)


class Processes(Runner):
    def __init__(self, queue: Queue, order: Mapping[str, Any]) -> None:
        super().__init__(queue, order)
        self._environment: dict[str, str] = json.loads(queue.environment.read_bytes())
        self._pipes: dict[int, int] = {}  # of tasks that wait to begin
        self._children: set[int] = set()
        self._ended: dict[int, Ended] = {}  # an exit code can be read only once
        self._descriptors: dict[int, int] = {}

    def prepare(self, number: int, devices: Sequence[Device]) -> Unit:
        first, *others = self.order["command"]
        words = [self.order["python"] if first == PYTHON else first, *others]
        words += [str(self.queue.payload), str(number)]
        state = self.queue.file(number, "state")
        state.unlink(missing_ok=True)
        variables = self._environment
        if devices:
            names = ",".join(device.name for device in devices)
            variables = {**variables, "CUDA_VISIBLE_DEVICES": names}
        reading, writing = os.pipe()
        try:
            pid = system.spawn(
                ["/bin/sh", "-c", _KEEP, _WAITING, str(state), self.order["workdir"], *words],
                variables,
                stdin=reading,
                stdout=str(self.queue.log(number)),
                kept=[device.lock for device in devices],
            )
        except BaseException:
            os.close(writing)
            raise
        finally:
            os.close(reading)
        self._pipes[pid] = writing
        self._children.add(pid)
        return [pid, system.start_ticks(pid)]

    def begin(self, number: int, unit: Unit) -> None:  # noqa: ARG002
        writing = self._pipes.pop(unit[0])
        with suppress(BrokenPipeError):  # already killed
            os.write(writing, b"go\n")
        os.close(writing)
        with suppress(OSError, AttributeError):
            self._descriptors[unit[0]] = os.pidfd_open(unit[0])

    def discard(self, number: int, unit: Unit) -> None:  # noqa: ARG002
        pid = unit[0]
        os.close(self._pipes.pop(pid))
        self._children.discard(pid)
        os.waitpid(pid, 0)

    def ended(self, units: Mapping[int, Unit]) -> dict[int, Ended]:
        for number, unit in units.items():
            if number not in self._ended and not _is_task_running(unit):
                self._ended[number] = self._end(number, unit)
        return {number: end for number, end in self._ended.items() if number in units}

    def _end(self, number: int, unit: Unit) -> Ended:
        """Find out how a task ended, and kill what is left of its group."""
        pid = unit[0]
        with suppress(ProcessLookupError, PermissionError):
            if system.start_ticks(pid) in {0, unit[1]}:  # the group is still the task's
                os.killpg(pid, signal.SIGKILL)
        status = None
        if is_child := pid in self._children:
            self._children.discard(pid)
            status = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
        code = _task_code(self.queue, number)
        if code is None:
            code = status
        if code is None:
            if self.queue.file(number, "state").exists() or not self.queue.directory.exists():
                return Ended(None, "it exited with an unknown exit code")
            return Ended(None, began=False)
        if is_child and code == _NOT_BEGUN and not self.queue.file(number, "state").exists():
            return Ended(code, f"it could not begin: {last_output(self.queue.log(number))}")
        return Ended(code, describe_exit(code) if code < 0 else "")

    def signal(self, unit: Unit, number: signal.Signals) -> None:
        """Signal the group; SIGKILL also goes to processes that left it (torchrun's workers)."""
        if not _is_task_running(unit):
            return
        others = system.families(unit[:1])[unit[0]] if number == signal.SIGKILL else []
        with suppress(ProcessLookupError):
            os.killpg(unit[0], number)
        for other in others:
            if system.start_ticks(other.pid) == other.started:
                with suppress(ProcessLookupError, PermissionError):
                    os.kill(other.pid, number)

    def forget(self, number: int, unit: Unit) -> None:
        self._ended.pop(number, None)
        if (descriptor := self._descriptors.pop(unit[0], None)) is not None:
            os.close(descriptor)
        self.queue.file(number, "state").unlink(missing_ok=True)

    def wait(self, units: Mapping[int, Unit], seconds: float) -> None:
        poll = select.poll()
        for number, (pid, _) in units.items():
            if number in self._ended:  # but not recorded yet
                continue
            if pid not in self._descriptors:
                with suppress(OSError, AttributeError):
                    self._descriptors[pid] = os.pidfd_open(pid)
            if pid in self._descriptors:
                poll.register(self._descriptors[pid], select.POLLIN)
        poll.poll(seconds * 1000)

    def excess(self, units: Mapping[int, Unit]) -> dict[int, str]:
        if not (limit := self.resources.memory):
            return {}
        families = system.families([pid for pid, _ in units.values()])
        found: dict[int, str] = {}
        for number, (pid, _) in units.items():
            alive = [one for one in families[pid] if one.is_alive]
            used = sum(one.resident for one in alive)
            if used > limit:
                used = system.proportional_memory(alive)
            if used > limit:
                found[number] = (
                    f"used {format_memory(used, limit)} of {format_memory(limit)} memory"
                )
        return found


def _is_task_running(unit: Unit) -> bool:
    pid, started = unit
    return bool(system.start_ticks(pid) == started != 0)


def _task_code(queue: Queue, number: int) -> int | None:
    """Return the exit code from the state file of a task."""
    with suppress(FileNotFoundError, ValueError):
        code = int(queue.file(number, "state").read_text())
        return 128 - code if 128 < code <= 128 + signal.SIGRTMAX else code
    return None
