"""The hub's own few pages: logging in and out, links to boards, and signs of life."""

from __future__ import annotations

import asyncio
import html
from urllib.parse import parse_qs

from fastapi import APIRouter, Depends, Request, Response
from fastapi.responses import JSONResponse, PlainTextResponse

from aboard.boards.accounts import User
from aboard.boards.errors import DatabaseUnavailable
from aboard.boards.model import LIVE, BoardRecord
from aboard.boards.registry import Page
from aboard.hub.api.asked import TheHub, TheUser, TheVisitor, check_rule
from aboard.hub.api.users import end_session
from aboard.hub.auth import AuthError, TooManyAttempts
from aboard.hub.gatekeeper import ask_to_log_in, redirect
from aboard.hub.metrics import CONTENT_TYPE, expose
from aboard.hub.origin import end_cookie, session_cookie, share_cookie
from aboard.hub.service import Hub
from aboard.web import pages
from aboard.web.access import Redeemed
from aboard.web.brake import Brake
from aboard.web.pages import Problem, Reply
from aboard.web.request import accepts_html, local_target, split_key

router = APIRouter(include_in_schema=False, dependencies=[Depends(check_rule)])
_YEAR = 365 * 86400
_MOST_LISTED = 100
_MOST_SELECTORS = 3
_NO_BOARDS = "There are none yet. Start one: <code>aboard start SELECTOR</code>"
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
    """Show somebody his boards, and the way out."""
    found = hub.page(user, states=LIVE, limit=_MOST_LISTED)
    if not accepts_html(request.scope):
        return JSONResponse({"user": user.name, "boards": found.total})
    return _response(_front_page(user, found))


def _front_page(user: User, found: Page) -> Reply:
    boards = "\n".join(_entry(board) for board in found.boards)
    more = found.total - len(found.boards)
    listed = f"<ul>\n{boards}\n</ul>" if boards else f'<p class="hint">{_NO_BOARDS}</p>'
    rest = f'<p class="hint">And {more} more: <code>aboard list</code></p>' if more > 0 else ""
    body = f"""<h1>Boards</h1>
{listed}{rest}
<form method="post" action="./logout">
<div class="row foot">
<p>You are logged in as {html.escape(user.name)}.</p>
<button type="submit">Log out</button>
</div>
</form>"""
    # A form of a page without a referrer says "Origin: null", like a stranger's.
    kept = (("cache-control", "no-store"), ("referrer-policy", "same-origin"))
    return pages.page("Boards", body, kept)


def _entry(board: BoardRecord) -> str:
    selectors = ", ".join(board.selectors[:_MOST_SELECTORS])
    more = len(board.selectors) - _MOST_SELECTORS
    shown = f"{selectors} and {more} more" if more > 0 else selectors
    about = html.escape(f"{shown} · {board.owner} · {board.state}")
    return f'<li><a href="./b/{board.id}/">{html.escape(board.name)}</a>\n<span>{about}</span></li>'


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


@router.post("/logout")
def log_out(hub: TheHub, request: Request, visitor: TheVisitor) -> Response:
    """End the session that a page was shown in."""
    end_session(hub, visitor)
    return _response(redirect("./login", end_cookie(request.scope, hub.config)))


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
    if found is not None:
        opened = await asyncio.to_thread(hub.auth.open_session, found[1])
        return session_cookie(request.scope, hub.config, opened)
    opened = hub.auth.new_session()
    redeemed = await asyncio.to_thread(hub.keys.redeem, key, opened.session)
    if redeemed is Redeemed.OPENED:
        return session_cookie(request.scope, hub.config, opened)
    if not await _brake.hold():
        raise TooManyAttempts("too many wrong secrets came.", "Wait a minute.")
    raise AuthError("this token is not right.", "Copy it again.")


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
