"""The sources a command was given: opened one after another, with what went wrong put aside.

A source that cannot be read does not keep the others from being served. With several sources a
run's name begins with its source's, so that no two runs share one.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import pairwise
from typing import TYPE_CHECKING, Annotated, Any

import typer

from aboard.cli.errors import FAILURE, Failure, code_for, is_debugging, line_for, say
from aboard.cli.progress import ReadingBar
from aboard.cli.wording import size, skipped
from aboard.storage import StorageError, is_remote, join
from aboard.storage.local import explain

if TYPE_CHECKING:
    from aboard.index import Damage, Index, Run, Source
    from aboard.index.logs import Logs

SourceArgument = Annotated[
    list[str],
    typer.Argument(
        metavar="SOURCE...",
        help="Directories, bucket URIs (s3://bucket/path) or event files, one or more.",
        show_default=False,
    ),
]
JsonOption = Annotated[
    bool, typer.Option("--json", help="Print one JSON document instead of a table.")
]


@dataclass(slots=True)
class OpenSource:
    """A source that is in the index, and the name that goes before its runs' names."""

    logs: Logs
    label: str
    runs: list[Run]
    damage: list[Damage]

    @property
    def uri(self) -> str:
        """Where it is."""
        return place_of(self.logs.source)

    def name(self, run: str) -> str:
        """Return the name under which a run is shown."""
        if not self.label:
            return run
        return self.label if run == "." else f"{self.label}/{run}"


@dataclass(slots=True)
class Sources:
    """What came of the sources of a command."""

    opened: list[OpenSource] = field(default_factory=list)
    errors: list[tuple[str, Exception]] = field(default_factory=list)
    notices: list[str] = field(default_factory=list)
    """What there is to say of the index itself."""

    @property
    def exit_code(self) -> int:
        """0 if all went well; as for the error if nothing could be done; else 1."""
        if self.errors and not self.opened:
            return max(code_for(error) for _, error in self.errors)
        incomplete = any(one.logs.report.problems for one in self.opened)
        return FAILURE if self.errors or incomplete else 0

    def put_aside(self, source: str, error: Exception) -> None:
        """Say what is wrong with a source, and remember it for the end."""
        self.errors.append((source, error))
        say(line_for(error))

    def say_notices(self, index: Index) -> None:
        """Say what there is to say of the index itself."""
        self.notices = [str(problem) for problem in index.problems]
        for notice in self.notices:
            say(notice)

    def say_damage(self) -> None:
        """Say on standard error what was skipped because it is damaged."""
        for one in self.opened:
            if one.damage:
                say(f"{one.uri}: {skipped(one.uri, one.damage)}")

    def finish(self) -> None:
        """End the command with the exit code that its sources call for."""
        if self.exit_code:
            raise typer.Exit(self.exit_code)

    def as_json(self, opened: Sequence[dict[str, Any]]) -> dict[str, Any]:
        """Put the document together that `--json` prints."""
        return {
            "sources": list(opened),
            "errors": [{"source": text, "message": line_for(error)} for text, error in self.errors],
            "notices": self.notices,
        }


def open_sources(index: Index, texts: Sequence[str], *, anew: bool = False) -> Sources:
    """Bring the index up to date with every source; say on standard error what went wrong."""
    from aboard.index import Source

    found = Sources()
    parsed: dict[Source, str] = {}
    for text in texts:
        with putting_aside(found, text):
            parsed.setdefault(Source.parse(text), text)
    labels = distinct_labels([place_of(source) for source in parsed])
    for (source, text), label in zip(parsed.items(), labels, strict=True):
        with putting_aside(found, text):
            found.opened.append(_open(index, source, text, label, anew=anew))
    found.say_notices(index)
    return found


@contextmanager
def putting_aside(found: Sources, text: str) -> Iterator[None]:
    """Report what is wrong with a source, and let the others go on."""
    try:
        yield
    except (Failure, StorageError) as error:
        if is_debugging():
            raise
        found.put_aside(text, error)


def _open(index: Index, source: Source, text: str, label: str, *, anew: bool) -> OpenSource:
    from aboard.index.logs import Logs

    place = place_of(source)
    check_readable(source)
    with ReadingBar(place) as bar:
        logs = Logs(text, index=index, anew=anew, progress=bar)
    for problem in logs.report.problems:
        say(str(problem))
    runs, damage = logs.runs, logs.damage
    if not runs:
        raise Failure(
            f"no event files below {place}; TensorBoard logs are files whose name contains"
            " 'tfevents'. Check the path, and that the job has written something."
        )
    if source.only and damage and not runs[0].events:
        raise Failure(
            f"{place}: there is no good record in its {size(runs[0].bytes)}; it is no event file,"
            " or damaged beyond reading."
        )
    return OpenSource(logs, label, runs, damage)


def check_readable(source: Source) -> None:
    """Refuse a local path that is not there, or a file that is no event file."""
    place = place_of(source)
    if is_remote(place):
        return
    try:
        status = os.stat(place)  # noqa: PTH116 (a Path would be made of it and no more)
    except OSError as error:
        raise explain(place, error) from error
    if not source.only and not stat.S_ISDIR(status.st_mode):
        raise Failure(
            f"{place}: this is no event file, whose name would contain 'tfevents'."
            " Name a directory or an event file."
        )


def place_of(source: Source) -> str:
    """Return the path or URI of a source, in full."""
    return join(source.uri, source.only)


def distinct_labels(places: Sequence[str]) -> list[str]:
    """Return the shortest ends of paths that tell them apart; none is needed for a single one.

    No label is the beginning of another's path: runs of two sources would share a name.
    """
    if len(places) < 2:
        return ["" for _ in places]
    parts = [[part for part in place.split("/") if part] or ["root"] for place in places]
    for length in range(1, max(map(len, parts)) + 1):
        ends = [one[-length:] for one in parts]
        if all(after[: len(before)] != before for before, after in pairwise(sorted(ends))):
            return ["/".join(one) for one in ends]
    from aboard.runs.naming import distinct

    return distinct(one[-1] for one in parts)
