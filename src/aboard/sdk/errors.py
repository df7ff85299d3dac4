"""What can go wrong with a hub or a board, as types a program can tell apart.

Each carries what the hub said: a code, one line, and a hint what to do.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any


class HubError(Exception):
    """Anything that the hub refused, or could not do.

    Attributes:
        code: what it is, for programs.
        message: what was wrong.
        hint: what to do; may be empty.
        status: the status of the answer; 0 where there was none.
    """

    def __init__(self, message: str, hint: str = "", *, code: str = "error", status: int = 0):
        super().__init__(message, hint)
        self.message = message
        self.hint = hint
        self.code = code
        self.status = status

    def __str__(self) -> str:
        return f"{self.message} {self.hint}".rstrip()


class Unreachable(HubError):  # noqa: N818 - named by what is wrong
    """No hub is known, or the one that is does not answer."""


class AuthError(HubError):
    """The hub does not know who asks, or he may not do this."""


class NotFound(HubError):  # noqa: N818 - named by what is wrong
    """There is nothing of that name, or nothing that one may see."""


class BoardLimitExceeded(HubError):  # noqa: N818 - named by what is wrong
    """More than one may have.

    Attributes:
        boards: the ids of the boards that count, the oldest first.
    """

    boards: Sequence[str] = ()


class NotReady(HubError):  # noqa: N818 - named by what is wrong
    """The board does not serve data yet; the same call may work later."""


class BoardFailed(HubError):  # noqa: N818 - named by what is wrong
    """The board has ended.

    Attributes:
        state: how: stopped, failed or lost.
        reason: why.
    """

    def __init__(self, message: str, hint: str = "", *, state: str = "", reason: str = ""):
        super().__init__(message, hint, code="board_failed")
        self.state = state
        self.reason = reason


_KINDS: Mapping[int, type[HubError]] = {
    401: AuthError,
    403: AuthError,
    404: NotFound,
    429: AuthError,
}


def error_of(status: int, document: Any) -> HubError:
    """Return what an answer that is no success means."""
    said = document.get("error") if isinstance(document, dict) else None
    if not isinstance(said, dict):
        return HubError(
            f"the hub answered with status {status}, and not as a hub does.",
            "Check its address.",
            code="unexpected",
            status=status,
        )
    code = str(said.get("code", "error"))
    kind = BoardLimitExceeded if code == "limit_exceeded" else _KINDS.get(status, HubError)
    message, hint = str(said.get("message", "")), str(said.get("hint", ""))
    error = kind(message, hint, code=code, status=status)
    if isinstance(error, BoardLimitExceeded):
        error.boards = tuple(said.get("boards") or ())
    return error
