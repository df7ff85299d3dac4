"""Chunks read back: arrays from the blobs of the `chunk` table, and what restarts leave of them.

The scanner lays chunks out, `scanner.Chunk` says how, and the table keeps them as
they come.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

Ints = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Columns:
    """Values of one segment: `payload` has one column for scalars, three for pointers."""

    steps: Ints
    walls: Floats
    payload: Floats | Ints

    def __len__(self) -> int:
        """Return the number of values."""
        return len(self.steps)


def joined(parts: Sequence[Columns]) -> Columns:
    """Return the values of all parts in one."""
    if len(parts) == 1:
        return parts[0]
    return Columns(
        np.concatenate([part.steps for part in parts]),
        np.concatenate([part.walls for part in parts]),
        np.concatenate([part.payload for part in parts]),
    )


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
