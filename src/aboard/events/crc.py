"""CRC32C of many pieces of a block at once, with numpy.

Checksums are inherently serial, so those of many pieces are advanced together, four
bytes per step, and the shorter ones drop out first; a long piece is cut into lanes
that are advanced together and then joined, a checksum being linear.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator
from typing import Any

import numpy as np
import numpy.typing as npt

from aboard.events.records import CRC_TABLE, HEADER, MAX_LENGTH, OVERHEAD

U32 = npt.NDArray[np.uint32]
Ints = npt.NDArray[np.int64]
Octets = npt.NDArray[np.uint8]

_LONG = 2048
"""Pieces from this length on are cut into lanes."""
_SLAB = 1 << 16
"""How many places of a block are searched for a header at once."""


def everywhere(block: bytes | Octets, kind: str) -> npt.NDArray[Any]:
    """Return the number of a kind that stands at each place of a block, aligned or not."""
    count = len(block) - np.dtype(kind).itemsize + 1
    return np.ndarray((max(0, count),), kind, block, strides=(1,))


@functools.cache
def _tables() -> tuple[U32, U32, U32]:
    """Return what one byte does to a checksum, and what the halves of four bytes do."""
    one = np.array(CRC_TABLE, np.uint32)
    by_bytes = [one]
    for _ in range(3):
        by_bytes.append(one[by_bytes[-1] & 0xFF] ^ (by_bytes[-1] >> 8))
    low, high = np.arange(1 << 16) & 0xFF, np.arange(1 << 16) >> 8
    return one, by_bytes[3][low] ^ by_bytes[2][high], by_bytes[1][low] ^ by_bytes[0][high]


def _four_more(states: U32, words: U32) -> U32:
    """Advance each checksum by four bytes."""
    _, early, late = _tables()
    mixed = states ^ words
    advanced: U32 = early[mixed & 0xFFFF] ^ late[mixed >> 16]
    return advanced


def _advance(states: U32, block: bytes | Octets, starts: Ints, lengths: Ints) -> U32:
    """Advance each checksum by the bytes of its piece."""
    order = np.argsort(-lengths, kind="stable")
    starts, lengths, states = starts[order], lengths[order], states[order]
    words, octets, one = everywhere(block, "<u4"), everywhere(block, "u1"), _tables()[0]
    steps = int(lengths[0]) // 4 if len(lengths) else 0
    # The longest come first, so that those which a step concerns are the first so many.
    concerned = np.searchsorted(-lengths, np.arange(-4, -4 * steps - 1, -4), side="right")
    for step, count in enumerate(concerned.tolist()):
        states[:count] = _four_more(states[:count], words[starts[:count] + 4 * step])
    for rest in range(3):
        some = np.flatnonzero(lengths % 4 > rest)
        mixed = states[some] ^ octets[starts[some] + lengths[some] // 4 * 4 + rest]
        states[some] = one[mixed & 0xFF] ^ (states[some] >> 8)
    advanced = np.empty_like(states)
    advanced[order] = states
    return advanced


def _fresh(count: int) -> U32:
    return np.full(count, 0xFFFFFFFF, np.uint32)


def _masked(states: U32) -> U32:
    """Return checksums that have come to their end in the form in which they are stored."""
    crcs = ~states
    return (crcs >> np.uint32(15) | crcs << np.uint32(17)) + np.uint32(0xA282EAD8)


def _advanced_by_long(piece: Octets) -> int:
    """Return a fresh checksum, advanced by one long piece."""
    lanes = int(len(piece) ** 0.5)
    width = len(piece) // lanes
    states = np.zeros(lanes, np.uint32)
    states[:1] = _fresh(1)
    states = _advance(states, piece, np.arange(lanes) * width, np.full(lanes, width))
    # What `width` zero bytes do to each bit of a state; a state is a sum of its bits.
    bits = np.uint32(1) << np.arange(32, dtype=np.uint32)
    shifts = _advance(bits, np.zeros(width, np.uint8), np.zeros(32, np.int64), np.full(32, width))
    total = int(states[0])
    for state in states[1:]:
        moved = 0
        for bit in range(32):
            if total >> bit & 1:
                moved ^= int(shifts[bit])
        total = moved ^ int(state)
    left = np.array([lanes * width])
    return int(_advance(np.array([total], np.uint32), piece, left, len(piece) - left)[0])


def verify(block: bytes, bounds: Ints) -> int:
    """Return how many records are good before the first bad one.

    Args:
        block: the bytes.
        bounds: where each record starts, and at the end where the last one ends.
    """
    words = everywhere(block, "<u4")
    starts, lengths = bounds[:-1], np.diff(bounds) - OVERHEAD
    of_length = _four_more(_fresh(len(starts)), words[starts])
    good = _masked(_four_more(of_length, words[starts + 4])) == words[starts + 8]
    of_data = _fresh(len(starts))
    is_long = lengths >= _LONG
    short = np.flatnonzero(~is_long)
    of_data[short] = _advance(of_data[short], block, starts[short] + HEADER, lengths[short])
    for place in np.flatnonzero(is_long):
        data = np.frombuffer(block, np.uint8)[starts[place] + HEADER : bounds[place + 1] - 4]
        of_data[place] = _advanced_by_long(data)
    good &= _masked(of_data) == words[bounds[1:] - 4]
    bad = np.flatnonzero(~good)
    return int(bad[0]) if len(bad) else len(starts)


def headers(block: bytes, at: int) -> Iterator[int]:
    """Yield every place from `at` on where the header of a record may stand."""
    words = everywhere(block, "<u4")
    last = len(block) - HEADER
    while at <= last:
        low, high, stored = (
            words[at + shift : min(at + _SLAB, last + 1) + shift] for shift in (0, 4, 8)
        )
        crcs = _masked(_four_more(_four_more(_fresh(len(low)), low), high))
        for place in np.flatnonzero((crcs == stored) & (high == 0) & (low <= MAX_LENGTH)):
            yield at + int(place)
        at += _SLAB
