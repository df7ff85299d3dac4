"""The application: every board of a process at `/b/<board>/`, with one set of assets.

TensorBoard's own application answers what the hot routes do not; it is told with
each request which board is asked.
"""

from __future__ import annotations

import argparse
import gzip
import hashlib
import logging
import sys
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from functools import partial
from typing import Any

from a2wsgi import WSGIMiddleware
from starlette.concurrency import run_in_threadpool
from starlette.datastructures import FormData
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import ASGIApp, Receive, Scope, Send

from aboard.events import protos
from aboard.tensorboard.answers import Answers
from aboard.tensorboard.assets import INDEX, Assets
from aboard.tensorboard.board import Listing
from aboard.tensorboard.failures import FAILURES, reason_of, status_of
from aboard.tensorboard.frame import (
    EXPERIMENT_KEY,
    VERSION,
    inner_path,
    make_frame,
    serve_asset,
    takes_gzip,
    tensorboard_scope,
    version_word,
)
from aboard.tensorboard.provider import (
    BoardDataProvider,
    BoardRequest,
    Boards,
    current_request,
)
from aboard.tensorboard.routes import BadRequest, HotRoutes, read_requests
from aboard.web.pages import NOT_FOUND

_GZIP_FROM = 1000
"""Bytes from which an answer is worth compressing."""
_GZIP_MAGIC = b"\x1f\x8b"
_WSGI_THREADS = 10
_TIME_SERIES = "data/plugin/timeseries/timeSeries"

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
        except FAILURES as error:
            status = status_of(error)
            headers = [("Content-Type", "text/plain; charset=utf-8")]
            start_response(f"{status.value} {status.phrase}", headers)
            return [f"{reason_of(error, environ['PATH_INFO'])}\n".encode()]

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
        self._answers = Answers()
        self._get: dict[str, Callable[[Listing], bytes]] = {
            "data/environment": hot.environment,
            "data/runs": hot.runs,
            VERSION: lambda listing: version_word(listing.version()),
            "data/plugin/timeseries/tags": hot.tags,
            "data/plugin/scalars/tags": hot.scalar_tags,
            "data/plugin/histograms/tags": hot.histogram_tags,
            "data/plugin/distributions/tags": hot.histogram_tags,
        }

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        listing = self._boards.get(scope["path_params"]["board"])
        if listing is None or scope["type"] != "http":
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
        if request.method not in self._methods(path, request):
            headers = {"allow": ", ".join(self._methods(path, request))}
            return Response(status_code=405, headers=headers)
        try:
            question = await self._question(path, request)
            if question is None:
                if self._asked and (path.startswith("data/") or path in ("", INDEX)):
                    await run_in_threadpool(self._asked, listing.board.id)
                return None
            return await run_in_threadpool(
                self._answer, listing, question, compressed=takes_gzip(request)
            )
        except BadRequest as error:
            return Response(f"Invalid argument: {error}", 400, media_type="text/plain")

    def _methods(self, path: str, request: Request) -> tuple[str, ...]:
        """Return how our own routes can be asked; TensorBoard decides for its own."""
        if path in self._get:
            return ("GET", "HEAD")
        return ("GET", "HEAD", "POST") if path == _TIME_SERIES else (request.method,)

    async def _question(self, path: str, request: Request) -> _Question | None:
        """Understand what is asked; None leaves it to TensorBoard."""
        if path in self._get:
            return _Question(self._get[path], (path,))
        if path == _TIME_SERIES:
            fields = await _form(request) if request.method == "POST" else request.query_params
            text = fields.get("requests")
            asked = read_requests(text if isinstance(text, str) else None)
            scalars_only = all(one.get("plugin") == "scalars" for one in asked)
            answer = partial(self._hot.time_series, asked=asked)
            return _Question(answer, (path, asked) if scalars_only else ())
        if path == "data/plugin/scalars/scalars_multirun" and request.method == "POST":
            form = await _form(request)
            tags = [str(tag) for tag in form.getlist("tag")]
            runs = [str(run) for run in form.getlist("runs")]
            answer = partial(self._hot.multirun, tags=tags, runs=runs)
            return _Question(answer, (path, tags, runs))
        return None

    def _answer(self, listing: Listing, question: _Question, *, compressed: bool) -> Response:
        """Answer from what is kept, as long as the board has not changed since."""
        if self._asked:
            self._asked(listing.board.id)
        key = (listing.version(), compressed, question.key)
        body = self._answers.get(key) if question.key else None
        if body is None:
            body = question.answer(listing)
            if compressed and len(body) >= _GZIP_FROM:
                body = gzip.compress(body, compresslevel=1, mtime=0)
            if question.key:
                self._answers.keep(key, body)
        headers = {"cache-control": "no-cache, must-revalidate", "vary": "accept-encoding"}
        if body.startswith(_GZIP_MAGIC):  # which no JSON does
            headers["content-encoding"] = "gzip"
        return Response(body, media_type="application/json", headers=headers)


class _Question:
    """What is asked of a board, and under which key its answer can be kept; none if it cannot."""

    def __init__(self, answer: Callable[[Listing], bytes], asked: tuple[object, ...]) -> None:
        self.answer = answer
        self.key = hashlib.blake2b(repr(asked).encode()).digest() if asked else b""


async def _form(request: Request) -> FormData:
    """Read a form that may name every run of a large board."""
    return await request.form(max_files=0, max_fields=100_000, max_part_size=16 << 20)
