"""`aboard export`: scalars as CSV, JSON or Parquet, every point unless asked otherwise.

One series is in memory at a time. A file appears under its name only when it is complete.
"""

from __future__ import annotations

import os
import secrets
import stat
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, BinaryIO, Literal, NamedTuple

import typer

from aboard.cli.errors import Failure, WrongUsage, say
from aboard.cli.ls import kind
from aboard.cli.patterns import RunOption, TagOption, check_each, fail_for, matches
from aboard.cli.sources import OpenSource, SourceArgument, Sources, open_sources
from aboard.cli.wording import counted

if TYPE_CHECKING:
    from aboard.index import Tag

EPILOG = """
Examples:

- `aboard export runs/ > all.csv` - every point of every scalar
- `aboard export runs/ --tag 'loss*' --tag lr --run '*/eval' -o loss.parquet` - some of them
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
    run: RunOption = None,
    tag: TagOption = None,
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
            chosen = _choose(found.opened, run or [], tag or [])
            points, series = _write(found, chosen, name, output, samples)
            if output != "-":
                say(f"{counted(points, 'point')} of {series:,} series written to {output}")
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


def _choose(opened: Sequence[OpenSource], runs: Sequence[str], tags: Sequence[str]) -> list[Chosen]:
    """Return the scalars that are asked for; a pattern that picks none is an error."""
    check_each("run", runs, [one.name(run.name) for one in opened for run in one.runs])
    held = [
        Chosen(source, name, tag)
        for source in opened
        for tag in source.logs.tags
        if matches(name := source.name(tag.run), runs)
    ]
    check_each("tag", tags, [one.tag.name for one in held])
    fail_for([_no_scalars(held, pattern) for pattern in tags if not _scalars(held, [pattern])])
    chosen = _scalars(held, tags)
    if not chosen:
        raise Failure(_no_scalars(held))
    return chosen


def _scalars(held: Sequence[Chosen], patterns: Sequence[str]) -> list[Chosen]:
    return [one for one in held if one.tag.is_scalar and matches(one.tag.name, patterns)]


def _no_scalars(held: Sequence[Chosen], pattern: str = "*") -> str:
    kinds = {kind(one.tag) for one in held if matches(one.tag.name, [pattern])}
    only = f", only {', '.join(sorted(kinds))}" if kinds else ""
    what = "there are" if pattern == "*" else f"--tag '{pattern}' matches"
    return f"{what} no scalars{only}; 'aboard ls --tags' lists all tags."


def _write(
    found: Sources, chosen: Sequence[Chosen], name: str, output: str, samples: int | None
) -> tuple[int, int]:
    """Write what was chosen; return how many points of how many series that were."""
    from aboard.cli.formats import FORMATS
    from aboard.index import UnknownName

    points = written = 0
    with _destination(output) as out:
        format_ = FORMATS[name](out)
        for source, run, tag in chosen:
            try:
                series = source.logs.index.series(tag, samples=samples)
            except UnknownName as error:
                found.put_aside(source.uri, Failure(str(error)))
                continue
            format_.write(run, tag.name, series)
            points, written = points + len(series.steps), written + 1
        format_.finish()
    return points, written


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
    try:
        if path.exists() and not path.is_file():
            with path.open("wb") as device:
                yield device
        else:
            with _file(path) as file:
                yield file
    except OSError as error:
        error.filename = output
        raise


@contextmanager
def _file(path: Path) -> Iterator[BinaryIO]:
    """Write a file beside its place, with the mode of the one that it replaces, and move it in."""
    mode = stat.S_IMODE(path.stat().st_mode) if path.exists() else None
    temporary = path.with_name(f".aboard-export-{secrets.token_hex(8)}.tmp")
    try:
        descriptor = os.open(
            temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o666 if mode is None else 0o600
        )
    except OSError:
        if mode is None:
            raise
        with path.open("wb") as file:  # its directory takes no other
            yield file
        return
    try:
        with os.fdopen(descriptor, "wb") as file:
            if mode is not None:
                os.fchmod(descriptor, mode)
            yield file
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)
