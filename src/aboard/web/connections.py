"""Connections: whom a listener takes in, and who has to go so that others can come.

A connection costs a file descriptor from its first moment, long before it shows a secret. So those
that have shown none are few, and the oldest go first; and a request whose headers do not end is
not waited for. Who holds a secret is found out by a gate, which says so with `trust`.
"""

from __future__ import annotations

import asyncio
import logging
import resource
import socket
import ssl
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol

from aboard.web.headers import secured
from aboard.web.pages import Problem

if TYPE_CHECKING:
    from starlette.types import Message, Receive, Scope, Send

HEADER_SECONDS = 10.0
MOST_FILES = 65_536
MOST_STRANGERS = 1024
_AT_ONCE = 32
_PAUSE_SECONDS = 0.1
_QUIET_SECONDS = 10.0
_CONNECTION = "aboard.connection"
_logger = logging.getLogger("aboard.web")

_TWO_LENGTHS = Problem(
    400,
    "two_lengths",
    "This request says in two ways how long it is.",
    "Send either Content-Length or Transfer-Encoding.",
    (("connection", "close"),),
)
_NO_TUNNEL = Problem(
    405,
    "no_tunnel",
    "This is no proxy.",
    "Ask with GET.",
    (("allow", "GET, HEAD, POST"), ("connection", "close")),
)


def trust(scope: Scope) -> None:
    """Note that whoever sent a request holds a secret, so that his connection stays."""
    connection = scope.get(_CONNECTION)
    if connection is not None:
        connection.is_trusted()


def allow_many_files() -> None:
    """Let this process open as many files as it may, within reason."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    unbounded = resource.RLIM_INFINITY
    wanted = MOST_FILES if hard == unbounded else min(hard, MOST_FILES)
    if soft != unbounded and soft < wanted:
        with suppress(OSError, ValueError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


def open_files() -> int:
    """Return how many files this process may have open, of which no more than a bound count."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return MOST_FILES if soft == resource.RLIM_INFINITY else min(soft, MOST_FILES)


class Strangers:
    """The connections that have shown no secret yet, the oldest first.

    Args:
        most: when there are more, one has to go: the one that asks for nothing for the longest
            time, or else the oldest.
    """

    def __init__(self, most: int) -> None:
        self.most = most
        self._held: dict[Connection, None] = {}

    def __len__(self) -> int:
        return len(self._held)

    def add(self, connection: Connection) -> None:
        """Let one in, and another one go if there are too many."""
        self._held[connection] = None
        if len(self._held) > self.most:
            self.send_away(1)

    def discard(self, connection: Connection) -> None:
        """Forget one that has left, or is no stranger any more."""
        self._held.pop(connection, None)

    def send_away(self, count: int) -> None:
        """Close the connections of some."""
        for _ in range(min(count, len(self._held))):
            oldest = next(iter(self._held))
            chosen = next((one for one in self._held if one.is_idle), oldest)
            del self._held[chosen]
            chosen.cut()


class Connection(H11Protocol):
    """One connection; its headers come in time, or it ends."""

    def __init__(self, strangers: Strangers, **of_uvicorn: Any) -> None:
        super().__init__(**of_uvicorn)
        self.opening: asyncio.Task[None] | None = None
        self._strangers = strangers
        self._deadline: asyncio.TimerHandle | None = None
        self._behind = self.app
        self.app = self._answer
        strangers.add(self)

    @property
    def is_idle(self) -> bool:
        """Whether no request is being answered."""
        return self.cycle is None or self.cycle.response_complete

    def is_trusted(self) -> None:
        """Take notice that a secret was shown."""
        self._strangers.discard(self)

    def cut(self) -> None:
        """End at once, whatever is under way."""
        if self.transport is not None:
            self.transport.abort()
        elif self.opening is not None:
            self.opening.cancel()

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Begin to wait for a request."""
        super().connection_made(transport)
        self._keep_time()

    def data_received(self, data: bytes) -> None:
        """Take in a part of a request."""
        super().data_received(data)
        self._keep_time()

    def connection_lost(self, exc: Exception | None) -> None:
        """Forget it."""
        self._leave()
        super().connection_lost(exc)

    def handle_websocket_upgrade(self, event: h11.Request) -> None:
        """Hand over to the protocol of WebSockets."""
        if _has_two_lengths(self.headers):
            self.send_400_response(_TWO_LENGTHS.message)
            return
        self._leave()
        super().handle_websocket_upgrade(event)

    def _keep_time(self) -> None:
        """Wait for the end of headers from their beginning on, however they trickle."""
        is_waiting = self.conn.their_state is h11.IDLE and not self.transport.is_closing()
        if is_waiting and self._deadline is None:
            self._deadline = self.loop.call_later(HEADER_SECONDS, self.cut)
        elif not is_waiting:
            self._stop_waiting()

    def _stop_waiting(self) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None

    def _leave(self) -> None:
        self._stop_waiting()
        self._strangers.discard(self)

    async def _answer(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer what nobody behind could, and pass on the rest."""
        problem = None
        if scope["method"] == "CONNECT":
            problem = _NO_TUNNEL
        elif _has_two_lengths(scope["headers"]):
            problem = _TWO_LENGTHS
        if problem is None:
            inner: Any = self._behind
            await inner({**scope, _CONNECTION: self}, receive, send)
            return

        async def send_secured(message: Message) -> None:
            if message["type"] == "http.response.start":
                message = {**message, "headers": secured(list(message["headers"]), b"")}
            await send(message)

        await problem(scope, receive, send_secured)


class Door:
    """Takes connections in from listening sockets.

    Args:
        make: makes what serves a connection.
        strangers: who has to go when no file can be opened.
        context: for TLS.
    """

    def __init__(
        self,
        make: Callable[[], Connection],
        strangers: Strangers,
        context: ssl.SSLContext | None = None,
    ) -> None:
        self._make = make
        self._strangers = strangers
        self._context = context
        self._loop = asyncio.get_running_loop()
        self._listeners: list[socket.socket] = []
        self._opening: set[asyncio.Task[None]] = set()
        self._said_at = -_QUIET_SECONDS

    def open(self, listeners: Sequence[socket.socket]) -> None:
        """Begin to take connections in."""
        self._listeners = list(listeners)
        for listener in self._listeners:
            self._loop.add_reader(listener, self._accept, listener)

    def close(self) -> None:
        """Take no more in, and give up those that are not in yet."""
        listeners, self._listeners = self._listeners, []
        for listener in listeners:
            self._loop.remove_reader(listener)
        for task in self._opening:
            task.cancel()

    def _accept(self, listener: socket.socket) -> None:
        # A few at a time, so that those who have to go do so before the next ones come.
        for _ in range(min(_AT_ONCE, self._strangers.most // 4 + 1)):
            try:
                accepted, _ = listener.accept()
            except (BlockingIOError, InterruptedError, ConnectionAbortedError):
                return
            except OSError as error:
                self._pause(listener, error)
                return
            accepted.setblocking(False)
            connection = self._make()
            task = self._loop.create_task(self._let_in(connection, accepted))
            connection.opening = task
            self._opening.add(task)
            task.add_done_callback(self._opening.discard)

    async def _let_in(self, connection: Connection, accepted: socket.socket) -> None:
        timeout = HEADER_SECONDS if self._context else None
        try:
            await self._loop.connect_accepted_socket(
                lambda: connection, accepted, ssl=self._context, ssl_handshake_timeout=timeout
            )
        except (OSError, asyncio.CancelledError):
            accepted.close()
            self._strangers.discard(connection)
        finally:
            connection.opening = None

    def _pause(self, listener: socket.socket, error: OSError) -> None:
        """Wait a moment, and let some go, when no more can be taken in."""
        self._strangers.send_away(_AT_ONCE)
        self._loop.remove_reader(listener)
        self._loop.call_later(_PAUSE_SECONDS, self._resume, listener)
        now = time.monotonic()
        if now - self._said_at >= _QUIET_SECONDS:
            self._said_at = now
            _logger.error(
                "no connection can be taken in: %s. Trying again; raise the limit of"
                " open files (ulimit -n) if this goes on.",
                (error.strerror or str(error)).lower(),
            )

    def _resume(self, listener: socket.socket) -> None:
        if listener in self._listeners:
            self._loop.add_reader(listener, self._accept, listener)


def _has_two_lengths(headers: Sequence[tuple[bytes, bytes]]) -> bool:
    names = {name.lower() for name, _ in headers}
    return {b"content-length", b"transfer-encoding"} <= names
