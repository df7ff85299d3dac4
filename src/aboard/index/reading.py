"""Reading files into batches: the half of a refresh that runs in many threads.

A worker takes one file at a time, scans it block by block and hands over what it
found every so often, so that memory does not grow with the file. Nothing here
touches the index; a batch says what to store and how far it gets the file.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterator
from dataclasses import dataclass

from aboard.events.scanner import Scanned, Scanner, Series, Taken, scan_blocks
from aboard.index.plan import Reading
from aboard.storage.base import Storage

LOCAL_BLOCK = 1 << 20
REMOTE_BLOCK = 4 << 20
BATCH_VALUES = 120_000
"""Values per batch, roughly: 4 MB of columns."""
TAIL_BYTES = 256
"""How much before the offset must be unchanged for a file to count as continued."""


@dataclass(slots=True)
class Batch:
    """A part of a file, ready to be stored."""

    reading: Reading
    taken: Taken
    series: list[Series]
    start: int
    offset: int
    """Once this batch is stored, everything before `offset` is in the index."""
    tail: int
    damage_start: int
    first_wall: float | None
    """The wall time of the first event of this reading."""
    values: int
    scanned: int
    """Bytes looked at for this batch."""
    last: bool


class _Reader:
    """Reads one file, in one request where little is new."""

    def __init__(self, storage: Storage, name: str, size: int) -> None:
        self._storage = storage
        self._name = name
        self._size = size
        self._held = b""
        self._held_start = 0

    def hold(self, start: int, length: int) -> bytes:
        """Read ahead and keep the bytes for the reads that follow."""
        self._held = self._storage.read(self._name, start, min(start + length, self._size))
        self._held_start = start
        return self._held

    def readinto(self, offset: int, room: memoryview) -> int:
        begin = offset - self._held_start
        if self._held and begin >= 0 and begin + len(room) <= len(self._held):
            room[:] = self._held[begin : begin + len(room)]
            return len(room)
        self._held = b""
        return self._storage.readinto(self._name, offset, room)

    def tail_before(self, offset: int, buffer: bytearray, block: Scanned) -> int:
        """Return the checksum of the bytes before `offset`, without a request if they are here."""
        first = max(0, offset - TAIL_BYTES)
        if first >= self._held_start and offset <= self._held_start + len(self._held):
            return zlib.crc32(self._held[first - self._held_start : offset - self._held_start])
        if first >= block.start and offset <= block.start + block.length:
            return zlib.crc32(buffer[first - block.start : offset - block.start])
        return zlib.crc32(self._storage.read(self._name, first, offset))


def read_file(reading: Reading, buffer: bytearray) -> Iterator[Batch]:
    """Scan what is new in a file; yield it in batches, at least one.

    Raises:
        StorageError: the file cannot be read. Batches before that stand.
    """
    reader = _Reader(reading.storage, reading.entry.name, reading.entry.size)
    if not reading.fresh and not _is_continued(reading, reader, len(buffer)):
        reading.fresh, reading.tags = True, []
    damage_start = -1 if reading.fresh or reading.known is None else reading.known.damage_start
    scanner = Scanner(damage_start, reading.tags)
    stored = scanned = reading.start
    for block in scan_blocks(scanner, reader.readinto, stored, reading.entry.size, buffer):
        if scanner.pending < BATCH_VALUES and not block.at_end:
            continue
        offset, damage_start = scanner.resume(block.reached)
        tail = reader.tail_before(offset, buffer, block)
        looked_at = block.start + block.length - scanned
        values, taken, series = scanner.pending, scanner.take(), scanner.series()
        yield Batch(
            reading=reading,
            taken=taken,
            series=series,
            start=stored,
            offset=offset,
            tail=tail,
            damage_start=damage_start,
            first_wall=scanner.first_wall,
            values=values,
            scanned=looked_at,
            last=block.at_end,
        )
        stored, scanned = offset, block.start + block.length


def _is_continued(reading: Reading, reader: _Reader, room: int) -> bool:
    """Say whether the bytes before the offset are still those that were read."""
    known = reading.known
    if known is None:
        return False
    first = max(0, known.offset - TAIL_BYTES)
    held = reader.hold(first, TAIL_BYTES + room)
    return zlib.crc32(held[: known.offset - first]) == known.tail
