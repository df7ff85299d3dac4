"""The process that runs the tasks of a `queue`, a few at a time, until all have ended."""

from __future__ import annotations

import os
import re
import signal
import sys
import time
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from importlib import import_module
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

from aboard import system
from aboard.executors.base import ExecutorError
from aboard.executors.batch import Resources
from aboard.executors.queue import PROBLEM_BYTES, RESTARTED, Appender, Queue, Unit, read_lines
from aboard.executors.start import why

_STOPPED = "it was stopped"
_TICK_SECONDS = 0.2  # between checks for cancellations and limits
_MEMORY_SECONDS = 1.0
_RETRY_SECONDS = 2.0  # after a full disk, or no answer from the engine
_RUNNERS: Mapping[str, str] = MappingProxyType({"process": "Processes", "docker": "Containers"})


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
        self._journal = Appender(queue.journal_file)
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
            lines = [["end", number, None, RESTARTED] for number in self.running]
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
            if stop is None and self._is_over(at):
                self._stop(number, unit, f"it reached its time limit of {self.limit:g} seconds")
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

    def _is_over(self, at: float) -> bool:
        return self.limit is not None and system.seconds_since_boot() >= at + self.limit

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
        text = problem.encode()[: PROBLEM_BYTES - 1].decode(errors="ignore")
        with suppress(OSError), self.queue.supervisor_file.open("r+b") as file:
            file.write(text.encode().ljust(PROBLEM_BYTES))


def _unlock(devices: Sequence[Device]) -> None:
    for device in devices:
        os.close(device.lock)


def main() -> None:
    directory, lock = Path(sys.argv[1]), int(sys.argv[2])
    os.set_inheritable(lock, False)
    os.chdir("/")
    queue = Queue(directory)
    order = queue.order()
    if order is None or len(queue.journal().ends) == len(order["numbers"]):
        return
    engine = order["engine"]
    module = import_module(f"aboard.executors.{engine}.batch")
    runner: Runner = getattr(module, _RUNNERS[engine])(queue, order)
    try:
        Supervisor(queue, order, runner).run()
    finally:
        runner.close()
