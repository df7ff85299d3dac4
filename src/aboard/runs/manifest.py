"""The record of a run, `run.json`: its description, its state and every attempt at it.

A manifest is always read and replaced completely; fields written by a newer version are kept.
`catalog` claims the names of runs, and `track` sends heartbeats.
"""

from __future__ import annotations

import contextlib
import dataclasses
import fcntl
import json
import math
import os
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, fields
from datetime import UTC, datetime
from enum import StrEnum
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, Self, TypeVar
from weakref import WeakValueDictionary

from aboard.runs.units import FIRST_TIME, LAST_TIME, format_time
from aboard.storage import Changed, PermissionDenied, Storage, StorageError, Unsupported
from aboard.storage.base import is_refusal
from aboard.storage.local import LocalStorage
from aboard.system import Backoff, try_lock

if TYPE_CHECKING:
    from argparse import Namespace

    from _typeshed import DataclassInstance

    HParams = Mapping[str, object] | Namespace | SimpleNamespace | DataclassInstance

Tags = Mapping[str, object] | Iterable[str] | str

FILE_NAME = "run.json"
ENDED = f"{FILE_NAME}.ended-"
"""The prefix of the copy of a record that is made when a run ends, and never replaced.

It is needed in buckets where a delayed request could still replace the record itself."""
SCHEMA = 1
HEARTBEAT_SECS = 30.0
BEATS_MISSED = 5  # a run that missed this many heartbeats is lost
_MAX_CONFLICTS = 10  # attempts to change a record in a bucket
_LOCK_SECS = 10.0  # how long to wait for the lock on a record before changing it without the lock


Result = TypeVar("Result")
Reader = Callable[[Any], object]  # of a JSON value; raises TypeError or ValueError
_locks: WeakValueDictionary[tuple[str, str], threading.RLock] = WeakValueDictionary()
"""Of records that are being changed, by storage and name: one storage may hang."""
_locks_lock = threading.Lock()


def _after_fork() -> None:
    global _locks, _locks_lock  # a thread of the parent may have held them
    _locks, _locks_lock = WeakValueDictionary(), threading.Lock()


os.register_at_fork(after_in_child=_after_fork)


def _lock_of(storage: Storage, name: str) -> threading.RLock:
    with _locks_lock:
        return _locks.setdefault((storage.uri, name), threading.RLock())


class BadManifest(ValueError):
    """An invalid `run.json`; the text says where and why."""


class State(StrEnum):
    """The state of a run. `LOST` is never written: it means that heartbeats have stopped."""

    RUNNING = "running"
    COMPLETED = "completed"
    FAILED = "failed"
    KILLED = "killed"
    LOST = "lost"


# How fields are read. Times are numbers in Python and RFC 3339 in the file.


def _finite(text: str) -> float:
    number = float(text)
    if not math.isfinite(number):
        raise ValueError(f"{text} is not a JSON number")
    return number


_DECODER = json.JSONDecoder(parse_constant=_finite, parse_float=_finite)


def _time_from_text(text: object) -> float | None:
    if text is None:
        return None
    if not isinstance(text, str):
        raise TypeError
    moment = datetime.fromisoformat(text)
    number = (moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp()
    if not FIRST_TIME <= number <= LAST_TIME:
        raise ValueError  # out of the range of `datetime`
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
    if isinstance(value, dict):
        return value
    if isinstance(value, list):
        return plain_tags(value)
    raise TypeError


_TIMES = (_time_from_text, _time_or_none_yet)
# A value whose type is in "is" needs no reader.
_TEXT = {"read": _of_type(str), "is": str}
_TEXTS = {"read": _texts}
_INTEGER = {"read": _of_type(int), "is": int}
_NUMBER = {"read": _of_type(int, float), "is": float}
_OPTIONAL_NUMBER = {"read": _of_type(int, type(None)), "is": int}
_MAPPING = {"read": _of_type(dict), "is": dict}
_TAGS = {"read": _tags_of_json, "is": dict}
_TIME = {"read": _time_or_none_yet}
_OPTIONAL_TIME = {"read": _time_from_text}
_STATE = {"read": State}
_DOCUMENTS = {"read": _documents}


@dataclass(slots=True)
class Attempt:
    """A process, or group of processes, that worked on a run; a preempted run has several."""

    number: int = field(metadata=_INTEGER)
    state: State = field(default=State.RUNNING, metadata=_STATE)
    host: str = field(default="", metadata=_TEXT)
    pid: int = field(default=0, metadata=_INTEGER)
    job: str = field(default="", metadata=_TEXT)
    started: float = field(default=0.0, metadata=_TIME)
    ended: float | None = field(default=None, metadata=_OPTIONAL_TIME)
    exit_code: int | None = field(default=None, metadata=_OPTIONAL_NUMBER)
    reason: str = field(default="", metadata=_TEXT)
    others: dict[str, Any] = field(default_factory=dict)


@dataclass(slots=True)
class Manifest:
    """The record of a run."""

    name: str = field(metadata=_TEXT)
    experiment: str = field(default="", metadata=_TEXT)
    workspace: str = field(default="", metadata=_TEXT)
    job: str = field(default="", metadata=_TEXT)
    state: State = field(default=State.RUNNING, metadata=_STATE)
    exit_code: int | None = field(default=None, metadata=_OPTIONAL_NUMBER)
    reason: str = field(default="", metadata=_TEXT)
    created: float = field(default=0.0, metadata=_TIME)
    started: float = field(default=0.0, metadata=_TIME)
    ended: float | None = field(default=None, metadata=_OPTIONAL_TIME)
    heartbeat: float = field(default=0.0, metadata=_TIME)
    heartbeat_secs: float = field(default=HEARTBEAT_SECS, metadata=_NUMBER)
    hparams: dict[str, Any] = field(default_factory=dict, metadata=_MAPPING)
    tags: dict[str, Any] = field(default_factory=dict, metadata=_TAGS)
    metrics: dict[str, Any] = field(default_factory=dict, metadata=_MAPPING)
    note: str = field(default="", metadata=_TEXT)
    command: list[str] = field(default_factory=list, metadata=_TEXTS)
    host: str = field(default="", metadata=_TEXT)
    user: str = field(default="", metadata=_TEXT)
    git_commit: str = field(default="", metadata=_TEXT)
    # Shared by a process and the one that replaces it after a preemption.
    restart_key: str = field(default="", metadata=_TEXT)
    attempts: list[Attempt] = field(default_factory=list, metadata=_DOCUMENTS)
    schema: int = field(default=SCHEMA, metadata=_INTEGER)
    others: dict[str, Any] = field(default_factory=dict)  # fields not known here

    @classmethod
    def from_json(cls, text: bytes | str, where: str = FILE_NAME) -> Self:
        try:
            if isinstance(text, bytes):
                text = text.decode(json.detect_encoding(text), "surrogatepass")
            document = _DECODER.decode(text)
        except (ValueError, RecursionError) as error:
            problem = f"invalid JSON ({error})"
            raise BadManifest(f"{where}: {problem}. Repair or remove the file.") from None
        return cls.from_document(document, where)

    @classmethod
    def from_document(cls, document: object, where: str = FILE_NAME) -> Self:
        if not isinstance(document, dict) or not isinstance(document.get("name"), str):
            problem = "not the record of a run, which has a 'name'"
            raise BadManifest(f"{where}: {problem}. Repair or remove the file.")
        values = _known(cls, document, where)
        values["attempts"] = [
            Attempt(**_known(Attempt, {"number": number, **attempt}, where))
            for number, attempt in enumerate(values.get("attempts", []), 1)
        ]
        return cls(**values)

    def to_json(self) -> bytes:
        document = {"schema": self.schema, **_document(self)}
        document["attempts"] = [_document(one) for one in self.attempts]
        for one in document["attempts"]:
            _known(Attempt, one, FILE_NAME)
        _known(Manifest, document, FILE_NAME)
        text = json.dumps(document, indent=2, ensure_ascii=False, allow_nan=False)
        # A byte of a command that is not text is a lone surrogate, which JSON can escape.
        return text.encode(errors="backslashreplace") + b"\n"

    def begin(
        self, *, at: float, host: str, pid: int, job: str = "", engine_job: str = ""
    ) -> Attempt:
        """Start another attempt; mark the previous one as killed if it has not ended.

        The attempt begins no earlier than the latest time in the record, since the clocks of hosts
        may differ. It has the engine's id of its job; the run has `job` or, if that is empty, the
        engine's id.
        """
        if self.attempts and self.attempts[-1].state is State.RUNNING:
            previous = self.attempts[-1]
            previous.state, previous.ended = State.KILLED, self.heartbeat or None
            previous.reason = previous.reason or "another attempt began"
        at = max(at, self.latest_time) if self.attempts else at
        was_given = bool(self.job) and self.job not in {one.job for one in self.attempts}
        attempt = Attempt(
            len(self.attempts) + 1, host=host, pid=pid, job=engine_job or job, started=at
        )
        self.attempts.append(attempt)
        self.state, self.exit_code, self.ended, self.reason = State.RUNNING, None, None, ""
        self.started = self.started or at
        self.heartbeat = at
        self.host = host or self.host
        self.job = job or (not was_given and engine_job) or self.job
        return attempt

    @property
    def latest_time(self) -> float:
        """The latest time recorded by an attempt, by the clock of its host."""
        times = (max(one.started, one.ended or 0.0) for one in self.attempts)
        return max(self.heartbeat, max(times, default=0.0))

    def end(
        self,
        state: State | str,
        exit_code: int | None = None,
        reason: str = "",
        at: float | None = None,
        number: int | None = None,
    ) -> None:
        """Record how an attempt ended, by default the last; with the last one the run ends."""
        state = State(state)
        at = time.time() if at is None else at
        for attempt in self.attempts[-1:] if number is None else self.attempts:
            if number in (None, attempt.number):
                at = max(at, attempt.started)
                attempt.state, attempt.ended = state, at
                attempt.exit_code, attempt.reason = exit_code, reason
        if self._is_last(number):
            self.state, self.ended, self.exit_code, self.reason = state, at, exit_code, reason
            self.heartbeat = max(self.heartbeat, at)

    def beat(self, at: float, number: int | None = None) -> None:
        """Record a heartbeat of an attempt, unless another attempt has replaced it."""
        if not self._is_last(number):
            return
        self.heartbeat = at
        living: list[Manifest | Attempt] = [self, *self.attempts[-1:]]
        for one in living:
            if one.state is not State.RUNNING:
                one.state, one.ended, one.exit_code, one.reason = State.RUNNING, None, None, ""

    def edit(self, tags: Mapping[str, Any], note: str | None = None) -> None:
        """Set tags, remove tags whose value is None, and replace the note unless it is None."""
        kept = {name: value for name, value in self.tags.items() if name not in tags}
        self.tags = kept | {name: value for name, value in tags.items() if value is not None}
        self.note = self.note if note is None else note

    def _is_last(self, number: int | None) -> bool:
        return number is None or not self.attempts or self.attempts[-1].number == number

    def state_at(self, now: float) -> State:
        silent = now - self.heartbeat > BEATS_MISSED * self.heartbeat_secs
        return State.LOST if self.state is State.RUNNING and silent else self.state


def read(storage: Storage, directory: str = "") -> Manifest:
    """Read the record of a run, or raise `BadManifest` or `NoSuchPath`."""
    name = file_in(directory)
    return Manifest.from_json(storage.read(name), f"{storage.uri}/{name}")


def update(storage: Storage, change: Callable[[Manifest], None], directory: str = "") -> Manifest:
    """Change a manifest as `change_file` does; `change` may be called several times."""
    name = file_in(directory)

    def changed(content: bytes) -> tuple[bytes, Manifest]:
        manifest = Manifest.from_json(content, f"{storage.uri}/{name}")
        change(manifest)
        return manifest.to_json(), manifest

    return change_file(storage, name, changed)


def change_file(
    storage: Storage, name: str, change: Callable[[bytes], tuple[bytes, Result]]
) -> Result:
    """Change a record atomically: on a disk with a lock, in a bucket conditional on its version.

    `change` returns the new content and the result. It is called again if another process changed
    the record first.
    """
    directory = name.rpartition("/")[0]
    lock = _lock_of(storage, name)  # a name for it keeps it in use
    with lock, _locked(storage, directory):
        for _ in range(_MAX_CONFLICTS):
            version = _version(storage, name)  # before the content, which may change meanwhile
            content, result = change(storage.read(name))
            if _replace(storage, name, content, version):
                return result
    raise Changed(f"{storage.uri}/{name}", "other processes keep changing this file", "Try again.")


def _version(storage: Storage, name: str) -> str:
    """Return the version of a record in a bucket; "" if writes cannot be conditional."""
    try:
        return storage.version(name)
    except (Unsupported, PermissionDenied):
        return ""


def _replace(storage: Storage, name: str, content: bytes, version: str) -> bool:
    try:
        if version:
            storage.replace(name, content, version)
            return True
    except Changed:  # by another process, or by this request before it was repeated
        return storage.read(name) == content
    except StorageError as error:
        if not is_refusal(error):
            raise
    storage.write(name, content)
    return True


def ended_name(record: Manifest) -> str:
    """Return the name of the copy of a record that has ended; later copies sort last."""
    return f"{ENDED}{len(record.attempts):06}-{(record.ended or 0) * 1000:015.0f}"


def newer(record: Manifest, ended: Manifest) -> Manifest:
    """Return the newer of a run's record and its copy, by attempts and heartbeats."""
    ages = [(len(one.attempts), one.heartbeat) for one in (record, ended)]
    return record if ages[0] > ages[1] else ended


def file_in(directory: str) -> str:
    return f"{directory}/{FILE_NAME}" if directory else FILE_NAME


@contextlib.contextmanager
def _locked(storage: Storage, directory: str) -> Iterator[None]:
    """Hold a lock on a local directory; continue without it where locks are not supported."""
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
                # Closing is not enough: a child forked meanwhile has the file open as well.
                fcntl.flock(descriptor, fcntl.LOCK_UN)
            os.close(descriptor)


def _wait_for_lock(descriptor: int) -> None:
    deadline = time.monotonic() + _LOCK_SECS
    pause = Backoff(0.001, 0.05, 1.5)
    while time.monotonic() < deadline:
        if try_lock(descriptor):
            return
        time.sleep(pause.grow())


_READERS: dict[type, dict[str, Reader]] = {
    kind: {one.name: one.metadata["read"] for one in fields(kind) if one.metadata}
    for kind in (Manifest, Attempt)
}
_PLAIN: dict[type, dict[str, type]] = {
    kind: {one.name: one.metadata["is"] for one in fields(kind) if "is" in one.metadata}
    for kind in (Manifest, Attempt)
}


def _known(kind: type[Any], document: Mapping[str, Any], where: str) -> dict[str, Any]:
    readers, plain = _READERS[kind], _PLAIN[kind]
    values: dict[str, Any] = {"others": {}}
    name, value = "", None
    try:
        for name, value in document.items():
            if plain.get(name) is type(value):  # fast path: ten thousand records are read at once
                values[name] = value
            elif name in readers:
                values[name] = readers[name](value)
            else:
                values["others"][name] = value
    except (TypeError, ValueError, OverflowError):
        problem = f"invalid value of the field {name!r}: {value!r:.40}"
        raise BadManifest(f"{where}: {problem}. Repair or remove the file.") from None
    return values


def _document(record: Manifest | Attempt) -> dict[str, Any]:
    document = {}
    for name, reader in _READERS[type(record)].items():
        value = getattr(record, name)
        document[name] = format_time(value or None) if reader in _TIMES else value
    return {**document, **record.others}


# Hyperparameters and tags, from what users pass to what a record stores.


def plain_values(values: HParams) -> dict[str, Any]:
    """Return hyperparameters as JSON values: numbers, strings, booleans; others as strings.

    Nested names are joined with dots: `optimizer.lr`. Raises `TypeError` if there are no names.
    """
    named = _named(values)
    if named is None:
        raise TypeError(
            "hyperparameters must be a mapping from names to values, an argparse.Namespace or an "
            f"instance of a dataclass, not {type(values).__name__}: {values!r:.60}"
        )
    plain: dict[str, Any] = {}
    for name, value in named.items():
        if _named(value) is not None:
            plain.update({f"{name}.{key}": one for key, one in plain_values(value).items()})
        else:
            plain[str(name)] = _plain(value)
    return plain


def plain_tags(tags: Tags | None) -> dict[str, Any]:
    """Return tags as a mapping; one without a value is true."""
    if tags is None:
        return {}
    if isinstance(tags, str):
        tags = [tags]
    if isinstance(tags, Mapping):
        return {str(name): _plain(value) for name, value in tags.items()}
    if isinstance(tags, bytes) or not isinstance(tags, Iterable):
        raise TypeError(
            "tags must be a name, several names, or a mapping from names to values, not"
            f" {type(tags).__name__}: {tags!r:.60}"
        )
    return {str(tag): True for tag in tags}


def _named(values: Any) -> Mapping[str, Any] | None:
    if isinstance(values, Mapping):
        return values
    if isinstance(values, SimpleNamespace):
        return vars(values)
    argparse = sys.modules.get("argparse")  # a Namespace exists only once this is imported
    if argparse is not None and isinstance(values, argparse.Namespace):
        return dict(vars(values))
    if dataclasses.is_dataclass(values) and not isinstance(values, type):
        return {one.name: getattr(values, one.name) for one in dataclasses.fields(values)}
    return None


def _plain(value: Any) -> object:
    if value is None or isinstance(value, (bool, str)):
        return value
    # A numpy number or a tensor; a tensor of several elements raises.
    if not callable(getattr(value, "item", None)) and getattr(value, "shape", None) == ():
        with contextlib.suppress(AttributeError, NotImplementedError):
            value = value.numpy()  # TensorFlow
    with contextlib.suppress(AttributeError, TypeError, ValueError, RuntimeError):
        value = value.item()
    if isinstance(value, (bool, int)):
        return value
    if isinstance(value, float):
        return value if math.isfinite(value) else str(value)
    return str(value)
