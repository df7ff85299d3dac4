"""A run in progress: what a training logs, stage by stage, and how it ends.

Where the run lies and how it got its name is left to `start`; pictures and the like to `media`;
carrying the files to a bucket to `shipment`.
"""

from __future__ import annotations

import atexit
import os
import shutil
import tempfile
import threading
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self, SupportsFloat

from aboard.events import encode
from aboard.events.encode import EncodedValue
from aboard.events.writer import EventWriter
from aboard.runs.manifest import HEARTBEAT_SECS, Manifest, State
from aboard.runs.values import Tags, plain_tags, plain_values
from aboard.storage import Storage
from aboard.track import ending
from aboard.track.arrays import to_number, to_whole
from aboard.track.ending import ending_of
from aboard.track.heart import Record
from aboard.track.hparams import to_keep
from aboard.track.media import MediaLog
from aboard.track.place import Place
from aboard.track.say import say
from aboard.track.stages import Stages

if TYPE_CHECKING:
    from aboard.runs.values import HParams
    from aboard.sdk.board import Board
    from aboard.track.shipment import Shipment

_ENDINGS = (State.COMPLETED, State.FAILED, State.KILLED)
_open_runs: list[Run] = []


def _after_fork() -> None:
    for run in _open_runs:
        if run.active:  # a thread that is not in the child may have held it
            run._stages.lock = threading.RLock()


os.register_at_fork(after_in_child=_after_fork)


def current_run() -> Run | None:
    """Return the run that was opened last and is still open, or None."""
    return _open_runs[-1] if _open_runs else None


def open_runs() -> list[Run]:
    """Return the runs of this process that are open, in the order in which they were opened."""
    return list(_open_runs)


class Run(MediaLog):
    """A run that this process logs to; made by `aboard.init`.

    Attributes:
        name: the run's name, and `experiment` that of its experiment.
        root: the path or URI below which the experiment lies.
        place: where it was begun, for another attempt at it.
        uri: where the run's logs are, or will be: what to give to `aboard view`.
        logdir: a local directory for writers of your own; a stage is a directory below it.
        rank: this process among those launched together.
        active: whether this process logs at all.
        joined: whether `aboard run` keeps the run's record, and this process only logs to it.
    """

    active = True
    joined: bool = False

    def __init__(
        self,
        *,
        place: Place,
        name: str,
        uri: str,
        directory: Storage,
        rank: int = 0,
        subdirectory: str = "",
        attempt: int | None = None,
        has_record: bool = True,
        known_hparams: Mapping[str, Any] | None = None,
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
        self._record = Record(directory, self._catch_up, attempt) if has_record else None
        if self._record is not None and attempt is not None:
            self._record.beat_every(HEARTBEAT_SECS)
        _open_runs.append(self)
        ending.watch()
        atexit.register(self._finish_at_exit)

    @property
    def logdir(self) -> str:
        """A local directory for writers of your own; a stage is a directory below it."""
        return str(self._stages.directory)

    @property
    def has_logged(self) -> bool:
        """Whether any metric was logged."""
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
        """Log numbers at a step.

        Args:
            metrics: names and numbers; tensors of one element will do.
            step: when, as a whole number. Without it and `step_name`, calls are counted,
                each stage by itself.
            step_name: which of the metrics is the step, such as `epoch`.
            stage: such as `train` or `eval`. Stages are drawn into the same charts.

        Raises:
            TypeError: these are no names and numbers, or the stage is no text.
            ValueError: a metric is no number, or the step no whole one.
        """
        if self._ended:
            raise self._is_finished()
        if ending.is_noted:
            ending.went_on()
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
            raise _no_metrics(metrics) from None
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
        """Note hyperparameters: a mapping, an `argparse.Namespace` or a dataclass.

        What has names inside becomes names with dots. TensorBoard shows what was logged before
        the first metric. Values that look secret are hidden.

        Raises:
            TypeError: there are no names in it.
            ValueError: the run is finished.
        """
        if self._ended:
            raise self._is_finished()
        plain = to_keep(hparams)
        if self._hparams_are_written and plain.items() - self._hparams.items():
            say(
                "hyperparameters logged after the first metric are kept in run.json, "
                "but TensorBoard does not show them."
            )
        self._hparams.update(plain)
        self._hparams_are_due = not self._hparams_are_written
        self._change_record(lambda record: record.hparams.update(plain))

    def tag(self, tags: Tags) -> None:
        """Add tags: a name, several, or names with values.

        Raises:
            ValueError: the run is finished.
        """
        if self._ended:
            raise self._is_finished()
        plain = plain_tags(tags)
        self._change_record(lambda record: record.tags.update(plain))

    def flush(self) -> None:
        """Write everything that was logged to its files now."""
        if self._hparams_are_due:
            self._write_hparams()
        for writer in self._stages.all():
            writer.flush()

    def board(self, *, wait: bool = False, **options: Any) -> Board | None:
        """Return the board of this run, which is started if there is none.

        Args:
            wait: return when it serves data, not before.
            options: as `Board.create` takes them.

        Returns:
            The board; None in a process that does not log.

        Raises:
            HubError: there is no hub, or it refuses.
        """
        from aboard.sdk.board import Board

        if not self._ended:
            self.flush()
        return Board.create([self.uri], wait=wait, **options)

    # How it ends.

    def finish(
        self, state: State | str | None = None, exit_code: int | None = None, reason: str = ""
    ) -> None:
        """End the run: write what is buffered, note how it went, wait for the last byte.

        Args:
            state: `completed`, `failed` or `killed`; what the exit code says unless told.
            exit_code: of the process, where there is one.
            reason: in one line, for whoever reads the record.

        Raises:
            ValueError: there is no such state to end in.
        """
        if state is None:
            state = State.FAILED if exit_code else State.COMPLETED
        elif state not in _ENDINGS:
            raise ValueError(f"a run ends {', '.join(_ENDINGS)}, not {state!r}")
        if os.getpid() != self._process:  # a fork has no part in this
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
        self.finish(*ending_of(error))

    def __repr__(self) -> str:
        return f"<Run {self.experiment}/{self.name} at {self.uri}>"

    def _end(self, state: State, exit_code: int | None, reason: str) -> None:
        try:
            self._close_writers(state)
            if self._record is not None:
                self._record.stop()
        finally:  # SIGTERM may come in between
            self._note_end(state, exit_code, reason)

    def _note_end(self, state: State, exit_code: int | None, reason: str) -> None:
        number = self._attempt
        if number is None:
            self._change_record(_no_change)
        else:
            self._change_record(lambda record: record.end(state, exit_code, reason, number=number))
        self._ended = True
        if self in _open_runs:
            _open_runs.remove(self)

    def _finish_at_exit(self) -> None:
        self.finish(*ending.ending())

    # Writers, steps, and the record.

    def _at(self, stage: str, step: int | None) -> tuple[EventWriter, int]:
        """Return the writer of a stage and the step to log at: the last one unless told."""
        if self._ended:
            raise self._is_finished()
        if ending.is_noted:
            ending.went_on()
        if step is None:
            step = max(self._stages.next_step(stage) - 1, 0)
        if self._hparams_are_due:
            self._write_hparams()
        return self._stages.writer(stage), step

    def _write(self, values: Sequence[EncodedValue], step: int | None, stage: str) -> None:
        _, at = self._at(stage, step)
        self._stages.add(values, at, stage)

    def _is_finished(self) -> ValueError:
        return ValueError(f"the run {self.experiment}/{self.name} is finished; open another one")

    def _write_hparams(self) -> None:
        self._hparams_are_due = False
        if self._attempt is not None and self._record is not None:
            known = self._record.hparams()
            if known is not None and known != self._hparams:
                return  # the program that `aboard run` started logs ours together with its own
        shown = {name: "None" if value is None else value for name, value in self._hparams.items()}
        self._stages.writer("").hparams(shown)
        self._hparams_are_written = True

    def _close_writers(self, state: State) -> None:
        if self._hparams_are_due:
            self._write_hparams()
        if self._hparams_are_written and not self._hparams_are_ended:
            self._hparams_are_ended = True
            status = "success" if state is State.COMPLETED else "failure"
            self._stages.writer("").add([encode.hparams_end(status)], 0)
        for writer in self._stages.all():
            writer.close()
            if writer.waiting:
                say(
                    f"{writer.waiting} of the records logged last could not be written to "
                    f"{writer.directory}; they are lost unless that changes before the end."
                )

    def _change_record(self, change: Callable[[Manifest], None]) -> None:
        if self._record is not None:
            self._record.change(change)

    def _catch_up(self, record: Manifest) -> None:
        """Bring the last values of all metrics into the record."""
        for stage, numbers in list(self._latest.items()):
            where = "/".join(part for part in (self._subdirectory, stage) if part)
            latest = {f"{where}/{tag}" if where else tag: one for tag, one in dict(numbers).items()}
            record.metrics.update(plain_values(latest))


class SilentRun(Run):
    """The run of a process that does not log: every call is there, and does nothing."""

    active = False

    def __init__(self, rank: int) -> None:
        self.name = self.experiment = self.root = self.uri = ""
        self.rank = rank
        self._latest = defaultdict(dict)
        _open_runs.append(self)

    @cached_property
    def logdir(self) -> str:
        """A directory of this process whose content is thrown away at its end."""
        directory = tempfile.mkdtemp(prefix="aboard-silent-")
        atexit.register(shutil.rmtree, directory, ignore_errors=True)
        return directory

    def finish(
        self,
        state: State | str | None = None,  # noqa: ARG002
        exit_code: int | None = None,  # noqa: ARG002
        reason: str = "",  # noqa: ARG002
    ) -> None:
        """Be the current run no longer."""
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
        raise _no_metrics(metrics)
    rest = dict(metrics)
    if name not in rest:
        known = ", ".join(map(str, rest)) or "none"
        raise ValueError(f"there is no metric {name!r} to be the step; there are {known}")
    told = rest.pop(name)
    at = to_whole(told, f"the step {name!r}") if step is None else to_whole(step, "the step")
    return at, rest


def _no_metrics(metrics: object) -> TypeError:
    kind = type(metrics).__name__
    return TypeError(f"metrics are a mapping from names to numbers, not a {kind}: {metrics!r:.60}")


def _number(tag: str, value: Any) -> float:
    try:
        return to_number(value)
    except (TypeError, ValueError, OverflowError):
        raise ValueError(f"the metric {tag!r} is {value!r:.60}, not a number") from None


def _no_change(record: Manifest) -> None:
    """Leave the record as catching up made it."""
