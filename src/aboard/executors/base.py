"""The contract of executors: how the command of a board is started, polled and stopped.

An executor knows commands and the place where they run. What a board is, which states it goes
through and who may see it is left to `boards`; how its pages are reached, to the hub.
"""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Any

from aboard import system

Handle = dict[str, Any]
"""What an executor finds a command by: plain JSON, without secrets."""

PYTHON = "python"
"""The first word of a command: the interpreter of the place where the command runs."""

ADDRESS, CERTIFICATE, ENVIRONMENT = "address", "certificate.pem", "environment.json"
"""The files of a start that its command, or the process before it, writes and reads."""

LOG_HOST = "log_host"
"""The key, in the handle of a board that has ended, of the machine that has its log."""

GRACE = 10.0  # seconds that a command gets to end by itself


class ExecutorError(Exception):
    """An executor failed: what, where, and what to do, in one line."""


class CommandState(StrEnum):
    """How far a started command has come.

    `STARTING` until it has reported its address, then `RUNNING`, and `ENDED` for good, however it
    ended. `UNKNOWN` means that the query failed, never that the command did.
    """

    STARTING = "starting"
    RUNNING = "running"
    ENDED = "ended"
    UNKNOWN = "unknown"


@dataclass(frozen=True, kw_only=True)
class EngineSettings:
    """The settings of an executor: `[executors.NAME]` in `aboard.toml`.

    Each executor has a class of its own, a dataclass of pydantic that forbids unknown keys.
    """


@dataclass(frozen=True, slots=True)
class Spec:
    """What to start.

    `command` begins with `PYTHON`, and its paths are absolute. It reads from its environment where
    to listen (ABOARD_HOST, ABOARD_PORT), with which secret (ABOARD_TOKEN) and certificate
    (ABOARD_CERTIFICATE), and for how long (ABOARD_TIMEOUT), and prints its address as a line of
    JSON: `aboard view --json` does so.

    `directory` is for what belongs to this board alone, on the hub's machine: its log, its token.
    It outlives the command, and a restarted board uses it again. `attempt` counts the starts of a
    board: both together name a start. `profile` names settings of the executor.

    `environment` is added to the executor's own: secrets go there, never into the command. The
    command finds the local paths in `reads` and `credential_files` where they are here, and cannot
    change them. `memory` is in bytes; None for no limit. After `timeout` seconds the engine ends
    the command, in case that no hub returns to do so.
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
        """Return the command for a place with this interpreter."""
        first, *others = self.command
        return [python if first == PYTHON else first, *others]

    def listening(self, host: str, port: int) -> dict[str, str]:
        """Return the variables by which the command listens there, for its time; no secrets."""
        variables = {"ABOARD_HOST": host, "ABOARD_PORT": str(port)}
        if self.timeout is not None:
            variables["ABOARD_TIMEOUT"] = f"{self.timeout:g}"
        return variables


@dataclass(frozen=True, slots=True)
class Status:
    """What is known of a started command.

    `exit_code` is minus the signal that ended it. `reason` says why it ended, why it has not
    started yet, in the engine's words, or why that is unknown; of a command that ended before it
    reported its address, it has the last lines of the log. `memory` is in bytes.
    """

    state: CommandState
    exit_code: int | None = None
    reason: str = ""
    memory: int | None = None


@dataclass(frozen=True, slots=True)
class Address:
    """Where a board listens, as the hub reaches it.

    The host has no brackets. The path is the board's own prefix; it begins and ends with a slash.
    With a `fingerprint`, the board speaks TLS: it is the SHA-256 of its certificate, in hex.
    """

    host: str
    port: int
    path: str
    token: str = field(repr=False)
    fingerprint: str = ""


@dataclass(frozen=True, slots=True)
class Found:
    """A start that an engine knows."""

    board: str
    attempt: int
    handle: Handle


@dataclass(frozen=True, slots=True)
class EngineReport:
    """Whether an engine answers, and what it says of itself; or what is wrong and what to do."""

    answers: bool
    version: str = ""
    resources: Mapping[str, str] = field(default_factory=dict)
    problem: str = ""
    hint: str = ""


def here() -> Handle:
    """Return what names this machine in a handle; see `is_here`."""
    return {"host": os.uname().nodename, "boot": system.boot_id()}


def is_here(handle: Handle) -> bool:
    """Return whether a start was made on this machine, also before it was restarted."""
    return any(handle.get(name) == value for name, value in here().items())


def log_host(handle: Handle) -> str:
    """Return the machine that has the log of a start; empty if every hub can read it."""
    machine = handle.get("machine", handle)
    return str(handle.get(LOG_HOST) or machine.get("host", ""))


class Engine(ABC):
    """An engine with all its profiles.

    `profiles` has the settings by the name of the profile, and those of the engine itself under an
    empty name.
    """

    name: str
    """Its name for users: `aboard start --on NAME`."""
    Settings: type[EngineSettings] = EngineSettings

    def __init__(self, profiles: Mapping[str, Any] | None = None) -> None:
        self.profiles = profiles or {"": self.Settings()}
        self.open()

    def open(self) -> None:  # noqa: B027 - most hold nothing
        """Make what this object holds until `close`: locks, caches. Nothing is connected yet."""

    def close(self) -> None:  # noqa: B027 - most hold nothing
        """Release what this object holds. What it has started goes on."""

    def settings(self, profile: str) -> Any:
        """Return the settings of a profile, of the class `Settings`."""
        if profile in self.profiles:
            return self.profiles[profile]
        known = ", ".join(sorted(filter(None, self.profiles))) or "none"
        raise ExecutorError(
            f"{self.name} has no profile {profile!r}. It has: {known}. "
            f"Add [executors.{self.name}.profiles.{profile}] to the settings."
        )


class Executor(Engine):
    """A place where commands run.

    An executor *must* define `start`, `poll`, `stop`, `logs`, `address` and `probe`. It *may*
    define `find_address`, `found` and `reaches`, keep connections and caches in itself, and define
    `close` to give them up. It *need not* remember anything: it gets a handle, which went through
    JSON and may come from a hub that was killed, and another object with the same settings can use
    it. It need not wait either: the caller polls.

    `hub` is the id of the hub's database: what it starts has this label.

    Verbs may be called from several threads at once. Where the outside world is the cause they
    raise `ExecutorError` and nothing else, but for `poll`, which raises nothing.
    """

    needs_settings = False
    """Whether a hub offers it only with a table of its own, `[executors.NAME]`."""
    unit = ("", "")
    """What the engine calls a start, and the key of a handle with the engine's own name for it."""

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

        The executor generates the board's token, and passes it where other users of the machine
        cannot read it. A caller that was interrupted before it stored the handle calls again with
        the same board and attempt, and gets the handle of that start: no board runs twice.

        Raises:
            ExecutorError: it could not be started. A command that starts and ends at once, as
                one that does not exist, is not an error here: `poll` reports it.
        """

    @abstractmethod
    def poll(self, handles: Mapping[str, Handle]) -> dict[str, Status]:
        """Return the status of each handle under the same key, with one query for all of them.

        What could not be queried is `UNKNOWN`, with the reason. `ENDED` is repeated at every poll,
        with the same exit code and reason; nothing is left on the engine then. A command that the
        engine starts again, as on another node, is `STARTING` again. An executor that enforces a
        limit by polling, or that must do more for a `stop` to succeed, does so here.
        """

    @abstractmethod
    def stop(self, handle: Handle, *, now: bool = False) -> None:
        """Make a command end, with all it started; return before it has.

        It gets the time of grace to end by itself, or none at all with `now`. Stopping what has
        ended is not an error.
        """

    @abstractmethod
    def logs(
        self, handle: Handle, *, tail: int | None = None, follow: bool = False
    ) -> Iterator[bytes]:
        """Yield what the command wrote, in pieces of any length; also after it has ended.

        `tail` is the number of last lines to begin with; all by default. `follow` goes on until the
        command has ended. Without news for a while, it yields an empty piece, so that the caller
        can leave.
        """

    @abstractmethod
    def address(self, handle: Handle) -> Address | None:
        """Return where the board listens, or None before it has reported its address.

        Called for every request, in the event loop: it does not query the engine, nor read what
        `poll` or `find_address` has found before from a file system that may hang.
        """

    @abstractmethod
    def probe(self, profile: str = "") -> EngineReport:
        """Query the engine of a profile: whether it answers, its version, what is free."""

    def find_address(self, handle: Handle) -> None:
        """Store what `address` needs of a running board that another hub polls; called often."""

    def found(self) -> list[Found]:
        """Return what this hub has started on the engine and is still there."""
        return []

    def is_same(self, one: Handle, other: Handle) -> bool:
        """Return whether two handles are of one start, whatever else they say of it."""
        unit = self.unit[1]
        first, second = ((each.get("directory"), each.get("start")) for each in (one, other))
        return one.get(unit) == other.get(unit) or first == second != (None, None)

    def reaches(self, handle: Handle) -> bool:  # noqa: ARG002 - most reach all
        """Return whether this object can poll a start, which a hub elsewhere may have made."""
        return True
