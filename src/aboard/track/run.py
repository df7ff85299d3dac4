"""A run in progress: what a training logs, stage by stage, and how it ends.

`start` chooses its place and its name, `media` logs everything but numbers, and
`shipping` sends the files to a bucket.
"""

from __future__ import annotations

import atexit
import operator
import os
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self, SupportsFloat

from aboard.events import encode
from aboard.events.encode import EncodedValue
from aboard.events.files import EVENT_FILE, newest_second
from aboard.events.writer import EventWriter
from aboard.runs import manifest
from aboard.runs.catalog import check_name
from aboard.runs.manifest import HEARTBEAT_SECS, BadManifest, Manifest, State, Tags, plain_values
from aboard.storage import Entry, NoSuchPath, Storage, StorageError
from aboard.track import exit_status, notify, notify_recovered
from aboard.track.arrays import to_number, to_whole
from aboard.track.environment import RunPlace
from aboard.track.exit_status import status_of
from aboard.track.media import MediaLog
from aboard.track.redaction import hparams_to_record, tags_to_record, without_secrets

if TYPE_CHECKING:
    from aboard.runs.manifest import HParams
    from aboard.sdk.board import Board
    from aboard.track.shipping.shipper import Shipment

_FINAL_STATES = (State.COMPLETED, State.FAILED, State.KILLED)
_open_runs: list[Run] = []

_LAST_BEAT_SECS = 5.0


def _after_fork() -> None:
    for run in _open_runs:
        if run.active:  # a thread of the parent may hold it
            run._stages.lock = threading.RLock()


os.register_at_fork(after_in_child=_after_fork)


def current_run() -> Run | None:
    """Return the run that was opened last and is still open, or None."""
    return _open_runs[-1] if _open_runs else None


def open_runs() -> list[Run]:
    return list(_open_runs)


class RunRecord:
    """The `run.json` of a run in progress; every change also calls `catch_up`.

    If it cannot be written, one notice is printed, and the next heartbeat tries again. `clock_lag`
    is by how many seconds, at least, this host's clock is behind those of earlier attempts.
    """

    def __init__(
        self,
        storage: Storage,
        catch_up: Callable[[Manifest], None],
        attempt: int | None = None,
        *,
        clock_lag: float = 0.0,
    ) -> None:
        self._storage = storage
        self._catch_up = catch_up
        self._attempt = attempt
        self._clock_lag = clock_lag
        self._failed = False
        self._stopped = threading.Event()
        self._thread: threading.Thread | None = None

    def start_heartbeat(self, seconds: float) -> None:
        self._thread = threading.Thread(
            target=self._beat, args=(seconds,), name="aboard-heartbeat", daemon=True
        )
        self._thread.start()

    def stop_heartbeat(self) -> None:
        self._stopped.set()
        if self._thread is not None:
            self._thread.join(_LAST_BEAT_SECS)

    def now(self) -> float:
        """Return the time by a clock that is not behind those of earlier attempts."""
        return time.time() + self._clock_lag

    def hparams(self) -> dict[str, Any] | None:
        try:
            return plain_values(manifest.read(self._storage).hparams)
        except (StorageError, BadManifest):
            return None

    def change(self, change: Callable[[Manifest], None] | None = None) -> None:
        def update(record: Manifest) -> None:
            self._catch_up(record)
            if change is not None:
                change(record)

        try:
            manifest.update(self._storage, update)
        except Exception as error:  # noqa: BLE001 - a training outranks its record
            if not self._failed:
                expected = isinstance(error, (StorageError, BadManifest))
                problem = str(error) if expected else f"{type(error).__name__}: {error}"
                notify(
                    f"the record of the run cannot be written; the training continues. {problem}"
                )
            self._failed = True
        else:
            self._failed = False

    def _beat(self, seconds: float) -> None:
        while not self._stopped.wait(seconds):
            self.change(self._set_heartbeat)

    def _set_heartbeat(self, record: Manifest) -> None:
        if not self._stopped.is_set():  # else the run has ended
            record.beat(self.now(), self._attempt)


class Run(MediaLog):
    """A run that this process logs to; opened by `aboard.init`.

    Attributes:
        uri: the final URI of the run's logs; an argument for `aboard view`.
        place: where it was opened, for another attempt at it.
        rank: the number of this process among those launched together.
        active: whether this process logs at all.
        joined: whether `aboard run` writes the run's record, and this process only logs.
    """

    active = True
    joined: bool = False

    def __init__(
        self,
        *,
        place: RunPlace,
        name: str,
        uri: str,
        directory: Storage,
        rank: int = 0,
        subdirectory: str = "",
        attempt: int | None = None,
        has_record: bool = True,
        known_hparams: Mapping[str, Any] | None = None,
        clock_lag: float = 0.0,
        stages: Stages,
        shipment: Shipment | None = None,
    ) -> None:
        self.name = name
        self.place = place
        self.experiment = place.experiment
        self.root = place.root
        self.joined = place.joined
        self.uri = uri
        self.rank = rank
        self._subdirectory = subdirectory
        self._attempt = attempt
        self._shipment = shipment
        self._stages = stages
        self._writers = stages.writers
        self._steps = stages.steps
        self._latest: defaultdict[str, dict[str, float]] = defaultdict(dict)
        self._hparams: dict[str, Any] = dict(known_hparams or {})
        self._hparams_are_due = False
        self._hparams_are_written = False
        self._hparams_are_ended = False
        self._ended = False
        self._process = os.getpid()
        self._record: RunRecord | None = None
        if has_record:
            self._record = RunRecord(directory, self._catch_up, attempt, clock_lag=clock_lag)
        if self._record is not None and attempt is not None:
            self._record.start_heartbeat(HEARTBEAT_SECS)
        _open_runs.append(self)
        exit_status.watch()
        atexit.register(self._finish_at_exit)

    @property
    def logdir(self) -> str:
        """A local directory for other writers; each stage is a directory below it."""
        return str(self._stages.directory)

    @property
    def has_logged(self) -> bool:
        return bool(self._latest)

    # What a training logs.

    def log_metrics(
        self,
        metrics: Mapping[str, SupportsFloat],
        *,
        step: int | None = None,
        step_name: str | None = None,
        stage: str = "",
    ) -> None:
        """Log numbers at a step; tensors with one element are numbers too.

        `step_name` names the metric that is the step, such as `epoch`. Without it and `step`,
        each stage counts its calls. Stages, such as `train` and `eval`, share the same charts.
        """
        if self._ended:
            raise self._finished_error()
        if exit_status.is_set:
            exit_status.clear()
        if type(stage) is not str:
            check_stage(stage)
        if step_name is not None:
            step, metrics = _split_step(metrics, step_name, step)
        elif step is None:
            step = self._stages.next_step(stage)
        elif type(step) is not int:
            step = to_whole(step, "the step")
        numbers: Mapping[str, Any] = metrics
        try:
            for value in metrics.values():
                if type(value) is not float:
                    numbers = {tag: _number(tag, one) for tag, one in metrics.items()}
                    break
        except AttributeError:
            raise _not_metrics(metrics) from None
        if self._hparams_are_due:
            self._write_hparams()
        writer = self._writers.get(stage)
        if writer is None:
            self._stages.log(numbers, step, stage)
        else:
            writer.scalars(numbers, step)
        self._steps[stage] = step + 1
        self._latest[stage].update(numbers)

    def log_hparams(self, hparams: HParams) -> None:
        """Log hyperparameters: a mapping, an `argparse.Namespace` or a dataclass.

        Nested names are joined with dots. TensorBoard shows what was logged before the first
        metric. Values that look secret are hidden.
        """
        if self._ended:
            raise self._finished_error()
        plain = hparams_to_record(hparams)
        if self._hparams_are_written and plain.items() - self._hparams.items():
            notify(
                "hyperparameters logged after the first metric are kept in run.json, "
                "but TensorBoard does not show them."
            )
        self._hparams.update(plain)
        self._hparams_are_due = not self._hparams_are_written
        self._change_record(lambda record: record.hparams.update(plain))

    def tag(self, tags: Tags) -> None:
        """Add tags: a name, several, or names with values."""
        if self._ended:
            raise self._finished_error()
        plain = tags_to_record(tags)
        self._change_record(lambda record: record.tags.update(plain))

    def flush(self) -> None:
        """Write everything logged so far to its files."""
        if self._hparams_are_due:
            self._write_hparams()
        for writer in self._stages.all_writers():
            writer.flush()

    def board(self, *, wait: bool = False, **options: Any) -> Board | None:
        """Return the board of this run, or start it with `Board.create`.

        Returns None in a process that does not log. Raises `HubError` if no hub is found, or if it
        rejects the request.
        """
        from aboard.sdk.board import Board

        if not self._ended:
            self.flush()
        return Board.create([self.uri], wait=wait, **options)

    # The end.

    def finish(
        self, state: State | str | None = None, exit_code: int | None = None, reason: str = ""
    ) -> None:
        """End the run: write buffered data, record the end, wait until everything is sent.

        The state is `completed`, `failed` or `killed`; by default it follows from the exit code.
        """
        if exit_code is not None:
            try:
                exit_code = operator.index(exit_code)
            except TypeError:
                problem = f"exit_code must be an integer or None, not {exit_code!r}"
                raise TypeError(problem) from None
        if state is None:
            state = State.FAILED if exit_code else State.COMPLETED
        elif state not in _FINAL_STATES:
            raise ValueError(f"state must be one of {', '.join(_FINAL_STATES)}, not {state!r}")
        if os.getpid() != self._process:  # a forked child does not end the run
            return
        try:
            if not self._ended:
                self._end(State(state), exit_code, str(reason))
        finally:
            if self._shipment is not None:
                self._shipment.finish()
        atexit.unregister(self._finish_at_exit)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: object, error: BaseException | None, traceback: object) -> None:
        self.finish(*status_of(error))

    def __repr__(self) -> str:
        return f"<Run {self.experiment}/{self.name} at {self.uri}>"

    def _end(self, state: State, exit_code: int | None, reason: str) -> None:
        try:
            self._close_writers(state)
            if self._record is not None:
                self._record.stop_heartbeat()
        finally:  # SIGTERM may arrive in between
            self._record_end(state, exit_code, reason)

    def _record_end(self, state: State, exit_code: int | None, reason: str) -> None:
        number, kept, shown = self._attempt, self._record, without_secrets(reason)
        if kept is not None and number is not None:
            at = kept.now()
            kept.change(lambda record: record.end(state, exit_code, shown, at, number))
        elif kept is not None:
            kept.change()
        self._ended = True
        if self in _open_runs:
            _open_runs.remove(self)

    def _finish_at_exit(self) -> None:
        self.finish(*exit_status.current())

    # Writers, steps, and the record.

    def _at(self, stage: str, step: int | None) -> tuple[EventWriter, int]:
        """Return the writer of a stage and the step to log at, by default the last one."""
        if self._ended:
            raise self._finished_error()
        check_stage(stage)
        if exit_status.is_set:
            exit_status.clear()
        if step is None:
            step = max(self._stages.next_step(stage) - 1, 0)
        if self._hparams_are_due:
            self._write_hparams()
        return self._stages.writer(stage), step

    def _write(self, values: Sequence[EncodedValue], step: int | None, stage: str) -> None:
        _, at = self._at(stage, step)
        self._stages.add(values, at, stage)

    def _finished_error(self) -> ValueError:
        return ValueError(f"the run {self.experiment}/{self.name} is finished; open another run")

    def _write_hparams(self) -> None:
        self._hparams_are_due = False
        if self._attempt is not None and self._record is not None:
            known = self._record.hparams()
            if known is not None and known != self._hparams:
                return  # the program of `aboard run` logs these with its own
        shown = {name: "None" if value is None else value for name, value in self._hparams.items()}
        self._stages.writer("").add([encode.hparams_start(shown, start_time=time.time())], 0)
        self._hparams_are_written = True

    def _close_writers(self, state: State) -> None:
        if self._hparams_are_due:
            self._write_hparams()
        if self._hparams_are_written and not self._hparams_are_ended:
            self._hparams_are_ended = True
            status = "success" if state is State.COMPLETED else "failure"
            self._stages.writer("").add([encode.hparams_end(status)], 0)
        for writer in self._stages.all_writers():
            writer.close()
            if writer.waiting:
                notify(
                    f"{writer.waiting} of the last records cannot be written to "
                    f"{writer.directory}; they are lost if that lasts until the process exits."
                )

    def _change_record(self, change: Callable[[Manifest], None]) -> None:
        if self._record is not None:
            self._record.change(change)

    def _catch_up(self, record: Manifest) -> None:
        for stage, numbers in list(self._latest.items()):
            where = "/".join(part for part in (self._subdirectory, stage) if part)
            latest = {f"{where}/{tag}" if where else tag: one for tag, one in dict(numbers).items()}
            record.metrics.update(plain_values(latest))


class SilentRun(Run):
    """The run of a process that does not log: its methods do nothing."""

    active = False

    def __init__(self, rank: int) -> None:
        self.name = self.experiment = self.root = self.uri = ""
        self.rank = rank
        self._latest = defaultdict(dict)
        _open_runs.append(self)

    @cached_property
    def logdir(self) -> str:
        import shutil
        import tempfile

        directory = tempfile.mkdtemp(prefix="aboard-silent-")
        atexit.register(shutil.rmtree, directory, ignore_errors=True)
        return directory

    def finish(
        self,
        state: State | str | None = None,  # noqa: ARG002
        exit_code: int | None = None,  # noqa: ARG002
        reason: str = "",  # noqa: ARG002
    ) -> None:
        if self in _open_runs:
            _open_runs.remove(self)

    def __repr__(self) -> str:
        return f"<silent Run of rank {self.rank}>"


def _nothing(self: SilentRun, *arguments: object, **options: object) -> None:
    """Do nothing: another rank logs."""


for _name in dir(Run):
    if _name.startswith("log_") or _name in ("tag", "flush", "board"):
        setattr(SilentRun, _name, _nothing)


def _split_step(
    metrics: Mapping[str, SupportsFloat], name: str, step: int | None
) -> tuple[int, dict[str, SupportsFloat]]:
    if not isinstance(metrics, Mapping):
        raise _not_metrics(metrics)
    if not isinstance(name, str):
        raise TypeError(f"step_name is {name!r:.60}, not the name of a metric")
    rest = dict(metrics)
    if name not in rest:
        known = ", ".join(map(str, rest)) or "none"
        raise ValueError(f"no metric {name!r} for the step; the metrics are {known}")
    value = rest.pop(name)
    at = to_whole(value, f"the step {name!r}") if step is None else to_whole(step, "the step")
    return at, rest


def check_stage(stage: object) -> None:
    if not isinstance(stage, str):
        raise TypeError(f"the stage is {stage!r:.60}, not a string such as 'train'")


def _not_metrics(metrics: object) -> TypeError:
    kind = type(metrics).__name__
    return TypeError(
        f"metrics must be a mapping of names to numbers, not a {kind}: {metrics!r:.60}"
    )


def _number(tag: str, value: Any) -> float:
    try:
        return to_number(value)
    except (TypeError, ValueError, OverflowError):
        raise ValueError(f"the metric {tag!r} is {value!r:.60}, not a number") from None


# The event files of a run, one directory per stage, and the current step of each stage.

_MAX_PENDING_RECORDS = 1000
_MAX_PENDING_BYTES = 16 << 20


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


def _purge(step: int, writer: EventWriter) -> None:
    # TensorBoard drops points when a session starts, but ignores the first session of a run.
    for _ in range(2):
        writer.write(encode.session_start(time.time(), step))


# A resumed run continues after the last step of its earlier attempts. Their event files are read in
# the background from the start, so that a training does not wait for a bucket.

_LAST_STEPS_SECS = 10.0
_POLL_SECS = 0.01
_BLOCK_BYTES = 4 << 20
_HPARAMS = "_hparams_/"


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
        deadline = time.monotonic() + (0.0 if self._gave_up else _LAST_STEPS_SECS)
        while directory not in self._found and self._thread.is_alive():
            if time.monotonic() > deadline:
                self._gave_up = True
                self._notify(f"no answer within {_LAST_STEPS_SECS:.0f} s")
                return {}
            self._thread.join(_POLL_SECS)
        if self._problem is not None:
            self._notify(str(self._problem))
        return self._found.get(directory, {})

    def newest_second(self, stage: str) -> int:
        """Return the last second in the names of a stage's event files; 0 if there are none."""
        if not self._gave_up and not self._listed.wait(_LAST_STEPS_SECS):
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
    from aboard.events.scanner import Scanner, scan_blocks

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
