"""Where a resumed run left off: the last step in the event files of each of its stages.

They are looked up in the background from the start, so that a training does not wait for a bucket.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from functools import partial

from aboard.events.scanner import Scanner, scan_blocks
from aboard.storage import Entry, NotFound, Storage, StorageError
from aboard.track.say import say

_PATIENCE_SECS = 10.0
_POLL_SECS = 0.01
_BLOCK_BYTES = 4 << 20


class LastSteps:
    """The last steps of a run that is resumed.

    Args:
        storages: where its files may be; a stage that is in several goes on from the highest.
        directory: what its stages are directories of.
    """

    def __init__(self, storages: Sequence[Storage], directory: str = "") -> None:
        self._storages = storages
        self._directory = directory
        self._found: dict[str, int | None] = {}
        self._wanted: str | None = None
        self._problem: StorageError | None = None
        self._gave_up = False
        self._said = False
        self._thread = threading.Thread(target=self._find, name="aboard-last-steps", daemon=True)
        self._thread.start()

    def of(self, stage: str) -> int | None:
        """Return the highest step in the newest files of a stage that have any, or None.

        A storage that cannot be read, or not in time, is said and taken for empty.
        """
        where = "/".join(part for part in (self._directory, stage) if part)
        self._wanted = where
        deadline = time.monotonic() + (0.0 if self._gave_up else _PATIENCE_SECS)
        while where not in self._found and self._thread.is_alive():
            if time.monotonic() > deadline:
                self._gave_up = True
                self._say(f"no answer within {_PATIENCE_SECS:.0f} s")
                return None
            self._thread.join(_POLL_SECS)
        if self._problem is not None:
            self._say(str(self._problem))
        return self._found.get(where)

    def _say(self, problem: str) -> None:
        if not self._said:
            self._said = True
            say(f"where the run left off is not known, so steps count from 0 again. {problem}")

    def _find(self) -> None:
        left: dict[str, list[tuple[Storage, list[Entry]]]] = {}
        for storage in self._storages:
            try:
                for directory, files in _event_files(storage, self._directory).items():
                    left.setdefault(directory, []).append((storage, files))
            except NotFound:
                pass
            except StorageError as error:
                self._problem = error
        while left:
            directory = self._wanted if self._wanted in left else next(iter(left))
            try:
                found = [_last_step(storage, files) for storage, files in left.pop(directory)]
            except StorageError as error:
                self._problem = error
            else:
                known = [last for last in found if last is not None]
                self._found[directory] = max(known, default=None)


def _event_files(storage: Storage, directory: str) -> dict[str, list[Entry]]:
    """Return event files by their directory, the newest first."""
    found: dict[str, list[Entry]] = {}
    for entry in storage.list(directory, containing="tfevents"):
        found.setdefault(entry.name.rpartition("/")[0], []).append(entry)
    for files in found.values():
        files.sort(key=lambda entry: entry.name, reverse=True)
    return found


def _last_step(storage: Storage, files: list[Entry]) -> int | None:
    for entry in files:
        try:
            if (last := _last_step_of(storage, entry)) is not None:
                return last
        except NotFound:  # it was removed meanwhile
            continue
    return None


def _last_step_of(storage: Storage, entry: Entry) -> int | None:
    """Return the highest step of any value in a file, damaged records left aside."""
    scanner = Scanner()
    last: int | None = None
    buffer = bytearray(min(_BLOCK_BYTES, max(entry.size, 1)))
    for _ in scan_blocks(scanner, partial(storage.readinto, entry.name), 0, entry.size, buffer):
        taken = scanner.take()
        for part in (*taken.points, *taken.pointers):
            if part.series >= 0 and (last is None or part.max_step > last):
                last = part.max_step
    return last
