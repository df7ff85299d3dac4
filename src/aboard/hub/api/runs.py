"""Runs, their fields and facets, the roots that contain them, and their curves.

Curves are the points of many runs and metrics in one response, smoothed and sampled on request. A
request for them is computed in slices of a few hundredths of a second, and the slices of all
clients take turns. Each request has a limit, and stops when its client disconnects.
"""

from __future__ import annotations

import base64
import json
import math
import struct
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Annotated, Any, Literal, NamedTuple, TypeVar

import numpy as np
import numpy.typing as npt
import orjson
from fastapi import Query, Request, Response
from pydantic import BaseModel, Field, model_validator
from starlette.concurrency import run_in_threadpool
from starlette.requests import ClientDisconnect

from aboard.boards.model import BoardsError
from aboard.hub.api import (
    RequestDocument,
    Shares,
    TheHub,
    TheVisitor,
    api_router,
    computes,
    json_response,
    position,
)
from aboard.hub.runs import run_document
from aboard.hub.service import Hub
from aboard.index import Series, Source, Tag
from aboard.index.curves import MOST_POINTS as MOST_OF_GROUP
from aboard.index.curves import Axis, Curve, Shape
from aboard.index.library import GroupedRuns, RunAnswer, RunSet
from aboard.index.tags import TagGroup
from aboard.runs.catalog import KnownRun
from aboard.runs.columns import Mark
from aboard.runs.naming import TIMES, Band, Line, shown
from aboard.runs.question import (
    MAX_FIELDS,
    MAX_LENGTH,
    MAX_LIMIT,
    Question,
    each_field,
    parse_field,
    split_fields,
)
from aboard.runs.question import Field as QuestionField
from aboard.runs.selectors import NothingMatches
from aboard.runs.units import format_time
from aboard.storage import StorageError, is_below, is_remote
from aboard.tensorboard.routes import json_numbers

router = api_router("runs")
series = api_router("series")
_MOST_PROBLEMS = 20
_MOST_LOOKED = 1000  # runs whose tags are listed together
_LONGEST_CURSOR = 8192  # proxies may refuse longer URLs


class RunDocument(BaseModel):
    """A run below a root."""

    id: str = Field(description="For paths of the API; it changes only if the run is moved.")
    experiment: str
    name: str
    uri: str
    root: str
    state: str | None
    workspace: str
    job: str
    user: str
    host: str
    reason: str
    exit_code: int | None
    created: str | None
    started: str | None
    ended: str | None
    hparams: dict[str, Any]
    tags: dict[str, Any]
    metrics: dict[str, Any]
    problem: str


class RunGroup(BaseModel):
    """Runs with the same values of some fields."""

    values: dict[str, Any]
    count: int
    means: dict[str, float | str | None] = Field(description="Of the columns.")


class RunList(BaseModel):
    """A page of runs or groups; with `columns`, runs have only these fields."""

    runs: list[RunDocument | dict[str, Any]]
    groups: list[RunGroup] | None = Field(None, description="With `group_by`, instead of runs.")
    total: int = Field(description="The number on all pages.")
    unread: int = Field(
        description="How many runs have metrics that the query needs and that are being read."
    )
    next: str | None
    hint: str = Field("", description="Why no run may match `where`; left out otherwise.")


class LoggedDocument(BaseModel):
    """A tag that some runs have logged."""

    name: str = Field(description="`STAGE/TAG`, or the tag alone in a run's own directory.")
    plugin: str = Field(examples=["scalars"])
    scalar: bool
    runs: int = Field(description="How many of the runs have it.")
    first_step: int
    last_step: int
    ids: list[str] = Field(description="At most a hundred of these runs; none for a scalar.")


class LoggedList(BaseModel):
    """What some runs have logged, by name."""

    metrics: list[LoggedDocument]
    runs: int = Field(description="How many runs were examined: at most a thousand.")
    unread: int = Field(description="How many of them the hub has not read yet.")


class FacetValue(BaseModel):
    """A value, and how many runs have it."""

    value: str | int | float | bool
    count: int


class FacetBin(BaseModel):
    """A range of numbers, and how many runs have a value in it."""

    low: float
    high: float
    count: int


class FacetDocument(BaseModel):
    """The values of a field, most frequent first."""

    field: str
    values: list[FacetValue]
    bins: list[FacetBin] = Field(description="Replaces numbers with more values than `limit`.")
    distinct: int
    missing: int = Field(description="How many runs have no value.")
    runs: int


class FieldCount(BaseModel):
    """A hyperparameter, metric or tag, and how many runs have it."""

    name: str = Field(examples=["hparams.lr"])
    runs: int


class FieldList(BaseModel):
    """The fields of some runs, by name."""

    fields: list[FieldCount]


class RootSpec(BaseModel):
    """A root to add."""

    uri: str = Field(
        min_length=1, max_length=4096, description="An absolute path or the URI of a bucket."
    )


class RootProblem(BaseModel):
    """A problem that keeps the hub from reading something."""

    where: str
    what: str
    advice: str


class RootRequests(BaseModel):
    """Requests within a day to the bucket of a root, for all roots in it."""

    kind: str = Field(description="`list`, `read`, `write` or `delete`.")
    requests: int
    bytes: int


class RootDocument(BaseModel):
    """A directory or bucket with runs."""

    uri: str
    name: str
    looked: str | None = Field(description="When it was last listed.")
    lag: float | None = Field(description="Seconds since then; null before the first listing.")
    problem: str
    problems: list[RootProblem] = Field(description="At most 20.")
    runs: int
    damaged_files: int = Field(description="Damaged event files among those that were read.")
    damaged_bytes: int
    requests: list[RootRequests] = Field(description="None for a directory.")


class RootList(BaseModel):
    """The roots of the hub."""

    roots: list[RootDocument]


Selectors = Annotated[list[str], Query(description="Selectors, as of boards; all runs by default.")]
Condition = Annotated[
    str | None, Query(description="A condition on the runs.", max_length=MAX_LENGTH)
]
Texts = Annotated[list[Annotated[str, Field(max_length=MAX_LENGTH)]], Field(max_length=MAX_FIELDS)]


@router.get("/runs", response_model=RunList)
@computes
def list_runs(
    hub: TheHub,
    selector: Annotated[list[str], Query(description="Selectors; all runs by default.")] = [],  # noqa: B006
    where: Condition = None,
    sort: Annotated[
        Texts, Query(description="Fields, separated by commas; descending with '-'.")
    ] = [],  # noqa: B006
    group_by: Annotated[
        Texts, Query(description="Fields that the runs of a group share, separated by commas.")
    ] = [],  # noqa: B006
    columns: Annotated[
        str | None,
        Query(description="The fields to return, separated by commas.", max_length=MAX_LENGTH),
    ] = None,
    count: Annotated[bool, Query(description="Return only the number of runs.")] = False,
    limit: Annotated[int, Query(ge=1, le=10_000)] = 1000,
    cursor: Annotated[
        str | None,
        Query(description="The `next` of a page, or an index from 0.", max_length=_LONGEST_CURSOR),
    ] = None,
) -> Response:
    """List runs, in their natural order by default."""
    hub.follower.runs_requested()
    sort, group_by = each_field(sort), each_field(group_by)
    start = position(cursor) if group_by else _start(cursor, len(sort))
    place = start if isinstance(start, int) else 0
    question = Question.parse(where, sort, min(place + limit, MAX_LIMIT), group_by)
    fields = {one: parse_field(one) for one in split_fields(columns or "")}
    library = hub.library
    selected = library.find(library.parse(selector))
    if read := library.to_read(question, selected, fields.values()):
        hub.follower.metrics_requested(read)
    unread = library.unread(read)
    # A metric that no run has may not have been read yet.
    check = not unread
    document: dict[str, Any] = {"runs": [], "unread": unread, "next": None}
    if group_by:
        found = library.answer(question, selected, check=check)
        by = dict(zip(group_by, question.group_by, strict=True))
        shown = [] if count else found.groups[place:]
        document["groups"] = _groups(hub, shown, by, fields)
        document["total"], end = found.total, place + len(shown)
        document["next"] = str(end) if shown and end < found.total else None
    else:
        page = library.page(question, selected, start, limit=limit, check=check)
        document["total"] = page.total
        if not page.total and not unread and (hint := library.hint_for_nothing(question)):
            document["hint"] = hint
        if not count:
            document["next"] = None if page.mark is None else _cursor(page.mark, page.end)
            document["runs"] = _documents(hub, page.runs, fields)
    # Clients list ten thousand at once, so no model is built for each.
    return Response(orjson.dumps(document), media_type="application/json")


def _start(cursor: str | None, sorted_by: int) -> int | Mark:
    if cursor is None or cursor.isdigit():
        return position(cursor)
    try:
        values, label, root, directory, *timed = json.loads(
            base64.urlsafe_b64decode(cursor.encode())
        )
        held = tuple(frozenset(one) if isinstance(one, list) else one for one in values)
        mark = Mark(held, label, root, directory, *timed)
    except (ValueError, TypeError, RecursionError):
        return position(cursor)
    if not all(type(one) is float and math.isfinite(one) for one in timed):
        return position(cursor)
    texts = [label, root, directory]
    texts += [text for one in held if isinstance(one, frozenset) for text in one]
    plain = (bool, int, float, str, frozenset, type(None))
    if len(held) != sorted_by or not all(isinstance(one, plain) for one in held):
        return position(cursor)
    return mark if all(isinstance(one, str) for one in texts) else position(cursor)


def _cursor(mark: Mark, end: int) -> str:
    """Return the cursor after a page; an index, if runs are sorted by very long texts."""
    values = [sorted(one) if isinstance(one, frozenset) else one for one in mark.values]
    place = [values, *(one for one in mark[1:] if one is not None)]
    text = base64.urlsafe_b64encode(json.dumps(place).encode()).decode()
    return text if len(text) <= _LONGEST_CURSOR else str(end)


Fields = Mapping[str, QuestionField]  # by name, as in the request


def _documents(hub: Hub, runs: RunSet, fields: Fields) -> list[dict[str, Any]]:
    if fields:
        return _rows(hub, runs, fields)
    now = hub.clock()
    return [run_document(run, now) for run in runs]


def _rows(hub: Hub, runs: RunSet, fields: Fields) -> list[dict[str, Any]]:
    columns = [
        [_value(one, held) for held in hub.library.values(one, runs)] for one in fields.values()
    ]
    return [dict(zip(fields, row, strict=True)) for row in zip(*columns, strict=True)]


def _groups(
    hub: Hub, groups: Sequence[GroupedRuns], by: Fields, fields: Fields
) -> list[dict[str, Any]]:
    runs = [group.runs for group in groups]
    means = [
        [_value(one, mean) for mean in hub.library.means(one, runs)] for one in fields.values()
    ]
    return [
        {
            "values": {
                name: _value(one, value)
                for (name, one), value in zip(by.items(), group.values, strict=True)
            },
            "count": len(group.runs),
            "means": {name: held[at] for name, held in zip(fields, means, strict=True)},
        }
        for at, group in enumerate(groups)
    ]


def _finite_or_name(value: Any) -> Any:
    if isinstance(value, float) and not math.isfinite(value):
        return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"
    return value


def _value(field: QuestionField, value: Any) -> Any:
    """Return a value for a document: times, NaN and infinities are strings."""
    if isinstance(value, frozenset):
        return sorted(value)
    value = _finite_or_name(value)
    if isinstance(value, int) and abs(value) >= 1 << 63:
        return float(value) if abs(value) < 1 << 1000 else str(value)
    if not field.group and field.name in TIMES and value is not None:
        return format_time(value)
    return value


@router.get("/runs/facets", response_model=FacetDocument)
@computes
def get_facet(
    hub: TheHub,
    field: Annotated[
        str,
        Query(
            description="As in a query: `state`, `tags`, `hparams.NAME`, `metrics.NAME.max`.",
            min_length=1,
            max_length=500,
        ),
    ],
    selector: Selectors = [],  # noqa: B006
    where: Condition = None,
    limit: Annotated[int, Query(ge=1, le=1000)] = 50,
) -> Response:
    """Count the values of a field; many different numbers are counted in bins."""
    parsed = parse_field(field)
    runs = _selected(hub, selector, where, [parsed])
    found = hub.runs.facet(runs, parsed, limit)
    return json_response(
        {
            "field": field,
            "values": [
                {"value": _finite_or_name(value), "count": count} for value, count in found.values
            ],
            "bins": [{"low": low, "high": high, "count": count} for low, high, count in found.bins],
            "distinct": found.distinct,
            "missing": found.missing,
            "runs": len(runs),
        }
    )


@router.get("/runs/fields")
@computes
def list_fields(
    hub: TheHub,
    selector: Selectors = [],  # noqa: B006
    where: Condition = None,
    limit: Annotated[int, Query(ge=1, le=10_000)] = 1000,
) -> FieldList:
    """List the most frequent hyperparameters, metrics and tags of runs, by name."""
    any_of_them = QuestionField("", "hparams")  # makes the hub read runs without a record
    found = hub.runs.fields(_selected(hub, selector, where, [any_of_them]), limit)
    return FieldList(fields=[FieldCount(name=name, runs=count) for name, count in found])


@router.get("/runs/metrics", response_model=LoggedList)
def list_logged(
    hub: TheHub,
    selector: Selectors = [],  # noqa: B006
    where: Condition = None,
) -> Response:
    """List the tags that runs have logged: scalars, images, text, histograms and others."""
    runs = _selected(hub, selector, where)[:_MOST_LOOKED]
    hub.follower.metrics_requested(runs, wait=True)
    metrics = [
        {
            "name": one.name,
            "plugin": one.plugin,
            "scalar": one.is_scalar,
            "runs": one.runs,
            "first_step": one.first_step,
            "last_step": one.last_step,
            "ids": one.ids,
        }
        for one in hub.runs.logged(runs)
    ]
    unread = hub.library.unread(runs)
    return json_response({"metrics": metrics, "runs": len(runs), "unread": unread})


def _selected(
    hub: Hub, selectors: list[str], where: str | None, fields: Sequence[QuestionField] = ()
) -> RunSet:
    """Return the runs of a request, and start reading the metrics that it needs."""
    hub.follower.runs_requested()
    runs = hub.library.find(hub.library.parse(selectors))
    question = Question.parse(where)
    if read := hub.library.to_read(question, runs, fields):
        hub.follower.metrics_requested(read)
    if not where:
        return runs
    return hub.library.answer(question, runs, check=not hub.library.unread(read)).runs


@router.get("/roots")
def list_roots(hub: TheHub) -> RootList:
    """List the roots."""
    hub.follower.runs_requested()
    return RootList(roots=[_root_document(hub, root.uri) for root in hub.library.roots])


@router.post("/roots", status_code=201, responses={200: {"model": RootDocument}})
def add_root(hub: TheHub, root: RootSpec, response: Response) -> RootDocument:
    """Add a root; one that the hub already has does not change."""
    uri, is_new = hub.add_root(root.uri)
    if not is_new:
        response.status_code = 200
    return _root_document(hub, uri)


def _root_document(hub: Hub, uri: str) -> RootDocument:
    state = hub.library.state(uri)
    errors = ([state.error] if state.error is not None else []) + list(state.problems)
    damages = hub.index.damages(Source(uri))
    return RootDocument(
        uri=uri,
        name=hub.library.root_names()[uri],
        looked=format_time(state.at),
        lag=None if state.at is None else max(hub.clock() - state.at, 0.0),
        problem=state.problem,
        problems=[_root_problem(uri, error) for error in errors[:_MOST_PROBLEMS]],
        runs=hub.library.count(uri),
        damaged_files=len({one.uri for one in damages}),
        damaged_bytes=sum(one.length for one in damages),
        requests=_root_requests(hub, uri) if is_remote(uri) else [],
    )


def _root_problem(uri: str, error: Exception) -> RootProblem:
    if isinstance(error, StorageError):
        return RootProblem(where=error.uri, what=error.problem, advice=error.hint)
    return RootProblem(where=uri, what=str(error), advice=f"Examine it: aboard doctor {uri}")


def _root_requests(hub: Hub, uri: str) -> list[RootRequests]:
    totals: dict[str, tuple[int, int]] = {}
    for hour in hub.index.traffic(uri):
        requests, size = totals.get(hour.kind, (0, 0))
        totals[hour.kind] = requests + hour.requests, size + hour.bytes
    return [
        RootRequests(kind=kind, requests=requests, bytes=size)
        for kind, (requests, size) in sorted(totals.items())
    ]


# Curves.

_SLICE_SECONDS = 0.05
MOST_SERIES = 10_000
MOST_POINTS = 4_000_000  # in a response
MOST_READ = 100_000_000  # points read for a request
MOST_OF_ONE = 16_000_000  # of these, from one series
_BATCH_SERIES = 32
_BATCH_POINTS = 1_000_000
_ENCODED = 100_000  # numbers at once
_READ_POINTS = 500_000  # of a sampled series; of a longer one, only some chunks are read
_BINARY = "application/vnd.aboard.series"
_MAGIC = b"ABS1"
_HEAD = struct.Struct("<4sI")
Result = TypeVar("Result")
_LINES = (Line.MIDDLE, Line.LOWER, Line.UPPER)


class TooMuch(BoardsError):
    """A request for too many points."""

    code = "too_large"


class SeriesSpec(RequestDocument):
    """Which curves to return, and how to compute them."""

    selectors: list[Annotated[str, Field(max_length=4096)]] = Field(
        min_length=1,
        max_length=10_000,
        description="Selectors of runs, as for boards.",
        examples=[["cifar10", "tag:best"]],
    )
    where: str | None = Field(None, description="A condition on the runs.")
    sort: list[Annotated[str, Field(min_length=1, max_length=1000)]] = Field(
        [],
        description="Fields, in descending order with '-'. With `group_by`: sorts groups by their"
        " first run.",
    )
    limit: int | None = Field(
        None, ge=1, le=MAX_LIMIT, description="The most runs; with `group_by`, the most groups."
    )
    tags: list[Annotated[str, Field(min_length=1, max_length=1000)]] = Field(
        min_length=1,
        max_length=1000,
        description="Names of metrics: `TAG`, or `DIRECTORY/TAG` in a directory of the run.",
        examples=[["loss", "eval/acc"]],
    )
    x: Axis = Field(Axis.STEP, description="The x axis.")
    metric: str = Field("", max_length=1000, description="With `x` = `metric`: its name.")
    start: float | None = Field(None, description="The least x.", allow_inf_nan=False)
    stop: float | None = Field(None, description="The greatest x.", allow_inf_nan=False)
    samples: int = Field(1000, ge=1, le=MOST_POINTS, description="The most points per curve.")
    smoothing: float = Field(
        0.0, ge=0, lt=1, description="The weight of TensorBoard's smoothing, over all points."
    )
    window: int = Field(
        1,
        ge=1,
        le=1_000_000,
        description="The number of points to average around each point; an even number plus one.",
    )
    group_by: list[Annotated[str, Field(min_length=1, max_length=1000)]] = Field(
        [],
        max_length=10,
        description="Fields that the runs of a group share: a curve for each group, and its band.",
        examples=[["hparams.lr"]],
    )
    band: Band = Field(Band.STD, description="The band around the middle of a group.")
    counts: bool = Field(
        False, description="With `group_by`: also a curve of how many runs each point has."
    )
    format: Literal["json", "binary"] = "json"

    @model_validator(mode="after")
    def _check(self) -> SeriesSpec:
        if (self.x is Axis.METRIC) != bool(self.metric):
            raise ValueError('needs x = "metric" and the name of a metric, or neither')
        return self

    @property
    def shape(self) -> Shape:
        return Shape(self.x, self.start, self.stop, self.samples, self.smoothing, self.window)


Number = float | Literal["NaN", "Infinity", "-Infinity"]


class CurveDocument(BaseModel):
    """A curve: the points of a metric of a run."""

    run: str = Field(description="`EXPERIMENT/RUN`; of a group, what its runs share.")
    uri: str = Field(description="Empty for a group.")
    tag: str
    points: int = Field(description="Of the series; restarts may have made some void.")
    line: Line | None = Field(
        None, description="With `group_by`: the middle, an edge of the band, or the count of runs."
    )
    members: list[str] | None = Field(None, description="With `group_by`: the ids of the runs.")
    x: list[Number]
    y: list[Number]


class CurveList(BaseModel):
    """Curves in the order of their runs and tags; a run without a metric has no curve."""

    series: list[CurveDocument]
    unread: int = Field(description="How many runs the hub has not read yet.")


class _Found(NamedTuple):
    runs: Sequence[KnownRun]  # one, or the members of a group
    label: str
    name: str
    tag: Tag
    metric: Tag | None  # the x axis

    @property
    def points(self) -> int:
        return _read_of(self.tag) + (_read_of(self.metric) if self.metric is not None else 0)

    @property
    def document(self) -> dict[str, Any]:
        found = {"run": self.label, "uri": "", "tag": self.name, "points": self.tag.points}
        if self.tag.group is not None:
            return {**found, "line": self.tag.group.line, "members": [run.id for run in self.runs]}
        return {**found, "uri": self.runs[0].uri}


def _is_count(tag: Tag) -> bool:
    return tag.group is not None and tag.group.line is Line.COUNT


def _read_of(tag: Tag) -> int:
    """Return how many points are read for a curve; members of a large group are sampled."""
    return min(tag.points, MOST_OF_GROUP) if tag.group else tag.points


@series.post(
    "/series",
    response_model=CurveList,
    responses={200: {"content": {_BINARY: {"schema": {"type": "string", "format": "binary"}}}}},
)
async def read_series(
    hub: TheHub, visitor: TheVisitor, request: Request, spec: SeriesSpec
) -> Response:
    """Return curves of many runs and metrics."""
    shares: Shares = request.app.state.shares
    computing: Shares = request.app.state.computing
    name = visitor.name if visitor is not None else ""
    reading = _Reading(hub, spec)

    async def compute(work: Callable[..., Result], *arguments: Any) -> Result:
        async with computing.of(name):
            if await request.is_disconnected():
                raise ClientDisconnect
            return await run_in_threadpool(work, *arguments)

    try:
        try:
            runs = await compute(reading.select)
        except NothingMatches:
            await request.app.state.rescan()
            runs = await compute(partial(reading.select, is_last=True))
        async with shares.of(name):
            await run_in_threadpool(hub.follower.metrics_requested, runs, wait=True)
        await compute(reading.find, runs)
        while not reading.is_done:
            await compute(reading.proceed)
        return await compute(reading.respond)
    except ClientDisconnect:
        return Response()


class _Reading:
    """The curves of a request, computed slice by slice. Its methods block."""

    def __init__(self, hub: Hub, spec: SeriesSpec) -> None:
        self._index = hub.index
        self._library = hub.library
        self._follower = hub.follower
        self._spec = spec
        self._shape = spec.shape
        sort, group_by = each_field(spec.sort), each_field(spec.group_by)
        self._question = Question.parse(spec.where, sort, spec.limit, group_by)
        self._unread = 0
        self._found: list[_Found] = []
        self._curves: list[Curve | None] = []
        self._batches = self._compute()
        self.is_done = False

    def select(self, *, is_last: bool = False) -> RunSet:
        """Return the runs; unless `is_last`, raise if a place has none, so that it is rescanned."""
        selectors = self._library.parse(self._spec.selectors)
        places = [one.place for one in selectors if one.place]
        if places:
            self._library.resolve(selectors)  # refuses what is not below a root
        runs = self._library.find(selectors)
        in_each = all(any(is_below(run.uri, place) for run in runs) for place in places)
        if not runs or not (in_each or is_last):
            raise NothingMatches("no runs in these places below a root of the hub.")
        return runs

    def find(self, runs: RunSet) -> None:
        """Look up the series of these runs."""
        self._unread = self._library.unread(runs)
        found = self._library.answer(self._question, runs, check=not self._unread)
        self._found = self._find(found)
        self.is_done = not self._found

    def _find(self, answer: RunAnswer) -> list[_Found]:
        spec, runs = self._spec, answer.runs
        names = dict.fromkeys([*spec.tags, *([spec.metric] if spec.metric else ())])
        tags = self._index.metrics([Source(run.uri) for run in runs], names)
        lines = _LINES if spec.group_by else _LINES[:1]
        if spec.group_by and spec.counts:
            lines = (*lines, Line.COUNT)
        found = []
        for label, members in self._labelled(answer):
            over = self._curve_of(members, spec.metric, tags, Line.MIDDLE)
            for name in dict.fromkeys(spec.tags):
                for line in lines:
                    tag = self._curve_of(members, name, tags, line)
                    if tag is not None and (over is not None or not spec.metric):
                        found.append(_Found(members, label, name, tag, over))
        if len(found) > MOST_SERIES:
            raise TooMuch(
                f"{len(found):,} curves requested; at most {MOST_SERIES:,} are allowed.", _LESS
            )
        points = sum(min(one.tag.points, spec.samples) for one in found)
        if points > MOST_POINTS:
            raise TooMuch(
                f"{points:,} points requested; at most {MOST_POINTS:,} are allowed.", _FEWER
            )
        if self._shape.needs_all:
            self._check_read(found)
        return found

    def _labelled(self, answer: RunAnswer) -> list[tuple[str, Sequence[KnownRun]]]:
        """Return the runs of each curve with their label: one run, or the runs of a group."""
        fields = self._question.group_by
        if not fields:
            return [(run.label, [run]) for run in answer.runs]
        return [
            (
                ", ".join(
                    f"{field.name}={shown(value)}"
                    for field, value in zip(fields, group.values, strict=True)
                ),
                group.runs,
            )
            for group in answer.groups
        ]

    def _curve_of(
        self,
        members: Sequence[KnownRun],
        name: str,
        tags: Mapping[tuple[str, str], Tag],
        line: Line,
    ) -> Tag | None:
        held = [tag for run in members if (tag := tags.get((run.uri, name))) is not None]
        if not held or not self._spec.group_by:
            return held[0] if held else None
        return Tag.of_group(TagGroup(tuple(held), self._spec.band, line))

    def _check_read(self, found: Sequence[_Found]) -> None:
        largest = max(found, key=lambda one: one.points, default=None)
        if largest is not None and largest.points > MOST_OF_ONE:
            raise TooMuch(
                f"{largest.name!r} of {largest.label} has {largest.points:,} points;"
                f" at most {MOST_OF_ONE:,} can be smoothed or drawn over another axis.",
                "Request it over steps, without smoothing.",
            )
        total = sum(one.points for one in found)
        if total > MOST_READ:
            raise TooMuch(
                f"the request has to read {total:,} points, more than {MOST_READ:,}.", _LESS
            )

    def proceed(self) -> None:
        until = time.monotonic() + _SLICE_SECONDS
        for curves in self._batches:
            self._curves += curves
            if time.monotonic() >= until:
                break
        self.is_done = len(self._curves) == len(self._found)

    def _compute(self) -> Iterator[list[Curve | None]]:
        shape = self._shape
        plain = replace(shape, smoothing=0.0, window=1)
        samples, start, stop = None, None, None
        if not shape.needs_all:  # the index reads only what it needs for the samples
            samples = shape.samples
            start = None if shape.start is None else _step(math.ceil(shape.start))
            stop = None if shape.stop is None else _step(math.floor(shape.stop))
        for batch in _batches(self._found, most=None if shape.needs_all else _READ_POINTS):
            tags = [one.tag for one in batch]
            series = self._index.many_series(tags, samples=samples, start=start, stop=stop)
            metrics: list[Series | None] = [None] * len(batch)
            if self._spec.metric:
                over = [one.metric for one in batch if one.metric is not None]
                metrics = self._index.many_series(over)
            yield [
                (plain if _is_count(found.tag) else shape).derive(one, metric)
                if one is not None and (metric is not None or not self._spec.metric)
                else None
                for found, one, metric in zip(batch, series, metrics, strict=True)
            ]

    def respond(self) -> Response:
        kept = [
            (found, curve)
            for found, curve in zip(self._found, self._curves, strict=True)
            if curve is not None
        ]
        if self._spec.format == "binary":
            return Response(_binary(kept, self._unread), media_type=_BINARY)
        series = b",".join(
            b'%b,"x":%b,"y":%b}'
            % (orjson.dumps(found.document)[:-1], _column(one.x), _column(one.y))
            for found, one in kept
        )
        body = b'{"series":[%b],"unread":%d}' % (series, self._unread)
        return Response(body, media_type="application/json")


_LESS = "Select fewer runs or tags, or send several requests."
_FEWER = "Lower samples, or send several requests."


def _step(number: int) -> int:
    return min(max(number, -(1 << 63)), (1 << 63) - 1)


def _batches(found: Sequence[_Found], most: int | None) -> Iterator[list[_Found]]:
    """Yield batches of few series and points, so that none takes long.

    At most `most` points are read of one series.
    """
    batch: list[_Found] = []
    points = 0
    for one in found:
        cost = one.points if most is None else min(one.points, most)
        if batch and (len(batch) >= _BATCH_SERIES or points + cost > _BATCH_POINTS):
            yield batch
            batch, points = [], 0
        batch.append(one)
        points += cost
    if batch:
        yield batch


def _column(column: npt.NDArray[np.float64]) -> bytes:
    """Return numbers as JSON, encoded in parts because the encoder holds the interpreter lock."""
    parts = (column[at : at + _ENCODED] for at in range(0, len(column), _ENCODED))
    return b"[%b]" % b",".join(orjson.dumps(json_numbers(part))[1:-1] for part in parts)


def _binary(kept: Sequence[tuple[_Found, Curve]], unread: int) -> bytes:
    """Return a head, a JSON header, and the arrays x and y of each curve, aligned to 8 bytes."""
    series = [{**found.document, "count": len(one.y)} for found, one in kept]
    header = orjson.dumps({"series": series, "unread": unread})
    header += b" " * (-(_HEAD.size + len(header)) % 8)
    arrays = [np.asarray(column, "<f8").tobytes() for _, one in kept for column in one]
    return b"".join([_HEAD.pack(_MAGIC, len(header)), header, *arrays])
