"""Between a writer's queue and its files: entries to encode, and records to write.

Cuts the stream into files of a size, and keeps what the disk does not take, up to a bound; what
does not fit any more is dropped from the newest on, so that what is kept has no gaps. An
interrupt, be it between any two steps, loses nothing and repeats nothing: the next call goes on.
What to do about an error is left to `writer`.
"""

from __future__ import annotations

from collections import deque
from itertools import islice, takewhile
from typing import NamedTuple

from aboard.events.batch import Entry, Values, ends, scalar_records, values_record
from aboard.events.eventfiles import EventFiles
from aboard.events.records import frame

_NO_ENTRY = object()


class _Stock(NamedTuple):
    """Where things stand. Replaced as a whole, so that an interrupt sees no step half done."""

    entries: list[Entry]
    """What was taken from the queue; before `at` it is encoded."""
    at: int
    records: bytearray
    """What was encoded. Past `end` is what an interrupt left, to be encoded again."""
    base: int
    end: int
    """Where `records` begins and ends in the stream of all records of the files."""
    total: int
    """How many records that stream has."""
    dropped: int
    dropping: bool


class Outbox:
    """What goes to the files of one writer.

    Args:
        files: where it goes.
        max_bytes: a file that reaches it is followed by another; a failure may make it longer.
        keep_bytes: how much is kept while nothing can be written.
    """

    def __init__(self, files: EventFiles, max_bytes: int | None, keep_bytes: int) -> None:
        self._files = files
        self._max_bytes = max_bytes
        self._keep_bytes = keep_bytes
        self._stock = _Stock([], 0, bytearray(), files.taken, files.taken, 0, 0, False)
        self._written = (files.taken, 0)
        """A place in the stream, at or before what is written, and how many records are there."""
        self._described: set[str] = set()
        """The tags whose metadata is in the file, or kept for it."""

    def __len__(self) -> int:
        """Return how many records are kept."""
        stock = self._stock
        return stock.total - self._count_written() + len(stock.entries) - stock.at

    @property
    def dropped(self) -> int:
        """How many records were dropped, ever."""
        return self._stock.dropped

    @property
    def dropping(self) -> bool:
        """Whether there is no room for more until something is written."""
        return self._stock.dropping and self._left() > 0

    def take(self, queue: deque[Entry]) -> None:
        """Move what is queued in here, for `post`."""
        # One call without a line of Python in it: an entry is always in one place or the other.
        self._stock.entries.extend(islice(iter(queue.popleft, _NO_ENTRY), len(queue)))

    def post(self) -> None:
        """Encode what was taken and write it, after what is kept.

        Raises:
            OSError: what was not written is kept, or dropped.
        """
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
        """Keep the records of the next entries, or drop those for which there is no room."""
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
        """Return how many more bytes may be kept while nothing can be written."""
        return 0 if self.dropping else max(0, self._keep_bytes - self._left())

    def _left(self) -> int:
        """Return how many bytes are to be written."""
        return self._stock.end - self._files.taken

    def _start(self) -> int:
        """Return where in the records those begin that are to be written."""
        return self._files.taken - self._stock.base

    def _stop(self) -> int:
        return self._stock.end - self._stock.base

    def _full_at(self) -> int:
        """Return the end of the record that completes the file, or 0 if none does."""
        if self._max_bytes is None or self._files.size + self._left() < self._max_bytes:
            return 0
        start = self._start()
        wanted = start + self._max_bytes - self._files.size
        found = ends(self._stock.records, start, self._stop())
        return next((end for end in found if end >= wanted), 0)

    def _try(self, cut: int) -> OSError | None:
        """Write the records up to `cut`; return what went wrong."""
        try:
            self._files.write(self._stock.records, self._start(), cut)
            if self._max_bytes is not None and self._files.size >= self._max_bytes:
                self._described.clear()
                self._files.finish()
        except OSError as error:
            return error
        return None

    def _tidy(self) -> None:
        """Let go of what is encoded, and of what is written once it is the greater part."""
        self._count_written()
        stock = self._stock
        start, stop = self._start(), self._stop()
        if start * 2 >= stop:
            stock = stock._replace(records=stock.records[start:stop], base=stock.base + start)
        self._stock = stock._replace(entries=stock.entries[stock.at :], at=0)

    def _count_written(self) -> int:
        """Return how many records of the stream are written."""
        stock, taken = self._stock, self._files.taken
        place, count = self._written
        if taken == stock.end:
            count = stock.total
        else:
            count += sum(1 for _ in ends(stock.records, place - stock.base, taken - stock.base))
        self._written = (taken, count)
        return count
