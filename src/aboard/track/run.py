"""A run in progress: what a training logs, stage by stage, and how it ends.

`start` chooses its place and its name, `media` logs everything but numbers, and
`shipping` sends the files to a bucket.
"""

from __future__ import annotations

import atexit
import os
import shutil
import tempfile
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self, SupportsFloat

from aboard.events import encode
from aboard.events.encode import EncodedValue
from aboard.events.writer import EventWriter
from aboard.runs import manifest
from aboard.runs.manifest import HEARTBEAT_SECS, BadManifest, Manifest, State, Tags, plain_values
from aboard.storage import Storage, StorageError
from aboard.track import exit_status, notify
from aboard.track.arrays import to_number, to_whole
from aboard.track.environment import RunPlace
from aboard.track.exit_status import status_of
from aboard.track.media import MediaLog
from aboard.track.redaction import hparams_to_record, tags_to_record, without_secrets
from aboard.track.stages import Stages

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
        if state is None:
            state = State.FAILED if exit_code else State.COMPLETED
        elif state not in _FINAL_STATES:
            raise ValueError(f"the state is one of {', '.join(_FINAL_STATES)}, not {state!r}")
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

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
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
    rest = dict(metrics)
    if name not in rest:
        known = ", ".join(map(str, rest)) or "none"
        raise ValueError(f"no metric {name!r} for the step; the metrics are {known}")
    value = rest.pop(name)
    at = to_whole(value, f"the step {name!r}") if step is None else to_whole(step, "the step")
    return at, rest


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
