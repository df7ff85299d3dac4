"""Engines: `aboard engines` lists them, and `aboard doctor --engine` tries one end to end.

`aboard image` builds the image of boards that run in containers.
"""

from __future__ import annotations

import json as jsonlib
import os
import platform
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple, NoReturn
from urllib.parse import urlencode

import typer

from aboard.cli.app import HelpByDefault
from aboard.cli.console import (
    FAILURE,
    Failure,
    JsonOption,
    examples,
    fitted,
    notify,
    print_json,
    printable,
    styled,
    table,
    terminal_width,
)
from aboard.runs.units import format_elapsed, format_size

if TYPE_CHECKING:
    from aboard.sdk.board import Board
    from aboard.sdk.client import Client

_ENGINES_EPILOG = examples(
    "`aboard engines` - list the engines for `aboard start --on` and their status",
    "`aboard engines --json | jq -r '.engines[] | select(.answers) | .name'` - for scripts",
    "`aboard doctor --engine slurm` - try one of them end to end",
)
_IMAGE_EPILOG = examples(
    "`aboard image build` - the default image of boards on Docker",
    "`aboard image build --tag registry.example.org/aboard:1` - for a cluster, to push",
    "`aboard image build --add 'aboard[postgres]'` - with an extra that is installed here",
    "`aboard image build --base my-python` - on your own image, without a registry",
)
_IMAGE = typer.Typer(cls=HelpByDefault, help="Build the image of boards in containers.")
_HEADS = ("NAME", "ANSWERS", "VERSION", "RESOURCES")
TRIAL_RUN, TRIAL_TAG, TRIAL_VALUES = "trial", "loss", (1.0, 0.5, 0.25)
_START_SECONDS = 300.0
_SILENT_SECONDS = 5.0  # after which a notice says what a board waits for
_CURVE_SECONDS = 60.0
_STOP_SECONDS = 120.0
_POLL_SECONDS = 0.1
_UNAUTHORIZED = 401
_ENDS = (signal.SIGTERM, signal.SIGHUP)
_OK, _FAILED = 32, 31  # the colours of a terminal


def engines(json: JsonOption = False) -> None:
    """List the engines on which boards can run: whether they answer, and what is wrong."""
    found = _hub().engines()
    if json:
        print_json({"engines": found})
        return
    heads: Sequence[str] = _HEADS
    rows = [_row(one) for one in found]
    if (width := terminal_width()) is not None:
        heads, rows = fitted(heads, rows, width, least=(), shortest={"RESOURCES": 20})
    typer.echo(table(heads, rows, left=len(heads)))
    for one in found:
        if one["problem"]:
            typer.echo(f"\n{one['name']}: {printable(one['problem'])}")
        if one["hint"]:
            typer.echo(f"  -> {printable(one['hint'])}")


def _hub() -> Client:
    from aboard.sdk.personal import open_hub_for

    return open_hub_for((), notify=notify)


def _row(engine: dict[str, Any]) -> list[str]:
    resources = "; ".join(f"{name} {amount}" for name, amount in engine["resources"].items())
    answers = "yes" if engine["answers"] else "no"
    return [engine["name"], answers, engine["version"] or "-", resources or "-"]


class Stage(NamedTuple):
    """A step of a trial and its result; `hint` says what to do about a failure."""

    stage: str
    ok: bool
    detail: str
    hint: str = ""


class StageFailed(Exception):
    """A stage failed that later ones need."""


def try_engine(name: str, *, json: bool) -> None:
    """Start a small board on an engine, and report each stage."""
    stages: list[Stage] = []

    def report(stage: Stage) -> None:
        stages.append(stage)
        if not json:
            typer.echo(_line(stage))

    with _unwinding():
        _Trial(_hub(), name, report).run()
    ok = all(one.ok for one in stages)
    if json:
        print_json({"engine": name, "ok": ok, "stages": [one._asdict() for one in stages]})
    if not ok:
        raise typer.Exit(FAILURE)


@contextmanager
def _unwinding() -> Iterator[None]:
    """Make termination signals unwind the stack, as Ctrl-C does."""

    def end(number: int, _: FrameType | None) -> None:
        raise SystemExit(128 + number)

    before = {one: signal.getsignal(one) for one in _ENDS}
    changed = [one for one, handler in before.items() if handler is signal.SIG_DFL]
    for one in changed:
        signal.signal(one, end)
    try:
        yield
    finally:
        for one in changed:
            signal.signal(one, before[one])


@contextmanager
def _blocked(*signals: signal.Signals) -> Iterator[None]:
    before = signal.pthread_sigmask(signal.SIG_BLOCK, signals)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _line(stage: Stage) -> str:
    mark = styled("ok    ", _OK) if stage.ok else styled("FAILED", _FAILED)
    lines = [f"{mark} {stage.stage:<10} {printable(stage.detail)}"]
    if stage.hint and not stage.ok:
        lines.append(f"{' ' * 18}-> {printable(stage.hint)}")
    return "\n".join(lines)


class _Trial:
    def __init__(self, client: Client, name: str, report: Callable[[Stage], None]) -> None:
        self._client = client
        self._name = name
        self._report = report
        self._began = time.monotonic()
        self._board: Board | None = None

    def run(self) -> None:
        try:
            self._check_answer()
            board = self._start()
            self._wait(board)
            self._check_connection(board)
            self._check_curve(board)
            self._check_log(board)
        except StageFailed:
            pass
        finally:  # also after a signal; after a second Ctrl-C, the board's timeout stops it
            with _blocked(*_ENDS):
                if self._board is not None:
                    self._end(self._board)

    def _pass(self, stage: str, detail: str) -> None:
        self._report(Stage(stage, True, detail))

    def _fail(self, stage: str, detail: str, hint: str = "") -> StageFailed:
        self._report(Stage(stage, False, detail, hint))
        return StageFailed(stage)

    def _check_answer(self) -> None:
        from aboard.executors import unknown_place

        known = {one["name"]: one for one in self._client.engines()}
        engine = known.get(self._name)
        if engine is None:
            raise self._fail("answers", *unknown_place(self._name, list(known)))
        if not engine["answers"]:
            raise self._fail("answers", engine["problem"], engine["hint"])
        self._pass("answers", engine["version"] or "yes")

    def _start(self) -> Board:
        """Start a trial with the hub's local roots, or without them if they cannot be read."""
        board, reason = self._started(roots=True)
        if board is None:
            without, other = self._started(roots=False)
            if without is None:
                raise self._fail("start", other)
            self._fail("roots", reason, "Boards of local runs need them; others work.")
            board = without
        self._pass("start", f"accepted as board {board.name} ({board.id})")
        return board

    def _started(self, *, roots: bool) -> tuple[Board | None, str]:
        """Return a trial that the engine accepted, or why it did not."""
        from aboard.boards.model import ENDED
        from aboard.sdk import HubError

        self._began = time.monotonic()
        try:
            with _blocked(*_ENDS, signal.SIGINT):  # until the board to delete is known
                board = self._board = self._client.try_engine(self._name, roots=roots)
            while not self._client.trial(self._name, board)["accepted"]:
                board = self._client.get(board)
                if board.state in ENDED:
                    self._board = None
                    self._client.delete(board)
                    return None, board.reason
                if time.monotonic() > self._began + _START_SECONDS:
                    raise self._fail("start", f"not accepted after {_START_SECONDS:g} s")
                time.sleep(_POLL_SECONDS)
        except HubError as error:
            return None, str(error)
        return board, ""

    def _wait(self, board: Board) -> None:
        from aboard.boards.model import ENDED
        from aboard.sdk import BoardFailed, NotReady

        waited: list[str] = []
        announced: list[str] = []

        def note(now: Board) -> None:
            if now.state in ENDED or now.state == "running" or not now.reason:
                return
            if now.reason not in waited:
                waited.append(now.reason)
            late = time.monotonic() > self._began + _SILENT_SECONDS
            if late and now.reason not in announced:
                announced.append(now.reason)
                notify(f"the board waits: {printable(now.reason)}")

        try:
            self._client.wait(board, seconds=_START_SECONDS, data=False, on_change=note)
        except NotReady:
            because = f": {waited[-1]}" if waited else ""
            hint = "Free the resources it waits for, or use a profile that requests less."
            raise self._fail(
                "wait", f"not started after {_START_SECONDS:g} s{because}", hint
            ) from None
        except BoardFailed as error:
            hint = "The reason contains the end of its log."
            raise self._fail("wait", error.reason or str(error), hint) from None
        because = f"; it waited for: {'; '.join(waited)}" if waited else ""
        self._pass("wait", f"it runs after {self._elapsed()}{because}")

    def _check_connection(self, board: Board) -> None:
        seen = self._client.trial(self._name, board)
        if not seen["address"]:
            raise self._fail("address", "it did not report an address.", "See its log.")
        if seen["problem"]:
            hint = "Check that the hub can open connections to this address."
            raise self._fail("address", f"{seen['address']}: {seen['problem']}", hint)
        self._pass("address", seen["address"])
        if not seen["fingerprint"]:
            self._pass("encrypted", "not needed: it listens on this machine only")
        elif seen["fingerprint"] == seen["presented"]:
            self._pass(
                "encrypted", f"with the certificate of this start ({seen['presented'][:16]}…)"
            )
        else:
            detail = "its certificate is not the one created for this start."
            raise self._fail("encrypted", detail, "Another program answers at its address.")
        if seen["status"] == _UNAUTHORIZED:
            self._pass("refuses", "401 without its token")
        else:
            detail = f"status {seen['status']} without its token"
            self._fail("refuses", detail, "Do not use this engine.")

    def _check_curve(self, board: Board) -> None:
        from aboard.sdk import HubError

        path = f"data/plugin/scalars/scalars?{urlencode({'run': TRIAL_RUN, 'tag': TRIAL_TAG})}"
        deadline = time.monotonic() + _CURVE_SECONDS
        problem = "no points"
        while time.monotonic() < deadline:
            try:
                points = jsonlib.loads(self._client.fetch(board, path))
            except (HubError, ValueError) as error:  # the run is not read yet
                problem = str(error)
            else:
                if [value for _, _, value in points] == list(TRIAL_VALUES):
                    count, took = len(TRIAL_VALUES), self._elapsed()
                    detail = f"{count} points through the hub, {took} after the start"
                    self._pass("curve", detail)
                    return
                problem = f"{len(points)} of {len(TRIAL_VALUES)} points"
            time.sleep(_POLL_SECONDS)
        self._fail("curve", problem, f"See its log: aboard logs {board.id}")

    def _check_log(self, board: Board) -> None:
        from aboard.sdk import HubError

        try:
            lines = b"".join(self._client.logs(board)).splitlines()
        except HubError as error:
            raise self._fail("log", str(error)) from None
        notes = [jsonlib.loads(line) for line in lines if line.startswith(b"{")]
        host = next((one["host"] for one in notes if "host" in one), None)
        if host is None:
            self._fail("log", "the lines of the board are missing.", "Check the engine's logging.")
        else:
            self._pass("log", f"{len(lines)} lines, of {host}")
        for one in notes:
            if "root" in one and one["problem"]:
                hint = "Boards of runs below it show nothing: make it readable there."
                self._fail("roots", f"{one['root']}: {one['problem']}", hint)
            elif "root" in one:
                self._pass("roots", f"{one['root']} can be read there")

    def _end(self, board: Board) -> None:
        from aboard.sdk import HubError

        try:
            stopped = self._client.stop(board, seconds=_STOP_SECONDS)
            self._pass("stop", stopped.reason or str(stopped.state))
            self._client.delete(board)
            left = self._client.trial(self._name, board)["left"]
        except HubError as error:
            self._fail("stop", str(error), f"Try again: aboard delete {board.id}")
            return
        if left:
            self._fail("cleanup", f"left: {', '.join(left)}", "Remove it by hand.")
        else:
            self._pass("cleanup", "nothing is left behind")

    def _elapsed(self) -> str:
        return format_elapsed(time.monotonic() - self._began)


def serve_trial() -> NoReturn:
    """Serve a board of a few points: the command of a trial, on the engine.

    First it writes a line of JSON about each root to its log: whether the root can be read there.
    """
    from aboard.cli.app import run
    from aboard.events.writer import EventWriter

    os.environ.pop("ABOARD_VERTEX", None)  # serve the points here, do not upload them
    for root in sys.argv[1:]:
        _log({"root": root, "problem": _problem(Path(root))})
    with tempfile.TemporaryDirectory(prefix="aboard-trial-") as place:
        with EventWriter(Path(place) / TRIAL_RUN) as writer:
            for step, value in enumerate(TRIAL_VALUES):
                writer.scalar(TRIAL_TAG, value, step)
        _log({"host": platform.node()})
        code = run(["view", "--json", "--no-browser", "--title", "A trial", "--", place])
    sys.exit(code)


def _log(note: dict[str, str]) -> None:
    print(jsonlib.dumps(note), file=sys.stderr, flush=True)  # noqa: T201


def _problem(root: Path) -> str:
    try:
        with os.scandir(root) as entries:
            next(entries, None)
    except OSError as error:
        return (error.strerror or str(error)).lower()
    return ""


@_IMAGE.command(epilog=_IMAGE_EPILOG)
def build(
    tag: Annotated[
        str | None, typer.Option(help="The image's name; `aboard:VERSION` by default.")
    ] = None,
    base: Annotated[
        str | None,
        typer.Option(help="The base image; it needs the Python version that runs here."),
    ] = None,
    add: Annotated[
        list[str] | None,
        typer.Option(
            metavar="PACKAGE",
            help="An installed package to add to the image: a plugin of TensorBoard, or an extra"
            " such as `aboard[postgres]`.",
        ),
    ] = None,
    host: Annotated[
        str, typer.Option(help="The address of the daemon; by default that of `docker`.")
    ] = "",
    json: JsonOption = False,
) -> None:
    """Build the image from the running installation, with the same versions of all packages."""
    from aboard.executors.base import ExecutorError
    from aboard.executors.docker.daemon import BASE, build_image, connect, default_tag

    name, on = tag or default_tag(), base or BASE
    try:
        with connect(host) as client:
            built = build_image(client, tag=name, base=on, add=add or (), progress=notify)
    except ExecutorError as error:
        raise Failure(str(error)) from error
    if json:
        print_json({"image": name, "id": built.id, "base": on, "bytes": built.size})
    else:
        typer.echo(f"{name}  {format_size(built.size)}, on {on}")


COMMANDS = {"engines": (engines, _ENGINES_EPILOG), "image": (_IMAGE, _IMAGE_EPILOG)}
