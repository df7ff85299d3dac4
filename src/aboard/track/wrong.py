"""Complaints about what was given to be logged: they say for which tag."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def about(kind: str, tag: str) -> Iterator[None]:
    """Say of a `TypeError` or `ValueError` which tag it is about."""
    try:
        yield
    except (TypeError, ValueError) as error:
        raise wrong(kind, tag, error) from error


def wrong(kind: str, tag: str, error: Exception) -> Exception:
    """Return the complaint with the tag in front."""
    told = TypeError if isinstance(error, TypeError) else ValueError
    return told(f"{kind} {tag!r}: {error}")
