"""The runs of a hub: details, edits, deletion, logs, media and findings of one run, facets of many.

Finding runs is left to the `Library`. Callers check permissions. Images, audio, text and histograms
are read from their event files on request, one step at a time, and are not cached.
"""

from __future__ import annotations

import hashlib
import math
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from enum import StrEnum
from functools import partial
from heapq import nlargest
from itertools import islice
from typing import Any, NamedTuple

import orjson

from aboard.boards.model import BadValue, Busy, Conflict, NoSuchName
from aboard.doctor.rules import Finding
from aboard.events.files import EVENT_FILE
from aboard.events.messages import DecodeError, Value
from aboard.hub import read
from aboard.hub.jobs import follow
from aboard.index import Index, Pointer, Report, Source, Tag, UnknownName
from aboard.index.library import Library, RunSet
from aboard.index.series import Summary, read_records
from aboard.jobs.store import RunLog
from aboard.runs import manifest
from aboard.runs.catalog import Deletion, KnownRun, delete_run, files_of, natural, seconds_silent
from aboard.runs.columns import Facet
from aboard.runs.manifest import BadManifest, Manifest, State
from aboard.runs.question import Field
from aboard.runs.units import format_time
from aboard.storage import BadUri, Entry, NoSuchPath, StorageError, is_remote, open_storage
from aboard.tensorboard.follower import Follower
from aboard.track.redaction import without_secret_values, without_secrets

_MOST_FILES = 10_000  # listed per run
_BLOCK_BYTES = 8 << 20
_MOST_TAGS = 1000  # per run
_MOST_SERIES = 10_000
_MOST_IDS = 100  # runs listed per tag that is not a scalar
_EXAMINED_AT_ONCE, _EXAMINE_SECONDS = 2, 30.0
_READ_AT_ONCE, _READ_SECONDS = 4, 10.0
_FOLLOW_SECONDS, _FOLLOW_REMOTE_SECONDS = 0.5, 5.0


class Stage(NamedTuple):
    """A directory of a run with event files; the run's own directory has an empty name."""

    name: str
    files: int
    bytes: int


@dataclass(frozen=True, slots=True)
class RunFiles:
    """The files of a run; only the first if there are too many."""

    files: int
    bytes: int
    stages: tuple[Stage, ...]
    complete: bool


class Doomed(NamedTuple):
    """What a deletion would delete, and the token that confirms it."""

    files: int
    bytes: int
    confirm: str


class Diagnosis(NamedTuple):
    """The findings of doctor; not `complete` if reading the run timed out."""

    findings: Sequence[Finding]
    complete: bool
    bytes_read: int
    bytes_total: int


class Metric(NamedTuple):
    """A tag of a run; only scalars have a summary."""

    name: str
    tag: Tag
    points: int
    summary: Summary | None


class Logged(NamedTuple):
    """A tag of some runs; `plugin` and `is_scalar` are those of the first run."""

    name: str
    plugin: str
    is_scalar: bool
    runs: int
    first_step: int
    last_step: int
    ids: tuple[str, ...]  # of some of its runs; empty for a scalar

    def joined(self, other: Logged) -> Logged:
        return self._replace(
            runs=self.runs + 1,
            first_step=min(self.first_step, other.first_step),
            last_step=max(self.last_step, other.last_step),
            ids=(*self.ids, *other.ids)[:_MOST_IDS],
        )


class _Overdue(Exception):
    pass


class HubRuns:
    """The runs below the roots of a library, which the follower keeps up to date."""

    def __init__(
        self, library: Library, follower: Follower, clock: Callable[[], float] = time.time
    ) -> None:
        self._library = library
        self._follower = follower
        self._clock = clock
        self._examining = threading.BoundedSemaphore(_EXAMINED_AT_ONCE)
        self._reading = threading.BoundedSemaphore(_READ_AT_ONCE)

    def get(self, identity: str) -> KnownRun:
        """Return a run by its id; raise `NoSuchName` if it is not found."""
        self._follower.runs_requested()
        found = self._library.run(identity)
        if found is None:
            for root in self._library.uris:
                if self._library.state(root).at is None:  # the root has not been listed yet
                    self._library.refresh(root)
            found = self._library.run(identity)
        if found is None:
            raise NoSuchName(f"run {identity[:200]!r} not found.", "List them: GET /api/v1/runs")
        return found

    def files(self, run: KnownRun) -> RunFiles:
        found, complete = self.listed(run)
        return _files(found, complete=complete)

    def listed(self, run: KnownRun) -> tuple[list[Entry], bool]:
        """Return the files of a run by name, and whether the list is complete."""
        try:
            listed = open_storage(run.uri).list(on_error=lambda _: None)
            found = list(islice(listed, _MOST_FILES + 1))
        except StorageError:
            found = []
        return sorted(found[:_MOST_FILES]), len(found) <= _MOST_FILES

    def file(self, run: KnownRun, name: str) -> Entry:
        """Return a file of a run by its name; raise `NoSuchName` if it is not found."""
        # A name that is not normalized could lead out of the run's directory.
        if name and not {"", ".", ".."} & set(name.split("/")) and "\0" not in name:
            with suppress(NoSuchPath, BadUri):  # such as a name that is too long
                for one in open_storage(run.uri).list(name):
                    if one.name == name:
                        return one
        raise NoSuchName(
            f"{run.label} has no file {name[:200]!r}.",
            f"List them: GET /api/v1/runs/{run.id}/files",
        )

    def read_file(self, run: KnownRun, name: str, begin: int, end: int) -> Iterator[bytes]:
        """Yield the bytes of a file from `begin` to `end`, as they arrive."""
        storage = open_storage(run.uri)
        for start in range(begin, end, _BLOCK_BYTES):
            for piece in storage.stream(name, start, min(start + _BLOCK_BYTES, end)):
                yield bytes(piece)

    def metrics(self, run: KnownRun) -> tuple[list[Metric], bool]:
        """Return what a run has logged, after reading new data, and whether it is complete."""
        index = self._library.index
        complete = self._reading.acquire(timeout=_READ_SECONDS)
        if complete:
            try:
                index.refresh(Source(run.uri), progress=_deadline(_READ_SECONDS))
            except (_Overdue, NoSuchPath):
                complete = False
            finally:
                self._reading.release()
        tags = index.tags(Source(run.uri), most=_MOST_SERIES + 1)
        shown = tags[:_MOST_SERIES]
        known = zip(shown, index.point_counts(shown), index.summaries(shown), strict=True)
        found = [Metric(_metric_name(tag), tag, count, one) for tag, count, one in known]
        return found, complete and len(tags) == len(shown)

    def logged(self, runs: Sequence[KnownRun]) -> list[Logged]:
        """Return the tags that the index has of some runs, by name; only the first of very many."""
        found: dict[str, Logged] = {}
        for run in runs:
            for tag in self._library.index.tags(Source(run.uri), most=_MOST_SERIES):
                name = _metric_name(tag)
                ids = () if tag.is_scalar else (run.id,)
                steps = tag.first_step, tag.last_step
                one = Logged(name, tag.kind.plugin, tag.is_scalar, 1, *steps, ids)
                if name in found:
                    found[name] = found[name].joined(one)
                elif len(found) < _MOST_SERIES:
                    found[name] = one
        return [found[name] for name in sorted(found, key=natural)]

    # Changes.

    def edit(
        self, run: KnownRun, tags: Mapping[str, Any], note: str | None
    ) -> tuple[KnownRun, Manifest]:
        """Set and remove tags and replace the note; see `Manifest.edit`."""
        kept: dict[str, Any] = without_secret_values(
            {k: v for k, v in tags.items() if v is not None}
        )
        changes = {name: kept.get(name) for name in tags}
        text = None if note is None else without_secrets(note)
        if not run.is_recorded:
            raise BadValue(
                run.problem or f"{run.uri} has no run.json to hold tags and notes.",
                "Runs created by aboard.init or aboard run have one.",
            )

        def change(record: Manifest) -> None:
            record.edit(changes, text)
            if len(record.tags) > _MOST_TAGS:
                raise BadValue(f"a run may have at most {_MOST_TAGS} tags.", "Remove some.")

        try:
            record = manifest.update(open_storage(run.uri), change)
        except BadManifest as error:
            raise BadValue(str(error)) from error
        return self._library.index.put_record(run.root, run.directory, record), record

    def doomed(self, run: KnownRun, *, force: bool = False) -> Doomed:
        """Return what a deletion would delete; raise `Conflict` if the run is running."""
        silent = None if force else seconds_silent(run, self._clock())
        if silent is not None:
            raise Conflict(
                f"{run.label} is still running (last heartbeat {silent:.0f} s ago).",
                "Stop it first, or delete it with force.",
            )
        files = files_of(run)
        return Doomed(len(files), sum(one.size for one in files), _token(run, files))

    def delete(self, run: KnownRun, confirm: str, *, force: bool = False) -> Deletion:
        """Delete a run if the token confirms its current files."""
        if self.doomed(run, force=force).confirm != confirm:
            raise Conflict(
                f"the token does not match the current files of {run.label}.",
                "Send the request without a token, and check what would be deleted.",
            )
        gone = delete_run(run)
        if gone.problems:
            self._library.refresh(run.root)
        else:
            self._library.index.forget_run(run.root, run.directory)
        return gone

    # The log.

    def log(self, run: KnownRun) -> RunLog:
        return RunLog(run.root, run.directory)

    def follow_log(self, run: KnownRun, log: RunLog, tail: int | None) -> AsyncIterator[bytes]:
        """Yield the log, and what is added to it until the run has ended."""
        pause = _FOLLOW_REMOTE_SECONDS if is_remote(run.root) else _FOLLOW_SECONDS
        return follow(log, partial(self._has_ended, run), read, tail, pause)

    def _has_ended(self, run: KnownRun) -> bool:
        self._follower.runs_requested()
        now = self._library.index.known_run(run.root, run.directory)
        return now is None or now.state_at(self._clock()) is not State.RUNNING

    # Doctor.

    def examine(self, run: KnownRun) -> Diagnosis:
        """Return the findings of doctor; after a timeout, the next call continues."""
        from aboard.doctor.examination import examine

        if not self._examining.acquire(blocking=False):
            raise Busy("other runs are being examined.", "Try again in a few seconds.")
        report = Report()

        def progress(now: Report) -> None:
            nonlocal report
            report = now
            limit(now)

        limit = _deadline(_EXAMINE_SECONDS)
        try:
            found = examine(self._library.index, run.uri, progress=progress)
        except _Overdue:
            return Diagnosis((), False, report.bytes_read, report.bytes_total)
        finally:
            self._examining.release()
        # Findings beside a run are not about the run, and may be outside its root.
        kept = [one for one in found.findings if one.code != "one-of-several"]
        return Diagnosis(kept, True, report.bytes_read, report.bytes_total)

    # Many runs.

    def facet(self, runs: RunSet, field: Field, limit: int) -> Facet:
        """Count the values of a field; numbers with too many values are counted in bins."""
        return self._library.facet(field, runs, limit)

    def fields(self, runs: RunSet, limit: int) -> list[tuple[str, int]]:
        """Return the names of hyperparameters, metrics and tags, and how many runs have each."""
        counts = self._library.recorded_fields(runs)
        return sorted(nlargest(limit, counts.items(), key=lambda one: one[1]))


def run_document(run: KnownRun, now: float) -> dict[str, Any]:
    """Return a run as a document of the API, for `orjson`."""
    state = run.state_at(now)
    return {
        "id": run.id,
        "experiment": run.experiment,
        "name": run.name,
        "uri": run.uri,
        "root": run.root,
        "state": None if state is None else state.value,
        "workspace": run.workspace,
        "job": run.job,
        "user": run.user,
        "host": run.host,
        "reason": run.reason,
        "exit_code": run.exit_code,
        "created": format_time(run.created or None),
        "started": format_time(run.started or None),
        "ended": format_time(run.ended),
        "hparams": orjson.Fragment(run.hparams_json),
        "tags": orjson.Fragment(run.tags_json),
        "metrics": orjson.Fragment(run.metrics_json),
        "problem": run.problem,
    }


def _deadline(seconds: float) -> Callable[[Report], None]:
    ends = time.monotonic() + seconds

    def check(_: Report) -> None:
        if time.monotonic() > ends:
            raise _Overdue

    return check


def _files(found: Sequence[Entry], *, complete: bool) -> RunFiles:
    stages: dict[str, tuple[int, int]] = {}
    for one in found:
        directory, _, name = one.name.rpartition("/")
        if EVENT_FILE in name:
            files, size = stages.get(directory, (0, 0))
            stages[directory] = files + 1, size + one.size
    return RunFiles(
        len(found),
        sum(one.size for one in found),
        tuple(Stage(name, *held) for name, held in sorted(stages.items())),
        complete,
    )


def _metric_name(tag: Tag) -> str:
    return tag.name if tag.run == "." else f"{tag.run}/{tag.name}"


def _token(run: KnownRun, files: Sequence[Entry]) -> str:
    """Return a digest of what would be deleted, so that the token confirms nothing else.

    It covers only the names, because files of a run that is deleted by force may grow.
    """
    names = "\0".join([run.uri, *sorted(one.name for one in files)])
    return hashlib.blake2b(names.encode(errors="replace"), digest_size=16).hexdigest()


_MOST_STEPS = 1000  # listed per tag
_MOST_BLOBS = 100  # per step
_MOST_TEXTS, _LONGEST_TEXT = 100, 100_000
_MOST_BUCKETS = 1000


class Kind(StrEnum):
    """The type of a tag's values."""

    IMAGE = "image"
    AUDIO = "audio"
    TEXT = "text"
    HISTOGRAM = "histogram"


KINDS = {
    "images": Kind.IMAGE,
    "audio": Kind.AUDIO,
    "text": Kind.TEXT,
    "histograms": Kind.HISTOGRAM,
}
"""By the plugin of TensorBoard that shows them."""

_FIRST_BYTES = (
    (b"\x89PNG\r\n\x1a\n", "image/png"),
    (b"\xff\xd8\xff", "image/jpeg"),
    (b"GIF8", "image/gif"),
    (b"BM", "image/bmp"),
    (b"OggS", "audio/ogg"),
    (b"fLaC", "audio/flac"),
    (b"ID3", "audio/mpeg"),
    (b"\xff\xfb", "audio/mpeg"),
)
_UNKNOWN_TYPE = "application/octet-stream"


class Medium(NamedTuple):
    """The values of a tag at a step; only one of the last three fields is filled."""

    tag: str
    kind: Kind
    steps: Sequence[int]  # at most a thousand, including the first and the last
    step: int
    wall_time: float
    blobs: int
    texts: Sequence[str]
    buckets: Sequence[tuple[float, float, float]]  # from, to, count


def read_medium(index: Index, run: KnownRun, name: str, step: int | None) -> Medium:
    """Return the last values at or before a step, or the first values if all are later."""
    tag, kind = _find_tag(index, run, name)
    pointers = _pointers(index, tag)
    if not pointers:
        raise _unreadable(name, run)
    before = [one for one in pointers if step is None or one.step <= step]
    pointer = before[-1] if before else pointers[0]
    value = _read_value(tag, pointer, name, run)
    return Medium(
        tag=name,
        kind=kind,
        steps=_thinned([one.step for one in pointers]),
        step=pointer.step,
        wall_time=pointer.wall_time,
        blobs=len(_blobs(kind, value)),
        texts=_texts(value) if kind is Kind.TEXT else (),
        buckets=_buckets(value) if kind is Kind.HISTOGRAM else (),
    )


def read_blob(index: Index, run: KnownRun, name: str, step: int, place: int) -> bytes:
    """Return an image or audio clip of a step."""
    tag, kind = _find_tag(index, run, name)
    for pointer in _pointers(index, tag, step)[-1:]:
        blobs = _blobs(kind, _read_value(tag, pointer, name, run))
        if place < len(blobs):
            return blobs[place]
    raise NoSuchName(
        f"{name!r} of {run.label} has no value {place} at step {step}.",
        "List its steps: GET /api/v1/runs/{id}/media",
    )


def content_type(content: bytes) -> str:
    """Return the media type of a blob by its first bytes; never one that a browser runs."""
    for beginning, found in _FIRST_BYTES:
        if content.startswith(beginning):
            return found
    if content[:4] == b"RIFF":
        return {b"WAVE": "audio/wav", b"WEBP": "image/webp"}.get(content[8:12], _UNKNOWN_TYPE)
    return _UNKNOWN_TYPE


def _find_tag(index: Index, run: KnownRun, name: str) -> tuple[Tag, Kind]:
    """Find a tag by `TAG` or `DIRECTORY/TAG`; the run's own directory takes precedence."""
    for directory, tag_name in _tag_places(name):
        tag = index.find_tag(Source(run.uri), directory, tag_name)
        if tag is not None:
            kind = KINDS.get(tag.kind.plugin)
            if kind is None or tag.is_scalar:
                raise BadValue(
                    f"{name!r} of {run.label} is not an image, audio, text or histogram.",
                    "Read scalars with POST /api/v1/series; open a board for other types.",
                )
            return tag, kind
    raise NoSuchName(
        f"{run.label} has no tag {name[:200]!r}.", "List its tags: GET /api/v1/runs/{id}/metrics"
    )


def _tag_places(name: str) -> Iterator[tuple[str, str]]:
    yield ".", name
    at = name.rfind("/")
    while at > 0:
        yield name[:at], name[at + 1 :]
        at = name.rfind("/", 0, at)


def _pointers(index: Index, tag: Tag, step: int | None = None) -> list[Pointer]:
    try:
        return index.pointers(tag, step=step)
    except UnknownName:  # it was removed since it was found
        return []


def _read_value(tag: Tag, pointer: Pointer, name: str, run: KnownRun) -> Value:
    try:
        for value in read_records(tag, [pointer]):
            return value
    except (StorageError, ValueError) as error:
        raise _unreadable(name, run) from error
    raise _unreadable(name, run)


def _unreadable(name: str, run: KnownRun) -> NoSuchName:
    return NoSuchName(
        f"{name!r} of {run.label} can no longer be read.",
        "Its event file may be gone. List its files: GET /api/v1/runs/{id}/files",
    )


def _blobs(kind: Kind, value: Value) -> list[bytes]:
    try:
        if kind is Kind.IMAGE:
            return value.blobs[2 : 2 + _MOST_BLOBS]  # after width and height
        if kind is Kind.AUDIO:
            labelled = value.tensor.ndim == 2  # each clip and its label
            return value.blobs[:: 2 if labelled else 1][:_MOST_BLOBS]
    except DecodeError:
        pass
    return []


def _texts(value: Value) -> list[str]:
    try:
        found = value.blobs[:_MOST_TEXTS]
    except DecodeError:
        return []
    return [one.decode(errors="replace")[:_LONGEST_TEXT] for one in found]


def _buckets(value: Value) -> list[tuple[float, float, float]]:
    try:
        rows = value.tensor.tolist()
        found = [(float(low), float(high), float(count)) for low, high, count in rows]
    except (DecodeError, TypeError, ValueError):
        return []
    return [one for one in found if all(map(math.isfinite, one))][:_MOST_BUCKETS]


def _thinned(steps: list[int]) -> list[int]:
    distinct = sorted(set(steps))
    if len(distinct) <= _MOST_STEPS:
        return distinct
    last = len(distinct) - 1
    return [distinct[round(at * last / (_MOST_STEPS - 1))] for at in range(_MOST_STEPS)]
