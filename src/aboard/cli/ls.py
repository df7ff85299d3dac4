"""`aboard ls`: which directories have event files, and what is in them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, Any

import typer

from aboard.cli.console import (
    JsonOption,
    examples,
    fitted,
    json_number,
    moment,
    number,
    size,
    table,
    terminal_width,
)
from aboard.cli.sources import (
    LimitOption,
    OpenSource,
    RootOption,
    RunOption,
    SortOption,
    SourceArgument,
    Sources,
    TagOption,
    WhereOption,
    check_each,
    matches,
    open_sources,
    parse_question,
)

if TYPE_CHECKING:
    from aboard.index import Run, Tag
    from aboard.index.tags import Kind

EPILOG = examples(
    "`aboard ls runs/` - every directory with event files",
    "`aboard ls runs/ --tags` - every tag in each of them, and its last value",
    "`aboard ls runs/ --run 'cifar10/*' --tag 'loss*'` - some tags of some runs",
    "`aboard ls s3://bucket/runs ~/runs` - two places at once",
    "`aboard ls runs/ --where 'hparams.lr < 0.1' --sort -metrics.loss --limit 5` - some runs",
    "`aboard ls runs/ --json | jq -r '.sources[].runs[].run'` - for scripts",
)

_RUN_HEADS = ("RUN", "FIRST EVENT", "FILES", "SIZE", "EVENTS", "TAGS", "DAMAGED")
_TAG_HEADS = ("RUN", "TAG", "KIND", "POINTS", "FIRST STEP", "LAST STEP", "LAST VALUE")
_LEAST = ("FIRST EVENT", "EVENTS", "FILES", "TAGS", "FIRST STEP", "KIND", "POINTS", "LAST STEP")
_SHORTEST = {"TAG": 16, "RUN": 16}
_TEXTS = {"RUN", "TAG", "KIND", "FIRST EVENT"}


def ls(
    source: SourceArgument,
    root: RootOption = None,
    tags: Annotated[
        bool, typer.Option("--tags", help="List tags: kind, points, steps and last value.")
    ] = False,
    run: RunOption = None,
    tag: TagOption = None,
    where: WhereOption = None,
    sort: SortOption = None,
    limit: LimitOption = None,
    json: JsonOption = False,
) -> None:
    """List the directories with event files below a source; with --tags or --tag, their tags.

    TensorBoard shows each directory as a run; in `aboard runs` it may be a stage of a run.
    """
    from aboard.index import Index

    question = parse_question(where, sort, limit)
    with Index() as index:
        found = open_sources(index, source, root, question=question)
        listings = _listings(found, run or [], tag or [], tags=tags or bool(tag))
        if json:
            import orjson

            document = found.as_json([_as_json(one) for one in listings])
            typer.echo(orjson.dumps(document, option=orjson.OPT_INDENT_2))
        else:
            _print(listings, tags=tags or bool(tag))
            found.print_damage()
    found.finish()


class _Listing:
    def __init__(self, source: OpenSource, patterns: Sequence[str], *, tags: bool) -> None:
        self.source = source
        self.runs: list[Run] = [
            run for run in source.runs if matches(source.name(run.name), patterns)
        ]
        names = {run.name for run in self.runs}
        self.tags: list[Tag] | None = None
        if tags:
            self.tags = [tag for tag in source.logs.tags if tag.run in names]

    def keep_tags(self, patterns: Sequence[str]) -> None:
        if self.tags is not None:
            self.tags = [tag for tag in self.tags if matches(tag.name, patterns)]

    def counted_tags(self) -> list[tuple[Tag, int]]:
        tags = self.tags or []
        return list(zip(tags, self.source.logs.index.point_counts(tags), strict=True))


def _listings(
    found: Sources, runs: Sequence[str], patterns: Sequence[str], *, tags: bool
) -> list[_Listing]:
    if not found.opened:
        return []
    check_each("run", runs, [one.name(run.name) for one in found.opened for run in one.runs])
    listings = [_Listing(one, runs, tags=tags) for one in found.opened]
    check_each("tag", patterns, [tag.name for one in listings for tag in one.tags or ()])
    for one in listings:
        one.keep_tags(patterns)
    return listings


def _print(listings: Sequence[_Listing], *, tags: bool) -> None:
    rows = [row for one in listings for row in (_tag_rows(one) if tags else _run_rows(one))]
    if not rows:
        return
    heads: Sequence[str] = _TAG_HEADS if tags else _RUN_HEADS
    if (width := terminal_width()) is not None:
        least = [head for head in _LEAST if head in heads]
        heads, rows = fitted(heads, rows, width, least=least, shortest=_SHORTEST)
    typer.echo(table(heads, rows, left=sum(head in _TEXTS for head in heads)))


def _run_rows(listing: _Listing) -> list[list[str]]:
    source = listing.source
    tags = source.logs.index.tag_counts(source.logs.source)
    return [
        [
            source.name(run.name),
            moment(run.first_wall),
            number(run.files),
            size(run.bytes),
            number(run.events),
            number(tags.get(run.name, 0)),
            size(run.damaged_bytes) if run.damaged_bytes else "-",
        ]
        for run in listing.runs
    ]


def _tag_rows(listing: _Listing) -> list[list[str]]:
    return [
        [
            listing.source.name(tag.run),
            tag.name,
            name_of(tag.kind),
            number(count),
            str(tag.first_step),
            str(tag.last_step),
            "-" if tag.last_value is None else f"{tag.last_value:.6g}",
        ]
        for tag, count in listing.counted_tags()
    ]


def name_of(kind: Kind) -> str:
    return kind.plugin or kind.data_class or "unknown"


def _as_json(listing: _Listing) -> dict[str, Any]:
    source = listing.source
    tags = source.logs.index.tag_counts(source.logs.source)
    document: dict[str, Any] = {
        "source": source.uri,
        "runs": [
            {
                "run": source.name(run.name),
                "directory": run.directory,
                "files": run.files,
                "bytes": run.bytes,
                "events": run.events,
                "tags": tags.get(run.name, 0),
                "first_event_time": json_number(run.first_wall),
                "damaged_bytes": run.damaged_bytes,
            }
            for run in listing.runs
        ],
        "problems": [str(problem) for problem in source.logs.report.problems],
    }
    if listing.tags is not None:
        document["tags"] = [
            {
                "run": source.name(tag.run),
                "tag": tag.name,
                "kind": name_of(tag.kind),
                "points": count,
                "first_step": tag.first_step,
                "last_step": tag.last_step,
                "last_wall_time": json_number(tag.last_wall_time),
                "last_value": json_number(tag.last_value),
            }
            for tag, count in listing.counted_tags()
        ]
    return document
