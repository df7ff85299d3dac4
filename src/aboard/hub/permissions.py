"""Who may do what: one table of roles and actions, and what somebody is told who may not.

A board that somebody may not see does not exist for him. Who somebody is, is left to `auth`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from types import MappingProxyType

from aboard.boards.accounts import Role, Share, User
from aboard.boards.errors import BoardsError
from aboard.boards.lookup import unknown
from aboard.boards.model import BoardRecord, Visibility


class Forbidden(BoardsError):  # noqa: N818 - named by what is wrong
    """Something that the one who asks may not do, with what he may see."""

    code = "forbidden"


class Action(StrEnum):
    """What can be done on a hub; the first ones with a board, the others without."""

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
    OWN_TOKENS = "have tokens"
    MANAGE_USERS = "manage users"
    MANAGE_HUB = "manage the hub"


class Whose(StrEnum):
    """How a board relates to the one who asks."""

    OWN = "own"
    TEAM = "team"
    OTHER = "other"
    NONE = "none"


@dataclass(frozen=True, slots=True)
class Guest:
    """Somebody who has a link to one board, and the user who gave it away."""

    share: Share
    maker: User


_ON_BOARDS = (
    Action.SEE,
    Action.SEE_LOGS,
    Action.CHANGE,
    Action.STOP,
    Action.RESTART,
    Action.DELETE,
    Action.SHARE,
)
_NOBODY: frozenset[Whose] = frozenset()
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
            Action.CHANGE: (_NOBODY, _OWN, _ANY),
            Action.STOP: (_OWN, _OWN, _ANY),
            Action.RESTART: (_NOBODY, _OWN, _ANY),
            Action.DELETE: (_OWN, _OWN, _ANY),
            Action.SHARE: (_NOBODY, _OWN, _ANY),
            Action.CREATE: (_NOBODY, _YES, _YES),
            Action.SEE_RUNS: (_YES, _YES, _YES),
            Action.CHANGE_RUNS: (_NOBODY, _YES, _YES),
            Action.OWN_TOKENS: (_YES, _YES, _YES),
            Action.MANAGE_USERS: (_NOBODY, _NOBODY, _YES),
            Action.MANAGE_HUB: (_NOBODY, _NOBODY, _YES),
        }.items()
    }
)


def may(who: User | Guest, action: Action, board: BoardRecord | None = None) -> bool:
    """Say whether somebody may do something, with a board where the action is about one."""
    if (board is None) == (action in _ON_BOARDS):
        raise ValueError(f"{action!r} {'needs' if board is None else 'is not about'} a board")
    if isinstance(who, Guest):
        if board is None or board.id != who.share.board or action is not Action.SEE:
            return False
        return may(who.maker, Action.SHARE, board)
    return _whose(who, board) in TABLE[action][who.role]


def require(who: User | Guest, action: Action, board: BoardRecord | None = None) -> None:
    """Go on only if somebody may do something.

    Raises:
        NotFound: he may not even see the board.
        Forbidden: he may not.
    """
    if may(who, action, board):
        return
    if board is not None and not may(who, Action.SEE, board):
        raise unknown(board.id)
    what = f"{action} board {board.id} ({board.name})" if board else str(action)
    if isinstance(who, Guest):
        raise Forbidden(f"with a link one may not {what}.", "Log in first: aboard login")
    anothers = board is not None and board.owner != who.name
    hint = "Ask its owner, or an administrator." if anothers else "Ask an administrator."
    raise Forbidden(f"{who.name} may not {what} as {who.role}.", hint)


def seen_by(who: User) -> str | None:
    """Return what the registry needs to list only what somebody may see."""
    return None if Whose.OTHER in TABLE[Action.SEE][who.role] else who.name


def _whose(user: User, board: BoardRecord | None) -> Whose:
    if board is None:
        return Whose.NONE
    if board.owner == user.name:
        return Whose.OWN
    return Whose.TEAM if board.visibility is Visibility.TEAM else Whose.OTHER
