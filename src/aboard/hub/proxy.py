"""The way from the hub's address to boards that run elsewhere: HTTP and WebSockets, as they come.

Nothing is kept or looked into: bodies go through in pieces as large as they arrive, compressed as
they are. Which headers pass is left to `forwarding`, and who may see a board to whoever is asked
before the proxy is.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable
from contextlib import suppress
from dataclasses import dataclass
from types import TracebackType
from typing import TYPE_CHECKING
from weakref import WeakKeyDictionary

import aiohttp
from aiohttp import ClientTimeout, WSMsgType, hdrs
from yarl import URL

from aboard.executors.base import Address
from aboard.hub.forwarding import origin, path_below, query_of, request_headers, response_headers
from aboard.web.pages import BAD_PATH, NOT_FOUND, Problem

if TYPE_CHECKING:
    from starlette.types import Message, Receive, Scope, Send

_logger = logging.getLogger("aboard.hub")

_METHODS = frozenset({"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"})
_CONNECT_SECONDS = 5.0
_QUEUE_SECONDS = 30.0
# Less than what uvicorn waits for the next request, so that none meets a connection that closes.
_KEEP_SECONDS = 3.0
_MOST_CONNECTIONS = 512
_MOST_PER_BOARD = 64
_BUFFER = 1 << 16
_LARGEST_MESSAGE = 16 << 20
_ON_THEIR_WAY = frozenset({"pending", "starting"})
SILENT = "silent"
"""The state of a board that runs, and has not answered for a while."""
_ENDED_ON_PURPOSE = frozenset({"stopping", "stopped"})
_TRY_AGAIN_LATER, _GOING_AWAY, _FAILED = 1013, 1001, 1011


@dataclass(frozen=True, slots=True)
class NotServing:
    """A board that exists and cannot be asked: its state, and why."""

    state: str
    reason: str = ""


Lookup = Callable[[str], Address | NotServing | None]
"""Finds a board by its id; None where there is no such board."""


class Proxy:
    """An ASGI application that asks boards, each at its own listener.

    To be mounted at `/b/{board}`: `path_params` has the board's id, and `root_path` leads to it.

    Args:
        lookup: tells where a board listens. Called for every request, in the event loop.
    """

    def __init__(self, lookup: Lookup) -> None:
        self._lookup = lookup
        self._opened: aiohttp.ClientSession | None = None
        self._last_answers: WeakKeyDictionary[asyncio.Future[None], aiohttp.ClientResponse] = (
            WeakKeyDictionary()
        )

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Forward a request, or say why that is not possible."""
        board: str = scope["path_params"]["board"]
        found = self._lookup(board)
        below = path_below(scope)
        if scope["type"] == "websocket":
            if below is None or not isinstance(found, Address):
                await _refuse_websocket(receive, send)
                return
            url = _url(found, below, query_of(scope))
            await self._websocket(board, found, url, scope, receive, send)
            return
        if found is None:
            problem: Problem | None = NOT_FOUND
        elif below is None:
            problem = BAD_PATH
        elif scope["method"] not in _METHODS:
            problem = _BAD_METHOD
        elif isinstance(found, NotServing):
            problem = not_serving(board, found)
        else:
            url = _url(found, below, query_of(scope))
            problem = await self._http(board, found, url, scope, receive, send)
        if problem is not None:
            await problem(scope, receive, send)

    async def __aenter__(self) -> Proxy:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self.close()

    async def close(self) -> None:
        """Close all connections to boards."""
        if self._opened is not None:
            await self._opened.close()

    @property
    def _session(self) -> aiohttp.ClientSession:
        """The connections, opened where the event loop runs."""
        if self._opened is None:
            self._opened = aiohttp.ClientSession(
                connector=aiohttp.TCPConnector(
                    limit=_MOST_CONNECTIONS,
                    limit_per_host=_MOST_PER_BOARD,
                    keepalive_timeout=_KEEP_SECONDS,
                ),
                # No total: an answer may be long, or never end.
                timeout=ClientTimeout(connect=_QUEUE_SECONDS, sock_connect=_CONNECT_SECONDS),
                # What one user was given is not for the next.
                cookie_jar=aiohttp.DummyCookieJar(),
                auto_decompress=False,
                read_bufsize=_BUFFER,
                skip_auto_headers=(
                    hdrs.ACCEPT,
                    hdrs.ACCEPT_ENCODING,
                    hdrs.CONTENT_TYPE,
                    hdrs.USER_AGENT,
                ),
            )
        return self._opened

    async def _http(
        self, board: str, address: Address, url: URL, scope: Scope, receive: Receive, send: Send
    ) -> Problem | None:
        """Forward a request, for as long as its client waits for the answer."""
        upload = _Upload(receive, is_empty=not _has_body(scope))
        exchange = asyncio.create_task(self._exchange(board, address, url, scope, upload, send))
        leaving = asyncio.create_task(upload.client_left())
        try:
            await asyncio.wait({exchange, leaving}, return_when=asyncio.FIRST_COMPLETED)
            return await exchange if exchange.done() else None
        finally:
            await _cancel(exchange, leaving)

    async def _exchange(
        self, board: str, address: Address, url: URL, scope: Scope, upload: _Upload, send: Send
    ) -> Problem | None:
        headers = request_headers(scope, address)
        begun = False
        try:
            async with self._session.request(
                scope["method"],
                url,
                headers=headers,
                data=None if upload.is_empty else aiter(upload),
                allow_redirects=False,
            ) as answer:
                if not 200 <= answer.status <= 599:
                    _logger.warning("board %s answered with status %d", board, answer.status)
                    return _nonsense(board)
                start: Message = {
                    "type": "http.response.start",
                    "status": answer.status,
                    "headers": response_headers(answer.raw_headers, scope, address, url.raw_path),
                }
                begun = True
                self._end_with_connection(answer)
                await send(start)
                async for piece in answer.content.iter_any():
                    await send({"type": "http.response.body", "body": piece, "more_body": True})
                await send({"type": "http.response.body", "body": b""})
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            if upload.left:
                return None
            _logger.info("board %s: %s", board, type(error).__name__)
            # An answer that has begun stays cut off: the server closes the connection.
            return None if begun else _problem(board, error)
        return None

    def _end_with_connection(self, answer: aiohttp.ClientResponse) -> None:
        """Let an answer break off with its connection.

        After a chunk that makes no sense, aiohttp closes the connection and tells nobody who reads.
        """
        protocol = answer.connection.protocol if answer.connection is not None else None
        closed = protocol.closed if protocol is not None else None
        if closed is not None:
            if closed not in self._last_answers:
                closed.add_done_callback(self._break_off)
            self._last_answers[closed] = answer

    def _break_off(self, closed: asyncio.Future[None]) -> None:
        closed.exception()  # which it would complain about if nobody had looked
        answer = self._last_answers.pop(closed, None)
        content = answer.content if answer is not None else None
        if content is not None and not content.is_eof() and content.exception() is None:
            content.set_exception(aiohttp.ClientPayloadError("the connection was lost"))

    async def _websocket(
        self, board: str, address: Address, url: URL, scope: Scope, receive: Receive, send: Send
    ) -> None:
        await receive()  # websocket.connect
        try:
            upstream = await self._session.ws_connect(
                url,
                headers=request_headers(scope, address),
                protocols=scope.get("subprotocols", ()),
                max_msg_size=_LARGEST_MESSAGE,
            )
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            _logger.info("board %s: %s", board, type(error).__name__)
            await send({"type": "websocket.close", "code": _TRY_AGAIN_LATER})
            return
        try:
            await send({"type": "websocket.accept", "subprotocol": upstream.protocol})
            to_board = asyncio.create_task(_to_board(receive, upstream))
            to_client = asyncio.create_task(_to_client(upstream, send))
            try:
                await asyncio.wait({to_board, to_client}, return_when=asyncio.FIRST_COMPLETED)
                if to_board.done() and not to_board.result():
                    await to_client
            finally:
                await _cancel(to_board, to_client)
        finally:
            await upstream.close()


class _Upload:
    """The body of a request, in the pieces in which it comes; and whether its client is there."""

    def __init__(self, receive: Receive, *, is_empty: bool) -> None:
        self.is_empty = is_empty
        self.left = False
        self._receive = receive
        self._all_read = asyncio.Event()
        if is_empty:
            self._all_read.set()

    async def __aiter__(self) -> AsyncIterator[bytes]:
        while not self._all_read.is_set():
            message = await self._receive()
            if message["type"] == "http.disconnect":
                self.left = True
                self._all_read.set()
                raise aiohttp.ClientConnectionError("the client has left")
            if not message.get("more_body"):
                self._all_read.set()
            if message.get("body"):
                yield message["body"]

    async def client_left(self) -> None:
        """Wait until the client is gone, once all it sends has been read."""
        await self._all_read.wait()
        while not self.left:
            self.left = (await self._receive())["type"] == "http.disconnect"


def not_serving(board: str, found: NotServing) -> Problem:
    """Say that a board cannot be asked, why, and what to do."""
    if found.state in _ON_THEIR_WAY:
        return Problem(
            503,
            "board_starting",
            "This board is starting.",
            "This page opens by itself as soon as the board is there.",
            (("retry-after", "2"),),
            reload=2,
        )
    if found.state == SILENT:
        return Problem(
            503,
            "board_silent",
            "This board does not answer.",
            f"This page opens by itself when it answers again.\n{_what_to_do(board)}",
            (("retry-after", "5"),),
            reload=5,
        )
    message = _MESSAGES.get(found.state, "This board does not run.")
    reason = found.reason.rstrip(".")
    why = f"{reason[0].upper()}{reason[1:]}.\n" if reason else ""
    what = f"Start it again: `aboard restart {board}`"
    if found.state not in _ENDED_ON_PURPOSE:
        what = _what_to_do(board)
    return Problem(503, f"board_{found.state}", message, why + what)


_MESSAGES = {
    "stopping": "This board is being stopped.",
    "stopped": "This board was stopped.",
    "failed": "This board has failed.",
    "lost": "This board was lost.",
}
_BAD_METHOD = Problem(
    405,
    "bad_method",
    "A board cannot be asked in this way.",
    "Use GET or POST.",
    (("allow", ", ".join(sorted(_METHODS))),),
)


def _problem(board: str, error: Exception) -> Problem:
    """Say what is wrong with a board that gave no answer."""
    if isinstance(error, TimeoutError):
        return Problem(
            503,
            "board_busy",
            "This board takes too long to answer.",
            f"Try again in a moment, or start it anew.\n{_what_to_do(board)}",
            (("retry-after", "5"),),
        )
    if isinstance(error, aiohttp.ClientConnectorError):
        return Problem(503, "board_unreachable", "This board does not answer.", _what_to_do(board))
    if isinstance(error, aiohttp.ClientResponseError):
        return _nonsense(board)
    return Problem(
        502, "board_ended", "This board ended before it had answered.", _what_to_do(board)
    )


def _nonsense(board: str) -> Problem:
    return Problem(502, "bad_answer", "This board gave an answer that is none.", _what_to_do(board))


def _what_to_do(board: str) -> str:
    return f"Start it again: `aboard restart {board}`\nIts log: `aboard logs {board}`"


def _has_body(scope: Scope) -> bool:
    for name, value in scope["headers"]:
        lowered = name.lower()
        if lowered == b"transfer-encoding" or (lowered == b"content-length" and value != b"0"):
            return True
    return False


def _url(address: Address, below: str, query: str) -> URL:
    # Encoded: it is sent as it was written, and not tidied up.
    return URL(f"{origin(address)}{address.path.rstrip('/')}{below}{query}", encoded=True)


async def _cancel(*tasks: asyncio.Task[object]) -> None:
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


async def _refuse_websocket(receive: Receive, send: Send) -> None:
    await receive()  # websocket.connect
    await send({"type": "websocket.close", "code": _TRY_AGAIN_LATER})


async def _to_board(receive: Receive, upstream: aiohttp.ClientWebSocketResponse) -> bool:
    """Pass on what the client says; return whether it has left, rather than the board."""
    with suppress(aiohttp.ClientError, ConnectionError):
        while (message := await receive())["type"] != "websocket.disconnect":
            if message.get("text") is not None:
                await upstream.send_str(message["text"])
            else:
                await upstream.send_bytes(message["bytes"])
        reason = (message.get("reason") or "").encode()
        await upstream.close(code=_close_code(message.get("code"), _GOING_AWAY), message=reason)
        return True
    return False


async def _to_client(upstream: aiohttp.ClientWebSocketResponse, send: Send) -> None:
    """Pass on what the board says, and how it ends."""
    while True:
        message = await upstream.receive()
        match message.type:
            case WSMsgType.TEXT:
                await send({"type": "websocket.send", "text": message.data})
            case WSMsgType.BINARY:
                await send({"type": "websocket.send", "bytes": message.data})
            case WSMsgType.CLOSE:
                code = _close_code(message.data, _FAILED)
                reason = message.extra or ""
                await send({"type": "websocket.close", "code": code, "reason": reason})
                return
            case WSMsgType.CLOSING:  # it was us
                return
            case _:
                await send({"type": "websocket.close", "code": _FAILED})
                return


def _close_code(code: int | None, otherwise: int) -> int:
    """Return a code that may be sent; some only tell that none was."""
    if not code or code == 1005:
        return 1000
    is_sendable = 1000 <= code <= 1003 or 1007 <= code <= 1014 or 3000 <= code <= 4999
    return code if is_sendable else otherwise
