"""Runs, and the roots that contain them."""

from __future__ import annotations

import base64
import json
import math
from collections.abc import Mapping, Sequence
from typing import Annotated, Any

import orjson
from fastapi import Query, Response
from pydantic import BaseModel, Field

from aboard.hub.api import TheHub, api_router, computes, position
from aboard.hub.runs import run_document
from aboard.hub.service import Hub
from aboard.index import Source
from aboard.index.library import RunGroup as Group
from aboard.index.library import RunSet
from aboard.runs.columns import Mark
from aboard.runs.manifest import format_time
from aboard.runs.question import (
    MAX_FIELDS,
    MAX_LENGTH,
    MAX_LIMIT,
    TIMES,
    Question,
    parse_field,
    split_fields,
)
from aboard.runs.question import Field as QuestionField
from aboard.storage import StorageError, is_remote

router = api_router("runs")
_MOST_PROBLEMS = 20
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
        description="How many runs have metrics that the question needs and that are being read."
    )
    next: str | None


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


Texts = Annotated[list[Annotated[str, Field(max_length=MAX_LENGTH)]], Field(max_length=MAX_FIELDS)]


@router.get("/runs", response_model=RunList)
@computes
def list_runs(
    hub: TheHub,
    selector: Annotated[list[str], Query(description="Selectors; all runs by default.")] = [],  # noqa: B006
    where: Annotated[
        str | None, Query(description="A condition on the runs.", max_length=MAX_LENGTH)
    ] = None,
    sort: Annotated[Texts, Query(description="Fields, in descending order with '-'.")] = [],  # noqa: B006
    group_by: Annotated[Texts, Query(description="Fields that the runs of a group share.")] = [],  # noqa: B006
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
    start = position(cursor) if group_by else _start(cursor, len(sort))
    place = start if isinstance(start, int) else 0
    question = Question.parse(where, sort, min(place + limit, MAX_LIMIT), group_by)
    fields = {one: parse_field(one) for one in split_fields(columns or "")}
    library = hub.library
    selected = library.find(library.parse(selector), retry=False)
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
        if not count:
            document["next"] = None if page.mark is None else _cursor(page.mark, page.end)
            document["runs"] = _documents(hub, page.runs, fields)
    # Clients list ten thousand at once, so no model is built for each.
    return Response(orjson.dumps(document), media_type="application/json")


def _start(cursor: str | None, sorted_by: int) -> int | Mark:
    if cursor is None or cursor.isdigit():
        return position(cursor)
    try:
        values, *run = json.loads(base64.urlsafe_b64decode(cursor.encode()))
        held = tuple(frozenset(one) if isinstance(one, list) else one for one in values)
        mark = Mark(held, *run)
    except (ValueError, TypeError, RecursionError):
        return position(cursor)
    texts = [*run, *(text for one in held if isinstance(one, frozenset) for text in one)]
    plain = (bool, int, float, str, frozenset, type(None))
    if len(held) != sorted_by or not all(isinstance(one, plain) for one in held):
        return position(cursor)
    return mark if all(isinstance(one, str) for one in texts) else position(cursor)


def _cursor(mark: Mark, end: int) -> str:
    """Return the cursor after a page; an index, if runs are sorted by very long texts."""
    values = [sorted(one) if isinstance(one, frozenset) else one for one in mark.values]
    text = base64.urlsafe_b64encode(json.dumps([values, *mark[1:]]).encode()).decode()
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


def _groups(hub: Hub, groups: Sequence[Group], by: Fields, fields: Fields) -> list[dict[str, Any]]:
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


def _value(field: QuestionField, value: Any) -> Any:
    """Return a value for a document: times, NaN and infinities are strings."""
    if isinstance(value, frozenset):
        return sorted(value)
    if isinstance(value, float) and not math.isfinite(value):
        return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"
    if isinstance(value, int) and abs(value) >= 1 << 63:
        return float(value) if abs(value) < 1 << 1000 else str(value)
    if not field.group and field.name in TIMES and value is not None:
        return format_time(value)
    return value


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
