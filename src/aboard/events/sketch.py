"""A few numbers that summarize the points of a chunk, so that a window need not read them all.

A sketch is made where values are decoded, by the C core or its twin, and handed out as bytes.
"""

from __future__ import annotations

import struct
from math import isnan
from typing import NamedTuple

_TOTALS = "qqqddddqdqdqq"
CODES = _TOTALS + "qqddd" + "qd" * 3  # of a sketch's fields, as `struct` and numpy know them
_LAYOUT, _HEAD = struct.Struct(CODES), struct.Struct(_TOTALS)


class Totals(NamedTuple):
    """Of points whose steps rise: numbers that can be added to those of the points behind them.

    `low` and `high` are the smallest and the largest finite value, each at its first step; NaN
    without any.
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
        """Add the totals of what was written later; None if that makes some of the points void."""
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
    """Of the points that a restart within a chunk leaves; `sketch` in pack.h, field by field.

    A point is left if no step at or below its own comes after it, so their steps rise. The totals
    come first. `nan`, `up` and `down` (infinities) are the first of theirs; of no meaning without.
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
