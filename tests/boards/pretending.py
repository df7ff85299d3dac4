"""An executor whose processes are files, so that tests decide what becomes of them.

It keeps the contract across kills as a real one does: one process for a directory, found again by
whoever asks. What it was told is in files too, so that another process can look.
"""

import fcntl
import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from aboard.boards.model import BoardRecord
from aboard.executors.base import Address, Executor, ExecutorError, Handle, Spec, State, Status


class PretendExecutor(Executor):
    name = "process"

    def __init__(self, root: Path) -> None:
        self.root = root
        self.is_deaf = False
        self.is_stubborn = False
        self.refuses = ""
        self.polls: list[set[str]] = []
        self.stops: list[tuple[str, bool]] = []

    def specify(self, record: BoardRecord) -> Spec:
        return Spec(record.id, ("aboard", "view"), self.root / record.id)

    def start(self, spec: Spec) -> Handle:
        if self.refuses:
            raise ExecutorError(self.refuses)
        spec.directory.mkdir(parents=True, exist_ok=True)
        with _locked(spec.directory):
            for alive in spec.directory.glob("alive-*"):
                return {"board": spec.board, "process": alive.name.removeprefix("alive-")}
            number = str(len(list(spec.directory.glob("started-*"))) + 1)
            (spec.directory / f"started-{number}").touch()
            (spec.directory / f"alive-{number}").write_text(State.STARTING)
        return {"board": spec.board, "process": number}

    def poll(self, handles: Mapping[str, Handle]) -> dict[str, Status]:
        self.polls.append(set(handles))
        if self.is_deaf:
            return dict.fromkeys(handles, Status(State.UNKNOWN, reason="nobody answers"))
        found = {}
        for key, handle in handles.items():
            alive, ended = self._files(handle)
            if alive.exists():
                found[key] = Status(State(alive.read_text()), memory=1000)
            elif ended.exists():
                code, reason = json.loads(ended.read_text())
                found[key] = Status(State.ENDED, code, reason)
        return found

    def stop(self, handle: Handle, *, now: bool = False) -> None:
        self.stops.append((handle["board"], now))
        if now or not self.is_stubborn:
            self._end(handle, -9 if now else -15, "it was stopped")

    def logs(self, handle, *, tail=None, follow=False) -> Iterator[bytes]:
        yield b""

    def address(self, handle: Handle) -> Address | None:
        return Address("127.0.0.1", 6006, "/", "a-token-for-tests")

    # What tests do.

    def is_ready(self, board: str) -> None:
        """Let a board tell its address."""
        (alive,) = (self.root / board).glob("alive-*")
        alive.write_text(State.RUNNING)

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
