"""One run: its description, edits, deletion, log, files, media and findings."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterator
from itertools import chain
from typing import Annotated, Any, Literal
from urllib.parse import quote, urlencode

from fastapi import Depends, Header, Path, Query, Response
from fastapi.responses import StreamingResponse
from pydantic import BaseModel, Field

from aboard.boards.model import LIVE, BadValue
from aboard.hub.api import RequestDocument, TheHub, TheUser, api_router, computes, json_response
from aboard.hub.api.runs import RunDocument
from aboard.hub.permissions import Action, require
from aboard.hub.runs import Kind, content_type, read_blob, read_medium, run_document
from aboard.hub.service import Hub
from aboard.index.series import Summary
from aboard.runs.catalog import KnownRun, record_of
from aboard.runs.manifest import Attempt, Manifest
from aboard.runs.units import format_time

router = api_router("runs")
_UNCACHED = {"cache-control": "no-store"}
_RANGE = re.compile(r"bytes=(\d{0,18})-(\d{0,18})")
_ANY_BYTES = "application/octet-stream"
_FILE_HEADERS = {
    "content-security-policy": "default-src 'none'; sandbox",
    "x-content-type-options": "nosniff",
    "accept-ranges": "bytes",
    **_UNCACHED,
}
# A browser that opens a blob must not run anything in it.
_BLOB_HEADERS = {
    "content-security-policy": "default-src 'none'; sandbox",
    "content-disposition": "inline",
    "cache-control": "private, max-age=3600",
}
_LONGEST_STEP = 1 << 62
_MOST_TAGS = 100
_MOST_BOARDS = 1000

RunId = Annotated[
    str, Path(description="The `id` of a listed run.", min_length=1, max_length=16_000)
]
TagQuery = Annotated[
    str,
    Query(
        description="The `name` of a metric: `TAG` or `DIRECTORY/TAG`.",
        min_length=1,
        max_length=1000,
    ),
]
TagName = Annotated[str, Field(min_length=1, max_length=200)]
TagValue = Annotated[str, Field(max_length=1000)] | int | float | bool | None


class AttemptDocument(BaseModel):
    """A process, or a group of them, that worked on a run."""

    number: int
    state: str
    host: str
    pid: int
    job: str
    started: str | None
    ended: str | None
    exit_code: int | None
    reason: str


class StageDocument(BaseModel):
    """A directory of a run that has event files."""

    name: str = Field(description="Such as `train`; empty for the run's own directory.")
    files: int
    bytes: int


class RunDetail(RunDocument):
    """A run in full."""

    note: str
    command: list[str]
    git_commit: str
    heartbeat: str | None
    duration: float | None = Field(description="In seconds, up to now.")
    attempts: list[AttemptDocument]
    stages: list[StageDocument]
    files: int
    bytes: int
    complete: bool = Field(description="False if it has too many files to count.")
    problems: list[str] = Field(description="Why its record cannot be read.")


class MetricDocument(BaseModel):
    """A tag that a run has logged."""

    name: str = Field(description="`STAGE/TAG`, or the tag alone in the run's own directory.")
    stage: str
    tag: str
    plugin: str = Field(examples=["scalars"])
    scalar: bool
    count: int = Field(description="Number of values, without those that restarts made void.")
    first_step: int
    last_step: int
    last_time: str | None
    last: float | None = Field(description="Of a scalar; null if it is not finite.")
    min: float | None = Field(None, description="Of the finite values of a scalar.")
    min_step: int | None = None
    max: float | None = None
    max_step: int | None = None
    mean: float | None = None
    nans: int = 0
    infinities: int = 0


class MetricList(BaseModel):
    """What a run has logged."""

    metrics: list[MetricDocument]
    complete: bool = Field(description="False while files are being read: request it again.")


class FileDocument(BaseModel):
    """A file of a run."""

    name: str = Field(description="Its path below the run's directory.")
    bytes: int


class FileList(BaseModel):
    """The files of a run, by name."""

    files: list[FileDocument]
    complete: bool = Field(description="False if there are more than 10,000.")


class RunBoard(BaseModel):
    """A board that shows a run."""

    id: str
    name: str
    title: str
    owner: str
    state: str


class RunBoards(BaseModel):
    """The live boards that show a run."""

    boards: list[RunBoard]


class FindingDocument(BaseModel):
    """Something that is wrong or odd."""

    code: str
    severity: Literal["error", "warning", "info"]
    what: str
    where: list[str]
    advice: str


class DiagnosisDocument(BaseModel):
    """What doctor finds."""

    findings: list[FindingDocument]
    complete: bool = Field(description="False if reading timed out: request it again.")
    bytes_read: int
    bytes_total: int


class RunChange(RequestDocument):
    """What to change in the record of a run."""

    tags: dict[TagName, TagValue] = Field(
        {},
        max_length=_MOST_TAGS,
        description="Tags to set; `true` sets one without a value, `null` removes it.",
        examples=[{"baseline": True, "old": None}],
    )
    note: Annotated[str, Field(max_length=10_000)] | None = Field(
        None, description="Replaces the note; an empty string removes it."
    )


class RunDeletion(BaseModel):
    """What a deletion would delete, or has deleted."""

    id: str
    run: str = Field(description="As `experiment/name`.")
    deleted: bool
    files: int
    bytes: int
    confirm: str | None = Field(description="The token with which a second request deletes it.")
    problems: list[str] = Field(description="What could not be deleted.")


def the_run(hub: TheHub, run: RunId) -> KnownRun:
    return hub.runs.get(run)


TheRun = Annotated[KnownRun, Depends(the_run)]


@router.get("/runs/{run}", response_model=RunDetail)
def get_run(hub: TheHub, run: TheRun) -> Response:
    """Describe a run, with its attempts, stages and note."""
    record, problem = record_of(run)
    return json_response(_detail(hub, run, record, problem))


@router.patch("/runs/{run}", response_model=RunDetail)
def change_run(hub: TheHub, run: TheRun, change: RunChange) -> Response:
    """Set and remove tags, and write a note, in the run's record."""
    edited, record = hub.runs.edit(run, change.tags, change.note)
    return json_response(_detail(hub, edited, record, ""))


@router.delete("/runs/{run}")
def delete_run(
    hub: TheHub,
    user: TheUser,
    run: TheRun,
    confirm: Annotated[
        str | None,
        Query(description="The token that a request without one returned.", max_length=200),
    ] = None,
    force: Annotated[bool, Query(description="Even if the run is running.")] = False,
) -> RunDeletion:
    """Return what would be deleted, and a token; delete the run if the token is given."""
    if run.user != user.name:
        require(user, Action.DELETE_RUNS)
    if confirm is None:
        lost = hub.runs.doomed(run, force=force)
        files, size, problems = lost.files, lost.bytes, []
        token: str | None = lost.confirm
    else:
        gone = hub.runs.delete(run, confirm, force=force)
        files, size, token = gone.files, gone.bytes, None
        problems = [str(one) for one in gone.problems[:10]]
    return RunDeletion(
        id=run.id,
        run=run.label,
        deleted=confirm is not None and not problems,
        files=files,
        bytes=size,
        confirm=token,
        problems=problems,
    )


@router.get("/runs/{run}/metrics", response_model=MetricList)
def list_metrics(hub: TheHub, run: TheRun) -> Response:
    """List what a run has logged, with the number of values and the last value of each."""
    found, complete = hub.runs.metrics(run)
    metrics = [
        {
            "name": one.name,
            "stage": "" if one.tag.run == "." else one.tag.run,
            "tag": one.tag.name,
            "plugin": one.tag.kind.plugin,
            "scalar": one.tag.is_scalar,
            "count": one.points,
            "first_step": one.tag.first_step,
            "last_step": one.tag.last_step,
            "last_time": _moment(one.tag.last_wall_time),
            "last": one.tag.last_value,
            **(_statistics(one.summary) if one.summary else {}),
        }
        for one in found
    ]
    return json_response({"metrics": metrics, "complete": complete})


def _statistics(summary: Summary) -> dict[str, Any]:
    names = ("min", "min_step", "max", "max_step", "mean", "nans", "infinities")
    return {name: getattr(summary, name) for name in names}


@router.get("/runs/{run}/files")
def list_files(hub: TheHub, run: TheRun) -> FileList:
    """List the files of a run."""
    found, complete = hub.runs.listed(run)
    files = [FileDocument(name=one.name, bytes=one.size) for one in found]
    return FileList(files=files, complete=complete)


@router.get(
    "/runs/{run}/file",
    response_class=StreamingResponse,
    responses={
        200: {"content": {_ANY_BYTES: {}}, "description": "The file."},
        206: {"content": {_ANY_BYTES: {}}, "description": "The bytes of a `Range`."},
        416: {"content": {_ANY_BYTES: {}}, "description": "The file is shorter."},
    },
)
def get_file(
    hub: TheHub,
    run: TheRun,
    name: Annotated[str, Query(description="As `files` lists it.", max_length=4096)],
    range: Annotated[  # noqa: A002 - the name of the header
        str | None, Header(description="`bytes=FIRST-LAST`.", max_length=200)
    ] = None,
    if_range: Annotated[str | None, Header(max_length=200)] = None,
) -> Response:
    """Return a file of a run as a download; browsers do not display it."""
    found = hub.runs.file(run, name)
    tag = f'"{hashlib.blake2b(found.version.encode(), digest_size=12).hexdigest()}"'
    begin, end, status = 0, found.size, 200
    headers = {**_FILE_HEADERS, "etag": tag, "content-disposition": _attachment(name)}
    requested = _RANGE.fullmatch(range or "") if if_range in {None, tag} else None
    if requested is not None and (requested[1] or requested[2]):
        begin, end = _bounds(requested[1], requested[2], found.size)
        if begin >= end:
            headers["content-range"] = f"bytes */{found.size}"
            return Response(status_code=416, media_type=_ANY_BYTES, headers=headers)
        headers["content-range"] = f"bytes {begin}-{end - 1}/{found.size}"
        status = 206
    headers["content-length"] = str(end - begin)
    pieces = hub.runs.read_file(run, name, begin, end)
    return _streamed(pieces, headers, status, media_type=_ANY_BYTES)


def _attachment(name: str) -> str:
    """Return the header that saves a file under the last part of its name."""
    return (
        f"attachment; filename*=UTF-8''{quote(name.rpartition('/')[2], safe='', errors='replace')}"
    )


@router.get("/runs/{run}/boards")
@computes
def list_boards_of_run(hub: TheHub, user: TheUser, run: TheRun) -> RunBoards:
    """List the live boards that show a run and that you may see."""
    page = hub.page(user, states=sorted(LIVE), limit=_MOST_BOARDS)
    boards = [
        RunBoard(id=one.id, name=one.name, title=one.title, owner=one.owner, state=one.state.value)
        for one in page.boards
        if hub.shows(one, run)
    ]
    return RunBoards(boards=boards)


@router.get("/runs/{run}/doctor")
def examine_run(hub: TheHub, run: TheRun) -> DiagnosisDocument:
    """Report what is wrong or odd about a run, after reading its event files."""
    found = hub.runs.examine(run)
    findings = [
        FindingDocument(**one._asdict() | {"where": [*one.where]}) for one in found.findings
    ]
    return DiagnosisDocument(
        findings=findings,
        complete=found.complete,
        bytes_read=found.bytes_read,
        bytes_total=found.bytes_total,
    )


@router.get(
    "/runs/{run}/log",
    response_class=StreamingResponse,
    responses={
        200: {"content": {"text/plain": {}}, "description": "The log."},
        206: {"content": {"text/plain": {}}, "description": "The bytes of a `Range`."},
        416: {"content": {"text/plain": {}}, "description": "The log is shorter."},
    },
)
def get_run_log(
    hub: TheHub,
    run: TheRun,
    tail: Annotated[int | None, Query(description="Only the last lines.", ge=0, le=10**9)] = None,
    offset: Annotated[int | None, Query(description="Begin at this byte.", ge=0, le=2**62)] = None,
    follow: Annotated[bool, Query(description="Continue until the run ends.")] = False,
    range: Annotated[  # noqa: A002 - the name of the header
        str | None, Header(description="`bytes=FIRST-LAST`, without `follow`.", max_length=200)
    ] = None,
) -> Response:
    """Return the recorded output of a run: all of it, its end, a range, or as it grows."""
    if tail is not None and offset is not None:
        raise BadValue("tail and offset exclude each other.", "Give only one.")
    log = hub.runs.log(run)
    if offset is not None:
        log.seek(offset)
    if follow:
        pieces = hub.runs.follow_log(run, log, tail)
        return StreamingResponse(pieces, media_type="text/plain; charset=utf-8", headers=_UNCACHED)
    requested = _RANGE.fullmatch(range or "") if tail is None and offset is None else None
    if requested is not None and (requested[1] or requested[2]):
        size = log.size()
        begin, end = _bounds(requested[1], requested[2], size)
        if begin >= end:
            headers = {**_UNCACHED, "content-range": f"bytes */{size}"}
            return Response(status_code=416, media_type="text/plain", headers=headers)
        headers = {
            **_UNCACHED,
            "content-range": f"bytes {begin}-{end - 1}/{size}",
            "accept-ranges": "bytes",
        }
        return _streamed(log.read_range(begin, end), headers, 206)
    return _streamed(log.read(tail=tail, to_end=True), {**_UNCACHED, "accept-ranges": "bytes"})


def _bounds(first: str, last: str, size: int) -> tuple[int, int]:
    if not first:
        return max(size - int(last), 0), size
    return int(first), min(int(last) + 1, size) if last else size


def _streamed(
    pieces: Iterator[bytes],
    headers: dict[str, str],
    status: int = 200,
    media_type: str = "text/plain; charset=utf-8",
) -> Response:
    # The first piece is read here, so that a failure has its own status.
    found = chain([next(pieces, b"")], pieces)
    return StreamingResponse(found, status, headers, media_type=media_type)


def _detail(hub: Hub, run: KnownRun, record: Manifest | None, problem: str) -> dict[str, Any]:
    now = hub.clock()
    files = hub.runs.files(run)
    # Parsed, because `orjson` does not write every number.
    held = {"hparams": run.hparams, "tags": run.tags, "metrics": run.metrics}
    return (
        run_document(run, now)
        | held
        | {
            "note": record.note if record else "",
            "command": record.command if record else [],
            "git_commit": run.git_commit,
            "heartbeat": format_time(run.heartbeat or None),
            "duration": run.seconds_at(now),
            "attempts": [_attempt(one) for one in (record.attempts if record else [])],
            "stages": [one._asdict() for one in files.stages],
            "files": files.files,
            "bytes": files.bytes,
            "complete": files.complete,
            "problems": [problem] if problem else [],
        }
    )


def _attempt(one: Attempt) -> dict[str, Any]:
    return {
        "number": one.number,
        "state": one.state.value,
        "host": one.host,
        "pid": one.pid,
        "job": one.job,
        "started": format_time(one.started or None),
        "ended": format_time(one.ended),
        "exit_code": one.exit_code,
        "reason": one.reason,
    }


def _moment(seconds: float) -> str | None:
    return format_time(seconds) if 0 <= seconds < 1e12 else None


# Media: what a run logged besides scalars, step by step.


class MediumDocument(BaseModel):
    """The values of a tag at a step."""

    tag: str
    kind: Kind
    steps: list[int] = Field(description="The steps of the tag, at most a thousand.")
    step: int
    time: str | None
    blobs: list[str] = Field(description="The URLs of images and clips, relative to the hub's.")
    texts: list[str]
    buckets: list[tuple[float, float, float]] = Field(
        description="Of a histogram: from, to, and how many values."
    )


@router.get("/runs/{run}/media")
def get_medium(
    hub: TheHub,
    run: TheRun,
    tag: TagQuery,
    step: Annotated[
        int | None,
        Query(
            description="The last step at or before this one; by default the last of all.",
            ge=-_LONGEST_STEP,
            le=_LONGEST_STEP,
        ),
    ] = None,
) -> MediumDocument:
    """Return the images, clips, texts or the histogram that a run logged at a step."""
    hub.follower.metrics_requested([run], wait=True)
    found = read_medium(hub.index, run, tag, step)
    return MediumDocument(
        tag=found.tag,
        kind=found.kind,
        steps=[*found.steps],
        step=found.step,
        time=format_time(found.wall_time) if 0 <= found.wall_time < 1e12 else None,
        blobs=[_blob_address(run.id, tag, found.step, place) for place in range(found.blobs)],
        texts=[*found.texts],
        buckets=[*found.buckets],
    )


@router.get(
    "/runs/{run}/blob",
    response_class=Response,
    responses={200: {"content": {"image/*": {}, "audio/*": {}}, "description": "The blob."}},
)
def get_blob(
    hub: TheHub,
    run: TheRun,
    tag: TagQuery,
    step: Annotated[int, Query(ge=-_LONGEST_STEP, le=_LONGEST_STEP)],
    place: Annotated[int, Query(description="Its index in the step, from 0.", ge=0, le=1000)] = 0,
) -> Response:
    """Return an image or a clip as it was logged."""
    content = read_blob(hub.index, run, tag, step, place)
    return Response(content, media_type=content_type(content), headers=_BLOB_HEADERS)


def _blob_address(run: str, tag: str, step: int, place: int) -> str:
    query = urlencode({"tag": tag, "step": step, "place": place})
    return f"api/v1/runs/{quote(run, safe='')}/blob?{query}"
