"""The runs below a root, `<root>/<experiment>/<run>/`: names, lists, claims and deletions.

A directory with a `run.json` is a run, with everything below it. Other event files are raw runs:
their first two directories are experiment and run, and only their path is known. The record of a
job is in the same root, at `.jobs/<job>/job.json`.

A process claims a name by creating its `run.json`, which only one process can do, on a disk and in
a bucket; no server is needed. Deleting a run deletes its record last, so that a failed deletion can
be repeated. Links are removed and never followed; a run inside another is a separate run.
"""

from __future__ import annotations

import json
import math
import os
import re
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import lru_cache
from pathlib import Path
from typing import Any, NamedTuple

from aboard.events.files import EVENT_FILE, adopted_originals
from aboard.runs.manifest import (
    ENDED,
    FILE_NAME,
    HEARTBEAT_SECS,
    BadManifest,
    Manifest,
    State,
    file_in,
)
from aboard.runs.manifest import read as read_record
from aboard.storage.base import (
    JOBS,
    AlreadyExists,
    Entry,
    NoSuchPath,
    PermissionDenied,
    Storage,
    StorageError,
    canonical,
    is_remote,
    join,
    open_storage,
    split,
)

DEFAULT_EXPERIMENT = "default"
_FORBIDDEN = re.compile(r'[/\\:*?"<>|\x00-\x1f\x7f]')
_LONGEST_NAME = 128
_LEVELS_ABOVE = 2  # how far above a directory its record may be: it may be of a stage or a rank
_LOGDIR = re.compile(
    r"(?i)train|training|eval|evaluation|val|valid|validation|test|dev|predict|rank[-_.]?\d+"
)

_TIME = re.compile(r"\d{10}\.\d+")


class BadName(ValueError):
    """An invalid name of an experiment, a run or a job."""


def directory_of(experiment: str, name: str) -> str:
    return f"{experiment}/{name}" if experiment else name


def job_directory(job: str) -> str:
    """Return the directory of a job, or raise `BadName`."""
    return f"{JOBS}/{check_name(job, 'job')}"


def job_file(job: str) -> str:
    """Return the record of a job, or raise `BadName`."""
    return f"{job_directory(job)}/job.json"


def check_name(name: str, what: str) -> str:
    """Return a name that can be a directory on every storage, or raise `BadName`."""
    problem = ""
    if not name or name != name.strip():
        problem = "is empty, or begins or ends with a space"
    elif found := _FORBIDDEN.search(name):
        problem = f"contains the character {found[0]!r}"
    elif name.startswith("."):
        problem = "begins with a dot"
    elif len(name.encode(errors="replace")) > _LONGEST_NAME:
        problem = f"is longer than {_LONGEST_NAME} bytes"
    if problem:
        hint = "Use letters, digits, '-', '_', '.' and '='"
        raise BadName(f"the name of the {what}, {name!r:.60}, {problem}. {hint}.")
    return name


_STATES = {state.value: state for state in State}
_LONE_HALF = re.compile("[\ud800-\udfff]")
_PLAIN_DIRECTORY = re.compile(r"[A-Za-z0-9_.=/-]*")
_ESCAPED = re.compile(rb"[^A-Za-z0-9_.=/-]")
_ESCAPE = re.compile(rb"~([0-9A-F]{2})")


class KnownRun(NamedTuple):
    root: str
    directory: str  # empty for the root itself
    experiment: str  # empty for a raw directory directly below the root
    name: str
    recorded_state: str = ""  # empty if there is no record
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
    metrics_json: str = "{}"  # the last value of each metric, by `stage/name`
    attempt_jobs_json: str = "[]"  # the engine's ids of its job that differ from `job`
    problem: str = ""  # why the record is invalid
    seen: float = 0.0  # when a heartbeat arrived, by the clock of this machine; 0 if none did

    @classmethod
    def of_record(cls, root: str, directory: str, record: Manifest) -> KnownRun:
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
            record.exit_code if abs(record.exit_code or 0) < 1 << 32 else None,
            record.created,
            record.started,
            record.ended,
            record.heartbeat,
            float(min(max(record.heartbeat_secs, 0.0), 1e9)),
            _json(record.hparams),
            _json(record.tags),
            _json(record.metrics),
            _json(_attempt_jobs(record)),
        )

    @classmethod
    def of_path(cls, root: str, directory: str, problem: str = "") -> KnownRun:
        experiment, _, name = directory.rpartition("/")
        return cls(
            root, directory, experiment, name or root.rpartition("/")[2], problem=_text(problem)
        )

    def described(
        self, hparams: Mapping[str, Any], metrics: Mapping[str, float] | None = None
    ) -> KnownRun:
        """Return the run with values from its event files."""
        run = self._replace(hparams_json=_json(_without_infinities(hparams)))
        if metrics is None:
            return run
        return run._replace(metrics_json=_json(_without_infinities(metrics)))

    @property
    def uri(self) -> str:
        return join(self.root, self.directory)

    @property
    def id(self) -> str:
        """The id of the run in URLs of a hub, such as `1f0c93ab:cifar10:run3`; see `run_id`."""
        return run_id(self.root, self.directory)

    @property
    def label(self) -> str:
        return f"{self.experiment}/{self.name}" if self.experiment else self.name

    @property
    def is_recorded(self) -> bool:
        return bool(self.recorded_state)

    @property
    def jobs(self) -> list[str]:
        """All ids of its job: the run's, and those of its attempts on an engine."""
        own = [self.job] if self.job else []
        return own if self.attempt_jobs_json == "[]" else own + json.loads(self.attempt_jobs_json)

    @property
    def hparams(self) -> dict[str, Any]:
        return parse_record(self.hparams_json)

    @property
    def tags(self) -> dict[str, Any]:
        return parse_record(self.tags_json)

    @property
    def metrics(self) -> dict[str, Any]:
        return parse_record(self.metrics_json)

    def state_at(self, now: float) -> State | None:
        """Return the state at the time `now`; None for a raw directory."""
        if not self.recorded_state:
            return None
        state = _STATES[self.recorded_state]
        if state is not State.RUNNING:
            return state
        # The clock of the run's host may be behind, or ahead.
        beat = self.seen if self.seen and self.heartbeat > now else max(self.heartbeat, self.seen)
        beating = Manifest(
            self.name, heartbeat=beat, heartbeat_secs=self.heartbeat_secs, state=state
        )
        return beating.state_at(now)

    def seconds_at(self, now: float) -> float | None:
        """Return the duration of the run up to `now`; up to its last heartbeat if it is lost."""
        if not self.started:
            return None
        end = self.ended
        if not end:
            end = now if self.state_at(now) is State.RUNNING else self.heartbeat
        return max(0.0, end - self.started)


def run_id(root: str, directory: str) -> str:
    """Return the id of a run in URLs: a hash of its root, then its directory.

    `:` separates the parts of the directory. A byte other than a letter, a digit or one of `_.=-`
    is written as `~` and its hexadecimal number.
    """
    if not _PLAIN_DIRECTORY.fullmatch(directory):
        escaped = _ESCAPED.sub(
            lambda one: b"~%02X" % ord(one[0]), directory.encode(errors="replace")
        )
        directory = escaped.decode()
    return f"{_root_mark(root)}:{directory.replace('/', ':')}"


def directory_of_id(root: str, identity: str) -> str | None:
    """Return the directory of a run below a root by its id; None if the id is of another root."""
    mark, colon, rest = identity.partition(":")
    if not colon or mark != _root_mark(root):
        return None
    plain = _ESCAPE.sub(lambda one: bytes([int(one[1], 16)]), rest.replace(":", "/").encode())
    try:
        directory = plain.decode()
    except UnicodeDecodeError:
        return None
    return directory if run_id(root, directory) == identity else None


@lru_cache(maxsize=1024)
def _root_mark(root: str) -> str:
    import hashlib  # loads OpenSSL, which a training may never need

    return hashlib.blake2b(root.encode(errors="replace"), digest_size=4).hexdigest()


def parse_record(text: str) -> dict[str, Any]:
    """Parse the JSON of a run's hyperparameters, tags or metrics."""
    if text == "{}":
        return {}
    found: dict[str, Any] | None = parse_quickly(text.encode())
    return json.loads(text) if found is None else found


_AS_DIGITS = bytes(48 if 48 <= one < 58 else 32 for one in range(256))
_MANY_DIGITS = b"0" * 19


def parse_quickly(text: bytes) -> Any:
    """Parse JSON with `orjson`; None if it cannot: NaN, or integers of more than 64 bits."""
    import orjson

    if _MANY_DIGITS in text.translate(_AS_DIGITS):  # they would become floats
        return None
    try:
        return orjson.loads(text)
    except orjson.JSONDecodeError:
        return None


def dump_json(document: Any, option: int = 0) -> bytes:
    """Return JSON of what `orjson` takes, and of integers of more than 64 bits and surrogates."""
    import orjson

    try:
        return orjson.dumps(document, option=option)
    except TypeError:
        return json.dumps(document).encode()


def _attempt_jobs(record: Manifest) -> list[str]:
    jobs = dict.fromkeys(one.job for one in record.attempts)
    return [job for job in jobs if job and job != record.job]


def _json(values: Mapping[str, Any] | list[str]) -> str:
    """Return JSON that strict parsers also accept, with lone surrogates escaped as in `_text`."""
    if not values:
        return "[]" if isinstance(values, list) else "{}"
    import orjson

    with suppress(TypeError):  # a lone surrogate, or an integer of more than 64 bits
        return orjson.dumps(values).decode()
    text = json.dumps(values)
    if "\\ud" not in text:
        return text
    text = json.dumps(values, ensure_ascii=False)
    return _LONE_HALF.sub(lambda half: f"\\\\u{ord(half[0]):04x}", text)


def _without_infinities(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return values with NaN and infinities as text, because JSON has neither."""
    return {
        name: str(one) if isinstance(one, float) and not math.isfinite(one) else one
        for name, one in values.items()
    }


def _text(text: str) -> str:
    """Return text that a database accepts: lone surrogates are not valid Unicode."""
    return text if text.isascii() else text.encode(errors="backslashreplace").decode()


_DEFAULT_ROOT = "runs"
_DIGITS = re.compile(r"[0-9]+")


class Found(NamedTuple):
    version: str | None  # of its record; None for a raw directory
    mark: int  # changes whenever an event file of the run changes
    ended: str = ""  # the name of the copy of its record made when it ended, if any


def is_of_a_run(name: str) -> bool:
    return name == FILE_NAME or EVENT_FILE in name or name.startswith(ENDED)


def find_runs(entries: Iterable[Entry]) -> dict[str, Found]:
    versions: dict[str, str | None] = {}
    marks: dict[str, int] = {}
    ends: dict[str, str] = {}
    files = [(*entry.name.rpartition("/")[::2], entry) for entry in entries]
    adopted = adopted_originals(name for _, name, _ in files)
    for directory, name, entry in files:
        if name == FILE_NAME:
            versions[directory] = entry.version
        elif name.startswith(ENDED):
            ends[directory] = max(name, ends.get(directory, ""))
        elif EVENT_FILE in name and name not in adopted:
            mark = hash((name, entry.size, entry.version))
            marks[directory] = marks.get(directory, 0) ^ mark
    recorded = frozenset(versions)
    of_runs: dict[str, int] = {}
    for directory, mark in marks.items():
        run = run_of(directory, recorded)
        versions.setdefault(run, None)
        of_runs[run] = of_runs.get(run, 0) ^ hash((directory, mark))
    return {
        run: Found(version and version + ends.get(run, ""), of_runs.get(run, 0), ends.get(run, ""))
        for run, version in versions.items()
    }


def run_of(directory: str, recorded: Collection[str]) -> str:
    """Return the run that contains a directory, given the directories that have a record."""
    above = directory
    while above not in recorded:
        if not above:
            return _raw_directory(directory)
        above = above.rpartition("/")[0]
    return above


def with_parents(directory: str) -> list[str]:
    """Return a directory below a root and its parents, the nearest first, the root last."""
    found = [directory] if directory else []
    while "/" in directory:
        directory = directory.rpartition("/")[0]
        found.append(directory)
    return [*found, ""]


def find_roots(given: Sequence[str], environment: Mapping[str, str] | None = None) -> list[str]:
    """Return the roots to search for runs: those given, else `ABOARD_ROOT`, else `./runs`.

    `ABOARD_ROOT` is a single root, since jobs write there too; its path may have any character.
    """
    variables = os.environ if environment is None else environment
    if given:
        texts = list(given)
    elif variables.get("ABOARD_ROOT"):
        texts = [variables["ABOARD_ROOT"]]
    else:
        texts = [_DEFAULT_ROOT] if Path(_DEFAULT_ROOT).is_dir() else []
    return list(dict.fromkeys(canonical(text) for text in texts))


def run_above(uri: str) -> str | None:
    """Return the nearest parent directory that has a record; None if `uri` itself has one."""
    place = uri
    for level in range(_LEVELS_ABOVE + 1):
        if has_file(place, FILE_NAME):
            return place if level else None
        above, last = split(place)
        if not last or (is_remote(uri) and above.endswith("//")):
            return None
        place = above
    return None


def has_file(uri: str, name: str) -> bool:
    try:
        open_storage(uri).read(name, 0, 1)
    except StorageError:
        return False
    return True


def natural(name: str) -> str:
    """Return a key that sorts `run10` after `run9`."""
    return "/".join([_natural(part) for part in name.split("/")])


@lru_cache(4096)  # experiments have many runs, and runs of several often the same names
def _natural(part: str) -> str:
    return _DIGITS.sub(_weighed, part)


def _weighed(number: re.Match[str]) -> str:
    digits = number[0].lstrip("0")
    return f"\0{chr(len(digits))}{digits}"


def is_logdir(name: str) -> bool:
    """Return whether a directory is named like that of a stage or a rank, not of a run."""
    return _LOGDIR.fullmatch(name) is not None


def metric_name(stage: str, tag: str) -> str:
    """Return the name of a metric in a directory below its run; an empty one is the run's own.

    A directory named by a time, which PyTorch's `add_hparams` makes, adds nothing to the name.
    """
    above, _, last = stage.rpartition("/")
    stage = above if _TIME.fullmatch(last) else stage
    return f"{stage}/{tag}" if stage else tag


def _raw_directory(directory: str) -> str:
    parts = directory.split("/") if directory else []
    while len(parts) > 1 and is_logdir(parts[-1]):
        parts.pop()
    return "/".join(parts[:2])


_CLAIM = "claim"  # the field that differs between processes that claim a name at the same time
_JUMPS = (1, 4, 16, 64, 256, 1024)

Describe = Callable[[str], Manifest]  # from the name of a run


class RunExists(Exception):
    """The name is taken."""


def claim(storage: Storage, experiment: str, name: str, describe: Describe) -> Manifest:
    """Claim a name; raise `RunExists` if the run, or a directory with files, already exists."""
    directory = directory_of(experiment, name)
    manifest = describe(name)
    if _has_files(storage, directory) or not create_record(storage, directory, manifest):
        where = f"{storage.uri}/{directory}"
        raise RunExists(f"the run {where} already exists. Resume it, or choose another name.")
    return manifest


def claim_next(storage: Storage, experiment: str, describe: Describe, first: int = 1) -> Manifest:
    """Claim the next free name of `run1`, `run2`, …, from the number `first` on.

    The last name is found by galloping and binary search, with one request per step. A process that
    loses a name to another skips ahead, further each time, so that many processes spread out.
    """
    import random

    number = _end_of_row(
        lambda number: (
            number < first or _has_record(storage, directory_of(experiment, f"run{number}"))
        )
    )
    lost = 0
    while True:
        manifest = describe(f"run{number}")
        directory = directory_of(experiment, manifest.name)
        if not create_record(storage, directory, manifest):
            furthest = _JUMPS[min(lost, len(_JUMPS) - 1)]
            number += random.randint(1, furthest)  # noqa: S311 - no secret
            lost += 1
            continue
        record = file_in(directory)
        if all(file.name == record for file in storage.list(directory)):
            return manifest
        storage.delete(record)  # the directory has other files
        number += 1


def create_record(storage: Storage, directory: str, manifest: Manifest) -> bool:
    """Create the record of a run that has none; return whether this process created it.

    If a response is lost, the repeated request finds the record that the first one created.
    """
    manifest.others[_CLAIM] = os.urandom(8).hex()
    record, content = file_in(directory), manifest.to_json()
    try:
        storage.create_new(record, content)
    except AlreadyExists:
        with suppress(NoSuchPath, PermissionDenied):
            return storage.read(record) == content
        return False
    return True


def unclaimed_name(name: str | None) -> str:
    """Return a unique name without a claim, for a storage that cannot be reached."""
    return f"{name or time.strftime('run-%Y%m%d-%H%M%S')}-{os.urandom(3).hex()}"


def _has_record(storage: Storage, directory: str) -> bool:
    try:
        storage.read(file_in(directory), 0, 1)
    except NoSuchPath:
        return False
    return True


def _has_files(storage: Storage, directory: str) -> bool:
    try:
        return next(iter(storage.list(directory)), None) is not None
    except NoSuchPath:  # the root does not exist yet
        return False


def _end_of_row(is_taken: Callable[[int], bool]) -> int:
    """Return a free number whose predecessor is taken, or 1."""
    low, high = 0, 1
    while is_taken(high):
        low, high = high, high * 2
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if is_taken(middle) else (low, middle)
    return high


_AT_ONCE = 16  # files of a bucket that are deleted at the same time


class Deletion:
    """What was deleted of a run, and what could not be."""

    def __init__(self) -> None:
        self.files = 0
        self.bytes = 0
        self.problems: list[StorageError] = []


def delete_run(run: KnownRun) -> Deletion:
    """Delete a run; without a record, only its event files."""
    storage = open_storage(run.root)
    record = file_in(run.directory)
    mine = files_of(run)
    deleted = Deletion()
    _delete_all(storage, [entry for entry in mine if entry.name != record], deleted)
    if not deleted.problems:
        _delete_all(storage, [entry for entry in mine if entry.name == record], deleted)
    if not is_remote(run.root):
        for directory, _, _ in os.walk(run.uri, topdown=False):
            with suppress(OSError):  # not empty
                Path(directory).rmdir()
    return deleted


def files_of(run: KnownRun) -> list[Entry]:
    """Return what `delete_run` deletes."""
    entries = [
        (*entry.name.rpartition("/")[::2], entry) for entry in _entries(open_storage(run.root), run)
    ]
    recorded = {directory for directory, name, _ in entries if name == FILE_NAME}
    has_record = run.directory in recorded
    return [
        entry
        for directory, name, entry in entries
        if run_of(directory, recorded) == run.directory and (has_record or EVENT_FILE in name)
    ]


def record_of(run: KnownRun) -> tuple[Manifest | None, str]:
    """Read the record of a run as it is now; without one, also return why it cannot be read."""
    try:
        return read_record(open_storage(run.uri)), ""
    except NoSuchPath:
        return None, ""
    except (BadManifest, StorageError) as error:
        return None, str(error)


def seconds_silent(run: KnownRun, now: float) -> float | None:
    """Read the record of a run; return the seconds since its last heartbeat.

    None if the run is not running, or has no record.
    """
    record, _ = record_of(run)
    if record is None:
        return None
    current = run._replace(recorded_state=record.state.value, heartbeat=record.heartbeat)
    if current.state_at(now) is not State.RUNNING:
        return None
    return max(0.0, now - max(record.heartbeat, run.seen))


def _entries(storage: Storage, run: KnownRun) -> Iterator[Entry]:
    """Yield the files below a run, with names relative to its root; on a disk, links too."""
    if is_remote(run.root):
        yield from storage.list(run.directory)
        return
    top = Path(run.uri)
    if top.is_symlink():
        problem = "this run is a link, and its target may belong to another run"
        raise StorageError(run.uri, problem, "Delete the target, or remove the link.")
    if not top.is_dir():
        raise NoSuchPath(run.uri, "no such run", "Check the path.")
    for directory, below, names in os.walk(top):
        links = [name for name in below if Path(directory, name).is_symlink()]
        for name in (*names, *links):
            path = Path(directory, name)
            with suppress(FileNotFoundError):
                size = path.lstat().st_size
                yield Entry(path.relative_to(run.root).as_posix(), size, "")


def _delete_all(storage: Storage, entries: Sequence[Entry], deleted: Deletion) -> None:
    def delete(entry: Entry) -> StorageError | None:
        try:
            storage.delete(entry.name)
        except NoSuchPath:
            return None  # another process deleted it
        except StorageError as error:
            return error
        return None

    if is_remote(storage.uri):
        from concurrent.futures import ThreadPoolExecutor

        with ThreadPoolExecutor(_AT_ONCE) as pool:
            problems = list(pool.map(delete, entries))
    else:
        problems = [delete(entry) for entry in entries]
    for entry, problem in zip(entries, problems, strict=True):
        if problem is not None:
            deleted.problems.append(problem)
        else:
            deleted.files += 1
            deleted.bytes += entry.size
