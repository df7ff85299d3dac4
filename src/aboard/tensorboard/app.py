"""The application: every board of a process at `/b/<board>/`, with one set of assets.

TensorBoard's own application answers what the hot routes do not; it is told with
each request which board is asked.
"""

from __future__ import annotations

import argparse
import gzip
import logging
import sys
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from typing import Any

from a2wsgi import WSGIMiddleware
from starlette.concurrency import run_in_threadpool
from starlette.datastructures import FormData
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import ASGIApp, Receive, Scope, Send

from aboard.events import protos
from aboard.tensorboard.assets import INDEX, Assets
from aboard.tensorboard.board import Listing
from aboard.tensorboard.frame import (
    EXPERIMENT_KEY,
    inner_path,
    make_frame,
    serve_asset,
    takes_gzip,
    tensorboard_scope,
)
from aboard.tensorboard.provider import (
    BoardDataProvider,
    BoardRequest,
    Boards,
    current_request,
)
from aboard.tensorboard.routes import BadRequest, HotRoutes
from aboard.web.pages import NOT_FOUND

_GZIP_FROM = 1000
"""Bytes from which an answer is worth compressing."""
_WSGI_THREADS = 10

_log = logging.getLogger(__name__)

Asked = Callable[[str], None]


def make_app(
    boards: Boards,
    *,
    samples: Mapping[str, int] | None = None,
    asked: Asked | None = None,
    assets: Assets | None = None,
    closing: ExitStack | None = None,
) -> ASGIApp:
    """Make the application that serves boards.

    Args:
        boards: the boards; some may be added and removed while the application runs.
        samples: points per series by plugin, 0 for all; TensorBoard's own numbers by default.
        asked: is called with a board's id whenever somebody looks at it.
        assets: the frontend's files.
        closing: ends the application's threads when it is closed.
    """
    assets = assets if assets is not None else Assets()
    limits = {plugin: limit or sys.maxsize for plugin, limit in (samples or {}).items()}
    provider = BoardDataProvider(boards)
    hot = HotRoutes(boards, provider, limits)
    tensorboard = _tensorboard(boards, provider, assets, limits)
    wsgi: Any = WSGIMiddleware(tensorboard, workers=_WSGI_THREADS)
    if closing is not None:
        closing.callback(wsgi.executor.shutdown, wait=False, cancel_futures=True)
    return make_frame(_BoardApp(boards, hot, wsgi, assets, asked), assets)


def _tensorboard(
    boards: Boards, provider: BoardDataProvider, assets: Assets, samples: Mapping[str, int]
) -> Any:
    """Make TensorBoard's own application over the provider."""
    protos.keep_tensorflow_out()
    from tensorboard.backend import application

    from aboard.tensorboard.plugins import static_plugins
    from aboard.tensorboard.projector import ProjectorLoader

    flags = argparse.Namespace(
        logdir="",
        logdir_spec="",
        path_prefix="",
        samples_per_plugin=dict(samples),
        window_title="",
    )
    plugins = [*static_plugins(), ProjectorLoader(boards)]
    logging.getLogger("tensorboard").setLevel(logging.ERROR)
    tensorboard = application.TensorBoardWSGIApp(flags, plugins, provider, assets.index_archive)

    def app(environ: dict[str, Any], start_response: Any) -> Any:
        current_request.set(BoardRequest(environ[EXPERIMENT_KEY]))
        try:
            return tensorboard(environ, start_response)
        except (LookupError, ValueError, TypeError, AttributeError) as error:
            # What plugins do when a number is none, or a tag is gone since they last asked.
            reason = f"{type(error).__name__}: {error}"
            _log.warning("TensorBoard cannot answer %s: %s", environ["PATH_INFO"], reason)
            status = "404 Not Found" if isinstance(error, LookupError) else "400 Bad Request"
            start_response(status, [("Content-Type", "text/plain; charset=utf-8")])
            return [f"TensorBoard cannot answer this: {reason}\n".encode()]

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
            "data/plugin/scalars/tags": hot.scalar_tags,
            "data/plugin/histograms/tags": hot.histogram_tags,
            "data/plugin/distributions/tags": hot.histogram_tags,
        }

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            raise RuntimeError(f"a board has no {scope['type']} routes")
        listing = self._boards.get(scope["path_params"]["board"])
        if listing is None:
            await NOT_FOUND(scope, receive, send)
            return
        path = inner_path(scope)
        request = Request(scope, receive)
        response = await self._respond(listing, path, request)
        if response is not None:
            await response(scope, receive, send)
            return
        await self._wsgi(tensorboard_scope(scope, listing.board.id, path), receive, send)

    async def _respond(self, listing: Listing, path: str, request: Request) -> Response | None:
        """Answer what we answer ourselves; None leaves it to TensorBoard."""
        if path != INDEX and path in self._assets:
            return serve_asset(self._assets.get(path), request)
        if self._asked and (path.startswith("data/") or path in ("", INDEX)):
            await run_in_threadpool(self._asked, listing.board.id)
        try:
            answer = await self._hot_answer(listing, path, request)
        except BadRequest as error:
            return Response(f"Invalid argument: {error}", 400, media_type="text/plain")
        if answer is None:
            return None
        return await run_in_threadpool(_json, answer, request)

    async def _hot_answer(self, listing: Listing, path: str, request: Request) -> bytes | None:
        if path in self._get:
            return await run_in_threadpool(self._get[path], listing)
        if path == "data/plugin/timeseries/timeSeries":
            fields = await _form(request) if request.method == "POST" else request.query_params
            asked = fields.get("requests")
            text = asked if isinstance(asked, str) else None
            return await run_in_threadpool(self._hot.time_series, listing, text)
        if path == "data/plugin/scalars/scalars_multirun" and request.method == "POST":
            form = await _form(request)
            tags = [str(tag) for tag in form.getlist("tag")]
            runs = [str(run) for run in form.getlist("runs")]
            return await run_in_threadpool(self._hot.multirun, listing, tags, runs)
        return None


async def _form(request: Request) -> FormData:
    """Read a form that may name every run of a large board."""
    return await request.form(max_files=0, max_fields=100_000, max_part_size=16 << 20)


def _json(body: bytes, request: Request) -> Response:
    headers = {"cache-control": "no-cache, must-revalidate", "vary": "accept-encoding"}
    if len(body) >= _GZIP_FROM and takes_gzip(request):
        body = gzip.compress(body, compresslevel=1, mtime=0)
        headers["content-encoding"] = "gzip"
    return Response(body, media_type="application/json", headers=headers)
