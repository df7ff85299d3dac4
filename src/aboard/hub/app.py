"""The hub's application: the API, its pages and all boards, behind the gate."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import ExitStack, asynccontextmanager, suppress
from typing import Any

from fastapi import FastAPI
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response
from starlette.routing import Mount, Route, Router
from starlette.types import ASGIApp

from aboard import __version__
from aboard.boards.model import BoardState
from aboard.hub import pages
from aboard.hub.access import make_entrance
from aboard.hub.api import (
    COMPUTING,
    FOLLOWING,
    Rescan,
    Shares,
    add_error_handlers,
    boards,
    events,
    jobs,
    run,
    runs,
    users,
)
from aboard.hub.config import Addresses
from aboard.hub.pages import Requests
from aboard.hub.permissions import RULES, Open
from aboard.hub.proxy import Proxy
from aboard.hub.service import Hub
from aboard.tensorboard.app import make_app as make_boards_app

_TIDY_SECONDS = 1.0
_DESCRIPTION = (
    "Boards of training runs. Send a token, `Authorization: Bearer TOKEN`, or a session cookie. "
    "Every error is a document of the same form."
)


def make_app(hub: Hub, listeners: Addresses | None = None) -> ASGIApp:
    """Return the ASGI application of a hub, which it starts and closes with the server.

    `listeners` are the addresses of a server with a second port for boards.
    """
    closing = ExitStack()
    instant = make_boards_app(hub.boards, follower=hub.follower, closing=closing)
    proxy = Proxy(hub.lookup)
    requests = Requests()

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        await asyncio.to_thread(hub.start)
        tidying = asyncio.create_task(_tidy(hub))
        try:
            yield
        finally:
            tidying.cancel()
            with suppress(asyncio.CancelledError):
                await tidying
            await proxy.aclose()
            closing.close()
            await asyncio.to_thread(hub.close)

    app = make_api(lifespan)
    app.state.hub = hub
    app.state.requests = requests
    app.state.shares = Shares()
    app.state.computing = Shares(most=1, together=COMPUTING)
    app.state.following = Shares(most_waiting=1000, together=FOLLOWING)
    app.state.engine_calls = Shares()  # engines may be slow and must not delay other requests
    app.state.rescan = Rescan(hub.library)
    isolated = Router([Route("/b/{board}", _add_slash), Mount("/b/{board}", proxy)])
    return make_entrance(hub, app, instant, isolated, requests, listeners)


def make_api(lifespan: Any = None) -> FastAPI:
    """Return the API and the pages, without a hub."""
    app = FastAPI(
        title="Aboard",
        version=__version__,
        description=_DESCRIPTION,
        lifespan=lifespan,
        docs_url=None,
        redoc_url=None,
        openapi_url="/openapi.json",
        swagger_ui_oauth2_redirect_url=None,
        redirect_slashes=False,
        strict_content_type=True,
    )
    routers = (
        *(boards.router, boards.engines, events.router, jobs.router, runs.router, run.router),
        *(runs.series, users.router, users.views, pages.router),
    )
    for router in routers:
        # `include_router` would create each route again, which takes 0.2 s.
        app.router.routes.extend(router.routes)
    add_error_handlers(app)
    plain = app.openapi

    def openapi() -> dict[str, Any]:
        if app.openapi_schema is None:
            app.openapi_schema = _with_security(plain())
        return app.openapi_schema

    app.openapi = openapi  # type: ignore[method-assign]
    return app


def _with_security(document: dict[str, Any]) -> dict[str, Any]:
    document.setdefault("components", {})["securitySchemes"] = {
        "token": {"type": "http", "scheme": "bearer"},
        "session": {"type": "apiKey", "in": "cookie", "name": "aboard-session"},
    }
    for path, methods in document["paths"].items():
        for method, operation in methods.items():
            rule = RULES[method.upper(), path]
            is_open = rule is Open.PUBLIC
            operation["security"] = [] if is_open else [{"token": []}, {"session": []}]
            operation["x-rule"] = str(rule)
    return document


async def _tidy(hub: Hub) -> None:
    while True:
        await asyncio.sleep(_TIDY_SECONDS)
        live = hub.lifecycle.snapshot().boards.values()
        running = [board.id for board in live if board.state is BoardState.RUNNING]
        await asyncio.to_thread(hub.follower.hide_all_but, running)


async def _add_slash(request: Request) -> Response:
    return RedirectResponse(f"{request.path_params['board']}/", status_code=308)
