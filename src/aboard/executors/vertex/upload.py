"""The upload of a board to a managed TensorBoard on Vertex, which `aboard view` runs there.

The board becomes an experiment, with a run for each of its runs and a time series for each tag. All
scalars are uploaded first, then text, histograms, images and the other kinds that Vertex shows. New
points follow while the upload runs.

No point is lost or written twice, even if the upload is killed. `Progress`, a file in the board's
directory, has the number of points written per series, and marks series with a write in progress.
If such a mark is left over, or the points before are not those that were written, the series is
read back from Vertex, and only missing points are written.
"""

from __future__ import annotations

import base64
import hashlib
import json
import logging
import math
import re
import sqlite3
import threading
import time
import uuid
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

from aboard.executors.vertex.api import Location, Vertex, VertexError
from aboard.storage import StorageError, join, open_storage
from aboard.system import Backoff

if TYPE_CHECKING:
    from starlette.types import ASGIApp

    from aboard.index import Index, Tag
    from aboard.tensorboard.board import BoardRun, Listing

UPLOAD = "ABOARD_VERTEX"
"""The environment variable with the `Destination` of a board's process."""

T = TypeVar("T")

_log = logging.getLogger(__name__)
# The limits of Google's own uploader: 64 KiB per request, at 32 bytes per point, tensors of at most
# 16 KiB, and 30 ms between requests.
_MOST_POINTS, _MOST_BYTES, _LARGEST_TENSOR = 2000, 64 << 10, 16 << 10
_BETWEEN_WRITES = 0.03
_MOST_CREATED = 500  # runs or time series per request
_LARGEST_PLUGIN_DATA = 65_000
_POLL_SECONDS = 1.0
_FIRST_BACKOFF, _LONGEST_BACKOFF = 2.0, 60.0
_MOST_PROBLEMS = 10
_TYPES = {"scalar": "SCALAR", "tensor": "TENSOR", "blob_sequence": "BLOB_SEQUENCE"}
_SHOWN = frozenset({"scalars", "histograms", "text", "hparams", "images", "graphs"})
_EARLIEST, _LATEST = -62_135_596_800_000_000, 253_402_300_799_999_999  # the years 1 to 9999, in µs
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


@dataclass(frozen=True, slots=True)
class Destination:
    """The target of an upload; `directory` is the board's, on this machine."""

    place: Location
    tensorboard: str
    experiment: str
    directory: str

    def to_json(self) -> str:
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str) -> Destination:
        values = json.loads(text)
        return cls(**{**values, "place": Location(**values["place"])})


Key = tuple[int, int]
"""Identifies a point: its step, and its time in µs."""


class Point(NamedTuple):
    """A value in Vertex's format; empty values are skipped."""

    step: int
    micros: int
    value: Mapping[str, Any]

    @property
    def key(self) -> Key:
        return self.step, self.micros

    @property
    def size(self) -> int:
        """The approximate number of bytes in a request."""
        return 32 if "scalar" in self.value else len(json.dumps(self.value))

    def document(self) -> dict[str, Any]:
        return {"step": str(self.step), "wallTime": timestamp(self.micros), **self.value}


def micros_of(wall_time: float) -> int:
    """Return a time in µs, within the years that Vertex accepts."""
    if math.isnan(wall_time):
        return 0
    return int(min(max(round(wall_time * 1e6, 0), _EARLIEST), _LATEST))


def timestamp(micros: int) -> str:
    seconds, rest = divmod(micros, 1_000_000)
    days, second = divmod(seconds, 86_400)
    day = datetime.fromordinal(_EPOCH.toordinal() + days)
    hours, minutes = divmod(second // 60, 60)
    return f"{day:%Y-%m-%d}T{hours:02}:{minutes:02}:{second % 60:02}.{rest:06}Z".rjust(27, "0")


_TIMESTAMP = re.compile(r"(\d{4})-(\d\d)-(\d\d)T(\d\d):(\d\d):(\d\d)(?:\.(\d{1,9}))?Z")


def parse_timestamp(text: str) -> int:
    """Parse a time into µs, exactly also for years that floats cannot represent."""
    if not (found := _TIMESTAMP.fullmatch(text)):
        return 0
    year, month, day, hours, minutes, seconds = map(int, found.groups()[:6])
    days = datetime(year, month, day, tzinfo=UTC).toordinal() - _EPOCH.toordinal()
    whole = ((days * 24 + hours) * 60 + minutes) * 60 + seconds
    return whole * 1_000_000 + round(int((found[7] or "0").ljust(9, "0")) / 1000)


def scalar(value: float) -> dict[str, Any]:
    if math.isfinite(value):
        return {"scalar": {"value": value}}
    word = "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"
    return {"scalar": {"value": word}}


@dataclass(slots=True)
class Series:
    """A time series on Vertex, and how much of it was written.

    `last` is the key of the last written point. A series is not `sure` while a write is in
    progress.
    """

    run: str
    tag: str
    id: str
    written: int = 0
    last: Key | None = None
    sure: bool = False


class Progress:
    """The state of the upload, in a file that outlives it."""

    def __init__(self, path: Path) -> None:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._file = sqlite3.connect(path, check_same_thread=False)
        path.chmod(0o600)
        self._file.executescript(
            "PRAGMA journal_mode = WAL; PRAGMA synchronous = FULL;"
            "CREATE TABLE IF NOT EXISTS run(id TEXT PRIMARY KEY, name TEXT, listed INTEGER);"
            "CREATE TABLE IF NOT EXISTS series(run TEXT, tag TEXT, id TEXT, written INTEGER,"
            " step INTEGER, micros INTEGER, sure INTEGER, PRIMARY KEY(run, tag));"
        )
        self.runs: dict[str, str] = {}  # display names by id
        self.listed: set[str] = set()  # runs whose time series are all known
        for run, name, listed in self._file.execute("SELECT id, name, listed FROM run"):
            self.runs[run] = name
            if listed:
                self.listed.add(run)
        self.series: dict[tuple[str, str], Series] = {}
        for run, tag, name, written, step, micros, sure in self._file.execute(
            "SELECT run, tag, id, written, step, micros, sure FROM series"
        ):
            last = None if step is None else (step, micros)
            self.series[run, tag] = Series(run, tag, name, written, last, bool(sure))

    def close(self) -> None:
        self._file.close()

    def note_runs(self, names: Mapping[str, str], *, listed: bool) -> None:
        self.runs |= names
        (self.listed.update if listed else self.listed.difference_update)(names)
        rows = [(run, name, listed) for run, name in names.items()]
        with self._file:
            self._file.executemany("INSERT OR REPLACE INTO run VALUES(?, ?, ?)", rows)

    def note_series(self, series: Iterable[Series]) -> None:
        rows = []
        for one in series:
            self.series[one.run, one.tag] = one
            last = one.last or (None, None)
            rows.append((one.run, one.tag, one.id, one.written, *last, one.sure))
        with self._file:
            self._file.executemany("INSERT OR REPLACE INTO series VALUES(?,?,?,?,?,?,?)", rows)

    def forget(self, runs: Iterable[str]) -> None:
        """Remove runs that were deleted on Vertex."""
        gone = set(runs)
        self.series = {key: one for key, one in self.series.items() if key[0] not in gone}
        for run in gone:
            self.runs.pop(run, None)
            self.listed.discard(run)
        with self._file:
            for run in gone:
                self._file.execute("DELETE FROM run WHERE id = ?", (run,))
                self._file.execute("DELETE FROM series WHERE run = ?", (run,))


class Upload:
    """Uploads a board to Vertex, in its own thread.

    `requested` keeps the index up to date with the board. `problems` lists what is not on Vertex,
    and why.
    """

    def __init__(
        self,
        destination: Destination,
        listing: Listing,
        index: Index,
        requested: Callable[[], None],
    ) -> None:
        self._listing = listing
        self._index = index
        self._requested = requested
        self._closed = threading.Event()
        self._vertex = Vertex(destination.place, closed=self._closed)
        self._problem = ""
        self._left_out: dict[str, None] = {}
        self._marks: dict[tuple[str, str], tuple[object, ...]] = {}
        self._last_write = 0.0
        try:
            self._connect(destination)
        except BaseException:
            self._vertex.close()
            raise
        self._progress = Progress(Path(destination.directory) / "vertex.db")
        self.url = (
            f"https://{destination.place.location}.tensorboard.googleusercontent.com/experiment/"
            + self._experiment.replace("/", "+")
        )
        self._thread = threading.Thread(target=self._run, name="vertex-upload", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def close(self) -> None:
        self._closed.set()
        self._thread.join()
        self._vertex.close()
        self._progress.close()

    @property
    def problems(self) -> list[str]:
        found = [self._problem] if self._problem else []
        return [*found, *self._left_out][:_MOST_PROBLEMS]

    def app(self) -> ASGIApp:
        """Return the application that redirects to the experiment."""
        from starlette.applications import Starlette
        from starlette.requests import Request
        from starlette.responses import JSONResponse, RedirectResponse, Response
        from starlette.routing import Route

        async def status(_: Request) -> Response:
            runs = self._listing.count_runs()[1]
            return JSONResponse({"runs": runs, "problems": self.problems})

        async def redirect(_: Request) -> Response:
            return RedirectResponse(self.url, status_code=307)

        prefix = f"/b/{self._listing.board.id}"
        return Starlette(
            routes=[
                Route(f"{prefix}/data/status", status),
                Route(f"{prefix}/{{rest:path}}", redirect),
            ]
        )

    def _connect(self, destination: Destination) -> None:
        """Find the TensorBoard and the experiment, or create them."""
        board = self._vertex.tensorboard(destination.tensorboard)
        self._blobs = str(board.get("blobStoragePathPrefix", ""))
        self._experiment = f"{board['name']}/experiments/{destination.experiment}"
        body = {"displayName": self._listing.board.title, "source": "aboard"}
        query = {"tensorboardExperimentId": destination.experiment}
        try:
            self._vertex.call(
                "POST", f"{board['name']}/experiments", body, query=query, repeatable=True
            )
        except VertexError as error:
            if error.status != 409:
                raise

    # The loop.

    def _run(self) -> None:
        seen = -1
        backoff = Backoff(_FIRST_BACKOFF, _LONGEST_BACKOFF)
        while not self._closed.is_set():
            pause = _POLL_SECONDS
            try:
                self._requested()
                version = self._listing.version()
                if version != seen:
                    self._upload(self._listing.runs())
                    seen = version
                self._note_wait("")
                backoff.reset()
            except (VertexError, StorageError) as error:
                if self._closed.is_set():
                    return
                self._note_wait(str(error))
                pause = backoff.grow()
            except Exception:  # noqa: BLE001 - the upload continues after any error
                _log.exception("the upload to Vertex failed; retrying")
                pause = backoff.grow()
            self._closed.wait(pause)

    def _note_wait(self, problem: str) -> None:
        if problem != self._problem:
            _log.warning("%s", problem or "the upload to Vertex continues")
        self._problem = problem

    def _report_missing(self, what: str) -> None:
        if what not in self._left_out:
            _log.warning("%s", what)
            self._left_out[what] = None

    def _upload(self, runs: Mapping[str, BoardRun]) -> None:
        """Write the missing points of these runs, scalars first."""
        ids = {_run_id(run): run for run in runs.values()}
        self._create_runs(ids)
        chosen: dict[str, list[tuple[str, Tag]]] = {kind: [] for kind in _TYPES}
        for run_id, run in ids.items():
            for tag in run.tags.values():
                kind: str = "scalar" if tag.is_scalar else tag.kind.data_class
                plugin = "scalars" if tag.is_scalar else tag.kind.plugin
                if kind not in chosen or plugin not in _SHOWN:
                    self._report_missing(f"Vertex does not show values of the kind {plugin!r}.")
                elif kind == "blob_sequence" and not self._blobs:
                    self._report_missing("this TensorBoard has no bucket for images and graphs.")
                else:
                    chosen[kind].append((run_id, tag))
        for kind, tags in chosen.items():
            changed = [
                (run, tag) for run, tag in tags if self._marks.get((run, tag.name)) != _mark(tag)
            ]
            self._create_series(kind, changed)
            self._write_all(kind, changed)

    # Runs and time series.

    def _create_runs(self, runs: Mapping[str, BoardRun]) -> None:
        known = self._progress.runs
        if runs.keys() - known.keys():
            there = {
                shown["name"].rpartition("/")[2]: str(shown.get("displayName", ""))
                for shown in self._vertex.list(f"{self._experiment}/runs", "tensorboardRuns")
            }
            found = {run: there[run] for run in runs if run in there and run not in known}
            self._progress.note_runs(found, listed=False)
        missing = [run for run in runs if run not in known]
        for some in _parts(missing, _MOST_CREATED):
            names = {run: runs[run].name for run in some}
            try:
                self._post_runs(names)
            except VertexError as error:
                if error.status != 409:
                    raise
                for run, name in names.items():
                    self._create_run(run, name)
                self._progress.note_runs(names, listed=False)
            else:
                self._progress.note_runs(names, listed=True)
        for run, one in runs.items():
            if known[run] != one.name:
                self._rename(run, one.name)

    def _post_runs(self, names: Mapping[str, str]) -> None:
        requests = [
            {
                "parent": self._experiment,
                "tensorboardRun": {"displayName": name},
                "tensorboardRunId": run,
            }
            for run, name in names.items()
        ]
        self._vertex.post(f"{self._experiment}/runs:batchCreate", {"requests": requests})

    def _create_run(self, run: str, name: str) -> None:
        """Create a run, with a longer name if a run that left the board has its name."""
        for display in (name, f"{name} ({run[-6:]})"):
            try:
                self._post_runs({run: display})
            except VertexError as error:
                if error.status != 409:
                    raise
            else:
                return

    def _rename(self, run: str, name: str) -> None:
        """Update a run's name on the board, which can change when other runs join."""
        try:
            self._vertex.patch(
                f"{self._experiment}/runs/{run}", {"displayName": name}, updateMask="displayName"
            )
        except VertexError as error:
            if error.status not in {400, 409}:  # another run has the name for a moment
                raise
            return
        self._progress.note_runs({run: name}, listed=run in self._progress.listed)

    def _create_series(self, kind: str, tags: Sequence[tuple[str, Tag]]) -> None:
        known = self._progress.series
        missing = [(run, tag) for run, tag in tags if (run, tag.name) not in known]
        for run in dict.fromkeys(run for run, _ in missing):
            if run not in self._progress.listed:
                self._list_series(run)
        missing = [(run, tag) for run, tag in missing if (run, tag.name) not in known]
        for some in _parts(missing, _MOST_CREATED):
            requests = [
                {
                    "parent": f"{self._experiment}/runs/{run}",
                    "tensorboardTimeSeries": _description(kind, tag),
                }
                for run, tag in some
            ]
            of_runs = {run: self._progress.runs[run] for run, _ in some}
            self._progress.note_runs(of_runs, listed=False)  # until the response arrives
            made = self._vertex.post(f"{self._experiment}:batchCreate", {"requests": requests})
            names = [one["name"].rpartition("/")[2] for one in made["tensorboardTimeSeries"]]
            self._progress.note_series(
                Series(run, tag.name, name, sure=True)
                for (run, tag), name in zip(some, names, strict=True)
            )
            self._progress.note_runs(of_runs, listed=True)

    def _list_series(self, run: str) -> None:
        listed = self._vertex.list(
            f"{self._experiment}/runs/{run}/timeSeries", "tensorboardTimeSeries"
        )
        found = [Series(run, one["displayName"], one["name"].rpartition("/")[2]) for one in listed]
        self._progress.note_series(
            one for one in found if (run, one.tag) not in self._progress.series
        )
        self._progress.note_runs({run: self._progress.runs[run]}, listed=True)

    # Points.

    def _write_all(self, kind: str, tags: Sequence[tuple[str, Tag]]) -> None:
        from aboard.index import UnknownName

        batch = _Batch()
        for run, tag in tags:
            mark = _mark(tag)
            try:
                for step in self._new_points(kind, self._progress.series[run, tag.name], tag):
                    if not batch.has_room(step.point):
                        self._write(kind, batch)
                        batch = _Batch()
                    batch.add(step)
            except UnknownName:  # its files are gone
                continue
            except StorageError as error:  # from the bucket with the blobs
                self._report_missing(str(error))
                continue
            batch.marks[run, tag.name] = mark
        self._write(kind, batch)

    def _new_points(self, kind: str, series: Series, tag: Tag) -> Iterator[_Step]:
        """Yield the missing points of a tag, in the order to write them."""
        if kind == "scalar":
            values: _Values = _Scalars(self._index, tag)
        else:
            values = _Records(self._index, tag, lambda *found: self._encode(kind, series, *found))
        count, written = values.count, series.written
        same = written <= count and (not written or values.key(written - 1) == series.last)
        if series.sure and same:
            for place in range(written, count):
                point = values.point(place)
                yield _Step(series, point, (place + 1, point.key))
            return
        stored = Counter(self._read_back(series))
        lacking = []
        for place in range(count):
            key = values.key(place)
            if stored[key]:
                stored[key] -= 1
            else:
                lacking.append(place)
        end = (count, values.key(count - 1) if count else None)
        for place in lacking:  # not a prefix of the series, so not sure before the last one
            yield _Step(series, values.point(place), end if place == lacking[-1] else None)
        if not lacking:
            series.written, series.last, series.sure = *end, True
            self._progress.note_series([series])

    def _encode(self, kind: str, series: Series, key: Key, record: Any) -> Mapping[str, Any]:
        from aboard.events.messages import DecodeError

        try:
            return (self._tensor if kind == "tensor" else self._sequence)(series, key, record)
        except DecodeError as error:
            self._report_missing(str(error))
            return {}

    def _tensor(self, series: Series, key: Key, record: Any) -> Mapping[str, Any]:
        content = record.tensor_proto.SerializeToString()
        if len(content) > _LARGEST_TENSOR:
            self._report_missing(
                f"{series.tag!r} at step {key[0]} has {len(content):,} bytes; Vertex takes"
                f" {_LARGEST_TENSOR:,}."
            )
            return {}
        return {"tensor": {"value": base64.b64encode(content).decode()}}

    def _sequence(self, series: Series, key: Key, record: Any) -> Mapping[str, Any]:
        """Upload blobs to the TensorBoard's bucket, with names that a retry reuses."""
        *_, board, _, experiment = self._experiment.split("/")
        place = f"tensorboard-{board}/{experiment}/{series.run}/{series.id}"
        storage = open_storage(join(f"gs://{self._blobs.removeprefix('gs://')}", place))
        names = []
        for number, blob in enumerate(record.blobs):
            name = str(uuid.uuid5(uuid.NAMESPACE_URL, f"{place}/{key}/{number}"))
            storage.write(name, blob)
            names.append({"id": name})
        return {"blobs": {"values": names}}

    def _read_back(self, series: Series) -> Iterator[Key]:
        name = f"{self._experiment}/runs/{series.run}/timeSeries/{series.id}"
        try:
            read = self._vertex.get(f"{name}:read", maxDataPoints=-1)
        except VertexError as error:
            if error.status == 404:
                self._forget([series.run])
            raise
        for one in read.get("timeSeriesData", {}).get("values", ()):
            yield int(one.get("step", 0)), parse_timestamp(one.get("wallTime", ""))

    def _write(self, kind: str, batch: _Batch) -> None:
        """Write a batch, and record the progress of each series."""
        before = {id(one.series): (one.series, one.series.sure) for one in batch.steps}
        sent = [one for one in batch.steps if one.point.value]
        for series, _ in before.values():
            series.sure = False
        if sent:
            self._progress.note_series(series for series, _ in before.values())
            try:
                self._send(kind, sent)
            except VertexError as error:
                if error.refused:
                    for series, sure in before.values():
                        series.sure = sure
                    self._progress.note_series(series for series, _ in before.values())
                if error.status == 404:
                    self._forget({one.series.run for one in sent})
                raise
        for one in batch.steps:
            if one.after is not None:
                (one.series.written, one.series.last), one.series.sure = one.after, True
        self._progress.note_series(series for series, _ in before.values())
        self._marks |= batch.marks

    def _send(self, kind: str, steps: Sequence[_Step]) -> None:
        by_run: dict[str, dict[str, list[dict[str, Any]]]] = {}
        for one in steps:
            of_run = by_run.setdefault(one.series.run, {})
            of_run.setdefault(one.series.id, []).append(one.point.document())
        requests = [
            {
                "tensorboardRun": f"{self._experiment}/runs/{run}",
                "timeSeriesData": [
                    {"tensorboardTimeSeriesId": name, "valueType": _TYPES[kind], "values": values}
                    for name, values in series.items()
                ],
            }
            for run, series in by_run.items()
        ]
        self._closed.wait(max(0.0, self._last_write + _BETWEEN_WRITES - time.monotonic()))
        self._last_write = time.monotonic()
        try:
            self._vertex.post(f"{self._experiment}:write", {"writeRunDataRequests": requests})
        except VertexError as error:
            if error.status != 400:
                raise
            self._send_parts(kind, steps, error)

    def _send_parts(self, kind: str, steps: Sequence[_Step], error: VertexError) -> None:
        """Find the point that Vertex rejects, and write the others."""
        if len(steps) == 1:
            (one,) = steps
            where = f"{one.series.tag!r} at step {one.point.step} is not on Vertex"
            self._report_missing(f"{where}: {error}")
            return
        middle = len(steps) // 2
        self._send(kind, steps[:middle])
        try:
            self._send(kind, steps[middle:])
        except VertexError as later:
            later.refused = False  # the first half was written
            raise

    def _forget(self, runs: Iterable[str]) -> None:
        """Forget runs that were deleted on Vertex, to create them again."""
        gone = set(runs)
        self._progress.forget(gone)
        self._marks = {key: mark for key, mark in self._marks.items() if key[0] not in gone}


class _Step(NamedTuple):
    """A point to write; `after` is the progress of the series then, if that is certain."""

    series: Series
    point: Point
    after: tuple[int, Key | None] | None


class _Batch:
    """The points of one request, and the tags that it completes."""

    def __init__(self) -> None:
        self.steps: list[_Step] = []
        self.marks: dict[tuple[str, str], tuple[object, ...]] = {}
        self._bytes = 0

    def has_room(self, point: Point) -> bool:
        return not self.steps or (
            len(self.steps) < _MOST_POINTS and self._bytes + point.size <= _MOST_BYTES
        )

    def add(self, step: _Step) -> None:
        self.steps.append(step)
        self._bytes += step.point.size


class _Values(ABC):
    """The values of a tag, by position."""

    count: int

    @abstractmethod
    def key(self, place: int) -> Key: ...

    @abstractmethod
    def point(self, place: int) -> Point: ...


class _Scalars(_Values):
    def __init__(self, index: Index, tag: Tag) -> None:
        self._series = index.series(tag)
        self.count = len(self._series.steps)

    def key(self, place: int) -> Key:
        return int(self._series.steps[place]), micros_of(float(self._series.wall_times[place]))

    def point(self, place: int) -> Point:
        return Point(*self.key(place), scalar(float(self._series.values[place])))


class _Records(_Values):
    """Values read from event files; empty if one cannot be read."""

    def __init__(
        self, index: Index, tag: Tag, encode: Callable[[Key, Any], Mapping[str, Any]]
    ) -> None:
        self._tag = tag
        self._pointers = index.pointers(tag)
        self._encode = encode
        self.count = len(self._pointers)

    def key(self, place: int) -> Key:
        return self._pointers[place].step, micros_of(self._pointers[place].wall_time)

    def point(self, place: int) -> Point:
        from aboard.index.series import read_records

        key, value = self.key(place), dict[str, Any]()
        for record in read_records(self._tag, [self._pointers[place]], on_error=_unreadable):
            value = dict(self._encode(key, record))
        return Point(*key, value)


def _unreadable(pointer: Any, error: Exception) -> None:
    _log.warning("skipped a value in %s: %s", pointer.uri, error)


def _mark(tag: Tag) -> tuple[object, ...]:
    """Return a value that changes with the points of a tag."""
    last = tag.segments[-1]
    return len(tag.segments), last.id, tag.points, tag.last_step, repr(tag.last_wall_time)


def _run_id(run: BoardRun) -> str:
    """Return the id of a run on Vertex, which does not depend on its name on the board."""
    place = f"{run.member.source.uri} {run.directory}"
    name = "-".join(run.directory.rstrip("/").split("/")[-2:]).lower()
    name = re.sub(r"[^a-z0-9]+", "-", name)[-80:].strip("-")
    return f"{name or 'run'}-{hashlib.sha256(place.encode()).hexdigest()[:12]}"


def _description(kind: str, tag: Tag) -> dict[str, Any]:
    from aboard.tensorboard.provider import plugin_content

    found: dict[str, Any] = {
        "displayName": tag.name,
        "valueType": _TYPES[kind],
        "pluginName": "scalars" if kind == "scalar" else tag.kind.plugin,
    }
    content = plugin_content(tag.origin, tag.metadata)
    if 0 < len(content) <= _LARGEST_PLUGIN_DATA:
        found["pluginData"] = base64.b64encode(content).decode()
    if tag.kind.description:
        found["description"] = tag.kind.description
    return found


def _parts(items: Sequence[T], size: int) -> Iterator[Sequence[T]]:
    return (items[start : start + size] for start in range(0, len(items), size))
