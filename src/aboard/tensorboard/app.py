"""The application: every board of a process at `/b/<board>/`, with one set of assets.

TensorBoard's own application answers what the hot routes do not. It is told by an
entry of the WSGI environment which board is asked; a client could send a header
that becomes the same entry, so whatever a client sends is overwritten.
"""

from __future__ import annotations

import argparse
import gzip
import logging
from collections.abc import Callable, Mapping
from typing import Any

from a2wsgi import WSGIMiddleware
from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response
from starlette.routing import Mount, Route
from starlette.types import ASGIApp, Receive, Scope, Send

from aboard.events import protos
from aboard.tensorboard.assets import INDEX, Asset, Assets
from aboard.tensorboard.board import Listing
from aboard.tensorboard.provider import BoardDataProvider, Boards, asked_board
from aboard.tensorboard.routes import BadRequest, HotRoutes

_EXPERIMENT_HEADER = b"tensorboard-experiment-id"
_EXPERIMENT_KEY = "HTTP_TENSORBOARD_EXPERIMENT_ID"
_GZIP_FROM = 1000
"""Bytes from which an answer is worth compressing."""
_YEAR = 31_536_000
_WSGI_THREADS = 10

Asked = Callable[[str], None]


def make_app(
    boards: Boards,
    *,
    samples: Mapping[str, int] | None = None,
    asked: Asked | None = None,
    assets: Assets | None = None,
) -> ASGIApp:
    """Make the application that serves boards.

    Args:
        boards: the boards; some may be added and removed while the application runs.
        samples: points per series by plugin, TensorBoard's own numbers by default.
        asked: is called with a board's id whenever somebody looks at it.
        assets: the frontend's files.
    """
    assets = assets if assets is not None else Assets()
    provider = BoardDataProvider(boards)
    hot = HotRoutes(boards, provider, samples or {})
    wsgi: Any = WSGIMiddleware(_tensorboard(provider, assets, samples or {}), workers=_WSGI_THREADS)
    board_app = _BoardApp(boards, hot, wsgi, assets, asked)

    async def font(request: Request) -> Response:
        return _serve(assets.get("font-roboto/" + request.path_params["name"]), request)

    return Starlette(
        routes=[
            Route("/font-roboto/{name}", font),
            Route("/b/{board}", _add_slash),
            Mount("/b/{board}", board_app),
        ]
    )


async def _add_slash(request: Request) -> Response:
    return RedirectResponse(f"{request.path_params['board']}/", status_code=308)


def _tensorboard(provider: BoardDataProvider, assets: Assets, samples: Mapping[str, int]) -> Any:
    """Make TensorBoard's own application over the provider."""
    protos.keep_tensorflow_out()
    from tensorboard import default
    from tensorboard.backend import application
    from tensorboard.plugins.core import core_plugin

    flags = argparse.Namespace(
        logdir="",
        logdir_spec="",
        path_prefix="",
        samples_per_plugin=dict(samples),
        window_title="",
    )
    plugins = [
        # Its loader, as it comes, would show our flags to whoever looks.
        core_plugin.CorePluginLoader(include_debug_info=False)
        if isinstance(plugin, core_plugin.CorePluginLoader)
        else plugin
        for plugin in default.get_static_plugins()
    ]
    logging.getLogger("tensorboard").setLevel(logging.ERROR)
    tensorboard = application.TensorBoardWSGIApp(flags, plugins, provider, assets.index_archive)

    def app(environ: dict[str, Any], start_response: Any) -> Any:
        asked_board.set(environ[_EXPERIMENT_KEY])
        return tensorboard(environ, start_response)

    return app


class _BoardApp:
    """What is at `/b/<board>/…`."""

    def __init__(
        self, boards: Boards, hot: HotRoutes, wsgi: ASGIApp, assets: Assets, asked: Asked | None
    ) -> None:
        self._boards = boards
        self._wsgi = wsgi
        self._assets = assets
        self._asked = asked
        self._hot = hot
        self._get: dict[str, Callable[[Listing], bytes]] = {
            "data/environment": hot.environment,
            "data/runs": hot.runs,
            "data/plugin/timeseries/tags": hot.tags,
        }

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            raise RuntimeError(f"a board has no {scope['type']} routes")
        listing = self._boards.get(scope["path_params"]["board"])
        if listing is None:
            await Response("There is no such board.\n", 404)(scope, receive, send)
            return
        path = _inner_path(scope)
        request = Request(scope, receive)
        response = await self._respond(listing, path, request)
        if response is not None:
            await response(scope, receive, send)
            return
        await self._wsgi(_tensorboard_scope(scope, listing.board.id, path), receive, send)

    async def _respond(self, listing: Listing, path: str, request: Request) -> Response | None:
        """Answer what we answer ourselves; None leaves it to TensorBoard."""
        if path != INDEX and path in self._assets:
            return _serve(self._assets.get(path), request)
        if self._asked and (path.startswith("data/") or path in ("", INDEX)):
            self._asked(listing.board.id)
        try:
            answer = await self._hot_answer(listing, path, request)
        except BadRequest as error:
            return Response(str(error), 400, media_type="text/plain")
        if answer is None:
            return None
        return await run_in_threadpool(_json, answer, request)

    async def _hot_answer(self, listing: Listing, path: str, request: Request) -> bytes | None:
        if path in self._get:
            return await run_in_threadpool(self._get[path], listing)
        if path == "data/plugin/timeseries/timeSeries":
            fields = await request.form() if request.method == "POST" else request.query_params
            asked = fields.get("requests")
            text = asked if isinstance(asked, str) else None
            return await run_in_threadpool(self._hot.time_series, listing, text)
        if path == "data/plugin/scalars/scalars_multirun" and request.method == "POST":
            form = await request.form()
            tags = [str(tag) for tag in form.getlist("tag")]
            runs = [str(run) for run in form.getlist("runs")]
            return await run_in_threadpool(self._hot.multirun, listing, tags, runs)
        return None


def _inner_path(scope: Scope) -> str:
    """Return the path below the board, less the experiment that the frontend puts there."""
    path: str = scope["path"][len(scope.get("root_path", "")) :].lstrip("/")
    if path.startswith("experiment/"):
        path = path.partition("/")[2].partition("/")[2]
    return path


def _tensorboard_scope(scope: Scope, board: str, path: str) -> Scope:
    """Return the scope as TensorBoard shall see it."""
    headers = [
        (name, value)
        for name, value in scope["headers"]
        if name.lower().replace(b"_", b"-") != _EXPERIMENT_HEADER
    ]
    root = scope.get("root_path", "")
    return {
        **scope,
        "path": f"{root}/{path}",
        "raw_path": f"{root}/{path}".encode(),
        "headers": [*headers, (_EXPERIMENT_HEADER, board.encode())],
    }


def _json(body: bytes, request: Request) -> Response:
    headers = {"cache-control": "no-cache, must-revalidate", "vary": "accept-encoding"}
    if len(body) >= _GZIP_FROM and "gzip" in request.headers.get("accept-encoding", ""):
        body = gzip.compress(body, compresslevel=1, mtime=0)
        headers["content-encoding"] = "gzip"
    return Response(body, media_type="application/json", headers=headers)


def _serve(asset: Asset | None, request: Request) -> Response:
    """Serve a file of the frontend, or tell that the browser's copy is still good."""
    if asset is None:
        return Response("Not found", 404)
    # A name with a hash in it never changes its content; others are asked for again.
    lasting = "_file_hash" in request.query_params
    headers = {
        "etag": asset.etag,
        "cache-control": f"private, max-age={_YEAR}, immutable" if lasting else "private, no-cache",
        "vary": "accept-encoding",
    }
    if asset.etag in request.headers.get("if-none-match", ""):
        return Response(status_code=304, headers=headers)
    if "gzip" in request.headers.get("accept-encoding", ""):
        headers["content-encoding"] = "gzip"
        return Response(asset.body, media_type=asset.media_type, headers=headers)
    return Response(gzip.decompress(asset.body), media_type=asset.media_type, headers=headers)
