"""The errors of boards and accounts.

Each has a code for the API, a one-line message and a hint.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

if TYPE_CHECKING:
    from collections.abc import Sequence

    from aboard.boards.model import BoardRecord


class BoardsError(Exception):
    """An error that a user or a caller can resolve."""

    code: ClassVar[str] = "error"

    def __init__(self, message: str, hint: str = "") -> None:
        super().__init__(message, hint)
        self.message = message
        self.hint = hint

    def __str__(self) -> str:
        return f"{self.message} {self.hint}".rstrip()


class NoSuchName(BoardsError):  # noqa: N818 - named by what is wrong
    """Not found, or not visible to the user."""

    code = "not_found"


class Ambiguous(BoardsError):  # noqa: N818 - named by what is wrong
    """A prefix that several ids or names share."""

    code = "ambiguous"

    def __init__(self, text: str, matches: Sequence[BoardRecord]) -> None:
        named = ", ".join(f"{board.id} ({board.name})" for board in matches[:5])
        more = f" and {len(matches) - 5} more" if len(matches) > 5 else ""
        super().__init__(f"{text!r} matches several boards: {named}{more}.", "Use a longer prefix.")
        self.matches = tuple(matches)


class Conflict(BoardsError):  # noqa: N818 - named by what is wrong
    """The request conflicts with the current state, or another request changed it first."""

    code = "conflict"


class IllegalTransition(Conflict):
    """A transition that the state of a board does not allow."""

    code = "illegal_transition"


class NameTaken(Conflict):
    """A name already used by a live board of the same owner, or by another user."""

    code = "name_taken"


class IdempotencyMismatch(Conflict):
    """An idempotency key that was used for a different board."""

    code = "idempotency_mismatch"


class BadValue(BoardsError):  # noqa: N818 - named by what is wrong
    """An invalid value."""

    code = "bad_value"


class BoardLimitExceeded(BoardsError):  # noqa: N818 - named by what is wrong
    """A user's limit is exceeded; `boards` are those that count, oldest first."""

    code = "limit_exceeded"

    def __init__(self, message: str, hint: str = "", boards: Sequence[BoardRecord] = ()) -> None:
        super().__init__(message, hint)
        self.boards = tuple(boards)


class Busy(BoardsError):  # noqa: N818 - named by what is wrong
    """Too much work at once; the same call may succeed later."""

    code = "busy"


class DatabaseUnavailable(BoardsError):  # noqa: N818 - named by what is wrong
    """The database does not answer; the same call may succeed later."""

    code = "database_unavailable"


class BadDatabase(BoardsError):  # noqa: N818 - named by what is wrong
    """A database that this version cannot use; retrying does not help."""

    code = "bad_database"
