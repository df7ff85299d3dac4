"""Where a resumed run left off: the last step in the event files of each of its stages.

They are looked up in the background from the start, so that a training does not wait for a bucket.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Mapping, Sequence
from functools import partial

from aboard.events.scanner import Scanner, scan_blocks
from aboard.storage import Entry, NotFound, Storage, StorageError
from aboard.track.say import say

_PATIENCE_SECS = 10.0
_POLL_SECS = 0.01
_BLOCK_BYTES = 4 << 20
_HPARAMS = "_hparams_/"


class LastSteps:
    """The last steps of a run that is resumed.

    Args:
        storages: where its files may be; a stage that is in several goes on from the highest.
        directory: what its stages are directories of.
    """

    def __init__(self, storages: Sequence[Storage], directory: str = "") -> None:
        self._storages = storages
        self._directory = directory
        self._found: dict[str, dict[str, int]] = {}
        self._wanted: str | None = None
        self._problem: StorageError | None = None
        self._gave_up = False
        self._said = False
        self._thread = threading.Thread(target=self._find, name="aboard-last-steps", daemon=True)
        self._thread.start()

    def of(self, stage: str) -> int | None:
        """Return the highest step in the newest files of a stage that have any, or None."""
        return max(self.by_tag(stage).values(), default=None)

    def by_tag(self, stage: str) -> Mapping[str, int]:
        """Return the highest step of each tag in the newest files of a stage that have any.

        A storage that cannot be read, or not in time, is said and taken for empty.
        """
        where = "/".join(part for part in (self._directory, stage) if part)
        self._wanted = where
        deadline = time.monotonic() + (0.0 if self._gave_up else _PATIENCE_SECS)
        while where not in self._found and self._thread.is_alive():
            if time.monotonic() > deadline:
                self._gave_up = True
                self._say(f"no answer within {_PATIENCE_SECS:.0f} s")
                return {}
            self._thread.join(_POLL_SECS)
        if self._problem is not None:
            self._say(str(self._problem))
        return self._found.get(where, {})

    def _say(self, problem: str) -> None:
        if not self._said:
            self._said = True
            say(
                "where the run left off is not known, so steps that are not told count from 0 "
                f"again. {problem}"
            )

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
                found = [_last_steps(storage, files) for storage, files in left.pop(directory)]
            except StorageError as error:
                self._problem = error
            else:
                last: dict[str, int] = {}
                for one in found:
                    last |= {tag: max(step, last.get(tag, step)) for tag, step in one.items()}
                self._found[directory] = last


def _event_files(storage: Storage, directory: str) -> dict[str, list[Entry]]:
    """Return event files by their directory, the newest first."""
    found: dict[str, list[Entry]] = {}
    for entry in storage.list(directory, containing="tfevents"):
        found.setdefault(entry.name.rpartition("/")[0], []).append(entry)
    for files in found.values():
        files.sort(key=lambda entry: entry.name, reverse=True)
    return found


def _last_steps(storage: Storage, files: list[Entry]) -> dict[str, int]:
    for entry in files:
        try:
            if last := _last_steps_of(storage, entry):
                return last
        except NotFound:  # it was removed meanwhile
            continue
    return {}


def _last_steps_of(storage: Storage, entry: Entry) -> dict[str, int]:
    """Return the highest step of each tag in a file, damaged records left aside.

    Hyperparameters have none: an attempt that came no further logged them all the same.
    """
    scanner = Scanner()
    last: dict[str, int] = {}
    buffer = bytearray(min(_BLOCK_BYTES, max(entry.size, 1)))
    for _ in scan_blocks(scanner, partial(storage.readinto, entry.name), 0, entry.size, buffer):
        taken = scanner.take()
        tags = [one.tag.decode(errors="replace") for one in scanner.series()]
        for part in (*taken.points, *taken.pointers):
            if part.series >= 0 and not (tag := tags[part.series]).startswith(_HPARAMS):
                last[tag] = max(part.max_step, last.get(tag, part.max_step))
    return last
