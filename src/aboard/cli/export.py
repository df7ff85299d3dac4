"""`aboard export`: scalars as CSV, JSON or Parquet, every point unless asked otherwise.

One series is in memory at a time. A file appears under its name only when it is complete.
"""

from __future__ import annotations

import secrets
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from difflib import get_close_matches
from fnmatch import fnmatchcase
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, BinaryIO, Literal, NamedTuple

import typer

from aboard.cli.errors import Failure, WrongUsage, say
from aboard.cli.ls import kind
from aboard.cli.sources import OpenSource, SourceArgument, open_sources
from aboard.cli.wording import counted

if TYPE_CHECKING:
    from aboard.index import Tag

EPILOG = """
Examples:

- `aboard export runs/ > all.csv` - every point of every scalar
- `aboard export runs/ --tag 'loss*' --run '*/eval' -o loss.parquet` - some of them
- `aboard export runs/ --samples 1000 -o small.json` - at most 1000 points of each, spikes kept

Columns: run, tag, step, wall_time, value. Numbers lose nothing; NaN and infinities are written
as NaN, Infinity and -Infinity.
"""

FormatName = Literal["csv", "json", "parquet"]


class Chosen(NamedTuple):
    """A series to write, and the name under which its run is shown."""

    source: OpenSource
    run: str
    tag: Tag


def export(
    source: SourceArgument,
    format: Annotated[  # noqa: A002 - the option's name
        FormatName | None,
        typer.Option(help="The format; by default that of FILE's name, else csv."),
    ] = None,
    run: Annotated[str, typer.Option(metavar="GLOB", help="Only runs of this name.")] = "*",
    tag: Annotated[str, typer.Option(metavar="GLOB", help="Only tags of this name.")] = "*",
    samples: Annotated[
        int | None,
        typer.Option(
            min=1, metavar="N", help="At most N points of a series, spikes kept; else every point."
        ),
    ] = None,
    output: Annotated[
        str, typer.Option("--output", "-o", metavar="FILE", help="Where to; - is standard output.")
    ] = "-",
    json: Annotated[bool, typer.Option("--json", help="The same as --format json.")] = False,
) -> None:
    """Write the points of scalars to a file, or to standard output."""
    name = _format_name(format, output, json=json)
    if output == "-" and name == "parquet" and sys.stdout.isatty():
        raise WrongUsage("Parquet is no text for a terminal; name a file with -o FILE.")
    if output != "-":
        _check(output)
    from aboard.index import Index

    with Index() as index:
        found = open_sources(index, source)
        if found.opened:
            chosen = list(_choose(found.opened, run, tag))
            if not chosen:
                raise Failure(_nothing_chosen(found.opened, run, tag))
            points = _write(chosen, name, output, samples)
            if output != "-":
                series = f"{len(chosen):,} series"
                say(f"{counted(points, 'point')} of {series} written to {output}")
        found.say_damage()
    found.finish()


def _format_name(given: FormatName | None, output: str, *, json: bool) -> str:
    from aboard.cli.formats import FORMATS

    if json and given not in (None, "json"):
        raise WrongUsage(f"--json and --format {given} exclude each other; give one of them.")
    if given or json:
        return given or "json"
    ending = Path(output).suffix.lower().removeprefix(".")
    if output == "-" or ending in FORMATS:
        return "csv" if output == "-" else ending
    raise WrongUsage(
        f"the name {output} does not say which format to write; add --format csv, json or parquet."
    )


def _choose(opened: Sequence[OpenSource], run: str, tag: str) -> Iterator[Chosen]:
    for source in opened:
        for one in source.logs.tags:
            name = source.name(one.run)
            if one.is_scalar and fnmatchcase(name, run) and fnmatchcase(one.name, tag):
                yield Chosen(source, name, one)


def _nothing_chosen(opened: Sequence[OpenSource], run: str, tag: str) -> str:
    """Say which of the patterns matches nothing, and what is near to it."""
    held = [(source.name(one.run), one) for source in opened for one in source.logs.tags]
    runs = list(dict.fromkeys(source.name(one.name) for source in opened for one in source.runs))
    in_runs = [one for name, one in held if fnmatchcase(name, run)]
    matching = [one for one in in_runs if fnmatchcase(one.name, tag)]
    if not any(fnmatchcase(name, run) for name in runs):
        return f"no run matches --run '{run}'{_near(run, runs)}"
    if not matching:
        return f"no tag matches --tag '{tag}'{_near(tag, [one.name for one in in_runs])}"
    kinds = ", ".join(sorted({kind(one) for one in matching}))
    return f"there are no scalars to write, only {kinds}; 'aboard ls --tags' lists them."


def _near(pattern: str, names: Sequence[str]) -> str:
    distinct = list(dict.fromkeys(names))
    near = get_close_matches(pattern, distinct, n=1)
    if near:
        return f"; did you mean '{near[0]}'?"
    shown = ", ".join(f"'{name}'" for name in distinct[:5])
    more = f" and {len(distinct) - 5:,} more" if len(distinct) > 5 else ""
    return f"; there are {shown}{more}." if distinct else "; there are none."


def _write(chosen: Sequence[Chosen], name: str, output: str, samples: int | None) -> int:
    from aboard.cli.formats import FORMATS

    points = 0
    with _destination(output) as out:
        format_ = FORMATS[name](out)
        for source, run, tag in chosen:
            series = source.logs.index.series(tag, samples=samples)
            format_.write(run, tag.name, series)
            points += len(series.steps)
        format_.finish()
    return points


def _check(output: str) -> None:
    """Refuse, before anything is read, a place to which nothing can be written."""
    path = Path(output).expanduser()
    if path.is_dir():
        raise Failure(f"{output}: this is a directory. Name a file in it.")
    if not path.parent.is_dir():
        raise Failure(f"{output}: there is no directory {path.parent}. Create it first.")


@contextmanager
def _destination(output: str) -> Iterator[BinaryIO]:
    """Open standard output, or a file that takes its name when it is complete."""
    if output == "-":
        yield sys.stdout.buffer
        return
    path = Path(output).expanduser().resolve()
    if path.exists() and not path.is_file():
        with path.open("wb") as device:
            yield device
        return
    temporary = path.with_name(f".aboard-export-{secrets.token_hex(8)}.tmp")
    try:
        with temporary.open("xb") as file:
            yield file
        temporary.replace(path)
    except OSError as error:
        error.filename = output
        raise
    finally:
        temporary.unlink(missing_ok=True)
