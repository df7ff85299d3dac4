"""A queue of tasks on this machine, for engines without a scheduler.

Submitting a batch starts a *supervisor*: a process that starts the tasks, a few at a time, and
records how they end. It outlives the submitter. The tasks outlive the supervisor: if it is killed,
they keep running, and the next call of any method starts another one, which adopts them. The
directory of a batch contains:

    payload.json, environment.json  the input of tasks, with secrets; deleted when all have ended
    queue.json                      the submission; written last
    journal                         a line of JSON for each start and each end of a task
    cancelled                       a line of JSON for each call of `cancel`
    supervisor                      its lock, and the problem that blocks it, if any
    supervisor.log                  its errors
    tasks/NUMBER.log                standard output and error of a task

A task begins only after its start is in the journal, on the disk, and its successor only after its
end is. So killing the supervisor never loses a task or runs one twice.
"""

from __future__ import annotations

import json
import math
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from abc import ABC, abstractmethod
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager, suppress
from dataclasses import asdict, dataclass
from importlib import import_module
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

from aboard import system
from aboard.executors.base import (
    ENVIRONMENT,
    GRACE,
    PAYLOAD,
    Batch,
    BatchExecutor,
    ExecutorError,
    Handle,
    Resources,
    TaskState,
    TaskStatus,
    format_ranges,
    here,
    is_here,
    parse_ranges,
)
from aboard.executors.start import last_output, read_json, read_log, why
from aboard.runs.units import format_duration, format_memory
from aboard.system import cache_place, write_private

_RESTARTED = "the machine was restarted"
_PROBLEM_BYTES = 1024
_SUPERVISE = "from aboard.executors.queue import supervise; supervise()"
_DETACH = '"$@" &'
_GPU = re.compile(r"GPU (\d+): .*\(UUID: ([^)]+)\)")

Unit = Any
"""Identifies a task for its engine, as JSON: a process, the name of a container."""


class Journal(NamedTuple):
    """The recorded starts and ends of tasks, by number."""

    boot: str
    starts: dict[int, list[Any]]  # the unit, the seconds since boot, the GPUs
    ends: dict[int, list[Any]]  # the exit code, the reason

    @property
    def running(self) -> list[int]:
        return [number for number in self.starts if number not in self.ends]


@dataclass(frozen=True, slots=True)
class Queue:
    """The files of a batch."""

    directory: Path

    @property
    def payload(self) -> Path:
        return self.directory / PAYLOAD

    @property
    def environment(self) -> Path:
        return self.directory / ENVIRONMENT

    @property
    def journal_file(self) -> Path:
        return self.directory / "journal"

    @property
    def cancelled_file(self) -> Path:
        return self.directory / "cancelled"

    @property
    def supervisor_file(self) -> Path:
        return self.directory / "supervisor"

    def file(self, number: int, kind: str) -> Path:
        return self.directory / "tasks" / f"{number}.{kind}"

    def log(self, number: int) -> Path:
        return self.file(number, "log")

    def order(self) -> dict[str, Any] | None:
        """Return the submission."""
        order: dict[str, Any] | None = read_json(self.directory / "queue.json")
        return order

    def create(self, order: Mapping[str, Any], payload: bytes, environment: str) -> None:
        (self.directory / "tasks").mkdir(mode=0o700, exist_ok=True)
        write_private(self.payload, payload.decode())
        write_private(self.environment, environment)
        # Of fixed size, so that a problem can be recorded on a full disk.
        write_private(self.supervisor_file, " " * _PROBLEM_BYTES)
        for file in (self.journal_file, self.cancelled_file):
            write_private(file, "")
        write_private(self.directory / "queue.json", json.dumps(order))

    def remove(self) -> None:
        """Remove what `create` made, but not the directory itself."""
        for name in ("queue.json", "journal", "cancelled", "supervisor", "supervisor.log"):
            (self.directory / name).unlink(missing_ok=True)
        self.forget_secrets()
        shutil.rmtree(self.directory / "tasks", ignore_errors=True)

    def forget_secrets(self) -> None:
        for file in (self.payload, self.environment):
            file.unlink(missing_ok=True)

    def journal(self) -> Journal:
        boot: str = ""
        starts: dict[int, list[Any]] = {}
        ends: dict[int, list[Any]] = {}
        for what, one, *others in read_lines(self.journal_file):
            if what == "end":
                ends[one] = others
            elif what == "start":
                starts[one] = others
            elif what == "again":
                starts.pop(one, None)
            else:
                boot = one
        return Journal(boot, starts, ends)

    # The supervisor.

    def problem(self) -> str:
        """Return the problem that blocks the supervisor, if any."""
        with suppress(OSError), system.open_regular(self.supervisor_file) as file:
            return file.read().decode().strip()
        return ""

    def supervise(self) -> bool:
        """Start a supervisor unless one is running; return whether one was.

        Raises:
            PermissionError: none is running, and another user submitted the batch or could have
                changed it, so this user must not run it.
        """
        with self._lock() as lock:
            if lock is None:
                return True
            place = self.directory.stat()
            if place.st_uid != os.geteuid() or place.st_mode & 0o022:
                raise PermissionError(1, "it waits for the user who submitted it")
            words = [sys.executable, "-P", "-c", _SUPERVISE, str(self.directory), str(lock)]
            with open(os.devnull, "rb") as nothing:  # noqa: PTH123
                pid = system.spawn(  # through a shell, so that init reaps it
                    ["/bin/sh", "-c", _DETACH, "sh", *words],
                    os.environ,
                    stdin=nothing.fileno(),
                    stdout=str(self.directory / "supervisor.log"),
                    kept=[lock],
                )
            with suppress(ChildProcessError):  # if SIGCHLD is ignored
                os.waitpid(pid, 0)
            return False

    @contextmanager
    def _lock(self) -> Iterator[int | None]:
        """Hold the supervisor's lock; yield None if another process has it."""
        descriptor = os.open(self.supervisor_file, os.O_RDWR | os.O_CLOEXEC)
        try:
            yield descriptor if system.try_lock(descriptor) else None
        finally:
            os.close(descriptor)


def read_lines(path: Path) -> list[Any]:
    """Return the lines of a journal, without an incomplete last one."""
    with system.open_regular(path) as file:
        content = file.read()
    whole = content[: content.rfind(b"\n") + 1].strip()
    try:
        lines: list[Any] = json.loads(b"[%b]" % whole.replace(b"\n", b","))
    except ValueError:  # damaged, for example by a power failure
        lines = []
        for line in whole.split(b"\n"):
            with suppress(ValueError):
                lines.append(json.loads(line))
    return [line for line in lines if isinstance(line, list) and len(line) >= 2]


class _Appender:
    """Appends lines to a file, all or none, and waits until they are on the disk."""

    def __init__(self, path: Path) -> None:
        self._file = os.open(path, os.O_RDWR | os.O_APPEND | os.O_CLOEXEC)
        content = path.read_bytes()
        os.ftruncate(self._file, content.rfind(b"\n") + 1)

    def close(self) -> None:
        os.close(self._file)

    def exists(self) -> bool:
        return os.fstat(self._file).st_nlink > 0

    def append(self, lines: Sequence[Any]) -> None:
        if not lines:
            return
        text = "".join(f"{json.dumps(line, separators=(',', ':'))}\n" for line in lines).encode()
        size = os.fstat(self._file).st_size
        try:
            if left := len(text) - os.write(self._file, text):
                os.write(self._file, text[-left:])  # raises the error
            os.fdatasync(self._file)
        except OSError:
            with suppress(OSError):
                os.ftruncate(self._file, size)
            raise


def _find_devices() -> dict[str, str]:
    """Return the GPUs that tasks may use: names for CUDA, and names that all jobs share."""
    given = os.environ.get("CUDA_VISIBLE_DEVICES")
    known: dict[str, str] = {}
    with suppress(OSError, subprocess.SubprocessError):
        listed = subprocess.run(
            ["nvidia-smi", "-L"], capture_output=True, text=True, check=True, timeout=30
        )
        known = dict(_GPU.findall(listed.stdout))
    if given is None:
        return {one: one for one in known.values()}
    names = [word.strip() for word in given.split(",") if word.strip() not in {"", "-1"}]
    return {name: known.get(name, name) for name in names}


class QueueBatches(BatchExecutor):
    """Runs batches with a queue. An engine defines the abstract methods and a `Runner`.

    By default, as many tasks run at a time as fit into the GPUs, CPUs and memory of the machine; a
    task that requests none of them counts as one CPU.
    """

    grace = GRACE

    def check(self, batch: Batch) -> Mapping[str, Any]:  # noqa: ARG002
        """Check that the engine can run a batch; return settings for its runner.

        Raises:
            ExecutorError: it cannot.
        """
        return {}

    @abstractmethod
    def variables(self, batch: Batch) -> Mapping[str, str]:
        """Return the environment of tasks; it may contain secrets."""

    def submit(self, batch: Batch) -> Handle:
        queue = Queue(batch.directory.absolute())
        try:
            order = self._order(queue, batch) if queue.order() is None else {}
            queue.directory.mkdir(mode=0o700, parents=True, exist_ok=True)
            queue.directory.chmod(0o700)  # the caller may have created it
            with system.file_lock(queue.directory / "lock"):
                return self._submit(queue, batch, order)
        except OSError as error:
            raise ExecutorError(
                f"{queue.directory}: job {batch.job} cannot be submitted: {why(error)}. "
                "Check that you may write there and start processes."
            ) from error

    def _submit(self, queue: Queue, batch: Batch, order: Mapping[str, Any]) -> Handle:
        if (before := queue.order()) is not None:
            handle: Handle = before["handle"]
            if not _is_here(handle):
                raise ExecutorError(_elsewhere(handle))
            if len(queue.journal().ends) < len(before["numbers"]):
                queue.supervise()
            return handle
        queue.remove()  # left by an interrupted submission
        try:
            queue.create(order, batch.payload, json.dumps(dict(self.variables(batch))))
            queue.supervise()
        except BaseException:
            queue.remove()
            raise
        return dict(order["handle"])

    def _order(self, queue: Queue, batch: Batch) -> dict[str, Any]:
        resources = batch.resources
        devices = self.find_devices_for(resources)
        checked = self.check(batch)
        handle = {
            "job": batch.job,
            "attempt": batch.attempt,
            "directory": str(queue.directory),
            "numbers": format_ranges(batch.numbers),
            **here(),
            "pids": system.pid_namespace(),
        }
        return {
            "engine": self.name,
            "handle": handle,
            "name": batch.name,
            "numbers": batch.numbers,
            "command": batch.command,
            "workdir": str(batch.workdir),
            "resources": asdict(resources),
            "parallel": batch.parallel or _default_parallel(resources, len(devices)),
            "devices": devices,
            "locks": str(cache_place().directory / "gpus"),  # shared by all jobs of this user
            "grace": self.grace,
            **checked,
        }

    def find_devices_for(self, resources: Resources) -> dict[str, str]:
        """Return the GPUs of this machine, if any are needed.

        Raises:
            ExecutorError: a task needs more than this machine has.
        """
        _check_one_machine(self.name, resources)
        devices = _find_devices() if resources.gpus else {}
        _check_available(resources, devices)
        return devices

    def tasks(self, handles: Mapping[str, Handle]) -> dict[str, dict[int, TaskStatus]]:
        found = {}
        for key, handle in handles.items():
            try:
                found[key] = self._statuses(_queue(handle), handle)
            except (ExecutorError, OSError) as error:
                found[key] = _each(handle, TaskState.UNKNOWN, why(error))
            except (ValueError, TypeError, LookupError) as error:
                reason = f"{handle['directory']}: the files are damaged: {error!r}"
                found[key] = _each(handle, TaskState.UNKNOWN, reason)
        return found

    def _statuses(self, queue: Queue, handle: Handle) -> dict[int, TaskStatus]:
        order = queue.order()
        if order is None and not _is_here(handle):
            return _each(handle, TaskState.UNKNOWN, _elsewhere(handle))
        if order is None:
            return _each(handle, TaskState.ENDED, f"{queue.directory}: the files were removed")
        journal, numbers = queue.journal(), order["numbers"]
        found = _ended(journal)
        left = [number for number in numbers if number not in found]
        if not left:
            return found
        if not _is_here(handle):
            return found | dict.fromkeys(
                left, TaskStatus(TaskState.UNKNOWN, reason=_elsewhere(handle))
            )
        problem, is_supervised = queue.problem(), False
        try:
            is_supervised = queue.supervise()
        except OSError as error:
            problem = f"its queue is blocked: {why(error)}"
        if not is_supervised:
            problem = problem or last_output(queue.directory / "supervisor.log")
        waits, most = problem, order["parallel"]
        if not waits and len(journal.running) >= most:
            waits = f"at most {most} of this job {'runs' if most == 1 else 'run'} at a time"
        waiting = TaskStatus(TaskState.WAITING, reason=waits)
        for number in left:
            start = journal.starts.get(number)
            if start is None:
                found[number] = waiting
            elif journal.boot != system.boot_id():
                found[number] = TaskStatus(TaskState.ENDED, None, _RESTARTED, _unit(start[0]))
            else:
                found[number] = self.status_of(
                    queue, number, start[0], problem if is_supervised else None
                )
        return found

    @staticmethod
    @abstractmethod
    def status_of(queue: Queue, number: int, unit: Unit, problem: str | None) -> TaskStatus:
        """Return the status of a task whose end is not in the journal.

        `problem` is what blocks the supervisor, if anything; None if no supervisor is running.
        """

    def cancel(
        self, handle: Handle, numbers: Collection[int] | None = None, *, now: bool = False
    ) -> None:
        queue = _queue(handle)
        try:
            order = queue.order()
            if order is None or len(queue.journal().ends) == len(order["numbers"]):
                return
            if not _is_here(handle):
                raise ExecutorError(_elsewhere(handle))
            chosen = None if numbers is None else sorted(numbers)
            with (
                system.file_lock(queue.directory / "lock"),
                closing(_Appender(queue.cancelled_file)) as cancelled,
            ):
                cancelled.append([[chosen, now]])
            queue.supervise()
        except OSError as error:
            raise ExecutorError(
                f"{queue.directory}: job {handle['job']} cannot be stopped: {why(error)}. "
                "Check that you may write there and start processes."
            ) from error

    def logs(self, handle: Handle, number: int, *, tail: int | None = None) -> Iterator[bytes]:
        yield from read_log(_queue(handle).log(number), tail=tail)

    def release(self, handle: Handle) -> None:
        queue = _queue(handle)
        with suppress(OSError):
            order = queue.order()
            if order is None or len(queue.journal().ends) == len(order["numbers"]):
                queue.forget_secrets()


def _queue(handle: Handle) -> Queue:
    try:
        return Queue(Path(handle["directory"]))
    except (KeyError, TypeError) as error:
        raise ExecutorError(f"not the handle of a job: {error!r}. Submit the job again.") from error


def _is_here(handle: Handle) -> bool:
    """Return whether a batch was submitted here: same machine, same PID namespace."""
    is_same_boot = handle.get("boot") == system.boot_id()
    return is_here(handle) and (not is_same_boot or handle.get("pids") == system.pid_namespace())


def _elsewhere(handle: Handle) -> str:
    return f"it runs on {handle.get('host')}; use that machine"


def _each(handle: Handle, state: TaskState, reason: str) -> dict[int, TaskStatus]:
    numbers: list[int] = []
    with suppress(ValueError):
        numbers = parse_ranges(str(handle.get("numbers", "")))
    return dict.fromkeys(numbers, TaskStatus(state, reason=reason))


def _ended(journal: Journal) -> dict[int, TaskStatus]:
    starts, none = journal.starts, [""]
    return {
        number: TaskStatus(TaskState.ENDED, code, reason, _unit(starts.get(number, none)[0]))
        for number, (code, reason) in journal.ends.items()
    }


def _unit(unit: Unit) -> str:
    return str(unit[0] if isinstance(unit, list) else unit)


def _check_one_machine(engine: str, resources: Resources) -> None:
    if resources.nodes > 1 or resources.tasks_per_node > 1:
        raise ExecutorError(
            f"{engine} starts each member once, on this machine. Start its ranks with a launcher: "
            "torchrun --nproc-per-node N"
        )


def _cores() -> int:
    try:
        return len(os.sched_getaffinity(0))
    except AttributeError:
        return os.cpu_count() or 1


def _memory() -> float:
    try:
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (OSError, ValueError):
        return math.inf


def _default_parallel(resources: Resources, gpus: int) -> int:
    limits: list[float] = []
    if resources.gpus:
        limits.append(gpus // resources.gpus)
    if resources.cpus or not resources.gpus:
        limits.append(_cores() // (resources.cpus or 1))
    if resources.memory:
        limits.append(_memory() // resources.memory)
    return max(1, int(min(limits)))


def _check_available(resources: Resources, devices: Mapping[str, str]) -> None:
    if resources.cpus and resources.cpus > _cores():
        raise ExecutorError(
            f"each member requests {resources.cpus:g} CPUs, but this machine has {_cores()}. "
            "Request fewer."
        )
    if resources.memory and resources.memory > _memory():
        raise ExecutorError(
            f"each member requests {format_memory(resources.memory)} of memory, "
            f"but this machine has {format_memory(_memory())}. Request less."
        )
    if resources.gpus > len(devices):
        raise ExecutorError(
            f"each member requests {resources.gpus} GPUs, but CUDA_VISIBLE_DEVICES and "
            f"nvidia-smi -L show {len(devices)}. Request fewer."
        )


_STOPPED = "it was stopped"
_TICK_SECONDS = 0.2  # between checks for cancellations and limits
_MEMORY_SECONDS = 1.0
_RETRY_SECONDS = 2.0  # after a full disk, or no answer from the engine
_RUNNERS: Mapping[str, tuple[str, str]] = MappingProxyType(
    {"process": ("process", "Processes"), "docker": ("docker.batch", "Containers")}
)


class Ended(NamedTuple):
    code: int | None
    reason: str = ""
    began: bool = True  # false if the supervisor was killed before the task began


class Device(NamedTuple):
    """A GPU that this process has locked."""

    name: str
    lock: int  # a descriptor


class Runner(ABC):
    """Runs the tasks of a queue on an engine, within the supervisor.

    Methods raise `ExecutorError` or `OSError` if the engine does not answer, and are then called
    again later.
    """

    def __init__(self, queue: Queue, order: Mapping[str, Any]) -> None:
        self.queue = queue
        self.order = order
        self.resources = Resources(**order["resources"])

    @abstractmethod
    def prepare(self, number: int, devices: Sequence[Device]) -> Unit:
        """Create a task that does not begin yet. If this process is killed, it never begins."""

    @abstractmethod
    def begin(self, number: int, unit: Unit) -> None:
        """Begin a task whose start is recorded; raise nothing: `ended` reports failures."""

    @abstractmethod
    def discard(self, number: int, unit: Unit) -> None:
        """Remove a prepared task that will not begin."""

    @abstractmethod
    def ended(self, units: Mapping[int, Unit]) -> dict[int, Ended]:
        """Return the tasks that have ended, including those that an earlier supervisor started."""

    @abstractmethod
    def signal(self, unit: Unit, number: signal.Signals) -> None:
        """Send a signal to a task and its child processes. It may have ended."""

    @abstractmethod
    def forget(self, number: int, unit: Unit) -> None:
        """Remove what is left of a task whose end is recorded."""

    @abstractmethod
    def wait(self, units: Mapping[int, Unit], seconds: float) -> None:
        """Wait until a task may have ended, at most this long."""

    def excess(self, units: Mapping[int, Unit]) -> dict[int, str]:  # noqa: ARG002
        """Return tasks over their memory limit, if the engine does not enforce it."""
        return {}

    def close(self) -> None:  # noqa: B027 - optional
        """Close connections."""


class Supervisor:
    """Starts the tasks of a queue, a few at a time, until all have ended."""

    def __init__(self, queue: Queue, order: Mapping[str, Any], runner: Runner) -> None:
        self.queue = queue
        self.runner = runner
        self.limit: float | None = order["resources"]["time"]
        self.grace: float = order["grace"]
        self.parallel: int = order["parallel"]
        self.gpus: int = order["resources"]["gpus"]
        self.devices: Mapping[str, str] = order["devices"]
        self._journal = _Appender(queue.journal_file)
        self._locks_at = Path(order["locks"])
        self._problem = queue.problem()
        self._cancelled_bytes = 0
        self._stops: dict[int | None, bool] = {}  # None for all; whether at once
        self._ending: dict[int, tuple[str, float]] = {}  # the reason, and when to kill it
        self._locks: dict[int, list[int]] = {}
        self._memory_checked = 0.0
        self._recover(order["numbers"])

    def _recover(self, numbers: Sequence[int]) -> None:
        """Adopt running tasks."""
        journal, boot = self.queue.journal(), system.boot_id()
        self.running = {number: journal.starts[number] for number in journal.running}
        self.waiting = [
            number
            for number in numbers
            if number not in self.running and number not in journal.ends
        ]
        self.waiting.reverse()
        if journal.boot != boot:
            lines = [["end", number, None, _RESTARTED] for number in self.running]
            self._journal.append([*lines, ["boot", boot]])
            for number, (unit, *_) in self.running.items():
                with suppress(ExecutorError, OSError):
                    self.runner.forget(number, unit)
            self.running.clear()
        for number, (_, _, names) in self.running.items():
            self._locks[number] = [one.lock for one in self._lock(names)]

    def run(self) -> None:
        while self.waiting or self.running:
            if not self._journal.exists():  # deleted: these tasks can no longer be found
                self._stops[None] = self._stops.get(None, False)
                self.waiting.clear()
            pause = _TICK_SECONDS
            try:
                self._report(self._step())
            except (ExecutorError, OSError) as error:
                self._report(why(error))
                pause = _RETRY_SECONDS
            if self.waiting or self.running:
                self.runner.wait(self._units(), pause)
        self._journal.close()
        with suppress(OSError):
            self.queue.forget_secrets()

    def _step(self) -> str:
        """Stop, record and start tasks; return what tasks wait for besides this queue."""
        self._read_cancellations()
        self._stop_some()
        self._record_ends()
        return self._start_some()

    def _units(self) -> dict[int, Unit]:
        return {number: start[0] for number, start in self.running.items()}

    # Ends of tasks.

    def _read_cancellations(self) -> None:
        with suppress(FileNotFoundError):
            size = self.queue.cancelled_file.stat().st_size
            if size == self._cancelled_bytes:
                return
            for numbers, now in read_lines(self.queue.cancelled_file):
                for number in [None] if numbers is None else numbers:
                    self._stops[number] = now or self._stops.get(number, False)
            self._cancelled_bytes = size

    def _stop_some(self) -> None:
        """Send signals to the tasks that were cancelled or have reached a limit."""
        now = time.monotonic()
        for number, (unit, at, _) in self.running.items():
            stop = self._stops.get(number, self._stops.get(None))
            limit = self.limit
            if stop is None and limit is not None and system.seconds_since_boot() >= at + limit:
                reason = f"it reached its time limit of {format_duration(limit)}"
                self._stop(number, unit, reason)
            elif stop is not None:
                self._stop(number, unit, _STOPPED, now=stop or bool(self._stops.get(None)))
            if number in self._ending and now >= self._ending[number][1]:
                self.runner.signal(unit, signal.SIGKILL)
        if now - self._memory_checked >= _MEMORY_SECONDS:
            self._memory_checked = now
            for number, reason in self.runner.excess(self._units()).items():
                self._stop(number, self.running[number][0], reason, now=True)

    def _stop(self, number: int, unit: Unit, reason: str, *, now: bool = False) -> None:
        before = self._ending.get(number)
        if before is None:
            self.runner.signal(unit, signal.SIGKILL if now else signal.SIGTERM)
            self._ending[number] = reason, 0.0 if now else time.monotonic() + self.grace
        elif now and before[1]:
            self._ending[number] = before[0], 0.0

    def _record_ends(self) -> None:
        lines: list[list[Any]] = []
        ends = self.runner.ended(self._units())
        for number, end in ends.items():
            if not end.began:
                lines.append(["again", number])
                continue
            reason = self._ending[number][0] if number in self._ending else end.reason
            lines.append(["end", number, end.code, reason])
        gone: set[int] = set()
        if self._stops:
            gone = {one for one in self.waiting if one in self._stops or None in self._stops}
        lines += [["end", number, None, _STOPPED] for number in sorted(gone)]
        if not lines:
            return
        self._journal.append(lines)
        self.waiting = [number for number in self.waiting if number not in gone]
        for number, end in ends.items():
            unit, *_ = self.running.pop(number)
            if not end.began:
                self.waiting.append(number)
            self._ending.pop(number, None)
            for lock in self._locks.pop(number, ()):
                os.close(lock)
            with suppress(ExecutorError, OSError):
                self.runner.forget(number, unit)

    # Starts of tasks.

    def _start_some(self) -> str:
        """Start as many tasks as may run; they begin together when all starts are recorded."""
        waits_for = ""
        prepared: dict[int, list[Any]] = {}
        locked: dict[int, list[Device]] = {}
        try:
            while self.waiting and len(self.running) + len(prepared) < self.parallel:
                number = self.waiting[-1]
                devices = self._lock(self.devices, self.gpus)
                if len(devices) < self.gpus:
                    _unlock(devices)
                    waits_for = "it waits for a GPU: other jobs use all of them"
                    break
                locked[number] = devices
                for device in devices:  # see `_is_used`
                    os.ftruncate(device.lock, 0)
                    os.pwrite(device.lock, f"{self.queue.directory}:{number}".encode(), 0)
                unit = self.runner.prepare(number, devices)
                names = [one.name for one in devices]
                prepared[number] = [unit, system.seconds_since_boot(), names]
                self.waiting.pop()
            if prepared:
                self._journal.append([["start", one, *what] for one, what in prepared.items()])
        except BaseException:
            for number, (unit, *_) in reversed(prepared.items()):
                self.waiting.append(number)
                with suppress(ExecutorError, OSError):
                    self.runner.discard(number, unit)
            for devices in locked.values():
                _unlock(devices)
            raise
        self.running |= prepared
        for number, (unit, *_) in prepared.items():
            self._locks[number] = [one.lock for one in locked[number]]
            self.runner.begin(number, unit)
        return waits_for

    def _lock(self, names: Iterable[str], most: int | None = None) -> list[Device]:
        """Lock GPUs that no other job uses, up to a number of them."""
        found: list[Device] = []
        for name in names:
            if len(found) == most:
                break
            self._locks_at.mkdir(mode=0o700, parents=True, exist_ok=True)
            path = self._locks_at / re.sub(r"[^\w.-]", "_", self.devices[name])
            lock = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
            if system.try_lock(lock) and not self._is_used(lock):
                found.append(Device(name, lock))
            else:
                os.close(lock)
        return found

    def _is_used(self, lock: int) -> bool:
        """Return whether a GPU is in use although it is not locked.

        A container cannot hold the lock, so the lock is free if the supervisor of another queue
        was killed. In that case, start a supervisor for that queue.
        """
        directory, _, number = os.pread(lock, 4096, 0).decode().rpartition(":")
        if directory in {"", str(self.queue.directory)}:
            return False
        other = Queue(Path(directory))
        try:
            journal = other.journal()
        except OSError:  # its files were removed
            return False
        if journal.boot != system.boot_id() or int(number) not in journal.running:
            return False
        with suppress(OSError):
            other.supervise()
        return True

    def _report(self, problem: str) -> None:
        if problem == self._problem:
            return
        self._problem = problem
        text = problem.encode()[: _PROBLEM_BYTES - 1].decode(errors="ignore")
        with suppress(OSError), self.queue.supervisor_file.open("r+b") as file:
            file.write(text.encode().ljust(_PROBLEM_BYTES))


def _unlock(devices: Sequence[Device]) -> None:
    for device in devices:
        os.close(device.lock)


def supervise() -> None:
    """Run the tasks of a queue until all have ended: the main function of a supervisor."""
    directory, lock = Path(sys.argv[1]), int(sys.argv[2])
    os.set_inheritable(lock, False)
    os.chdir("/")
    queue = Queue(directory)
    order = queue.order()
    if order is None or len(queue.journal().ends) == len(order["numbers"]):
        return
    module, name = _RUNNERS[order["engine"]]
    runner: Runner = getattr(import_module(f"aboard.executors.{module}"), name)(queue, order)
    try:
        Supervisor(queue, order, runner).run()
    finally:
        runner.close()
