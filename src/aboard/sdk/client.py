"""The hub's REST API from Python: one method for each thing that can be asked.

Each request is a connection of its own, so a client may be shared between threads. What a board
can do by itself is in `board`, which hub is meant in `finding`, the same to be awaited in
`awaiting`.
"""

from __future__ import annotations

import json
import os
import secrets
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from http.client import HTTPException, HTTPResponse
from pathlib import Path
from typing import Any

from aboard.sdk.board import ENDED, Board
from aboard.sdk.errors import BoardFailed, HubError, NotReady, Unreachable, error_of
from aboard.sdk.finding import KnownHub, find_hub, start_personal

Selectors = str | os.PathLike[str] | Iterable[str | os.PathLike[str]]
Document = dict[str, Any]
Documents = list[Document]

_FIRST_POLL_SECONDS, _LAST_POLL_SECONDS = 0.02, 1.0
_LOOPBACK = {"localhost", "127.0.0.1", "::1"}


class Client:
    """A hub.

    Args:
        url: its address; unless told, that in `ABOARD_HUB`, of `aboard login`, or of your own.
        token: what opens it; unless told, that in `ABOARD_HUB_TOKEN`, or that of the login.
        start: start your own hub if there is no other.
        seconds: how long it may take to answer.

    Raises:
        Unreachable: there is none.
    """

    def __init__(
        self,
        url: str | None = None,
        token: str | None = None,
        *,
        start: bool = True,
        seconds: float = 120.0,
    ) -> None:
        known = find_hub(url, token)
        if known is None and start:
            known = start_personal()
        if known is None:
            raise Unreachable(
                "no hub runs, and none is configured.",
                "Start a board, which starts a hub of your own: aboard start SELECTOR",
                code="no_hub",
            )
        self.hub: KnownHub = known
        self._seconds = seconds
        parts = urllib.parse.urlsplit(known.url)
        if parts.scheme not in {"http", "https"} or not parts.hostname:
            raise Unreachable(
                f"{known.url!r} is not the address of a hub.", "Write https://HOST.", code="bad_url"
            )
        handlers: list[urllib.request.BaseHandler] = [_Stay()]
        if parts.hostname in _LOOPBACK:
            handlers.append(urllib.request.ProxyHandler({}))
        self._opener = urllib.request.build_opener(*handlers)

    @property
    def url(self) -> str:
        """The address of the hub."""
        return self.hub.url

    def me(self) -> Document:
        """Return who you are: `user`, `role`, and whether the hub is `personal`."""
        me: Document = self._document("GET", "/me")
        return me

    # Boards.

    def create(
        self,
        selectors: Selectors,
        *,
        name: str | None = None,
        title: str | None = None,
        template: str | None = None,
        on: str | None = None,
        engine: str | None = None,
        timeout: str | float | None = None,
        idle_timeout: str | float | None = None,
        memory: str | int | None = None,
        visibility: str | None = None,
        new: bool = False,
    ) -> Board:
        """Start a board of a selection, or return the live one that there is.

        Args:
            selectors: a path, a URI, a selector, or several.
            name: what to call it; made up unless told.
            title: what the browser's tab shows.
            template: how runs are named.
            on: `instant`, or `process` for one of its own; the stock engine needs the latter.
            engine: `fast` or `stock`.
            timeout: how long it may run, in seconds or as in `"7d"`; 0 for ever.
            idle_timeout: how long it may run with nobody looking.
            memory: a limit such as `"2GiB"`, of one with a process of its own.
            visibility: `private`, or `team`.
            new: make one, even if there is one of this selection.

        Raises:
            BoardLimitExceeded: you have as many as you may.
        """
        wish = {
            "name": name,
            "title": title,
            "template": template,
            "on": on,
            "engine": engine,
            "timeout": timeout,
            "idle_timeout": idle_timeout,
            "memory": memory,
            "visibility": visibility,
        }
        body: Document = {key: value for key, value in wish.items() if value is not None}
        body |= {"selectors": as_selectors(selectors), "new": new}
        key = {"idempotency-key": secrets.token_hex(16)}
        return Board(self, self._document("POST", "/boards", body, headers=key))

    def get(self, board: str | Board) -> Board:
        """Return a board by its id, the beginning of one, or its name.

        Raises:
            NotFound: there is none that you may see.
        """
        return Board(self, self._document("GET", _path(board)))

    def list(
        self,
        *,
        all: bool = False,  # noqa: A002 - the word of the API
        states: Sequence[str] = (),
        owner: str | None = None,
        name: str | None = None,
    ) -> list[Board]:
        """Return the boards that you may see, the newest first; the live ones unless told."""
        query: list[tuple[str, str]] = [("state", state) for state in states]
        query += [("all", "true")] if all else []
        query += [(key, value) for key, value in (("owner", owner), ("name", name)) if value]
        return [Board(self, one) for one in self._pages("/boards", "boards", query)]

    def wait(
        self,
        board: str | Board,
        *,
        seconds: float = 300.0,
        data: bool = True,
        until: Callable[[Board], bool] | None = None,
        on_change: Callable[[Board], None] | None = None,
    ) -> Board:
        """Wait until a board serves data.

        Args:
            board: which.
            seconds: for how long.
            data: false: only until it runs, be there data or not.
            until: something else to wait for, that an ended board may be too.
            on_change: called with the board as it is, whenever it was asked for.

        Raises:
            BoardFailed: it has ended.
            NotReady: it takes longer.
        """
        deadline = time.monotonic() + seconds
        pause = _FIRST_POLL_SECONDS
        while True:
            now = self.get(board)
            if on_change is not None:
                on_change(now)
            if until is not None:
                if until(now):
                    return now
            elif now.state in ENDED:
                raise _ended(now)
            elif now.state == "running" and (now.runs or not data):
                return now
            left = deadline - time.monotonic()
            if left <= 0:
                what = now.condition or f"it is {now.state}"
                raise NotReady(
                    f"board {now.name} is not ready after {seconds:g} s: {what}.",
                    f"Look again later: aboard describe {now.id}",
                    code="not_ready",
                )
            time.sleep(min(pause, left))
            pause = min(pause * 1.5, _LAST_POLL_SECONDS)

    def stop(
        self, board: str | Board, *, now: bool = False, wait: bool = True, seconds: float = 60.0
    ) -> Board:
        """Stop a board and wait for its end; one that has ended stays as it is."""
        stopped = Board(self, self._document("POST", f"{_path(board)}/stop", {"now": now}))
        if not wait or stopped.state in ENDED:
            return stopped
        return self.wait(stopped, seconds=seconds, until=lambda one: one.state in ENDED)

    def restart(self, board: str | Board) -> Board:
        """Start a board anew, at the same address."""
        return Board(self, self._document("POST", f"{_path(board)}/restart"))

    def delete(self, board: str | Board) -> None:
        """Forget a board with its history; one that has a process of its own is stopped first."""
        known = self.get(board)
        if known.on != "instant" and known.state not in ENDED:
            self.stop(known)
        self._document("DELETE", _path(known))

    def change(
        self,
        board: str | Board,
        *,
        name: str | None = None,
        visibility: str | None = None,
        timeout: str | float | None = None,
        idle_timeout: str | float | None = None,
        extend: str | float | None = None,
    ) -> Board:
        """Change a board's name, who sees it, and how long it runs."""
        wish = {
            "name": name,
            "visibility": visibility,
            "timeout": timeout,
            "idle_timeout": idle_timeout,
            "extend": extend,
        }
        body = {key: value for key, value in wish.items() if value is not None}
        return Board(self, self._document("PATCH", _path(board), body))

    def select(self, board: str | Board, *, add: Selectors = (), remove: Selectors = ()) -> Board:
        """Add and remove selectors while a board is open."""
        body = {"add": as_selectors(add), "remove": as_selectors(remove)}
        return Board(self, self._document("POST", f"{_path(board)}/selection", body))

    def history(self, board: str | Board) -> Documents:
        """Return what a board went through, the oldest first: `state`, `reason`, `at`."""
        events: Documents = self._document("GET", f"{_path(board)}/history")["events"]
        return events

    def logs(
        self, board: str | Board, *, tail: int | None = None, follow: bool = False
    ) -> Generator[bytes]:
        """Yield what an isolated board wrote, in pieces; with `follow`, as it goes on to write."""
        query = [("follow", "true")] if follow else []
        query += [("tail", str(tail))] if tail is not None else []
        path = f"{_path(board)}/logs?{urllib.parse.urlencode(query)}"
        with self._ask("GET", path, endless=follow) as answer:
            while piece := answer.read1(1 << 16):
                yield piece

    def link(self, board: str | Board) -> str:
        """Return a link that opens a board in a browser, once."""
        url: str = self._document("POST", f"{_path(board)}/link")["url"]
        return url

    def share(self, board: str | Board, *, lasts: str | float | None = None) -> Document:
        """Make a link that shows a board to whoever has it: `id`, `url`, `expires`."""
        body = {} if lasts is None else {"for": lasts}
        made: Document = self._document("POST", f"{_path(board)}/shares", body)
        return made

    def shares(self, board: str | Board) -> Documents:
        """Return the links that show a board, without their addresses."""
        made: Documents = self._document("GET", f"{_path(board)}/shares")["shares"]
        return made

    def unshare(self, board: str | Board, share: str) -> None:
        """Let a link show nothing from now on."""
        self._document("DELETE", f"{_path(board)}/shares/{_quoted(share)}")

    # Runs.

    def runs(self, selectors: Selectors = ()) -> Documents:
        """Return the runs that the hub knows, those of a selection if one is given."""
        query = [("selector", one) for one in as_selectors(selectors)]
        return list(self._pages("/runs", "runs", query))

    def roots(self) -> Documents:
        """Return the places where the hub looks for runs."""
        roots: Documents = self._document("GET", "/roots")["roots"]
        return roots

    # Users and tokens.

    def users(self) -> Documents:
        """Return who may come in, by name: `name`, `role`, `created`."""
        users: Documents = self._document("GET", "/users")["users"]
        return users

    def add_user(self, name: str, *, role: str = "member", password: str | None = None) -> Document:
        """Let somebody in as `viewer`, `member` or `admin`; without a password with tokens only."""
        body = {"name": name, "role": role, "password": password}
        added: Document = self._document("POST", "/users", body)
        return added

    def set_role(self, name: str, role: str) -> Document:
        """Make a user a `viewer`, `member` or `admin` from now on."""
        changed: Document = self._document("PATCH", f"/users/{_quoted(name)}", {"role": role})
        return changed

    def set_password(self, name: str, password: str) -> None:
        """Give a user, or yourself, another password, which ends all sessions of it."""
        self._document("PUT", f"/users/{_quoted(name)}/password", {"password": password})

    def remove_user(self, name: str) -> None:
        """Shut somebody out, with his tokens, sessions and links; his boards stay."""
        self._document("DELETE", f"/users/{_quoted(name)}")

    def tokens(self) -> Documents:
        """Return your tokens without their secrets; everybody's for those who manage users."""
        tokens: Documents = self._document("GET", "/tokens")["tokens"]
        return tokens

    def create_token(
        self, name: str = "", *, lasts: str | float | None = None, user: str | None = None
    ) -> Document:
        """Make a token; its secret is in `token`, and shown nowhere else.

        Args:
            name: what it is for.
            lasts: how long it is good for, in seconds or as in `"90d"`; for ever unless told.
            user: for whom; yourself unless told.
        """
        body = {"name": name, "lasts": lasts, "user": user}
        made: Document = self._document("POST", "/tokens", body)
        return made

    def revoke_token(self, token: str) -> None:
        """Let a token open nothing from now on."""
        self._document("DELETE", f"/tokens/{_quoted(token)}")

    # HTTP.

    def _pages(
        self, path: str, field: str, query: Sequence[tuple[str, str]]
    ) -> Iterator[dict[str, Any]]:
        cursor: str | None = ""
        while cursor is not None:
            asked = [*query, ("limit", "1000")]
            asked += [("cursor", cursor)] if cursor else []
            page = self._document("GET", f"{path}?{urllib.parse.urlencode(asked)}")
            yield from page[field]
            cursor = page["next"]

    def _document(
        self,
        method: str,
        path: str,
        body: dict[str, Any] | None = None,
        *,
        headers: dict[str, str] | None = None,
    ) -> Any:
        with self._ask(method, path, body, headers=headers) as answer:
            text = answer.read()
        if not text:
            return None
        try:
            return json.loads(text)
        except ValueError:
            raise error_of(answer.status, None) from None

    def _ask(
        self,
        method: str,
        path: str,
        body: dict[str, Any] | None = None,
        *,
        headers: dict[str, str] | None = None,
        endless: bool = False,
    ) -> HTTPResponse:
        sent = {"accept": "application/json", **(headers or {})}
        if self.hub.token:
            sent["authorization"] = f"Bearer {self.hub.token}"
        content = None if body is None else json.dumps(body).encode()
        if content is not None:
            sent["content-type"] = "application/json"
        request = urllib.request.Request(  # noqa: S310 - http or https, as was checked
            f"{self.url}/api/v1{path}", content, sent, method=method
        )
        try:
            answer: HTTPResponse = self._opener.open(
                request, timeout=None if endless else self._seconds
            )
        except urllib.error.HTTPError as error:
            with error:
                refusal = error_of(error.code, _parsed(error.read()))
            if error.code == 401 and path != "/login":
                raise self.hub.shut_out(refusal) from None
            raise refusal from None
        except (OSError, HTTPException) as error:
            raise self.hub.unreachable(error) from error
        return answer


class _Stay(urllib.request.HTTPRedirectHandler):
    """Follows no redirect: the token is for the hub alone."""

    def redirect_request(self, *_: Any) -> None:
        return None


def as_selectors(given: Selectors) -> list[str]:
    """Write selectors as a hub reads them: paths from the root of the file system."""
    if isinstance(given, (str, os.PathLike)):
        return [_placed(given)]
    return [_placed(one) for one in given]


def _placed(one: str | os.PathLike[str]) -> str:
    from aboard.runs.select import is_path
    from aboard.storage import canonical

    text = os.fspath(one)
    if not isinstance(one, str) or is_path(text) or _exists(text):
        return canonical(text)
    return text


def _exists(text: str) -> bool:
    try:
        return Path(text).exists()
    except (OSError, ValueError):
        return False


def _ended(board: Board) -> BoardFailed:
    reason = f": {board.reason}" if board.reason else ""
    message = f"board {board.name} has ended ({board.state}){reason}".rstrip(".") + "."
    hint = f"See its log: aboard logs {board.id}" if board.on != "instant" else ""
    return BoardFailed(message, hint, state=board.state, reason=board.reason)


def _path(board: str | Board) -> str:
    ref = board if isinstance(board, str) else board.id
    if not ref:
        raise HubError("say which board.", "See which there are: aboard list", code="bad_value")
    return f"/boards/{_quoted(ref)}"


def _quoted(text: str) -> str:
    return urllib.parse.quote(text, safe="")


def _parsed(text: bytes) -> Any:
    try:
        return json.loads(text)
    except ValueError:
        return None


def log_in(url: str, user: str, password: str, *, name: str = "", lasts: str = "90d") -> str:
    """Return a new token of a user who proves himself with his password.

    Args:
        url: the address of the hub.
        user: his name.
        password: his password.
        name: what the token is for.
        lasts: how long it is good for.

    Raises:
        AuthError: the name or the password is wrong.
    """
    client = Client(url, token="")
    client.hub = client.hub._replace(token="")
    with client._ask("POST", "/login", {"user": user, "password": password}) as answer:
        cookie = (answer.headers["set-cookie"] or "").partition(";")[0]
    parts = urllib.parse.urlsplit(client.url)
    # A session is for browsers, so the hub asks where a request comes from.
    origin = f"{parts.scheme}://{parts.netloc}"
    headers = {"cookie": cookie, "origin": origin, "x-aboard-csrf": "1"}
    wish = {"name": name, "lasts": lasts}
    made: Document = client._document("POST", "/tokens", wish, headers=headers)
    with client._ask("POST", "/logout", headers=headers):
        return str(made["token"])
