"""The contract of batches: how the tasks of a job are submitted, polled and cancelled.

A batch is one submission: a Slurm array, a Kubernetes Job, a queue of containers or processes. Its
tasks run the same command with different numbers. `jobs` decides what they train and which runs
they record. The contract of boards is `base`.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from importlib import import_module
from pathlib import Path
from types import MappingProxyType
from typing import TypeVar

from aboard.executors.base import Engine, Handle

PAYLOAD = "payload.json"
"""The file that every task reads; it contains secrets."""
_MOST_TASKS = 1_000_000

Numbers = TypeVar("Numbers", bound=Sequence[int])


class TaskState(StrEnum):
    """The state of a task.

    `WAITING` until the engine starts it; `ENDED` is final, whatever the cause. A requeued task is
    `WAITING` again. `UNKNOWN` means that the query failed, not the task.
    """

    WAITING = "waiting"
    RUNNING = "running"
    ENDED = "ended"
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True)
class TaskStatus:
    """The status of a task on its engine.

    `exit_code` is negative for a signal; None if unknown. `reason` says, in the engine's words, why
    the task waits, why the engine ended it, or why its state is unknown; it is empty if the task
    exited by itself. `unit` is the engine's name for the task: `2300_4`, a container, a pod.
    """

    state: TaskState
    exit_code: int | None = None
    reason: str = ""
    unit: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Resources:
    """The resources of each task: `memory` in bytes, `time` in seconds; None for the default.

    `nodes` and `tasks_per_node` are for a command that is started several times, once per rank.
    """

    gpus: int = 0
    cpus: float | None = None
    memory: int | None = None
    time: float | None = None
    nodes: int = 1
    tasks_per_node: int = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Batch:
    """What to submit.

    `job` and `attempt` together identify a submission: the failed tasks of a job may be submitted
    again. Each task of `numbers` runs `command`, whose first word is `base.PYTHON`, followed by the
    path of the payload and its number. The payload is the input of the tasks, including secrets; it
    is stored in files, or a Secret, that only this user can read.

    `directory` is on this machine, for the files of this submission only, and outlives it. Tasks
    start in `workdir`. They see the local paths in `writes`, `reads` and `credential_files` under
    the same paths. At most `parallel` tasks run at a time. `outputs` has a directory in a bucket
    for each task, if it logs to the executor's `log_directory` below that.
    """

    job: str
    numbers: tuple[int, ...]
    command: tuple[str, ...]
    payload: bytes = field(repr=False)
    directory: Path
    workdir: Path
    attempt: int = 1
    profile: str = ""
    resources: Resources = field(default_factory=Resources)
    image: str = ""
    parallel: int | None = None
    writes: tuple[Path, ...] = ()
    reads: tuple[Path, ...] = ()
    credential_files: tuple[Path, ...] = ()
    outputs: Mapping[int, str] = field(default_factory=dict)

    @property
    def name(self) -> str:
        """The name of this submission on the engine."""
        return f"aboard-{self.job}-{self.attempt}"


class BatchExecutor(Engine):
    """An engine that runs batches.

    Like an `Executor` it need not store anything: handles are plain JSON, and may come from another
    process. For causes outside the program, methods raise only `ExecutorError`; `tasks` raises
    nothing. Other users may have written a handle, with any content: never send credentials to an
    address in it. Methods are safe to call from several threads.
    """

    shares_files = True
    """Whether tasks see the submitter's files and environment, so that functions can be sent."""
    log_directory = ""
    """The directory of a task's logs, below its output directory."""

    @abstractmethod
    def submit(self, batch: Batch) -> Handle:
        """Submit all tasks, without waiting until they start.

        A caller that was interrupted before it stored the handle calls again with the same job and
        attempt, and gets the handle of the same submission: no task runs twice.

        Raises:
            ExecutorError: the engine rejected it, or does not answer. Nothing is left behind.
        """

    @abstractmethod
    def preview(self, batch: Batch) -> str:
        """Return what would be submitted: a script, a manifest. The engine is not contacted."""

    @abstractmethod
    def tasks(self, handles: Mapping[str, Handle]) -> dict[str, dict[int, TaskStatus]]:
        """Return the status of each task by its number, under the key of its handle.

        Makes one query for all handles of a connection. `ENDED` is repeated at every call, until
        `release`. A task that the engine no longer knows is `ENDED` without an exit code.
        """

    @abstractmethod
    def cancel(
        self, handle: Handle, numbers: Collection[int] | None = None, *, now: bool = False
    ) -> None:
        """Cancel some tasks, or all, without waiting until they have ended.

        Running tasks get SIGTERM and the engine's grace period, or none with `now`.
        """

    @abstractmethod
    def logs(
        self, handle: Handle, number: int, *, tail: int | None = None, follow: bool = False
    ) -> Iterator[bytes]:
        """Yield the standard output and error of a task; see `Executor.logs`.

        The run records the same, except for output before it began.
        """

    @abstractmethod
    def release(self, handle: Handle) -> None:
        """Remove what is left of a batch on the engine, after all its tasks have ended."""


def format_ranges(numbers: Iterable[int]) -> str:
    """Format ascending numbers as `1-3,7`."""
    parts: list[list[int]] = []
    for number in numbers:
        if parts and number == parts[-1][-1] + 1:
            parts[-1][1:] = [number]
        else:
            parts.append([number])
    return ",".join("-".join(map(str, part)) for part in parts)


def parse_ranges(text: str) -> list[int]:
    """Parse `1-3,7`; raise `ValueError` if it is invalid, or longer than any job."""
    found: list[int] = []
    for part in filter(None, text.split(",")):
        first, _, last = part.partition("-")
        found += bounded(range(int(first), int(last or first) + 1))
        bounded(found)
    return found


def bounded(numbers: Numbers) -> Numbers:
    """Return the numbers; raise `ValueError` for too many: any user may have written them."""
    if len(numbers) > _MOST_TASKS:
        raise ValueError(f"more than {_MOST_TASKS:,} tasks")
    return numbers


BATCHES: Mapping[str, str] = MappingProxyType(
    {
        "process": "ProcessBatches",
        "docker": "DockerBatches",
        "slurm": "SlurmBatches",
        "kubernetes": "KubernetesBatches",
        "vertex": "VertexBatches",
    }
)
"""The class for batches on each engine."""
IDENTITIES: Mapping[str, str] = MappingProxyType({"vertex": "gs"})
"""Engines whose tasks have their own identity for a storage, with the scheme of its URIs."""


def batch_executor(engine: str) -> type[BatchExecutor]:
    module = import_module(f"aboard.executors.{engine}.batch")
    kind: type[BatchExecutor] = getattr(module, BATCHES[engine])
    return kind
