"""Jobs: list and describe them, read their logs, submit, stop, retry and delete them."""

from __future__ import annotations

from pathlib import Path as FilePath
from typing import Annotated, Any

from fastapi import Depends, Path, Query, Request, Response
from fastapi.responses import StreamingResponse
from pydantic import BaseModel, Field
from starlette.concurrency import run_in_threadpool

from aboard.boards.model import BadValue
from aboard.hub.api import (
    Duration,
    RequestDocument,
    Shares,
    Size,
    TheHub,
    TheVisitor,
    api_router,
    json_response,
    position,
)
from aboard.hub.jobs import JobFilter, Turn, job_document
from aboard.hub.permissions import Forbidden
from aboard.jobs.experiment import resources
from aboard.jobs.model import JobState, MemberState
from aboard.jobs.service import JobRequest

router = api_router("jobs")
_UNCACHED = {"cache-control": "no-store"}
_MOST_MEMBERS = 100_000

JobId = Annotated[str, Path(description="An id, or a prefix of one.", min_length=1, max_length=128)]
InRoot = Annotated[
    str | None, Query(description="Only in this root of the hub.", max_length=4096, min_length=1)
]
Text = Annotated[str, Field(max_length=100_000)]
Value = str | int | float | bool | None


def the_turn(request: Request, visitor: TheVisitor) -> Turn:
    """Return a context manager that waits for the user's turn to call an engine."""
    calls: Shares = request.app.state.engine_calls
    name = visitor.name if visitor is not None else ""
    return lambda: calls.of(name)


TheTurn = Annotated[Turn, Depends(the_turn)]


class JobDocument(BaseModel):
    """A job: members that were submitted together."""

    id: str
    state: JobState
    reason: str = Field(description="Why it waits, has failed or is unknown.")
    experiment: str
    on: str = Field(description="`ENGINE` or `ENGINE:PROFILE`.")
    command: list[str] = Field(description="`{lr}` stands for the value of each member.")
    selector: str = Field(description="Selects its runs.")
    root: str
    user: str
    host: str
    created: str
    attempts: int = Field(description="How often members were submitted.")
    exit_code: int | None = Field(description="Of the worst member, once all have ended.")
    count: int = Field(description="How many members it has.")
    states: dict[MemberState, int] = Field(description="How many members are in each state.")


class JobList(BaseModel):
    """A page of jobs, newest first."""

    jobs: list[JobDocument]
    next: str | None = Field(description="The `cursor` of the next page.")


class MemberDocument(BaseModel):
    """A member of a job."""

    number: int
    run: str = Field(description="As `experiment/name`.")
    hparams: dict[str, Any]
    state: MemberState
    exit_code: int | None
    reason: str
    unit: str = Field(description="The engine's name for it, such as `2300_4`.")


class MemberList(BaseModel):
    """A page of the members of a job, by number."""

    members: list[MemberDocument]
    next: str | None = Field(description="The `cursor` of the next page.")


class NewJob(RequestDocument):
    """A job to submit: `command` runs once for each member."""

    command: Annotated[list[Text], Field(min_length=1, max_length=10_000)]
    experiment: Annotated[str, Field(max_length=128)] = "default"
    on: Annotated[str, Field(max_length=200)] = Field("process", examples=["slurm:long"])
    name: Annotated[str, Field(max_length=128)] | None = None
    root: Annotated[str, Field(max_length=4096)] | None = Field(
        None, description="The root of the hub for its runs; by default the first."
    )
    sweep: dict[str, Annotated[list[Value], Field(max_length=_MOST_MEMBERS)]] = Field(
        {}, examples=[{"lr": [0.1, 0.01]}]
    )
    repeat: Annotated[int, Field(ge=1, le=_MOST_MEMBERS)] = 1
    members: Annotated[list[dict[str, Value]], Field(max_length=_MOST_MEMBERS)] | None = Field(
        None, description="The hyperparameters of each member, instead of `sweep`."
    )
    hparams: dict[str, Value] = Field({}, description="Of every member.")
    tags: dict[str, Value] = Field({})
    env: dict[str, Text] = Field({}, description="Variables of its environment.")
    gpus: Annotated[int, Field(ge=0, le=10**6)] = 0
    cpus: Annotated[float, Field(gt=0, le=10**6)] | None = None
    memory: Size | None = None
    time: Duration | None = None
    nodes: Annotated[int, Field(ge=1, le=10**6)] = 1
    tasks_per_node: Annotated[int, Field(ge=1, le=10**6)] = 1
    image: Annotated[str, Field(max_length=1000)] = ""
    parallel: Annotated[int, Field(ge=1, le=10**6)] | None = None
    workdir: Annotated[str, Field(max_length=4096)] = Field(
        description="Where the command runs: an absolute path that the engine's machines have."
    )

    def to_request(self) -> JobRequest:
        if not self.workdir.startswith("/"):
            raise BadValue(
                f"workdir {self.workdir[:200]!r} is a relative path.",
                "Use an absolute path, such as /home/ada/cifar10.",
            )
        return JobRequest(
            command=self.command,
            experiment=self.experiment,
            on=self.on,
            name=self.name,
            sweep=self.sweep,
            repeat=self.repeat,
            members=self.members,
            hparams=self.hparams,
            tags=self.tags,
            environment=self.env,
            resources=resources(
                gpus=self.gpus,
                cpus=self.cpus,
                memory=self.memory,
                time=self.time,
                nodes=self.nodes,
                tasks_per_node=self.tasks_per_node,
            ),
            image=self.image,
            parallel=self.parallel,
            workdir=FilePath(self.workdir),
        )


class JobStop(RequestDocument):
    """How to stop a job."""

    now: bool = Field(False, description="Without the engine's grace period.")


class JobRetry(RequestDocument):
    """The members to submit again."""

    members: Annotated[list[int], Field(max_length=_MOST_MEMBERS)] = Field(
        [], description="Their numbers; by default all that failed, were killed or are lost."
    )


@router.get("/jobs", response_model=JobList)
async def list_jobs(
    hub: TheHub,
    state: Annotated[list[JobState], Query(description="Only these.")] = [],  # noqa: B006
    experiment: Annotated[str, Query(max_length=128)] = "",
    user: Annotated[str, Query(max_length=64)] = "",
    root: InRoot = None,
    limit: Annotated[int, Query(ge=1, le=1000)] = 100,
    cursor: Annotated[str | None, Query(max_length=20)] = None,
) -> Response:
    """List the jobs below the hub's roots, newest first."""
    chosen = JobFilter(frozenset(state), experiment, user)
    found, after = await hub.jobs.page(chosen, root, start=position(cursor), limit=limit)
    return await run_in_threadpool(
        lambda: json_response({"jobs": list(map(job_document, found)), "next": _cursor(after)})
    )


@router.post("/jobs", status_code=201)
async def submit_job(hub: TheHub, visitor: TheVisitor, turn: TheTurn, job: NewJob) -> JobDocument:
    """Submit a job to an engine of the hub, as the hub's user; this needs a token."""
    if visitor is not None and visitor.session:
        # A page of the hub, or a plugin on one, must not start commands.
        raise Forbidden(
            "a session may not submit jobs.", "Send a token. Create one: aboard token create"
        )
    async with turn():
        return JobDocument(**job_document(await hub.jobs.submit(job.to_request(), job.root)))


@router.get("/jobs/{job}")
async def get_job(hub: TheHub, job: JobId, root: InRoot = None) -> JobDocument:
    """Describe a job."""
    return JobDocument(**job_document(await hub.jobs.get(job, root)))


@router.get("/jobs/{job}/members", response_model=MemberList)
async def list_members(
    hub: TheHub,
    job: JobId,
    root: InRoot = None,
    state: Annotated[list[MemberState], Query(description="Only these.")] = [],  # noqa: B006
    limit: Annotated[int, Query(ge=1, le=10_000)] = 1000,
    cursor: Annotated[str | None, Query(max_length=20)] = None,
) -> Response:
    """List the members of a job by their numbers."""
    start = position(cursor)
    status = await hub.jobs.get(job, root)

    def page() -> Response:
        found = [one for one in status.members if not state or one.state in state]
        members = [one.document() for one in found[start : start + limit]]
        end = start + limit
        return json_response(
            {"members": members, "next": _cursor(end if end < len(found) else None)}
        )

    return await run_in_threadpool(page)


@router.get(
    "/jobs/{job}/logs",
    response_class=StreamingResponse,
    responses={200: {"content": {"text/plain": {}}, "description": "The log."}},
)
async def get_job_logs(
    hub: TheHub,
    turn: TheTurn,
    job: JobId,
    root: InRoot = None,
    member: Annotated[int | None, Query(ge=1, le=10**9)] = None,
    tail: Annotated[int | None, Query(ge=0, le=10**9)] = None,
    follow: bool = False,
) -> StreamingResponse:
    """Return the log of a member; with `follow`, until it ends."""
    async with turn():
        log = await hub.jobs.log(job, member, root, turn)
    pieces = log.follow(tail) if follow else await log.read(tail)
    return StreamingResponse(pieces, media_type="text/plain; charset=utf-8", headers=_UNCACHED)


@router.post("/jobs/{job}/stop")
async def stop_job(
    hub: TheHub, turn: TheTurn, job: JobId, root: InRoot = None, how: JobStop | None = None
) -> JobDocument:
    """Stop the members of a job that run or wait."""
    now = how is not None and how.now
    async with turn():
        return JobDocument(**job_document(await hub.jobs.stop(job, root, now=now)))


@router.post("/jobs/{job}/retry")
async def retry_job(
    hub: TheHub, turn: TheTurn, job: JobId, root: InRoot = None, what: JobRetry | None = None
) -> JobDocument:
    """Submit again the members of a job that did not succeed; their runs continue."""
    members = what.members if what is not None else []
    async with turn():
        return JobDocument(**job_document(await hub.jobs.retry(job, root, members)))


@router.delete("/jobs/{job}", status_code=204, response_model=None)
async def delete_job(
    hub: TheHub,
    turn: TheTurn,
    job: JobId,
    root: InRoot = None,
    force: Annotated[bool, Query(description="Even if its state is unknown.")] = False,
) -> None:
    """Remove an ended job from the list; its runs are kept."""
    async with turn():
        await hub.jobs.delete(job, root, force=force)


def _cursor(after: int | None) -> str | None:
    return None if after is None else str(after)
