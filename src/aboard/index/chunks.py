"""Arrays as blobs: how the values of a segment are laid out in the `chunk` table.

A chunk holds the steps, the wall times and a payload of up to 4,096 values. The
payload of scalars is one float column, 32 bits wide where that loses nothing;
that of pointers is three integer columns: offset, length, rows. Steps that rise
evenly are stored as their first value and their stride.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

CHUNK_POINTS = 4096

Ints = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]
Blob = bytes | npt.NDArray[Any]


@dataclass(frozen=True, slots=True)
class Columns:
    """Values of one segment: `payload` has one column for scalars, three for pointers."""

    steps: Ints
    walls: Floats
    payload: Floats | Ints

    def __len__(self) -> int:
        """Return the number of values."""
        return len(self.steps)

    def slice(self, start: int, stop: int) -> Columns:
        """Return the values from `start` up to `stop`."""
        return Columns(self.steps[start:stop], self.walls[start:stop], self.payload[start:stop])


def joined(parts: Sequence[Columns]) -> Columns:
    """Return the values of all parts in one."""
    if len(parts) == 1:
        return parts[0]
    return Columns(
        np.concatenate([part.steps for part in parts]),
        np.concatenate([part.walls for part in parts]),
        np.concatenate([part.payload for part in parts]),
    )


class Chunk(NamedTuple):
    """A row of the `chunk` table, but for its id."""

    points: int
    steps: Blob
    walls: Blob
    payload: Blob


def pack(columns: Columns, *, narrow: bool) -> Chunk:
    """Lay values out as a chunk; `narrow` keeps scalars as 32-bit floats."""
    steps, walls, payload = columns.steps, columns.walls, columns.payload
    if len(steps) > 2:
        gaps = np.diff(steps)
        if (gaps == gaps[0]).all():
            steps = np.array([steps[0], gaps[0]])
    if narrow and payload.ndim == 1:
        return Chunk(len(walls), steps, walls, payload.astype(np.float32))
    return Chunk(len(walls), steps, walls, payload)


def unpack(count: int, steps: bytes, walls: bytes, payload: bytes, *, form: int) -> Columns:
    """Read a chunk back."""
    return Columns(
        unpack_steps(count, steps),
        np.frombuffer(walls, np.float64),
        _unpack_payload(count, payload, form),
    )


def unpack_steps(count: int, steps: bytes) -> Ints:
    """Read the steps of a chunk."""
    stored = np.frombuffer(steps, np.int64)
    if len(stored) == count:
        return stored
    even: Ints = stored[0] + stored[1] * np.arange(count, dtype=np.int64)
    return even


def _unpack_payload(count: int, payload: bytes, form: int) -> Floats | Ints:
    if form:
        return np.frombuffer(payload, np.int64).reshape(count, 3)
    if len(payload) == 4 * count:
        return np.frombuffer(payload, np.float32).astype(np.float64)
    return np.frombuffer(payload, np.float64)


def to_merge(tail: Sequence[int], new: int) -> int:
    """Return how many of the last chunks to merge with `new` values that follow them.

    Args:
        tail: the sizes of the last chunks, the very last one at the end.
        new: the number of new values.

    Chunks that are smaller than twice what follows them are merged, so that a
    segment which grows point by point has few small chunks and each point is
    rewritten few times.
    """
    merged, total = 0, new
    for size in reversed(tail):
        if size >= CHUNK_POINTS or size > 2 * total:
            break
        merged, total = merged + 1, total + size
    return merged


def survivors(steps: Ints) -> npt.NDArray[np.bool_] | None:
    """Say which values a restart leaves: those with no step at or below theirs after them.

    A run that starts again from a checkpoint writes steps it has written before;
    what it wrote the first time is void from there on. None means all survive.
    """
    if len(steps) < 2 or (steps[1:] > steps[:-1]).all():
        return None
    later = np.minimum.accumulate(steps[::-1])[::-1]
    keep = np.ones(len(steps), np.bool_)
    keep[:-1] = steps[:-1] < later[1:]
    return keep


def surviving(parts: Iterable[Columns]) -> Columns | None:
    """Join the parts of a series in their order, and drop what restarts made void."""
    held = [part for part in parts if len(part)]
    if not held:
        return None
    whole = joined(held)
    keep = survivors(whole.steps)
    if keep is None:
        return whole
    return Columns(whole.steps[keep], whole.walls[keep], whole.payload[keep])
