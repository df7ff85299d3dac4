"""Reading files into batches: the half of a refresh that runs in many threads.

A worker takes one file at a time, scans it block by block and hands over what it
found every so often, so that memory does not grow with the file. Nothing here
touches the index; a batch says what to store and how far it gets the file.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from aboard.events.scanner import Scanned, Scanner, Series, Taken, scan_blocks
from aboard.index.plan import Known, Reading
from aboard.storage.base import Storage

LOCAL_BLOCK = 1 << 20
REMOTE_BLOCK = 4 << 20
BATCH_VALUES = 120_000
"""Values per batch, roughly: 4 MB of columns."""
BATCH_BYTES = 64 << 20
"""Bytes after which there is a batch, however few values are in them."""
TAIL_BYTES = 256
"""How much before the offset must be unchanged for a file to count as continued."""
HEAD_BYTES = 256
"""How much at its beginning must be unchanged, too, for a file that was replaced."""


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
    head: int
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

    def head_of(self, known: Known) -> int:
        """Return the checksum of the first bytes of a file that is continued."""
        if known.offset >= HEAD_BYTES:
            return known.head
        return zlib.crc32(self._held[:HEAD_BYTES])

    def tail_before(self, offset: int, buffer: bytearray, block: Scanned) -> int:
        """Return the checksum of the bytes before `offset`, without a request if they are here."""
        first = max(0, offset - TAIL_BYTES)
        if first >= self._held_start and offset <= self._held_start + len(self._held):
            return zlib.crc32(self._held[first - self._held_start : offset - self._held_start])
        if first >= block.start and offset <= block.start + block.length:
            return zlib.crc32(buffer[first - block.start : offset - block.start])
        return zlib.crc32(self._storage.read(self._name, first, offset))


def read_file(
    reading: Reading, buffer: bytearray, stopped: Callable[[], bool] = lambda: False
) -> Iterator[Batch]:
    """Scan what is new in a file; yield it in batches, at least one.

    Args:
        reading: what to read.
        buffer: room for a block.
        stopped: is asked after every block whether to leave it at that.

    Raises:
        StorageError: the file cannot be read. Batches before that stand.
    """
    reader = _Reader(reading.storage, reading.entry.name, reading.entry.size)
    if not reading.fresh and not _is_continued(reading, reader, len(buffer)):
        reading.fresh, reading.tags = True, []
    known = None if reading.fresh else reading.known
    damage_start = known.damage_start if known else -1
    head = reader.head_of(known) if known else 0
    scanner = Scanner(damage_start, reading.tags)
    stored = scanned = reading.start
    for block in scan_blocks(scanner, reader.readinto, stored, reading.entry.size, buffer):
        if stopped():
            return
        if block.start == 0:
            head = zlib.crc32(buffer[: min(HEAD_BYTES, block.length)])
        looked_at = block.start + block.length - scanned
        if scanner.pending < BATCH_VALUES and looked_at < BATCH_BYTES and not block.at_end:
            continue
        offset, damage_start = scanner.resume(block.reached)
        tail = reader.tail_before(offset, buffer, block)
        values, taken, series = scanner.pending, scanner.take(), scanner.series()
        yield Batch(
            reading=reading,
            taken=taken,
            series=series,
            start=stored,
            offset=offset,
            tail=tail,
            head=head,
            damage_start=damage_start,
            first_wall=scanner.first_wall,
            values=values,
            scanned=looked_at,
            last=block.at_end,
        )
        stored, scanned = offset, block.start + block.length


def _is_continued(reading: Reading, reader: _Reader, room: int) -> bool:
    """Say whether the bytes before the offset are still those that were read.

    The last of them tell, in the request that reads on. Another file in the place of the one that
    was read may end there as that did: then its beginning must be the same as well.
    """
    known = reading.known
    if known is None:
        return False
    first = max(0, known.offset - TAIL_BYTES)
    held = reader.hold(first, TAIL_BYTES + room)
    if zlib.crc32(held[: known.offset - first]) != known.tail:
        return False
    storage, entry = reading.storage, reading.entry
    if first == 0 or not storage.was_replaced(known.version, entry.version):
        return True
    return zlib.crc32(storage.read(entry.name, 0, HEAD_BYTES)) == known.head
