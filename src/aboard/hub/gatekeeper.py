"""The gate of the hub: finds out who comes, and lets nobody see what is not for him.

Everything passes here first: boards, the API, and pages. A board that somebody may not see does
not exist for him. What a route of the API needs is checked again where it is answered.
"""

from __future__ import annotations

import asyncio
import logging
import time
from typing import TYPE_CHECKING

from starlette.exceptions import HTTPException

from aboard.boards.errors import BoardsError, DatabaseUnavailable, NotFound
from aboard.boards.model import INSTANT, BoardRecord, State
from aboard.hub.journal import note_request, without_secrets
from aboard.hub.metrics import Requests
from aboard.hub.origin import as_sent, session_cookie, share_cookie_name
from aboard.hub.permissions import Action, may
from aboard.hub.problems import status_of
from aboard.hub.proxy import NotServing, not_serving
from aboard.hub.rules import API, RULES, Open
from aboard.hub.service import Hub
from aboard.hub.visitors import Held, Visitor
from aboard.web import pages
from aboard.web.access import Redeemed
from aboard.web.brake import Brake
from aboard.web.connections import trust
from aboard.web.headers import secured
from aboard.web.pages import Problem, Reply, TokenForm
from aboard.web.request import (
    READING,
    Request,
    listener_cookie,
    read_request,
    withhold_secrets,
)

if TYPE_CHECKING:
    from starlette.types import ASGIApp, Message, Receive, Scope, Send

MARK = b"x-aboard-csrf"
"""The header without which a session changes nothing through the API.

No form can send it, nor does any page that was not written for this hub: TensorBoard's own, and
those of its plugins, which are of the same origin.
"""
LARGEST_BODY = 1 << 20
LARGEST_BOARD_BODY = 32 << 20
_FONTS = "/font-roboto/"
_OPEN = frozenset(path for (_, path), rule in RULES.items() if rule is Open.ANYBODY)
_UNAUTHORIZED, _FORBIDDEN, _BAD_PATH, _NOT_FOUND = 4401, 4403, 4400, 4404
_logger = logging.getLogger(__name__)


class Gatekeeper:
    """An ASGI application that stands before the others of a hub.

    Args:
        hub: knows users and boards.
        app: the API and the pages.
        instant: the boards that the hub serves itself.
        isolated: the boards that run elsewhere.
        requests: counts what was answered.
    """

    def __init__(
        self, hub: Hub, app: ASGIApp, instant: ASGIApp, isolated: ASGIApp, requests: Requests
    ) -> None:
        self._hub = hub
        self._app = app
        self._instant = instant
        self._isolated = isolated
        self._requests = requests
        self._brake = Brake()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request, or let it through."""
        if scope["type"] == "lifespan":
            await self._app(scope, receive, send)
            return
        scope = as_sent(scope, self._hub.config)
        if scope["type"] == "http":
            await self._http(scope, receive, send)
        else:
            await self._websocket(scope, receive, send)

    async def _http(self, scope: Scope, receive: Receive, send: Send) -> None:
        started = time.monotonic()
        status = 0
        host = next((value for name, value in scope["headers"] if name.lower() == b"host"), b"")

        async def send_secured(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                headers = secured(list(message.get("headers", ())), host)
                message = {**message, "headers": headers}
            await send(message)

        visitor: Visitor | None = None
        board = board_of(scope["path"])
        try:
            request = read_request(scope, listener_cookie(scope))
            visitor, answer = await self._answer(request, scope, board)
            if visitor is not None:
                trust(scope)
            limit = LARGEST_BODY if board is None else LARGEST_BOARD_BODY
            if _length(scope) > limit:
                answer = _TOO_LARGE
            inner = {**withhold_secrets(scope), "aboard.visitor": visitor}
            await answer(inner, _limited(receive, limit), send_secured)
        except Exception as error:
            if isinstance(error, HTTPException) and error.status_code == 413 and not status:
                await _TOO_LARGE(scope, receive, send_secured)
            else:
                path = without_secrets(scope["path"])
                _logger.exception("%s %r failed", scope["method"], path)
                # A response that has begun cannot be taken back: it stays cut off.
                if not status:
                    await pages.INTERNAL(scope, receive, send_secured)
        finally:
            seconds = time.monotonic() - started
            self._requests.count(_kind(scope["path"]), status or 500, seconds)
            client = (scope.get("client") or ("",))[0]
            name = visitor.name if visitor else ""
            minor = board is not None or _kind(scope["path"]) == "health"
            note_request(scope["method"], scope["path"], status, seconds, name, client, minor=minor)

    async def _answer(
        self, request: Request, scope: Scope, board: str | None
    ) -> tuple[Visitor | None, ASGIApp]:
        """Return who asks, and what answers him."""
        visitor = None
        try:
            visitor = await self._visitor(request, scope, board)
            if request.key is not None and (visitor is None or visitor.held is not Held.TOKEN):
                return visitor, await self._redeem(request.key, request, scope, visitor)
            is_marked = any(name.lower() == MARK for name, _ in scope["headers"])
            if (problem := _refused(request, visitor, is_marked=is_marked)) is not None:
                return visitor, problem
            if _is_open(request.path):
                return visitor, self._instant if request.path.startswith(_FONTS) else self._app
            if visitor is None:
                return None, await self._turn_away(request)
            return visitor, self._app if board is None else await self._board(board, visitor)
        except BoardsError as error:
            status = status_of(error)
            return visitor, Problem(status, error.code, _sentence(error.message), error.hint)

    async def _visitor(self, request: Request, scope: Scope, board: str | None) -> Visitor | None:
        if request.bearer is not None:
            return await self._known(Held.TOKEN, (request.bearer,))
        if request.sessions and (found := await self._known(Held.SESSION, request.sessions)):
            return found
        if board is None:
            return None
        shares = read_request(scope, share_cookie_name(board)).sessions
        return await self._known(Held.SHARE, shares) if shares else None

    async def _known(self, held: Held, secrets: tuple[str, ...]) -> Visitor | None:
        kept, visitor = self._hub.visitors.kept(held, secrets)
        if kept:
            return visitor
        return await asyncio.to_thread(self._hub.visitors.find, held, secrets)

    async def _board(self, board_id: str, visitor: Visitor) -> ASGIApp:
        record = self._hub.lifecycle.known(board_id)
        if record is None:
            record = await asyncio.to_thread(self._ended, board_id)
        if record is None or not may(visitor.who, Action.SEE, record):
            return pages.NOT_FOUND
        if record.state is not State.RUNNING:
            return not_serving(record.id, NotServing(record.state, record.reason))
        self._hub.lifecycle.touch(record.id)
        if record.on != INSTANT:
            return self._isolated
        await asyncio.to_thread(self._hub.reader.show, record)
        return self._instant

    def _ended(self, board_id: str) -> BoardRecord | None:
        try:
            return self._hub.registry.get(board_id)
        except (NotFound, DatabaseUnavailable):
            return None

    async def _redeem(
        self, key: str, request: Request, scope: Scope, visitor: Visitor | None
    ) -> Reply:
        """Exchange a one-time key for a session, and lead to the address without the key."""
        opened = self._hub.auth.new_session()
        session = opened.session if visitor is None else None
        redeemed = await asyncio.to_thread(self._hub.keys.redeem, key, session)
        if visitor is not None:
            return redirect(request.own_address)
        match redeemed:
            case Redeemed.OPENED:
                cookie = session_cookie(scope, self._hub.config, opened)
                return redirect(request.own_address, cookie)
            case Redeemed.USED:
                return self._ask(request, "This link was used already.", "key_used")
            case Redeemed.EXPIRED:
                return self._ask(request, "This link has expired.", "key_expired")
            case Redeemed.UNKNOWN:
                return await self._refuse(request, "This link is not right.")

    async def _turn_away(self, request: Request) -> Reply:
        if request.bearer is None:
            return self._ask(request)
        return await self._refuse(request, "This token is not right.")

    async def _refuse(self, request: Request, message: str) -> Reply:
        if not await self._brake.hold():
            return pages.TOO_MANY.reply(as_page=request.accepts_html)
        return self._ask(request, message, "wrong_secret")

    def _ask(
        self, request: Request, message: str = "This is for users of this hub.", code: str = ""
    ) -> Reply:
        target = request.target if request.path_is_clean else "/"
        up = "../" * max(request.target.partition("?")[0].count("/") - 1, 0)
        return ask_to_log_in(
            f"{up or './'}login",
            target,
            message,
            code=code or "not_authenticated",
            as_page=request.accepts_html,
            personal=self._hub.personal,
        )

    async def _websocket(self, scope: Scope, receive: Receive, send: Send) -> None:
        request = read_request(scope, listener_cookie(scope))
        board = board_of(scope["path"])
        refusal, record = _UNAUTHORIZED, None
        try:
            visitor = await self._visitor(request, scope, board)
        except BoardsError:
            visitor = None
        if visitor is not None:
            record = self._hub.lifecycle.known(board) if board else None
            if not request.path_is_clean:
                refusal = _BAD_PATH
            elif visitor.held is not Held.TOKEN and request.from_elsewhere:
                refusal = _FORBIDDEN
            elif record is None or not record.is_isolated:
                refusal = _NOT_FOUND
            else:
                refusal = 0 if may(visitor.who, Action.SEE, record) else _NOT_FOUND
        if refusal or record is None:
            await receive()
            await send({"type": "websocket.close", "code": refusal or _NOT_FOUND})
            return
        self._hub.lifecycle.touch(record.id)
        await self._isolated(withhold_secrets(scope), receive, send)


_HOW_TO_ENTER = "Log in with your name and password, or ask whoever runs this hub to let you in."
_HOW_TO_OPEN = "Get a link to a board with `aboard open`, or paste the token of this hub."
_HOW_TO_SEND = "Send a token in a header: Authorization: Bearer TOKEN"
_UNMARKED = Problem(
    403,
    "unmarked",
    "A change with the cookie of a session needs the header X-Aboard-CSRF.",
    "Send it with any value, or send a token instead: Authorization: Bearer TOKEN",
)
_TOO_LARGE = Problem(413, "too_large", "This request is too large.", "Send less.")


def ask_to_log_in(
    action: str, target: str, message: str, *, code: str, as_page: bool, personal: bool
) -> Reply:
    """Refuse, and say how to get in."""
    how = _HOW_TO_OPEN if personal else _HOW_TO_ENTER
    # A form of a page without a referrer says "Origin: null", like a stranger's.
    headers = (
        ("www-authenticate", 'Bearer realm="aboard"'),
        ("referrer-policy", "same-origin"),
    )
    problem = Problem(401, code, message, how if as_page else _HOW_TO_SEND, headers)
    form = TokenForm(action, target, with_password=not personal)
    return problem.reply(as_page=as_page, form=form)


def redirect(location: str, cookie: str | None = None) -> Reply:
    """Lead elsewhere on this hub."""
    headers = (
        ("location", location),
        ("cache-control", "no-store"),
        ("referrer-policy", "no-referrer"),
    )
    return Reply(303, (*headers, ("set-cookie", cookie)) if cookie else headers)


def board_of(path: str) -> str | None:
    """Return the id of the board that a path leads to, if it does."""
    parts = path.split("/", 3)
    return parts[2] if len(parts) > 2 and parts[:2] == ["", "b"] else None


def _refused(request: Request, visitor: Visitor | None, *, is_marked: bool) -> Problem | None:
    """Say why nobody may ask in this way, whoever he is."""
    if not request.path_is_clean:
        return pages.BAD_PATH
    by_token = visitor is not None and visitor.held is Held.TOKEN
    if request.method in READING or by_token:
        return None
    if request.from_elsewhere:
        return pages.CROSS_ORIGIN
    of_session = request.path.startswith(f"{API}/") and not _is_open(request.path)
    return _UNMARKED if of_session and visitor is not None and not is_marked else None


def _is_open(path: str) -> bool:
    is_share = path.startswith("/s/") and path.count("/") == 2
    return path in _OPEN or is_share or path.startswith(_FONTS)


def _kind(path: str) -> str:
    first = path.split("/", 2)[1] if path.count("/") else ""
    kinds = {"b": "board", "api": "api", "healthz": "health", "readyz": "health"}
    return kinds.get(first, "page")


def _length(scope: Scope) -> int:
    for name, value in scope["headers"]:
        if name.lower() == b"content-length" and value.isdigit():
            return int(value)
    return 0


def _limited(receive: Receive, limit: int) -> Receive:
    """Receive no more than a number of bytes."""
    received = 0

    async def receive_limited() -> Message:
        nonlocal received
        message = await receive()
        if message["type"] == "http.request":
            received += len(message.get("body", b""))
            if received > limit:
                raise HTTPException(413)
        return message

    return receive_limited


def _sentence(text: str) -> str:
    return text[:1].upper() + text[1:]
