"""One board, served behind a secret: what `aboard view` runs.

Puts the pieces together and takes them apart again: the index, the follower that
fills it, the application of either engine, and the gate around it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import ExitStack
from functools import partial
from typing import TYPE_CHECKING, Literal

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response
from starlette.routing import Mount, Route
from starlette.types import ASGIApp

from aboard.index import Index
from aboard.tensorboard.board import Board
from aboard.tensorboard.fields import needs_records
from aboard.tensorboard.frame import problem_pages
from aboard.tensorboard.live import REMOTE_SECONDS, Changed, Follower
from aboard.tensorboard.selection import Chooser, Records
from aboard.web import Access, Gate
from aboard.web.lifetime import own_directory

if TYPE_CHECKING:
    from aboard.tensorboard.provider import Boards
    from aboard.tensorboard.stock import Told

Engine = Literal["fast", "stock"]

_HOW_TO_RENEW = "Press Enter where aboard runs for a new link, or paste the token you chose."


class Viewer:
    """A board that is being served.

    Args:
        board: what to show.
        access: who may see it.
        engine: `fast` is TensorBoard's frontend over our index; `stock` is
            TensorBoard's own loaders, for plugins that need the log directory.
        samples: points per series by plugin, where TensorBoard's own numbers do not suit.
        poll: seconds between two looks at a bucket where something changes; 5 by default.
        index: the index, for the fast engine; the user's own by default.
        changed: is called whenever a source was looked at, by the fast engine.
        told: is called with how far the reading is, by the stock engine.
        chosen: is called with the board whenever its selection means other runs.
    """

    def __init__(
        self,
        board: Board,
        access: Access,
        *,
        engine: Engine = "fast",
        samples: Mapping[str, int] | None = None,
        poll: float | None = None,
        index: Index | None = None,
        changed: Changed | None = None,
        told: Told | None = None,
        chosen: Callable[[Board], None] | None = None,
    ) -> None:
        self.board = board
        self._chosen = chosen
        self._poll = poll
        with ExitStack() as closing:
            self._closing = closing
            if engine == "fast":
                inner = self._fast(samples, index, changed)
            else:
                inner = self._stock(samples, index, told)
            self._closing = closing.pop_all()
        self.app: ASGIApp = Gate(_with_front_door(inner, board), access, how_to_renew=_HOW_TO_RENEW)

    @property
    def path(self) -> str:
        """Where the board is on its server."""
        return f"/b/{self.board.id}/"

    def close(self) -> None:
        """Stop reading, and remove what was there for this board alone."""
        self._closing.close()

    def _fast(
        self, samples: Mapping[str, int] | None, index: Index | None, changed: Changed | None
    ) -> ASGIApp:
        from aboard.tensorboard.app import make_app
        from aboard.tensorboard.provider import Boards

        if index is None:
            index = self._closing.enter_context(Index())
        boards = Boards(index)
        boards.add(self.board)
        records = None
        if needs_records(self.board.template):
            records = Records(index, self.board.roots)
        beside = records.refresh if records else None
        follower = Follower(index, changed, beside=beside, poll=self._poll)
        self._closing.callback(follower.close)
        if self.board.selection is None:
            follower.follow(member.source for member in self.board.members)
        else:
            Chooser(self.board, index, follower, partial(self._show, boards)).start()
        return make_app(
            boards, samples=samples, asked=lambda _: follower.asked(), closing=self._closing
        )

    def _show(self, boards: Boards, board: Board) -> None:
        listing = boards.get(board.id)
        if listing is not None:
            listing.show(board)
        if self._chosen is not None:
            self._chosen(board)

    def _stock(
        self, samples: Mapping[str, int] | None, index: Index | None, told: Told | None
    ) -> ASGIApp:
        from aboard.tensorboard.stock import make_stock_app

        work_directory = self._closing.enter_context(own_directory("aboard-view"))
        records = None
        if needs_records(self.board.template):
            records = Records(index or self._closing.enter_context(Index()))
        stock = make_stock_app(
            self.board,
            samples=samples,
            reload_seconds=REMOTE_SECONDS if self._poll is None else self._poll,
            work_directory=work_directory,
            records=records,
            told=told,
        )
        self._closing.callback(stock.close)
        return stock.app


def _with_front_door(app: ASGIApp, board: Board) -> ASGIApp:
    """Lead whoever comes to the root to the board."""

    async def front_door(_: Request) -> Response:
        return RedirectResponse(f"b/{board.id}/", status_code=307)

    return Starlette(
        routes=[Route("/", front_door), Mount("/", app)], exception_handlers=problem_pages()
    )
