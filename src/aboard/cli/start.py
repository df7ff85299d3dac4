"""`aboard start`: a board of a selection on a hub, opened when it serves data."""

from __future__ import annotations

import re
import sys
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from aboard.cli.asking import JsonOption, open_in_browser, print_json, tell_way
from aboard.cli.completing import selectors_like
from aboard.cli.errors import INTERRUPTED, WrongUsage, say

if TYPE_CHECKING:
    from aboard.sdk.board import Board
    from aboard.sdk.client import Client

EPILOG = """
Examples:

- `aboard start runs/` - every run below a directory
- `aboard start cifar10/run1-run3 tag:baseline` - some runs of the hub's roots
- `aboard start cifar10 --runs 1,4` - two runs of an experiment
- `aboard start cifar10/run1 mnist/run4` - runs of different experiments
- `aboard start s3://bucket/runs --name nightly --timeout 8h` - with a name, until tonight
- `aboard start runs/ --engine stock --memory 4GiB` - TensorBoard's own loaders, in a process

It is opened when data is served, or after 10 seconds without any; Ctrl-C ends the waiting, not the
board. The same selection twice gives the same board. Without a hub, one of your own is started in
the background; `aboard hub stop` ends it, and your boards come back with the next one.
"""
_NUMBER = re.compile(r"[0-9]+(-[0-9]+)?")
_DATA_SECONDS = 10.0
_SILENT_SECONDS = 1.0
"""Whoever has no terminal is told what is waited for if it takes longer."""
_START_SECONDS = 300.0


def start(
    selector: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[SELECTOR]...",
            help="Which runs: selectors, paths or URIs, one or more.",
            show_default=False,
            autocompletion=selectors_like,
        ),
    ] = None,
    name: Annotated[str | None, typer.Option(help="What to call it; made up unless told.")] = None,
    template: Annotated[
        str | None,
        typer.Option(help="How runs are named, such as '{experiment}_{run}_lr={hparams.lr}'."),
    ] = None,
    on: Annotated[
        Literal["instant", "process"] | None,
        typer.Option(
            metavar="instant|process",
            help="instant: served by the hub itself, at once. process: in one of its own."
            " [default: as the hub is set]",
        ),
    ] = None,
    engine: Annotated[
        Literal["fast", "stock"] | None,
        typer.Option(
            metavar="fast|stock",
            help="fast: our index. stock: TensorBoard's own loaders, in a process.",
        ),
    ] = None,
    timeout: Annotated[
        str | None, typer.Option(help="How long it may run, such as 8h or 7d; 0: for ever.")
    ] = None,
    idle_timeout: Annotated[
        str | None, typer.Option(help="How long it may run while nobody looks, such as 30m.")
    ] = None,
    memory: Annotated[
        str | None, typer.Option(help="The limit of a process of its own, such as 2GiB.")
    ] = None,
    runs: Annotated[
        list[str] | None,
        typer.Option(
            "--runs",
            "--trial-ids",
            metavar="RUN",
            help="Only these runs of the experiments: 1,4 or 3-7 or names; may be repeated. Without"
            " an experiment, runs of any: cifar10/run1,mnist/run4.",
        ),
    ] = None,
    team: Annotated[
        bool, typer.Option("--team", help="Let everybody on the hub see it, not you alone.")
    ] = False,
    new: Annotated[
        bool, typer.Option("--new", help="Make one, even if there is one of this selection.")
    ] = False,
    browser: Annotated[
        bool, typer.Option("--browser/--no-browser", help="Open a browser when ready.")
    ] = True,
    detach: Annotated[
        bool, typer.Option("--detach", help="Do not wait for data, and open no browser.")
    ] = False,
    json: JsonOption = False,
) -> None:
    """Start a board of a selection of runs, and open it."""
    from aboard.sdk.ready import ready_hub

    selectors = narrowed(selector or [], runs or [])
    client = ready_hub(selectors, say)
    board = client.create(
        selectors,
        name=name,
        template=template,
        on=on,
        engine=engine,
        timeout=timeout,
        idle_timeout=idle_timeout,
        memory=memory,
        visibility="team" if team else None,
        new=new,
    )
    if not detach:
        board = _wait(client, board)
    link = client.link(board)
    if json:
        print_json(board.document | {"link": link})
        return
    typer.echo(f"{board.name} ({board.id}): {link}")
    tell_way(board.url)
    if browser and not detach:
        open_in_browser(link)


def narrowed(selectors: Sequence[str], runs: Sequence[str]) -> list[str]:
    """Return selectors of some runs of experiments: `cifar10` and `1,4` are run1 and run4 of it.

    Runs that are named with their experiment are meant by themselves, and so are all of them
    where no experiment is named. A number beside an experiment is one more run, as in
    `cifar10 --runs 1 4`.
    """
    wanted = [one.strip() for text in runs for one in text.split(",") if one.strip()]
    if not wanted and not selectors:
        raise WrongUsage("say which runs to show: aboard start SELECTOR.")
    if not wanted:
        return list(selectors)
    from aboard.runs.select import is_path

    for one in selectors:
        if is_path(one) or set(one) & set(":,"):
            raise WrongUsage(f"--runs narrows experiments, and {one!r} is none.")
    words = [one for one in selectors if "/" not in one]
    numbers = [one for one in words if _NUMBER.fullmatch(one)]
    if len(numbers) == len(words):
        numbers = []  # an experiment can be called 7
    experiments = [one for one in words if one not in numbers]
    named = [one for one in (*selectors, *wanted) if "/" in one]
    short = [_run_name(one) for one in (*wanted, *numbers) if "/" not in one]
    if experiments and not short:
        raise WrongUsage(f"--runs names no run of {experiments[0]!r}.")
    return [*named, *(f"{one}/{run}" for one in experiments for run in short)] or short


def _run_name(text: str) -> str:
    return (
        "-".join(f"run{number}" for number in text.split("-")) if _NUMBER.fullmatch(text) else text
    )


def _wait(client: Client, board: Board) -> Board:
    """Wait until data is served; a board without any is told, and shows them when they come."""
    from aboard.sdk.errors import NotReady

    progress = _Progress()
    try:
        board = client.wait(board, seconds=_START_SECONDS, data=False, on_change=progress)
        return client.wait(board, seconds=_DATA_SECONDS, on_change=progress)
    except KeyboardInterrupt:
        progress.clear()
        say(f"board {board.name} goes on without you; end it with: aboard stop {board.id}")
        raise typer.Exit(INTERRUPTED) from None
    except NotReady:
        if board.state != "running":
            raise
        progress.clear()
        say("there is no data yet; the board shows it as soon as it appears.")
        return client.get(board)
    finally:
        progress.clear()


class _Progress:
    """What a board is doing: a line that comes and goes on a terminal, and one that stays else."""

    def __init__(self) -> None:
        self._at_terminal = sys.stderr.isatty()
        self._began = time.monotonic()
        self._shown = ""
        self._told = False

    def __call__(self, board: Board) -> None:
        text = f"{board.name}: {board.condition or board.state}"
        if not self._at_terminal:
            self._tell(board)
        elif text != self._shown:
            self.clear()
            self._shown = text
            typer.echo(text, err=True, nl=False)

    def _tell(self, board: Board) -> None:
        if self._told or time.monotonic() - self._began < _SILENT_SECONDS:
            return
        self._told = True
        if board.state == "running":
            say(f"board {board.name} has no data yet; waiting {_DATA_SECONDS:g} s for some.")
        else:
            say(f"board {board.name} is {board.state}; waiting until it runs.")

    def clear(self) -> None:
        """Take the line away."""
        if self._shown:
            typer.echo("\r\x1b[K", err=True, nl=False)
            self._shown = ""
