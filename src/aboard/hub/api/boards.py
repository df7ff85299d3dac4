"""Boards: start, list, describe, change, stop, and give away."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated

from fastapi import Header, Query, Request, Response
from fastapi.responses import StreamingResponse

from aboard.boards.model import LIVE, State
from aboard.hub.amounts import read_seconds, timestamp
from aboard.hub.api.asked import Ref, TheBoard, TheHub, TheUser, api_router
from aboard.hub.documents import (
    BoardChange,
    BoardDocument,
    BoardList,
    History,
    HistoryEvent,
    Link,
    NewBoard,
    NewShare,
    SelectionChange,
    ShareDocument,
    ShareList,
    Stop,
)
from aboard.hub.origin import address_of

router = api_router("boards")
_FORGETFUL = {"cache-control": "no-store"}


@router.get("/boards")
def list_boards(
    hub: TheHub,
    user: TheUser,
    state: Annotated[list[State], Query(description="Only in these; live ones if none.")] = [],  # noqa: B006
    all: Annotated[bool, Query(description="Those that have ended, too.")] = False,  # noqa: A002
    owner: Annotated[str | None, Query(max_length=64)] = None,
    name: Annotated[str | None, Query(max_length=64)] = None,
    limit: Annotated[int, Query(ge=1, le=1000)] = 100,
    cursor: Annotated[str | None, Query(max_length=200)] = None,
) -> BoardList:
    """List the boards that you may see, the newest first."""
    states = state or ([] if all else sorted(LIVE))
    page = hub.page(user, states=states, owner=owner, name=name, limit=limit, after=cursor)
    boards = [hub.describe(board, closely=False) for board in page.boards]
    return BoardList(boards=boards, next=page.next)


@router.post(
    "/boards",
    status_code=201,
    responses={200: {"model": BoardDocument, "description": "There is one of this selection."}},
)
def create_board(
    hub: TheHub,
    user: TheUser,
    wish: NewBoard,
    response: Response,
    idempotency_key: Annotated[
        str | None,
        Header(description="Repeat a request with the same one.", min_length=1, max_length=200),
    ] = None,
) -> BoardDocument:
    """Start a board of a selection, or return the live one that there is."""
    made = hub.create(user, wish, idempotency_key)
    if not made.is_new:
        response.status_code = 200
    return hub.describe(made.board)


@router.get("/boards/{ref}")
def get_board(hub: TheHub, board: TheBoard, ref: Ref) -> BoardDocument:  # noqa: ARG001
    """Describe a board."""
    return hub.describe(board)


@router.patch("/boards/{ref}")
def change_board(
    hub: TheHub,
    board: TheBoard,
    ref: Ref,  # noqa: ARG001
    wish: BoardChange,
) -> BoardDocument:
    """Change a board's name, who sees it, and how long it runs."""
    return hub.describe(hub.change(board, wish))


@router.delete("/boards/{ref}", status_code=204)
def delete_board(hub: TheHub, board: TheBoard, ref: Ref) -> None:  # noqa: ARG001
    """Forget a board with its history; one with a process of its own must have ended."""
    hub.delete(board)


@router.post("/boards/{ref}/stop")
def stop_board(
    hub: TheHub,
    user: TheUser,
    board: TheBoard,
    ref: Ref,  # noqa: ARG001
    how: Stop | None = None,
) -> BoardDocument:
    """Stop a board; one that has ended stays as it is."""
    now = how is not None and how.now
    stopped = hub.lifecycle.stop(board.id, reason=f"stopped by {user.name}", now=now)
    return hub.describe(stopped)


@router.post("/boards/{ref}/restart")
def restart_board(
    hub: TheHub,
    user: TheUser,
    board: TheBoard,
    ref: Ref,  # noqa: ARG001
) -> BoardDocument:
    """Start a board anew, at the same address and with its history."""
    return hub.describe(hub.lifecycle.restart(board.id, reason=f"restarted by {user.name}"))


@router.post("/boards/{ref}/selection")
def change_selection(
    hub: TheHub,
    board: TheBoard,
    ref: Ref,  # noqa: ARG001
    wish: SelectionChange,
) -> BoardDocument:
    """Add and remove selectors while the board is open."""
    return hub.describe(hub.select(board, wish.add, wish.remove))


@router.get("/boards/{ref}/history")
def get_history(hub: TheHub, board: TheBoard, ref: Ref) -> History:  # noqa: ARG001
    """Tell what a board went through."""
    return History(events=[HistoryEvent.of(one) for one in hub.registry.history(board.id)])


@router.get(
    "/boards/{ref}/logs",
    response_class=StreamingResponse,
    responses={200: {"content": {"text/plain": {}}, "description": "The log."}},
)
def get_logs(
    hub: TheHub,
    board: TheBoard,
    ref: Ref,  # noqa: ARG001
    tail: Annotated[int | None, Query(ge=0, le=10**9)] = None,
    follow: bool = False,
) -> StreamingResponse:
    """Return what an isolated board wrote; with `follow`, as it goes on to write."""
    pieces = hub.logs(board, tail=tail, follow=follow)
    # The first piece is asked for here, so that a failure is told with a status.
    first = next(pieces, b"")

    def stream() -> Iterator[bytes]:
        yield first
        yield from pieces

    return StreamingResponse(stream(), media_type="text/plain; charset=utf-8", headers=_FORGETFUL)


@router.post("/boards/{ref}/link")
def make_link(
    hub: TheHub,
    user: TheUser,
    board: TheBoard,
    request: Request,
    ref: Ref,  # noqa: ARG001
) -> Link:
    """Make a link that opens the board in your browser, once."""
    key, expires = hub.keys.mint(user)
    url = f"{address_of(request.scope, hub.config)}/b/{board.id}/?key={key}"
    return Link(url=url, expires=timestamp(expires) or "")


@router.get("/boards/{ref}/shares")
def list_shares(hub: TheHub, user: TheUser, board: TheBoard, ref: Ref) -> ShareList:  # noqa: ARG001
    """List the links that show a board to whoever has them."""
    return ShareList(shares=[ShareDocument.of(one) for one in hub.auth.shares(user, board)])


@router.post("/boards/{ref}/shares", status_code=201)
def share_board(
    hub: TheHub,
    user: TheUser,
    board: TheBoard,
    request: Request,
    ref: Ref,  # noqa: ARG001
    wish: NewShare | None = None,
) -> ShareDocument:
    """Make a link that shows a board, and nothing else, to whoever has it."""
    lasts: float | None = hub.config.share or None
    if wish is not None and wish.for_ is not None:
        lasts = read_seconds(wish.for_)
    made = hub.auth.share(user, board, lasts=lasts)
    url = f"{address_of(request.scope, hub.config)}/s/{made.secret}"
    return ShareDocument.of(made.share, url)


@router.delete("/boards/{ref}/shares/{share}", status_code=204)
def revoke_share(
    hub: TheHub,
    user: TheUser,
    board: TheBoard,
    share: str,
    ref: Ref,  # noqa: ARG001
) -> None:
    """Let a link show nothing from now on."""
    hub.auth.revoke_share(user, board, share)
    hub.visitors.forget()
