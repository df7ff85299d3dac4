"""Scanned values, packed: arrays of values to the parts of their series.

The Python twin of pack.h, which says what a part is; `scanner.Chunk` says how its
columns are laid out.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from aboard.events.scanner import CHUNK_VALUES, Chunk, Part

Ints = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]


class Values(NamedTuple):
    """Values in any order: `payload` has one column for points, three for pointers."""

    offsets: Ints
    """Where in the file their records stand; those of one record are in order."""
    series: Ints
    steps: Ints
    walls: Floats
    payload: Floats | Ints


def joined(values: Iterable[Values]) -> Values:
    """Return all of some values in one."""
    return Values(*(np.concatenate(column) for column in zip(*values, strict=True)))


def pack(values: Values, wide: Collection[int]) -> list[Part]:
    """Return the parts of values, by series; points of those not in `wide` take 32 bits each."""
    ordered = _some(values, np.lexsort((values.offsets, values.series)))
    series = ordered.series
    cuts = np.flatnonzero(series[1:] != series[:-1]) + 1
    bounds = [0, *cuts.tolist(), len(series)] if len(series) else []
    return [_part(_some(ordered, slice(*ends)), wide) for ends in pairwise(bounds)]


def _some(values: Values, places: Ints | slice) -> Values:
    return Values._make(column[places] for column in values)


def _part(values: Values, wide: Collection[int]) -> Part:
    series, (_, _, steps, walls, payload) = int(values.series[0]), values
    is_point = payload.ndim == 1
    stored = payload.astype(np.float32) if is_point and series not in wide else payload
    return Part(
        series=series,
        size=len(steps),
        first_step=int(steps[0]),
        last_step=int(steps[-1]),
        min_step=int(steps.min()),
        max_step=int(steps.max()),
        rising=bool((steps[1:] > steps[:-1]).all()),
        last_wall=float(walls[-1]),
        max_wall=float(np.fmax.reduce(walls, initial=-np.inf)),
        last_value=float(payload[-1]) if is_point else None,
        rows=0 if is_point else int(payload[:, 2].max()),
        chunks=list(_chunks(steps, walls, stored)),
    )


def _chunks(steps: Ints, walls: Floats, payload: npt.NDArray[Any]) -> Iterator[Chunk]:
    for start in range(0, len(steps), CHUNK_VALUES):
        cut = slice(start, start + CHUNK_VALUES)
        columns = (_told_briefly(steps[cut]), walls[cut], payload[cut])
        yield Chunk(len(walls[cut]), *(column.tobytes() for column in columns))


def _told_briefly(steps: Ints) -> Ints:
    """Return the first of steps that rise evenly, and their stride; others as they are."""
    if len(steps) < 3:
        return steps
    strides = np.diff(steps)
    if (strides == strides[0]).all() and (steps[1:] >= steps[:-1]).all():
        return np.array([steps[0], strides[0]])
    return steps
