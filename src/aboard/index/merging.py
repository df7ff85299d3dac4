"""Small chunks put together, so that a segment which grows point by point has few.

Chunks are joined as they are and never cut: bytes behind bytes, steps that go on
rising evenly by their first and their stride. No value is looked at, so that a
first reading needs no numpy; `scanner.Chunk` says how a chunk is laid out.
"""

from __future__ import annotations

import struct
from array import array
from collections.abc import Sequence
from itertools import repeat

from aboard.events.scanner import CHUNK_VALUES, Chunk


def to_merge(tail: Sequence[int], new: Sequence[int]) -> int:
    """Return how many of the last chunks to merge with those that follow them.

    Args:
        tail: the sizes of the last chunks, the very last one at the end.
        new: the sizes of the new chunks.

    Chunks that are smaller than twice what follows them are merged, so that each
    point is rewritten few times; those that have no room for the next are left alone.
    """
    merged, total = 0, sum(new)
    for size in reversed(tail):
        if size >= CHUNK_VALUES or size > 2 * total:
            break
        merged, total = merged + 1, total + size
    sizes = [*tail, new[0]]
    while merged and sizes[-merged - 1] + sizes[-merged] > CHUNK_VALUES:
        merged -= 1
    return merged


def merge(chunks: Sequence[Chunk]) -> list[Chunk]:
    """Join chunks that follow each other, as long as they have room in one."""
    groups: list[list[Chunk]] = []
    room = 0
    for chunk in chunks:
        if chunk.size > room:
            groups.append([])
            room = CHUNK_VALUES
        groups[-1].append(chunk)
        room -= chunk.size
    return [_joined(group) if len(group) > 1 else group[0] for group in groups]


def _joined(chunks: Sequence[Chunk]) -> Chunk:
    widths = {len(chunk.payload) // chunk.size for chunk in chunks}
    payloads = [chunk.payload if len(widths) == 1 else _widened(chunk) for chunk in chunks]
    return Chunk(
        sum(chunk.size for chunk in chunks),
        _joined_steps(chunks),
        b"".join(chunk.walls for chunk in chunks),
        b"".join(payloads),
    )


def _widened(chunk: Chunk) -> bytes:
    """Return the values of points as 64-bit floats."""
    if len(chunk.payload) == 8 * chunk.size:
        return chunk.payload
    return array("d", array("f", chunk.payload)).tobytes()


def _joined_steps(chunks: Sequence[Chunk]) -> bytes:
    """Join steps; those of a whole rise evenly if all parts do, each where the last left off."""
    starts = [_first_steps(chunk) for chunk in chunks]
    first, second, *_ = (step for start in starts for step in start)
    stride = second - first
    at, even = 0, stride >= 0
    for chunk, start in zip(chunks, starts, strict=True):
        expected = [first + stride * (at + i) for i in range(len(start))]
        even = even and start == expected and (chunk.size < 3 or _is_short(chunk))
        at += chunk.size
    if even and at > 2:
        return struct.pack("2q", first, stride)
    return b"".join(map(_all_steps, chunks))


def _is_short(chunk: Chunk) -> bool:
    """Say whether the steps of a chunk are told by the first and the stride."""
    return len(chunk.steps) < 8 * chunk.size


def _first_steps(chunk: Chunk) -> list[int]:
    """Return the first two steps of a chunk, or its only one."""
    if chunk.size == 1:
        return list(struct.unpack("q", chunk.steps))
    first, second = struct.unpack_from("2q", chunk.steps)
    return [first, first + second if _is_short(chunk) else second]


def _all_steps(chunk: Chunk) -> bytes:
    if not _is_short(chunk):
        return chunk.steps
    first, stride = struct.unpack("2q", chunk.steps)
    last = first + stride * (chunk.size - 1)
    steps = range(first, last + 1, stride) if stride else repeat(first, chunk.size)
    return array("q", steps).tobytes()
