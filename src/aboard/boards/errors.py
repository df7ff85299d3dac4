"""The errors of boards and their registry.

Each has a code for the API, one line that says what is wrong, and a hint what to do.
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
    """There is no such thing, or the user may not see it."""

    code = "not_found"


class Ambiguous(BoardsError):  # noqa: N818 - named by what is wrong
    """A prefix of several ids or names."""

    code = "ambiguous"

    def __init__(self, text: str, matches: Sequence[BoardRecord]) -> None:
        named = ", ".join(f"{board.id} ({board.name})" for board in matches[:5])
        more = f" and {len(matches) - 5} more" if len(matches) > 5 else ""
        super().__init__(
            f"{text!r} means several boards: {named}{more}.", "Write more of the name or id."
        )
        self.matches = tuple(matches)


class Conflict(BoardsError):  # noqa: N818 - named by what is wrong
    """Another request changed the same thing meanwhile; read it again."""

    code = "conflict"


class IllegalTransition(Conflict):
    """A transition that the state of a board does not allow."""

    code = "illegal_transition"


class NameTaken(Conflict):
    """A name that another live board of the owner, or another user, has."""

    code = "name_taken"


class IdempotencyMismatch(Conflict):
    """An idempotency key that was used for a different board."""

    code = "idempotency_mismatch"


class BadValue(BoardsError):  # noqa: N818 - named by what is wrong
    """A value that cannot be used."""

    code = "bad_value"


class BoardLimitExceeded(BoardsError):  # noqa: N818 - named by what is wrong
    """More than a user may have; `boards` are those that count, oldest first."""

    code = "limit_exceeded"

    def __init__(self, message: str, hint: str = "", boards: Sequence[BoardRecord] = ()) -> None:
        super().__init__(message, hint)
        self.boards = tuple(boards)


class Busy(BoardsError):  # noqa: N818 - named by what is wrong
    """More work than is done at once; the same call may work later."""

    code = "busy"


class DatabaseUnavailable(BoardsError):  # noqa: N818 - named by what is wrong
    """The database does not answer at the moment; the same call may work later."""

    code = "database_unavailable"


class BadDatabase(BoardsError):  # noqa: N818 - named by what is wrong
    """A database that this version cannot use, now or later."""

    code = "bad_database"
