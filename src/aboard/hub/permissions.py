"""Permissions: a table of roles and actions, and a rule for every route of the hub.

A board that a user may not see is not found. A route without a rule is closed.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from types import MappingProxyType

from aboard.boards.accounts import Role, Share, User
from aboard.boards.model import BoardRecord, BoardsError, Visibility
from aboard.boards.registry import no_such_board


class Forbidden(BoardsError):
    """An action that is not allowed, on something that the visitor may see."""

    code = "forbidden"


class Action(StrEnum):
    """Actions on a hub; those in `ON_BOARDS` concern one board."""

    SEE = "see"
    SEE_LOGS = "see the logs of"
    CHANGE = "change"
    STOP = "stop"
    RESTART = "restart"
    DELETE = "delete"
    SHARE = "share"
    CREATE = "create boards"
    SEE_RUNS = "see runs"
    CHANGE_RUNS = "change runs"
    DELETE_RUNS = "delete runs of other users"
    SUBMIT = "submit and stop jobs"
    SHARE_VIEWS = "share views"
    OWN_TOKENS = "have tokens"
    MANAGE_USERS = "manage users"
    MANAGE_HUB = "manage the hub"


class Whose(StrEnum):
    OWN = "own"
    TEAM = "team"
    OTHER = "other"
    NONE = "none"


@dataclass(frozen=True, slots=True)
class Guest:
    """A visitor with a link to one board, and the user who created the link."""

    share: Share
    maker: User


ON_BOARDS = (
    Action.SEE,
    Action.SEE_LOGS,
    Action.CHANGE,
    Action.STOP,
    Action.RESTART,
    Action.DELETE,
    Action.SHARE,
)
_NONE: frozenset[Whose] = frozenset()
_OWN = frozenset({Whose.OWN})
_SHOWN = frozenset({Whose.OWN, Whose.TEAM})
_ANY = frozenset({Whose.OWN, Whose.TEAM, Whose.OTHER})
_YES = frozenset({Whose.NONE})

TABLE: Mapping[Action, Mapping[Role, frozenset[Whose]]] = MappingProxyType(
    {
        action: MappingProxyType(dict(zip(Role, allowed, strict=True)))
        for action, allowed in {
            # ............... viewer, member, admin
            Action.SEE: (_SHOWN, _SHOWN, _ANY),
            Action.SEE_LOGS: (_OWN, _SHOWN, _ANY),
            Action.CHANGE: (_NONE, _OWN, _ANY),
            Action.STOP: (_OWN, _OWN, _ANY),
            Action.RESTART: (_NONE, _OWN, _ANY),
            Action.DELETE: (_OWN, _OWN, _ANY),
            Action.SHARE: (_NONE, _OWN, _ANY),
            Action.CREATE: (_NONE, _YES, _YES),
            Action.SEE_RUNS: (_YES, _YES, _YES),
            Action.CHANGE_RUNS: (_NONE, _YES, _YES),
            Action.DELETE_RUNS: (_NONE, _NONE, _YES),
            Action.SUBMIT: (_NONE, _NONE, _YES),
            Action.SHARE_VIEWS: (_NONE, _YES, _YES),
            Action.OWN_TOKENS: (_YES, _YES, _YES),
            Action.MANAGE_USERS: (_NONE, _NONE, _YES),
            Action.MANAGE_HUB: (_NONE, _NONE, _YES),
        }.items()
    }
)


def may(who: User | Guest, action: Action, board: BoardRecord | None = None) -> bool:
    """Return whether an action is allowed; `board` is required if the action is on a board."""
    if (board is None) == (action in ON_BOARDS):
        raise ValueError(f"{action!r} {'needs' if board is None else 'is not about'} a board")
    if isinstance(who, Guest):
        if board is None or board.id != who.share.board or action is not Action.SEE:
            return False
        return may(who.maker, Action.SHARE, board)
    return _whose(who, board) in TABLE[action][who.role]


def require(who: User | Guest, action: Action, board: BoardRecord | None = None) -> None:
    """Raise `NoSuchName` if the board is not visible, `Forbidden` if the action is not allowed."""
    if may(who, action, board):
        return
    if board is not None and not may(who, Action.SEE, board):
        raise no_such_board(board.id)
    what = f"{action} board {board.id} ({board.name})" if board else str(action)
    if isinstance(who, Guest):
        raise Forbidden(f"guests with a link may not {what}.", "Log in first: aboard login")
    anothers = board is not None and board.owner != who.name
    hint = "Ask its owner, or an administrator." if anothers else "Ask an administrator."
    raise Forbidden(f"{who.name} ({who.role}) may not {what}.", hint)


def seen_by(who: User) -> str | None:
    """Return the user whose boards may be listed besides the team's; None for all boards."""
    return None if Whose.OTHER in TABLE[Action.SEE][who.role] else who.name


def _whose(user: User, board: BoardRecord | None) -> Whose:
    if board is None:
        return Whose.NONE
    if board.owner == user.name:
        return Whose.OWN
    return Whose.TEAM if board.visibility is Visibility.TEAM else Whose.OTHER


API = "/api/v1"


class Open(StrEnum):
    """Rules for routes that are not actions."""

    PUBLIC = "public"  # needs no secret and reveals nothing
    USERS = "users"  # any user: about that user, or visible to all users
    SELF = "self"  # the user it is about, or one who manages users


Rule = Action | Open

RULES: Mapping[tuple[str, str], Rule] = MappingProxyType(
    {
        ("GET", "/"): Open.USERS,
        ("GET", "/runs"): Open.USERS,
        ("GET", "/runs/{run}"): Open.USERS,
        ("GET", "/compare"): Open.USERS,
        ("GET", "/sweep"): Open.USERS,
        ("GET", "/boards"): Open.USERS,
        ("GET", "/jobs"): Open.USERS,
        ("GET", "/storage"): Open.USERS,
        ("GET", "/people"): Open.USERS,
        ("GET", "/console/{name}"): Open.USERS,
        ("GET", "/healthz"): Open.PUBLIC,
        ("GET", "/readyz"): Open.PUBLIC,
        ("GET", "/metrics"): Open.USERS,
        ("GET", "/openapi.json"): Open.USERS,
        ("POST", "/logout"): Open.USERS,
        ("GET", "/s/{secret}"): Open.PUBLIC,
        ("GET", f"{API}/me"): Open.USERS,
        ("POST", f"{API}/login"): Open.PUBLIC,
        ("POST", f"{API}/logout"): Open.USERS,
        ("POST", f"{API}/link"): Open.USERS,
        ("GET", f"{API}/boards"): Open.USERS,
        ("POST", f"{API}/boards"): Action.CREATE,
        ("GET", f"{API}/boards/{{ref}}"): Action.SEE,
        ("PATCH", f"{API}/boards/{{ref}}"): Action.CHANGE,
        ("DELETE", f"{API}/boards/{{ref}}"): Action.DELETE,
        ("POST", f"{API}/boards/{{ref}}/stop"): Action.STOP,
        ("POST", f"{API}/boards/{{ref}}/restart"): Action.RESTART,
        ("POST", f"{API}/boards/{{ref}}/selection"): Action.CHANGE,
        ("GET", f"{API}/boards/{{ref}}/history"): Action.SEE,
        ("GET", f"{API}/boards/{{ref}}/logs"): Action.SEE_LOGS,
        ("POST", f"{API}/boards/{{ref}}/link"): Action.SEE,
        ("GET", f"{API}/boards/{{ref}}/shares"): Action.SHARE,
        ("POST", f"{API}/boards/{{ref}}/shares"): Action.SHARE,
        ("DELETE", f"{API}/boards/{{ref}}/shares/{{share}}"): Action.SHARE,
        ("GET", f"{API}/events"): Open.USERS,
        ("GET", f"{API}/engines"): Action.CREATE,
        ("POST", f"{API}/engines/{{name}}/trials"): Action.CREATE,
        ("GET", f"{API}/engines/{{name}}/trials/{{board}}"): Action.CREATE,
        ("GET", f"{API}/jobs"): Action.SEE_RUNS,
        ("POST", f"{API}/jobs"): Action.SUBMIT,
        ("GET", f"{API}/jobs/{{job}}"): Action.SEE_RUNS,
        ("GET", f"{API}/jobs/{{job}}/members"): Action.SEE_RUNS,
        ("GET", f"{API}/jobs/{{job}}/logs"): Action.SEE_RUNS,
        ("DELETE", f"{API}/jobs/{{job}}"): Action.SUBMIT,
        ("POST", f"{API}/jobs/{{job}}/stop"): Action.SUBMIT,
        ("POST", f"{API}/jobs/{{job}}/retry"): Action.SUBMIT,
        ("GET", f"{API}/runs"): Action.SEE_RUNS,
        ("POST", f"{API}/series"): Action.SEE_RUNS,
        ("GET", f"{API}/runs/facets"): Action.SEE_RUNS,
        ("GET", f"{API}/runs/fields"): Action.SEE_RUNS,
        ("GET", f"{API}/runs/metrics"): Action.SEE_RUNS,
        ("GET", f"{API}/runs/{{run}}"): Action.SEE_RUNS,
        ("PATCH", f"{API}/runs/{{run}}"): Action.CHANGE_RUNS,
        ("DELETE", f"{API}/runs/{{run}}"): Action.CHANGE_RUNS,  # runs of others: DELETE_RUNS
        ("GET", f"{API}/runs/{{run}}/metrics"): Action.SEE_RUNS,
        ("GET", f"{API}/runs/{{run}}/files"): Action.SEE_RUNS,
        ("GET", f"{API}/runs/{{run}}/file"): Action.SEE_RUNS,
        ("GET", f"{API}/runs/{{run}}/media"): Action.SEE_RUNS,
        ("GET", f"{API}/runs/{{run}}/blob"): Action.SEE_RUNS,
        ("GET", f"{API}/runs/{{run}}/boards"): Action.SEE_RUNS,
        ("GET", f"{API}/runs/{{run}}/doctor"): Action.SEE_RUNS,
        ("GET", f"{API}/runs/{{run}}/log"): Action.SEE_RUNS,
        ("GET", f"{API}/roots"): Action.SEE_RUNS,
        ("POST", f"{API}/roots"): Action.MANAGE_HUB,
        ("GET", f"{API}/views"): Open.USERS,
        ("PUT", f"{API}/views"): Open.USERS,  # for the team: SHARE_VIEWS
        ("DELETE", f"{API}/views"): Open.USERS,  # views of other users: MANAGE_HUB
        ("GET", f"{API}/users"): Action.MANAGE_USERS,
        ("POST", f"{API}/users"): Action.MANAGE_USERS,
        ("PATCH", f"{API}/users/{{name}}"): Action.MANAGE_USERS,
        ("DELETE", f"{API}/users/{{name}}"): Action.MANAGE_USERS,
        ("PUT", f"{API}/users/{{name}}/password"): Open.SELF,
        ("GET", f"{API}/limits"): Open.USERS,
        ("GET", f"{API}/sessions"): Open.USERS,
        ("DELETE", f"{API}/sessions/{{session}}"): Open.USERS,
        ("GET", f"{API}/tokens"): Action.OWN_TOKENS,
        ("POST", f"{API}/tokens"): Action.OWN_TOKENS,
        ("DELETE", f"{API}/tokens/{{token}}"): Action.OWN_TOKENS,
    }
)
