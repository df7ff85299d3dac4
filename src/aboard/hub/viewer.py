"""The server of `aboard view`: one board behind a secret, without a database.

It imports neither FastAPI nor SQLAlchemy.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from contextlib import ExitStack
from typing import TYPE_CHECKING

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response
from starlette.routing import Mount, Route
from starlette.types import ASGIApp

from aboard.boards.model import Engine
from aboard.index.library import Library
from aboard.index.sources import REMOTE_SECONDS
from aboard.system import own_directory
from aboard.tensorboard.board import BoardSelection
from aboard.tensorboard.follower import Follower, OnChange, OnPoll
from aboard.web import Gate, TokenAccess

if TYPE_CHECKING:
    from aboard.executors.vertex.upload import Upload
    from aboard.tensorboard.provider import Boards
    from aboard.tensorboard.stock import OnLoad


class Viewer:
    """A board that is being served.

    The `fast` engine is TensorBoard's frontend over our index. `stock` uses TensorBoard's own
    loaders, for plugins that need the log directory. With `uploads`, which needs the fast engine,
    the board is uploaded to Vertex, and its address leads there. `samples` are points per series by
    plugin. `on_poll` is called while the fast engine reads a source and after every poll, `on_load`
    while the stock engine reads, `on_change` when the board's selectors match other runs.
    """

    def __init__(
        self,
        spec: BoardSelection,
        library: Library,
        access: TokenAccess,
        *,
        engine: Engine = Engine.FAST,
        uploads: bool = False,
        samples: Mapping[str, int] | None = None,
        poll: float | None = None,
        on_poll: OnPoll | None = None,
        on_change: OnChange | None = None,
        on_load: OnLoad | None = None,
    ) -> None:
        self.path = f"/b/{spec.id}/"
        self.leads_to = ""  # the board's address on Vertex, if it is uploaded there
        with ExitStack() as closing:
            if engine is Engine.FAST:
                from aboard.tensorboard.provider import Boards

                boards = Boards(library)
                follower = Follower(
                    library, boards, poll=poll, on_poll=on_poll, on_change=on_change
                )
                closing.callback(follower.close)
                follower.show(spec)
                follower.requested(spec.id, wait=False)
                if uploads:
                    upload = _upload(spec, boards, follower, closing)
                    app, self.leads_to = upload.app(), upload.url
                else:
                    from aboard.tensorboard.app import make_app

                    app = make_app(boards, samples=samples, follower=follower, closing=closing)
            else:
                from aboard.tensorboard.stock import make_stock_app

                stock = make_stock_app(
                    spec.board(library),
                    samples=samples,
                    reload_seconds=REMOTE_SECONDS if poll is None else poll,
                    work_directory=closing.enter_context(own_directory("aboard-view")),
                    library=library,
                    on_load=on_load,
                )
                closing.callback(stock.close)
                app = stock.app
            self._closing = closing.pop_all()
        self.app: ASGIApp = Gate(_with_front_page(app, spec), access)

    def close(self) -> None:
        self._closing.close()


def _upload(spec: BoardSelection, boards: Boards, follower: Follower, closing: ExitStack) -> Upload:
    """Upload a board to Vertex until it is closed."""
    from aboard.executors.vertex.upload import UPLOAD, Destination, Upload

    listing = boards.get(spec.id)
    if listing is None:
        raise RuntimeError("the board is not being served")
    upload = Upload(
        Destination.from_json(os.environ[UPLOAD]),
        listing,
        boards.index,
        lambda: follower.requested(spec.id, wait=False),
    )
    closing.callback(upload.close)
    upload.start()
    return upload


def _with_front_page(app: ASGIApp, spec: BoardSelection) -> ASGIApp:
    from aboard.tensorboard.app import problem_pages

    async def front_page(_: Request) -> Response:
        return RedirectResponse(f"b/{spec.id}/", status_code=307)

    return Starlette(
        routes=[Route("/", front_page), Mount("/", app)], exception_handlers=problem_pages()
    )
