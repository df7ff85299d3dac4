"""What the commands over a hub have in common: the hub, links in a browser, times, and JSON."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Annotated, Any

import typer

from aboard.cli.completing import boards_like
from aboard.cli.errors import FAILURE, WrongUsage, is_debugging, line_for, say

if TYPE_CHECKING:
    from aboard.sdk.board import Board
    from aboard.sdk.client import Client

JsonOption = Annotated[bool, typer.Option("--json", help="Print one JSON document instead.")]
BoardArgument = Annotated[
    str,
    typer.Argument(
        metavar="BOARD",
        help="A name or an id, or the beginning of one.",
        show_default=False,
        autocompletion=boards_like,
    ),
]
BoardsArgument = Annotated[
    list[str],
    typer.Argument(
        metavar="BOARD...",
        help="Names or ids, or beginnings of them; one or more.",
        show_default=False,
        autocompletion=boards_like,
    ),
]


def the_hub() -> Client:
    """Return the hub that is meant; none is started for a question."""
    from aboard.sdk.client import Client

    return Client(start=False)


def is_at_terminal() -> bool:
    """Say whether somebody is there to be asked."""
    return sys.stdin is not None and sys.stdin.isatty()


def ask_secret(question: str, *, twice: bool = False) -> str:
    """Ask for a secret without showing it, or read it from a pipe."""
    if is_at_terminal():
        prompt = typer.prompt(question, hide_input=True, confirmation_prompt=twice, err=True)
        return str(prompt).strip()
    text = (sys.stdin.readline() if sys.stdin is not None else "").strip()
    if not text:
        raise WrongUsage("there is no secret on standard input.")
    return text


def print_json(document: object) -> None:
    """Print a document for machines."""
    import orjson

    typer.echo(orjson.dumps(document, option=orjson.OPT_INDENT_2))


def each(
    boards: Sequence[str],
    work: Callable[[str], tuple[str, dict[str, Any]]],
    done: str,
    *,
    json: bool,
) -> None:
    """Do something with each board; one that fails is told and does not spare the others.

    Args:
        boards: which.
        work: does it with one; returns what to say was done, and what the board is then.
        done: what is done, as the document calls it.
        json: print a document.
    """
    from aboard.sdk.errors import HubError

    finished: list[dict[str, Any]] = []
    errors: list[dict[str, str]] = []
    for board in boards:
        try:
            said, result = work(board)
        except HubError as error:
            if is_debugging():
                raise
            errors.append({"board": board, "code": error.code, "message": line_for(error)})
            say(line_for(error))
            continue
        finished.append(result)
        if not json:
            reason = f": {result['reason']}" if result.get("reason") else ""
            typer.echo(f"{said} {result['name']} ({result['id']}){reason}")
    if json:
        print_json({done: finished, "errors": errors})
    if errors:
        raise typer.Exit(FAILURE)


_OPENER = """
import sys, threading
from aboard.cli.view import open_link
open_link(sys.stdin.readline().strip(), threading.Event())
"""


def open_in_browser(link: str) -> None:
    """Open a link, if there is a browser where the user is; do not keep him waiting.

    The page that leads the browser to the link is taken away some time after this command has
    ended, by a process that gets the link where no list of processes shows it.
    """
    from aboard.cli.view import can_open

    if not can_open():
        return
    opener = subprocess.Popen(
        [sys.executable, "-P", "-c", _OPENER],
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
        text=True,
    )
    if opener.stdin is not None:
        with opener.stdin as pipe:
            pipe.write(link)


def tell_way(url: str) -> None:
    """Say how a board on this machine is reached by somebody who came over SSH."""
    if not os.environ.get("SSH_CONNECTION"):
        return  # asked here, because what writes the hint takes long to import
    from urllib.parse import urlsplit

    from aboard.web import forwarding_hint

    parts = urlsplit(url)
    if parts.hostname == "localhost" and parts.port:
        typer.echo(f"From your own machine, first: {forwarding_hint(os.environ, parts.port)}")


def seconds_of(text: str | None) -> float | None:
    """Return a time of the API in seconds since 1970."""
    return None if not text else datetime.fromisoformat(text).timestamp()


def standing(secret: dict[str, Any]) -> str:
    """Say whether a token or a link still opens something."""
    if secret["revoked"]:
        return "revoked"
    ends = seconds_of(secret["expires"])
    return "expired" if ends is not None and ends <= time.time() else "good"


def age(text: str | None, *, now: float | None = None) -> str:
    """Write how long ago a time was, or how long it is until then, roughly."""
    at = seconds_of(text)
    if at is None:
        return "-"
    seconds = abs((time.time() if now is None else now) - at)
    for unit, size in (("d", 86400), ("h", 3600), ("m", 60)):
        if seconds >= 2 * size:
            return f"{seconds / size:.0f}{unit}"
    return f"{seconds:.0f}s"


def shown(board: Board, *, most: int = 3) -> str:
    """Write what a board shows, some of it if it is much."""
    selectors = board.selectors
    more = f" +{len(selectors) - most}" if len(selectors) > most else ""
    return ", ".join(selectors[:most]) + more
