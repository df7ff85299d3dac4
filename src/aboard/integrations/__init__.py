"""Frameworks that log to a run by themselves, each in a module that only its users import.

What they share is here: which run to log to, when that run ends, and what to say when a
framework is not installed.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from aboard.track.run import Run, open_runs
from aboard.track.start import init, resume

_PLACE = ("experiment", "name", "root", "resume", "purge_step")


class RunOfTraining:
    """The run that a training logs to: the one given, else one that is open, else its own.

    Its own is finished when the training ends, and resumed by what is logged after that, such as
    a last evaluation. A run that somebody else opened is left for them to finish. One that another
    training opened is that training's: no later one logs to it.

    Args:
        run: the one given.
        part: for what is only a part of a training, as an evaluation is, or watches one: what
            this part is called. It logs to the run of the training it is a part of, unless that
            is another one of this very part.
        options: for `aboard.init`, if a run has to be made.
    """

    def __init__(self, run: Run | None = None, *, part: str = "", **options: Any) -> None:
        self._given = run
        self._part = part
        self._options = options
        self._own: Run | None = None

    @property
    def _own_is_open(self) -> bool:
        return self in _going_on

    @property
    def _has_logged(self) -> bool:
        """Whether it is more than set up: several parts of a kind may be set up together."""
        return self._own is not None and self._own.has_logged

    def begin(self, **options: Any) -> Run:
        """Return the run of a training that begins: another one, unless it was named.

        A training that never came to its end has failed if this one cannot be a part of it.
        """
        self._abandon()
        if self._open_run() is None:
            for other in list(reversed(_going_on)):
                if not self._part or (self._part == other._part and other._has_logged):
                    other._abandon()
                elif other._own is not None:
                    return other._own
        if not self._part and self._options.get("name") is None:
            self._own = None
        return self.open(**options)

    def open(self, **options: Any) -> Run:
        """Return the run to log to; the options are for `aboard.init`, if one is to be made."""
        run = self._open_run()
        if run is not None:
            return run
        options = {**options, **self._options}
        if self._own is not None and self._own.active:
            kept = {name: value for name, value in options.items() if name not in _PLACE}
            self._own = resume(self._own, **kept)
        else:
            self._own = init(**options)
        _going_on.append(self)
        return self._own

    def where(self, **options: Any) -> Run:
        """Return the run to ask for its name and place, which a finished one still tells."""
        return self._open_run() or self._own or self.open(**options)

    def _open_run(self) -> Run | None:
        return self._own if self._own_is_open else self._given or opened_by_the_user()

    def finish(
        self, state: str | None = None, exit_code: int | None = None, reason: str = ""
    ) -> None:
        """Finish the run if it is the training's own."""
        if self._own is not None and self._own_is_open:
            _going_on.remove(self)
            self._own.finish(state, exit_code, reason)

    def _abandon(self) -> None:
        if self._own_is_open:
            self.finish("failed", reason="abandoned: another training began")
            if self._options.get("name") is None:
                self._own = None


_going_on: list[RunOfTraining] = []
"""The trainings whose own runs are open."""


def opened_by_the_user() -> Run | None:
    """Return the run that was opened last, is still open, and is not a training's own."""
    of_trainings = [training._own for training in _going_on]
    return next((run for run in reversed(open_runs()) if run not in of_trainings), None)


@contextmanager
def needing(package: str, install: str) -> Iterator[None]:
    """Say what to install where an import fails because a package is missing."""
    try:
        yield
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] != package:
            raise
        text = f"this needs {package}, which is not installed: pip install {install}"
        raise ImportError(text, name=package) from None
