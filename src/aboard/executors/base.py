"""The contract of executors: how commands are started, polled and stopped on an engine.

An `Executor` runs the commands of boards, a `BatchExecutor` the tasks of jobs. Both know only
commands and where they run. `boards` defines boards, their states and who may see them; `jobs`
decides what tasks train and which runs they record; the hub forwards requests to boards.
"""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Any, TypeVar

from aboard import system

Handle = dict[str, Any]
"""Identifies a command for its executor: plain JSON, without secrets."""

PYTHON = "python"
"""The first word of a command; stands for the interpreter where the command runs."""

ADDRESS, CERTIFICATE, ENVIRONMENT = "address", "certificate.pem", "environment.json"
"""The files of a start that its command, or `entry` before it, reads and writes."""

LOG_HOST = "log_host"
"""The key in the handle of an ended board with the machine that has its log."""

GRACE = 10.0  # seconds from SIGTERM to SIGKILL


class ExecutorError(Exception):
    """An executor failed: what is wrong, where, and what to do, in one line."""


class CommandState(StrEnum):
    """The state of a started command.

    `STARTING` until it reports its address, then `RUNNING`; `ENDED` is final, whatever the cause.
    `UNKNOWN` means that the query failed, not the command.
    """

    STARTING = "starting"
    RUNNING = "running"
    ENDED = "ended"
    UNKNOWN = "unknown"


@dataclass(frozen=True, kw_only=True)
class EngineSettings:
    """The settings of an executor: `[executors.NAME]` in `aboard.toml`.

    Each executor has its own class, a pydantic dataclass that forbids unknown keys.
    """


@dataclass(frozen=True, slots=True)
class Spec:
    """What to start.

    `command` begins with `PYTHON`, and its paths are absolute. Its environment sets where to listen
    (ABOARD_HOST, ABOARD_PORT), the secret (ABOARD_TOKEN), the certificate (ABOARD_CERTIFICATE) and
    the timeout (ABOARD_TIMEOUT). It prints its address as a line of JSON, as `aboard view --json`
    does.

    `directory` is on the hub's machine and has the files of this board only: its log, its token. It
    outlives the command, and a restarted board uses it again. `attempt` counts the starts of a
    board: the two together identify a start. `profile` names settings of the executor.

    `environment` is added to the executor's own; secrets go there, never into the command. The
    command sees the local paths in `reads` and `credential_files` read-only, under the same paths.
    `memory` is in bytes; None for no limit. After `timeout` seconds the engine stops the command,
    in case no hub is left to do so.
    """

    board: str
    command: tuple[str, ...]
    directory: Path
    attempt: int = 1
    profile: str = ""
    environment: Mapping[str, str] = field(default_factory=dict, repr=False)
    reads: tuple[Path, ...] = ()
    credential_files: tuple[Path, ...] = ()
    memory: int | None = None
    cpus: float | None = None
    timeout: float | None = None

    @property
    def name(self) -> str:
        """The name of this start on the engine."""
        return f"aboard-{self.board}-{self.attempt}"

    def words(self, python: str) -> list[str]:
        """Return the command with this interpreter."""
        first, *others = self.command
        return [python if first == PYTHON else first, *others]

    def listening(self, host: str, port: int) -> dict[str, str]:
        """Return the variables with the address to listen on and the timeout; no secrets."""
        variables = {"ABOARD_HOST": host, "ABOARD_PORT": str(port)}
        if self.timeout is not None:
            variables["ABOARD_TIMEOUT"] = f"{self.timeout:g}"
        return variables


@dataclass(frozen=True, slots=True)
class Status:
    """The status of a started command.

    `exit_code` is negative for a signal. `reason` says, in the engine's words, why the command
    ended, why it has not started yet, or why its state is unknown; if it ended before it reported
    its address, `reason` has the last lines of the log. `memory` is in bytes.
    """

    state: CommandState
    exit_code: int | None = None
    reason: str = ""
    memory: int | None = None


@dataclass(frozen=True, slots=True)
class Address:
    """The address at which the hub reaches a board.

    The host has no brackets. The path is the board's prefix; it begins and ends with a slash. With
    a `fingerprint`, the SHA-256 of its certificate in hex, the board uses TLS.
    """

    host: str
    port: int
    path: str
    token: str = field(repr=False)
    fingerprint: str = ""


@dataclass(frozen=True, slots=True)
class Found:
    """A start that exists on an engine."""

    board: str
    attempt: int
    handle: Handle


@dataclass(frozen=True, slots=True)
class EngineReport:
    """The result of a probe: details of the engine; or what is wrong, and what to do."""

    answers: bool
    version: str = ""
    resources: Mapping[str, str] = field(default_factory=dict)
    problem: str = ""
    hint: str = ""


def here() -> Handle:
    """Return the keys of a handle that identify this machine; see `is_here`."""
    return {"host": os.uname().nodename, "boot": system.boot_id()}


def is_here(handle: Handle) -> bool:
    """Return whether a start was made on this machine, even before a reboot."""
    return any(handle.get(name) == value for name, value in here().items())


def log_host(handle: Handle) -> str:
    """Return the machine that has the log of a start; empty if every hub can read it."""
    machine = handle.get("machine", handle)
    return str(handle.get(LOG_HOST) or machine.get("host", ""))


class Engine(ABC):
    """An engine with all its profiles.

    `profiles` maps names of profiles to settings; those of the engine itself have an empty name.
    """

    name: str
    """Its name for users: `aboard start --on NAME`."""
    Settings: type[EngineSettings] = EngineSettings

    def __init__(self, profiles: Mapping[str, Any] | None = None) -> None:
        self.profiles = profiles or {"": self.Settings()}
        self.open()

    def open(self) -> None:  # noqa: B027 - optional
        """Create locks and caches. Connections are made later."""

    def close(self) -> None:  # noqa: B027 - optional
        """Close connections. Whatever was started keeps running."""

    def settings(self, profile: str) -> Any:
        """Return the settings of a profile, of the class `Settings`."""
        if profile in self.profiles:
            return self.profiles[profile]
        known = ", ".join(sorted(filter(None, self.profiles))) or "none"
        raise ExecutorError(
            f"{self.name} has no profile {profile!r}. Known: {known}. "
            f"Add [executors.{self.name}.profiles.{profile}] to the settings."
        )


class Executor(Engine):
    """A place where commands run.

    An executor *must* define `start`, `poll`, `stop`, `logs`, `address` and `probe`. It *may*
    define `find_address`, `found` and `reaches`, keep connections and caches, and define `close` to
    release them. It *need not* store anything: handles are plain JSON, and another object with the
    same settings, in a later hub process, can use them. It need not wait either: the caller polls.

    `hub` is the id of the hub's database; everything that is started has it as a label.

    Methods are safe to call from several threads. For causes outside the program they raise only
    `ExecutorError`; `poll` raises nothing.
    """

    needs_settings = False
    """Whether a hub offers it only if its settings have a table `[executors.NAME]`."""
    unit = ("", "")
    """What the engine calls a start; also the key of a handle with the engine's id for it."""
    stop_command = ""
    """How a user stops a start without the executor; braces enclose keys of its handle."""

    def __init__(
        self,
        profiles: Mapping[str, Any] | None = None,
        *,
        hub: str = "",
        grace: float = GRACE,
    ) -> None:
        self.hub = hub
        self.grace = grace
        super().__init__(profiles)

    @abstractmethod
    def start(self, spec: Spec) -> Handle:
        """Start a command, and return its handle at once.

        The executor generates the board's token, and hides it from other users of the machine. A
        caller that was interrupted before it stored the handle calls again with the same board and
        attempt, and gets the handle of the same start: no board runs twice.

        Raises:
            ExecutorError: the command could not be started. One that exits at once, or does not
                exist, is not an error here: `poll` reports it.
        """

    @abstractmethod
    def poll(self, handles: Mapping[str, Handle]) -> dict[str, Status]:
        """Return the status of each handle under the same key, with one query for all of them.

        A failed query yields `UNKNOWN`, with the reason. `ENDED` is repeated at every poll, with
        the same exit code and reason; nothing is left on the engine then. A command that the engine
        restarts, for example on another node, is `STARTING` again. An executor that enforces limits
        by polling, or completes a `stop` later, does so here.
        """

    @abstractmethod
    def stop(self, handle: Handle, *, now: bool = False) -> None:
        """Stop a command and its child processes, without waiting until they have exited.

        It gets the grace period to exit by itself, or none with `now`. Stopping a command that has
        ended is not an error.
        """

    @abstractmethod
    def logs(
        self, handle: Handle, *, tail: int | None = None, follow: bool = False
    ) -> Iterator[bytes]:
        """Yield the output of a command, in chunks of any length; also after it has ended.

        `tail` limits it to the last lines; all by default. `follow` continues until the command has
        ended. It yields empty chunks while there is no output, so that the caller can stop.
        """

    @abstractmethod
    def address(self, handle: Handle) -> Address | None:
        """Return where the board listens, or None before it has reported its address.

        Called for every request, in the event loop: it does not query the engine, and uses what
        `poll` or `find_address` has cached, since file systems may hang.
        """

    @abstractmethod
    def probe(self, profile: str = "") -> EngineReport:
        """Query the engine of a profile: whether it answers, its version, free resources."""

    def find_address(self, handle: Handle) -> None:
        """Cache what `address` needs for a running board that another hub polls; called often."""

    def found(self) -> list[Found]:
        """Return the starts of this hub that exist on the engine."""
        return []

    @classmethod
    def how_to_stop(cls, handle: Handle) -> str:
        """Return the command with which a user stops a start."""
        return cls.stop_command.format_map(handle)

    def is_same(self, one: Handle, other: Handle) -> bool:
        """Return whether two handles identify the same start, whatever their other keys."""
        unit = self.unit[1]
        first, second = ((each.get("directory"), each.get("start")) for each in (one, other))
        return one.get(unit) == other.get(unit) or first == second != (None, None)

    def reaches(self, handle: Handle) -> bool:  # noqa: ARG002 - for overrides
        """Return whether this object can poll a start, possibly of a hub on another machine."""
        return True


# Batches of tasks.

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
    again. Each task of `numbers` runs `command`, whose first word is `PYTHON`, followed by the
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

    A batch is one submission: a Slurm array, a Kubernetes Job, a queue of containers or processes.
    Its tasks run the same command with different numbers.

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
    def logs(self, handle: Handle, number: int, *, tail: int | None = None) -> Iterator[bytes]:
        """Yield the standard output and error of a task so far; see `Executor.logs`.

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
