"""What a run logged besides scalars, step by step: images and audio as blobs, text, histograms."""

from __future__ import annotations

from typing import Annotated

from fastapi import Query, Response
from pydantic import BaseModel, Field

from aboard.hub.api import TheHub, api_router
from aboard.hub.api.run import TheRun
from aboard.hub.media import Kind, content_type, read_blob, read_medium
from aboard.runs.manifest import format_time

router = api_router("runs")
_LONGEST_STEP = 1 << 62
# Whatever is in a blob, a browser that opens it runs none of it.
_BLOB_HEADERS = {
    "content-security-policy": "default-src 'none'; sandbox",
    "content-disposition": "inline",
    "cache-control": "private, max-age=3600",
}

TagQuery = Annotated[
    str,
    Query(
        description="The `name` of what it has logged: `TAG` or `DIRECTORY/TAG`.",
        min_length=1,
        max_length=1000,
    ),
]


class MediumDocument(BaseModel):
    """The values of a tag at a step."""

    tag: str
    kind: Kind
    steps: list[int] = Field(description="All steps of the tag, or a thousand of them.")
    step: int
    time: str | None
    blobs: list[str] = Field(
        description="The addresses of images and clips, relative to the hub's own."
    )
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
            description="The last one at or before it; the last of all by default.",
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
        blobs=[_address(run.id, tag, found.step, place) for place in range(found.blobs)],
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
    place: Annotated[int, Query(description="Which of the step's, from 0.", ge=0, le=1000)] = 0,
) -> Response:
    """Return an image or a clip as it was logged."""
    content = read_blob(hub.index, run, tag, step, place)
    return Response(content, media_type=content_type(content), headers=_BLOB_HEADERS)


def _address(run: str, tag: str, step: int, place: int) -> str:
    from urllib.parse import quote, urlencode

    query = urlencode({"tag": tag, "step": step, "place": place})
    return f"api/v1/runs/{quote(run, safe='')}/blob?{query}"
