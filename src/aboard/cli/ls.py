"""`aboard ls`: which runs are there, and what is in them."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Annotated, Any

import typer

from aboard.cli.sources import JsonOption, OpenSource, SourceArgument, Sources, open_sources
from aboard.cli.wording import json_number, moment, number, size, table

if TYPE_CHECKING:
    from aboard.index import Tag

EPILOG = """
Examples:

- `aboard ls runs/` - every run below a directory
- `aboard ls runs/ --tags` - every tag of every run, and its last value
- `aboard ls s3://bucket/runs ~/runs` - two places at once
- `aboard ls runs/ --json | jq -r '.sources[].runs[].run'` - for scripts
"""

_RUN_HEADS = ("RUN", "FIRST EVENT", "FILES", "SIZE", "EVENTS", "TAGS", "DAMAGED")
_TAG_HEADS = ("RUN", "TAG", "KIND", "POINTS", "FIRST STEP", "LAST STEP", "LAST VALUE")


def ls(
    source: SourceArgument,
    tags: Annotated[
        bool, typer.Option("--tags", help="List tags: kind, points, steps and last value.")
    ] = False,
    json: JsonOption = False,
) -> None:
    """List the runs of a log tree."""
    from aboard.index import Index

    with Index() as index:
        found = open_sources(index, source)
        show(found, tags=tags, json=json)
    found.finish()


def show(found: Sources, *, tags: bool, json: bool) -> None:
    """Print what was found, as tables or as JSON."""
    if json:
        import orjson

        document = found.as_json([_as_json(one, tags=tags) for one in found.opened])
        typer.echo(orjson.dumps(document, option=orjson.OPT_INDENT_2))
        return
    rows = [row for one in found.opened for row in (_tag_rows(one) if tags else _run_rows(one))]
    if rows:
        typer.echo(table(_TAG_HEADS if tags else _RUN_HEADS, rows, left=3 if tags else 2))
    found.say_damage()


def _run_rows(source: OpenSource) -> list[list[str]]:
    tags = _tags_per_run(source)
    return [
        [
            source.name(run.name),
            moment(run.first_wall),
            number(run.files),
            size(run.bytes),
            number(run.events),
            number(tags[run.name]),
            size(run.damaged_bytes) if run.damaged_bytes else "-",
        ]
        for run in source.runs
    ]


def _tag_rows(source: OpenSource) -> list[list[str]]:
    tags = source.logs.tags
    points = source.logs.index.point_counts(tags)
    return [
        [
            source.name(tag.run),
            tag.name,
            kind(tag),
            number(count),
            str(tag.first_step),
            str(tag.last_step),
            "-" if tag.last_value is None else f"{tag.last_value:.6g}",
        ]
        for tag, count in zip(tags, points, strict=True)
    ]


def kind(tag: Tag) -> str:
    """Name what a tag holds: its plugin, or its class of data where it has none."""
    return tag.kind.plugin or tag.kind.data_class or "unknown"


def _tags_per_run(source: OpenSource) -> Counter[str]:
    return Counter(tag.run for tag in source.logs.tags)


def _as_json(source: OpenSource, *, tags: bool) -> dict[str, Any]:
    per_run = _tags_per_run(source)
    document: dict[str, Any] = {
        "source": source.uri,
        "runs": [
            {
                "run": source.name(run.name),
                "directory": run.directory,
                "files": run.files,
                "bytes": run.bytes,
                "events": run.events,
                "tags": per_run[run.name],
                "first_event_time": json_number(run.first_wall),
                "damaged_bytes": run.damaged_bytes,
            }
            for run in source.runs
        ],
        "problems": [str(problem) for problem in source.logs.report.problems],
    }
    if tags:
        held = source.logs.tags
        points = source.logs.index.point_counts(held)
        document["tags"] = [
            {
                "run": source.name(tag.run),
                "tag": tag.name,
                "kind": kind(tag),
                "points": count,
                "first_step": tag.first_step,
                "last_step": tag.last_step,
                "last_wall_time": json_number(tag.last_wall_time),
                "last_value": json_number(tag.last_value),
            }
            for tag, count in zip(held, points, strict=True)
        ]
    return document
