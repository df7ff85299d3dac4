"""Where a growing file is cut into segments, and what the segments are called.

A bucket holds no file that grows, so a file that does is sent as segments: all but the last are
sealed and never change, and only the last is sent again as it grows. Cuts lie between records, or
between lines. Everything here takes bytes and numbers and returns numbers; reading and sending is
left to `sending`.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Callable, Iterable, Mapping
from typing import NamedTuple

from aboard.events.records import HEADER, MAX_LENGTH, OVERHEAD, crc32c, mask, unframe

LARGEST = 8 << 20
"""No segment is larger, unless it is a single record."""
SMALLEST = 64 << 10
"""The last segment is sent again until it has this many bytes."""
OUTPUT = "output.log"
_SHARE = 8
_LARGE = 1 << 20
_RESENT, _RESENT_LARGE = 4, 1
_LONGEST_HEAD = 4096
_SEGMENT = re.compile(r"(?P<generation>\.v(\d{6,}))?(?P<number>\.s(\d{6,}))?")


class Cut(NamedTuple):
    """How far a segment can reach into the bytes that follow it."""

    length: int
    full: bool
    """Whether what comes next is whole and belongs to the next segment."""


Cutter = Callable[[bytes, int, int, bool], Cut]
"""Takes bytes that begin between two units; how many follow in the file, which may be more; the
room that is left in the segment; and whether the segment is empty so far."""


def cutter_of(name: str) -> Cutter | None:
    """Return how a file is cut, or None for one that is sent as a whole."""
    base = name.rpartition("/")[2]
    if "tfevents" in base:
        return after_record
    return after_line if base == OUTPUT else None


def segment_name(name: str, generation: int, number: int) -> str:
    """Return the name of a segment: each sorts after the one before, the first is the file's own.

    A file that was replaced begins another generation, which sorts after all of the one before.
    """
    of_generation = f".v{generation:06}" if generation else ""
    return f"{name}{of_generation}{f'.s{number:06}' if number else ''}"


class Stored(NamedTuple):
    """The segments of a file that a bucket holds."""

    generation: int
    sizes: list[int]


def stored_segments(name: str, listed: Mapping[str, int]) -> Stored | None:
    """Find the segments of a file's latest generation among names and sizes."""
    generations: dict[int, dict[int, int]] = {}
    for one, size in listed.items():
        match = _SEGMENT.fullmatch(one, len(name)) if one.startswith(name) else None
        if match:
            found = generations.setdefault(int(match[2] or 0), {})
            found[int(match[4] or 0)] = size
    if not generations:
        return None
    latest = max(generations)
    sizes: list[int] = []
    while len(sizes) in generations[latest]:
        sizes.append(generations[latest][len(sizes)])
    return Stored(latest, sizes)


def ends_of(sizes: Iterable[int], head: int) -> list[int]:
    """Return where in the file segments of these sizes end; all but the first repeat its head."""
    ends: list[int] = []
    for size in sizes:
        ends.append(ends[-1] + size - head if ends else size)
    return ends


def is_full(size: int, sealed: int, resent: int) -> bool:
    """Say whether a segment is large enough to be sealed.

    Args:
        size: of the segment.
        sealed: bytes of the file in the segments before it. The more, the larger a segment may
            become, so that their number grows with the logarithm of the file's size.
        resent: what was sent of this segment more than once. A file that grows slowly is cut
            sooner, so that this stays a small multiple of the segment's size; the smaller the
            larger that is, since then bytes count for more than the number of objects.
    """
    if size < SMALLEST:
        return False
    bearable = _RESENT_LARGE if size >= _LARGE else _RESENT
    return size >= min(sealed // _SHARE, LARGEST) or resent >= bearable * size


def head_of(block: bytes) -> bytes:
    """Return the record with the file's version, if that is what an event file begins with."""
    length = _length_at(block, 0)
    if length is None or OVERHEAD + length > min(len(block), _LONGEST_HEAD):
        return b""
    record = block[: OVERHEAD + length]
    try:
        return record if b"brain.Event:" in unframe(record) else b""
    except ValueError:
        return b""


def after_record(block: bytes, available: int, room: int, first: bool) -> Cut:
    """Cut after a record that is there to its end."""
    end = 0
    while (unit := _next_unit(block, end, available)) is not None:
        if end + unit > room:
            return Cut(unit, True) if first and not end else Cut(end, True)
        end += unit
    return Cut(end, False)


def _next_unit(block: bytes, start: int, available: int) -> int | None:
    """Return the length of the next whole record, with whatever damage lies before it."""
    if start + HEADER > len(block):
        return None
    length = _length_at(block, start)
    if length is not None:
        total = OVERHEAD + length
        return total if start + total <= available else None
    found = _find_record(block, start + 1, available)
    if found is not None:
        return found - start
    unreadable = LARGEST - _LONGEST_HEAD
    return unreadable if available - start >= unreadable else None


def _length_at(block: bytes, start: int) -> int | None:
    """Return the length of the data of a record that begins here, or None where none does."""
    if start + HEADER > len(block):
        return None
    length, checksum = struct.unpack_from("<QI", block, start)
    if length > MAX_LENGTH or mask(crc32c(block[start : start + 8])) != checksum:
        return None
    return int(length)


def _find_record(block: bytes, start: int, available: int) -> int | None:
    """Return the end of the first good record that begins at `start` or later."""
    # Lengths are below 2**32, so the second half of each is zero.
    place = block.find(bytes(4), start + 4)
    while place >= 0:
        begin = place - 4
        length = _length_at(block, begin)
        if length is not None and begin + OVERHEAD + length <= available:
            return begin + OVERHEAD + length
        place = block.find(bytes(4), place + 1)
    return None


def after_line(block: bytes, available: int, room: int, first: bool) -> Cut:
    """Cut after the end of a line; one that fills a segment is cut anywhere."""
    inside = block[:room]
    end = max(inside.rfind(b"\n"), inside.rfind(b"\r")) + 1
    if end == 0 and first and len(inside) == room:
        end = room
    return Cut(end, available > room)
