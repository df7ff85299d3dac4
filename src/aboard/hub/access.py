"""The entrance of the hub: public addresses, authentication, routing and the request log.

A request passes the headers of trusted proxies, the log, the `Gate` with the hub's accounts
(`HubAccess`), and the router to boards, API and pages. A board that a visitor may not see is not
found.
"""

from __future__ import annotations

import ipaddress
import json
import logging
import re
import time
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from aboard.boards.accounts import Session, User
from aboard.boards.model import INSTANT, BoardsError, BoardState
from aboard.hub import query, read, show
from aboard.hub.api import status_of
from aboard.hub.auth import (
    BOARDS_MARK,
    SHARE_MARK,
    TOKEN_MARK,
    AuthError,
    HubVisitor,
    Issued,
    TooManyAttempts,
)
from aboard.hub.config import Addresses, Config, origin_of
from aboard.hub.permissions import API, RULES, Action, Open, may
from aboard.hub.proxy import NotServing, not_serving
from aboard.hub.service import Hub
from aboard.runs.units import format_time
from aboard.web import pages
from aboard.web.gate import (
    BOARDS_PATH,
    VISITOR,
    BadKey,
    Credential,
    Gate,
    LoginPage,
    NewSession,
    Refused,
    Visitor,
    WrongSecret,
    redirect,
)
from aboard.web.pages import Problem
from aboard.web.request import (
    COOKIE_PREFIX,
    HOME,
    KEY,
    ORIGIN,
    PREFIX,
    SAFE_METHODS,
    Request,
    accepts_html,
    bearer_of,
    first_header,
    make_cookie,
    session_cookie_name,
)
from aboard.web.server import addresses
from aboard.web.tokens import pasted_key

if TYPE_CHECKING:
    from starlette.types import ASGIApp, Message, Receive, Scope, Send

    from aboard.hub.pages import Requests

# A session needs this header to change anything through the API. Forms cannot send it, and the
# pages of TensorBoard and its plugins, which may have the same origin, do not.
CSRF_HEADER = b"x-aboard-csrf"
ADDRESSES = "aboard.addresses"  # scope key: the addresses of the hub and its boards for the client
_BOARDS_ORIGIN = "boards"
_FONTS = "/font-roboto/"
_OPEN = frozenset(path for (_, path), rule in RULES.items() if rule is Open.PUBLIC)
_requests = logging.getLogger("aboard.hub.requests")
_LOGGED = ("method", "path", "status", "ms", "user", "client")
_SECRET = re.compile(f"({TOKEN_MARK}|{SHARE_MARK})[A-Za-z0-9_-]+")
_SCHEMES = {"http": "http", "https": "https", "ws": "http", "wss": "https"}
_KINDS = {"b": "board", "api": "api", "healthz": "health", "readyz": "health"}
_NO_CSRF_HEADER = Problem(
    403,
    "unmarked",
    "A change with a session cookie needs the header X-Aboard-CSRF.",
    "Send it with any value, or send a token instead: Authorization: Bearer TOKEN",
)


def make_entrance(
    hub: Hub,
    app: ASGIApp,
    instant: ASGIApp,
    isolated: ASGIApp,
    requests: Requests,
    listeners: Addresses | None = None,
) -> ASGIApp:
    """Return the application of a hub: `app` serves the API and pages, the others the boards."""
    router = _Router(hub, app, instant, isolated)
    shared_gate, hub_gate, boards_gate = (
        Gate(router, access, log_path=redact_path)
        for access in (HubAccess(hub), HubAccess(hub, shows_boards=False), BoardsAccess(hub))
    )

    async def entrance(scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await shared_gate(scope, receive, send)
            return
        scope = client_scope(scope, hub.config, listeners)
        gate = hub_gate if scope[ADDRESSES].boards else shared_gate
        gate = boards_gate if scope[ORIGIN] else gate
        if scope["type"] == "websocket":
            await gate(scope, receive, send)
            return
        started, status = time.monotonic(), 0

        async def send_and_record(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
            await send(message)

        try:
            await gate(scope, receive, send_and_record)
        finally:
            seconds, path = time.monotonic() - started, scope["path"]
            kind = _KINDS.get(path.split("/", 2)[1] if "/" in path else "", "page")
            requests.count(kind, status or 500, seconds)
            visitor: HubVisitor | None = scope.get(VISITOR)
            client = (scope.get("client") or ("",))[0]
            name = visitor.name if visitor else ""
            minor = kind in {"board", "health"}
            log_request(scope["method"], path, status, seconds, name, client, minor=minor)

    return entrance


class HubAccess:
    """Authentication at the hub's origin, which may also serve boards."""

    _for_boards = False

    def __init__(self, hub: Hub, *, shows_boards: bool = True) -> None:
        self._auth = hub.auth
        self._shows_boards = shows_boards
        self._personal = hub.personal
        self.throttle = hub.auth.throttle
        hint = "Use your name and password, or ask an admin of this hub for access."
        if hub.personal:
            hint = "Get a link with `aboard open`, or paste the token of this hub."
        if hub.auth.has_lasting_key:
            hint = "Open the link that Aboard printed when it started; it works until Aboard stops."
        self.login = LoginPage(
            path="/login",
            message="Log in to this hub.",
            hint=hint,
            wrong_link=hint,
            with_password=not hub.personal,
        )

    async def identify(self, request: Request) -> HubVisitor | None:
        async with _errors_as_refusals():
            if request.bearer is not None:
                return await self._find(Credential.TOKEN, (request.bearer,))
            if sessions := tuple(filter(self._is_for_us, request.sessions)):
                found = await self._find(Credential.SESSION, sessions)
                if found is not None:
                    return found
            board = board_of(request.path) if self._shows_boards else None
            links = request.cookie(share_cookie_name(board)) if board is not None else ()
            return await self._find(Credential.LINK, links) if links else None

    async def _find(self, credential: Credential, secrets: tuple[str, ...]) -> HubVisitor | None:
        is_known, visitor = self._auth.recent_visitor(credential, secrets)
        if is_known:
            return visitor
        return await query(self._auth.visitor, credential, secrets)

    def _is_for_us(self, secret: str) -> bool:
        """Return whether a session or key is for this origin; none is for both."""
        return secret.startswith(BOARDS_MARK) == self._for_boards

    async def redeem(self, key: str, visitor: Visitor | None) -> NewSession | BadKey:
        """Use up a one-time key and open a session, unless the visitor has one."""
        if not self._is_for_us(key):
            return BadKey.ELSEWHERE if self._for_boards else BadKey.UNKNOWN
        opened = self._auth.new_session(boards=self._for_boards)
        session = opened.record if visitor is None else None
        async with _errors_as_refusals():
            problem = await query(self._auth.redeem, key, session)
        return problem or _new_session(opened)

    async def log_in(self, form: Mapping[str, str], client: str = "") -> NewSession:
        """Open a session with a password, a token or a pasted link."""
        async with _errors_as_refusals():
            if self._personal or "user" not in form:
                return await self._with_token(form.get("token", "").strip())
            try:
                password = form.get("password", "")
                return _new_session(await self._auth.enter(form["user"], password, client))
            except TooManyAttempts:
                raise Refused(pages.TOO_MANY) from None
            except AuthError as error:
                raise WrongSecret(_sentence(error.message), delayed=True) from None

    async def _with_token(self, secret: str) -> NewSession:
        found = await query(self._auth.token, secret)
        if found is not None:
            return _new_session(await query(self._auth.open_session, found[1]))
        redeemed = await self.redeem(pasted_key(secret), None)
        if isinstance(redeemed, BadKey):
            raise WrongSecret("Invalid token.")
        return redeemed

    def is_open(self, path: str) -> bool:
        return path in _OPEN or _is_share(path) or path.startswith(_FONTS)


class BoardsAccess(HubAccess):
    """Authentication at the boards' own origin; users log in at the hub's origin."""

    _for_boards = True

    def __init__(self, hub: Hub) -> None:
        super().__init__(hub)
        self.login = replace(self.login, path="")

    def is_open(self, path: str) -> bool:
        return _is_share(path) or path.startswith(_FONTS)


class _Router:
    def __init__(self, hub: Hub, app: ASGIApp, instant: ASGIApp, isolated: ASGIApp) -> None:
        self._hub = hub
        self._app = app
        self._instant = instant
        self._isolated = isolated

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        answer = self._app if scope["type"] == "lifespan" else await self._answer(scope)
        await answer(scope, receive, send)

    async def _answer(self, scope: Scope) -> ASGIApp:
        path, visitor = scope["path"], scope[VISITOR]
        board = board_of(path)
        try:
            answer = None
            if scope[ADDRESSES].boards:
                answer = await self._elsewhere(scope, board, visitor)
            if answer is None and board is not None:
                answer = await self._board(board, visitor, scope["type"])
            if answer is not None:
                return answer
        except BoardsError as error:
            return _problem(error)
        if scope["type"] == "websocket":
            return pages.NOT_FOUND
        if path.startswith(_FONTS):
            return self._instant
        is_change = path.startswith(f"{API}/") and scope["method"] not in SAFE_METHODS
        if is_change and path not in _OPEN and visitor.credential is not Credential.TOKEN:
            is_marked = any(name.lower() == CSRF_HEADER for name, _ in scope["headers"])
            return self._app if is_marked else _NO_CSRF_HEADER
        return self._app

    async def _elsewhere(
        self, scope: Scope, board: str | None, visitor: HubVisitor | None
    ) -> ASGIApp | None:
        """Return the response to a request for the other origin, or from it; else None."""
        path = scope["path"]
        if scope[ORIGIN]:
            is_here = board is not None or _is_share(path) or path.startswith(_FONTS)
            return None if is_here else self._home(scope)
        if visitor is not None and visitor.credential is Credential.TOKEN:
            return None  # web pages have no token
        if _is_from_foreign_script(scope):
            return pages.CROSS_ORIGIN
        if _is_share(path):
            return redirect(f"{scope[ADDRESSES].boards}{path}")
        return None if board is None else await self._open_board(scope, board, visitor)

    def _home(self, scope: Scope) -> ASGIApp:
        """Redirect the owner of a personal hub from the boards' port to the hub's pages."""
        is_page = scope["type"] == "http" and scope["method"] == "GET" and accepts_html(scope)
        if not self._hub.personal or not is_page:
            return pages.NOT_FOUND
        return redirect(f"{scope[HOME]}{_target(scope)}")

    async def _open_board(self, scope: Scope, board: str, visitor: HubVisitor | None) -> ASGIApp:
        """Redirect a browser to the boards' origin, with a key that is valid only there."""
        lifecycle = self._hub.lifecycle
        record = lifecycle.known(board) or await query(lifecycle.find, board)
        if visitor is None or record is None or not may(visitor.who, Action.SEE, record):
            return pages.NOT_FOUND
        mode = first_header(scope["headers"], b"sec-fetch-mode").lower()
        is_page = scope["type"] == "http" and scope["method"] == "GET" and mode in {"", "navigate"}
        if not is_page or not isinstance(visitor.who, User):
            return pages.CROSS_ORIGIN
        mint = partial(self._hub.auth.mint_key, visitor.who, boards=True)
        key, _ = await query(mint)
        target = _target(scope)
        sign = "&" if "?" in target else "?"
        return redirect(f"{scope[ADDRESSES].boards}{target}{sign}{KEY}={key}")

    async def _board(self, board_id: str, visitor: HubVisitor, kind: str) -> ASGIApp:
        record = self._hub.lifecycle.known(board_id)
        if record is None and kind == "http":
            record = await query(self._hub.lifecycle.find, board_id)
        if record is None or not may(visitor.who, Action.SEE, record):
            return pages.NOT_FOUND
        if kind == "websocket" and not record.is_isolated:
            return pages.NOT_FOUND
        if kind == "http" and record.state is not BoardState.RUNNING:
            log: tuple[str, ...] = ()
            if record.state is BoardState.STARTING and may(visitor.who, Action.SEE_LOGS, record):
                log = await read(self._hub.last_lines, record)
            return not_serving(record.id, NotServing(record.state, record.reason, log))
        self._hub.lifecycle.touch(record.id)
        if record.on != INSTANT:
            return self._isolated
        await show(self._hub.show, record)
        return self._instant


def _target(scope: Scope) -> str:
    path, query = scope["raw_path"].decode("latin-1"), scope["query_string"].decode("latin-1")
    return f"{path}?{query}" if query else path


def _is_from_foreign_script(scope: Scope) -> bool:
    """Return whether a page of another origin sent the request without navigating to it."""
    site = first_header(scope["headers"], b"sec-fetch-site").lower()
    mode = first_header(scope["headers"], b"sec-fetch-mode").lower()
    return site not in {"", "none", "same-origin"} and mode != "navigate"


def _is_share(path: str) -> bool:
    return path.startswith("/s/") and path.count("/") == 2


def board_of(path: str) -> str | None:
    return path.split("/", 3)[2] if path.startswith(BOARDS_PATH) else None


# The hub's address and cookies.


def client_scope(scope: Scope, config: Config, listeners: Addresses | None = None) -> Scope:
    """Return the scope as the client sent it: before trusted proxies, without the hub's prefix.

    `ADDRESSES`, `ORIGIN` and `HOME` are set for this client.
    """
    scope = {**scope, "root_path": ""}
    client = scope.get("client")
    proto = ""
    if config.trusted_proxies and client is not None and _is_trusted(client[0], config):
        reported = {name.lower(): value.decode("latin-1") for name, value in scope["headers"]}
        if host := reported.get(b"x-forwarded-host", "").rpartition(",")[2].strip():
            others = [pair for pair in scope["headers"] if pair[0].lower() != b"host"]
            scope["headers"] = [*others, (b"host", host.encode("latin-1"))]
        proto = reported.get(b"x-forwarded-proto", "").rpartition(",")[2].strip().lower()
        before = _client_before(reported.get(b"x-forwarded-for", ""), client[0], config)
        scope["client"] = (before, 0)
    known, is_for_boards = Addresses(config.url, config.boards_url), _names_boards(scope, config)
    if listeners is not None:
        known, is_for_boards = _addresses_for(scope, listeners)
    scope[ADDRESSES] = known
    scope[ORIGIN] = _BOARDS_ORIGIN if is_for_boards else ""
    scope[HOME] = known.hub if is_for_boards else ""
    url = config.boards_url if scope[ORIGIN] else config.url
    path, raw, prefix = scope["path"], scope.get("raw_path"), urlsplit(url).path
    if prefix and path.startswith(f"{prefix}/"):
        path = path[len(prefix) :]
        raw = raw[len(prefix.encode()) :] if raw and raw.startswith(prefix.encode()) else None
    scope |= {"path": path, "raw_path": raw or path.encode(), PREFIX: prefix}
    plain = "ws" if scope["type"] == "websocket" else "http"
    if url:
        scope["scheme"] = f"{plain}s" if url.startswith("https:") else plain
    elif proto in _SCHEMES:
        scope["scheme"] = f"{plain}s" if _SCHEMES[proto] == "https" else plain
    return scope


def _names_boards(scope: Scope, config: Config) -> bool:
    """Return whether `Host` is the boards' own origin; browsers send the real one."""
    url = config.boards_url
    return bool(url) and _requested(scope, urlsplit(url).scheme) == origin_of(url)


def _addresses_for(scope: Scope, listeners: Addresses) -> tuple[Addresses, bool]:
    """Return the addresses of a hub with two ports, and whether the request is for boards.

    The port that received the request decides. If `Host` names another port, the hub's port was
    forwarded and the boards' port perhaps not. Then the two loopback names are the two origins,
    both at the forwarded port; they share no cookies either. Any other name, such as a proxy's, has
    no second one, so boards are at the hub's origin. A page cannot lead a browser there unless the
    port was forwarded, because browsers send the `Host` to which they connect.
    """
    scheme, _, port_of_boards = origin_of(listeners.boards)
    port = (scope.get("server") or ("", 0))[1]
    if port == port_of_boards:
        return listeners, True
    _, name, requested = _requested(scope, scheme) or ("", "", 0)
    if not name or requested == port:
        return listeners, False
    if name not in {"localhost", "127.0.0.1"}:
        return Addresses(), False
    forwarded = Addresses(*(f"{scheme}://{one}:{requested}" for one in ("localhost", "127.0.0.1")))
    # Programs send a token to either name; with a token, valid or not, cookies are ignored.
    return forwarded, name == "127.0.0.1" and bearer_of(scope["headers"]) is None


def _requested(scope: Scope, scheme: str) -> tuple[str, str, int] | None:
    """Return the origin in `Host`; None if it is invalid."""
    try:
        return origin_of(f"{scheme}://{first_header(scope['headers'], b'host')}")
    except ValueError:
        return None


def public_address(scope: Scope, config: Config) -> str:
    """Return the base address for links: the configured one, or where the hub listens.

    Only the port comes from the connection. `Host` is not used, because the client chooses it.
    """
    port = (scope.get("server") or ("", 0))[1] or config.port or 0
    scheme = "https" if config.certificate else "http"
    return config.url or addresses(config.host, port, scheme)[0]


def session_cookie(scope: Scope, opened: Issued[Session]) -> str:
    secret, seconds = _new_session(opened)
    return make_cookie(scope, session_cookie_name(scope), secret, seconds=seconds)


def end_cookie(scope: Scope) -> str:
    return make_cookie(scope, session_cookie_name(scope), "", seconds=0)


def share_cookie_name(board_id: str) -> str:
    return f"{COOKIE_PREFIX}share-{board_id}"


def _new_session(opened: Issued[Session]) -> NewSession:
    session = opened.record
    return NewSession(opened.secret, max(int(session.expires - session.created), 1))


def _client_before(chain: str, address: str, config: Config) -> str:
    """Return the last address in a chain of proxies that is not a trusted proxy."""
    for hop in reversed([one.strip() for one in chain.split(",") if one.strip()]):
        if not _is_trusted(address, config):
            break
        try:
            address = str(ipaddress.ip_address(hop))
        except ValueError:
            break
    return address


def _is_trusted(address: str, config: Config) -> bool:
    try:
        known = ipaddress.ip_address(address)
    except ValueError:
        return False
    return any(known in network for network in config.trusted_proxies)


@asynccontextmanager
async def _errors_as_refusals() -> AsyncIterator[None]:
    try:
        yield
    except BoardsError as error:
        raise Refused(_problem(error)) from error


def _problem(error: BoardsError) -> Problem:
    return Problem(status_of(error), error.code, _sentence(error.message), error.hint)


def _sentence(text: str) -> str:
    return text[:1].upper() + text[1:]


# The request log: one JSON document per line, without query strings, links and other secrets.


class JsonLines(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        document: dict[str, Any] = {
            "at": format_time(record.created),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
        }
        document |= {name: vars(record)[name] for name in _LOGGED if name in vars(record)}
        if record.exc_info:
            document["traceback"] = self.formatException(record.exc_info)
        return json.dumps(document, default=str)


def configure_log() -> None:
    handler = logging.StreamHandler()
    handler.setFormatter(JsonLines())
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(logging.WARNING)
    logging.getLogger("aboard").setLevel(logging.INFO)


def redact_path(path: str) -> str:
    return "/s/…" if path.startswith("/s/") else _SECRET.sub(r"\1…", path)[:500]


def log_request(
    method: str, path: str, status: int, seconds: float, user: str, client: str, *, minor: bool
) -> None:
    level = logging.DEBUG if minor and status < 400 else logging.INFO
    if _requests.isEnabledFor(level):
        shown = redact_path(path)
        values = (method, shown, status, round(seconds * 1000, 1), user, client)
        extra = dict(zip(_LOGGED, values, strict=True))
        _requests.log(level, "%s %s %d", method, shown, status, extra=extra)
