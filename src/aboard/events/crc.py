"""CRC32C of many pieces of a block at once, with numpy.

Computing a checksum is serial, so those of many pieces advance together, four bytes per step. A
long piece is passed to google-crc32c or, if that is not installed, cut into lanes whose results are
combined, since a checksum is linear. For the same reason the checksum of any piece follows from
those of the bytes before its start and its end, which `Marks` keeps; so overlapping pieces cost no
more than others.
"""

from __future__ import annotations

import functools
from typing import Any

import numpy as np
import numpy.typing as npt

from aboard.events.records import CRC_TABLE, HEADER, MAX_LENGTH, OVERHEAD, library_crc32c

U32 = npt.NDArray[np.uint32]
Ints = npt.NDArray[np.int64]
Octets = npt.NDArray[np.uint8]
Bools = npt.NDArray[np.bool_]

_library = library_crc32c()
_LONG = 256 if _library else 2048  # pieces from this length on are faster one by one
_STRIDE = 64  # between the marks of a block


def everywhere(block: bytes | Octets, kind: str) -> npt.NDArray[Any]:
    """Return a view of a block as overlapping numbers, one at each byte."""
    count = len(block) - np.dtype(kind).itemsize + 1
    return np.ndarray((max(0, count),), kind, block, strides=(1,))


@functools.cache
def _tables() -> tuple[U32, U32, U32]:
    """Return the effect on a checksum of one byte, and of the halves of four bytes."""
    one = np.array(CRC_TABLE, np.uint32)
    by_bytes = [one]
    for _ in range(3):
        by_bytes.append(one[by_bytes[-1] & 0xFF] ^ (by_bytes[-1] >> 8))
    low, high = np.arange(1 << 16) & 0xFF, np.arange(1 << 16) >> 8
    return one, by_bytes[3][low] ^ by_bytes[2][high], by_bytes[1][low] ^ by_bytes[0][high]


def _four_more(states: U32, words: U32) -> U32:
    _, early, late = _tables()
    mixed = states ^ words
    advanced: U32 = early[mixed & 0xFFFF] ^ late[mixed >> 16]
    return advanced


def _advance(states: U32, block: bytes | Octets, starts: Ints, lengths: Ints) -> U32:
    order = np.argsort(-lengths, kind="stable")
    starts, lengths, states = starts[order], lengths[order], states[order]
    words, octets, one = everywhere(block, "<u4"), everywhere(block, "u1"), _tables()[0]
    steps = int(lengths[0]) // 4 if len(lengths) else 0
    # The longest come first, so that each step advances a prefix of them.
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
    crcs = ~states
    return (crcs >> np.uint32(15) | crcs << np.uint32(17)) + np.uint32(0xA282EAD8)


@functools.cache
def _zeros(power: int) -> U32:
    """Return the effect of 2 ** `power` zero bytes on each octet of a state; effects add up."""
    octets = np.arange(256, dtype=np.uint32) << (8 * np.arange(4, dtype=np.uint32)[:, None])
    if power:
        return _after_zeros(_after_zeros(octets, power - 1), power - 1)
    return _advance(
        octets.ravel(), np.zeros(1, np.uint8), np.zeros(1024, np.int64), np.ones(1024, np.int64)
    ).reshape(4, 256)


def _after_zeros(states: U32, power: int) -> U32:
    table = _zeros(power)
    moved: U32 = table[0, states & 0xFF] ^ table[1, states >> 8 & 0xFF]
    moved ^= table[2, states >> 16 & 0xFF] ^ table[3, states >> 24]
    return moved


def _moved(states: U32, lengths: Ints) -> U32:
    """Advance each checksum by a number of zero bytes."""
    states = states.copy()
    for power in range(int(lengths.max(initial=0)).bit_length()):
        some = np.flatnonzero(lengths >> power & 1)
        states[some] = _after_zeros(states[some], power)
    return states


class Marks:
    """The checksums of everything before evenly spaced places of a block."""

    def __init__(self, block: bytes) -> None:
        self._block = block

    @functools.cached_property
    def _states(self) -> U32:
        count = len(self._block) // _STRIDE
        lengths = np.full(count, _STRIDE, np.int64)
        states = _advance(
            np.zeros(count, np.uint32), self._block, np.arange(count) * _STRIDE, lengths
        )
        # Join each with the one before, then pairs with the pairs before, and so on.
        for doubling in range(max(0, count - 1).bit_length()):
            reach = 1 << doubling
            power = doubling + _STRIDE.bit_length() - 1
            states[reach:] ^= _after_zeros(states[:-reach], power)
        return np.concatenate([np.zeros(1, np.uint32), states])

    def advanced(self, starts: Ints, lengths: Ints) -> U32:
        before, behind = self._until(starts), self._until(starts + lengths)
        return _moved(before ^ np.uint32(0xFFFFFFFF), lengths) ^ behind

    def _until(self, places: Ints) -> U32:
        marks = places // _STRIDE
        return _advance(self._states[marks], self._block, marks * _STRIDE, places % _STRIDE)


def of_long_piece(data: bytes) -> int:
    if _library is not None:
        return _library(data)
    piece = np.frombuffer(data, np.uint8)
    lanes = int(len(piece) ** 0.5)
    width = len(piece) // lanes
    states = np.zeros(lanes, np.uint32)
    states[:1] = _fresh(1)
    states = _advance(states, piece, np.arange(lanes) * width, np.full(lanes, width))
    left = np.array([lanes * width])
    while len(states) > 1:
        if len(states) % 2:
            states = np.concatenate([np.zeros(1, np.uint32), states])
        states = _moved(states[::2], np.full(len(states) // 2, width)) ^ states[1::2]
        width *= 2
    return int(_advance(states, piece, left, len(piece) - left)[0]) ^ 0xFFFFFFFF


def verify(block: bytes, bounds: Ints) -> int:
    """Return how many records come before the first bad one; `bounds` includes the last end."""
    starts, lengths = bounds[:-1], np.diff(bounds) - OVERHEAD
    of_data = _fresh(len(starts))
    is_long = lengths >= _LONG
    short = np.flatnonzero(~is_long)
    of_data[short] = _advance(of_data[short], block, starts[short] + HEADER, lengths[short])
    for place in np.flatnonzero(is_long):
        data = block[starts[place] + HEADER : bounds[place + 1] - 4]
        of_data[place] = of_long_piece(data) ^ 0xFFFFFFFF
    return _good_until(_has_header(block, starts) & _ends_with(block, starts, lengths, of_data))


def have_checksums(block: bytes, starts: Ints, lengths: Ints, marks: Marks) -> Bools:
    if not len(starts):
        return np.zeros(0, bool)
    return _ends_with(block, starts, lengths, marks.advanced(starts + HEADER, lengths))


def _has_header(block: bytes, starts: Ints) -> Bools:
    words = everywhere(block, "<u4")
    of_length = _four_more(_fresh(len(starts)), words[starts])
    same: Bools = _masked(_four_more(of_length, words[starts + 4])) == words[starts + 8]
    return same


def _ends_with(block: bytes, starts: Ints, lengths: Ints, states: U32) -> Bools:
    same: Bools = _masked(states) == everywhere(block, "<u4")[starts + HEADER + lengths]
    return same


def _good_until(good: Bools) -> int:
    bad = np.flatnonzero(~good)
    return int(bad[0]) if len(bad) else len(good)


def headers(block: bytes, start: int, stop: int) -> Ints:
    """Return every place from `start` to `stop` where the header of a record may begin."""
    words = everywhere(block, "<u4")
    stop = min(stop, len(block) - HEADER + 1)
    low, high, stored = (words[start + shift : stop + shift] for shift in (0, 4, 8))
    likely = np.flatnonzero((high == 0) & (low <= MAX_LENGTH))
    crcs = _masked(_four_more(_four_more(_fresh(len(likely)), low[likely]), high[likely]))
    places: Ints = start + likely[crcs == stored[likely]]
    return places


def running(state: int, data: bytes) -> int:
    """Add bytes to an unfinished checksum, which begins with all bits set."""
    state_of_zeros = _moved(np.array([state ^ 0xFFFFFFFF], np.uint32), np.array([len(data)]))
    return int(state_of_zeros[0]) ^ of_long_piece(data) ^ 0xFFFFFFFF
