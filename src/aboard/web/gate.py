"""The gate of every listener: nothing behind it answers without a secret.

A pure ASGI middleware. It lets in whoever has the token, a session's cookie, or a one-time key,
which it exchanges for such a cookie. Which secrets are right is left to `access`, what an
application may see of a request to `request`, and how a refusal looks to `pages`.
"""

from __future__ import annotations

import asyncio
import logging
from enum import Enum
from typing import TYPE_CHECKING
from urllib.parse import parse_qs

from aboard.web import pages
from aboard.web.access import Access, Redeemed
from aboard.web.brake import Brake
from aboard.web.connections import trust
from aboard.web.headers import secured
from aboard.web.pages import Problem, Reply, TokenForm
from aboard.web.request import (
    READING,
    Request,
    listener_cookie,
    local_target,
    read_request,
    split_key,
    withhold_secrets,
)

if TYPE_CHECKING:
    from starlette.types import ASGIApp, Message, Receive, Scope, Send

LOGIN_PATH = "/_aboard/login"
HOW_TO_ENTER = (
    "This is Aboard, which shows training runs. Open the link that it printed when it was "
    "started, or paste its token."
)
HOW_TO_RENEW = (
    "A link opens once, and only for a day. Ask Aboard for a new one, or paste its token."
)
_LARGEST_FORM = 16_384
_FORM_SECONDS = 10
_UNAUTHORIZED = 4401
_FORBIDDEN = 4403
_BAD_PATH = 4400
_FAILED = 1011
_logger = logging.getLogger("aboard.web")


class _Held(Enum):
    """The secret that a request came with."""

    TOKEN = "token"  # noqa: S105 - the kind of a secret, not one
    SESSION = "session"


class _TooMany(Exception):  # noqa: N818 - named by what it is
    """A secret was not looked at, because too many are being tried."""


class Gate:
    """An ASGI application that lets only those who hold a secret through to another.

    Args:
        app: what is behind the gate.
        access: the secrets.
        brake: slows down those who try wrong ones.
        how_to_enter: what people without a secret are told.
        how_to_renew: what people with a link that is used up or too old are told.
    """

    def __init__(
        self,
        app: ASGIApp,
        access: Access,
        *,
        brake: Brake | None = None,
        how_to_enter: str = HOW_TO_ENTER,
        how_to_renew: str = HOW_TO_RENEW,
    ) -> None:
        self._app = app
        self._access = access
        self._brake = brake or Brake()
        self._how_to_enter = how_to_enter
        self._how_to_renew = how_to_renew

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request, or let it through."""
        if scope["type"] == "http":
            await self._http(scope, receive, send)
        elif scope["type"] == "websocket":
            await self._websocket(scope, receive, send)
        elif scope["type"] == "lifespan":
            await self._app(scope, receive, send)

    def cookie_name(self, scope: Scope) -> str:
        """Return the name of this listener's cookie."""
        return listener_cookie(scope)

    async def _http(self, scope: Scope, receive: Receive, send: Send) -> None:
        host = next((value for name, value in scope["headers"] if name.lower() == b"host"), b"")
        started = False

        async def send_secured(message: Message) -> None:
            nonlocal started
            if message["type"] == "http.response.start":
                started = True
                headers = secured(list(message.get("headers", ())), host)
                message = {**message, "headers": headers}
            await send(message)

        try:
            request = read_request(scope, self.cookie_name(scope))
            reply = await self._reply(request, scope, receive)
            if reply is not None:
                await reply(scope, receive, send_secured)
            else:
                await self._app(withhold_secrets(scope), receive, send_secured)
        except _TooMany:
            await pages.TOO_MANY(scope, receive, send_secured)
        except Exception:
            _logger.exception("%s %r failed", scope["method"], scope["path"])
            # A response that has begun cannot be taken back: it stays cut off.
            if not started:
                await pages.INTERNAL(scope, receive, send_secured)

    async def _reply(self, request: Request, scope: Scope, receive: Receive) -> Reply | None:
        """Return our own answer to a request, or None to let it through."""
        held = await self._held(request)
        if held is not None:
            trust(scope)
        if request.path == LOGIN_PATH:
            return await self._login(request, scope, receive, held)
        if request.key is not None and held is not _Held.TOKEN:
            return await self._redeem(request.key, request, scope, held)
        if held is None:
            return await self._turn_away(request, scope)
        if not request.path_is_clean:
            return pages.BAD_PATH.reply(as_page=request.accepts_html)
        if held is _Held.SESSION and request.from_elsewhere and request.method not in READING:
            return pages.CROSS_ORIGIN.reply(as_page=request.accepts_html)
        return None

    async def _held(self, request: Request) -> _Held | None:
        has_session = any(self._access.is_session(session) for session in request.sessions)
        if request.bearer is not None and await self._is_token(
            request.bearer, in_turn=not has_session
        ):
            return _Held.TOKEN
        return _Held.SESSION if has_session else None

    async def _is_token(self, text: str, *, in_turn: bool = True) -> bool:
        """Say whether a text is the token.

        A token that nobody can guess is compared at once: those who hold it would otherwise wait
        for those who try in vain, which is the greater evil.

        Raises:
            _TooMany: too many others wait to have theirs compared.
        """
        in_turn = in_turn and self._access.is_guessable
        if in_turn and not await self._brake.turn():
            raise _TooMany
        is_token = self._access.is_token(text)
        if in_turn and is_token:
            self._brake.right()
        return is_token

    async def _redeem(self, key: str, request: Request, scope: Scope, held: _Held | None) -> Reply:
        """Exchange a one-time key for a cookie, and lead to the address without the key."""
        redeemed = self._access.redeem(key)
        if held is not None:
            return _redirect(request.own_address)
        match redeemed:
            case Redeemed.OPENED:
                trust(scope)
                return _redirect(request.own_address, self._new_cookie(scope))
            case Redeemed.USED:
                message, code = "This link was used already.", "key_used"
            case Redeemed.EXPIRED:
                message, code = "This link has expired.", "key_expired"
            case Redeemed.UNKNOWN:
                return await self._refuse(request, scope, "This link is not right.", _WRONG_LINK)
        return self._ask(request, message, self._how_to_renew, code)

    async def _login(
        self, request: Request, scope: Scope, receive: Receive, held: _Held | None
    ) -> Reply:
        """Take a token, or a link, from the form of a page."""
        if request.method != "POST":
            return self._ask(request) if held is None else _redirect("../")
        form = await _read_form(receive)
        target = local_target(form.get("next", "")) or "/"
        destination = ".." + ("/" if target.startswith(LOGIN_PATH) else target)
        secret = form.get("token", "").strip()
        key = split_key(secret.partition("?")[2].partition("#")[0])[1] or secret
        if self._access.redeem(key) is Redeemed.OPENED or await self._is_token(secret):
            trust(scope)
            return _redirect(destination, self._new_cookie(scope))
        return await self._refuse(request, scope, "This token is not right.", target=target)

    async def _turn_away(self, request: Request, scope: Scope) -> Reply:
        if request.bearer is None:
            return self._ask(request)
        return await self._refuse(request, scope, "This token is not right.")

    def _ask(
        self,
        request: Request,
        message: str = "This needs a link or a token.",
        hint: str = "",
        code: str = "unauthorized",
        target: str = "",
    ) -> Reply:
        """Refuse, and say how to get in."""
        hint = hint or (self._how_to_enter if request.accepts_html else _HOW_TO_SEND)
        challenge = ("www-authenticate", 'Bearer realm="aboard"')
        problem = Problem(401, code, message, hint, (challenge,))
        if not target:
            known = request.path_is_clean and request.path != LOGIN_PATH
            target = request.target if known else "/"
        up = "../" * max(request.target.partition("?")[0].count("/") - 1, 0)
        form = TokenForm(f"{up or './'}{LOGIN_PATH[1:]}", target)
        return problem.reply(as_page=request.accepts_html, form=form)

    async def _refuse(
        self, request: Request, scope: Scope, message: str, hint: str = "", target: str = ""
    ) -> Reply:
        """Refuse a wrong secret, slowly."""
        client = (scope.get("client") or ("unknown",))[0]
        _logger.info("refused a wrong secret from %s", client)
        if not await self._brake.hold():
            return pages.TOO_MANY.reply(as_page=request.accepts_html)
        return self._ask(request, message, hint, "wrong_secret", target)

    def _new_cookie(self, scope: Scope) -> str:
        # Lax, not Strict: a link in a chat or a wiki should open for those who are logged in.
        name, session = self.cookie_name(scope), self._access.open_session()
        age = int(self._access.session_lifetime)
        cookie = f"{name}={session}; Path=/; Max-Age={age}; HttpOnly; SameSite=Lax"
        return f"{cookie}; Secure" if scope.get("scheme") == "https" else cookie

    async def _websocket(self, scope: Scope, receive: Receive, send: Send) -> None:
        request = read_request(scope, self.cookie_name(scope))
        refusal = None
        try:
            held = await self._held(request)
            if held is None and request.bearer is not None:
                await self._brake.hold()
        except _TooMany:
            held = None
        if held is None:
            refusal = _UNAUTHORIZED
        elif not request.path_is_clean:
            refusal = _BAD_PATH
        elif held is _Held.SESSION and request.from_elsewhere:
            refusal = _FORBIDDEN
        if refusal is not None:
            await receive()
            await send({"type": "websocket.close", "code": refusal})
            return
        is_closed = False

        async def send_noting(message: Message) -> None:
            nonlocal is_closed
            is_closed = message["type"] == "websocket.close"
            await send(message)

        try:
            await self._app(withhold_secrets(scope), receive, send_noting)
        except Exception:
            _logger.exception("websocket %r failed", scope["path"])
            if not is_closed:
                await send({"type": "websocket.close", "code": _FAILED})


_WRONG_LINK = (
    "Perhaps it was cut off when it was copied, or Aboard was started anew since. "
    "Copy it again, or paste the token."
)
_HOW_TO_SEND = "Send the token in a header: Authorization: Bearer TOKEN"


def _redirect(location: str, cookie: str | None = None) -> Reply:
    headers = (
        ("location", location),
        ("cache-control", "no-store"),
        ("referrer-policy", "no-referrer"),
    )
    return Reply(303, (*headers, ("set-cookie", cookie)) if cookie else headers)


async def _read_form(receive: Receive) -> dict[str, str]:
    """Read a small form; one that is too large, too slow or cut off is empty."""
    body = b""
    try:
        async with asyncio.timeout(_FORM_SECONDS):
            while len(body) <= _LARGEST_FORM:
                message = await receive()
                if message["type"] != "http.request":
                    return {}
                body += message.get("body", b"")
                if not message.get("more_body"):
                    fields = parse_qs(body.decode("latin-1"), max_num_fields=10)
                    return {name: values[0] for name, values in fields.items()}
    except (TimeoutError, ValueError):
        pass
    return {}
