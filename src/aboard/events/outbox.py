"""Between a writer's queue and its files: records that are encoded and not yet written.

Cuts the stream into files of a size, and keeps what the disk does not take, up to a bound; what
does not fit any more is dropped from the newest on, so that what is kept has no gaps. What to do
about an error is left to `writer`.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import takewhile

from aboard.events.batch import Entry, Values, ends, scalar_records, values_record
from aboard.events.eventfiles import EventFiles
from aboard.events.records import frame


class Outbox:
    """What goes to the files of one writer.

    Args:
        files: where it goes.
        max_bytes: a file that reaches it is followed by another; a failure may make it longer.
        keep_bytes: how much is kept while nothing can be written.
    """

    def __init__(self, files: EventFiles, max_bytes: int | None, keep_bytes: int) -> None:
        self.dropped = 0
        """How many records were dropped, ever."""
        self.dropping = False
        """Whether there is no room for more until something is written."""
        self._files = files
        self._max_bytes = max_bytes
        self._keep_bytes = keep_bytes
        self._kept = bytearray()
        self._count = 0
        self._failing = False
        self._described: set[str] = set()
        """The tags whose metadata is in the file, or kept for it."""

    def __len__(self) -> int:
        """Return how many records are kept."""
        return self._count

    def post(self, entries: Sequence[Entry]) -> None:
        """Encode entries and write them, after what is kept.

        Raises:
            OSError: what was not written is kept, or dropped.
        """
        failed = self._try(len(self._kept)) if self._kept else None
        at = 0
        while at < len(entries):
            at = self._encode(entries, at)
            while not failed and (cut := self._full_at()):
                failed = self._try(cut)
        if self._files.closes:
            self._described.clear()  # the next records may begin a file
        if self._kept and not failed:
            failed = self._try(len(self._kept))
        if failed:
            raise failed

    def _encode(self, entries: Sequence[Entry], at: int) -> int:
        """Keep the records of some entries, or drop them; return where to go on."""
        entry = entries[at]
        described: set[str] = set()
        after = at + 1
        if isinstance(entry, bytes):
            records = frame(entry)
        elif isinstance(entry, Values):
            records, described = values_record(entry, self._described)
        else:
            records, after = scalar_records(entries, at)
        room = self._room(len(records))
        if room >= len(records):
            self._kept += records
            self._count += after - at
            self._described |= described
            return after
        fitting = list(takewhile(lambda end: end <= room, ends(records)))
        self._kept += records[: fitting[-1] if fitting else 0]
        self._count += len(fitting)
        self.dropped += after - at - len(fitting)
        self.dropping = True
        return after

    def _room(self, wanted: int) -> int:
        """Return how many bytes of those wanted may be kept: all, unless nothing can be written."""
        if not self._failing:
            return wanted
        return 0 if self.dropping else self._keep_bytes - len(self._kept)

    def _full_at(self) -> int:
        """Return the end of the record that completes the file, or 0 if none does."""
        if self._max_bytes is None or self._files.size + len(self._kept) < self._max_bytes:
            return 0
        wanted = self._max_bytes - self._files.size
        return next((end for end in ends(self._kept) if end >= wanted), 0)

    def _try(self, cut: int) -> OSError | None:
        """Write the first `cut` bytes of what is kept; return what went wrong."""
        before = len(self._kept)
        part = self._kept[:cut]
        failed = None
        try:
            self._files.write(part)
        except OSError as error:
            failed = error
        del self._kept[: cut - len(part)]
        if not failed and self._max_bytes is not None and self._files.size >= self._max_bytes:
            self._described.clear()
            try:
                self._files.finish()
            except OSError as error:
                failed = error
        if len(self._kept) != before:
            self._count = sum(1 for _ in ends(self._kept))
        if not self._kept:
            self.dropping = False
        self._failing = failed is not None
        return failed
