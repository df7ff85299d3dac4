"""Runs and the roots they lie below."""

from __future__ import annotations

from typing import Annotated, Any

import orjson
from fastapi import Query, Response

from aboard.boards.errors import BadValue
from aboard.hub.amounts import timestamp
from aboard.hub.api.asked import TheHub, api_router
from aboard.hub.documents import RootDocument, RootList, RunList
from aboard.runs.known import KnownRun

router = api_router("runs")


@router.get("/runs", response_model=RunList)
def list_runs(
    hub: TheHub,
    selector: Annotated[list[str], Query(description="As for boards; all runs if none.")] = [],  # noqa: B006
    limit: Annotated[int, Query(ge=1, le=10_000)] = 1000,
    cursor: Annotated[str | None, Query(max_length=20)] = None,
) -> Response:
    """List runs in their natural order."""
    hub.reader.listed()
    start = _position(cursor)
    found = hub.catalog.find(selector)
    now = hub.clock()
    page = found[start : start + limit]
    end = start + len(page)
    more = str(end) if end < len(found) else None
    # Ten thousand of them are asked for at once, so they are written without a model between.
    body = orjson.dumps({"runs": [_document(run, now) for run in page], "next": more})
    return Response(body, media_type="application/json")


@router.get("/roots")
def list_roots(hub: TheHub) -> RootList:
    """List the places where runs are."""
    hub.reader.listed()
    known = hub.catalog.runs()
    roots = []
    for root in hub.catalog.roots:
        state = hub.catalog.state(root.uri)
        count = sum(run.root == root.uri for run in known)
        looked = timestamp(state.at)
        roots.append(
            RootDocument(
                uri=root.uri, name=root.name, looked=looked, problem=state.problem, runs=count
            )
        )
    return RootList(roots=roots)


def _position(cursor: str | None) -> int:
    if cursor is None:
        return 0
    if cursor.isascii() and cursor.isdigit():
        return int(cursor)
    raise BadValue("the place to go on from is not one that a page gave.", "Begin without it.")


def _document(run: KnownRun, now: float) -> dict[str, Any]:
    """Describe a run as a `RunDocument` does."""
    state = run.state_at(now)
    return {
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
        "created": timestamp(run.created or None),
        "started": timestamp(run.started or None),
        "ended": timestamp(run.ended),
        "hparams": orjson.Fragment(run.hparams_json),
        "tags": orjson.Fragment(run.tags_json),
        "metrics": orjson.Fragment(run.metrics_json),
        "problem": run.problem,
    }
