"""Which board is meant by a few letters, and where a page of a listing ends."""

from __future__ import annotations

import base64
import binascii
import json
from collections.abc import Sequence

from aboard.boards.errors import Ambiguous, BadValue, NotFound
from aboard.boards.model import BoardRecord
from aboard.boards.wanted import is_plain


def the_one_meant(text: str, boards: Sequence[BoardRecord], asker: str) -> BoardRecord:
    """Choose from boards, newest first, whose id or name begins with a text.

    Raises:
        NotFound: there are none.
        Ambiguous: several are meant.
    """
    for board in boards:
        if board.id == text:
            return board
    named = [board for board in boards if board.name == text]
    candidates = named or boards
    for preferred in (
        [board for board in candidates if board.is_live and board.owner == asker],
        [board for board in candidates if board.is_live],
        [board for board in candidates if board.owner == asker],
        candidates,
    ):
        if not preferred:
            continue
        is_one = len(preferred) == 1 or (
            bool(named) and len({(board.owner, board.is_live) for board in preferred}) == 1
        )
        if is_one:
            return preferred[0]
        raise Ambiguous(text, preferred)
    raise unknown(text)


def cursor(board: BoardRecord) -> str:
    """Return the place in a listing, newest first, just after a board."""
    text = json.dumps([board.created, board.id])
    return base64.urlsafe_b64encode(text.encode()).decode().rstrip("=")


def position(cursor: str) -> tuple[float, str]:
    """Return when the board before a place was created, and its id.

    Raises:
        BadValue: it is not a place.
    """
    try:
        text = base64.urlsafe_b64decode(cursor + "=" * (-len(cursor) % 4))
        created, board_id = json.loads(text)
        if isinstance(created, float) and isinstance(board_id, str) and is_plain(board_id):
            return created, board_id
    except (binascii.Error, TypeError, ValueError):
        pass
    raise BadValue("the place to go on from is not one that a page gave.", "Begin without it.")


def unknown(text: str) -> NotFound:
    """Return the error for a board that is not there, or not for the one who asks."""
    return NotFound(f"there is no board {text[:80]!r}.", "See which there are: aboard list --all")
