"""CRC32C of many pieces of a block at once, with numpy.

Checksums are inherently serial, so pieces of equal length are laid out as the
rows of a matrix and advanced together, two bytes per step; a long piece is cut
into lanes that are advanced together and then joined, a checksum being linear.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator, Sequence

import numpy as np
import numpy.typing as npt

from aboard.events.records import CRC_TABLE, HEADER, MAX_LENGTH

U32 = npt.NDArray[np.uint32]
Octets = npt.NDArray[np.uint8]

_LONG = 2048
"""Pieces from this length on are cut into lanes."""
_SLAB = 1 << 16
"""How many places of a block are searched for a header at once."""


@functools.cache
def _tables() -> tuple[U32, U32]:
    """Return the tables that advance a checksum by one byte and by two."""
    one = np.array(CRC_TABLE, np.uint32)
    two = one[np.arange(1 << 16) & 0xFF] ^ (np.arange(1 << 16, dtype=np.uint32) >> np.uint32(8))
    return one, one[two & np.uint32(0xFF)] ^ (two >> np.uint32(8))


def _advance(state: U32, rows: Octets) -> U32:
    """Advance one checksum per row by the bytes of that row."""
    one, two = _tables()
    pairs = rows.shape[1] // 2
    words = np.ascontiguousarray(rows[:, : 2 * pairs]).view("<u2").T.astype(np.uint32)
    for word in words:
        state = two[(state ^ word) & np.uint32(0xFFFF)] ^ (state >> np.uint32(16))
    if rows.shape[1] % 2:
        state = one[(state ^ rows[:, -1]) & np.uint32(0xFF)] ^ (state >> np.uint32(8))
    return state


def _start(count: int) -> U32:
    return np.full(count, 0xFFFFFFFF, np.uint32)


def _long_crc(piece: Octets) -> int:
    """Return the CRC32C of one long piece."""
    lanes = int(len(piece) ** 0.5)
    width = len(piece) // lanes
    states = np.zeros(lanes, np.uint32)
    states[0] = 0xFFFFFFFF
    states = _advance(states, piece[: lanes * width].reshape(lanes, width))
    # What `width` zero bytes do to each bit of a state; a state is a sum of its bits.
    shifts = _advance(
        np.uint32(1) << np.arange(32, dtype=np.uint32), np.zeros((32, width), np.uint8)
    )
    total = int(states[0])
    for state in states[1:]:
        moved = 0
        for bit in range(32):
            if total >> bit & 1:
                moved ^= int(shifts[bit])
        total = moved ^ int(state)
    rest = _advance(np.array([total], np.uint32), piece[lanes * width :].reshape(1, -1))
    return int(rest[0]) ^ 0xFFFFFFFF


def _masked(crc: U32) -> U32:
    return (crc >> np.uint32(15) | crc << np.uint32(17)) + np.uint32(0xA282EAD8)


def _crc_rows(rows: Octets) -> U32:
    return ~_advance(_start(len(rows)), rows)


def _gather(octets: Octets, places: npt.NDArray[np.int64], width: int) -> Octets:
    rows: Octets = octets[places[:, None] + np.arange(width)]
    return rows


def _stored(octets: Octets, places: npt.NDArray[np.int64]) -> U32:
    return np.ascontiguousarray(_gather(octets, places, 4)).view("<u4")[:, 0]


def verify(block: bytes, spans: Sequence[tuple[int, int]]) -> int:
    """Return how many of the records at (place, length) are good before the first bad one."""
    if not spans:
        return 0
    octets = np.frombuffer(block, np.uint8)
    places = np.array([span[0] for span in spans], np.int64)
    lengths = np.array([span[1] for span in spans], np.int64)
    good = _masked(_crc_rows(_gather(octets, places, 8))) == _stored(octets, places + 8)
    stored = _stored(octets, places + HEADER + lengths)
    for length in np.unique(lengths):
        same = np.flatnonzero(lengths == length)
        if length < _LONG:
            crcs = _crc_rows(_gather(octets, places[same] + HEADER, int(length)))
        else:
            starts = places[same] + HEADER
            crcs = np.array([_long_crc(octets[at : at + length]) for at in starts], np.uint32)
        good[same] &= _masked(crcs) == stored[same]
    bad = np.flatnonzero(~good)
    return int(bad[0]) if len(bad) else len(spans)


def headers(block: bytes, at: int) -> Iterator[int]:
    """Yield every place from `at` on where the header of a record may stand."""
    octets = np.frombuffer(block, np.uint8)
    last = len(block) - HEADER
    while at <= last:
        stop = min(at + _SLAB, last + 1)
        windows = np.lib.stride_tricks.sliding_window_view(octets[at : stop + 11], HEADER)
        crcs = _masked(_crc_rows(windows[:, :8]))
        stored = np.ascontiguousarray(windows[:, 8:]).view("<u4")[:, 0]
        lengths = np.ascontiguousarray(windows[:, :8]).view("<u8")[:, 0]
        for place in np.flatnonzero((crcs == stored) & (lengths <= MAX_LENGTH)):
            yield at + int(place)
        at = stop
