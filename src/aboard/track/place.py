"""Where a run goes: what the caller says first, then the environment, then `./runs`.

Only text is looked at here; whether the place exists is found out by whoever writes there.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import NamedTuple

from aboard.runs.layout import DEFAULT_EXPERIMENT, check_name, directory_of
from aboard.storage import canonical, join, split
from aboard.track import env

FALLBACK = "runs"


class Place(NamedTuple):
    """Where a run goes."""

    root: str
    experiment: str
    name: str | None
    """None: the next free one of the experiment."""
    directory: str | None = None
    """The run's own directory, where the environment names it; else it follows from the rest."""
    joined: bool = False
    """`aboard run` has claimed the run and keeps its record; we only log."""
    expected: bool = False
    """The environment names the run: if it exists, we are another attempt at it."""
    fallback: bool = False
    """Nobody said anything."""
    asked: tuple[str | None, str | None] = (None, None)
    """Experiment and name that the caller asked for, whether or not they are what it is called."""
    recorded_at: str | None = None
    """Where `aboard run` says that the joined run lies."""
    inside: Place | None = None
    """The run whose directory this one lies in, where that is not simply its experiment's."""

    @property
    def folder(self) -> tuple[str, str]:
        """The storage, and the directory in it that the run's own is one of."""
        if self.inside is None:
            return self.root, self.experiment
        return split(self.inside.uri_of(self.inside.name or ""))

    def uri_of(self, name: str) -> str:
        """Return where the run of that name lies."""
        storage, folder = self.folder
        return self.directory or join(storage, directory_of(folder, name))

    def whole_uri_of(self, name: str) -> str:
        """Return where it lies in the end: what `aboard run` records may be carried to a bucket."""
        if self.inside is not None:
            return join(self.inside.whole_uri_of(self.inside.name or ""), name)
        if self.joined:
            return self.recorded_at or join(self.root, directory_of(self.experiment, name))
        return self.uri_of(name)


def find_place(
    root: str | os.PathLike[str] | None,
    experiment: str | None,
    name: str | None,
    environment: Mapping[str, str] | None = None,
) -> Place:
    """Decide where a run goes.

    Raises:
        BadName: the experiment or the run cannot be called that.
        BadUri: the root is no path and no URI.
    """
    variables = os.environ if environment is None else environment
    asked = experiment, name
    if experiment is not None:
        check_name(experiment, "experiment")
    if name is not None:
        check_name(name, "run")
    told_experiment, told_name = env.named_run(variables) or (None, None)
    joined = bool(variables.get(env.ATTEMPT) and variables.get(env.LOGDIR))
    if joined and root is not None:
        if canonical(os.fspath(root)) == variables.get(env.ROOT):
            root = None  # it is where we are already
        else:
            told_experiment = told_name = None  # a run apart from the one we are in
    if root is None and (logdir := _logdir(variables)):
        if joined:  # the run has its name already
            experiment, name = told_experiment or experiment, told_name or name
        else:
            experiment, name = experiment or told_experiment, name or told_name
        return _fixed(logdir, experiment, name, joined, variables)._replace(asked=asked)
    told_root = os.fspath(root) if root is not None else variables.get(env.ROOT)
    if experiment is None and name is None and told_name is not None:
        check_name(told_name, f"run in {env.RUN}")
        check_name(told_experiment or DEFAULT_EXPERIMENT, f"experiment in {env.RUN}")
        experiment, name, expected = told_experiment, told_name, True
    else:
        expected = False
    return Place(
        canonical(told_root or FALLBACK),
        experiment or DEFAULT_EXPERIMENT,
        name,
        expected=expected,
        fallback=not told_root,
    )


def _logdir(variables: Mapping[str, str]) -> str | None:
    """Return the log directory of the job; a root of ours outranks those of other platforms."""
    if variables.get(env.ROOT) and not variables.get(env.LOGDIR):
        return None
    return env.logdir_from_environment(variables)


def _fixed(
    logdir: str,
    experiment: str | None,
    name: str | None,
    joined: bool,
    variables: Mapping[str, str],
) -> Place:
    directory = canonical(logdir)
    above, last = split(directory)
    attempt_at = variables.get(env.ATTEMPT, "")
    return Place(
        variables.get(env.ROOT) or above,
        experiment or DEFAULT_EXPERIMENT,
        name or last or "run",
        directory,
        joined=joined,
        expected=True,
        recorded_at=attempt_at if joined and "/" in attempt_at else None,
    )
