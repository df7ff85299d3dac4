"""What somebody asks for when he asks for a board, checked before anything remembers it."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Any, TypeVar

from aboard.boards.errors import BadValue
from aboard.boards.model import INSTANT, Engine, Visibility
from aboard.boards.names import check_name

MOST_SELECTORS = 10_000
LONGEST_TEXT = 4096
_LARGEST = 2**62
_CHANGEABLE = frozenset(
    {
        *("name", "title", "template", "selectors", "sources", "visibility"),
        *("memory", "timeout", "idle_timeout", "expires", "handle", "outcome"),
    }
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """A board that is asked for; see `BoardRecord` for what the fields mean.

    None stands for what is not said: a name is made up, and limits are the hub's own.
    """

    owner: str
    selectors: tuple[str, ...]
    sources: tuple[str, ...] = ()
    name: str | None = None
    template: str = ""
    title: str = ""
    engine: Engine = Engine.FAST
    on: str = INSTANT
    memory: int | None = None
    timeout: float | None = None
    idle_timeout: float | None = None
    visibility: Visibility = Visibility.PRIVATE


def checked(wanted: Wanted) -> Wanted:
    """Return what is wanted in its usual form.

    Raises:
        BadValue: something in it cannot be meant.
    """
    selectors = check_texts(wanted.selectors, "a selector")
    if not selectors:
        raise BadValue("a board needs at least one selector.", "Name a run, a path or a URI.")
    for what in ("owner", "on"):
        if not check_text(getattr(wanted, what), what):
            raise BadValue(f"{what} is empty.", "Say what it is.")
    return replace(
        wanted,
        selectors=selectors,
        sources=check_texts(wanted.sources, "a source"),
        name=None if wanted.name is None else check_name(wanted.name),
        template=check_text(wanted.template, "the template"),
        title=check_text(wanted.title, "the title"),
        engine=choice(Engine, wanted.engine, "engine"),
        visibility=choice(Visibility, wanted.visibility, "visibility"),
        memory=None if wanted.memory is None else int(check_number(wanted.memory, "memory")),
        timeout=_optional(wanted.timeout, "timeout"),
        idle_timeout=_optional(wanted.idle_timeout, "idle_timeout"),
    )


def checked_changes(changes: Mapping[str, Any]) -> dict[str, Any]:
    """Return new values for the fields of a board in their usual form.

    Raises:
        BadValue: a field cannot be changed, or a value cannot be meant.
    """
    if wrong := sorted(changes.keys() - _CHANGEABLE):
        raise BadValue(
            f"{', '.join(wrong)} cannot be changed.",
            f"These can: {', '.join(sorted(_CHANGEABLE))}.",
        )
    checks: dict[str, Callable[[Any], Any]] = {
        "name": check_name,
        "title": lambda value: check_text(value, "the title"),
        "template": lambda value: check_text(value, "the template"),
        "selectors": lambda value: check_texts(value, "a selector"),
        "sources": lambda value: check_texts(value, "a source"),
        "visibility": lambda value: choice(Visibility, value, "visibility"),
    }
    done = {name: checks.get(name, lambda same: same)(value) for name, value in changes.items()}
    if done.get("selectors") == ():
        raise BadValue("a board needs at least one selector.", "Stop it instead: aboard stop")
    return done


def is_plain(text: str) -> bool:
    """Say whether every database can hold a text: no NUL, no half of a surrogate pair."""
    return "\0" not in text and not any("\ud800" <= character <= "\udfff" for character in text)


def plain(text: str) -> str:
    """Return a text as every database can hold it."""
    return text if is_plain(text) else "".join(filter(is_plain, text))


def check_text(text: str, what: str) -> str:
    """Return a text that can be kept.

    Raises:
        BadValue: it is too long, or has characters that stand for nothing.
    """
    if len(text) <= LONGEST_TEXT and is_plain(text):
        return text
    raise BadValue(
        f"{what} cannot be kept: {text[:40]!r}…",
        f"Use at most {LONGEST_TEXT} characters, none of them NUL.",
    )


def check_texts(texts: Iterable[str], what: str) -> tuple[str, ...]:
    """Return texts that can be kept, without spaces around them, each once, in their order.

    Raises:
        BadValue: there are too many, or one cannot be kept.
    """
    kept = dict.fromkeys(check_text(text, what).strip() for text in texts)
    kept.pop("", None)
    if len(kept) > MOST_SELECTORS:
        raise BadValue(
            f"{len(kept)} times {what} is more than {MOST_SELECTORS}.",
            "Name what they have in common, such as their directory.",
        )
    return tuple(kept)


def check_number(number: float, what: str) -> float:
    """Return a number that can be a limit.

    Raises:
        BadValue: it is negative, endless or not a number.
    """
    if math.isfinite(number) and 0 <= number <= _LARGEST:
        return number
    raise BadValue(f"{what} cannot be {number}.", "Use 0 for no limit, or a number above it.")


Choice = TypeVar("Choice", bound=StrEnum)


def choice(kind: type[Choice], value: str, what: str) -> Choice:
    """Return one of a few values.

    Raises:
        BadValue: it is none of them.
    """
    try:
        return kind(value)
    except ValueError:
        known = ", ".join(kind)
        raise BadValue(f"{what} cannot be {value[:80]!r}.", f"Use one of: {known}.") from None


def _optional(seconds: float | None, what: str) -> float | None:
    return None if seconds is None else float(check_number(seconds, what))
