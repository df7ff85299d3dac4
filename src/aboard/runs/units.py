"""Times, durations, sizes and counts as users write and read them.

Units may be in upper or lower case: `3M` is three minutes in a duration and three mebibytes in a
size. A number without a unit is seconds or bytes. `format_duration` and `format_exact_size` are
exact, for limits that a user compares or writes again. The other formats are rounded, for reading.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from functools import lru_cache
from typing import ClassVar

from aboard.runs import RunsError

_LONGEST = 36500 * 86400.0  # seconds: later times have no date
_SECONDS = {
    name: seconds
    for names, seconds in (
        (("", "s", "sec", "secs", "second", "seconds"), 1),
        (("m", "min", "mins", "minute", "minutes"), 60),
        (("h", "hour", "hours"), 3600),
        (("d", "day", "days"), 86400),
        (("w", "week", "weeks"), 604800),
    )
    for name in names
}
_BYTES = {"": 1, "b": 1, "kb": 10**3, "mb": 10**6, "gb": 10**9, "tb": 10**12}
_BYTES |= {"k": 1 << 10, "m": 1 << 20, "g": 1 << 30, "t": 1 << 40}
_BYTES |= {"kib": 1 << 10, "mib": 1 << 20, "gib": 1 << 30, "tib": 1 << 40}
_AMOUNT = re.compile(r"(\d{1,15}(?:\.\d{1,9})?)\s*([A-Za-z]{0,7})", re.ASCII)

_Units = Sequence[tuple[int, str]]
_TIMES: _Units = ((86400, "d"), (3600, "h"), (60, "m"), (1, "s"))
_SIZES: _Units = ((1 << 30, "GiB"), (1 << 20, "MiB"), (1 << 10, "KiB"), (1, "B"))
_DECIMAL = ("B", "kB", "MB", "GB", "TB", "PB")


FIRST_TIME = datetime(1, 1, 1, tzinfo=UTC).timestamp()  # with a date
LAST_TIME = datetime(9999, 12, 31, 23, 59, 59, tzinfo=UTC).timestamp()


class BadAmount(RunsError):
    """Not a duration or a size."""

    code: ClassVar[str] = "bad_value"


def parse_duration(value: str | float) -> float:
    """Return the seconds of a number, `90`, `90m` or `1.5 days`.

    Raises:
        BadAmount: it is not a duration, or is longer than a hundred years.
    """
    seconds = _parse(value, _SECONDS)
    if seconds is None:
        hint = "Write seconds, or a number with s, m, h, d or w: 90m."
        raise BadAmount(f"{str(value)[:40]!r} is not a duration.", hint)
    if seconds > _LONGEST:
        raise BadAmount(f"{value!r} is too long.", "Use at most 36500d.")
    return seconds


def seconds_in(text: str) -> float | None:
    """Return the seconds of a duration of any length; None for any other text."""
    return _parse(text, _SECONDS)


def parse_size(value: str | float) -> int:
    """Return the bytes of a number, `512`, `2GiB` or `1.5 GB`.

    Raises:
        BadAmount: it is not a size.
    """
    size = _parse(value, _BYTES)
    if size is None:
        hint = "Write bytes, or a number with MiB or GiB: 2GiB."
        raise BadAmount(f"{str(value)[:40]!r} is not a size.", hint)
    return int(size)


def _parse(value: str | float, units: Mapping[str, int]) -> float | None:
    if not isinstance(value, str):
        return float(value) if math.isfinite(value) else None
    found = _AMOUNT.fullmatch(value.strip())
    unit = units.get(found[2].lower()) if found else None
    return None if found is None or unit is None else float(found[1]) * unit


def format_duration(seconds: float) -> str:
    """Format in the largest unit without a fraction, as `parse_duration` parses it: `90m`."""
    return _exact(round(seconds, 6), _TIMES)  # a difference of two times has an error


def format_exact_size(size: float) -> str:
    """Format in the largest unit without a fraction, as `parse_size` parses it: `1536MiB`."""
    return _exact(size, _SIZES)


def _exact(amount: float, units: _Units) -> str:
    for size, unit in units:
        if amount >= size and amount % size == 0:
            return f"{amount / size:.15g}{unit}"
    return f"{amount:.15g}{units[-1][1]}"


def format_elapsed(seconds: float) -> str:
    """Format how long something took: `0.25 s`, `1 min 05 s`, `2 h 30 min`."""
    if seconds < 60:
        return f"{seconds:.2f} s"
    minutes, seconds = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes:02} min" if hours else f"{minutes} min {seconds:02} s"


def format_age(seconds: float) -> str:
    """Format roughly how long ago something was: `119s`, `3h`, `2d`."""
    for size, unit in _TIMES:
        if seconds >= 2 * size:
            return f"{seconds / size:,.0f}{unit}"
    return f"{seconds:.0f}s"


def format_size(size: int) -> str:
    """Format the size of files, in powers of 1000: `43.9 MB`."""
    amount = float(size)
    for unit in _DECIMAL:
        if amount < 999.5 or unit == _DECIMAL[-1]:
            break
        amount /= 1000
    if unit == "B":
        return f"{size} B"
    return f"{amount:.{max(0, 2 - int(math.log10(max(amount, 1))))}f} {unit}"


def format_memory(size: float, limit: float | None = None) -> str:
    """Format an amount of memory, in powers of 1024, in the unit of its limit: `0.5 GiB`."""
    if (size if limit is None else limit) >= 1 << 30:
        return f"{size / (1 << 30):.1f} GiB"
    return f"{size / (1 << 20):.1f} MiB"


def counted(count: int, noun: str) -> str:
    return f"{count:,} {noun}{'' if count == 1 else 's'}"


def format_time(moment: float | None) -> str | None:
    """Format a time in UTC: `2026-01-31T09:30:00.250Z`, without what is below a millisecond."""
    if moment is None:
        return None
    moment = min(max(moment, FIRST_TIME), LAST_TIME)
    minute, rest = divmod(round(moment * 1e6) // 1000, 60_000)
    return f"{_minute(minute)}:{rest // 1000:02}.{rest % 1000:03}Z"


@lru_cache(1024)  # lists have thousands of times
def _minute(number: int) -> str:
    return datetime.fromtimestamp(60 * number, UTC).isoformat()[:16]
