"""What a writer has queued, as framed records: scalars many at a time, the rest one by one.

Scalars are what training loops log most, so a run of them is encoded by one call of the C core,
or by its twin in here where the core was not compiled (or ABOARD_PURE_PYTHON is set). Everything
was checked when it was queued; nothing in here fails.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Container, Iterator, Sequence
from typing import NamedTuple, cast

from aboard.events import encode
from aboard.events.encode import EncodedValue
from aboard.events.records import OVERHEAD, frame

Scalars = tuple[str | tuple[str, ...], float | tuple[float, ...], int, float]
"""A tag and its number, or as many tags as numbers, then step and wall time: one record."""


class Values(NamedTuple):
    """Values of any kind at a step: one record."""

    values: Sequence[EncodedValue]
    step: int
    wall_time: float


Entry = Scalars | Values | bytes
"""One record to be; bytes are a serialized `Event`."""


def python_records(entries: Sequence[object], start: int, /) -> tuple[bytes, int]:
    """Frame the scalars from `start` to the next entry of another kind; return its place too."""
    records = []
    stop = start
    for entry in entries[start:]:
        if not isinstance(entry, tuple) or len(entry) != 4:
            break
        tags, numbers, step, wall_time = cast(Scalars, entry)
        if isinstance(tags, str):
            values = [encode.scalar(tags, cast(float, numbers))]
        else:
            values = list(map(encode.scalar, tags, cast(tuple[float, ...], numbers)))
        records.append(frame(encode.event(wall_time, step, values)))
        stop += 1
    return b"".join(records), stop


def _best_records() -> Callable[[Sequence[object], int], tuple[bytes, int]]:
    if not os.environ.get("ABOARD_PURE_PYTHON"):
        try:
            from aboard.events._encoder import records
        except ImportError:
            pass
        else:
            return records
    return python_records


scalar_records = _best_records()


def values_record(entry: Values, described: Container[str]) -> tuple[bytes, set[str]]:
    """Frame values, with metadata where a tag is not `described`; return the tags that now are."""
    now: set[str] = set()
    once = []
    for value in entry.values:
        once.append(value.bare() if value.tag in described or value.tag in now else value)
        if value.metadata:
            now.add(value.tag)
    return frame(encode.event(entry.wall_time, entry.step, once)), now


def ends(records: bytes | bytearray, start: int = 0, stop: int | None = None) -> Iterator[int]:
    """Yield where each record ends, of those between `start` and `stop`."""
    end = start
    last = len(records) if stop is None else stop
    while end < last:
        end += OVERHEAD + int.from_bytes(records[end : end + 8], "little")
        yield end
