"""The event files of a run, a directory for each stage, and the step that each stage is at.

Where an earlier attempt left off is left to `steps`; what is written to the files, to the run.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path

from aboard.events import encode
from aboard.events.encode import EncodedValue
from aboard.events.writer import EventWriter
from aboard.runs.layout import check_name
from aboard.track.say import say_problem, say_recovered
from aboard.track.steps import LastSteps

_LONGEST_WAIT = 1000
_LARGEST_WAIT = 16 << 20
"""So many records, and bytes of them, are remembered until a stage is known to do steps again."""


class _Undecided:
    """A stage of which nobody knows yet whether it takes up before the earlier attempts' end.

    Its records are remembered: if it does, the word that drops what is there from a step on drops
    them too, and they are written once more.
    """

    def __init__(self, writer: EventWriter) -> None:
        self.writer = writer
        self._bytes = 0
        self._again: list[Callable[[], None]] = []

    def remember(self, again: Callable[[], None], size: int) -> bool:
        """Remember how to write a record; say whether there is no end of them."""
        self._again.append(again)
        self._bytes += size
        return len(self._again) > _LONGEST_WAIT or self._bytes > _LARGEST_WAIT

    def go_back(self, step: int) -> None:
        """Drop what is there from a step on."""
        _drop_from(step, self.writer)
        for again in self._again:
            again()


class Stages:
    """The stages of a run.

    Args:
        directory: what stages are directories of.
        last_steps: where earlier attempts left off, if there may be any.
        rewinds: whether this attempt may do again what they did. Then the first metric that it
            logs at a step which they had logged it at, or gone beyond, makes TensorBoard drop
            what they have from that step on, in that stage.
        flush_secs: as for an `EventWriter`.
        purge_step: what TensorBoard is told at once, in every stage.
    """

    def __init__(
        self,
        directory: Path,
        *,
        last_steps: LastSteps | None = None,
        rewinds: bool = True,
        flush_secs: float = 1.0,
        purge_step: int | None = None,
    ) -> None:
        self.directory = directory
        self.writers: dict[str, EventWriter] = {}
        """Of all stages but the undecided ones."""
        self.steps: dict[str, int] = {}
        """The step that comes next where none is told."""
        self.lock = threading.RLock()
        self._last_steps = last_steps
        self._rewinds = rewinds and last_steps is not None and purge_step is None
        self._flush_secs = flush_secs
        self._purge_step = purge_step
        self._undecided: dict[str, _Undecided] = {}

    def all(self) -> list[EventWriter]:
        """Return every writer there is."""
        with self.lock:
            return [*self.writers.values(), *(one.writer for one in self._undecided.values())]

    def next_step(self, stage: str) -> int:
        """Return the step that comes next: the one after the last, of earlier attempts too."""
        step = self.steps.get(stage)
        if step is None and self._last_steps is not None:
            last = self._last_steps.of(stage)
            step = None if last is None else last + 1
        return step or 0

    def writer(self, stage: str) -> EventWriter:
        """Return the writer of a stage, for what is no metric.

        Raises:
            TypeError: the stage is no text.
            BadName: it cannot be a directory.
        """
        with self.lock:
            if stage in self.writers:
                return self.writers[stage]
            if stage in self._undecided:
                return self._undecided[stage].writer
            writer = self._new(stage)
            if self._rewinds:
                self._undecided[stage] = _Undecided(writer)
            else:
                self.writers[stage] = writer
            return writer

    def log(self, numbers: Mapping[str, float], step: int, stage: str) -> None:
        """Log metrics; once a stage is decided, its writer in `writers` does."""
        with self.lock:
            writer = self.writer(stage)
            undecided = self._undecided.get(stage)
            if undecided is not None and self._last_steps is not None:
                last = self._last_steps.by_tag(stage)
                # Some metrics may be counted in epochs, others in batches: those that went furthest
                # tell, since all of the stage is dropped from the step on.
                furthest = max(last.values(), default=None)
                if furthest is not None and any(last.get(tag) == furthest for tag in numbers):
                    if step <= furthest:
                        undecided.go_back(step)
                    self._decide(stage)
                else:
                    now = time.time()
                    again = partial(writer.scalars, dict(numbers), step, wall_time=now)
                    self._remember(stage, again, 0)
            writer.scalars(numbers, step)

    def add(self, values: Sequence[EncodedValue], step: int, stage: str) -> None:
        """Log anything else at a step."""
        with self.lock:
            writer, now = self.writer(stage), time.time()
            writer.add(values, step, wall_time=now)
            again = partial(writer.add, values, step, wall_time=now)
            self._remember(stage, again, sum([len(value.fields) for value in values]))

    def _remember(self, stage: str, again: Callable[[], None], size: int) -> None:
        if stage in self._undecided and self._undecided[stage].remember(again, size):
            self._decide(stage)

    def _decide(self, stage: str) -> None:
        self.writers[stage] = self._undecided.pop(stage).writer

    def _new(self, stage: str) -> EventWriter:
        if not isinstance(stage, str):
            raise TypeError(f"the stage is {stage!r:.60}, not a text such as 'train'")
        for part in stage.split("/") if stage else ():
            check_name(part, "stage")
        writer = EventWriter(
            self.directory / stage,
            flush_secs=self._flush_secs,
            on_error=say_problem,
            on_recovered=say_recovered,
        )
        if self._purge_step is not None:
            _drop_from(self._purge_step, writer)
        return writer


def _drop_from(step: int, writer: EventWriter) -> None:
    """Make TensorBoard drop what there is from a step on.

    It does so when a session starts, but not the first time that one does in a run.
    """
    for _ in range(2):
        writer.write(encode.session_start(time.time(), step))
