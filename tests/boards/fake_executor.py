"""An executor whose processes are files, so that tests decide what becomes of them.

It keeps the contract across kills as a real one does: one process for a start, found again by any
object. Its processes are files too, so that another process can look.
"""

import fcntl
import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from aboard.boards.model import BoardRecord
from aboard.executors.base import (
    Address,
    CommandState,
    EngineReport,
    Executor,
    ExecutorError,
    Found,
    Handle,
    Spec,
    Status,
)


class PretendExecutor(Executor):
    unit = ("process", "process")
    stop_command = "end {process}"

    def __init__(self, root: Path, name: str = "process", profiles: tuple[str, ...] = ()) -> None:
        super().__init__(dict.fromkeys(("", *profiles)))
        self.name = name
        self.root = root
        self.reached = True
        self.knows_addresses = True
        self.known_port = self.found_port = 6006
        self.specs: list[Spec] = []
        self.searches = 0
        self.is_deaf = False
        self.is_stubborn = False
        self.refuses = ""
        self.polls: list[set[str]] = []
        self.stops: list[tuple[str, bool]] = []

    def specify(self, record: BoardRecord) -> Spec:
        return Spec(
            record.id,
            ("aboard", "view"),
            self.root / record.id,
            attempt=record.attempt,
            profile=record.profile,
        )

    def start(self, spec: Spec) -> Handle:
        if self.refuses:
            raise ExecutorError(self.refuses)
        self.specs.append(spec)
        spec.directory.mkdir(parents=True, exist_ok=True)
        with _locked(spec.directory):
            for alive in spec.directory.glob("alive-*"):
                return {"board": spec.board, "process": alive.name.removeprefix("alive-")}
            number = str(len(list(spec.directory.glob("started-*"))) + 1)
            (spec.directory / f"started-{number}").touch()
            (spec.directory / f"alive-{number}").write_text(CommandState.STARTING)
            (spec.directory / f"attempt-{number}").write_text(str(spec.attempt))
        return {"board": spec.board, "process": number}

    def poll(self, handles: Mapping[str, Handle]) -> dict[str, Status]:
        self.polls.append(set(handles))
        if self.is_deaf:
            return dict.fromkeys(handles, Status(CommandState.UNKNOWN, reason="no such socket"))
        found = {}
        for key, handle in handles.items():
            alive, ended = self._files(handle)
            if alive.exists():
                state, _, reason = alive.read_text().partition(" ")
                found[key] = Status(CommandState(state), reason=reason, memory=1000)
            elif ended.exists():
                code, reason = json.loads(ended.read_text())
                found[key] = Status(CommandState.ENDED, code, reason)
        return found

    def stop(self, handle: Handle, *, now: bool = False) -> None:
        self.stops.append((handle["board"], now))
        if now or not self.is_stubborn:
            self._end(handle, -9 if now else -15, "it was stopped")

    def logs(self, handle, *, tail=None, follow=False) -> Iterator[bytes]:
        yield b""

    def address(self, handle: Handle) -> Address | None:
        if not self.knows_addresses:
            return None
        return Address("127.0.0.1", self.known_port, "/", "a-token-for-tests")

    def find_address(self, handle: Handle) -> None:
        self.knows_addresses = True
        self.known_port = self.found_port

    def probe(self, profile: str = "") -> EngineReport:
        return EngineReport(True, "1")

    def found(self) -> list[Found]:
        self.searches += 1
        if self.is_deaf:
            raise ExecutorError("no such socket")
        found = []
        for alive in sorted(self.root.glob("*/alive-*")):
            number = alive.name.removeprefix("alive-")
            attempt = int(alive.with_name(f"attempt-{number}").read_text())
            handle = {"board": alive.parent.name, "process": number}
            found.append(Found(alive.parent.name, attempt, handle))
        return found

    def reaches(self, handle: Handle) -> bool:
        return self.reached

    # What tests do.

    def is_ready(self, board: str) -> None:
        """Let a board tell its address."""
        (alive,) = (self.root / board).glob("alive-*")
        alive.write_text(CommandState.RUNNING)

    def waits(self, board: str, reason: str) -> None:
        """Let a board wait for its engine, or again."""
        (alive,) = (self.root / board).glob("alive-*")
        alive.write_text(f"{CommandState.STARTING} {reason}".strip())

    def dies(self, board: str, code: int | None, reason: str = "") -> None:
        (alive,) = (self.root / board).glob("alive-*")
        number = alive.name.removeprefix("alive-")
        self._end({"board": board, "process": number}, code, reason)

    def vanishes(self, board: str) -> None:
        """Let nobody know anything of a board any more."""
        for file in (self.root / board).iterdir():
            file.unlink()

    def alive(self, board: str) -> int:
        return len(list((self.root / board).glob("alive-*")))

    def starts(self, board: str) -> int:
        return len(list((self.root / board).glob("started-*")))

    def _files(self, handle: Handle) -> tuple[Path, Path]:
        directory = self.root / handle["board"]
        return directory / f"alive-{handle['process']}", directory / f"ended-{handle['process']}"

    def _end(self, handle: Handle, code: int | None, reason: str) -> None:
        alive, ended = self._files(handle)
        if alive.exists():
            ended.write_text(json.dumps([code, reason]))
            alive.unlink()


@contextmanager
def _locked(directory: Path) -> Iterator[None]:
    with (directory / "lock").open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


class Clock:
    """A clock that tests set."""

    def __init__(self, now: float = 1_000_000.0) -> None:
        self.now = now

    def __call__(self) -> float:
        return self.now

    def pass_by(self, seconds: float) -> None:
        self.now += seconds
