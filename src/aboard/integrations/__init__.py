"""Frameworks that log to a run by themselves, each in a module that only its users import.

What they share is here: which run to log to, when that run ends, and what to say when a
framework is not installed.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from aboard.track.place import find_place
from aboard.track.run import Run, current_run
from aboard.track.start import init


class RunOfTraining:
    """The run that a training logs to: the one given, else the one that is open, else its own.

    Its own is finished when the training ends, and resumed by what is logged after that, such as
    a last evaluation. A run that somebody else opened is left for them to finish.
    """

    def __init__(self, run: Run | None = None, **options: Any) -> None:
        self._given = run
        self._options = options
        self._own: Run | None = None
        self._own_is_open = False

    def begin(self, **options: Any) -> Run:
        """Return the run of a training that begins: another one, unless it was named."""
        if not self._own_is_open and self._options.get("name") is None:
            self._own = None
        return self.open(**options)

    def open(self, **options: Any) -> Run:
        """Return the run to log to; the options are for `aboard.init`, if one is to be made."""
        run = self._open_run()
        if run is not None:
            return run
        options = {**options, **self._options}
        if self._own is not None and self._own.active and not _is_named(options):
            options |= {"experiment": self._own.experiment, "name": self._own.name}
            options |= {"root": self._own.root, "resume": True}
        self._own = init(**options)
        self._own_is_open = True
        return self._own

    def where(self, **options: Any) -> Run:
        """Return the run to ask for its name and place, which a finished one still tells."""
        return self._open_run() or self._own or self.open(**options)

    def _open_run(self) -> Run | None:
        return self._own if self._own_is_open else self._given or current_run()

    def finish(
        self, state: str | None = None, exit_code: int | None = None, reason: str = ""
    ) -> None:
        """Finish the run if it is the training's own."""
        if self._own is not None and self._own_is_open:
            self._own_is_open = False
            self._own.finish(state, exit_code, reason)


def _is_named(options: dict[str, Any]) -> bool:
    """Say whether the environment names the run, so that the same options lead to it again."""
    place = find_place(options.get("root"), options.get("experiment"), options.get("name"))
    return place.expected


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
