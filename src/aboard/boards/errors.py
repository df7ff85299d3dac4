"""What can go wrong with boards and what is remembered of them, as types a program can tell apart.

Each carries a code for the API, one line that says what was wrong, and a hint what to do.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

if TYPE_CHECKING:
    from collections.abc import Sequence

    from aboard.boards.model import BoardRecord


class BoardsError(Exception):
    """Anything a user or a caller can mend.

    Attributes:
        code: what it is, for programs.
        message: what was wrong.
        hint: what to do; may be empty.
    """

    code: ClassVar[str] = "error"

    def __init__(self, message: str, hint: str = "") -> None:
        super().__init__(message, hint)
        self.message = message
        self.hint = hint

    def __str__(self) -> str:
        return f"{self.message} {self.hint}".rstrip()


class NotFound(BoardsError):  # noqa: N818 - named by what is wrong
    """Nothing of that name, or nothing that the one who asks may see."""

    code = "not_found"


class Ambiguous(BoardsError):  # noqa: N818 - named by what is wrong
    """A prefix of several ids or names.

    Attributes:
        matches: the boards that are meant by it.
    """

    code = "ambiguous"

    def __init__(self, text: str, matches: Sequence[BoardRecord]) -> None:
        named = ", ".join(f"{board.id} ({board.name})" for board in matches[:5])
        more = f" and {len(matches) - 5} more" if len(matches) > 5 else ""
        super().__init__(
            f"{text!r} means several boards: {named}{more}.", "Write more of the name or id."
        )
        self.matches = tuple(matches)


class Conflict(BoardsError):  # noqa: N818 - named by what is wrong
    """Somebody else changed the same thing meanwhile; read it again."""

    code = "conflict"


class IllegalTransition(Conflict):
    """A change of state that a board in its state cannot make."""

    code = "illegal_transition"


class NameTaken(Conflict):
    """A name that a live board of the same owner, or another user, has."""

    code = "name_taken"


class IdempotencyMismatch(Conflict):
    """A key for creating a board that was used for a different one before."""

    code = "idempotency_mismatch"


class BadValue(BoardsError):  # noqa: N818 - named by what is wrong
    """A value that cannot be used."""

    code = "bad_value"


class BoardLimitExceeded(BoardsError):  # noqa: N818 - named by what is wrong
    """More than a user may have.

    Attributes:
        boards: the user's boards that count towards the limit, oldest first.
    """

    code = "limit_exceeded"

    def __init__(self, message: str, hint: str = "", boards: Sequence[BoardRecord] = ()) -> None:
        super().__init__(message, hint)
        self.boards = tuple(boards)


class DatabaseUnavailable(BoardsError):  # noqa: N818 - named by what is wrong
    """The database does not answer at the moment; the same call may work later."""

    code = "database_unavailable"


class BadDatabase(BoardsError):  # noqa: N818 - named by what is wrong
    """A database that this version cannot use, now or later."""

    code = "bad_database"
