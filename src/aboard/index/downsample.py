"""Fewer points, same picture: what to keep of a long series.

The series is cut into buckets of equal size, and the first, the last, the
smallest and the largest point of each are kept, and its first NaN if it has one:
a spike that exists is a spike that shows.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt


def downsample(values: npt.NDArray[np.float64], limit: int) -> npt.NDArray[np.int64]:
    """Return the places, in order, of at most `limit` points that represent `values`.

    Args:
        values: may hold NaN and infinities; they are values like any other.
        limit: at least 1. A series that is not longer is kept whole.
    """
    if limit < 1:
        raise ValueError(f"cannot sample a series down to {limit} points")
    count = len(values)
    if count <= limit:
        return np.arange(count)
    missing = np.isnan(values)
    per_bucket = 5 if missing.any() else 4
    buckets = limit // per_bucket
    if buckets == 0:
        return _few(values, limit)
    starts = np.arange(buckets) * count // buckets
    ends = np.append(starts[1:], count)
    low = np.where(missing, np.inf, values)
    high = np.where(missing, -np.inf, values)
    bucket = np.repeat(np.arange(buckets), ends - starts)
    kept = [
        starts,
        ends - 1,
        _first_where(low == np.minimum.reduceat(low, starts)[bucket], bucket),
        _first_where(high == np.maximum.reduceat(high, starts)[bucket], bucket),
    ]
    if per_bucket == 5:
        kept.append(_first_where(missing, bucket))
    chosen = np.zeros(count, np.bool_)
    for places in kept:
        chosen[places] = True
    return np.flatnonzero(chosen)


def _first_where(
    chosen: npt.NDArray[np.bool_], bucket: npt.NDArray[np.int64]
) -> npt.NDArray[np.int64]:
    """Return the first chosen place of every bucket that has one."""
    places: npt.NDArray[np.int64] = np.flatnonzero(chosen)
    if not len(places):
        return places
    owner = bucket[places]
    leads: npt.NDArray[np.bool_] = np.append(True, owner[1:] != owner[:-1])
    first: npt.NDArray[np.int64] = places[leads]
    return first


def _few(values: npt.NDArray[np.float64], limit: int) -> npt.NDArray[np.int64]:
    """Return one to four points: the last, the first, the largest, the smallest."""
    finite = ~np.isnan(values)
    order = [len(values) - 1, 0]
    if finite.any():
        order += [
            int(np.argmax(np.where(finite, values, -np.inf))),
            int(np.argmin(np.where(finite, values, np.inf))),
        ]
    return np.unique(order[:limit])
