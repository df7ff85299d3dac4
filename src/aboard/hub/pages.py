"""The hub's own few pages: logging in, links to one board, and signs of life."""

from __future__ import annotations

import asyncio
from urllib.parse import parse_qs

from fastapi import APIRouter, Depends, Request, Response
from fastapi.responses import JSONResponse, PlainTextResponse

from aboard.boards.errors import DatabaseUnavailable
from aboard.boards.model import LIVE
from aboard.hub.api.asked import TheHub, TheUser, check_rule
from aboard.hub.auth import AuthError, TooManyAttempts
from aboard.hub.gatekeeper import ask_to_log_in, redirect
from aboard.hub.metrics import CONTENT_TYPE, expose
from aboard.hub.origin import session_cookie, share_cookie
from aboard.hub.service import Hub
from aboard.web import pages
from aboard.web.access import Redeemed
from aboard.web.brake import Brake
from aboard.web.pages import Problem, Reply
from aboard.web.request import accepts_html, local_target, split_key

router = APIRouter(include_in_schema=False, dependencies=[Depends(check_rule)])
_YEAR = 365 * 86400
_brake = Brake()
_STRANGE = Problem(
    404, "not_found", "This link shows nothing.", "It may have expired. Ask for a new one."
)


@router.get("/healthz")
async def healthz() -> JSONResponse:
    """Say that the process answers."""
    return JSONResponse({"status": "alive"})


@router.get("/readyz")
def readyz(hub: TheHub) -> JSONResponse:
    """Say whether everything that is needed for changes is there."""
    hub.registry.check()
    if hub.lifecycle.snapshot().problem:
        raise DatabaseUnavailable("the boards could not be read.", "Try again in a moment.")
    return JSONResponse({"status": "ready"})


@router.get("/metrics")
def metrics(hub: TheHub, request: Request) -> PlainTextResponse:
    """Return numbers for Prometheus."""
    return PlainTextResponse(expose(hub, request.app.state.requests), media_type=CONTENT_TYPE)


@router.get("/")
def front(hub: TheHub, user: TheUser, request: Request) -> Response:
    """Greet whoever came without a board."""
    boards = hub.page(user, states=LIVE, limit=1).total
    welcome = Problem(
        200,
        "welcome",
        f"You are logged in as {user.name}.",
        f"You can see {boards} boards. List them with: aboard list - start one: aboard start",
    )
    return _response(welcome.reply(as_page=accepts_html(request.scope)))


@router.get("/login")
async def login_page(hub: TheHub, request: Request) -> Response:
    """Ask who somebody is."""
    as_page = accepts_html(request.scope)
    return _ask(hub, "Log in to this hub.", "/", as_page=as_page)


@router.post("/login")
async def log_in(hub: TheHub, request: Request) -> Response:
    """Take a password, a token or a link from the form of a page."""
    fields = parse_qs((await request.body()).decode("latin-1"), max_num_fields=10)
    form = {
        name: values[0].encode("latin-1", "replace").decode("utf-8", "replace")
        for name, values in fields.items()
    }
    target = local_target(form.get("next", "")) or "/"
    if target.startswith("/login"):
        target = "/"
    try:
        if hub.personal or "user" not in form:
            cookie = await _with_token(hub, request, form.get("token", "").strip())
        else:
            opened = await hub.auth.enter(form["user"], form.get("password", ""))
            cookie = session_cookie(request.scope, hub.config, opened)
    except TooManyAttempts:
        return _response(pages.TOO_MANY.reply(as_page=True))
    except AuthError as error:
        message = error.message[:1].upper() + error.message[1:]
        return _ask(hub, message, target, as_page=accepts_html(request.scope))
    return _response(redirect(f".{target}", cookie))


@router.get("/s/{secret}")
async def open_share(hub: TheHub, request: Request, secret: str) -> Response:
    """Show a board to whoever has a link to it."""
    guest = await asyncio.to_thread(hub.auth.guest, secret)
    if guest is None:
        await _brake.hold()
        return _response(_STRANGE.reply(as_page=accepts_html(request.scope)))
    ends = guest.share.expires
    age = _YEAR if ends is None else max(int(ends - hub.clock()), 1)
    cookie = share_cookie(request.scope, hub.config, guest.share.board, secret, age)
    return _response(redirect(f"../b/{guest.share.board}/", cookie))


async def _with_token(hub: Hub, request: Request, secret: str) -> str:
    """Open a session with a token, or with a link that was pasted."""
    key = split_key(secret.partition("?")[2].partition("#")[0])[1] or secret
    found = await asyncio.to_thread(hub.auth.token, secret)
    user = found[1] if found else None
    if user is None:
        redeemed, name = hub.keys.redeem(key)
        if redeemed is Redeemed.OPENED:
            user = await asyncio.to_thread(hub.auth.user, name)
    if user is None:
        if not await _brake.hold():
            raise TooManyAttempts("too many wrong secrets came.", "Wait a minute.")
        raise AuthError("this token is not right.", "Copy it again.")
    opened = await asyncio.to_thread(hub.auth.open_session, user)
    return session_cookie(request.scope, hub.config, opened)


def _ask(hub: Hub, message: str, target: str, *, as_page: bool) -> Response:
    reply = ask_to_log_in(
        "./login",
        target,
        message,
        code="not_authenticated",
        as_page=as_page,
        personal=hub.personal,
    )
    return _response(reply)


def _response(reply: Reply) -> Response:
    response = Response(reply.body, reply.status)
    for name, value in reply.headers:
        response.headers.append(name, value)
    return response
