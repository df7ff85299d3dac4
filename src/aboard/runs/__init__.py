"""Runs apart from their events: records, layout below a root, names, selectors and questions."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import islice
from typing import ClassVar

_LONGEST_COMPARED = 200  # characters of a name for which the nearest is found
_MOST_COMPARED = 5000  # names compared to find the nearest, at tens of microseconds each
_LEAST_PREFIX = 3  # characters of a name that may be the beginning of another


class HintedError(Exception):
    """What is wrong and what to do; `code` is for programs, the rest for people."""

    code: ClassVar[str] = "error"

    def __init__(self, message: str, hint: str = "") -> None:
        super().__init__(message, hint)
        self.message = message
        self.hint = hint

    def __str__(self) -> str:
        return f"{self.message} {self.hint}".rstrip()


class RunsError(HintedError, ValueError):
    """Invalid selectors, questions or templates."""


def nearest(name: str, names: Iterable[str], *, cutoff: float = 0.6) -> str:
    """Return the only name that begins with a text, or the most similar one; empty if none is.

    Of many names only the first are compared, and none with a very long text.
    """
    if len(name) > _LONGEST_COMPARED:
        return ""
    compared = list(islice(names, _MOST_COMPARED))
    longer = {one for one in compared if one.startswith(name)}
    if len(name) >= _LEAST_PREFIX and len(longer) == 1:
        return str(longer.pop())
    from difflib import get_close_matches

    near = get_close_matches(name, compared, n=1, cutoff=cutoff)
    return str(near[0]) if near else ""


def is_number(value: object) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)
