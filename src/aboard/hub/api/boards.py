"""Boards: create, list, describe, change, stop and share; and the engines for isolated ones."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterable
from dataclasses import asdict
from itertools import chain
from typing import Annotated, Any, TypeVar, get_origin

import orjson
from fastapi import Header, Path, Query, Request, Response
from fastapi.responses import StreamingResponse
from pydantic import BaseModel, Field, create_model
from starlette.concurrency import run_in_threadpool

from aboard.boards.accounts import Share
from aboard.boards.model import (
    FIELDS,
    LIVE,
    LONGEST_TEXT,
    MOST_SELECTORS,
    BoardField,
    BoardRecord,
    BoardState,
    Change,
    Unit,
    to_document,
)
from aboard.executors.base import EngineReport
from aboard.hub.access import public_address
from aboard.hub.api import (
    Duration,
    RequestDocument,
    Shares,
    Size,
    TheBoard,
    TheHub,
    TheUser,
    api_router,
    computes,
    leave_turn,
)
from aboard.hub.proxy import TrialReport
from aboard.hub.service import Hub, ProbedEngine
from aboard.runs.units import format_time, parse_duration

router = api_router("boards")
engines = api_router("engines")
_UNCACHED = {"cache-control": "no-store"}

Text = Annotated[str, Field(max_length=LONGEST_TEXT)]
Selectors = Annotated[list[Text], Field(max_length=MOST_SELECTORS)]
EngineName = Annotated[
    str, Path(description="`ENGINE` or `ENGINE:PROFILE`.", min_length=1, max_length=200)
]
BoardId = Annotated[str, Path(min_length=1, max_length=64)]
Model = TypeVar("Model", bound=BaseModel)


def _document_type(field: BoardField) -> Any:
    if field.about.unit is Unit.TIME:
        kind: Any = str
    else:
        kind = list[str] if get_origin(field.kind) is tuple else field.kind
    return kind | None if field.optional else kind


def _request_type(field: BoardField) -> Any:
    if field.about.unit is not None:
        return {Unit.DURATION: Duration, Unit.SIZE: Size}[field.about.unit]
    if get_origin(field.kind) is tuple:
        return Selectors
    if field.kind is str:
        return Annotated[str, Field(max_length=field.about.longest)]
    return field.kind


def _derived(
    fields: Iterable[BoardField], *, request: bool
) -> Callable[[type[Model]], type[Model]]:
    """Add fields of a board to a document; in a request they are optional unless required."""

    def derive(model: type[Model]) -> type[Model]:
        found: dict[str, Any] = {}
        for one in fields:
            about, kind = one.about, _request_type(one) if request else _document_type(one)
            options: dict[str, Any] = {"description": about.text}
            if request and about.example is not None:
                options["examples"] = [about.example]
            if not request:
                found[one.name] = (kind, Field(**options))
            elif one.name == "selectors":
                found[one.name] = (kind, Field(min_length=1, **options))
            else:
                found[one.name] = (kind | None, Field(None, **options))
        made = create_model(model.__name__, __base__=model, __doc__=model.__doc__, **found)
        made.__module__ = model.__module__
        return made

    return derive


@_derived([one for one in FIELDS.values() if one.about.public], request=False)
class BoardDocument(BaseModel):
    """A board."""


class BoardList(BaseModel):
    """A page of boards, newest first."""

    boards: list[BoardDocument]
    next: str | None = Field(description="The `cursor` of the next page.")


@_derived([one for one in FIELDS.values() if one.about.create], request=True)
class NewBoard(RequestDocument):
    """A board to create; missing fields have the defaults of the hub's settings."""

    new: bool = Field(False, description="Create a board even if this selection has a live one.")


@_derived([one for one in FIELDS.values() if one.about.change], request=True)
class BoardChange(RequestDocument):
    """The fields to change."""

    extend: Duration | None = Field(None, description="More time to run.", examples=["2h"])


class Stop(RequestDocument):
    """How to stop a board."""

    now: bool = Field(False, description="Without the grace period.")


class SelectionChange(RequestDocument):
    """Selectors to add and to remove."""

    add: Selectors = Field([])
    remove: Selectors = Field([])


class HistoryEvent(BaseModel):
    """An entry of a board's history."""

    state: BoardState
    reason: str
    at: str

    @classmethod
    def of(cls, change: Change) -> HistoryEvent:
        return cls(state=change.state, reason=change.reason, at=format_time(change.at) or "")


class History(BaseModel):
    """The states of a board, oldest first."""

    events: list[HistoryEvent]


class Link(BaseModel):
    """A one-time link that opens the console or a board in a browser."""

    url: str
    expires: str


class Leftover(BaseModel):
    """What may still run of a deleted board, and how to stop it by hand."""

    left: str


class NewShare(RequestDocument):
    """How long a link lasts."""

    for_: Duration | None = Field(None, alias="for", examples=["7d"])


class ShareDocument(BaseModel):
    """A link to a board; its URL is returned only when it is created."""

    id: str
    made_by: str
    created: str
    expires: str | None
    revoked: str | None
    url: str | None = None

    @classmethod
    def of(cls, share: Share, url: str | None = None) -> ShareDocument:
        return cls(
            id=share.id,
            made_by=share.made_by,
            created=format_time(share.created) or "",
            expires=format_time(share.expires),
            revoked=format_time(share.revoked),
            url=url,
        )


class ShareList(BaseModel):
    """The links to a board."""

    shares: list[ShareDocument]


@router.get("/boards", response_model=BoardList)
def list_boards(
    hub: TheHub,
    user: TheUser,
    state: Annotated[list[BoardState], Query(description="Only these; live ones by default.")] = [],  # noqa: B006
    all: Annotated[bool, Query(description="Also ended boards.")] = False,  # noqa: A002
    owner: Annotated[str | None, Query(max_length=64)] = None,
    name: Annotated[str | None, Query(max_length=64)] = None,
    limit: Annotated[int, Query(ge=1, le=1000)] = 100,
    cursor: Annotated[str | None, Query(max_length=200)] = None,
) -> Response:
    """List the boards that you may see, newest first."""
    states = state or ([] if all else sorted(LIVE))
    page = hub.page(user, states=states, owner=owner, name=name, limit=limit, after=cursor)
    boards = [to_document(board) for board in hub.describe_all(page.boards)]
    # Clients list a thousand at once, so no model is built for each.
    body = orjson.dumps({"boards": boards, "next": page.next})
    return Response(body, media_type="application/json")


@router.post(
    "/boards",
    status_code=201,
    responses={200: {"model": BoardDocument, "description": "The live board of this selection."}},
)
@computes
def create_board(
    hub: TheHub,
    user: TheUser,
    request: Request,
    board: NewBoard,
    response: Response,
    idempotency_key: Annotated[
        str | None,
        Header(
            description="Repeated requests with the same key create one board.",
            min_length=1,
            max_length=200,
        ),
    ] = None,
) -> BoardDocument:
    """Create a board, or return the live one with the same selection."""
    given = dict(board)
    new = given.pop("new")
    made = hub.create(user, given, new=new, key=idempotency_key)
    if hub.may_wait(made.board):
        leave_turn(request)
        hub.probe_buckets(made.board)
    if not made.is_new:
        response.status_code = 200
    return _document(hub, made.board)


@router.get("/boards/{ref}")
def get_board(hub: TheHub, board: TheBoard) -> BoardDocument:
    """Describe a board."""
    return _document(hub, board)


@router.patch("/boards/{ref}")
def change_board(hub: TheHub, board: TheBoard, change: BoardChange) -> BoardDocument:
    """Change a board's name, visibility and time limits."""
    given = dict(change)
    extend = given.pop("extend")
    return _document(hub, hub.change(board, given, extend))


@router.delete(
    "/boards/{ref}",
    status_code=204,
    response_model=None,
    responses={200: {"model": Leftover, "description": "It is deleted, but may still run."}},
)
def delete_board(
    hub: TheHub,
    board: TheBoard,
    force: Annotated[bool, Query(description="Even if it is still stopping.")] = False,
) -> Response | None:
    """Delete a board with its history; an isolated one must have ended."""
    left = hub.delete(board, force=force)
    if not left:
        return None
    return Response(Leftover(left=left).model_dump_json(), media_type="application/json")


@router.post("/boards/{ref}/stop")
def stop_board(
    hub: TheHub, user: TheUser, board: TheBoard, how: Stop | None = None
) -> BoardDocument:
    """Stop a board; an ended one does not change."""
    now = how is not None and how.now
    stopped = hub.lifecycle.stop(board.id, reason=f"stopped by {user.name}", now=now)
    return _document(hub, stopped)


@router.post("/boards/{ref}/restart")
def restart_board(hub: TheHub, user: TheUser, board: TheBoard) -> BoardDocument:
    """Restart a board; its address and history are kept."""
    return _document(hub, hub.lifecycle.restart(board.id, reason=f"restarted by {user.name}"))


@router.post("/boards/{ref}/selection")
@computes
def change_selection(hub: TheHub, board: TheBoard, change: SelectionChange) -> BoardDocument:
    """Add and remove selectors while the board is open."""
    return _document(hub, hub.select(board, change.add, change.remove))


@router.get("/boards/{ref}/history")
def get_history(hub: TheHub, board: TheBoard) -> History:
    """Return the history of a board."""
    return History(events=[HistoryEvent.of(one) for one in hub.registry.history(board.id)])


@router.get(
    "/boards/{ref}/logs",
    response_class=StreamingResponse,
    responses={200: {"content": {"text/plain": {}}, "description": "The log."}},
)
def get_logs(
    request: Request,
    hub: TheHub,
    user: TheUser,
    board: TheBoard,
    tail: Annotated[int | None, Query(ge=0, le=10**9)] = None,
    follow: bool = False,
) -> StreamingResponse:
    """Return the log of an isolated board; with `follow`, until the board ends."""
    pieces = hub.logs(board, tail=tail, follow=follow)
    # The first piece is read here, so that a failure has its own status.
    first = next(pieces, b"")

    async def following() -> AsyncIterator[bytes]:
        # Waiting for a piece blocks a thread, so only some logs are followed at a time.
        shares: Shares = request.app.state.following
        piece: bytes | None = first
        while piece is not None:
            yield piece
            async with shares.of(user.name):
                piece = await run_in_threadpool(next, pieces, None)

    stream = following() if follow else chain([first], pieces)
    return StreamingResponse(stream, media_type="text/plain; charset=utf-8", headers=_UNCACHED)


@router.post("/link")
def make_console_link(hub: TheHub, user: TheUser, request: Request) -> Link:
    """Create a one-time link that opens the console in your browser."""
    key, expires = hub.auth.mint_key(user)
    url = f"{public_address(request.scope, hub.config)}/?key={key}"
    return Link(url=url, expires=format_time(expires) or "")


@router.post("/boards/{ref}/link")
def make_link(hub: TheHub, user: TheUser, board: TheBoard, request: Request) -> Link:
    """Create a one-time link that opens the board in your browser."""
    home = hub.config.boards_url
    key, expires = hub.auth.mint_key(user, boards=bool(home))
    url = f"{home or public_address(request.scope, hub.config)}/b/{board.id}/?key={key}"
    return Link(url=url, expires=format_time(expires) or "")


@router.get("/boards/{ref}/shares")
def list_shares(hub: TheHub, user: TheUser, board: TheBoard) -> ShareList:
    """List the shared links of a board."""
    return ShareList(shares=[ShareDocument.of(one) for one in hub.auth.shares(user, board)])


@router.post("/boards/{ref}/shares", status_code=201)
def share_board(
    hub: TheHub, user: TheUser, board: TheBoard, request: Request, share: NewShare | None = None
) -> ShareDocument:
    """Create a link that shows this board without a login."""
    lasts: float | None = hub.config.share or None
    if share is not None and share.for_ is not None:
        lasts = parse_duration(share.for_)
    made = hub.auth.share(user, board, lasts=lasts)
    home = hub.config.boards_url or public_address(request.scope, hub.config)
    return ShareDocument.of(made.record, f"{home}/s/{made.secret}")


@router.delete("/boards/{ref}/shares/{share}", status_code=204, response_model=None)
def revoke_share(hub: TheHub, user: TheUser, board: TheBoard, share: str) -> None:
    """Revoke a shared link."""
    hub.auth.revoke_share(user, board, share)


def _document(hub: Hub, board: BoardRecord) -> BoardDocument:
    return BoardDocument(**to_document(hub.describe(board)))


# Engines, and trials of them.


class EngineDocument(BaseModel):
    """An engine, or one of its profiles."""

    name: str = Field(description="The `on` of a board: `ENGINE` or `ENGINE:PROFILE`.")
    answers: bool | None = Field(description="Null if it was not queried.")
    version: str
    resources: dict[str, str] = Field(description="What is free, in the engine's words.")
    problem: str
    hint: str

    @classmethod
    def of(cls, engine: ProbedEngine) -> EngineDocument:
        report = engine.report or EngineReport(answers=False)
        return cls(
            name=engine.name,
            answers=None if engine.report is None else report.answers,
            version=report.version,
            resources=dict(report.resources),
            problem=report.problem,
            hint=report.hint,
        )


class EngineList(BaseModel):
    """The engines that the hub offers."""

    engines: list[EngineDocument]


class NewTrial(RequestDocument):
    """A trial to start."""

    roots: bool = Field(True, description="Let it read the local roots of the hub.")


class TrialDocument(BaseModel):
    """The hub's view of a trial."""

    accepted: bool = Field(description="Whether the engine accepted it.")
    address: str = Field(description="Where the hub reaches it; empty before it listens.")
    fingerprint: str = Field(
        description="Fingerprint of the certificate made for it; empty for plain HTTP."
    )
    presented: str = Field(description="Fingerprint of the certificate that it presents.")
    status: int | None = Field(description="The status of a request without a token.")
    problem: str
    left: list[str] = Field(description="What remains on the engine and in the hub's directory.")

    @classmethod
    def of(cls, report: TrialReport) -> TrialDocument:
        return cls(**asdict(report))


@engines.get("/engines")
def list_engines(
    hub: TheHub, probe: Annotated[bool, Query(description="Query each of them.")] = True
) -> EngineList:
    """List the engines with their profiles, and probe them."""
    found = (
        hub.engines.probe() if probe else [ProbedEngine(name, None) for name in hub.engines.names]
    )
    return EngineList(engines=[EngineDocument.of(one) for one in found])


@engines.post("/engines/{name}/trials", status_code=201)
def try_engine(
    hub: TheHub, user: TheUser, name: EngineName, trial: NewTrial | None = None
) -> BoardDocument:
    """Start a trial on an engine: a board that writes a few points and shows them."""
    board = hub.try_engine(user, name, roots=trial is None or trial.roots)
    return BoardDocument(**to_document(hub.describe(board)))


@engines.get("/engines/{name}/trials/{board}")
def get_trial(hub: TheHub, user: TheUser, name: EngineName, board: BoardId) -> TrialDocument:
    """Connect to a trial without a token, and report what remains of it."""
    return TrialDocument.of(hub.examine_trial(user, name, board))
