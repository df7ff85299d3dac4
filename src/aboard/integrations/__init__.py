"""Integrations with frameworks, one module each, imported only by its users.

This module is shared: it finds the run to log to, and finishes it.
"""

from __future__ import annotations

from typing import Any

from aboard.track.run import Run, open_runs
from aboard.track.start import init, resume

_PLACE = ("experiment", "name", "root", "resume", "purge_step")


class RunOfTraining:
    """The run that a training logs to: the one passed, else an open one, else its own.

    Its own run is finished when the training ends, and resumed if something is logged after that,
    such as a last evaluation. A run that the user opened is left open. A run that another training
    opened belongs to that training. A `part` of a training, such as an evaluation, logs to the run
    of its training, unless that run belongs to an earlier part of the same name. All options are
    for `aboard.init`, if a run has to be opened.
    """

    def __init__(self, run: Run | None = None, *, part: str = "", **options: Any) -> None:
        self._given = run
        self._part = part
        self._options = options
        self._own: Run | None = None

    @property
    def _own_is_open(self) -> bool:
        return self in _active

    def begin(self, **options: Any) -> Run:
        """Return the run of a training that begins: a new one, unless it has a name.

        An earlier training that did not end has failed, unless this one is a part of it.
        """
        self._abandon()
        if self._open_run() is None:
            for other in list(reversed(_active)):
                run = other._own
                repeats = self._part == other._part and run is not None and run.has_logged
                if not self._part or repeats:
                    other._abandon()
                elif run is not None:
                    return run
        if not self._part and self._options.get("name") is None:
            self._own = None
        return self.open(**options)

    def open(self, **options: Any) -> Run:
        run = self._open_run()
        if run is not None:
            return run
        options = {**options, **self._options}
        if self._own is not None and self._own.active:
            kept = {name: value for name, value in options.items() if name not in _PLACE}
            self._own = resume(self._own, **kept)
        else:
            self._own = init(**options)
        _active.append(self)
        return self._own

    def where(self, **options: Any) -> Run:
        """Return the run for its name and place, which a finished run still has."""
        return self._open_run() or self._own or self.open(**options)

    def _open_run(self) -> Run | None:
        return self._own if self._own_is_open else self._given or user_run()

    def finish(
        self, state: str | None = None, exit_code: int | None = None, reason: str = ""
    ) -> None:
        """Finish the run if it is the training's own."""
        if self._own is not None and self._own_is_open:
            _active.remove(self)
            self._own.finish(state, exit_code, reason)

    def _abandon(self) -> None:
        if self._own_is_open:
            self.finish("failed", reason="abandoned: another training began")
            if self._options.get("name") is None:
                self._own = None


_active: list[RunOfTraining] = []  # the trainings whose own run is open


def user_run() -> Run | None:
    """Return the last open run that does not belong to a training."""
    owned = [training._own for training in _active]
    return next((run for run in reversed(open_runs()) if run not in owned), None)
