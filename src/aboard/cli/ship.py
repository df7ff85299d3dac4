"""`aboard ship`: send what trainings left on this machine, on its way to a bucket."""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Annotated, Any, Self

import typer

from aboard.cli.errors import FAILURE, WrongUsage, say
from aboard.cli.progress import transfer_bar
from aboard.cli.sources import JsonOption
from aboard.cli.wording import counted, moment, size, table
from aboard.storage import StorageError, open_storage
from aboard.track.ledger import Ledger
from aboard.track.processes import start_of
from aboard.track.sending import Sending
from aboard.track.spool import Owner, Spool, all_spools, damaged_spools, spool_root, spool_roots

if TYPE_CHECKING:
    from rich.progress import Progress

EPILOG = """
Examples:

- `aboard ship --list` - is anything left on this machine?
- `aboard ship` - send it all
- `aboard ship 20260131-120000-4711-0a1b2c3d` - send one spool, by its name or its path

A spool whose training still runs is sent by that training; it is listed, and left alone. One that a
process in the background cannot send is taken over, with the credentials and endpoint of today. The
exit code is 1 if something is left that nobody sends.
"""
_TAKE_OVER_SECONDS = 5.0
_LOCK_SECONDS = 2.0
_LEFT = ("kept", "elsewhere", "still written", "damaged")
"""States in which nobody sends a spool."""
_SHOWN_AFTER_SECONDS = 0.3


@dataclass(slots=True)
class Waiting:
    """A spool, and how it stands."""

    spool: Spool
    owner: Owner
    state: str
    left: int
    problem: str

    def as_json(self) -> dict[str, Any]:
        """Return it as `--json` prints it."""
        return {
            "spool": str(self.spool.directory),
            "target": self.owner.target or None,
            "state": self.state,
            "left_bytes": self.left,
            "host": self.owner.host,
            "owner_pid": self.owner.pid,
            "created_time": self.owner.created,
            "problem": self.problem or None,
        }


def ship(
    spool: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[SPOOL]...",
            help="Which spools, by name or path; by default all that were left behind.",
            show_default=False,
        ),
    ] = None,
    list_only: Annotated[
        bool, typer.Option("--list", help="Say what there is, and send nothing.")
    ] = False,
    json: JsonOption = False,
) -> None:
    """Send what trainings left behind on their way to a bucket."""
    found = [_look(one) for one in (_named(spool) if spool else all_spools())]
    waiting = [one for one in found if one is not None]
    waiting += [] if spool else map(_damaged, damaged_spools())
    if not list_only:
        for one in waiting:
            _send(one, asked=bool(spool))
    if json:
        import orjson

        document = {"spools": [one.as_json() for one in waiting]}
        typer.echo(orjson.dumps(document, option=orjson.OPT_INDENT_2))
    elif not waiting:
        typer.echo(f"nothing is left in {spool_root()}")
    elif list_only:
        typer.echo(_table(waiting))
    if not list_only and any(one.state in _LEFT for one in waiting):
        raise typer.Exit(FAILURE)


def _named(texts: list[str]) -> list[Spool]:
    spools = []
    for text in texts:
        places = [Path(text).expanduser(), *(root / text for root in spool_roots())]
        place = next((one for one in places if one.exists()), places[0])
        if Spool(place).owner() is None:
            raise WrongUsage(
                f"{text}: this is no spool. 'aboard ship --list' names those there are."
            )
        spools.append(Spool(place.absolute()))
    return spools


def _look(spool: Spool) -> Waiting | None:
    owner = spool.owner()
    if owner is None:
        return None  # it was sent while we looked
    presence = owner.presence(spool.lifeline)
    state = {"alive": "in use", "unknown": "elsewhere"}.get(presence, "left behind")
    if state == "left behind" and spool.is_served():
        state = "being sent"
    left = Sending(spool.files, Ledger(spool.ledger), open_storage(owner.target)).left()
    return Waiting(spool, owner, state, left, spool.status().problem)


def _damaged(spool: Spool) -> Waiting:
    problem = (
        f"{spool.directory}: owner.json, which says where the files belong, is missing or cannot be"
        " read. Copy what is in 'files' there by hand, and delete the directory."
    )
    left = sum(one.stat().st_size for one in spool.files.rglob("*") if one.is_file())
    created = spool.directory.stat().st_mtime
    return Waiting(spool, Owner("", created=created), "damaged", left, problem)


def _send(one: Waiting, *, asked: bool) -> None:
    """Send a spool that nobody else sends; say what comes of it."""
    from aboard.track.shipper import send_left_behind

    name = one.spool.directory.name
    if one.state == "damaged":
        say(one.problem)
        return
    if one.state == "in use":
        say(f"{name}: the training with process {one.owner.pid} runs, and sends it.")
        return
    if one.state == "elsewhere" and not asked:
        say(f"{name}: it belongs to a training on {one.owner.host}; name it to send it from here.")
        return
    if one.state == "being sent" and one.problem:
        _take_over(one)
    with _lock(one.spool) as ours:
        if not ours and one.spool.owner() is None:
            one.state, one.left, one.problem = "arrived", 0, ""
            say(f"{name}: it has been sent meanwhile.")
            return
        if not ours:
            one.state = "being sent"
            pid = one.spool.status().pid
            say(f"{name}: {f'process {pid}' if pid else 'another process'} is sending it.")
            return
        if writer := one.spool.writer():
            one.state = "still written"
            say(f"{name}: process {writer.pid} may still write to it; try again when it has ended.")
            return
        try:
            with SendingBar(one.owner.target, one.left) as bar:
                outcome = send_left_behind(one.spool, one.owner, bar.advance)
            problem = str(outcome.problem or outcome.refused)
            refused = outcome.complete
        except StorageError as error:
            problem, refused = str(error), False
    if problem:
        one.state, one.problem = "kept", problem
        rest = "All others arrived; 'aboard ship' then sends this one."
        say(f"{problem} {rest if refused else f'The logs are kept in {one.spool.directory}.'}")
    else:
        say(f"{size(one.left)} sent to {one.owner.target}")
        one.state, one.left, one.problem = "arrived", 0, ""


@contextlib.contextmanager
def _lock(spool: Spool) -> Iterator[bool]:
    """Try to become the one who sends a spool, until it is known who else does, or it is gone."""
    deadline = time.monotonic() + _LOCK_SECONDS
    while True:
        with spool.lock() as ours:
            known = start_of(spool.status().pid) or spool.owner() is None
            if ours or known or time.monotonic() > deadline:
                yield ours
                return
        time.sleep(0.05)


def _take_over(one: Waiting) -> None:
    """End a process that cannot send; it knows only the credentials and endpoint of its start."""
    pid = one.spool.status().pid
    try:
        command = Path(f"/proc/{pid}/cmdline").read_bytes()
        if (
            b"aboard.track.shipper" not in command
            or os.fsencode(one.spool.directory) not in command
        ):
            return
        os.kill(pid, signal.SIGKILL)  # its ledger is made for that
    except OSError:
        return  # it has ended meanwhile, or cannot be told from another
    deadline = time.monotonic() + _TAKE_OVER_SECONDS
    while one.spool.is_served() and time.monotonic() < deadline:
        time.sleep(0.05)
    say(f"{one.spool.directory.name}: process {pid} could not send it, so this one does.")


def _table(waiting: list[Waiting]) -> str:
    rows = [
        [
            one.spool.directory.name,
            one.owner.target or "-",
            one.state,
            moment(one.owner.created),
            size(one.left),
        ]
        for one in waiting
    ]
    lines = [table(["SPOOL", "TARGET", "STATE", "CREATED", "LEFT"], rows, left=4)]
    problems = {one.problem for one in waiting if one.problem}
    lines += [f"problem: {problem}" for problem in sorted(problems)]
    return "\n".join([*lines, f"{counted(len(waiting), 'spool')} in {spool_root()}"])


class SendingBar:
    """Show how much of a spool is sent, on a terminal and if it takes a while."""

    def __init__(self, target: str, total: int) -> None:
        self._target = target
        self._total = total
        self._done = 0
        self._started = time.monotonic()
        self._bar: Progress | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if self._bar:
            self._bar.stop()

    def advance(self, count: int) -> None:
        """Count bytes that arrived."""
        self._done += count
        if not sys.stderr.isatty() or time.monotonic() - self._started < _SHOWN_AFTER_SECONDS:
            return
        if self._bar is None:
            self._bar = transfer_bar(f"sending to {self._target}", self._total)
            self._bar.start()
        self._bar.update(self._bar.task_ids[0], completed=self._done)
