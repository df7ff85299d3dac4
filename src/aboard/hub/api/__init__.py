"""The REST API, one module per noun; this one has what the routes share.

A route's dependencies find the hub, the user and the board, and apply the route's rule from the
table in `permissions`.
"""

from __future__ import annotations

import asyncio
import inspect
import json
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import AsyncExitStack, asynccontextmanager, nullcontext, suppress
from typing import Annotated, Any, TypeVar

from anyio import from_thread
from fastapi import APIRouter, Depends, Path, Request, Response
from fastapi.routing import APIRoute
from pydantic import BaseModel, ConfigDict, Field
from starlette.concurrency import run_in_threadpool

from aboard.boards.accounts import User
from aboard.boards.model import LONGEST_NAME, BadValue, BoardRecord, Busy
from aboard.hub.auth import AuthError, HubVisitor
from aboard.hub.errors import ErrorDocument
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
from aboard.hub.threads import read
from aboard.index.library import Library
from aboard.runs.selectors import NothingMatches
from aboard.web.gate import VISITOR, is_ending
from aboard.web.pages import ENDING


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

_ERRORS: dict[int | str, dict[str, Any]] = {
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
            self._scan = asyncio.ensure_future(read(self._library.look_again))
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
        responses=_ERRORS,
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
