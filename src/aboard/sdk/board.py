"""A board, as a program holds it: what the hub said of it last, and what can be done with it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any
from urllib.parse import urljoin

if TYPE_CHECKING:
    from aboard.sdk.client import Client, Selectors

ENDED = frozenset({"stopped", "failed", "lost"})


class Board:
    """A board on a hub.

    `Board.create`, `Board.get` and `Board.list` make them; they use the hub that `Client()`
    finds unless one is given. What a board is read as is what the hub said last: `refresh` asks
    again.
    """

    def __init__(self, client: Client, document: dict[str, Any]) -> None:
        self._client = client
        self._document = document

    @classmethod
    def create(
        cls,
        selectors: Selectors,
        *,
        wait: bool = True,
        seconds: float = 300.0,
        client: Client | None = None,
        **wishes: Any,
    ) -> Board:
        """Start a board of paths, URIs or selectors, or return the live one that there is.

        Args:
            selectors: a path, a URI, a selector, or several.
            wait: return when it serves data, not before.
            seconds: for how long to wait.
            client: the hub.
            wishes: as `Client.create` takes them.

        Raises:
            BoardLimitExceeded: you have as many as you may.
            BoardFailed: it has ended while it was waited for.
            NotReady: it takes longer.
        """
        from aboard.sdk.ready import ready_hub

        board = (client or ready_hub(selectors)).create(selectors, **wishes)
        return board.wait(seconds=seconds) if wait else board

    @classmethod
    def get(cls, board: str, *, client: Client | None = None) -> Board:
        """Return a board by its id, the beginning of one, or its name."""
        return _hub(client).get(board)

    @classmethod
    def list(
        cls,
        *,
        all: bool = False,  # noqa: A002 - the word of the API
        states: Sequence[str] = (),
        client: Client | None = None,
    ) -> list[Board]:
        """Return your boards, the newest first; the live ones unless told."""
        return _hub(client).list(all=all, states=states)

    # What it is.

    @property
    def id(self) -> str:
        """Its id."""
        return str(self._document["id"])

    @property
    def name(self) -> str:
        """Its name."""
        return str(self._document["name"])

    @property
    def owner(self) -> str:
        """Whose it is."""
        return str(self._document["owner"])

    @property
    def state(self) -> str:
        """`pending`, `starting`, `running`, `stopping`, `stopped`, `failed` or `lost`."""
        return str(self._document["state"])

    @property
    def reason(self) -> str:
        """Why it is in its state."""
        return str(self._document["reason"])

    @property
    def condition(self) -> str:
        """`waiting for data`, or nothing."""
        return str(self._document["condition"])

    @property
    def on(self) -> str:
        """Where it runs: `instant`, or `process`."""
        return str(self._document["on"])

    @property
    def runs(self) -> int:
        """How many runs it shows."""
        return int(self._document["runs"])

    @property
    def selectors(self) -> Sequence[str]:
        """What it shows, as it was asked for."""
        return tuple(self._document["selectors"])

    @property
    def url(self) -> str:
        """Its address, for whoever may see it."""
        return urljoin(f"{self._client.url}/", str(self._document["url"]))

    @property
    def app_uri(self) -> str:
        """The same as `url`."""
        return self.url

    @property
    def document(self) -> dict[str, Any]:
        """Everything that the hub said of it, with its whole address."""
        return self._document | {"url": self.url}

    # What can be done with it.

    def refresh(self) -> Board:
        """Ask the hub how it is now."""
        return self._now(self._client.get(self))

    def wait(self, *, seconds: float = 300.0, data: bool = True) -> Board:
        """Wait until it serves data; see `Client.wait`."""
        return self._now(self._client.wait(self, seconds=seconds, data=data))

    def stop(self, *, now: bool = False, wait: bool = True) -> Board:
        """Stop it, and wait for its end."""
        return self._now(self._client.stop(self, now=now, wait=wait))

    def restart(self) -> Board:
        """Start it anew, at the same address."""
        return self._now(self._client.restart(self))

    def delete(self) -> None:
        """Forget it with its history."""
        self._client.delete(self)

    def add(self, *selectors: str) -> Board:
        """Show more."""
        return self._now(self._client.select(self, add=selectors))

    def remove(self, *selectors: str) -> Board:
        """Show less."""
        return self._now(self._client.select(self, remove=selectors))

    def logs(self, *, tail: int | None = None, follow: bool = False) -> Iterator[str]:
        """Yield the lines of its log; an instant board has none."""
        rest = b""
        for piece in self._client.logs(self, tail=tail, follow=follow):
            *lines, rest = (rest + piece).split(b"\n")
            yield from (line.decode(errors="replace") for line in lines)
        if rest:
            yield rest.decode(errors="replace")

    def history(self) -> Sequence[dict[str, Any]]:
        """Return what it went through, the oldest first."""
        return self._client.history(self)

    def link(self) -> str:
        """Return a link that opens it in a browser, once."""
        return self._client.link(self)

    def share(self, *, lasts: str | float | None = None) -> str:
        """Return a link that shows it to whoever has it, for a time such as `"7d"`."""
        return str(self._client.share(self, lasts=lasts)["url"])

    def __repr__(self) -> str:
        return f"<Board {self.name} ({self.id}): {self.state}, {self.url}>"

    def _now(self, other: Board) -> Board:
        self._document = other._document
        return self


def _hub(client: Client | None) -> Client:
    from aboard.sdk.client import Client

    return client or Client()
