"""`aboard index`: read new data into the index, and show what is in it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

import typer

from aboard.cli.console import (
    Failure,
    JsonOption,
    WrongUsage,
    counted,
    directories,
    duration,
    examples,
    number,
    size,
    strong,
)
from aboard.cli.ls import kind
from aboard.cli.sources import (
    OpenSource,
    SourceArgument,
    Sources,
    collecting_errors,
    open_sources,
    place_of,
)

if TYPE_CHECKING:
    from aboard.index import Index
    from aboard.index.store import Forgotten

EPILOG = examples(
    "`aboard index runs/` - read new data, and show a summary",
    "`aboard index s3://bucket/runs` - read a bucket in advance",
    "`aboard index --rebuild runs/` - read everything again",
    "`aboard index --forget /old/runs` - remove it from the index, even if it is gone",
)

_SHOWN_DAMAGE = 5


class Contents(NamedTuple):
    tags: int
    points: int
    records: dict[str, int]
    """Values that are not scalars, by kind."""


def index(
    source: SourceArgument,
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
    from aboard.index import Index

    with Index() as held:
        if forget:
            found, forgotten = _forget(held, source)
            document = found.as_json([]) | {
                "forgotten": [{"source": one} | what._asdict() for one, what in forgotten.items()]
            }
            texts = [_forgotten_text(one, what) for one, what in forgotten.items()]
        else:
            found = open_sources(held, source, anew=rebuild)
            document = found.as_json([_as_json(one) for one in found.opened]) if json else {}
            texts = [] if json else [_text(one) for one in found.opened]
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
    return f"The index is {held.path}, {size(held.stored_bytes)}."


def _contents(source: OpenSource) -> Contents:
    logs = source.logs
    tags, values = logs.index.value_counts(
        logs.source, lambda tag: "" if tag.is_scalar else kind(tag)
    )
    points = values.pop("", 0)
    return Contents(tags, points, dict(values.most_common()))


def _text(source: OpenSource) -> str:
    held, report = _contents(source), source.logs.report
    files = sum(run.files for run in source.runs)
    stored = sum(run.bytes for run in source.runs)
    kinds = ", ".join(f"{kind} {number(count)}" for kind, count in held.records.items())
    read = f"{size(report.bytes_read)} from {counted(report.files_read, 'file')}"
    rate = f", {size(int(report.bytes_read / report.seconds))}/s" if report.bytes_read else ""
    lines = [
        strong(source.uri),
        f"  holds    {directories(len(source.runs))}",
        f"  series   {number(held.tags)}",
        f"  points   {number(held.points)}",
        f"  records  {number(sum(held.records.values()))}{f' ({kinds})' if kinds else ''}",
        f"  stored   {size(stored)} in {counted(files, 'file')}",
        f"  read     {read} in {duration(report.seconds)}{rate}",
    ]
    if source.damage:
        lost = sum(span.length for span in source.damage)
        lines.append(f"  damaged  {counted(len(source.damage), 'place')}, {size(lost)}, skipped:")
        lines += [
            f"           {span.uri} at byte {number(span.offset)}: {size(span.length)}"
            for span in source.damage[:_SHOWN_DAMAGE]
        ]
        if len(source.damage) > _SHOWN_DAMAGE:
            lines.append(f"           and {number(len(source.damage) - _SHOWN_DAMAGE)} more")
    if report.problems:
        lines.append(f"  unread   {counted(len(report.problems), 'problem')}, named above")
    return "\n".join(lines)


def _as_json(source: OpenSource) -> dict[str, Any]:
    held, report = _contents(source), source.logs.report
    return {
        "source": source.uri,
        "runs": len(source.runs),
        "series": held.tags,
        "points": held.points,
        "records": held.records,
        "files": sum(run.files for run in source.runs),
        "bytes": sum(run.bytes for run in source.runs),
        "events": sum(run.events for run in source.runs),
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
