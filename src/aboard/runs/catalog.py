"""Which of the files below a root make a run: names in, directories of runs out.

A directory with a `run.json` is a run, with everything below it. Event files that lie in none are
raw runs: their first two directories are experiment and run, as in the layout of our own.
"""

from __future__ import annotations

import os
import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from aboard.runs.manifest import FILE_NAME
from aboard.runs.naming import is_logdir
from aboard.storage import Entry, canonical

EVENTS = "tfevents"
"""A file is an event file if its name contains this, as TensorBoard holds it."""
_DEFAULT_ROOT = "runs"
_DIGITS = re.compile(r"[0-9]+")


class Found(NamedTuple):
    """A run below a root.

    Attributes:
        version: of its record; None for a raw directory.
        mark: changes whenever an event file of the run does.
    """

    version: str | None
    mark: int


def is_of_a_run(name: str) -> bool:
    """Say whether a file of this name can make a run."""
    return name == FILE_NAME or EVENTS in name


def find_runs(entries: Iterable[Entry]) -> dict[str, Found]:
    """Sort the files of a root into runs, by their directories."""
    versions: dict[str, str | None] = {}
    marks: dict[str, int] = {}
    for entry in entries:
        directory, _, name = entry.name.rpartition("/")
        if name == FILE_NAME:
            versions[directory] = entry.version
        elif EVENTS in name:
            mark = hash((name, entry.size, entry.version))
            marks[directory] = marks.get(directory, 0) ^ mark
    recorded = frozenset(versions)
    of_runs: dict[str, int] = {}
    for directory, mark in marks.items():
        run = run_of(directory, recorded)
        versions.setdefault(run, None)
        of_runs[run] = of_runs.get(run, 0) ^ hash((directory, mark))
    return {run: Found(version, of_runs.get(run, 0)) for run, version in versions.items()}


def run_of(directory: str, recorded: Collection[str]) -> str:
    """Return the run that a directory is part of, given the directories that have a record."""
    above = directory
    while above not in recorded:
        if not above:
            return _raw_directory(directory)
        above = above.rpartition("/")[0]
    return above


def find_roots(given: Sequence[str], environment: Mapping[str, str] | None = None) -> list[str]:
    """Return the roots to look for runs in: those given, else `ABOARD_ROOT`, else `./runs`.

    `ABOARD_ROOT` is one root, as it is to the jobs that write there; a path may have any character.
    """
    variables = os.environ if environment is None else environment
    if given:
        texts = list(given)
    elif variables.get("ABOARD_ROOT"):
        texts = [variables["ABOARD_ROOT"]]
    else:
        texts = [_DEFAULT_ROOT] if Path(_DEFAULT_ROOT).is_dir() else []
    return list(dict.fromkeys(canonical(text) for text in texts))


def natural(name: str) -> str:
    """Return a key that sorts `run10` after `run9`."""
    return _DIGITS.sub(_weighed, name)


def _weighed(number: re.Match[str]) -> str:
    """Write a number so that it sorts by its length first, and before all that is no number."""
    digits = number[0].lstrip("0")
    return f"\0{chr(len(digits))}{digits}"


def _raw_directory(directory: str) -> str:
    """Return the run that a directory of event files is part of."""
    parts = directory.split("/") if directory else []
    while len(parts) > 1 and is_logdir(parts[-1]):
        parts.pop()
    return "/".join(parts[:2])
