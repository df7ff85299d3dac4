"""A Python client of the hub's REST API, and its exceptions.

It needs only the standard library, so that a training script can start a board without the hub's
dependencies. Each exception has the code, message and hint of an error of the API.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any


class HubError(Exception):
    """A request that the hub refused or could not complete.

    Attributes:
        code: the kind of error, for programs.
        message: what is wrong.
        hint: what to do; may be empty.
        status: the HTTP status; 0 if there was no response.
        picture: for an invalid question, its text with carets under the error; else empty.
    """

    picture = ""

    def __init__(self, message: str, hint: str = "", *, code: str = "error", status: int = 0):
        super().__init__(message, hint)
        self.message = message
        self.hint = hint
        self.code = code
        self.status = status

    def __str__(self) -> str:
        return f"{self.message} {self.hint}".rstrip()


class Unreachable(HubError):
    """No hub was found, or it does not answer."""


class AuthError(HubError):
    """The hub does not accept the token, or the user may not do this."""


class NotFound(HubError):
    """It does not exist, or the user may not see it."""


class BoardLimitExceeded(HubError):
    """The user has reached the limit of boards.

    Attributes:
        boards: the ids of the boards that count, oldest first.
    """

    boards: Sequence[str] = ()


class NotReady(HubError):
    """The board or job is not ready; the same call may succeed later."""


class BoardFailed(HubError):
    """The board has ended.

    Attributes:
        state: stopped, failed or lost.
        reason: why it ended.
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
    fields = document.get("error") if isinstance(document, dict) else None
    if not isinstance(fields, dict):
        return HubError(
            f"the response with status {status} is not from a hub.",
            "Check the hub's address.",
            code="unexpected",
            status=status,
        )
    code = str(fields.get("code", "error"))
    kind = BoardLimitExceeded if code == "limit_exceeded" else _KINDS.get(status, HubError)
    message, hint = str(fields.get("message", "")), str(fields.get("hint", ""))
    error = kind(message, hint, code=code, status=status)
    if isinstance(error, BoardLimitExceeded):
        error.boards = tuple(fields.get("boards") or ())
    error.picture = str(fields.get("picture") or "")
    return error
