"""Output and prompts of commands: numbers, times and tables for people, JSON for programs.

Tables do not use rich, which takes half a millisecond per row: a log tree can have a hundred
thousand tags.
"""

from __future__ import annotations

import math
import os
import shutil
import sys
import time
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from aboard.cli.completion import fields_like
from aboard.cli.errors import WrongUsage

if TYPE_CHECKING:
    from aboard.index import Damage

JsonOption = Annotated[bool, typer.Option("--json", help="Print one JSON document instead.")]
PORT_HELP = "The port; by default 6006, or the next that is free."
PortOption = Annotated[int | None, typer.Option(help=PORT_HELP, min=0, max=65535)]
BrowserOption = Annotated[
    bool, typer.Option("--browser/--no-browser", help="Open a browser when ready.")
]
AddressOption = Annotated[
    bool, typer.Option("--json", help="Print the address as one JSON document.")
]
TemplateOption = Annotated[
    str | None,
    typer.Option(help="How runs are named, such as '{experiment}_{run}_lr={hparams.lr}'."),
]
GroupByOption = Annotated[
    list[str] | None,
    typer.Option(
        "--group-by",
        metavar="FIELD",
        help="Show a curve for each group of runs with the same value, such as hparams.lr; may be"
        " repeated.",
        autocompletion=fields_like,
    ),
]
BandOption = Annotated[
    Literal["std", "sem", "minmax", "quartiles"] | None,
    typer.Option(
        metavar="std|sem|minmax|quartiles",
        help="With --group-by, the band around the mean: standard deviation, standard error or"
        " extremes; or quartiles around the median. [default: std]",
    ),
]
ShowOption = Annotated[
    Literal["groups", "runs", "both"] | None,
    typer.Option(
        metavar="groups|runs|both", help="With --group-by, what to show. [default: groups]"
    ),
]
_GAP = 2  # spaces between two columns
_UNITS = ("B", "kB", "MB", "GB", "TB", "PB")


def examples(*lines: str, note: str = "") -> str:
    """Write the epilog of a command."""
    listed = "\n".join(f"- {line}" for line in lines)
    return f"\nExamples:\n\n{listed}\n" + (f"\n{note}\n" if note else "")


def size(count: int) -> str:
    amount = float(count)
    for unit in _UNITS:
        if amount < 999.5 or unit == _UNITS[-1]:
            break
        amount /= 1000
    if unit == "B":
        return f"{count} B"
    return f"{amount:.{max(0, 2 - int(math.log10(max(amount, 1))))}f} {unit}"


def number(count: int) -> str:
    return f"{count:,}"


def counted(count: int, noun: str) -> str:
    return f"{count:,} {noun}{'' if count == 1 else 's'}"


def directories(count: int) -> str:
    """Describe a number of directories with event files; a run may have one per stage."""
    return f"{count:,} {'directory' if count == 1 else 'directories'} with event files"


def skipped(uri: str, damage: Sequence[Damage]) -> str:
    lost = sum(span.length for span in damage)
    places = counted(len(damage), "damaged place")
    return f"{places} ({size(lost)}) skipped; 'aboard index {uri}' says where."


def duration(seconds: float) -> str:
    if seconds < 60:
        return f"{seconds:.2f} s"
    minutes, seconds = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes:02} min" if hours else f"{minutes} min {seconds:02} s"


def moment(wall_time: float | None) -> str:
    if wall_time is None or not math.isfinite(wall_time):
        return "-"
    try:
        return time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(wall_time))
    except (OverflowError, OSError, ValueError):
        return "-"


def seconds_of(text: str | None) -> float | None:
    return None if not text else datetime.fromisoformat(text).timestamp()


def age(text: str | None, *, now: float | None = None) -> str:
    at = seconds_of(text)
    return "-" if at is None else age_of(at, now=now)


def age_of(at: float, *, now: float | None = None) -> str:
    seconds = abs((time.time() if now is None else now) - at)
    for unit, length in (("d", 86400), ("h", 3600), ("m", 60)):
        if seconds >= 2 * length:
            return f"{seconds / length:.0f}{unit}"
    return f"{seconds:.0f}s"


def print_json(document: object) -> None:
    import orjson

    typer.echo(orjson.dumps(document, option=orjson.OPT_INDENT_2))


def is_at_terminal() -> bool:
    return sys.stdin is not None and sys.stdin.isatty()


def ask_secret(question: str, *, twice: bool = False) -> str:
    """Prompt for a secret without showing it, or read it from a pipe."""
    if is_at_terminal():
        answer = typer.prompt(question, hide_input=True, confirmation_prompt=twice, err=True)
        return str(answer).strip()
    text = (sys.stdin.readline() if sys.stdin is not None else "").strip()
    if not text:
        raise WrongUsage("standard input contains no secret.")
    return text


def json_number(value: float | None) -> float | str | None:
    """Return a value for JSON: names for numbers that are not finite."""
    if value is None or math.isfinite(value):
        return value
    return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"


def printable(text: str) -> str:
    """Escape control characters."""
    if text.isprintable():
        return text
    return "".join(
        one if one.isprintable() else one.encode("unicode_escape").decode() for one in text
    )


def table(heads: Sequence[str], rows: Sequence[Sequence[str]], *, left: int) -> str:
    """Align rows below their heads: the first `left` columns to the left, others to the right."""
    # By columns, as a listing may have very many rows.
    columns = [
        column if all(map(str.isprintable, column)) else [*map(printable, column)]
        for column in zip(heads, *rows, strict=True)
    ]
    is_ascii = all(all(map(str.isascii, column)) for column in columns)
    widths = [max(map(len if is_ascii else width_of, column)) for column in columns]
    sides = ["<" if i < left else ">" for i in range(len(widths))]

    def form(widths: Sequence[int]) -> str:
        columns = zip(sides, widths, strict=True)
        return (" " * _GAP).join(f"{{:{side}{width}}}" for side, width in columns)

    def line(row: Sequence[str]) -> str:
        if is_ascii or all(map(str.isascii, row)):
            return usual.format(*row)
        # A column of characters that take two places has fewer of them.
        columns = zip(widths, row, strict=True)
        return form([width - width_of(cell) + len(cell) for width, cell in columns]).format(*row)

    usual = form(widths)
    lines = [line(row).rstrip() for row in zip(*columns, strict=True)]
    lines[0] = strong(lines[0])
    return "\n".join(lines)


def width_of(text: str) -> int:
    if text.isascii():
        return len(text)
    from rich.cells import cell_len

    return cell_len(text)


def terminal_width() -> int | None:
    """Return the width of the terminal; None if the output does not go to one."""
    return shutil.get_terminal_size().columns if sys.stdout.isatty() else None


def fitted(
    heads: Sequence[str],
    rows: Sequence[Sequence[str]],
    width: int,
    *,
    least: Sequence[str],
    shortest: Mapping[str, int],
) -> tuple[tuple[str, ...], list[list[str]]]:
    """Drop columns in the order of `least`, and shorten those in `shortest`, until a table fits."""
    columns = {head: [printable(row[i]) for row in rows] for i, head in enumerate(heads)}
    widths = {head: max(map(width_of, (head, *cells))) for head, cells in columns.items()}

    def needed(head: str) -> int:
        return min(widths[head], max(shortest.get(head, widths[head]), len(head))) + _GAP

    for head in least:
        if sum(map(needed, columns)) - _GAP <= width:
            break
        del columns[head]
    room = width + _GAP - sum(map(needed, columns))
    for head in shortest:
        if head in columns:
            least_width = needed(head) - _GAP
            most = min(widths[head], least_width + max(room, 0))
            room -= most - least_width
            columns[head] = [shortened(cell, most) for cell in columns[head]]
    return tuple(columns), [list(row) for row in zip(*columns.values(), strict=True)]


def shortened(text: str, most: int) -> str:
    if width_of(text) <= most:
        return text
    end = min(len(text), most - 1)
    while width_of(text[:end]) > most - 1:
        end -= 1
    return f"{text[:end]}…"


def strong(text: str) -> str:
    return styled(text, 1)


def styled(text: str, style: int) -> str:
    """Return text in a terminal style, given by its number, if the output is a terminal."""
    plain = os.environ.get("NO_COLOR") or os.environ.get("TERM") == "dumb"
    return text if plain or not sys.stdout.isatty() else f"\x1b[{style}m{text}\x1b[0m"
