"""`aboard demo`: train something small, and watch it learn on a live board."""

from __future__ import annotations

import os
import signal
import threading
import time
from itertools import count
from pathlib import Path
from typing import Annotated

import typer

from aboard.cli.view import make_board, serve_board

EPILOG = """
Examples:

- `aboard demo` - train for three minutes; the board stays until you press Ctrl-C
- `aboard demo --seconds 20 --no-browser` - end by itself, for a script
- `aboard demo /tmp/demo` - with the logs elsewhere
"""

_USUAL_SECONDS = 180.0


def demo(
    directory: Annotated[
        Path,
        typer.Argument(
            metavar="DIRECTORY", help="Where the logs go; with a number behind it if it is in use."
        ),
    ] = Path("demo-logs"),
    seconds: Annotated[
        float | None,
        typer.Option(
            help="Train this long, and then end. By default the training takes three minutes and"
            " the board stays.",
            min=0,
        ),
    ] = None,
    browser: Annotated[
        bool, typer.Option("--browser/--no-browser", help="Open a browser when ready.")
    ] = True,
    port: Annotated[
        int | None,
        typer.Option(help="The port; by default 6006, or the next that is free.", min=0, max=65535),
    ] = None,
    json: Annotated[
        bool, typer.Option("--json", help="Print the address as one JSON document.")
    ] = False,
) -> None:
    """Train a small network at four learning rates, and watch it live."""
    from aboard.web import Access, listen

    logs = _new_directory(directory)
    stop = threading.Event()
    training = threading.Thread(target=_train, args=[logs, seconds, stop], daemon=True)
    board = make_board([str(logs)], title="Aboard demo")
    if not json:
        typer.echo(f"Training four small networks; their logs are in {logs}")
    sockets = listen("localhost", port)
    training.start()
    try:
        serve_board(board, Access(), sockets, "localhost", browser=browser, json=json)
    finally:
        stop.set()
        training.join()
        if not json:
            typer.echo(f"The logs are in {logs}. See them again with: aboard view {logs}")


def _new_directory(directory: Path) -> Path:
    """Make a directory for this demo alone: the one that is named, or the next that is free."""
    for number in count(1):
        logs = directory if number == 1 else directory.with_name(f"{directory.name}-{number}")
        if logs.is_dir() and not any(logs.iterdir()):
            return logs
        if not logs.exists():
            break
    logs.mkdir(parents=True)
    return logs


def _train(logs: Path, seconds: float | None, stop: threading.Event) -> None:
    from aboard.cli.training import train_all

    train_all(logs, _USUAL_SECONDS if seconds is None else seconds, stop)
    if seconds is not None and not stop.is_set():
        time.sleep(min(1.0, seconds))  # for the last points to be seen
        os.kill(os.getpid(), signal.SIGTERM)
