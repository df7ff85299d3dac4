"""The index of sources: `aboard ls` lists what is in it, `aboard index` reads new data into it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, Any

import typer

from aboard.cli.console import (
    Failure,
    JsonOption,
    WrongUsage,
    directories,
    examples,
    fitted,
    json_number,
    moment,
    number,
    strong,
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
    collecting_errors,
    matches,
    open_sources,
    parse_question,
    place_of,
    sources_or_roots,
)
from aboard.runs.units import counted, format_elapsed, format_size

if TYPE_CHECKING:
    from aboard.index import Index, Run, Tag
    from aboard.index.store import Forgotten
    from aboard.index.tags import Kind

_LS_EPILOG = examples(
    "`aboard ls` - every directory with event files below ABOARD_ROOT or ./runs",
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
    source: SourceArgument = None,
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
    """List directories with event files below a source; with --tags or --tag, their tags.

    TensorBoard shows each directory as a run; in `aboard runs` it may be a stage of a run.
    """
    from aboard.index import Index

    question = parse_question(where, sort, limit, texts=source or (), roots=root or ())
    missing = "Name what to list: aboard ls SOURCE. Or set ABOARD_ROOT or --root."
    listed = sources_or_roots(source, root, missing)
    with Index() as index:
        found = open_sources(index, listed, root, question=question)
        listings = _listings(found, run or [], tag or [], tags=tags or bool(tag))
        if json:
            import orjson

            document = found.as_json([_listing_json(one) for one in listings])
            typer.echo(orjson.dumps(document, option=orjson.OPT_INDENT_2))
        else:
            _print_listings(listings, tags=tags or bool(tag))
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


def _print_listings(listings: Sequence[_Listing], *, tags: bool) -> None:
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
            format_size(run.bytes),
            number(run.events),
            number(tags.get(run.name, 0)),
            format_size(run.damaged_bytes) if run.damaged_bytes else "-",
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


def _listing_json(listing: _Listing) -> dict[str, Any]:
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


_INDEX_EPILOG = examples(
    "`aboard index runs/` - read new data, and show a summary",
    "`aboard index s3://bucket/runs` - read a bucket in advance",
    "`aboard index --rebuild runs/` - read everything again",
    "`aboard index --forget /old/runs` - remove it from the index, even if it is gone",
)

_SHOWN_DAMAGE = 5


def index(
    source: SourceArgument = None,
    rebuild: Annotated[bool, typer.Option("--rebuild", help="Read everything again.")] = False,
    forget: Annotated[
        bool,
        typer.Option("--forget", help="Remove the sources from the index instead, and shrink it."),
    ] = False,
    json: JsonOption = False,
) -> None:
    """Read new data into the index, and show a summary."""
    if rebuild and forget:
        raise WrongUsage("use only one of --rebuild and --forget.")
    if forget and not source:
        raise WrongUsage("--forget requires a source. Name it: aboard index --forget SOURCE.")
    from aboard.index import Index

    missing = "Name what to read: aboard index SOURCE. Or set ABOARD_ROOT."
    named = sources_or_roots(source, None, missing)
    with Index() as held:
        if forget:
            found, forgotten = _forget(held, named)
            document = found.as_json([]) | {
                "forgotten": [{"source": one} | what._asdict() for one, what in forgotten.items()]
            }
            texts = [_forgotten_text(one, what) for one, what in forgotten.items()]
        else:
            found = open_sources(held, named, anew=rebuild)
            document = found.as_json([_summary_json(one) for one in found.opened]) if json else {}
            texts = [] if json else [_summary_text(one) for one in found.opened]
        if json:
            import orjson

            document["index"] = str(held.path) if held.path else None
            document["index_bytes"] = held.stored_bytes
            typer.echo(orjson.dumps(document, option=orjson.OPT_INDENT_2))
        elif texts:
            typer.echo("\n\n".join([*texts, _index_text(held)]))
    found.finish()


def _forget(held: Index, texts: Sequence[str]) -> tuple[Sources, dict[str, Forgotten]]:
    """Forget sources, which may be gone; return errors, and what was known of each."""
    from aboard.index import Source

    found, forgotten = Sources(), {}
    for text in texts:
        with collecting_errors(found, text):
            source = Source.parse(text)
            place = place_of(source)
            # A path that is gone may have been a directory.
            known = held.forget(source) or held.forget(Source(place))
            if not known:
                raise Failure(
                    f"{place} is not in the index. Name it as it was when it was read;"
                    " 'aboard index' without --forget reads it."
                )
            forgotten[place] = known
    if forgotten:
        held.compact()
    found.print_notices(held)
    return found, forgotten


def _forgotten_text(place: str, what: Forgotten) -> str:
    known = f"{counted(what.files, 'file')}, {counted(what.values, 'value')}"
    records = f", and the records of {counted(what.records, 'run')}" if what.records else ""
    return f"{strong(place)}\n  forgot   {directories(what.runs)}: {known}{records}"


def _index_text(held: Index) -> str:
    if held.path is None or held.stored_bytes is None:
        return "The index is in memory, and lost when this command exits."
    return f"The index is {held.path}, {format_size(held.stored_bytes)}."


def _records(source: OpenSource) -> dict[str, int]:
    """Count the values that are not scalars, by the name of their kind."""
    records = Counter[str]()
    for kind, count in source.contents.records.items():
        records[name_of(kind)] += count
    return dict(records.most_common())


def _summary_text(source: OpenSource) -> str:
    held, records, report = source.contents, _records(source), source.logs.report
    kinds = ", ".join(f"{kind} {number(count)}" for kind, count in records.items())
    read = f"{format_size(report.bytes_read)} from {counted(report.files_read, 'file')}"
    rate = (
        f", {format_size(int(report.bytes_read / report.seconds))}/s" if report.bytes_read else ""
    )
    lines = [
        strong(source.uri),
        f"  holds    {directories(held.directories)}",
        f"  series   {number(held.tags)}",
        f"  points   {number(held.points)}",
        f"  records  {number(sum(records.values()))}{f' ({kinds})' if kinds else ''}",
        f"  stored   {format_size(held.bytes)} in {counted(held.files, 'file')}",
        f"  read     {read} in {format_elapsed(report.seconds)}{rate}",
    ]
    if source.damage:
        lost = sum(span.length for span in source.damage)
        lines.append(
            f"  damaged  {counted(len(source.damage), 'place')}, {format_size(lost)}, skipped:"
        )
        lines += [
            f"           {span.uri} at byte {number(span.offset)}: {format_size(span.length)}"
            for span in source.damage[:_SHOWN_DAMAGE]
        ]
        if len(source.damage) > _SHOWN_DAMAGE:
            lines.append(f"           and {number(len(source.damage) - _SHOWN_DAMAGE)} more")
    if report.problems:
        lines.append(f"  unread   {counted(len(report.problems), 'problem')}, named above")
    return "\n".join(lines)


def _summary_json(source: OpenSource) -> dict[str, Any]:
    held, report = source.contents, source.logs.report
    return {
        "source": source.uri,
        "runs": held.directories,
        "series": held.tags,
        "points": held.points,
        "records": _records(source),
        "files": held.files,
        "bytes": held.bytes,
        "events": held.events,
        "read": {
            "files": report.files_read,
            "files_unchanged": report.files_unchanged,
            "files_gone": report.files_gone,
            "bytes": report.bytes_read,
            "events": report.events,
            "points": report.points,
            "records": report.records,
            "seconds": round(report.seconds, 6),
        },
        "damage": [span._asdict() for span in source.damage],
        "problems": [str(problem) for problem in report.problems],
    }


COMMANDS = {"ls": (ls, _LS_EPILOG), "index": (index, _INDEX_EPILOG)}
