"""What the commands over a hub have in common: the hub, links in a browser, times, and JSON."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Annotated, Any

import typer

from aboard.cli.errors import FAILURE, is_debugging, line_for, say

if TYPE_CHECKING:
    from aboard.sdk.board import Board
    from aboard.sdk.client import Client

JsonOption = Annotated[bool, typer.Option("--json", help="Print one JSON document instead.")]
BoardArgument = Annotated[
    str,
    typer.Argument(
        metavar="BOARD", help="An id, the beginning of one, or a name.", show_default=False
    ),
]
BoardsArgument = Annotated[
    list[str],
    typer.Argument(
        metavar="BOARD",
        help="Ids, beginnings of them, or names; one or more.",
        show_default=False,
    ),
]


def the_hub() -> Client:
    """Return the hub that is meant; none is started for a question."""
    from aboard.sdk.client import Client

    return Client(start=False)


def print_json(document: object) -> None:
    """Print a document for machines."""
    import orjson

    typer.echo(orjson.dumps(document, option=orjson.OPT_INDENT_2))


def each(
    boards: Sequence[str],
    work: Callable[[str], dict[str, Any]],
    done: str,
    *,
    json: bool,
) -> None:
    """Do something with each board; one that fails is told and does not spare the others."""
    from aboard.sdk.errors import HubError

    finished: list[dict[str, Any]] = []
    errors: list[dict[str, str]] = []
    for board in boards:
        try:
            result = work(board)
        except HubError as error:
            if is_debugging():
                raise
            errors.append({"board": board, "code": error.code, "message": line_for(error)})
            say(line_for(error))
            continue
        finished.append(result)
        if not json:
            reason = f": {result['reason']}" if result.get("reason") else ""
            typer.echo(f"{done} {result['name']} ({result['id']}){reason}")
    if json:
        print_json({done: finished, "errors": errors})
    if errors:
        raise typer.Exit(FAILURE)


def open_in_browser(link: str) -> None:
    """Open a link, if there is a browser where the user is; do not keep him waiting."""
    from aboard.cli.view import can_open, open_link

    if not can_open():
        return
    if os.fork():
        return
    # The page that leads the browser to the link is taken away some time after this command.
    try:
        os.setsid()
        null = os.open(os.devnull, os.O_RDWR)
        for stream in range(3):
            os.dup2(null, stream)
        open_link(link, threading.Event())
    finally:
        os._exit(0)


def tell_way(url: str) -> None:
    """Say how a board on this machine is reached by somebody who came over SSH."""
    if "SSH_CONNECTION" not in os.environ:
        return
    from urllib.parse import urlsplit

    from aboard.web import forwarding_hint

    parts = urlsplit(url)
    if parts.hostname == "localhost" and parts.port:
        typer.echo(f"From your own machine, first: {forwarding_hint(os.environ, parts.port)}")


def seconds_of(text: str | None) -> float | None:
    """Return a time of the API in seconds since 1970."""
    return None if not text else datetime.fromisoformat(text).timestamp()


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
