"""What can be said about a log tree: findings, the facts they rest on, and how both are worded.

The rules from facts to findings are in `symptoms`; gathering the facts is `doctor`'s work.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Literal, NamedTuple

from aboard.index.files import EventFile
from aboard.index.query import Damage, Tag
from aboard.storage.uri import join

Severity = Literal["error", "warning", "info"]

SLOW_WRITE_SECONDS = 0.05
QUICK_POLL, SLOW_POLL, NOBODY_LOOKS = 5, 60, 60
"""Seconds between two looks at a bucket while it changes and while it does not, and after which
nobody is taken to look."""
_SHOWN = 3


class Finding(NamedTuple):
    """Something worth knowing about a source."""

    code: str
    """A name that stays the same, for scripts."""
    severity: Severity
    what: str
    where: tuple[str, ...]
    """The first few places; where there are more, the last one says how many."""
    advice: str


class Steps(NamedTuple):
    """How the steps of a tag follow each other within one file, where they do not just rise."""

    run: str
    tag: str
    uri: str
    points: int
    backwards: int
    back_to: int | None
    """The lowest step it went back to."""
    repeated: int
    lowest: int
    highest: int


class NotFinite(NamedTuple):
    """A tag whose last value is no number, and since when that is so."""

    run: str
    tag: str
    value: float
    since: int
    from_the_start: bool


@dataclass(frozen=True, slots=True)
class Facts:
    """All that the rules look at, of a source that could be read."""

    place: str
    now: float
    runs: Sequence[str] = ()
    files: Sequence[EventFile] = ()
    modified: dict[str, float] = field(default_factory=dict)
    """When files were last written, by URI, as far as the storage says."""
    grown: Collection[str] = ()
    """The URIs of files that grew while they were looked at."""
    tags: Sequence[Tag] = ()
    damage: Sequence[Damage] = ()
    steps: Sequence[Steps] = ()
    not_finite: Sequence[NotFinite] = ()

    def run_of(self, file: EventFile) -> str:
        """Return the name of a file's run."""
        return file.directory[len(self.place.rstrip("/")) + 1 :] or "."

    def written(self, file: EventFile) -> float | None:
        """Return when a file was last written, by its storage or else by its events."""
        return self.modified.get(join(file.directory, file.name), file.last_wall)


def slow_index(path: str, seconds: float, file_system: str = "") -> list[Finding]:
    """Judge the time that a small write to the index takes."""
    if seconds < SLOW_WRITE_SECONDS:
        return []
    disk = f" ({file_system})" if file_system else ""
    return [
        Finding(
            "slow-index",
            "warning",
            f"a small write to the index takes {seconds * 1000:,.0f} ms; a local disk needs a few",
            (f"{path}{disk}",),
            "Set ABOARD_CACHE to a directory on a local disk.",
        )
    ]


def requests(bucket: str, hours: dict[int, tuple[int, int]], pages: int) -> Finding:
    """Say what was asked of a bucket, and what a board of this source will ask.

    Args:
        bucket: its URI.
        hours: requests and bytes by hour, of the last day.
        pages: list requests that one look takes.
    """
    total = sum(count for count, _ in hours.values())
    size = sum(count for _, count in hours.values())
    most = max((count for count, _ in hours.values()), default=0)
    lowest, highest = (pages * 3600 // each for each in (SLOW_POLL, QUICK_POLL))
    return Finding(
        "requests",
        "info",
        f"{counted(total, 'request')} and {size:,} bytes in the last 24 h, at most {most:,}"
        " requests in an hour",
        (bucket,),
        f"A board that is looked at will list it {lowest:,} to {highest:,} times an hour, one read"
        f" more for each file that grew, and not at all once nobody looks for {NOBODY_LOOKS} s.",
    )


def counted(count: int, noun: str) -> str:
    """Write a number and what it counts."""
    return f"{count:,} {noun}{'' if count == 1 else 's'}"


def age(seconds: float) -> str:
    """Write a span of time in its largest unit."""
    for unit, length in (("days", 2 * 86400), ("h", 3600), ("min", 60)):
        if seconds >= length:
            return f"{seconds / (86400 if unit == 'days' else length):,.0f} {unit}"
    return f"{max(0, seconds):.0f} s"


def named(places: Iterable[str]) -> tuple[str, ...]:
    """Name the first few places, and count the rest."""
    held = list(places)
    more = (f"and {len(held) - _SHOWN:,} more",) if len(held) > _SHOWN else ()
    return (*held[:_SHOWN], *more)
