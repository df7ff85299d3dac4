"""What both engines put around TensorBoard: addresses, assets, and which headers get through.

A board is at `/b/<board>/`. TensorBoard is told by an entry of the WSGI environment
which board is asked; a client could send a header that becomes the same entry, so
whatever a client sends is overwritten.
"""

from __future__ import annotations

import gzip
import re
import secrets
from typing import Any

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response
from starlette.routing import Mount, Route
from starlette.types import ASGIApp, Scope

from aboard.tensorboard.assets import Asset, Assets
from aboard.web.pages import INTERNAL, NOT_FOUND, Problem
from aboard.web.request import split_key

EXPERIMENT_KEY = "HTTP_TENSORBOARD_EXPERIMENT_ID"
_EXPERIMENT_HEADER = b"tensorboard-experiment-id"
_YEAR = 31_536_000

VERSION = "data/version"
"""Where a page asks whether its board has changed."""
_PROCESS = secrets.token_hex(4)
"""Each process counts versions from the start."""


def make_frame(board_app: ASGIApp, assets: Assets) -> ASGIApp:
    """Mount what answers for boards, and the fonts, which the page asks for at the root."""

    async def font(request: Request) -> Response:
        return serve_asset(assets.get("font-roboto/" + request.path_params["name"]), request)

    return Starlette(
        routes=[
            Route("/font-roboto/{name}", font),
            Route("/b/{board}", _add_slash),
            Mount("/b/{board}", board_app),
        ],
        exception_handlers=problem_pages(),
    )


def problem_pages() -> dict[Any, Any]:
    """Return what to show for an address that leads nowhere, and for a failure of ours."""

    def show(problem: Problem) -> Any:
        return lambda *_: problem

    return {404: show(NOT_FOUND), 500: show(INTERNAL)}


async def _add_slash(request: Request) -> Response:
    query, _ = split_key(request.url.query)
    address = f"{request.path_params['board']}/"
    return RedirectResponse(f"{address}?{query}" if query else address, status_code=308)


def inner_path(scope: Scope) -> str:
    """Return the path below the board, less the experiment that the frontend puts there."""
    path: str = scope["path"][len(scope.get("root_path", "")) :].lstrip("/")
    if path.startswith("experiment/"):
        path = path.partition("/")[2].partition("/")[2]
    return path


def tensorboard_scope(scope: Scope, board: str, path: str) -> Scope:
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


def version_word(number: int) -> bytes:
    """Return what a page is told of a version: a word of JSON that no other process says."""
    return f'"{_PROCESS}-{number}"'.encode()


def takes_gzip(request: Request) -> bool:
    """Say whether a client takes a compressed answer."""
    for choice in request.headers.get("accept-encoding", "").split(","):
        name, _, weight = choice.partition(";")
        if name.strip().lower() == "gzip":
            return not re.fullmatch(r"\s*q=0(\.0*)?\s*", weight)
    return False


def serve_asset(asset: Asset | None, request: Request) -> Response:
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
    if takes_gzip(request):
        headers["content-encoding"] = "gzip"
        return Response(asset.body, media_type=asset.media_type, headers=headers)
    return Response(gzip.decompress(asset.body), media_type=asset.media_type, headers=headers)
