"""Sketches: a few numbers that summarize the points of a chunk, so that they need not be read.

A sketch is computed when values are decoded, by the C core or its twin, and returned as bytes.
"""

from __future__ import annotations

import struct
from math import isnan
from typing import NamedTuple

_TOTALS = "qqqddddqdqdqq"
CODES = _TOTALS + "qqddd" + "qd" * 3  # of a sketch's fields, for `struct` and numpy
_LAYOUT, _HEAD = struct.Struct(CODES), struct.Struct(_TOTALS)


class Totals(NamedTuple):
    """Totals of points with increasing steps, which can be added to those of later points.

    `low` and `high` are the smallest and the largest finite value, each at its first step; NaN if
    there is none.
    """

    size: int
    first_step: int
    last_step: int
    first_wall: float
    last_wall: float
    last: float
    low: float
    low_step: int
    high: float
    high_step: int
    total: float  # of the finite values
    nans: int
    infinities: int

    @classmethod
    def of(cls, sketch: bytes) -> Totals:
        return cls._make(_HEAD.unpack_from(sketch))

    def followed_by(self, after: Totals) -> Totals | None:
        """Add the totals of later points; None if these supersede some of the points."""
        if after.first_step <= self.first_step:
            return after
        if after.first_step <= self.last_step:
            return None
        low, low_step = self.low, self.low_step
        if after.low < low or isnan(low):
            low, low_step = after.low, after.low_step
        high, high_step = self.high, self.high_step
        if after.high > high or isnan(high):
            high, high_step = after.high, after.high_step
        return Totals(
            self.size + after.size,
            self.first_step,
            after.last_step,
            self.first_wall,
            after.last_wall,
            after.last,
            low,
            low_step,
            high,
            high_step,
            self.total + after.total,
            self.nans + after.nans,
            self.infinities + after.infinities,
        )


class Sketch(NamedTuple):
    """A sketch of the points of a chunk that no restart within it superseded.

    These are the points without an equal or smaller step after them, so their steps increase. The
    fields are those of `sketch` in pack.h, the totals first. `nan`, `up` and `down` (infinities)
    are the first of their kind, without meaning if there is none.
    """

    size: int
    first_step: int
    last_step: int
    first_wall: float
    last_wall: float
    last: float
    low: float
    low_step: int
    high: float
    high_step: int
    total: float
    nans: int
    infinities: int
    ups: int
    downs: int
    first: float
    low_wall: float
    high_wall: float
    nan_step: int
    nan_wall: float
    up_step: int
    up_wall: float
    down_step: int
    down_wall: float

    @classmethod
    def of(cls, stored: bytes) -> Sketch:
        return cls._make(_LAYOUT.unpack(stored))

    def pack(self) -> bytes:
        return _LAYOUT.pack(*self)
