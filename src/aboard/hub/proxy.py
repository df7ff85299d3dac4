"""The hub's connections to isolated boards: the reverse proxy, HTTP and WebSockets, and probes.

Bodies are streamed without decompressing them. A board gets none of the hub's secrets and nothing
about the client. Cookies and redirects of a board are confined to its address.
"""

from __future__ import annotations

import asyncio
import http.client
import json
import logging
import re
import ssl
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass
from functools import lru_cache
from hashlib import sha256
from typing import TYPE_CHECKING, NamedTuple
from urllib.parse import quote, urljoin, urlsplit
from weakref import WeakKeyDictionary

import aiohttp
from aiohttp import ClientTimeout, WSMsgType, hdrs
from yarl import URL

from aboard.executors.base import Address
from aboard.web.pages import BAD_PATH, NOT_FOUND, Problem
from aboard.web.request import (
    COOKIE_PREFIX,
    PREFIX,
    first_header,
    is_clean_path,
    is_loopback,
    secured,
    withhold_secrets,
)
from aboard.web.server import pinning_context

if TYPE_CHECKING:
    from starlette.types import Message, Receive, Scope, Send

_logger = logging.getLogger("aboard.hub")

# States of a running board: it does not answer, another server answers in its place, or only
# another hub reaches it.
SILENT, IMPERSONATED, ELSEWHERE = "silent", "impersonated", "elsewhere"
_METHODS = frozenset({"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"})
_CONNECT_SECONDS = 5.0
_QUEUE_SECONDS = 30.0
# Less than uvicorn's keep-alive timeout, so that no request is sent on a closing connection.
_KEEP_ALIVE_SECONDS = 3.0
_MAX_CONNECTIONS = 512
_MAX_PER_BOARD = 64
_BUFFER_BYTES = 1 << 16
_MAX_MESSAGE_BYTES = 16 << 20
_PROBE_SECONDS, _EXAMINE_SECONDS = 5.0, 10.0
_LARGEST_REPLY = 64 << 20
_TRY_AGAIN_LATER, _GOING_AWAY, _FAILED = 1013, 1001, 1011


@dataclass(frozen=True, slots=True)
class NotServing:
    state: str
    reason: str = ""
    log: tuple[str, ...] = ()  # its last lines


Lookup = Callable[[str], Address | NotServing | None]  # None if the board is not found


class Proxy:
    """An ASGI application that forwards requests to boards.

    Mount it at `/b/{board}`: `path_params` has the board's id and `root_path` its path. `lookup` is
    called for every request, in the event loop.
    """

    def __init__(self, lookup: Lookup) -> None:
        self._lookup = lookup
        self._opened: aiohttp.ClientSession | None = None
        self._last_answers: WeakKeyDictionary[asyncio.Future[None], aiohttp.ClientResponse] = (
            WeakKeyDictionary()
        )

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        board: str = scope["path_params"]["board"]
        found = self._lookup(board)
        below = path_below(scope)
        if scope["type"] == "websocket":
            if below is None or not isinstance(found, Address):
                await receive()  # websocket.connect
                await send({"type": "websocket.close", "code": _TRY_AGAIN_LATER})
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

    async def aclose(self) -> None:
        if self._opened is not None:
            await self._opened.close()

    @property
    def _session(self) -> aiohttp.ClientSession:
        if self._opened is None:
            self._opened = aiohttp.ClientSession(
                connector=aiohttp.TCPConnector(
                    limit=_MAX_CONNECTIONS,
                    limit_per_host=_MAX_PER_BOARD,
                    keepalive_timeout=_KEEP_ALIVE_SECONDS,
                ),
                # No total: a response may be long or endless.
                timeout=ClientTimeout(connect=_QUEUE_SECONDS, sock_connect=_CONNECT_SECONDS),
                # Users must not share cookies.
                cookie_jar=aiohttp.DummyCookieJar(),
                auto_decompress=False,
                read_bufsize=_BUFFER_BYTES,
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
                ssl=_pin(address.fingerprint),
            ) as answer:
                if not 200 <= answer.status <= 599:
                    _logger.warning("board %s answered with status %d", board, answer.status)
                    return _bad_answer(board)
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
            _log_failure(board, address, error)
            # A response that has begun is cut off: the server closes the connection.
            return None if begun else _no_answer(board, error)
        return None

    def _end_with_connection(self, answer: aiohttp.ClientResponse) -> None:
        """Make a response fail when its connection closes.

        After an invalid chunk, aiohttp closes the connection and does not wake its reader. This
        uses `connection.protocol.closed`, which is not documented. Checked with aiohttp 3.12 to
        3.14; tests/hub/test_proxy_bodies.py fails if it changes.
        """
        protocol = answer.connection.protocol if answer.connection is not None else None
        closed = protocol.closed if protocol is not None else None
        if closed is not None:
            if closed not in self._last_answers:
                closed.add_done_callback(self._break_off)
            self._last_answers[closed] = answer

    def _break_off(self, closed: asyncio.Future[None]) -> None:
        closed.exception()  # retrieved, so that asyncio does not log it
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
                max_msg_size=_MAX_MESSAGE_BYTES,
                ssl=_pin(address.fingerprint),
            )
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            _log_failure(board, address, error)
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
        """Wait until the client disconnects, after its body was read."""
        await self._all_read.wait()
        while not self.left:
            self.left = (await self._receive())["type"] == "http.disconnect"


@lru_cache(maxsize=4096)  # connections are reused only for the same object
def _pin(fingerprint: str) -> aiohttp.Fingerprint | bool:
    """Return the check of a board's certificate, made before a request is sent."""
    return aiohttp.Fingerprint(bytes.fromhex(fingerprint)) if fingerprint else True


def _log_failure(board: str, address: Address, error: Exception) -> None:
    if isinstance(error, aiohttp.ServerFingerprintMismatch):
        _logger.warning(
            "board %s: a server with a different certificate answers at %s; nothing was sent",
            board,
            _authority(address),
        )
    else:
        _logger.info("board %s: %s", board, type(error).__name__)


def not_serving(board: str, found: NotServing) -> Problem:
    hint = _what_to_do(board)
    reason = found.reason.rstrip(".").replace("\n", " ").replace("`", "'")
    why = f"{reason[0].upper()}{reason[1:]}.\n" if reason else ""
    match found.state:
        case "pending" | "starting":
            hint = f"{why}This page opens by itself when the board is ready."
            message = "This board is starting."
            return _problem("board_starting", message, hint, reload=2, log=found.log)
        case "silent":
            hint = f"This page opens by itself when the board answers again.\n{hint}"
            return _problem("board_silent", "This board does not answer.", hint, reload=5)
        case "impersonated":
            return _impersonated(board)
        case "elsewhere":
            hint = "Open it through the hub that started it."
            message = "This board can be reached only through another hub."
            return _problem("board_elsewhere", message, hint)
        case "stopping" | "stopped":
            message = f"This board is {found.state}."
            hint = f"Start it again: `aboard restart {board}`"
        case "failed":
            message = "This board has failed."
        case "lost":
            message = "This board was lost."
        case _:
            message = "This board is not running."
    return _problem(f"board_{found.state}", message, why + hint)


def _no_answer(board: str, error: Exception) -> Problem:
    hint = _what_to_do(board)
    if isinstance(error, aiohttp.ServerFingerprintMismatch):
        return _impersonated(board)
    if isinstance(error, TimeoutError):
        message = "This board takes too long to answer."
        return _problem("board_busy", message, f"Try again in a moment.\n{hint}", retry=5)
    if isinstance(error, aiohttp.ClientConnectorError):
        return _problem("board_unreachable", "This board does not answer.", hint)
    if isinstance(error, aiohttp.ClientResponseError):
        return _bad_answer(board)
    message = "This board stopped before it answered."
    return _problem("board_ended", message, hint, status=502)


def _impersonated(board: str) -> Problem:
    message = "Another server answers at the address of this board."
    why = "Its certificate is not the one made for this board, so nothing was sent to it."
    return _problem("board_impersonated", message, f"{why}\n{_what_to_do(board)}", status=502)


def _bad_answer(board: str) -> Problem:
    message = "This board sent an invalid response."
    return _problem("bad_answer", message, _what_to_do(board), status=502)


def _problem(
    code: str,
    message: str,
    hint: str,
    *,
    status: int = 503,
    reload: int = 0,
    retry: int = 0,
    log: tuple[str, ...] = (),
) -> Problem:
    seconds = reload or retry
    headers = (("retry-after", str(seconds)),) if seconds else ()
    return Problem(status, code, message, hint, headers, reload, log)


_BAD_METHOD = Problem(
    405,
    "bad_method",
    "Method not allowed.",
    "Use GET or POST.",
    (("allow", ", ".join(sorted(_METHODS))),),
)


def _what_to_do(board: str) -> str:
    return f"Start it again: `aboard restart {board}`\nIts log: `aboard logs {board}`"


def _has_body(scope: Scope) -> bool:
    for name, value in scope["headers"]:
        lowered = name.lower()
        if lowered == b"transfer-encoding" or (lowered == b"content-length" and value != b"0"):
            return True
    return False


def _url(address: Address, below: str, query: str) -> URL:
    # Encoded: it is sent unchanged, not normalized.
    return URL(f"{origin(address)}{address.path.rstrip('/')}{below}{query}", encoded=True)


async def _cancel(*tasks: asyncio.Task[object]) -> None:
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


async def _to_board(receive: Receive, upstream: aiohttp.ClientWebSocketResponse) -> bool:
    """Forward the client's messages; return whether the client closed, rather than the board."""
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
            case WSMsgType.CLOSING:  # by us
                return
            case _:
                await send({"type": "websocket.close", "code": _FAILED})
                return


def _close_code(code: int | None, otherwise: int) -> int:
    """Return a close code that may be sent; some codes only mean that there was none."""
    if not code or code == 1005:
        return 1000
    is_sendable = 1000 <= code <= 1003 or 1007 <= code <= 1014 or 3000 <= code <= 4999
    return code if is_sendable else otherwise


# Headers and addresses, to a board and back.

Headers = list[tuple[bytes, bytes]]

_HOP_BY_HOP = frozenset(
    b"connection http2-settings keep-alive proxy-authenticate proxy-authentication-info"
    b" proxy-authorization proxy-connection te trailer transfer-encoding upgrade".split()
)
_NOT_TO_BOARDS = frozenset(
    # The client as other proxies report it, and overrides of the request's target.
    b"cf-connecting-ip client-ip true-client-ip via x-client-ip x-cluster-client-ip x-http-method"
    b" x-http-method-override x-method-override x-original-url x-real-ip x-rewrite-url x-scheme"
    b" x-script-name"
    # Our server has already answered "expect"; "host" is the board's.
    b" expect host".split()
)
_NOT_FROM_BOARDS = frozenset(
    # They apply to the host, which is the hub's.
    b"alt-svc clear-site-data nel origin-agent-cluster report-to reporting-endpoints"
    b" service-worker-allowed set-cookie2 strict-transport-security www-authenticate"
    # Web servers before the hub would obey them.
    b" x-accel-buffering x-accel-charset x-accel-expires x-accel-limit-rate x-accel-redirect"
    b" x-lighttpd-send-file x-sendfile"
    # Our server sends its own.
    b" date server".split()
)
_TOKEN = re.compile(rb"[!#$%&'*+\-.^_`|~0-9A-Za-z]+")
_UNSENDABLE = re.compile(rb"[\x00-\x08\x0a-\x1f\x7f]")
_VISIBLE = "".join(map(chr, range(0x21, 0x7F))).replace("#", "")


def path_below(scope: Scope) -> str | None:
    """Return the encoded path below `root_path`; None if it is invalid."""
    path = scope["path"]
    raw: bytes = scope.get("raw_path") or quote(path).encode()
    root = scope.get("root_path", "")
    if not path.startswith(f"{root}/") or not raw.startswith(f"{root}/".encode()):
        return None
    below = _quoted(raw[len(root.encode()) :])
    if not is_clean_path(path[len(root) :]) or not is_clean_path(below):
        return None
    return below


def query_of(scope: Scope) -> str:
    query: bytes = withhold_secrets(scope)["query_string"]
    return f"?{_quoted(query)}" if query else ""


def origin(address: Address) -> str:
    return f"{'https' if address.fingerprint else 'http'}://{_authority(address)}"


def _authority(address: Address) -> str:
    host = f"[{address.host}]" if ":" in address.host else address.host
    return f"{host}:{address.port}"


def request_headers(scope: Scope, address: Address) -> list[tuple[str, str]]:
    headers: Headers = withhold_secrets(scope)["headers"]
    hub = first_header(headers, b"host").lower().encode("latin-1")
    lengthless = any(name.lower() == b"transfer-encoding" for name, _ in headers)
    kept = []
    for name, value in _end_to_end(headers):
        if name in _NOT_TO_BOARDS or name.startswith((b"sec-websocket-", b"x-aboard-")):
            continue
        if name == b"content-length" and lengthless:
            continue
        if name in (b"origin", b"referer"):
            value = _seen_from_board(name, value, hub, scope, address)  # noqa: PLW2901
            if not value:
                continue
        kept.append((name.decode("ascii"), _text(value)))
    return [("host", _authority(address)), *kept, ("authorization", f"Bearer {address.token}")]


def response_headers(
    headers: Iterable[tuple[bytes, bytes]], scope: Scope, address: Address, path: str
) -> Headers:
    """Return a board's response headers for the client; `path` is that of the request."""
    headers = list(headers)
    lengthless = any(name.lower() == b"transfer-encoding" for name, _ in headers)
    public = _public(scope)
    kept: Headers = []
    for name, value in _end_to_end(headers):
        if name in _NOT_FROM_BOARDS or (name == b"content-length" and lengthless):
            continue
        if name in (b"location", b"content-location"):
            value = _public_location(value, public, address, path)  # noqa: PLW2901
        elif name == b"set-cookie":
            value = public_cookie(  # noqa: PLW2901
                value, public, address.path, secure=scope.get("scheme") == "https"
            )
        if value:
            kept.append((name, value))
    return secured(kept, first_header(scope["headers"], b"host").encode("latin-1"))


def _public(scope: Scope) -> str:
    return f"{scope.get(PREFIX, '')}{scope.get('root_path', '')}/"


def public_cookie(cookie: bytes, public: str, private: str, *, secure: bool) -> bytes:
    """Return a board's cookie, confined to the board's path; empty if it is not allowed."""
    pair, *attributes = [part.strip(b" \t") for part in cookie.split(b";")]
    name, equals, value = pair.partition(b"=")
    name = name.strip(b" \t")
    # Browsers send only the value of a cookie without a name, which could look like one of ours.
    if not equals or not _TOKEN.fullmatch(name) or _is_hub_cookie(name):
        return b""
    path = public
    kept = [name + b"=" + value.strip(b" \t")]
    for attribute in attributes:
        key, _, text = attribute.partition(b"=")
        match key.strip(b" \t").lower():
            case b"path":
                path = _public_path(text.strip(b" \t").decode("latin-1"), public, private)
            case b"domain" | b"secure" | b"":
                secure = secure or key.lower() == b"secure"
            case _:
                kept.append(attribute)
    kept.append(b"Path=" + path.encode("latin-1"))
    if secure:
        kept.append(b"Secure")
    return b"; ".join(kept)


def _is_hub_cookie(name: bytes) -> bool:
    lowered = name.lower()
    for prefix in (b"__host-", b"__secure-"):
        lowered = lowered.removeprefix(prefix)
    return lowered.startswith(COOKIE_PREFIX.encode())


def _public_path(path: str, public: str, private: str) -> str:
    return public + path[len(private) :] if path.startswith(private) else public


def _public_location(location: bytes, public: str, address: Address, request_path: str) -> bytes:
    """Return the target of a redirect for the hub's clients; empty if there is none."""
    try:
        target = urljoin(origin(address) + request_path, location.decode("latin-1"))
        parts = urlsplit(target)
        port = parts.port or {"http": 80, "https": 443}.get(parts.scheme)
    except ValueError:
        return b""
    if parts.scheme not in ("http", "https") or not parts.hostname:
        return b""
    if port != address.port or not _same_host(parts.hostname, address.host):
        return _quoted(target.encode("latin-1"), "#").encode()
    path = _public_path(parts.path, public, address.path)
    if not is_clean_path(path):
        path = public
    relative = parts._replace(scheme="", netloc="", path=path).geturl()
    return _quoted(relative.encode("latin-1"), "#").encode()


def _same_host(one: str, other: str) -> bool:
    return one.lower() == other.lower() or (is_loopback(one) and is_loopback(other))


def _seen_from_board(
    name: bytes, value: bytes, hub: bytes, scope: Scope, address: Address
) -> bytes:
    """Return the hub's origin or page as the board's own; pages of others are left out."""
    try:
        parts = urlsplit(value.decode("latin-1"))
    except ValueError:
        return b"null" if name == b"origin" else b""
    is_own = parts.netloc.lower().encode("latin-1") == hub
    if name == b"origin":
        # Another site's origin is kept, so that the board can refuse it.
        return origin(address).encode() if is_own else value
    public = _public(scope)
    if not is_own or not parts.path.startswith(public):
        return b""
    path = address.path + parts.path[len(public) :]
    return f"{origin(address)}{_quoted(path.encode('latin-1'))}".encode()


def _end_to_end(headers: Iterable[tuple[bytes, bytes]]) -> Headers:
    lowered = [(name.lower(), value.strip(b" \t")) for name, value in headers]
    named = {
        option.strip().lower()
        for name, value in lowered
        if name == b"connection"
        for option in value.split(b",")
    }
    return [
        (name, value)
        for name, value in lowered
        if name not in _HOP_BY_HOP
        and name not in named
        and _TOKEN.fullmatch(name)
        and not _UNSENDABLE.search(value)
    ]


def _quoted(text: bytes, more: str = "") -> str:
    return quote(text, safe=_VISIBLE + more)


def _text(value: bytes) -> str:
    try:
        return value.decode("utf-8")
    except UnicodeDecodeError:
        return value.decode("latin-1")


# Requests of the hub itself.

OTHER_CERTIFICATE = "a server with a different certificate answers at its address"


def probe(address: Address) -> str:
    """Return why a board does not answer; empty if it does."""
    try:
        _fetch(address, "data/environment")
    except TimeoutError:
        return "timed out"
    except OSError as error:
        return (error.strerror or str(error)).lower()
    except http.client.HTTPException:
        return "it sent an invalid response"
    return ""


class BoardStatus(NamedTuple):
    """How many runs a board shows, why not more, and what is in its templates but in no run.

    None stands for what is not known yet.
    """

    runs: int | None = None
    problems: Sequence[str] = ()
    missing_fields: Sequence[str] | None = None


def fetch_status(address: Address) -> BoardStatus:
    try:
        status = json.loads(_fetch(address, "data/status"))
        return BoardStatus(status["runs"], status["problems"], status.get("missing_fields"))
    except (ValueError, LookupError, TypeError, OSError, http.client.HTTPException):
        return BoardStatus()


def _fetch(address: Address, path: str) -> bytes:
    headers = {"authorization": f"Bearer {address.token}"}
    with closing(_connection(address, _PROBE_SECONDS)) as connection:
        connection.connect()
        # Checked before the token is sent.
        if address.fingerprint and _presented(connection) != address.fingerprint:
            raise ConnectionRefusedError(OTHER_CERTIFICATE)
        connection.request("GET", f"{address.path}{path}", headers=headers)
        return connection.getresponse().read(_LARGEST_REPLY)


@dataclass(frozen=True, slots=True)
class TrialReport:
    """The hub's view of a trial.

    `accepted` is whether the engine accepted it, `address` where the hub reaches it. `fingerprint`
    is that of the certificate made for it, `presented` that of the certificate it presents.
    `status` is the status of a request without a token. `left` names what remains on the engine and
    in the hub's directory.
    """

    accepted: bool = False
    address: str = ""
    fingerprint: str = ""
    presented: str = ""
    status: int | None = None
    problem: str = ""
    left: tuple[str, ...] = ()


def examine_address(address: Address) -> TrialReport:
    """Connect to a board without a token, and report its certificate and status."""
    where, presented = f"{address.host}:{address.port}", ""
    with closing(_connection(address, _EXAMINE_SECONDS)) as connection:
        try:
            connection.connect()
            presented = _presented(connection)
            connection.request("GET", f"{address.path}data/runs")
            status = connection.getresponse().status
        except (OSError, http.client.HTTPException) as error:
            problem = str(error) or type(error).__name__
            return TrialReport(True, where, address.fingerprint, presented, problem=problem)
    return TrialReport(True, where, address.fingerprint, presented, status)


def _connection(address: Address, seconds: float) -> http.client.HTTPConnection:
    if not address.fingerprint:
        return http.client.HTTPConnection(address.host, address.port, timeout=seconds)
    return http.client.HTTPSConnection(
        address.host, address.port, timeout=seconds, context=pinning_context()
    )


def _presented(connection: http.client.HTTPConnection) -> str:
    """Return the fingerprint of the certificate that a server presents; empty without TLS."""
    if not isinstance(connection.sock, ssl.SSLSocket):
        return ""
    return sha256(connection.sock.getpeercert(binary_form=True) or b"").hexdigest()
