"""The heads of many records at once, with numpy.

The *head* of an event is its wall time and its step, as most writers put them: in
front, the step left out where it is zero, and the summary right behind. What follows
a head and is not the value is the *shape* of the record; see scan.h.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from aboard.events.crc import Ints, everywhere

WALL_KEY, STEP_KEY, SUMMARY_KEY = 0x09, 0x10, 0x2A
_LEAST = 16
"""A record with a head, a shape and a value is at least so long."""


class Heads(NamedTuple):
    """What the heads of records say."""

    walls: npt.NDArray[np.float64]
    steps: Ints
    ends: Ints
    """Where each ends; for a record that has none, where the record ends."""


def read_heads(block: bytes, starts: Ints, ends: Ints) -> Heads:
    """Read the heads of the records whose data stand at `starts` to `ends`."""
    octets = everywhere(block, "u1")
    walls, steps = np.zeros(len(starts)), np.zeros(len(starts), np.int64)
    some = np.flatnonzero((ends - starts >= _LEAST) & (octets[starts] == WALL_KEY))
    walls[some] = everywhere(block, "<f8")[starts[some] + 1]
    at = starts + 9
    unread = some[octets[at[some]] == STEP_KEY]
    at[unread] += 1
    for shift in range(0, 63, 7):  # a longer number is negative, and left to the parser
        if not len(unread):
            break
        digits = octets[at[unread]].astype(np.int64)
        steps[unread] |= (digits & 0x7F) << shift
        at[unread] += 1
        unread = unread[digits >= 0x80]
    at[unread] = ends[unread]
    found = some[octets[at[some]] == SUMMARY_KEY]
    stops = ends.copy()
    stops[found] = at[found]
    return Heads(walls, steps, stops)
