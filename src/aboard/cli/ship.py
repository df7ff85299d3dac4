"""`aboard ship`: send logs that trainings left on this machine to their bucket."""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from aboard.cli.console import (
    FAILURE,
    JsonOption,
    WrongUsage,
    moment,
    notify,
    table,
    transfer_bar,
)
from aboard.runs.units import counted, format_size
from aboard.storage import StorageError, open_storage
from aboard.system import command_line, start_ticks
from aboard.track.shipping.segments import Ledger
from aboard.track.shipping.spool import Owner, Spool, all_spools, spool_root, spool_roots
from aboard.track.shipping.upload import Progress, Uploader

if TYPE_CHECKING:
    from rich.progress import Progress as Bar

EPILOG = """
Examples:

- `aboard ship --list` - list what is left on this machine
- `aboard ship` - send all of it
- `aboard ship 20260131-120000-4711-0a1b2c3d` - send one spool, by its name or its path

A running training sends its own spool, which is only listed. A spool that a background process
cannot send is taken over, with the current credentials and endpoint. The exit code is 1 if
something is left that no process sends.
"""
_TAKE_OVER_SECONDS = 5.0
# The module of a shipper, and its former name, which an old process may have.
_SHIPPERS = ("aboard.track.shipping.shipper", "aboard.track.shipper")
_LOCK_SECONDS = 2.0
_LEFT = ("kept", "elsewhere", "still written", "damaged")  # no process sends such a spool
_BAR_AFTER_SECONDS = 0.3


@dataclass(slots=True)
class SpoolState:
    spool: Spool
    owner: Owner
    state: str
    left: int
    problem: str

    def set_arrived(self) -> None:
        self.state, self.left, self.problem = "arrived", 0, ""

    def as_json(self) -> dict[str, Any]:
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
            help="Spools to send, by name or path; by default all that were left behind.",
            show_default=False,
        ),
    ] = None,
    list_only: Annotated[
        bool, typer.Option("--list", help="List the spools, and send nothing.")
    ] = False,
    json: JsonOption = False,
) -> None:
    """Send logs that training jobs left on this machine to their bucket."""
    found = [_inspect(one) for one in (_named(spool) if spool else all_spools())]
    states = [one for one in found if one is not None]
    states += [] if spool else map(_inspect_damaged, all_spools(damaged=True))
    if not list_only:
        for one in states:
            _send(one, named=bool(spool))
    if json:
        import orjson

        document = {"spools": [one.as_json() for one in states]}
        typer.echo(orjson.dumps(document, option=orjson.OPT_INDENT_2))
    elif not states:
        typer.echo(f"no spools in {spool_root()}")
    elif list_only:
        typer.echo(_table(states))
    if not list_only and any(one.state in _LEFT for one in states):
        raise typer.Exit(FAILURE)


def _named(texts: list[str]) -> list[Spool]:
    spools = []
    for text in texts:
        places = [Path(text).expanduser(), *(root / text for root in spool_roots())]
        place = next((one for one in places if one.exists()), places[0])
        if Spool(place).owner() is None:
            raise WrongUsage(f"{text}: not a spool. 'aboard ship --list' lists the spools.")
        spools.append(Spool(place.absolute()))
    return spools


def _inspect(spool: Spool) -> SpoolState | None:
    owner = spool.owner()
    if owner is None:
        return None  # it was just sent
    presence = owner.presence(spool.lifeline)
    state = {"alive": "in use", "unknown": "elsewhere"}.get(presence, "left behind")
    if state == "left behind" and spool.is_served():
        state = "being sent"
    left = Uploader(spool.files, Ledger(spool.ledger), open_storage(owner.target)).left()
    return SpoolState(spool, owner, state, left, spool.status().problem)


def _inspect_damaged(spool: Spool) -> SpoolState:
    problem = (
        f"{spool.directory}: owner.json, which names the target, is missing or unreadable."
        " Copy the contents of 'files' to the target by hand, and delete the directory."
    )
    left = sum(one.stat().st_size for one in spool.files.rglob("*") if one.is_file())
    created = spool.directory.stat().st_mtime
    return SpoolState(spool, Owner("", created=created), "damaged", left, problem)


def _send(one: SpoolState, *, named: bool) -> None:
    name, owner = one.spool.directory.name, one.owner
    if one.state == "damaged":
        notify(one.problem)
    elif one.state == "in use":
        notify(f"{name}: the training, process {owner.pid}, is still running and sends it.")
    elif one.state == "elsewhere" and not named:
        whose = f"belongs to a training run on {owner.host}"
        notify(f"{name}: {whose}; pass its name to send it from here.")
    else:
        if one.state == "being sent" and one.problem:
            _take_over(one)
        with _lock(one.spool) as ours:
            if ours:
                _send_locked(one)
            elif one.spool.owner() is None:
                one.set_arrived()
                notify(f"{name}: already sent.")
            else:
                one.state = "being sent"
                pid = one.spool.status().pid
                notify(f"{name}: {f'process {pid}' if pid else 'another process'} is sending it.")


def _send_locked(one: SpoolState) -> None:
    from aboard.track.shipping.shipper import send_abandoned

    where = one.spool.directory
    if writer := one.spool.writer():
        one.state = "still written"
        which = f"process {writer.pid} may still write to it"
        notify(f"{where.name}: {which}; try again when it has exited.")
        return
    try:
        with _progress_bar(one.owner.target, one.left) as advance:
            result = send_abandoned(one.spool, one.owner, advance)
        problem, refused = str(result.problem or result.refused), result.complete
    except StorageError as error:
        problem, refused = str(error), False
    if problem:
        one.state, one.problem = "kept", problem
        rest = "All other files were sent. Then run 'aboard ship' to send this one."
        notify(f"{problem} {rest if refused else f'The logs are kept in {where}.'}")
    else:
        notify(f"{format_size(one.left)} sent to {one.owner.target}")
        one.set_arrived()


@contextlib.contextmanager
def _lock(spool: Spool) -> Iterator[bool]:
    """Try to lock a spool, until its other sender is known or the spool is gone."""
    deadline = time.monotonic() + _LOCK_SECONDS
    while True:
        with spool.lock() as ours:
            known = start_ticks(spool.status().pid) or spool.owner() is None
            if ours or known or time.monotonic() > deadline:
                yield ours
                return
        time.sleep(0.05)


def _take_over(one: SpoolState) -> None:
    """Kill a process that cannot send: it has the credentials and endpoint of its start."""
    pid = one.spool.status().pid
    command = command_line(pid)
    if not any(name in command for name in _SHIPPERS) or str(one.spool.directory) not in command:
        return  # it has exited, or cannot be identified
    try:
        os.kill(pid, signal.SIGKILL)  # safe: its ledger survives a kill
    except OSError:
        return
    deadline = time.monotonic() + _TAKE_OVER_SECONDS
    while one.spool.is_served() and time.monotonic() < deadline:
        time.sleep(0.05)
    notify(f"{one.spool.directory.name}: process {pid} could not send it, so this one sends it.")


def _table(states: list[SpoolState]) -> str:
    rows = [
        [
            *(one.spool.directory.name, one.owner.target or "-", one.state),
            *(moment(one.owner.created), format_size(one.left)),
        ]
        for one in states
    ]
    lines = [table(["SPOOL", "TARGET", "STATE", "CREATED", "LEFT"], rows, left=4)]
    problems = {one.problem for one in states if one.problem}
    lines += [f"problem: {problem}" for problem in sorted(problems)]
    return "\n".join([*lines, f"{counted(len(states), 'spool')} in {spool_root()}"])


@contextlib.contextmanager
def _progress_bar(target: str, total: int) -> Iterator[Progress]:
    bar: Bar | None = None
    done = 0
    started = time.monotonic()

    def advance(count: int) -> None:
        nonlocal bar, done
        done += count
        if not sys.stderr.isatty() or time.monotonic() - started < _BAR_AFTER_SECONDS:
            return
        if bar is None:
            bar = transfer_bar(f"sending to {target}", total)
            bar.start()
        bar.update(bar.task_ids[0], completed=done)

    try:
        yield advance
    finally:
        if bar is not None:
            bar.stop()
