"""`aboard doctor`: why a board would be empty or odd, and what to do about it."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import typer

from aboard.cli.choosing import RootOption, choose_runs
from aboard.cli.errors import FAILURE, Failure, WrongUsage
from aboard.cli.progress import ReadingBar
from aboard.cli.sources import JsonOption, place_of
from aboard.cli.view import ShownArgument, parted
from aboard.cli.wording import counted, number, printable, size, strong, styled

if TYPE_CHECKING:
    from aboard.index import Index
    from aboard.index.doctor import Examination
    from aboard.index.findings import Finding, Severity

EPILOG = """
Examples:

- `aboard doctor runs/` - why is my board empty?
- `aboard doctor s3://bucket/runs` - what will looking at it cost?
- `aboard doctor cifar10/run3` - what is odd about a run, named by a selector?
- `aboard doctor runs/ --json | jq -r '.findings[] | select(.severity == "error") | .what'`
"""

_COLOURS: dict[Severity, int] = {"error": 31, "warning": 33, "info": 36}
_INDENT = " " * 11


def doctor(
    source: ShownArgument,
    root: RootOption = None,
    json: JsonOption = False,
) -> None:
    """Say why a board would be empty or odd; takes what `aboard view` takes.

    Every finding says what is wrong, where, and what to do. The exit code is 1 if one of them is
    an error.
    """
    from aboard.index import Index
    from aboard.index.doctor import examine, examine_index

    with Index() as index:
        places, examined = _places(index, source, root or ())
        for text in dict.fromkeys(places):
            with ReadingBar(text) as bar:
                examined.append(examine(index, text, progress=bar))
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
    """Return the places that texts mean, as `aboard view` takes them, and what means none."""
    from aboard.index.doctor import Examination
    from aboard.index.findings import Finding
    from aboard.runs.catalog import find_roots

    searched = find_roots(roots)
    given, words = parted(texts, searched)
    places = [_without_name(text) for text in given]
    if not words:
        return places, []
    try:
        return [*places, *(run.uri for run in choose_runs(index, words, searched).runs)], []
    except WrongUsage:
        raise
    except Failure as failure:
        what, _, advice = str(failure).partition(". ")
        hint = advice or "'aboard runs' lists what there is."
        finding = Finding("no-such-run", "error", what, tuple(searched), hint)
        return places, [Examination(" ".join(words), [finding])]


def _without_name(text: str) -> str:
    from aboard.storage import StorageError
    from aboard.tensorboard.board import Member

    try:
        member = Member.parse(text)
    except StorageError:
        return text  # which is a finding
    return place_of(member.source)


def _text(examined: list[Examination], general: list[Finding], place: str | None) -> list[str]:
    parts = []
    for one in examined:
        lines = [strong(printable(one.source))]
        if not any(finding.severity in ("error", "warning") for finding in one.findings):
            lines.append(f"  {styled('all good', 32)} {_numbers(one)}")
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
        from aboard.index.findings import age

        written = f", last written {age(time.time() - one.last_write)} ago"
    return (
        f"{counted(one.runs, 'run')}, {counted(one.tags, 'tag')}, {number(one.values)} values in"
        f" {counted(one.files, 'file')} ({size(one.bytes)}){written}"
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
        ],
        "index": place,
    }
