"""`aboard export`: scalars as CSV, JSON or Parquet, every point by default.

One series is in memory at a time, and is written in blocks of rows. A file gets its name only when
it is complete. Numbers are written so that reading them gives the same 64 bits. Text formats write
`NaN`, `Infinity` and `-Infinity`, JSON as strings.
"""

from __future__ import annotations

import os
import secrets
import stat
import sys
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import repeat
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, BinaryIO, Literal, NamedTuple

import typer

from aboard.cli.console import Failure, WrongUsage, notify
from aboard.cli.index import name_of
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
    fail_for,
    matches,
    open_sources,
    parse_question,
    sources_or_roots,
)
from aboard.runs.units import counted

if TYPE_CHECKING:
    import numpy.typing as npt
    import pyarrow as pa

    from aboard.index import Series, Tag

EPILOG = """
Examples:

- `aboard export runs/ > all.csv` - every point of every scalar
- `aboard export runs/ --tag 'loss*' --tag lr --run '*/eval' -o loss.parquet` - some of them
- `aboard export cifar10 --where 'state == "completed"' -o done.parquet` - of some runs
- `aboard export runs/ --samples 1000 -o small.json` - at most 1000 points of each, spikes kept

Columns: run, tag, step, wall_time, value. Numbers are exact; NaN and infinities are written as NaN,
Infinity and -Infinity.
"""

FormatName = Literal["csv", "json", "parquet"]


class Chosen(NamedTuple):
    """A series to write, and the name of its run."""

    source: OpenSource
    run: str
    tag: Tag


def export(
    source: SourceArgument = None,
    root: RootOption = None,
    format: Annotated[  # noqa: A002 - the option's name
        FormatName | None,
        typer.Option(help="The output format; by default from the extension of FILE, or csv."),
    ] = None,
    run: RunOption = None,
    tag: TagOption = None,
    where: WhereOption = None,
    sort: SortOption = None,
    limit: LimitOption = None,
    samples: Annotated[
        int | None,
        typer.Option(
            min=1, metavar="N", help="At most N points per series, with spikes; by default all."
        ),
    ] = None,
    output: Annotated[
        str,
        typer.Option("--output", "-o", metavar="FILE", help="Output file; - is standard output."),
    ] = "-",
    json: Annotated[bool, typer.Option("--json", help="The same as --format json.")] = False,
) -> None:
    """Write the points of scalars to a file, or to standard output."""
    name = _format_name(format, output, json=json)
    if output == "-" and name == "parquet" and sys.stdout.isatty():
        raise WrongUsage("Parquet is a binary format; name a file with -o FILE.")
    if output != "-":
        _check(output)
    from aboard.index import Index

    question = parse_question(where, sort, limit, texts=source or (), roots=root or ())
    missing = "Name what to export: aboard export SOURCE. Or set ABOARD_ROOT or --root."
    exported = sources_or_roots(source, root, missing)
    with Index() as index:
        found = open_sources(index, exported, root, question=question)
        if found.opened:
            chosen = _choose(found.opened, run or [], tag or [])
            points, series = _write(found, chosen, name, output, samples)
            if output != "-":
                notify(f"{counted(points, 'point')} of {series:,} series written to {output}")
        found.print_damage()
    found.finish()


def _format_name(given: FormatName | None, output: str, *, json: bool) -> str:

    if json and given not in (None, "json"):
        raise WrongUsage(f"use only one of --json and --format {given}.")
    if given or json:
        return given or "json"
    ending = Path(output).suffix.lower().removeprefix(".")
    if output == "-" or ending in FORMATS:
        return "csv" if output == "-" else ending
    raise WrongUsage(f"{output} has no known file extension; add --format csv, json or parquet.")


def _choose(opened: Sequence[OpenSource], runs: Sequence[str], tags: Sequence[str]) -> list[Chosen]:
    """Return the selected scalars; a pattern that selects none is an error."""
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
    kinds = {name_of(one.tag.kind) for one in held if matches(one.tag.name, [pattern])}
    only = f", only {', '.join(sorted(kinds))}" if kinds else ""
    what = "no scalars" if pattern == "*" else f"--tag '{pattern}' matches no scalars"
    return f"{what}{only}; 'aboard ls --tags' lists all tags."


def _write(
    found: Sources, chosen: Sequence[Chosen], name: str, output: str, samples: int | None
) -> tuple[int, int]:
    from aboard.index import UnknownName

    points = written = 0
    with _destination(output) as out:
        format_ = FORMATS[name](out)
        for source, run, tag in chosen:
            try:
                series = source.logs.index.series(tag, samples=samples)
            except UnknownName as error:
                found.add_error(source.uri, Failure(str(error)))
                continue
            format_.write(run, tag.name, series)
            points, written = points + len(series.steps), written + 1
        format_.finish()
    return points, written


def _check(output: str) -> None:
    """Check that the output can be written, before anything is read."""
    path = Path(output).expanduser()
    if path.is_dir():
        raise Failure(f"{output}: is a directory. Name a file in it.")
    if not path.parent.is_dir():
        raise Failure(f"{output}: directory {path.parent} not found. Create it first.")


@contextmanager
def _destination(output: str) -> Iterator[BinaryIO]:
    """Open standard output, or a file that gets its name when it is complete."""
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
    """Write a temporary file with the mode of the one it replaces, then rename it."""
    mode = stat.S_IMODE(path.stat().st_mode) if path.exists() else None
    temporary = path.with_name(f".aboard-export-{secrets.token_hex(8)}.tmp")
    try:
        descriptor = os.open(
            temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o666 if mode is None else 0o600
        )
    except OSError:
        if mode is None:
            raise
        with path.open("wb") as file:  # the directory cannot have another file
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


COLUMNS = ("run", "tag", "step", "wall_time", "value")
_BLOCK_ROWS = 1 << 14
_ROW_GROUP_ROWS = 1 << 19


class Format(ABC):
    """Writes an output file: `write` every series, then `finish`."""

    def __init__(self, out: BinaryIO) -> None:
        self._out = out

    @abstractmethod
    def write(self, run: str, tag: str, series: Series) -> None:
        """Append the points of a series."""

    @abstractmethod
    def finish(self) -> None:
        """Write the end of the file."""


class Csv(Format):
    def __init__(self, out: BinaryIO) -> None:
        super().__init__(out)
        out.write(",".join(COLUMNS).encode() + b"\n")

    def write(self, run: str, tag: str, series: Series) -> None:
        start = f"{_csv_field(run)},{_csv_field(tag)},".encode()
        comma, end = repeat(b","), repeat(b"\n")
        for steps, walls, values in _blocks(series, b"%s"):
            rows = zip(repeat(start), steps, comma, walls, comma, values, end)
            self._out.write(b"".join(map(b"".join, rows)))

    def finish(self) -> None:
        """Do nothing: CSV has no footer."""


class Json(Format):
    def __init__(self, out: BinaryIO) -> None:
        super().__init__(out)
        self._before = b"[\n"

    def write(self, run: str, tag: str, series: Series) -> None:
        import orjson

        start = b'{"run":%s,"tag":%s,"step":' % (orjson.dumps(run), orjson.dumps(tag))
        wall_time, value, end = repeat(b',"wall_time":'), repeat(b',"value":'), repeat(b"}")
        for steps, walls, values in _blocks(series, b'"%s"'):
            rows = zip(repeat(start), steps, wall_time, walls, value, values, end)
            self._out.write(self._before + b",\n".join(map(b"".join, rows)))
            self._before = b",\n"

    def finish(self) -> None:
        self._out.write(b"[]\n" if self._before == b"[\n" else b"\n]\n")


class Parquet(Format):
    """Row groups of half a million points, whatever the length of a series."""

    def __init__(self, out: BinaryIO) -> None:
        try:
            import pyarrow as pa
            from pyarrow import parquet
        except ImportError:
            raise Failure(
                'Parquet needs pyarrow, which is not installed: pip install "aboard[parquet]".'
            ) from None
        super().__init__(out)
        kinds = (pa.string(), pa.string(), pa.int64(), pa.float64(), pa.float64())
        self._schema = pa.schema(list(zip(COLUMNS, kinds, strict=True)))
        self._sink = pa.PythonFile(_Counted(out), mode="w")
        self._writer = parquet.ParquetWriter(self._sink, self._schema, compression="zstd")
        self._held: list[pa.Table] = []
        self._rows = 0

    def write(self, run: str, tag: str, series: Series) -> None:
        import pyarrow as pa

        for start in range(0, len(series.steps), _ROW_GROUP_ROWS):
            part = [column[start : start + _ROW_GROUP_ROWS] for column in series]
            rows = len(part[0])
            names = [pa.repeat(pa.scalar(name), rows) for name in (run, tag)]
            self._held.append(pa.Table.from_arrays([*names, *part], schema=self._schema))
            self._rows += rows
            if self._rows >= _ROW_GROUP_ROWS:
                self._write_group()

    def finish(self) -> None:
        self._write_group()
        self._writer.close()
        self._sink.close()

    def _write_group(self) -> None:
        import pyarrow as pa

        if self._held:
            self._writer.write_table(pa.concat_tables(self._held), row_group_size=self._rows)
        self._held, self._rows = [], 0


class _Counted:
    """A stream that counts its position, which Parquet needs and a pipe lacks."""

    closed = False

    def __init__(self, out: BinaryIO) -> None:
        self._out = out
        self._written = 0

    def write(self, content: bytes) -> int:
        self._out.write(content)
        self._written += len(content)
        return len(content)

    def tell(self) -> int:
        return self._written

    def flush(self) -> None:
        self._out.flush()

    def close(self) -> None:
        self.closed = True


FORMATS: dict[str, type[Format]] = {"csv": Csv, "json": Json, "parquet": Parquet}


def _blocks(series: Series, word: bytes) -> Iterator[tuple[list[bytes], ...]]:
    for start in range(0, len(series.steps), _BLOCK_ROWS):
        yield tuple(_numbers(column[start : start + _BLOCK_ROWS], word) for column in series)


def _numbers(column: npt.NDArray[Any], word: bytes) -> list[bytes]:
    """Write numbers in their shortest exact form, or as a word if not finite."""
    import numpy as np
    import orjson

    dumped = orjson.dumps(np.ascontiguousarray(column), option=orjson.OPT_SERIALIZE_NUMPY)
    texts = dumped[1:-1].split(b",")
    for place in np.flatnonzero(~np.isfinite(column)).tolist():
        number = column[place]
        name = b"NaN" if np.isnan(number) else b"Infinity" if number > 0 else b"-Infinity"
        texts[place] = word % name
    return texts


def _csv_field(text: str) -> str:
    if any(mark in text for mark in ',"\r\n') or text != text.strip() or not text:
        return '"' + text.replace('"', '""') + '"'
    return text
