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
import subprocess
import sys
import time
from abc import abstractmethod
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager, suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, NamedTuple

from aboard import system
from aboard.executors.base import ENVIRONMENT, GRACE, ExecutorError, Handle, here, is_here
from aboard.executors.batch import (
    PAYLOAD,
    Batch,
    BatchExecutor,
    Resources,
    TaskState,
    TaskStatus,
    format_ranges,
    parse_ranges,
)
from aboard.executors.start import amount, last_output, read_json, read_log, why
from aboard.system import cache_place, write_private

RESTARTED = "the machine was restarted"
_FOLLOW_SECONDS = 0.5
PROBLEM_BYTES = 1024
_SUPERVISE = "from aboard.executors.supervisor import main; main()"
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
        write_private(self.supervisor_file, " " * PROBLEM_BYTES)
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


class Appender:
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


def find_devices(environment: Mapping[str, str] = os.environ) -> dict[str, str]:
    """Return the GPUs that tasks may use: names for CUDA, and names that all jobs share."""
    given = environment.get("CUDA_VISIBLE_DEVICES")
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
        devices = find_devices() if resources.gpus else {}
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
                found[number] = TaskStatus(TaskState.ENDED, None, RESTARTED, _unit(start[0]))
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
                closing(Appender(queue.cancelled_file)) as cancelled,
            ):
                cancelled.append([[chosen, now]])
            queue.supervise()
        except OSError as error:
            raise ExecutorError(
                f"{queue.directory}: job {handle['job']} cannot be stopped: {why(error)}. "
                "Check that you may write there and start processes."
            ) from error

    def logs(
        self, handle: Handle, number: int, *, tail: int | None = None, follow: bool = False
    ) -> Iterator[bytes]:
        queue = _queue(handle)
        checked_at, running = 0.0, follow

        def is_running() -> bool:
            nonlocal checked_at, running
            if running and time.monotonic() - checked_at >= _FOLLOW_SECONDS:
                checked_at = time.monotonic()
                status = self.tasks({"one": handle})["one"].get(number)
                running = status is not None and status.state is not TaskState.ENDED
            return running

        while follow and not queue.log(number).exists() and is_running():
            time.sleep(_FOLLOW_SECONDS)
            yield b""
        yield from read_log(queue.log(number), tail=tail, follow=follow, is_running=is_running)

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
            "Ask for fewer."
        )
    if resources.memory and resources.memory > _memory():
        raise ExecutorError(
            f"each member requests {amount(resources.memory, resources.memory)} of memory, "
            f"but this machine has {amount(int(_memory()), int(_memory()))}. Ask for less."
        )
    if resources.gpus > len(devices):
        raise ExecutorError(
            f"each member requests {resources.gpus} GPUs, but CUDA_VISIBLE_DEVICES and "
            f"nvidia-smi -L show {len(devices)}. Ask for fewer."
        )
