"""Between a writer's queue and its files: encodes entries, and writes records.

The C core or its Python twin encodes consecutive scalars in one call. The outbox splits the stream
into files by size, and keeps records that cannot be written, up to a bound; then it drops the
newest ones, so that there are no gaps. An interrupt at any point loses and repeats nothing.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Container, Sequence
from itertools import islice, takewhile
from typing import NamedTuple

from aboard.events import encode
from aboard.events.encode import EncodedValue
from aboard.events.files import EventFiles
from aboard.events.records import compiled, ends, frame

Scalars = tuple[str | tuple[str, ...], float | tuple[float, ...], int, float]
"""A tag and its number, or as many tags as numbers, then step and wall time: one record."""


class Values(NamedTuple):
    values: Sequence[EncodedValue]
    step: int
    wall_time: float


Entry = Scalars | Values | bytes  # becomes one record; bytes are a serialized `Event`


def python_records(entries: Sequence[object], start: int, /) -> tuple[bytes, int]:
    """Frame the scalars from `start` to the next entry of another kind; return also its index."""
    records = []
    stop = start
    for entry in entries[start:]:
        if not isinstance(entry, tuple) or len(entry) != 4:
            break
        tags, numbers, step, wall_time = entry
        if isinstance(tags, str):
            tags, numbers = (tags,), (numbers,)
        values = map(encode.scalar, tags, numbers)
        records.append(frame(encode.event(wall_time, step, values)))
        stop += 1
    return b"".join(records), stop


_core = compiled("aboard.events._encoder")
scalar_records: Callable[[Sequence[object], int], tuple[bytes, int]] = (
    _core.records if _core else python_records
)


def values_record(entry: Values, described: Container[str]) -> tuple[bytes, set[str]]:
    """Frame values, with metadata of tags not in `described`; return also the new such tags."""
    now: set[str] = set()
    once = []
    for value in entry.values:
        once.append(value.bare() if value.tag in described or value.tag in now else value)
        if value.metadata:
            now.add(value.tag)
    return frame(encode.event(entry.wall_time, entry.step, once)), now


_NO_ENTRY = object()


class _Stock(NamedTuple):
    """The state of the outbox. Replaced, never changed: an interrupt sees no partial step."""

    entries: list[Entry]  # taken from the queue; before `at` they are encoded
    at: int
    records: bytearray  # past `end` is what an interrupt left, to be encoded again
    base: int
    end: int  # where `records` begins and ends in the stream of all records
    total: int  # records in that stream
    dropped: int
    dropping: bool


class Outbox:
    def __init__(self, files: EventFiles, max_bytes: int | None, keep_bytes: int) -> None:
        self._files = files
        self._max_bytes = max_bytes  # then another file follows; a failure may make it longer
        self._keep_bytes = keep_bytes  # while nothing can be written
        self._stock = _Stock([], 0, bytearray(), files.taken, files.taken, 0, 0, False)
        self._written = (files.taken, 0)
        """A position in the stream, at or before what is written, and the records before it."""
        self._described: set[str] = set()  # tags whose metadata is in the file, or will be

    def __len__(self) -> int:
        stock = self._stock
        return stock.total - self._count_written() + len(stock.entries) - stock.at

    @property
    def dropped(self) -> int:
        return self._stock.dropped

    @property
    def dropping(self) -> bool:
        return self._stock.dropping and self._left() > 0

    def take(self, queue: deque[Entry]) -> None:
        # One atomic call: each entry is always in one place or the other.
        self._stock.entries.extend(islice(iter(queue.popleft, _NO_ENTRY), len(queue)))

    def post(self) -> None:
        """Encode what was taken and write it after what is kept; on an OSError, keep or drop it."""
        is_gone = self._files.is_gone
        if is_gone or self._files.closes:
            self._described.clear()  # the next records may begin a file
        if is_gone:
            self._files.finish()
        failed = self._try(self._stop()) if self._left() else None
        while self._stock.at < len(self._stock.entries):
            self._encode(self._room() if failed else None)
            while not failed and (cut := self._full_at()):
                failed = self._try(cut)
        if self._left() and not failed:
            failed = self._try(self._stop())
        self._tidy()
        if failed:
            raise failed

    def _encode(self, room: int | None) -> None:
        """Encode the next entries; drop those for which there is no room."""
        stock = self._stock
        entry = stock.entries[stock.at]
        described: set[str] = set()
        after = stock.at + 1
        if isinstance(entry, bytes):
            records = frame(entry)
        elif isinstance(entry, Values):
            records, described = values_record(entry, self._described)
        else:
            records, after = scalar_records(stock.entries, stock.at)
        size, count, lost = len(records), after - stock.at, 0
        if room is not None and size > room:
            fitting = list(takewhile(lambda end: end <= room, ends(records)))
            size = fitting[-1] if fitting else 0
            count, lost = len(fitting), count - len(fitting)
            described = set()
        del stock.records[stock.end - stock.base :]
        stock.records.extend(records[:size])
        self._stock = stock._replace(
            at=after,
            end=stock.end + size,
            total=stock.total + count,
            dropped=stock.dropped + lost,
            dropping=self.dropping or lost > 0,
        )
        self._described |= described

    def _room(self) -> int:
        return 0 if self.dropping else max(0, self._keep_bytes - self._left())

    def _left(self) -> int:
        return self._stock.end - self._files.taken

    def _start(self) -> int:
        return self._files.taken - self._stock.base

    def _stop(self) -> int:
        return self._stock.end - self._stock.base

    def _full_at(self) -> int:
        """Return the end of the record that completes the file, or 0 if none does."""
        if self._max_bytes is None or self._files.size + self._left() < self._max_bytes:
            return 0
        start = self._start()
        least = start + self._max_bytes - self._files.size
        found = ends(self._stock.records, start, self._stop())
        return next((end for end in found if end >= least), 0)

    def _try(self, cut: int) -> OSError | None:
        try:
            self._files.write(self._stock.records, self._start(), cut)
            if self._max_bytes is not None and self._files.size >= self._max_bytes:
                self._described.clear()
                self._files.finish()
        except OSError as error:
            return error
        return None

    def _tidy(self) -> None:
        """Drop the encoded entries, and the written records once they are the greater part."""
        self._count_written()
        stock = self._stock
        start, stop = self._start(), self._stop()
        if start * 2 >= stop:
            stock = stock._replace(records=stock.records[start:stop], base=stock.base + start)
        self._stock = stock._replace(entries=stock.entries[stock.at :], at=0)

    def _count_written(self) -> int:
        stock, taken = self._stock, self._files.taken
        place, count = self._written
        if taken == stock.end:
            count = stock.total
        else:
            count += sum(1 for _ in ends(stock.records, place - stock.base, taken - stock.base))
        self._written = (taken, count)
        return count
