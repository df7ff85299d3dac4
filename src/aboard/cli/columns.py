"""The columns of a list of runs: what each holds, how it is written, and how it sorts."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from difflib import get_close_matches
from typing import Any, NamedTuple

from aboard.cli.errors import WrongUsage
from aboard.cli.wording import duration, moment
from aboard.runs.catalog import natural
from aboard.runs.known import KnownRun

DEFAULT = ("run", "state", "created", "duration", "host", "user", "tags")
_GROUPS = ("hparams", "metrics", "tags")
_NOTHING = "-"


def _state(run: KnownRun, now: float) -> str | None:
    state = run.state_at(now)
    return None if state is None else state.value


_VALUES: dict[str, Callable[[KnownRun, float], Any]] = {
    "run": lambda run, _now: run.label,
    "experiment": lambda run, _now: run.experiment or None,
    "name": lambda run, _now: run.name,
    "state": _state,
    "created": lambda run, _now: run.created or None,
    "started": lambda run, _now: run.started or None,
    "ended": lambda run, _now: run.ended,
    "heartbeat": lambda run, _now: run.heartbeat or None,
    "duration": lambda run, now: run.seconds_at(now),
    "host": lambda run, _now: run.host or None,
    "user": lambda run, _now: run.user or None,
    "job": lambda run, _now: run.job or None,
    "workspace": lambda run, _now: run.workspace or None,
    "git_commit": lambda run, _now: run.git_commit or None,
    "exit_code": lambda run, _now: run.exit_code,
    "reason": lambda run, _now: run.reason or run.problem or None,
    "tags": lambda run, _now: run.tags,
    "hparams": lambda run, _now: run.hparams,
    "metrics": lambda run, _now: run.metrics,
    "uri": lambda run, _now: run.uri,
    "root": lambda run, _now: run.root,
}
_TIMES = {"created", "started", "ended", "heartbeat"}
NAMES = (*_VALUES, "hparams.NAME", "metrics.NAME", "tags.NAME")


class Column(NamedTuple):
    """One column: its name as it was given."""

    name: str

    @classmethod
    def parse(cls, text: str) -> Column:
        """Read the name of a column; one that does not exist is an error that names the nearest."""
        name = text.strip()
        group, dot, rest = name.partition(".")
        if name in _VALUES or (group in _GROUPS and dot and rest):
            return cls(name)
        near = get_close_matches(name, [*_VALUES, *(f"{one}." for one in _GROUPS)], n=1)
        meant = f"Did you mean {near[0]!r}? " if near else ""
        raise WrongUsage(f"there is no column {name!r}. {meant}Known are {', '.join(NAMES)}.")

    def values(self, runs: Sequence[KnownRun], now: float) -> list[Any]:
        """Return what the column holds for each run; None if a run lacks it."""
        if (value := _VALUES.get(self.name)) is not None:
            return [value(run, now) for run in runs]
        group, _, name = self.name.partition(".")
        return [_VALUES[group](run, now).get(name) for run in runs]

    def texts(self, runs: Sequence[KnownRun], now: float) -> list[str]:
        """Write what the column holds for each run."""
        if self.name in _TIMES:
            write: Callable[[Any], str] = moment
        else:
            write = duration if self.name == "duration" else written
        return [_NOTHING if one is None else write(one) for one in self.values(runs, now)]


def written(value: object) -> str:
    """Write a value of a record."""
    if isinstance(value, str):
        return value
    if isinstance(value, dict):
        shown = (one if held is True else f"{one}={written(held)}" for one, held in value.items())
        return ", ".join(shown) or _NOTHING
    if isinstance(value, bool):
        return "true" if value else "false"
    return f"{value:.6g}" if isinstance(value, float) else str(value)


def parse_columns(text: str) -> list[Column]:
    """Read a list of columns, separated by commas."""
    names = [name for name in text.split(",") if name.strip()]
    if not names:
        raise WrongUsage(f"--columns names no column. Known are {', '.join(NAMES)}.")
    return [Column.parse(name) for name in names]


def in_order(runs: Sequence[KnownRun], text: str, now: float) -> list[KnownRun]:
    """Sort runs by a column, downwards after a `-`; those that lack the value come last."""
    downwards = text.startswith("-")
    column = Column.parse(text.removeprefix("-"))
    values = list(zip(column.values(runs, now), runs, strict=True))
    held = [(_key(value), run) for value, run in values if value is not None]
    held.sort(key=lambda pair: pair[0], reverse=downwards)
    return [run for _, run in held] + [run for value, run in values if value is None]


def _key(value: object) -> tuple[int, Any]:
    if isinstance(value, (bool, int, float)):
        return 0, value
    return 1, natural(written(value))
