"""The record of a run, `run.json`: what it is, how it goes, and every attempt at it.

A manifest is read, changed and replaced as a whole; fields that a newer version wrote are kept.
Who claims the name of a run is left to `layout`, and when a heart beats to `track`.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import math
import os
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from enum import StrEnum
from typing import Any, Self

from aboard.runs.values import plain_tags
from aboard.storage import Storage
from aboard.storage.local import LocalStorage

FILE_NAME = "run.json"
SCHEMA = 1
HEARTBEAT_SECS = 30.0
_BEATS_MISSED = 5
"""A run whose heart missed so many beats is lost."""

Reader = Callable[[Any], object]
"""Turns a field of the JSON document into its value, or raises TypeError or ValueError."""
_LOCK_SECS = 10.0
"""How long to wait for another process to be done with a record, before going ahead anyway."""
_lock = threading.RLock()


def _after_fork() -> None:
    global _lock  # noqa: PLW0603 - a thread that is not in the child may have held it
    _lock = threading.RLock()


os.register_at_fork(after_in_child=_after_fork)


class BadManifest(ValueError):  # noqa: N818 - named by what is wrong
    """A `run.json` that is not one; the text says where and why."""


class State(StrEnum):
    """How a run stands. `LOST` is never written: it is how a stale heartbeat reads."""

    RUNNING = "running"
    COMPLETED = "completed"
    FAILED = "failed"
    KILLED = "killed"
    LOST = "lost"


@dataclass(slots=True)
class Attempt:
    """One process, or group of them, that worked on a run; a preempted run has several."""

    number: int
    host: str = ""
    pid: int = 0
    job: str = ""
    started: float = 0.0
    ended: float | None = None
    state: State = State.RUNNING
    exit_code: int | None = None
    reason: str = ""
    others: dict[str, Any] = field(default_factory=dict)


@dataclass(slots=True)
class Manifest:
    """What `run.json` holds; `others` are the fields this version does not know."""

    name: str
    experiment: str = ""
    workspace: str = ""
    job: str = ""
    hparams: dict[str, Any] = field(default_factory=dict)
    tags: dict[str, Any] = field(default_factory=dict)
    metrics: dict[str, Any] = field(default_factory=dict)
    command: list[str] = field(default_factory=list)
    host: str = ""
    user: str = ""
    git_commit: str = ""
    restart_key: str = ""
    """What the process and the one that replaces it after a preemption have in common."""
    created: float = 0.0
    started: float = 0.0
    ended: float | None = None
    heartbeat: float = 0.0
    heartbeat_secs: float = HEARTBEAT_SECS
    state: State = State.RUNNING
    exit_code: int | None = None
    reason: str = ""
    attempts: list[Attempt] = field(default_factory=list)
    schema: int = SCHEMA
    others: dict[str, Any] = field(default_factory=dict)

    @classmethod
    def from_json(cls, text: bytes | str, where: str = FILE_NAME) -> Self:
        """Read a manifest.

        Raises:
            BadManifest: it is not JSON, or a field has the wrong type.
        """
        try:
            document = json.loads(text, parse_constant=_finite, parse_float=_finite)
        except (ValueError, RecursionError) as error:
            problem = f"this is not JSON ({error})"
            raise BadManifest(f"{where}: {problem}. Repair or remove the file.") from None
        if not isinstance(document, dict) or not isinstance(document.get("name"), str):
            problem = "this is not the record of a run, which has a 'name'"
            raise BadManifest(f"{where}: {problem}. Repair or remove the file.")
        fields = _known(_MANIFEST_FIELDS, document, where)
        fields["attempts"] = [
            Attempt(**_known(_ATTEMPT_FIELDS, {"number": number, **attempt}, where))
            for number, attempt in enumerate(fields.get("attempts", []), 1)
        ]
        return cls(**fields)

    def to_json(self) -> bytes:
        """Write the manifest, indented, for people to read too.

        Raises:
            BadManifest: a field has a value that could not be read again.
        """
        document = _document(self, _MANIFEST_FIELDS)
        document["attempts"] = [_document(one, _ATTEMPT_FIELDS) for one in self.attempts]
        for one in document["attempts"]:
            _known(_ATTEMPT_FIELDS, one, FILE_NAME)
        _known(_MANIFEST_FIELDS, document, FILE_NAME)
        text = json.dumps(document, indent=2, ensure_ascii=False, allow_nan=False)
        # What is left of bytes that are no text (in a command, say) is an escape of JSON too.
        return text.encode(errors="backslashreplace") + b"\n"

    def begin(self, *, at: float, host: str, pid: int, job: str = "") -> Attempt:
        """Start another attempt; the one before it, if it never ended, was killed."""
        if self.attempts and self.attempts[-1].state is State.RUNNING:
            previous = self.attempts[-1]
            previous.state, previous.ended = State.KILLED, self.heartbeat or None
            previous.reason = previous.reason or "another attempt began"
        attempt = Attempt(len(self.attempts) + 1, host=host, pid=pid, job=job, started=at)
        self.attempts.append(attempt)
        self.state, self.exit_code, self.ended, self.reason = State.RUNNING, None, None, ""
        self.started = self.started or at
        self.heartbeat = at
        self.host, self.job = host or self.host, job or self.job
        return attempt

    def end(
        self,
        state: State | str,
        exit_code: int | None = None,
        reason: str = "",
        at: float | None = None,
        number: int | None = None,
    ) -> None:
        """Note how an attempt ended: the last one unless told, and with it the run."""
        state = State(state)
        at = time.time() if at is None else at
        for attempt in self.attempts[-1:] if number is None else self.attempts:
            if number in (None, attempt.number):
                attempt.state, attempt.ended = state, at
                attempt.exit_code, attempt.reason = exit_code, reason
        if self._is_last(number):
            self.state, self.ended, self.exit_code, self.reason = state, at, exit_code, reason
            self.heartbeat = max(self.heartbeat, at)

    def beat(self, at: float, number: int | None = None) -> None:
        """Note that an attempt is alive, and that it runs, whatever was noted meanwhile.

        An attempt that another one has taken over from is not what the run is waiting for.
        """
        if not self._is_last(number):
            return
        self.heartbeat = at
        living: list[Manifest | Attempt] = [self, *self.attempts[-1:]]
        for one in living:
            if one.state is not State.RUNNING:
                one.state, one.ended, one.exit_code, one.reason = State.RUNNING, None, None, ""

    def _is_last(self, number: int | None) -> bool:
        return number is None or not self.attempts or self.attempts[-1].number == number

    def state_at(self, now: float) -> State:
        """Return the state, with a heartbeat that stopped read as lost."""
        silent = now - self.heartbeat > _BEATS_MISSED * self.heartbeat_secs
        return State.LOST if self.state is State.RUNNING and silent else self.state


def read(storage: Storage, directory: str = "") -> Manifest:
    """Read the manifest of a run's directory in a storage.

    Raises:
        BadManifest: it cannot be understood.
        NotFound: there is none.
    """
    name = _name(directory)
    return Manifest.from_json(storage.read(name), f"{storage.uri}/{name}")


def update(storage: Storage, change: Callable[[Manifest], None], directory: str = "") -> Manifest:
    """Change a manifest; on a local disk, one process after the other."""
    with _lock, _locked(storage, directory):
        manifest = read(storage, directory)
        change(manifest)
        storage.write(_name(directory), manifest.to_json())
    return manifest


def _name(directory: str) -> str:
    return f"{directory}/{FILE_NAME}" if directory else FILE_NAME


@contextlib.contextmanager
def _locked(storage: Storage, directory: str) -> Iterator[None]:
    """Hold a lock on a local directory; where locks are not to be had, go without."""
    descriptor = None
    if isinstance(storage, LocalStorage):
        with contextlib.suppress(OSError):
            descriptor = os.open(f"{storage.uri}/{directory}", os.O_RDONLY | os.O_DIRECTORY)
            _wait_for_lock(descriptor)
    try:
        yield
    finally:
        if descriptor is not None:
            with contextlib.suppress(OSError):
                # Closing is not enough: a child that was forked meanwhile has it open as well.
                fcntl.flock(descriptor, fcntl.LOCK_UN)
            os.close(descriptor)


def _wait_for_lock(descriptor: int) -> None:
    deadline = time.monotonic() + _LOCK_SECS
    pause = 0.001
    while time.monotonic() < deadline:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            time.sleep(pause)
            pause = min(pause * 1.5, 0.05)
        else:
            return


# Fields to JSON and back. Times are numbers in Python and RFC 3339 in the file.


def _finite(text: str) -> float:
    number = float(text)
    if not math.isfinite(number):
        raise ValueError(f"{text} is no number of JSON")
    return number


def _time_to_text(moment: float | None) -> str | None:
    if not moment:
        return None
    return datetime.fromtimestamp(moment, UTC).isoformat(timespec="milliseconds")[:-6] + "Z"


def _time_from_text(text: object) -> float | None:
    if text is None:
        return None
    if not isinstance(text, str):
        raise TypeError
    moment = datetime.fromisoformat(text)
    number = (moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp()
    _time_to_text(number)  # or it could not be written again
    return number


def _time_or_none_yet(text: object) -> float:
    return _time_from_text(text) or 0.0


def _of_type(*types: type) -> Reader:
    def check(value: object) -> object:
        if not isinstance(value, types) or (isinstance(value, bool) and bool not in types):
            raise TypeError
        return value

    return check


def _texts(value: object) -> list[str]:
    if not isinstance(value, list):
        raise TypeError
    return [str(one) for one in value]


def _documents(value: object) -> list[dict[str, Any]]:
    if not isinstance(value, list) or not all(isinstance(one, dict) for one in value):
        raise TypeError
    return value


def _tags_of_json(value: object) -> dict[str, Any]:
    """Read tags as a mapping, or as the list that people write by hand."""
    if isinstance(value, dict):
        return value
    if isinstance(value, list):
        return plain_tags(value)
    raise TypeError


_TIMES = (_time_from_text, _time_or_none_yet)
_TEXT = _of_type(str)
_MAPPING = _of_type(dict)
_NUMBER = _of_type(int, float)
_OPTIONAL_NUMBER = _of_type(int, type(None))
_ATTEMPT_FIELDS: dict[str, Reader] = {
    "number": _of_type(int),
    "state": State,
    "host": _TEXT,
    "pid": _of_type(int),
    "job": _TEXT,
    "started": _time_or_none_yet,
    "ended": _time_from_text,
    "exit_code": _OPTIONAL_NUMBER,
    "reason": _TEXT,
}
_MANIFEST_FIELDS: dict[str, Reader] = {
    "schema": _of_type(int),
    "name": _TEXT,
    "experiment": _TEXT,
    "workspace": _TEXT,
    "job": _TEXT,
    "state": State,
    "exit_code": _OPTIONAL_NUMBER,
    "reason": _TEXT,
    "created": _time_or_none_yet,
    "started": _time_or_none_yet,
    "ended": _time_from_text,
    "heartbeat": _time_or_none_yet,
    "heartbeat_secs": _NUMBER,
    "hparams": _MAPPING,
    "tags": _tags_of_json,
    "metrics": _MAPPING,
    "command": _texts,
    "host": _TEXT,
    "user": _TEXT,
    "git_commit": _TEXT,
    "restart_key": _TEXT,
    "attempts": _documents,
}


def _known(
    readers: Mapping[str, Reader], document: Mapping[str, Any], where: str
) -> dict[str, Any]:
    """Read the fields we know; put the rest under `others`."""
    fields: dict[str, Any] = {"others": {}}
    for name, value in document.items():
        if name not in readers:
            fields["others"][name] = value
            continue
        try:
            fields[name] = readers[name](value)
        except (TypeError, ValueError, OverflowError):
            problem = f"the field {name!r} cannot be {value!r:.40}"
            raise BadManifest(f"{where}: {problem}. Repair or remove the file.") from None
    return fields


def _document(record: Any, readers: Mapping[str, Reader]) -> dict[str, Any]:
    """Write the fields we know in their order, then the others."""
    document = {}
    for name, reader in readers.items():
        value = getattr(record, name)
        document[name] = _time_to_text(value) if reader in _TIMES else value
    return {**document, **record.others}
