"""The hub's own pages: the console, shared links, logout, health, and metrics for Prometheus.

The console is one page with many paths. `make console` builds its files into the directory
`console` beside this module. If they were not built, the front page is a plain list of boards.
"""

from __future__ import annotations

import gzip
import html
import re
from collections import Counter as Tally
from collections.abc import Iterator
from pathlib import Path

import prometheus_client
from fastapi import APIRouter, Depends, Request, Response
from fastapi.responses import HTMLResponse, JSONResponse, PlainTextResponse
from prometheus_client import CollectorRegistry, Counter, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from aboard import __version__
from aboard.boards.accounts import User
from aboard.boards.model import ENDED, LIVE, BoardRecord, DatabaseUnavailable
from aboard.boards.registry import Page
from aboard.hub import query
from aboard.hub.access import end_cookie, share_cookie_name
from aboard.hub.api import TheHub, TheUser, TheVisitor, check_rule
from aboard.hub.api.users import end_session
from aboard.hub.service import Hub
from aboard.storage import traffic
from aboard.web import pages
from aboard.web.gate import redirect
from aboard.web.pages import NOT_FOUND, Problem, Reply
from aboard.web.request import accepts_html, first_header, make_cookie

router = APIRouter(include_in_schema=False, dependencies=[Depends(check_rule)])
# Pages of the console besides the front page; each needs a rule in `permissions`.
CONSOLE_PATHS = (
    "/runs",
    "/runs/{run}",
    "/compare",
    "/sweep",
    "/boards",
    "/jobs",
    "/storage",
    "/people",
)
CONSOLE_FILES = Path(__file__).with_name("console")
_ASSET = re.compile(r"app-[0-9A-Z]+\.(js|css)")
_ASSET_TYPES = {"js": "text/javascript; charset=utf-8", "css": "text/css; charset=utf-8"}
_BASE = '<base href="./">'
# No inline code, no eval, no other sites; trusted types keep scripts from turning text into markup.
_CONSOLE_POLICY = (
    "default-src 'self'; img-src 'self' data: blob:; object-src 'none'; base-uri 'self'; "
    "form-action 'self'; frame-ancestors 'self'; "
    "require-trusted-types-for 'script'; trusted-types 'none'"
)
_YEAR = 365 * 86400
_MAX_LISTED = 100
_MAX_SELECTORS = 3
_NO_CONSOLE = (
    "This installation has no console, because its files were not built. In the checkout of Aboard "
    "that you installed, run <code>make console</code> and <code>pip install .</code> again. "
    "Boards, the command line and the API work without it."
)
_NO_BOARDS = "No boards yet. Start one: <code>aboard start SELECTOR</code>"
_NO_SHARE = Problem(
    404,
    "not_found",
    "This link does not show a board.",
    "It may have expired. Ask its owner for a new one.",
)


@router.get("/healthz")
async def healthz() -> JSONResponse:
    return JSONResponse({"status": "alive"})


@router.get("/readyz")
def readyz(hub: TheHub) -> JSONResponse:
    """Return 200 while the database and the boards can be read."""
    hub.registry.check()
    if hub.lifecycle.snapshot().problem:
        raise DatabaseUnavailable("the boards cannot be read.", "Try again in a moment.")
    return JSONResponse({"status": "ready"})


@router.get("/metrics")
def metrics(hub: TheHub, request: Request) -> PlainTextResponse:
    return PlainTextResponse(_expose(hub, request.app.state.requests), media_type=METRICS_TYPE)


@router.get("/")
def front(hub: TheHub, user: TheUser, request: Request) -> Response:
    if not accepts_html(request.scope):
        found = hub.page(user, states=LIVE, limit=1)
        return JSONResponse({"user": user.name, "boards": found.total})
    return console(hub, user, request)


def console(hub: TheHub, user: TheUser, request: Request) -> Response:
    """Return the console; its scripts show the page of the URL."""
    up = "../" * (request.scope["path"].count("/") - 1)
    try:
        text = (CONSOLE_FILES / "index.html").read_text(encoding="utf-8")
    except FileNotFoundError:
        found = hub.page(user, states=LIVE, limit=_MAX_LISTED)
        return _response(_list_of_boards(user, found, up or "./"))
    if up:  # relative, because a proxy may remove a prefix that the hub does not know
        text = text.replace(_BASE, f'<base href="{up}">')
    headers = {"content-security-policy": _CONSOLE_POLICY, "cache-control": "no-store"}
    return HTMLResponse(text, headers=headers)


for _path in CONSOLE_PATHS:
    router.get(_path)(console)


@router.get("/console/{name}")
def console_asset(request: Request, name: str) -> Response:
    """Return a script or style sheet; its name contains a digest of its content."""
    known = _ASSET.fullmatch(name)
    path = CONSOLE_FILES / name
    if known is None or not path.is_file():
        return _response(NOT_FOUND.reply(as_page=accepts_html(request.scope)))
    content = path.read_bytes()
    headers = {"cache-control": f"private, max-age={_YEAR}, immutable", "vary": "accept-encoding"}
    if "gzip" in first_header(request.scope["headers"], b"accept-encoding"):
        content = gzip.compress(content, mtime=0)
        headers["content-encoding"] = "gzip"
    return Response(content, headers=headers, media_type=_ASSET_TYPES[known[1]])


def _list_of_boards(user: User, found: Page, up: str) -> Reply:
    boards = "\n".join(_entry(board, up) for board in found.boards)
    more = found.total - len(found.boards)
    listed = f"<ul>\n{boards}\n</ul>" if boards else f'<p class="hint">{_NO_BOARDS}</p>'
    rest = f'<p class="hint">And {more} more: <code>aboard list</code></p>' if more > 0 else ""
    body = f"""<h1>Boards</h1>
{listed}{rest}
<p class="hint">{_NO_CONSOLE}</p>
<form method="post" action="{up}logout">
<div class="row foot">
<p>You are logged in as {html.escape(user.name)}.</p>
<button type="submit">Log out</button>
</div>
</form>"""
    # Without a referrer, browsers send "Origin: null" with the form, like another site's.
    kept = (("cache-control", "no-store"), ("referrer-policy", "same-origin"))
    return pages.page("Boards", body, kept)


def _entry(board: BoardRecord, up: str) -> str:
    selectors = ", ".join(board.selectors[:_MAX_SELECTORS])
    more = len(board.selectors) - _MAX_SELECTORS
    shown = f"{selectors} and {more} more" if more > 0 else selectors
    about = html.escape(f"{shown} · {board.owner} · {board.state}")
    name = html.escape(board.name)
    return f'<li><a href="{up}b/{board.id}/">{name}</a>\n<span>{about}</span></li>'


@router.post("/logout")
def log_out(hub: TheHub, request: Request, visitor: TheVisitor) -> Response:
    end_session(hub, visitor)
    return _response(redirect("./login", end_cookie(request.scope)))


@router.get("/s/{secret}")
async def open_share(hub: TheHub, request: Request, secret: str) -> Response:
    guest = await query(hub.auth.guest, secret)
    if guest is None:
        await hub.auth.throttle.hold()
        return _response(_NO_SHARE.reply(as_page=accepts_html(request.scope)))
    ends = guest.share.expires
    age = _YEAR if ends is None else max(int(ends - hub.clock()), 1)
    board = guest.share.board
    name, path = share_cookie_name(board), f"/b/{board}/"
    cookie = make_cookie(request.scope, name, secret, path=path, seconds=age)
    return _response(redirect(f"..{path}", cookie))


def _response(reply: Reply) -> Response:
    response = Response(reply.body, reply.status)
    for name, value in reply.headers:
        response.headers.append(name, value)
    return response


# Metrics.

METRICS_TYPE = "text/plain; version=0.0.4; charset=utf-8"

prometheus_client.disable_created_metrics()  # type: ignore[no-untyped-call]


class Requests:
    """The counters of answered requests."""

    def __init__(self) -> None:
        registry = self.registry = CollectorRegistry()
        self._count = Counter(
            "aboard_requests_total", "Answered requests.", ["route", "status"], registry=registry
        )
        self._seconds = Counter(
            "aboard_request_seconds_total", "Time spent on requests.", ["route"], registry=registry
        )

    def count(self, route: str, status: int, seconds: float) -> None:
        self._count.labels(route, f"{status // 100}xx").inc()
        self._seconds.labels(route).inc(seconds)


class _HubCollector(Collector):
    def __init__(self, hub: Hub) -> None:
        self._hub = hub

    def collect(self) -> Iterator[Metric]:
        info = GaugeMetricFamily("aboard_info", "The version.", labels=["version"])
        info.add_metric([__version__], 1)
        yield info
        yield from self._boards()
        yield GaugeMetricFamily(
            "aboard_index_lag_seconds",
            "Time since the data in use was last read.",
            self._hub.follower.lag(),
        )
        yield from _storage_metrics()

    def _boards(self) -> Iterator[Metric]:
        snapshot = self._hub.lifecycle.snapshot()
        live = Tally(record.state for record in snapshot.boards.values())
        boards = GaugeMetricFamily("aboard_boards", "Boards by state.", labels=["state"])
        for state in sorted(LIVE):
            boards.add_metric([state], live[state])
        try:
            for state in sorted(ENDED):
                total = self._hub.registry.list(states=[state], limit=1).total
                boards.add_metric([state], total)
        except DatabaseUnavailable:
            up = 0
        else:
            up = 1
        yield boards
        yield GaugeMetricFamily("aboard_database_up", "Whether the database answers.", up)


def _expose(hub: Hub, requests: Requests) -> str:
    registry = CollectorRegistry()
    registry.register(_HubCollector(hub))
    return (generate_latest(registry) + generate_latest(requests.registry)).decode()


def _storage_metrics() -> Iterator[Metric]:
    labels = ["bucket", "kind"]
    requests = CounterMetricFamily("aboard_storage_requests", "Requests to buckets.", labels=labels)
    transferred = CounterMetricFamily(
        "aboard_storage_bytes", "Bytes to and from buckets.", labels=labels
    )
    for key, (count, size) in sorted(traffic.snapshot().items()):
        requests.add_metric(key, count)
        transferred.add_metric(key, size)
    yield requests
    yield transferred
