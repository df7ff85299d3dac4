"""The contract every executor keeps: how a board's own command is started, watched and stopped.

An executor knows commands and the place where they run. What a board is, which states it goes
through and who may see it is left to `boards`; how its pages are reached, to the hub.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Any

Handle = dict[str, Any]
"""What an executor needs to find again what it started: plain JSON, and no secret."""


class ExecutorError(Exception):
    """Something an executor could not do: what, where, and what to do about it, in one line."""


class State(StrEnum):
    """How far a started command has come.

    `STARTING` until it has told its address, `RUNNING` from then on, and `ENDED` for good, however
    that came about. `UNKNOWN` means that nobody could tell just now, and never that it failed.
    """

    STARTING = "starting"
    RUNNING = "running"
    ENDED = "ended"
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True)
class Spec:
    """What to start.

    Attributes:
        board: the board's id.
        command: an `aboard view … --json --no-browser --port 0`, with absolute paths.
        directory: for what belongs to this board alone, on the hub's machine: its log, its token.
            It outlives the command, and a board that is started again uses it again.
        environment: what is added to the environment. Secrets go here, never into the command.
        memory: how many bytes it may use; None for as many as there are.
    """

    board: str
    command: tuple[str, ...]
    directory: Path
    environment: Mapping[str, str] = field(default_factory=dict, repr=False)
    memory: int | None = None


@dataclass(frozen=True, slots=True)
class Status:
    """What is known of a started command.

    Attributes:
        state: how far it has come.
        exit_code: once it has ended and if that is known; minus the signal that ended it.
        reason: why it ended, or why nobody can tell. Of one that ended before it told its
            address, the reason has the last lines of its log.
        memory: how many bytes it uses, if that is known.
    """

    state: State
    exit_code: int | None = None
    reason: str = ""
    memory: int | None = None


@dataclass(frozen=True, slots=True)
class Address:
    """Where a board listens, as the hub reaches it.

    Attributes:
        host: a name or an IP address, without brackets.
        port: the port.
        path: the board's own prefix; begins and ends with a slash.
        token: the secret that opens it.
    """

    host: str
    port: int
    path: str
    token: str = field(repr=False)


class Executor(ABC):
    """A place where commands run.

    An executor *must* define `start`, `poll`, `stop`, `logs` and `address`. It *may* keep
    connections and caches in itself, and define `close` to give them up. It *need not* remember
    anything: a handle, which went through JSON and may come from a hub that was killed, is all
    that it is given, and another object with the same settings can go on with it. It need not wait
    either: whoever calls looks again.

    Verbs may be called from several threads at once. Where the outside world is the cause they
    raise `ExecutorError` and nothing else, but for `poll`, which raises nothing.
    """

    name: str
    """What a user calls it: `aboard start --on NAME`."""

    @abstractmethod
    def start(self, spec: Spec) -> Handle:
        """Start a command, and return at once with what finds it again.

        The executor makes up the board's token, and hands it over where other users of the
        machine cannot read it. Whoever was interrupted before the handle was kept calls again with
        the same spec, and is given what runs already: no board runs twice in one directory.

        Raises:
            ExecutorError: it could not be started. A command that starts and ends at once, as
                one that does not exist, is not an error here but for `poll` to tell.
        """

    @abstractmethod
    def poll(self, handles: Mapping[str, Handle]) -> dict[str, Status]:
        """Return the status of each handle under the same key, with one query for all of them.

        What could not be asked is `UNKNOWN`, with the reason. `ENDED` is said again and again,
        with the same exit code and reason. An executor that keeps a memory limit by looking, or
        that must do more for a `stop` to succeed, does so here.
        """

    @abstractmethod
    def stop(self, handle: Handle, *, now: bool = False) -> None:
        """Make a command end, with all it started; return before it has.

        It gets the time of grace to end by itself, or none at all with `now`. Stopping what has
        ended is no error.
        """

    @abstractmethod
    def logs(
        self, handle: Handle, *, tail: int | None = None, follow: bool = False
    ) -> Iterator[bytes]:
        """Yield what the command wrote, in pieces of any length; also after it has ended.

        Args:
            handle: which command.
            tail: begin with that many last lines; all of them by default.
            follow: go on until the command has ended. Where there is nothing new for a while, an
                empty piece is yielded, so that the caller can leave.
        """

    @abstractmethod
    def address(self, handle: Handle) -> Address | None:
        """Return where the board listens, or None as long as it has not said so."""

    def close(self) -> None:  # noqa: B027 - most hold nothing
        """Give up what this object holds. What runs goes on."""
