"""The REST API, one module per noun; this one has what the routes share.

A route's dependencies find the hub, the user and the board, and apply the route's rule from the
table in `permissions`. Every error is one document, with an HTTP status.
"""

from __future__ import annotations

import asyncio
import inspect
import json
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import AsyncExitStack, asynccontextmanager, nullcontext, suppress
from typing import Annotated, Any, TypeVar

from anyio import from_thread
from fastapi import APIRouter, Depends, FastAPI, Path, Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from fastapi.routing import APIRoute
from pydantic import BaseModel, ConfigDict, Field
from starlette.concurrency import run_in_threadpool
from starlette.exceptions import HTTPException

from aboard.boards.accounts import User
from aboard.boards.model import (
    LONGEST_NAME,
    BadValue,
    BoardLimitExceeded,
    BoardRecord,
    BoardsError,
    Busy,
)
from aboard.executors.base import ExecutorError
from aboard.hub import read
from aboard.hub.auth import AuthError, HubVisitor
from aboard.hub.permissions import (
    API,
    ON_BOARDS,
    RULES,
    Action,
    Forbidden,
    Open,
    Rule,
    may,
    require,
)
from aboard.hub.service import Hub
from aboard.index.library import Library
from aboard.jobs import JobError
from aboard.runs import RunsError
from aboard.runs.question import BadQuestion, UnknownField
from aboard.runs.selectors import NothingMatches
from aboard.storage import StorageError
from aboard.web.gate import VISITOR, is_ending
from aboard.web.pages import ENDING, NOT_FOUND
from aboard.web.request import accepts_html


def rule_of(request: Request) -> Rule:
    """Return the rule of a request's route; a route without one is forbidden to all users."""
    path = getattr(request.scope.get("route"), "path", "")
    method = "GET" if request.method == "HEAD" else request.method
    rule = RULES.get((method, path))
    if rule is None:
        raise Forbidden("this route has no rule.", "Report it to the administrator of the hub.")
    return rule


def the_hub(request: Request) -> Hub:
    hub: Hub = request.app.state.hub
    return hub


def the_visitor(request: Request) -> HubVisitor | None:
    visitor: HubVisitor | None = request.scope.get(VISITOR)
    return visitor


# Dependencies that never block are async, because FastAPI runs each of the others in a thread.


async def check_rule(request: Request) -> None:
    """Apply the rule of a route, except for rules about a board."""
    rule = rule_of(request)
    if rule is Open.PUBLIC:
        return
    user = the_user(request)
    if rule is Open.SELF:
        if request.path_params.get("name") != user.name:
            require(user, Action.MANAGE_USERS)
    elif isinstance(rule, Action) and rule not in ON_BOARDS:
        require(user, rule)


def the_user(request: Request) -> User:
    visitor = the_visitor(request)
    if visitor is None or not isinstance(visitor.who, User):
        raise AuthError(
            "this request needs a token or a session.",
            "Send a header, Authorization: Bearer TOKEN, or log in: aboard login",
        )
    return visitor.who


Ref = Annotated[
    str, Path(description="An id or a name, or a prefix of one.", min_length=1, max_length=200)
]


def the_board(request: Request, ref: Ref) -> BoardRecord:
    """Return the board of a route, if the route's rule allows the user to use it."""
    user, rule = the_user(request), rule_of(request)
    board = the_hub(request).find(ref, user)
    if not isinstance(rule, Action) or not may(user, Action.SEE, board):
        raise Forbidden("this route has no rule.", "Report it to the administrator of the hub.")
    require(user, rule, board)
    return board


async def _find_hub(request: Request) -> Hub:
    return the_hub(request)


async def _find_user(request: Request) -> User:
    return the_user(request)


async def _find_visitor(request: Request) -> HubVisitor | None:
    return the_visitor(request)


TheHub = Annotated[Hub, Depends(_find_hub)]
TheUser = Annotated[User, Depends(_find_user)]
TheVisitor = Annotated[HubVisitor | None, Depends(_find_visitor)]
TheBoard = Annotated[BoardRecord, Depends(the_board)]


class ErrorBody(BaseModel):
    """What is wrong and what to do."""

    code: str = Field(examples=["not_found"])
    message: str = Field(examples=["board 'x' not found."])
    hint: str = Field(examples=["List yours with: aboard list"])
    boards: list[str] | None = Field(
        None, description="With limit_exceeded: the ids of the boards that count."
    )
    picture: str | None = Field(
        None, description="With bad_question: its text, with carets under the error."
    )


class ErrorDocument(BaseModel):
    """An error."""

    error: ErrorBody


_CODES = {
    400: ("bad_question",),
    401: ("not_authenticated",),
    403: ("forbidden", "cross_origin", "outside_roots", "limit_exceeded"),
    404: ("not_found",),
    409: ("ambiguous", "conflict", "illegal_transition", "name_taken", "idempotency_mismatch"),
    413: ("too_large",),
    422: ("bad_value", "bad_selector", "bad_template", "nothing_matches"),
    429: ("too_many_attempts",),
    502: ("engine", "storage"),
    503: ("database_unavailable", "bad_database", "busy"),
}
_STATUSES = {code: status for status, codes in _CODES.items() for code in codes}


def status_of(error: BoardsError | RunsError) -> int:
    return _STATUSES.get(error.code, 500)


def _error_document(code: str, message: str, hint: str = "") -> dict[str, Any]:
    return {"error": {"code": code, "message": message, "hint": hint}}


def _respond(error: BoardsError | RunsError) -> JSONResponse:
    document = _error_document(error.code, error.message, error.hint)
    if isinstance(error, BoardLimitExceeded):
        document["error"]["boards"] = [board.id for board in error.boards]
    if isinstance(error, BadQuestion) and error.picture:
        document["error"]["picture"] = error.picture
    status = status_of(error)
    headers = {"cache-control": "no-store"}
    if status == 401:
        headers["www-authenticate"] = 'Bearer realm="aboard"'
    if status in {429, 503}:
        headers["retry-after"] = "5"
    return JSONResponse(document, status, headers)


def add_error_handlers(app: FastAPI) -> None:
    async def ours(request: Request, error: BoardsError | RunsError) -> JSONResponse:
        if isinstance(error, UnknownField):
            error = await run_in_threadpool(the_hub(request).library.suggest, error)
        return _respond(error)

    async def invalid(_: Request, error: RequestValidationError) -> JSONResponse:
        return JSONResponse(
            _error_document("invalid", _first_problem(error), _SEE_DOCUMENTATION), 422
        )

    async def refused(request: Request, error: HTTPException) -> Response:
        if error.status_code == 404 and not request.url.path.startswith("/api/"):
            reply = NOT_FOUND.reply(as_page=accepts_html(request.scope))
            return Response(reply.body, reply.status, dict(reply.headers))
        code, message, hint = _REFUSALS.get(
            error.status_code, ("refused", f"{error.detail}.", "See the documentation of the API.")
        )
        headers = dict(error.headers or {})
        return JSONResponse(_error_document(code, message, hint), error.status_code, headers)

    async def upstream(_: Request, error: ExecutorError | StorageError) -> JSONResponse:
        code = "engine" if isinstance(error, ExecutorError) else "storage"
        return JSONResponse(_error_document(code, str(error)), 502)

    async def of_job(_: Request, error: JobError) -> JSONResponse:
        code, status = _JOB_ERRORS.get(error.code, ("conflict", 409))
        return JSONResponse(_error_document(code, str(error)), status)

    app.add_exception_handler(BoardsError, ours)  # type: ignore[arg-type]
    app.add_exception_handler(RunsError, ours)  # type: ignore[arg-type]
    app.add_exception_handler(RequestValidationError, invalid)  # type: ignore[arg-type]
    app.add_exception_handler(HTTPException, refused)  # type: ignore[arg-type]
    app.add_exception_handler(ExecutorError, upstream)  # type: ignore[arg-type]
    app.add_exception_handler(StorageError, upstream)  # type: ignore[arg-type]
    app.add_exception_handler(JobError, of_job)  # type: ignore[arg-type]


_JOB_ERRORS = {
    "invalid": ("bad_value", 422),
    "exists": ("name_taken", 409),
    "not_found": ("not_found", 404),
}
_SEE_DOCUMENTATION = "See the documentation of the API, or /openapi.json."
_REFUSALS = {
    400: ("bad_request", "invalid request.", "Send JSON."),
    404: ("not_found", "route not found.", _SEE_DOCUMENTATION),
    405: ("method_not_allowed", "method not allowed.", _SEE_DOCUMENTATION),
    413: ("too_large", "the request is too large.", "Send less."),
}


def _first_problem(error: RequestValidationError) -> str:
    found = error.errors()[0]
    kind, context = str(found["type"]), found.get("ctx", {})
    if kind == "json_invalid":
        return "the request is not JSON."
    named = [part for part in found["loc"] if part not in {"body", "query", "path", "header"}]
    # After a field come indices of a list, or the name of the type that pydantic tried.
    where = ".".join(str(part) for i, part in enumerate(named) if not i or isinstance(part, int))
    where = where or "the request"
    if kind in {"enum", "literal_error"}:
        return f"{where} cannot be {str(found['input'])[:40]!r}: use {context['expected']}."
    if kind == "missing":
        return f"{where} is missing."
    if kind == "extra_forbidden":
        return f"unknown field {where}."
    message = str(found["msg"]).removeprefix("Value error, ").removeprefix("Input ")
    return f"{where} {message[:1].lower()}{message[1:300]}."


_RESPONSES: dict[int | str, dict[str, Any]] = {
    status: {"model": ErrorDocument, "description": text}
    for status, text in {
        400: "The request is invalid.",
        401: "The request has no valid token or session.",
        403: "The user may not do this, or has reached a limit.",
        404: "Not found, or not visible to the user.",
        409: "Its state does not allow this, or the name is ambiguous.",
        413: "The request is too large.",
        422: "A value in the request is invalid.",
        429: "Too many wrong secrets were sent.",
        503: "The database does not answer, or too many requests wait.",
    }.items()
}


COMPUTING = 2  # threads that compute at a time; each competes with the event loop
FOLLOWING = 16  # threads that wait for new lines of logs; the others are for requests
_LONGEST_PLACE = 18  # digits that fit 64 bits
_SCAN_SECONDS = 5.0
_SMALL_BODY = 16 << 10  # parsed at once; a larger one waits for a turn


class Shares:
    """Limits how many requests of one visitor run at once; further ones wait without a thread.

    All boards and users share the hub's threads and its interpreter, and some requests are slow: a
    selection among very many runs, or a slow storage. `together` limits all visitors at once.
    """

    def __init__(
        self, most: int = 4, most_waiting: int = 64, *, together: int | None = None
    ) -> None:
        self._most = most
        self._most_waiting = most_waiting
        self._together: asyncio.Semaphore | nullcontext[None] = (
            nullcontext() if together is None else asyncio.Semaphore(together)
        )
        self._used: dict[str, tuple[asyncio.Semaphore, int]] = {}  # with its number of requests

    @asynccontextmanager
    async def of(self, visitor: str) -> AsyncIterator[None]:
        turns, count = self._used.get(visitor) or (asyncio.Semaphore(self._most), 0)
        if count >= self._most + self._most_waiting:
            raise Busy("too many of your requests are waiting.", "Try again in 5 seconds.")
        self._used[visitor] = turns, count + 1
        try:
            async with turns, self._together:
                yield
        finally:
            turns, count = self._used.pop(visitor)
            if count > 1:
                self._used[visitor] = turns, count - 1


class Rescan:
    """Looks for new runs below the roots, for requests that found none.

    Concurrent requests share one scan, outside their turns to compute. None waits long for a slow
    storage: the next request sees what the scan finds later.
    """

    def __init__(self, library: Library) -> None:
        self._library = library
        self._scan: asyncio.Future[None] | None = None

    async def __call__(self) -> None:
        if self._scan is None or self._scan.done():
            self._scan = asyncio.ensure_future(read(self._library.refresh_all))
        await asyncio.wait([self._scan], timeout=_SCAN_SECONDS)


Endpoint = TypeVar("Endpoint", bound=Callable[..., Any])


def computes(endpoint: Endpoint) -> Endpoint:
    """Mark a route that needs a turn to compute; if no run matches, it runs again after a scan."""
    vars(endpoint)["computes"] = True
    return endpoint


def leave_turn(request: Request) -> None:
    """Release the turn of a route that computes, from its thread, before it waits."""
    from_thread.run(request.state.turn.aclose)


class _Request(Request):
    """A request whose body may have been parsed already."""

    _parsed: Any = None

    async def parse(self) -> None:
        body = await self.body()
        with suppress(ValueError, RecursionError):  # `json` reports the error
            self._parsed = await run_in_threadpool(json.loads, body)

    async def json(self) -> Any:
        return await super().json() if self._parsed is None else self._parsed


class _SharedRoute(APIRoute):
    """A route whose requests are limited by the shares of their visitors.

    An async route holds no thread while it waits, so it is not counted. A large body is parsed in a
    turn to compute. A waiting request is dropped when its client disconnects.
    """

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        answer = super().get_route_handler()
        blocks = not inspect.iscoroutinefunction(self.endpoint)
        is_computed = "computes" in vars(self.endpoint)
        if not blocks and self.body_field is None:
            return answer

        async def answer_in_turn(given: Request) -> Response:
            visitor = the_visitor(given)
            if visitor is None:  # public routes have their own limits
                return await answer(given)
            request = _Request(given.scope, given.receive)
            shares: Shares = request.app.state.shares
            computing: Shares = request.app.state.computing
            async with shares.of(visitor.name) if blocks else nullcontext():
                if self.body_field is not None and len(await request.body()) > _SMALL_BODY:
                    async with computing.of(visitor.name):
                        await request.parse()
                if not is_computed:
                    return await answer_once(request)
                try:
                    return await answer_computed(request, computing, visitor.name)
                except NothingMatches:
                    await request.app.state.rescan()
                return await answer_computed(request, computing, visitor.name)

        async def answer_computed(request: Request, computing: Shares, name: str) -> Response:
            async with AsyncExitStack() as turn:
                await turn.enter_async_context(computing.of(name))
                request.state.turn = turn
                return await answer_once(request)

        async def answer_once(request: Request) -> Response:
            if is_ending(request.scope):
                reply = ENDING.reply(as_page=False)
                return Response(reply.body, reply.status, dict(reply.headers))
            if await request.is_disconnected():
                return Response()
            return await answer(request)

        return answer_in_turn


def api_router(tag: str) -> APIRouter:
    return APIRouter(
        prefix=API,
        tags=[tag],
        dependencies=[Depends(check_rule)],
        responses=_RESPONSES,
        route_class=_SharedRoute,
    )


def position(cursor: str | None) -> int:
    """Return the index of a page's first item."""
    if cursor is None:
        return 0
    if cursor.isascii() and cursor.isdigit() and len(cursor) <= _LONGEST_PLACE:
        return int(cursor)
    raise BadValue("invalid cursor.", "Use the cursor of a page, or none for the first page.")


class RequestDocument(BaseModel):
    """The body of a request; unknown keys are errors."""

    model_config = ConfigDict(extra="forbid")


Name = Annotated[str, Field(max_length=LONGEST_NAME)]
Duration = Annotated[float, Field(ge=0, le=1e12)] | Annotated[str, Field(max_length=32)]
Size = Annotated[int, Field(ge=0, le=2**60)] | Annotated[str, Field(max_length=32)]
