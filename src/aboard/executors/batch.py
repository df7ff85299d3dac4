"""The contract of batches: how the tasks of a job are given to an engine, watched and ended.

A batch is one submission: an array of Slurm's, a Job of Kubernetes, a queue of containers or of
processes. Its tasks run the same command with different numbers, and listen nowhere; what they
train, and which run they record, is left to `jobs`. Boards have a contract of their own, `base`.
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
"""The file that every task reads; it holds secrets."""
_MOST_TASKS = 1_000_000

Numbers = TypeVar("Numbers", bound=Sequence[int])


class TaskState(StrEnum):
    """How far a task has come.

    `WAITING` until the engine has started it, and `ENDED` for good, however it ended. A task that
    the engine puts back into its queue is `WAITING` again. `UNKNOWN` means that the query failed,
    never that the task did.
    """

    WAITING = "waiting"
    RUNNING = "running"
    ENDED = "ended"
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True)
class TaskStatus:
    """What an engine knows of a task.

    `exit_code` is minus the signal that ended it; None if the engine does not say. `reason` says,
    in the engine's words, why it waits, why the engine ended it, or why that is unknown; it is
    empty if the task ended by itself. `unit` is the engine's own name for the task, such as
    `2300_4`, a container or a pod.
    """

    state: TaskState
    exit_code: int | None = None
    reason: str = ""
    unit: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Resources:
    """What each task gets: `memory` in bytes, `time` in seconds; None leaves it to the engine.

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

    `job` and `attempt` together name a submission: the failed tasks of a job may be submitted
    again. Each task of `numbers` runs `command`, whose first word is `base.PYTHON`, followed by the
    path of the payload and its number. The payload has all that tasks need to know, secrets too:
    it goes through files, or a Secret, that only this user reads.

    `directory` is on this machine, for the files of this submission alone, and outlives it. Tasks
    start in `workdir`. They find the local paths in `writes`, `reads` and `credential_files` where
    they are here. At most `parallel` tasks run at a time. `outputs` has a directory in a bucket for
    each task, if what it logs goes to `log_directory` of the executor below it.
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

    Like an `Executor` it need not remember anything: it gets a handle, which went through JSON and
    may come from another process. Where the outside world is the cause, verbs raise
    `ExecutorError` with one line that says what is wrong, where, and what to do, and nothing else;
    `tasks` raises nothing. It also gets handles that other users may have written, with anything in
    them: it sends no credentials where they lead. Verbs may be called from several threads at once.
    """

    shares_files = True
    """Whether tasks see the submitter's files and environment, so that functions can be sent."""
    log_directory = ""
    """Where the engine looks for the logs of a task, below its output directory."""

    @abstractmethod
    def submit(self, batch: Batch) -> Handle:
        """Hand all tasks to the engine, and return before they have begun.

        A caller that was interrupted before it stored the handle calls again with the same job and
        attempt, and gets the handle of that submission: no task runs twice.

        Raises:
            ExecutorError: the engine refused it, or does not answer. Nothing is left behind.
        """

    @abstractmethod
    def preview(self, batch: Batch) -> str:
        """Return what the engine would be given: a script, a manifest. It is not asked."""

    @abstractmethod
    def tasks(self, handles: Mapping[str, Handle]) -> dict[str, dict[int, TaskStatus]]:
        """Return the status of each task by its number, under the key of its handle.

        One query for all handles of a connection. `ENDED` is repeated at every call, until
        `release`. What the engine has forgotten is `ENDED` without an exit code.
        """

    @abstractmethod
    def cancel(
        self, handle: Handle, numbers: Collection[int] | None = None, *, now: bool = False
    ) -> None:
        """End some tasks, or all, also those that wait; return before they have ended.

        Those that run get SIGTERM and the engine's time of grace, or none at all with `now`.
        """

    @abstractmethod
    def logs(
        self, handle: Handle, number: int, *, tail: int | None = None, follow: bool = False
    ) -> Iterator[bytes]:
        """Yield what a task wrote to both streams, in pieces; see `Executor.logs`.

        The run records the same; this one also has what was written before the run began.
        """

    @abstractmethod
    def release(self, handle: Handle) -> None:
        """Remove what a batch has left on the engine, once all its tasks have ended."""


def format_ranges(numbers: Iterable[int]) -> str:
    """Return numbers in their order as `1-3,7`."""
    parts: list[list[int]] = []
    for number in numbers:
        if parts and number == parts[-1][-1] + 1:
            parts[-1][1:] = [number]
        else:
            parts.append([number])
    return ",".join("-".join(map(str, part)) for part in parts)


def parse_ranges(text: str) -> list[int]:
    """Read `1-3,7`; raise `ValueError` for anything else, and for more than any job has."""
    found: list[int] = []
    for part in filter(None, text.split(",")):
        first, _, last = part.partition("-")
        found += bounded(range(int(first), int(last or first) + 1))
        bounded(found)
    return found


def bounded(numbers: Numbers) -> Numbers:
    """Return numbers of a handle, which any user may have written; raise an error for too many."""
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
"""The class that runs batches on each engine."""
IDENTITIES: Mapping[str, str] = MappingProxyType({"vertex": "gs"})
"""The storage for which the tasks of an engine have an identity of their own, by its scheme."""


def batch_executor(engine: str) -> type[BatchExecutor]:
    module = import_module(f"aboard.executors.{engine}.batch")
    kind: type[BatchExecutor] = getattr(module, BATCHES[engine])
    return kind
