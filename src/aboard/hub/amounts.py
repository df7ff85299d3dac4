"""Durations and sizes as people write them, and times as the API does: text in, numbers out."""

from __future__ import annotations

import re
from datetime import UTC, datetime

from aboard.boards.errors import BadValue

_SECONDS = {"": 1, "s": 1, "m": 60, "h": 3600, "d": 86400, "w": 604800}
_BYTES = {
    "": 1,
    "b": 1,
    "k": 1 << 10,
    "m": 1 << 20,
    "g": 1 << 30,
    "t": 1 << 40,
    "kib": 1 << 10,
    "mib": 1 << 20,
    "gib": 1 << 30,
    "tib": 1 << 40,
    "kb": 10**3,
    "mb": 10**6,
    "gb": 10**9,
    "tb": 10**12,
}
LONGEST_SECONDS = 36500 * 86400.0
_LAST_MOMENT = 253_402_300_799.0
"""The end of the year 9999, after which RFC 3339 has no name for a time."""
_AMOUNT = re.compile(r"(\d{1,15}(?:\.\d{1,9})?)\s*([A-Za-z]{0,3})", re.ASCII)


def read_seconds(value: str | float, what: str = "a duration") -> float:
    """Return the seconds that `90m`, `7d` or a number mean.

    Raises:
        BadValue: it is none of these.
    """
    seconds = _read(value, _SECONDS, what, "Write seconds, or a number with s, m, h or d: 90m.")
    if seconds > LONGEST_SECONDS:
        raise BadValue(f"{value!r} is too long.", "Use at most 36500d, or 0 for no limit.")
    return seconds


def read_bytes(value: str | float, what: str = "a size") -> int:
    """Return the bytes that `2GiB` or a number mean.

    Raises:
        BadValue: it is none of these.
    """
    return int(_read(value, _BYTES, what, "Write bytes, or a number with MiB or GiB: 2GiB."))


def timestamp(seconds: float | None) -> str | None:
    """Write a time as RFC 3339 does, in UTC."""
    if seconds is None:
        return None
    moment = datetime.fromtimestamp(min(max(seconds, 0.0), _LAST_MOMENT), UTC)
    return moment.isoformat(timespec="milliseconds").replace("+00:00", "Z")


def _read(value: str | float, units: dict[str, int], what: str, hint: str) -> float:
    if not isinstance(value, str):
        return float(value)
    found = _AMOUNT.fullmatch(value.strip())
    unit = units.get(found[2].lower()) if found else None
    if found is None or unit is None:
        raise BadValue(f"{value[:40]!r} is not {what}.", hint)
    return float(found[1]) * unit
