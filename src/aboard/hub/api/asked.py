"""What every route of the API asks first: which hub, who, and whether he may.

The rule of a route comes from the table in `rules`; a route without one is answered to nobody.
"""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import APIRouter, Depends, Path, Request

from aboard.boards.accounts import User
from aboard.boards.model import BoardRecord
from aboard.hub.auth import AuthError
from aboard.hub.documents import ErrorDocument
from aboard.hub.permissions import Action, Forbidden, may, require
from aboard.hub.rules import API, RULES, Open, Rule
from aboard.hub.service import Hub
from aboard.hub.visitors import Visitor

_BOARD_ACTIONS = frozenset(
    rule for (_, path), rule in RULES.items() if "{ref}" in path and isinstance(rule, Action)
)


def rule_of(request: Request) -> Rule:
    """Return the rule of the route that a request came to.

    Raises:
        Forbidden: there is none.
    """
    path = getattr(request.scope.get("route"), "path", "")
    method = "GET" if request.method == "HEAD" else request.method
    rule = RULES.get((method, path))
    if rule is None:
        raise Forbidden("nobody may ask this.", "Tell whoever runs this hub.")
    return rule


def the_hub(request: Request) -> Hub:
    """Return the hub."""
    hub: Hub = request.app.state.hub
    return hub


def the_visitor(request: Request) -> Visitor | None:
    """Return who asks, if he is known."""
    visitor: Visitor | None = request.scope.get("aboard.visitor")
    return visitor


def check_rule(request: Request) -> None:
    """Let a request through if its sender may make it, with whatever board it is about.

    Raises:
        AuthError: nobody knows who he is.
        Forbidden: he may not.
    """
    rule = rule_of(request)
    if rule is Open.ANYBODY:
        return
    user = the_user(request)
    if rule is Open.SELF:
        if request.path_params.get("name") != user.name:
            require(user, Action.MANAGE_USERS)
    elif isinstance(rule, Action) and rule not in _BOARD_ACTIONS:
        require(user, rule)


def the_user(request: Request) -> User:
    """Return the user who asks.

    Raises:
        AuthError: it is none.
    """
    visitor = the_visitor(request)
    if visitor is None or not isinstance(visitor.who, User):
        raise AuthError(
            "this needs a token or a session.",
            "Send a token in a header, Authorization: Bearer TOKEN, or: aboard login",
        )
    return visitor.who


Ref = Annotated[
    str,
    Path(description="An id, the beginning of one, or a name.", min_length=1, max_length=200),
]


def the_board(request: Request, ref: Ref) -> BoardRecord:
    """Return the board of a route, if the user may do with it what the route does.

    Raises:
        NotFound: there is none that he may see.
        Forbidden: he may see it, but not do this.
    """
    user, rule = the_user(request), rule_of(request)
    board = the_hub(request).find(ref, user)
    if not isinstance(rule, Action) or not may(user, Action.SEE, board):
        raise Forbidden("nobody may ask this.", "Tell whoever runs this hub.")
    require(user, rule, board)
    return board


TheHub = Annotated[Hub, Depends(the_hub)]
TheUser = Annotated[User, Depends(the_user)]
TheVisitor = Annotated[Visitor | None, Depends(the_visitor)]
TheBoard = Annotated[BoardRecord, Depends(the_board)]

_ERRORS: dict[int | str, dict[str, Any]] = {
    400: {"model": ErrorDocument, "description": "The request cannot be understood."},
    401: {"model": ErrorDocument, "description": "Nobody knows who asks."},
    403: {"model": ErrorDocument, "description": "Who asks may not do this, or have more."},
    404: {"model": ErrorDocument, "description": "There is none, or none that one may see."},
    409: {"model": ErrorDocument, "description": "It is not in a state for this, or ambiguous."},
    413: {"model": ErrorDocument, "description": "The request is too large."},
    422: {"model": ErrorDocument, "description": "Something in the request cannot be meant."},
    429: {"model": ErrorDocument, "description": "Too many wrong secrets came."},
    503: {"model": ErrorDocument, "description": "The database does not answer."},
}


def api_router(tag: str) -> APIRouter:
    """Make a router whose routes keep their rules and tell their errors."""
    return APIRouter(prefix=API, tags=[tag], dependencies=[Depends(check_rule)], responses=_ERRORS)
