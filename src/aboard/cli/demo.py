"""`aboard demo`: train something small, and watch it learn on a live board."""

from __future__ import annotations

import os
import signal
import threading
import time
from contextlib import ExitStack, suppress
from itertools import count
from pathlib import Path
from typing import Annotated

import typer

from aboard.cli.errors import Failure, WrongUsage, is_debugging, line_for
from aboard.cli.view import make_board, serve_board

EPILOG = """
Examples:

- `aboard demo` - train for three minutes; the board stays until you press Ctrl-C
- `aboard demo --seconds 20 --no-browser` - end by itself, for a script
- `aboard demo /tmp/demo` - with the logs elsewhere
"""

_USUAL_SECONDS = 180.0
_MOST_SECONDS = 7 * 86400.0


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

    if seconds is not None and not seconds <= _MOST_SECONDS:
        raise WrongUsage(f"--seconds: {seconds} is no time to train. Choose up to {_MOST_SECONDS}.")
    with ExitStack() as closing:
        sockets = [closing.enter_context(one) for one in listen("localhost", port)]
        logs = _new_directory(directory)
        board = make_board([str(logs)], title="Aboard demo")
        if not json:
            typer.echo(f"Training four small networks; their logs are in {logs}")
        training = _Training(logs, seconds)
        training.start()
        try:
            serve_board(
                board,
                Access(),
                sockets,
                "localhost",
                browser=browser,
                json=json,
                on_ready=training.board_is_open.set,
            )
        finally:
            training.end()
            if not json:
                with suppress(OSError):  # of a terminal that was closed
                    typer.echo(f"The logs are in {logs}. See them again with: aboard view {logs}")
    if training.error is not None:
        if is_debugging():
            raise training.error
        raise Failure(f"the training failed: {line_for(training.error)}")


def _new_directory(directory: Path) -> Path:
    """Make a directory for this demo alone: the one that is named, or the next that is free."""
    if directory.name in ("", ".."):
        directory = directory.resolve()
        if not directory.name:
            raise WrongUsage(f"{directory}: the logs need a directory of their own. Name one.")
    for number in count(1):
        logs = directory if number == 1 else directory.with_name(f"{directory.name}-{number}")
        if logs.is_dir() and not any(logs.iterdir()):
            return logs
        if not logs.exists():
            break
    logs.mkdir(parents=True)
    return logs


class _Training(threading.Thread):
    """Trains beside the board; ends the process when it is done, if it should, or failed.

    Args:
        logs: where to.
        seconds: how long; without it, the board stays when the training is done.
    """

    def __init__(self, logs: Path, seconds: float | None) -> None:
        super().__init__(name="aboard-demo", daemon=True)
        self.error: Exception | None = None
        self._logs = logs
        self._seconds = seconds
        self._stop_early = threading.Event()
        self.board_is_open = threading.Event()
        """Before that, the process is not asked to end: it could not say why."""

    def run(self) -> None:
        """Train."""
        from aboard.cli.training import train_all

        seconds = self._seconds
        try:
            train_all(self._logs, _USUAL_SECONDS if seconds is None else seconds, self._stop_early)
        except Exception as error:  # noqa: BLE001 - it is told when the board has ended
            self.error = error
        if self._stop_early.is_set():
            return
        if self.error is None and seconds is not None:
            time.sleep(min(1.0, seconds))  # for the last points to be seen
        if self.error is not None or seconds is not None:
            self.board_is_open.wait()
            os.kill(os.getpid(), signal.SIGTERM)

    def end(self) -> None:
        """Stop early, and wait for that."""
        self._stop_early.set()
        self.board_is_open.set()
        self.join()
