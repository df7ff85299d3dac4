"""`aboard doctor`: why a board would be empty or odd, and what to do about it."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, Any

import typer

from aboard.cli.completion import Completer, engines_like, selectors_like
from aboard.cli.console import (
    FAILURE,
    JsonOption,
    ReadingBar,
    WrongUsage,
    directories,
    examples,
    notify,
    number,
    printable,
    strong,
    styled,
)
from aboard.cli.hub import open_hub
from aboard.cli.sources import (
    RootOption,
    exists,
    parse_sources,
    refresh_roots,
    sources_or_roots,
)
from aboard.cli.view import SHOWN
from aboard.runs.units import counted, format_age, format_size
from aboard.storage import StorageError

if TYPE_CHECKING:
    from aboard.doctor.examination import Examination
    from aboard.doctor.rules import Finding, Severity
    from aboard.index import Index
    from aboard.runs.selectors import Selector

EPILOG = examples(
    "`aboard doctor` - is anything odd about the runs below `./runs`, or `ABOARD_ROOT`?",
    "`aboard doctor runs/` - why is my board empty?",
    "`aboard doctor s3://bucket/runs` - what do requests to it cost?",
    "`aboard doctor cifar10/run3` - what is odd about a run, named by a selector?",
    "`aboard doctor nightly` - what does the hub see of a board?",
    "`aboard doctor --engine slurm` - does an engine run boards, and where does it break?",
    "`aboard doctor runs/ --json | jq -r '.findings[] | select(.severity == \"error\") | .what'`",
)

_COLOURS: dict[Severity, int] = {"error": 31, "warning": 33, "info": 36}
_INDENT = " " * 11
_HUB_SECONDS = 5.0


def doctor(
    source: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[SOURCE]...",
            help=f"{SHOWN} Or a board.",
            show_default=False,
        ),
        Completer(selectors_like),
    ] = None,
    root: RootOption = None,
    engine: Annotated[
        str | None,
        typer.Option(
            metavar="ENGINE[:PROFILE]",
            help="Test an engine of the hub with a small board, from start to stop.",
        ),
        Completer(engines_like),
    ] = None,
    json: JsonOption = False,
) -> None:
    """Find out why a board is or would be empty or odd.

    Takes the sources of `aboard view`, or a board. Every finding says what is wrong, where, and
    what to do. The exit code is 1 if one of them is an error.
    """
    if engine is not None:
        if source or root:
            raise WrongUsage("--engine cannot be combined with a source or --root.")
        from aboard.cli.engines import try_engine

        try_engine(engine, json=json)
        return
    from aboard.doctor.examination import drop_repeats, examine, examine_index
    from aboard.index import Index

    missing = (
        "Name what to examine: aboard doctor SOURCE or --engine NAME. Or set ABOARD_ROOT or --root."
    )
    sources = sources_or_roots(source, root, missing)
    with Index() as index:
        places, examined = _places(index, sources, root or ())
        for text in dict.fromkeys(places):
            with ReadingBar(text) as bar:
                examined.append(examine(index, text, progress=bar))
        drop_repeats(examined)
        general = examine_index(index)
        place = str(index.path) if index.path else None
    if json:
        import orjson

        document = _as_json(examined, general, place)
        typer.echo(orjson.dumps(document, option=orjson.OPT_INDENT_2))
    else:
        typer.echo("\n\n".join(_text(examined, general, place)))
    found = [*general, *(finding for one in examined for finding in one.findings)]
    if any(finding.severity == "error" for finding in found):
        raise typer.Exit(FAILURE)


def _places(
    index: Index, texts: Sequence[str], roots: Sequence[str]
) -> tuple[list[str], list[Examination]]:
    """Return the places that texts select, and findings that need no examination.

    A text that is neither a path nor selects a run can be a board, which the hub describes.
    """
    from aboard.doctor.examination import Examination
    from aboard.doctor.rules import Finding, named
    from aboard.index.library import Library
    from aboard.runs.catalog import find_roots
    from aboard.runs.selectors import NothingMatches, is_path

    searched = find_roots(roots)
    places: list[str] = []
    examined: list[Examination] = []
    words: list[Selector] = []
    for text in texts:
        is_word = not searched and not is_path(text) and not exists(text)
        if is_word and (board := _board(text)) is not None:
            examined.append(board)
            continue
        try:
            parsed = parse_sources([text], searched)
        except StorageError:
            places.append(text)  # the examination reports why
            continue
        places += [one.place for one in parsed if one.place]
        words += [one for one in parsed if not one.place]
    library = Library(index, searched)
    if words:
        refresh_roots(library)
    for word in words:
        try:
            places += [run.uri for run in library.find([word])]
        except NothingMatches as error:
            what, _, advice = str(error).partition(". ")
            hint = advice or "'aboard runs' lists all runs."
            finding = Finding("no-such-run", "error", what, named(searched), hint)
            examined.append(_board(word.text) or Examination(word.text, [finding]))
    known = [one for board in examined for one in board.sources or ()]
    return [*places, *known], examined


def _board(text: str) -> Examination | None:
    """Return the hub's examination of a board; None if the board does not exist."""
    from aboard.doctor.examination import Examination
    from aboard.doctor.rules import Finding
    from aboard.sdk import HubError

    try:
        board = open_hub(revive=True, seconds=_HUB_SECONDS).get(text)
    except (HubError, OSError) as error:
        if getattr(error, "code", "") not in {"no_hub", "not_found"}:
            notify(f"cannot tell whether {text!r} is a board: {error}")
        return None
    found = []
    for problem in board.problems:
        what, _, advice = problem.partition(". ")
        hint = advice or "The board recovers when the source can be read."
        found.append(Finding("board-source", "error", what, (board.url,), hint))
    if board.state != "running":
        what = f"the board is {board.state}" + (f": {board.reason}" if board.reason else "")
        hint = f"Start it again with: aboard restart {board.name}"
        found.append(Finding("board-state", "error", what, (board.url,), hint))
    elif board.condition and not found:
        hint = "The findings below say what the hub has to read."
        if not board.sources:
            hint = f"No run matches it. See its selectors: aboard describe {board.name}"
        found.append(Finding("board-condition", "warning", board.condition, (board.url,), hint))
    # Sources that the hub cannot read are already findings.
    sources = [one for one in board.sources if not any(one in text for text in board.problems)]
    return Examination(f"board {board.name}", found, sources=sources)


def _text(examined: list[Examination], general: list[Finding], place: str | None) -> list[str]:
    parts = []
    for one in examined:
        lines = [strong(printable(one.source))]
        if all(finding.severity == "info" for finding in one.findings):
            numbers = _numbers(one) if one.sources is None else ""
            lines.append(f"  {styled('all good', 32)} {numbers}".rstrip())
        lines += [_finding(finding, one.source) for finding in one.findings]
        parts.append("\n".join(lines))
    if general:
        lines = [strong(f"the index {place or 'in memory'}")]
        parts.append("\n".join([*lines, *(_finding(one, place or "memory") for one in general)]))
    return parts


def _finding(finding: Finding, source: str) -> str:
    name = styled(f"{finding.severity:<8}", _COLOURS[finding.severity])
    lines = [f"  {name} {printable(finding.what)}"]
    if finding.where != (source,):
        lines += [_INDENT + printable(one) for one in finding.where]
    lines.append(f"{_INDENT}-> {printable(finding.advice)}")
    return "\n".join(lines)


def _numbers(one: Examination) -> str:
    written = ""
    if one.last_write is not None:
        written = f", last written {format_age(max(0.0, time.time() - one.last_write))} ago"
    return (
        f"{directories(one.runs)}: {counted(one.tags, 'tag')}, {number(one.values)} values in"
        f" {counted(one.files, 'file')} ({format_size(one.bytes)}){written}"
    )


def _as_json(
    examined: list[Examination], general: list[Finding], place: str | None
) -> dict[str, Any]:
    return {
        "findings": [
            {"source": source, **finding._asdict()}
            for source, findings in [(one.source, one.findings) for one in examined]
            + [(None, general)]
            for finding in findings
        ],
        "sources": [
            {
                "source": one.source,
                "runs": one.runs,
                "tags": one.tags,
                "values": one.values,
                "files": one.files,
                "bytes": one.bytes,
                "last_write_time": one.last_write,
            }
            for one in examined
            if one.sources is None
        ],
        "index": place,
    }
