"""A board on a hub: its last document, and methods for its requests.

Also what it shares with the client: selectors as arguments, and whether a board is ready.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Unpack
from urllib.parse import urlsplit

from aboard.boards.model import ENDED, INSTANT, BoardFields, BoardOptions, from_document
from aboard.sdk import BoardFailed, NotReady

if TYPE_CHECKING:
    from aboard.sdk.client import Client

Selectors = str | os.PathLike[str] | Iterable[str | os.PathLike[str]]


class Board(BoardFields):
    """A board on a hub, with the fields of `BoardFields` as attributes.

    `Board.create`, `Board.get` and `Board.list` return boards; they use the hub that `Client()`
    finds unless one is given. The attributes are those of the last response; `refresh` updates
    them. Times are in seconds since 1970, durations in seconds, sizes in bytes.
    """

    def __init__(self, client: Client, document: dict[str, Any]) -> None:
        self._client = client
        self._load(document)

    @classmethod
    def create(
        cls,
        selectors: Selectors | None = None,
        *,
        uri: Selectors | None = None,
        wait: bool = True,
        seconds: float = 300.0,
        client: Client | None = None,
        new: bool = False,
        **options: Unpack[BoardOptions],
    ) -> Board:
        """Start a board of paths, URIs or selectors, or return the live board of the selection.

        Args:
            selectors: a path, a URI, a selector, or several.
            uri: the same as `selectors`.
            wait: return only when it serves data.
            seconds: the longest time to wait.
            client: the hub.
            new: create a board even if this selection has a live one.
            options: those of `Client.create`.

        Raises:
            BoardLimitExceeded: you have reached your limit of boards.
            BoardFailed: it ended while waiting.
            NotReady: it is not ready in time.
        """
        from aboard.sdk.personal import open_hub_for

        shown = one_of(selectors, uri)
        board = (client or open_hub_for(shown)).create(shown, new=new, **options)
        return board.wait(seconds=seconds) if wait else board

    @classmethod
    def get(cls, board: str, *, client: Client | None = None) -> Board:
        """Return a board by its id, its name, or a prefix of either."""
        return _hub(client).get(board)

    @classmethod
    def list(
        cls,
        *,
        all: bool = False,  # noqa: A002 - the word of the API
        states: Sequence[str] = (),
        client: Client | None = None,
    ) -> list[Board]:
        """Return your boards, newest first; with `all`, also ended ones."""
        return _hub(client).list(all=all, states=states)

    @property
    def app_uri(self) -> str:
        """The same as `url`."""
        return self.url

    @property
    def document(self) -> dict[str, Any]:
        """The complete document of the REST API, with an absolute URL."""
        return self._document | {"url": self.url}

    def refresh(self) -> Board:
        """Update its attributes from the hub."""
        return self._update(self._client.get(self))

    def wait(self, *, seconds: float = 300.0, data: bool = True) -> Board:
        """Wait until it serves data; see `Client.wait`."""
        return self._update(self._client.wait(self, seconds=seconds, data=data))

    def stop(self, *, now: bool = False, wait: bool = True) -> Board:
        """Stop it and, by default, wait until it has stopped."""
        return self._update(self._client.stop(self, now=now, wait=wait))

    def restart(self) -> Board:
        """Restart it at the same address."""
        return self._update(self._client.restart(self))

    def delete(self, *, force: bool = False) -> str:
        """Delete it with its history; see `Client.delete`."""
        return self._client.delete(self, force=force)

    def add(self, *selectors: str) -> Board:
        """Add selectors."""
        return self._update(self._client.select(self, add=selectors))

    def remove(self, *selectors: str) -> Board:
        """Remove selectors."""
        return self._update(self._client.select(self, remove=selectors))

    def logs(self, *, tail: int | None = None, follow: bool = False) -> Iterator[str]:
        """Yield the lines of its log; an instant board has none."""
        rest = b""
        for piece in self._client.logs(self, tail=tail, follow=follow):
            *lines, rest = (rest + piece).split(b"\n")
            yield from (line.decode(errors="replace") for line in lines)
        if rest:
            yield rest.decode(errors="replace")

    def history(self) -> Sequence[dict[str, Any]]:
        """Return its states, oldest first."""
        return self._client.history(self)

    def link(self) -> str:
        """Return a one-time link that opens it in a browser."""
        return self._client.link(self)

    def share(self, *, lasts: str | float | None = None) -> str:
        """Return a link that shows it without a login; `lasts` is a time such as `"7d"`."""
        return str(self._client.share(self, lasts=lasts)["url"])

    def __repr__(self) -> str:
        return f"<Board {self.name} ({self.id}): {self.state}, {self.url}>"

    def _update(self, other: Board) -> Board:
        self._load(other._document)
        return self

    def _load(self, document: dict[str, Any]) -> None:
        self._document = document
        values = from_document(document)
        if values["url"].startswith("/"):
            hub = urlsplit(self._client.url)
            values["url"] = f"{hub.scheme}://{hub.netloc}{values['url']}"
        vars(self).update(values)  # attributes are read-only


def _hub(client: Client | None) -> Client:
    from aboard.sdk.client import Client

    return client or Client()


# Selectors as arguments.


def as_selectors(given: Selectors) -> list[str]:
    """Return selectors for a hub, with absolute instead of relative paths."""
    if isinstance(given, (str, os.PathLike)):
        given = [given]
    elif isinstance(given, bytes) or not isinstance(given, Iterable):
        raise TypeError(f"selectors are {given!r:.60}, not a path, URI or selector, or several")
    return [absolute(one) for one in given]


def one_of(selectors: Selectors | None, uri: Selectors | None) -> Selectors:
    """Return the argument of `create`, which has two names."""
    if (selectors is None) == (uri is None):
        raise TypeError("create() takes either selectors or uri")
    return selectors if selectors is not None else uri or ()


def absolute(one: str | os.PathLike[str]) -> str:
    from aboard.runs.selectors import is_path
    from aboard.storage import canonical

    if not isinstance(one, str | os.PathLike):
        raise TypeError(f"{one!r:.60}, one of the selectors, is not a path, URI or selector")
    text = os.fspath(one)
    if not isinstance(one, str) or is_path(text) or _exists(text):
        return canonical(text)
    return text


def _exists(text: str) -> bool:
    try:
        return Path(text).exists()
    except (OSError, ValueError):
        return False


# Waiting for boards.


def is_ready(board: Board, *, data: bool) -> bool:
    """Return whether a board runs and, if `data`, shows some runs.

    Raises:
        BoardFailed: it has ended.
        NotReady: its sources cannot be read.
    """
    if board.state in ENDED:
        raise _ended_error(board)
    if board.state != "running":
        return False
    if data and not board.runs and board.problems:
        message = f"board {board.name} has no data: {board.problems[0]}"
        hint = "The board shows data as soon as the source can be read."
        raise NotReady(message, hint, code="not_ready")
    return bool(board.runs) or not data


def _ended_error(board: Board) -> BoardFailed:
    reason = f": {board.reason}" if board.reason else ""
    message = f"board {board.name} has ended ({board.state}){reason}".rstrip(".") + "."
    hint = f"Start it again with: aboard restart {board.id}"
    if board.on != INSTANT:
        hint = f"See its log: aboard logs {board.id}. {hint}"
    return BoardFailed(message, hint, state=board.state, reason=board.reason)


def not_ready_error(board: Board, seconds: float) -> NotReady:
    reason = f" ({board.reason})" if board.reason else ""
    if board.state == "stopping":
        message = f"board {board.name} is still stopping after {seconds:g} s{reason}."
        hint = f"The hub keeps trying. If its engine is gone: aboard delete {board.id} --force"
    else:
        what = board.condition or f"it is {board.state}"
        message = f"board {board.name} is not ready after {seconds:g} s: {what}{reason}."
        hint = f"Try again later: aboard describe {board.id}"
    return NotReady(message, hint, code="not_ready")
