"""The event files of a run, one directory per stage, and the current step of each stage.

A resumed run continues after the last step of its earlier attempts. Their event files are read in
the background from the start, so that a training does not wait for a bucket.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path

from aboard.events import encode
from aboard.events.encode import EncodedValue
from aboard.events.files import EVENT_FILE, newest_second
from aboard.events.scanner import Scanner, scan_blocks
from aboard.events.writer import EventWriter
from aboard.runs.layout import check_name
from aboard.storage import Entry, NoSuchPath, Storage, StorageError
from aboard.track import notify, notify_recovered

_MAX_PENDING_RECORDS = 1000
_MAX_PENDING_BYTES = 16 << 20
_PATIENCE_SECS = 10.0
_POLL_SECS = 0.01
_BLOCK_BYTES = 4 << 20
_HPARAMS = "_hparams_/"


class _PendingStage:
    """A stage that may repeat steps of earlier attempts, before that is known.

    Its records are kept in memory: if it repeats steps, the event that makes TensorBoard drop the
    earlier ones drops these too, and they are written again.
    """

    def __init__(self, writer: EventWriter) -> None:
        self.writer = writer
        self._bytes = 0
        self._rewrites: list[Callable[[], None]] = []

    def keep(self, rewrite: Callable[[], None], size: int) -> bool:
        """Keep a function that writes a record again; return whether there are too many."""
        self._rewrites.append(rewrite)
        self._bytes += size
        return len(self._rewrites) > _MAX_PENDING_RECORDS or self._bytes > _MAX_PENDING_BYTES

    def rewind(self, step: int) -> None:
        _purge(step, self.writer)
        for rewrite in self._rewrites:
            rewrite()


class Stages:
    """The stages of a run, below one directory.

    With `rewinds`, an attempt may repeat steps of earlier ones: the first metric at a step that
    they already logged makes TensorBoard drop their points from that step on, in that stage. Event
    files sort behind those of earlier attempts, which were created up to the second `after`.
    """

    def __init__(
        self,
        directory: Path,
        *,
        last_steps: LastSteps | None = None,
        rewinds: bool = True,
        flush_secs: float = 1.0,
        purge_step: int | None = None,
        after: int = 0,
    ) -> None:
        self.directory = directory
        self.writers: dict[str, EventWriter] = {}  # of all stages except the pending ones
        self.steps: dict[str, int] = {}  # the next default step of each stage
        self.lock = threading.RLock()
        self._last_steps = last_steps
        self._rewinds = rewinds and last_steps is not None and purge_step is None
        self._flush_secs = flush_secs
        self._purge_step = purge_step
        self._after = after
        self._pending: dict[str, _PendingStage] = {}

    def all_writers(self) -> list[EventWriter]:
        with self.lock:
            return [*self.writers.values(), *(stage.writer for stage in self._pending.values())]

    def next_step(self, stage: str) -> int:
        step = self.steps.get(stage)
        if step is None and self._last_steps is not None:
            last = self._last_steps.of(stage)
            step = None if last is None else last + 1
        return step or 0

    def writer(self, stage: str) -> EventWriter:
        with self.lock:
            if stage in self.writers:
                return self.writers[stage]
            if stage in self._pending:
                return self._pending[stage].writer
            writer = self._open(stage)
            if self._rewinds:
                self._pending[stage] = _PendingStage(writer)
            else:
                self.writers[stage] = writer
            return writer

    def log(self, numbers: Mapping[str, float], step: int, stage: str) -> None:
        """Log metrics to a new or pending stage; others have a writer in `writers`."""
        with self.lock:
            writer = self.writer(stage)
            pending = self._pending.get(stage)
            if pending is not None and self._last_steps is not None:
                last = self._last_steps.by_tag(stage)
                # Some metrics may count epochs, others batches. Those with the highest step
                # decide, since the entire stage is dropped from that step on.
                highest = max(last.values(), default=None)
                if highest is not None and any(last.get(tag) == highest for tag in numbers):
                    if step <= highest:
                        pending.rewind(step)
                    self._settle(stage)
                else:
                    now = time.time()
                    rewrite = partial(writer.scalars, dict(numbers), step, wall_time=now)
                    self._keep(stage, rewrite, 0)
            writer.scalars(numbers, step)

    def add(self, values: Sequence[EncodedValue], step: int, stage: str) -> None:
        with self.lock:
            writer, now = self.writer(stage), time.time()
            writer.add(values, step, wall_time=now)
            rewrite = partial(writer.add, values, step, wall_time=now)
            self._keep(stage, rewrite, sum([len(value.fields) for value in values]))

    def _keep(self, stage: str, rewrite: Callable[[], None], size: int) -> None:
        if stage in self._pending and self._pending[stage].keep(rewrite, size):
            self._settle(stage)

    def _settle(self, stage: str) -> None:
        self.writers[stage] = self._pending.pop(stage).writer

    def _open(self, stage: str) -> EventWriter:
        if not isinstance(stage, str):
            raise TypeError(f"the stage is {stage!r:.60}, not a string such as 'train'")
        for part in stage.split("/") if stage else ():
            check_name(part, "stage")
        after = self._after
        if self._last_steps is not None:
            after = max(after, self._last_steps.newest_second(stage))
        writer = EventWriter(
            self.directory / stage,
            flush_secs=self._flush_secs,
            after=after,
            on_error=notify,
            on_recovered=notify_recovered,
        )
        if self._purge_step is not None:
            _purge(self._purge_step, writer)
        return writer


def _purge(step: int, writer: EventWriter) -> None:
    # TensorBoard drops points when a session starts, but ignores the first session of a run.
    for _ in range(2):
        writer.write(encode.session_start(time.time(), step))


class LastSteps:
    """The last steps in the event files of a resumed run, read in the background.

    If several storages have a stage, the highest step counts.
    """

    def __init__(self, storages: Sequence[Storage], directory: str = "") -> None:
        self._storages = storages
        self._directory = directory
        self._found: dict[str, dict[str, int]] = {}
        self._newest: dict[str, int] = {}  # the last second in the names of event files
        self._listed = threading.Event()
        self._requested: str | None = None
        self._problem: StorageError | None = None
        self._gave_up = False
        self._notified = False
        self._thread = threading.Thread(target=self._read, name="aboard-last-steps", daemon=True)
        self._thread.start()

    def of(self, stage: str) -> int | None:
        return max(self.by_tag(stage).values(), default=None)

    def by_tag(self, stage: str) -> Mapping[str, int]:
        """Return the highest step of each tag in the newest files of a stage that have any.

        A storage that cannot be read in time counts as empty, with a notice.
        """
        directory = self._requested = self._directory_of(stage)
        deadline = time.monotonic() + (0.0 if self._gave_up else _PATIENCE_SECS)
        while directory not in self._found and self._thread.is_alive():
            if time.monotonic() > deadline:
                self._gave_up = True
                self._notify(f"no answer within {_PATIENCE_SECS:.0f} s")
                return {}
            self._thread.join(_POLL_SECS)
        if self._problem is not None:
            self._notify(str(self._problem))
        return self._found.get(directory, {})

    def newest_second(self, stage: str) -> int:
        """Return the last second in the names of a stage's event files; 0 if there are none."""
        if not self._gave_up and not self._listed.wait(_PATIENCE_SECS):
            self._gave_up = True
        return self._newest.get(self._directory_of(stage), 0)

    def _directory_of(self, stage: str) -> str:
        return "/".join(part for part in (self._directory, stage) if part)

    def _notify(self, problem: str) -> None:
        if not self._notified:
            self._notified = True
            notify(f"the last step of the run is unknown, so steps count from 0 again. {problem}")

    def _read(self) -> None:
        left: dict[str, list[tuple[Storage, list[Entry]]]] = {}
        for storage in self._storages:
            try:
                for directory, files in _event_files(storage, self._directory).items():
                    left.setdefault(directory, []).append((storage, files))
                    newest = newest_second(entry.name for entry in files)
                    self._newest[directory] = max(newest, self._newest.get(directory, 0))
            except NoSuchPath:
                pass
            except StorageError as error:
                self._problem = error
        self._listed.set()
        while left:
            directory = self._requested if self._requested in left else next(iter(left))
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
    found: dict[str, list[Entry]] = {}
    for entry in storage.list(directory, containing=EVENT_FILE):
        found.setdefault(entry.name.rpartition("/")[0], []).append(entry)
    for files in found.values():
        files.sort(key=lambda entry: entry.name, reverse=True)
    return found


def _last_steps(storage: Storage, files: list[Entry]) -> dict[str, int]:
    for entry in files:
        try:
            if last := _last_steps_of_file(storage, entry):
                return last
        except NoSuchPath:  # just removed
            continue
    return {}


def _last_steps_of_file(storage: Storage, entry: Entry) -> dict[str, int]:
    # Hyperparameters do not count: an attempt that ended at once logs them as well.
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
