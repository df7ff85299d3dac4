"""The tasks of a job as processes of the submitter's machine and user.

Each is a process group of its own, whose leader is a small shell: it waits until the start of the
task is noted, starts the command, and leaves the exit code in a file for the case that its
supervisor was killed meanwhile. It also holds the locks of the task's GPUs. A task has the
environment of the submitter.

Memory is measured as for boards, see `boards`. CPUs only count for how many tasks run at a time.
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
from aboard.executors.start import amount, how_ended, last_words
from aboard.executors.supervisor import Device, Ended, Runner

_WAITING = "aboard-waits-to-start"
# What it starts gets signals of its group as usual; it waits for that one's end. The state file is
# empty from when the task has begun, and holds the exit code at its end.
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
                f"a process has no image, such as {batch.image}. Submit it to docker."
            )
        if not batch.workdir.is_dir():
            raise ExecutorError(f"there is no directory {batch.workdir} to run in. Create it.")
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
    def living(queue: Queue, number: int, unit: Unit, problem: str | None) -> TaskStatus:
        pid = str(unit[0])
        if problem is not None or _lives(unit):
            return TaskStatus(TaskState.RUNNING, unit=pid)
        if (code := _code(queue, number)) is not None:
            return TaskStatus(TaskState.ENDED, code, how_ended(code) if code < 0 else "", pid)
        # Whether it has begun at all is for the next supervisor to find out.
        return TaskStatus(TaskState.RUNNING, reason="its queue goes on after a kill", unit=pid)


class Processes(Runner):
    def __init__(self, queue: Queue, order: Mapping[str, Any]) -> None:
        super().__init__(queue, order)
        self._environment: dict[str, str] = json.loads(queue.environment.read_bytes())
        self._pipes: dict[int, int] = {}  # of tasks that wait to begin
        self._children: set[int] = set()
        self._ended: dict[int, Ended] = {}  # an exit code can be fetched once
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
        with suppress(BrokenPipeError):  # it was killed already
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
            if number not in self._ended and not _lives(unit):
                self._ended[number] = self._end(number, unit)
        return {number: end for number, end in self._ended.items() if number in units}

    def _end(self, number: int, unit: Unit) -> Ended:
        """Find out how a task ended, and end what it left in its group."""
        pid = unit[0]
        with suppress(ProcessLookupError, PermissionError):
            if system.start_ticks(pid) in {0, unit[1]}:  # the group is still that of the task
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
                return Ended(None, "it ended unobserved")
            return Ended(None, began=False)
        if is_child and code == _NOT_BEGUN and not self.queue.file(number, "state").exists():
            return Ended(code, f"it could not begin: {last_words(self.queue.log(number))}")
        return Ended(code, how_ended(code) if code < 0 else "")

    def signal(self, unit: Unit, number: signal.Signals) -> None:
        """Signal the group; SIGKILL also reaches what has left it, such as workers of torchrun."""
        if not _lives(unit):
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
            if number in self._ended:  # and could not be noted yet
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


def _lives(unit: Unit) -> bool:
    pid, started = unit
    return bool(system.start_ticks(pid) == started != 0)


def _code(queue: Queue, number: int) -> int | None:
    """Return the exit code that a task has left."""
    with suppress(FileNotFoundError, ValueError):
        code = int(queue.file(number, "state").read_text())
        return 128 - code if 128 < code <= 128 + signal.SIGRTMAX else code
    return None
