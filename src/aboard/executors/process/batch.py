"""The tasks of a job as processes of the submitter's machine and user.

Each has its own process group, whose leader is a small shell: it waits until the start of the task
is recorded, runs the command, and writes the exit code to a file in case the supervisor was killed
meanwhile. It also holds the locks of the task's GPUs. A task has the environment of the submitter.

Memory is measured as for boards, see `boards`. CPUs only limit how many tasks run at a time.
"""

from __future__ import annotations

import json
import os
import select
import shlex
import signal
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any

from aboard import system
from aboard.executors.base import PYTHON, ExecutorError
from aboard.executors.batch import PAYLOAD, Batch, TaskState, TaskStatus
from aboard.executors.queue import Queue, QueueBatches, Unit
from aboard.executors.start import amount, describe_exit, last_output
from aboard.executors.supervisor import Device, Ended, Runner

_WAITING = "aboard-waits-to-start"
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
        if problem is not None or _is_running(unit):
            return TaskStatus(TaskState.RUNNING, unit=pid)
        if (code := _code(queue, number)) is not None:
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
            if number not in self._ended and not _is_running(unit):
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
        code = _code(self.queue, number)
        if code is None:
            code = status
        if code is None:
            if self.queue.file(number, "state").exists() or not self.queue.directory.exists():
                return Ended(None, "it exited unobserved")
            return Ended(None, began=False)
        if is_child and code == _NOT_BEGUN and not self.queue.file(number, "state").exists():
            return Ended(code, f"it could not begin: {last_output(self.queue.log(number))}")
        return Ended(code, describe_exit(code) if code < 0 else "")

    def signal(self, unit: Unit, number: signal.Signals) -> None:
        """Signal the group; SIGKILL also goes to processes that left it (torchrun's workers)."""
        if not _is_running(unit):
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
                found[number] = f"used {amount(used, limit)} of {amount(limit, limit)} memory"
        return found


def _is_running(unit: Unit) -> bool:
    pid, started = unit
    return bool(system.start_ticks(pid) == started != 0)


def _code(queue: Queue, number: int) -> int | None:
    """Return the exit code from the state file of a task."""
    with suppress(FileNotFoundError, ValueError):
        code = int(queue.file(number, "state").read_text())
        return 128 - code if 128 < code <= 128 + signal.SIGRTMAX else code
    return None
