"""A run as catalogs and selectors see it: where it is, and what its record says in short.

A directory with event files and no `run.json` is a run too; then its path is all that is known.
Ten thousand of these are made for one listing, so they are tuples, and mappings stay JSON until
somebody asks for them.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any, NamedTuple

from aboard.runs.manifest import HEARTBEAT_SECS, Manifest, State
from aboard.storage import join

_STATES = {state.value: state for state in State}
_LONE_HALF = re.compile("[\ud800-\udfff]")


class KnownRun(NamedTuple):
    """One run below a root.

    Attributes:
        root: the URI of the root.
        directory: where the run lies below it; empty for the root itself.
        experiment: what it is part of; empty for a raw directory directly below the root.
        name: its name within the experiment.
        recorded_state: the state as it was written; empty if there is no record.
        hparams_json: hyperparameters, as JSON; likewise tags and metrics.
        problem: why its record cannot be understood; empty if it can, or if there is none.
    """

    root: str
    directory: str
    experiment: str
    name: str
    recorded_state: str = ""
    workspace: str = ""
    job: str = ""
    host: str = ""
    user: str = ""
    git_commit: str = ""
    reason: str = ""
    exit_code: int | None = None
    created: float = 0.0
    started: float = 0.0
    ended: float | None = None
    heartbeat: float = 0.0
    heartbeat_secs: float = HEARTBEAT_SECS
    hparams_json: str = "{}"
    tags_json: str = "{}"
    metrics_json: str = "{}"
    problem: str = ""

    @classmethod
    def of_record(cls, root: str, directory: str, record: Manifest) -> KnownRun:
        """Describe a run by its record."""
        return cls(
            root,
            directory,
            _text(record.experiment),
            _text(record.name),
            record.state.value,
            _text(record.workspace),
            _text(record.job),
            _text(record.host),
            _text(record.user),
            _text(record.git_commit),
            _text(record.reason),
            _exit_code(record.exit_code),
            record.created,
            record.started,
            record.ended,
            record.heartbeat,
            _seconds(record.heartbeat_secs),
            _json(record.hparams),
            _json(record.tags),
            _json(record.metrics),
        )

    @classmethod
    def of_path(cls, root: str, directory: str, problem: str = "") -> KnownRun:
        """Describe a run by its path alone."""
        experiment, _, name = directory.rpartition("/")
        return cls(
            root, directory, experiment, name or root.rpartition("/")[2], problem=_text(problem)
        )

    @property
    def uri(self) -> str:
        """Where the run's logs are."""
        return join(self.root, self.directory)

    @property
    def label(self) -> str:
        """The run as people say it."""
        return f"{self.experiment}/{self.name}" if self.experiment else self.name

    @property
    def is_recorded(self) -> bool:
        """Whether there is a record, and one that can be understood."""
        return bool(self.recorded_state)

    @property
    def hparams(self) -> dict[str, Any]:
        """The hyperparameters that were recorded."""
        return _mapping(self.hparams_json)

    @property
    def tags(self) -> dict[str, Any]:
        """The tags that were recorded."""
        return _mapping(self.tags_json)

    @property
    def metrics(self) -> dict[str, Any]:
        """The last value of each metric that was recorded, by `stage/name`."""
        return _mapping(self.metrics_json)

    def state_at(self, now: float) -> State | None:
        """Return how the run stands; nobody knows of a raw directory."""
        if not self.recorded_state:
            return None
        state = _STATES[self.recorded_state]
        if state is not State.RUNNING:
            return state
        beating = Manifest(
            self.name, heartbeat=self.heartbeat, heartbeat_secs=self.heartbeat_secs, state=state
        )
        return beating.state_at(now)

    def seconds_at(self, now: float) -> float | None:
        """Return how long the run took, or has taken so far; until its last beat if it is lost."""
        if not self.started:
            return None
        end = self.ended
        if not end:
            end = now if self.state_at(now) is State.RUNNING else self.heartbeat
        return max(0.0, end - self.started)


def _mapping(text: str) -> dict[str, Any]:
    found: dict[str, Any] = {} if text == "{}" else json.loads(text)
    return found


def _json(values: Mapping[str, Any]) -> str:
    """Return JSON that strict parsers take too, with lone halves written out as in `_text`."""
    text = json.dumps(values)
    if "\\ud" not in text:
        return text
    text = json.dumps(values, ensure_ascii=False)
    return _LONE_HALF.sub(lambda half: f"\\\\u{ord(half[0]):04x}", text)


def _text(text: str) -> str:
    """Return text that a database takes: a lone half of a surrogate pair is not Unicode."""
    return text if text.isascii() else text.encode(errors="backslashreplace").decode()


def _exit_code(code: int | None) -> int | None:
    return code if code is not None and abs(code) < 1 << 32 else None


def _seconds(seconds: float) -> float:
    return float(min(max(seconds, 0.0), 1e9))
