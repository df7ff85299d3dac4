"""The gate of every listener: middleware that requires a secret for every request.

`Gate` identifies the client, exchanges the key of a link or a login for a session cookie, limits
the body, refuses cross-origin writes, and keeps secrets from the application. Checking secrets is
left to an `Access`: `TokenAccess` knows one token, the hub's `HubAccess` knows accounts.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import TYPE_CHECKING, NamedTuple, Protocol
from urllib.parse import parse_qs, quote

from aboard.web import pages
from aboard.web.pages import LoginForm, Problem, Reply
from aboard.web.request import (
    CONNECTION,
    KEY,
    SAFE_METHODS,
    Request,
    first_header,
    local_target,
    make_cookie,
    read_request,
    secured,
    withhold_secrets,
)

if TYPE_CHECKING:
    from starlette.types import ASGIApp, Message, Receive, Scope, Send

MAX_BODY_BYTES = 1 << 20  # a larger body gets 413
MAX_BOARD_BODY_BYTES = 32 << 20  # a board's pages request many series at once
BOARDS_PATH = "/b/"
VISITOR = "aboard.visitor"  # scope key; None on public routes
_MAX_FORM_BYTES = 16 << 10
_FORM_SECONDS = 10
_UNAUTHORIZED, _FORBIDDEN, _BAD_PATH, _FAILED = 4401, 4403, 4400, 1011
_SEND_TOKEN = "Send a token in a header: Authorization: Bearer TOKEN"  # noqa: S105 - no token
_logger = logging.getLogger("aboard.web")


class Credential(Enum):
    TOKEN = "token"  # noqa: S105 - the kind of a secret, not one
    SESSION = "session"
    LINK = "link"


class Visitor(Protocol):
    """A client with a valid secret."""

    @property
    def credential(self) -> Credential:
        """The kind of secret."""


class NewSession(NamedTuple):
    secret: str
    seconds: int


class BadKey(Enum):
    """Why a key is refused: a message and an error code."""

    USED = ("This link was already used.", "key_used")
    EXPIRED = ("This link has expired.", "key_expired")
    UNKNOWN = ("Invalid link.", "wrong_secret")
    ELSEWHERE = ("This link is for another address.", "wrong_origin")


class WrongSecret(Exception):
    """A failed login. `delayed` is whether the client has already waited for the response."""

    def __init__(self, message: str, *, delayed: bool = False) -> None:
        super().__init__(message)
        self.delayed = delayed


class Refused(Exception):
    """A request that is answered with a problem before the client is identified."""

    def __init__(self, problem: Problem) -> None:
        super().__init__(problem.message)
        self.problem = problem


@dataclass(frozen=True, slots=True)
class LoginPage:
    """The page for clients without a secret; its form is sent to `path`.

    Browsers are redirected to the `home` of a request, if it has one.
    """

    path: str
    message: str
    hint: str
    wrong_link: str
    with_password: bool = False


class Access(Protocol):
    """Checks the secrets for a gate. Each method may raise `Refused`."""

    throttle: Throttle
    login: LoginPage

    async def identify(self, request: Request) -> Visitor | None:
        """Return the visitor of a request's token, session or link; None if none is valid."""

    async def redeem(self, key: str, visitor: Visitor | None) -> NewSession | BadKey:
        """Exchange the key of a link for a session; a known visitor needs none.

        A key may be `ELSEWHERE` only if requests have a `home`.
        """

    async def log_in(self, form: Mapping[str, str], client: str = "") -> NewSession:
        """Open a session for a login form; raise `WrongSecret` if it is invalid.

        `client` is the client's address.
        """

    def is_open(self, path: str) -> bool:
        """Return whether a path is public."""


@dataclass(kw_only=True)
class Throttle:
    """Delays for clients that guess secrets, shared by all clients of a listener.

    On a shared machine all clients have the same address, so nothing is counted by address.
    `hold` delays the response to a wrong secret; valid secrets never wait for it. The delay doubles
    from `first` to `longest`, and a failure is forgotten after `forget` seconds. `acquire` must be
    awaited before a secret that could be guessed is compared: `turns` wrong ones pass at once, then
    `per_second`; valid ones use up no turns.
    """

    clock: Callable[[], float] = time.monotonic
    sleep: Callable[[float], Awaitable[object]] = asyncio.sleep
    first: float = 0.1
    longest: float = 2.0
    forget: float = 5.0
    max_waiting: int = 64
    turns: int = 20
    per_second: float = 5.0
    max_wait: float = 30.0
    _waiting: int = field(default=0, init=False)
    _failures: float = field(default=0.0, init=False)
    _failed_at: float = field(default=0.0, init=False)
    _taken: float = field(default=0.0, init=False)
    _taken_at: float = field(default=0.0, init=False)

    def failed(self) -> float:
        now = self.clock()
        forgotten = (now - self._failed_at) / self.forget
        self._failed_at = now
        # At most ten failures count, so that a long attack is forgotten as fast as a short one.
        self._failures = min(max(self._failures - forgotten, 0.0) + 1, 10.0)
        return min(float(self.first * 2 ** (self._failures - 1)), self.longest)

    async def hold(self) -> bool:
        """Wait for the delay of a failure; return False at once if too many clients wait."""
        delay = self.failed()
        if self._waiting >= self.max_waiting:
            return False
        self._waiting += 1
        try:
            await self.sleep(delay)
        finally:
            self._waiting -= 1
        return True

    async def acquire(self) -> bool:
        """Wait for a turn to compare a secret; return False at once if too many clients wait.

        Call `release` if the secret is valid.
        """
        now = self.clock()
        self._taken = max(self._taken - (now - self._taken_at) * self.per_second, 0.0)
        self._taken_at = now
        delay = (self._taken + 1 - self.turns) / self.per_second
        if delay > self.max_wait:
            return False
        self._taken += 1
        if delay > 0:
            await self.sleep(delay)
        return True

    def release(self) -> None:
        self._taken -= 1


class Gate:
    """ASGI middleware. The application finds the visitor in its scope under `VISITOR`.

    `log_path` removes secrets from a path for the log.
    """

    def __init__(
        self, app: ASGIApp, access: Access, *, log_path: Callable[[str], str] = str
    ) -> None:
        self._app = app
        self._access = access
        self._log_path = log_path

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            await self._http(scope, receive, send)
        elif scope["type"] == "websocket":
            await self._websocket(scope, receive, send)
        elif scope["type"] == "lifespan":
            await self._app(scope, receive, send)

    async def _http(self, scope: Scope, receive: Receive, send: Send) -> None:
        host = first_header(scope["headers"], b"host").encode("latin-1")
        started = False

        async def send_secured(message: Message) -> None:
            nonlocal started
            if message["type"] == "http.response.start":
                started = True
                headers = secured(list(message.get("headers", ())), host)
                message = {**message, "headers": headers}
            await send(message)

        body = _Body(receive, max_body_bytes(scope["path"]))
        try:
            if _content_length(scope) > body.limit:
                await pages.TOO_LARGE(scope, receive, send_secured)
                return
            answer = await self._answer(read_request(scope), scope, body.receive)
            await answer(withhold_secrets(scope), body.receive, send_secured)
        except Refused as refused:
            await refused.problem(scope, receive, send_secured)
        except Exception:
            problem = pages.TOO_LARGE
            if not body.is_too_large:
                problem = pages.INTERNAL
                path = self._log_path(scope["path"])
                _logger.exception("%s %r failed", scope["method"], path)
            # A response that has begun cannot be replaced; it is cut off.
            if not started:
                await problem(scope, receive, send_secured)

    async def _answer(self, request: Request, scope: Scope, receive: Receive) -> ASGIApp:
        visitor = await self._access.identify(request)
        scope[VISITOR] = visitor
        if visitor is not None:
            trust(scope)
        if request.path == self._access.login.path:
            return await self._log_in(request, scope, receive, visitor)
        if request.key is not None and not _has_token(visitor):
            return await self._redeem(request.key, request, scope, visitor)
        is_open = request.path_is_clean and self._access.is_open(request.path)
        if visitor is None and not is_open:
            if request.bearer is None:
                return self._login_page(request)
            return await self._refuse(request, scope, "Invalid token.")
        if not request.path_is_clean:
            return pages.BAD_PATH
        return pages.CROSS_ORIGIN if _is_cross_origin_write(request, visitor) else self._app

    async def _redeem(
        self, key: str, request: Request, scope: Scope, visitor: Visitor | None
    ) -> Reply:
        if visitor is not None and visitor.credential is Credential.LINK:
            visitor = None  # a link shows only one board, but the key opens a session
        redeemed = await self._access.redeem(key, visitor)
        if redeemed is BadKey.ELSEWHERE:
            sign = "&" if "?" in request.target else "?"
            return redirect(f"{request.home}{request.target}{sign}{KEY}={quote(key, safe='')}")
        if visitor is not None:
            return redirect(request.own_address)
        if isinstance(redeemed, NewSession):
            return self._open_session(request.own_address, request, scope, redeemed)
        message, code = redeemed.value
        if redeemed is BadKey.UNKNOWN:
            return await self._refuse(request, scope, message, self._access.login.wrong_link)
        return self._login_page(request, message, code=code)

    async def _log_in(
        self, request: Request, scope: Scope, receive: Receive, visitor: Visitor | None
    ) -> ASGIApp:
        if _is_cross_origin_write(request, visitor):
            return pages.CROSS_ORIGIN
        path = self._access.login.path
        up = "/".join([".."] * (path.count("/") - 1)) or "."
        if request.method != "POST":
            return self._login_page(request) if visitor is None else redirect(f"{up}/")
        form = await _read_form(receive)
        target = local_target(form.get("next", "")) or "/"
        if target.startswith(path):
            target = "/"
        try:
            session = await self._access.log_in(form, _client(scope))
        except WrongSecret as error:
            if error.delayed:
                return self._login_page(request, str(error), code="wrong_secret", target=target)
            return await self._refuse(request, scope, str(error), target=target)
        return self._open_session(f"{up}{target}", request, scope, session)

    def _open_session(
        self, location: str, request: Request, scope: Scope, session: NewSession
    ) -> Reply:
        trust(scope)
        secret, seconds = session
        return redirect(
            location, make_cookie(scope, request.session_cookie, secret, seconds=seconds)
        )

    async def _refuse(
        self, request: Request, scope: Scope, message: str, hint: str = "", target: str = ""
    ) -> Reply:
        _logger.info("refused a wrong secret from %s", _client(scope))
        if not await self._access.throttle.hold():
            raise Refused(pages.TOO_MANY)
        return self._login_page(request, message, hint, "wrong_secret", target)

    def _login_page(
        self,
        request: Request,
        message: str = "",
        hint: str = "",
        code: str = "not_authenticated",
        target: str = "",
    ) -> Reply:
        login = self._access.login
        as_page = request.accepts_html
        if as_page and request.home:
            # Without a leading slash, the path would become part of the host.
            return redirect(f"{request.home}{request.target if request.path_is_clean else '/'}")
        hint = (hint or login.hint) if as_page else _SEND_TOKEN
        headers = (
            ("www-authenticate", 'Bearer realm="aboard"'),
            # Without a referrer, browsers send "Origin: null" with the form, like another site's.
            ("referrer-policy", "same-origin"),
        )
        if not target:
            known = request.path_is_clean and request.path != login.path
            target = request.target if known else "/"
        up = "../" * max(request.target.partition("?")[0].count("/") - 1, 0)
        form = LoginForm(f"{up or './'}{login.path[1:]}", target, login.with_password)
        problem = Problem(401, code, message or login.message, hint, headers)
        return problem.reply(as_page=as_page, form=form)

    async def _websocket(self, scope: Scope, receive: Receive, send: Send) -> None:
        request = read_request(scope)
        refusal, visitor = 0, None
        try:
            visitor = await self._access.identify(request)
            if visitor is None and request.bearer is not None:
                await self._access.throttle.hold()
        except Refused:
            pass
        if visitor is None:
            refusal = _UNAUTHORIZED
        elif not request.path_is_clean:
            refusal = _BAD_PATH
        elif request.is_cross_origin and not _has_token(visitor):
            refusal = _FORBIDDEN
        if refusal:
            await receive()
            await send({"type": "websocket.close", "code": refusal})
            return
        scope[VISITOR] = visitor
        is_closed = False

        async def send_and_record(message: Message) -> None:
            nonlocal is_closed
            is_closed = message["type"] == "websocket.close"
            await send(message)

        try:
            await self._app(withhold_secrets(scope), receive, send_and_record)
        except Exception:
            _logger.exception("websocket %r failed", self._log_path(scope["path"]))
            if not is_closed:
                await send({"type": "websocket.close", "code": _FAILED})


def trust(scope: Scope) -> None:
    """Mark the connection of a request with a valid secret, so that the server keeps it."""
    connection = scope.get(CONNECTION)
    if connection is not None:
        connection.is_trusted()


async def server_ends(scope: Scope) -> None:
    """Wait until the server of a request shuts down; for ever if that is unknown."""
    connection = scope.get(CONNECTION)
    await (asyncio.Event() if connection is None else connection.ending).wait()


def is_ending(scope: Scope) -> bool:
    """Return whether the server of a request is shutting down."""
    connection = scope.get(CONNECTION)
    return connection is not None and connection.ending.is_set()


def redirect(location: str, cookie: str | None = None) -> Reply:
    headers = (
        ("location", location),
        ("cache-control", "no-store"),
        ("referrer-policy", "no-referrer"),
    )
    return Reply(303, (*headers, ("set-cookie", cookie)) if cookie else headers)


def _client(scope: Scope) -> str:
    address: str = (scope.get("client") or ("unknown",))[0]
    return address


def _has_token(visitor: Visitor | None) -> bool:
    return visitor is not None and visitor.credential is Credential.TOKEN


def _is_cross_origin_write(request: Request, visitor: Visitor | None) -> bool:
    # Browsers do not add tokens on their own, so a request with a token is not forged.
    is_write = request.method not in SAFE_METHODS
    return is_write and request.is_cross_origin and not _has_token(visitor)


def max_body_bytes(path: str) -> int:
    return MAX_BOARD_BODY_BYTES if path.startswith(BOARDS_PATH) else MAX_BODY_BYTES


class _Body:
    def __init__(self, receive: Receive, limit: int) -> None:
        self.limit = limit
        self._receive = receive
        self._received = 0

    @property
    def is_too_large(self) -> bool:
        return self._received > self.limit

    async def receive(self) -> Message:
        message = await self._receive()
        if message["type"] == "http.request":
            self._received += len(message.get("body", b""))
            if self.is_too_large:
                from starlette.exceptions import HTTPException

                raise HTTPException(413)
        return message


def _content_length(scope: Scope) -> int:
    length = first_header(scope["headers"], b"content-length")
    return int(length) if length.isascii() and length.isdigit() else 0


async def _read_form(receive: Receive) -> dict[str, str]:
    """Read a small form; return an empty one if it is too large, too slow or cut off."""
    body = b""
    try:
        async with asyncio.timeout(_FORM_SECONDS):
            while len(body) <= _MAX_FORM_BYTES:
                message = await receive()
                if message["type"] != "http.request":
                    return {}
                body += message.get("body", b"")
                if not message.get("more_body"):
                    fields = parse_qs(body.decode("utf-8", "replace"), max_num_fields=10)
                    return {name: values[0] for name, values in fields.items()}
    except (TimeoutError, ValueError):
        pass
    return {}
