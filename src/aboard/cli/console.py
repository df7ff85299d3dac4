"""What commands print, and what they ask: tables, JSON, progress, prompts and errors.

Tables do not use rich, which takes half a millisecond per row: a log tree can have a hundred
thousand tags. A progress bar appears on standard error, only on a terminal, and only if reading
takes a while.

Commands raise exceptions. An error is one line on standard error, a document with `--json`, and an
exit code. A traceback is shown only with `--debug`.
"""

from __future__ import annotations

import math
import os
import re
import shutil
import sys
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer
from typer.core import TyperGroup

from aboard.cli.completion import Completer, fields_like
from aboard.runs.units import counted, format_age, format_size
from aboard.storage.base import BadUri, StorageError
from aboard.system import explain

if TYPE_CHECKING:
    from rich.progress import Progress

    from aboard.index import Damage, Source
    from aboard.index.index import Report
    from aboard.index.library import Library
    from aboard.sdk.board import Board as HubBoard
    from aboard.tensorboard.board import Board
    from aboard.tensorboard.follower import SourceState
    from aboard.tensorboard.stock import StockState

    CommandError = typer.TyperException
else:
    # Before typer 0.28 this class has no public name, only its subclass. Checked with typer 0.19
    # and 0.28 by tests/cli/test_console.py.
    CommandError = typer.BadParameter.__mro__[2]

JsonOption = Annotated[bool, typer.Option("--json", help="Print one JSON document instead.")]
PORT_HELP = "The port; by default 6006, or the next free one."
PortOption = Annotated[int | None, typer.Option(metavar="PORT", help=PORT_HELP, min=0, max=65535)]
BrowserOption = Annotated[
    bool, typer.Option("--browser/--no-browser", help="Open a browser when ready.")
]
AddressOption = Annotated[
    bool, typer.Option("--json", help="Print the address as one JSON document.")
]
TemplateOption = Annotated[
    str | None,
    typer.Option(help="How runs are named, such as '{run} lr={hparams.lr}'."),
]
GroupByOption = Annotated[
    list[str] | None,
    typer.Option(
        "--group-by",
        metavar="FIELD,...",
        help="Show a curve for each group of runs with the same values of fields, such as"
        " hparams.lr, separated by commas; may be repeated.",
    ),
    Completer(fields_like),
]
BandOption = Annotated[
    Literal["std", "sem", "minmax", "quartiles"] | None,
    typer.Option(
        metavar="BAND",
        help="With --group-by, the band around the mean: std (standard deviation), sem (standard"
        " error) or minmax (extremes); or quartiles, around the median. [default: std]",
    ),
]
ShowOption = Annotated[
    Literal["groups", "runs", "both"] | None,
    typer.Option(
        metavar="WHAT",
        help="With --group-by, what to show: groups, runs or both. [default: groups]",
    ),
]
_GAP = 2  # spaces between two columns


def examples(*lines: str, note: str = "") -> str:
    """Write the epilog of a command."""
    listed = "\n".join(f"- {line}" for line in lines)
    return f"\nExamples:\n\n{listed}\n" + (f"\n{note}\n" if note else "")


def number(count: int) -> str:
    return f"{count:,}"


def directories(count: int) -> str:
    """Describe a number of directories with event files; a run may have one per stage."""
    return f"{count:,} {'directory' if count == 1 else 'directories'} with event files"


def skipped(uri: str, damage: Sequence[Damage]) -> str:
    lost = sum(span.length for span in damage)
    places = counted(len(damage), "damaged place")
    return f"{places} ({format_size(lost)}) skipped; 'aboard index {uri}' says where."


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
    return format_age(abs((time.time() if now is None else now) - at))


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


# Progress.

_BAR_DELAY_SECONDS = 0.3
_SILENT_SECONDS = 1.0  # without a terminal, a longer wait for a board is announced


class ReadingBar:
    """Shows the progress of a refresh; pass it as `progress`."""

    def __init__(self, label: str) -> None:
        self._label = label
        self._started = time.monotonic()
        self._at_terminal = sys.stderr.isatty()
        self._bar: Progress | None = None

    def __enter__(self) -> ReadingBar:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        if self._bar:
            self._bar.stop()

    def __call__(self, report: Report) -> None:
        elapsed = time.monotonic() - self._started
        if not self._at_terminal or (self._bar is None and elapsed < _BAR_DELAY_SECONDS):
            return
        if self._bar is None:
            text, more = f"reading {self._label}", "{task.fields[events]}"
            self._bar = transfer_bar(text, None, more, events="")
            self._bar.start()
        self._bar.update(
            self._bar.task_ids[0],
            total=report.bytes_total,
            completed=report.bytes_read,
            events=f"{report.events / elapsed:,.0f} events/s",
        )


class LoadingLine:
    """Shows how a board loads; pass it to a viewer as `on_poll`."""

    def __init__(self, board: Board, library: Library, sources: Iterable[Source]) -> None:
        self._board = board
        self._left = set(sources)  # whose first poll has not ended
        self._library = library
        self._index = library.index
        self._debug = is_debugging()
        self._lock = threading.Lock()
        self._bars: dict[Source, ReadingBar] = {}
        self._notified: dict[Source, str] = {}

    def __enter__(self) -> LoadingLine:
        return self

    def __exit__(self, *_: object) -> None:
        for bar in self._bars.values():
            bar.close()

    def __call__(self, source: Source, state: SourceState) -> None:
        with self._lock:
            if not state.loaded:
                self._bars.setdefault(source, ReadingBar(source.uri))(state.report)
                return
            if source in self._bars:
                self._bars.pop(source).close()
            is_last = self._left == {source}
            self._left.discard(source)
            text = self._state(source, state) if state.error is None else str(state.error)
            if text and self._notified.get(source) != text:
                self._notified[source] = text
                notify(text)
                if self._debug and state.error is not None and state.error.__cause__ is not None:
                    import traceback

                    traceback.print_exception(state.error.__cause__)
            if is_last:
                self._print_missing_fields()

    def _print_missing_fields(self) -> None:
        """Report what no run has, but is in a template: it may be misspelt, or may come later."""
        from aboard.tensorboard.board import Listing

        if self._board.templates:
            listing = Listing(self._board, self._library)
            listing.runs()
            for text in listing.missing_fields():
                notify(text)

    def _state(self, source: Source, state: SourceState) -> str:
        if state.report.problems:
            return str(state.report.problems[0])
        if all(member.source != source for member in self._board.members):
            return ""  # a root, whose runs join and leave
        if source in self._notified and self._notified[source].startswith("read "):
            return ""
        runs = self._index.runs(source)
        if not runs:
            return _nothing_below(source)
        hidden = self._hidden([run.name for run in runs])
        if hidden or state.runs is None:
            return hidden
        report = state.report
        news = f", {counted(report.points, 'new point')}" if report.points else ""
        text = f"read {source.uri} in {report.seconds:.2f} s: {counted(state.runs, 'run')}{news}."
        damage = self._index.damages(source)
        if damage:
            text += f" {skipped(source.uri, damage)}"
        return text

    def _hidden(self, runs: list[str]) -> str:
        """Return a message if --include and --exclude hide all runs."""
        from aboard.tensorboard.board import Listing

        if not (self._board.include or self._board.exclude):
            return ""
        if Listing(self._board, self._library).runs():
            return ""
        return _none_left(runs)


class StockLine:
    """Shows how TensorBoard's own loaders read a board; pass it to a viewer as `on_load`."""

    def __init__(self, board: Board) -> None:
        self._board = board
        self._at_terminal = sys.stderr.isatty()
        self._bar: Progress | None = None
        self._notified: dict[Source | None, str] = {}

    def __enter__(self) -> StockLine:
        return self

    def __exit__(self, *_: object) -> None:
        self._close()

    def __call__(self, state: StockState) -> None:
        from aboard.tensorboard.board import run_of

        if not state.loaded:
            self._show(state)
            return
        self._close()
        names: dict[Source, list[str]] = {member.source: [] for member in self._board.members}
        for member, name in state.found:
            names[member.source].append(name)
        if state.found and not state.shown:
            self._notify(None, _none_left([name for _, name in state.found]))
        for source, runs in names.items():
            if not runs:
                self._notify(source, _nothing_below(source))
            elif state.shown and not self._notified.get(source, "").startswith("read "):
                took = f"{state.seconds:.2f} s"
                count = len({run_of(name.removeprefix("."), "") for name in runs})
                self._notify(source, f"read {source.uri} in {took}: {counted(count, 'run')}.")

    def _notify(self, source: Source | None, text: str) -> None:
        if self._notified.get(source) != text:
            self._notified[source] = text
            notify(text)

    def _show(self, state: StockState) -> None:
        if not self._at_terminal or state.seconds < _BAR_DELAY_SECONDS:
            return
        if self._bar is None:
            self._bar = _run_bar(self._board.title)
            self._bar.start()
        self._bar.update(self._bar.task_ids[0], total=state.shown or None, completed=state.read)

    def _close(self) -> None:
        if self._bar:
            self._bar.stop()
            self._bar = None


class BoardProgress:
    """The state of a board: a transient line on a terminal, otherwise notices.

    `data_seconds` is how long the command waits for data; 0 if only until the board runs or stops.
    """

    def __init__(self, *, data_seconds: float = 0.0) -> None:
        self._data_seconds = data_seconds
        self._at_terminal = sys.stderr.isatty()
        self._began = time.monotonic()
        self._shown = ""
        self._announced: str | None = None  # the reason in the last notice

    def __enter__(self) -> BoardProgress:
        return self

    def __exit__(self, *_: object) -> None:
        self._clear()

    def __call__(self, board: HubBoard) -> None:
        text = f"{board.name}: {board.condition or board.state}{in_brackets(board.reason)}"
        if not self._at_terminal:
            self._update(board)
        elif text != self._shown:
            self._clear()
            self._shown = text
            typer.echo(text, err=True, nl=False)

    def _update(self, board: HubBoard) -> None:
        from aboard.boards.model import ENDED

        if board.state in ENDED or time.monotonic() - self._began < _SILENT_SECONDS:
            return
        if board.state == "running" and (not self._data_seconds or board.runs):
            return
        reason = "" if board.state == "running" else board.reason
        if self._announced is not None and reason in ("", self._announced):
            return
        self._announced = reason
        if board.state == "running":
            seconds = f"{self._data_seconds:g} s"
            notify(f"board {board.name} has no data yet; waiting {seconds} for some.")
        else:
            why, goal = in_brackets(reason), "stops" if board.state == "stopping" else "runs"
            notify(f"board {board.name} is {board.state}{why}; waiting until it {goal}.")

    def _clear(self) -> None:
        if self._shown:
            typer.echo("\r\x1b[K", err=True, nl=False)
            self._shown = ""


def in_brackets(reason: str) -> str:
    return f" ({printable(reason)})" if reason else ""


def _nothing_below(source: Source) -> str:
    return (
        f"no event files below {source.uri} yet; the board shows them as soon as they appear."
        f" 'aboard doctor {source.uri}' says what may be wrong."
    )


def _none_left(runs: list[str]) -> str:
    some = ", ".join(repr(run) for run in runs[:5])
    return f"--include and --exclude leave no run to show. Some runs: {some}."


def _run_bar(title: str) -> Progress:
    from rich.console import Console
    from rich.markup import escape
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn

    bar = Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("runs"),
        console=Console(stderr=True),
        transient=True,
    )
    bar.add_task(escape(f"reading {title}"), total=None)
    return bar


def transfer_bar(text: str, total: int | None, *more: str, **fields: Any) -> Progress:
    """Create a bar of bytes on standard error; `more` are formats of further columns."""
    from rich.console import Console
    from rich.markup import escape
    from rich.progress import (
        BarColumn,
        DownloadColumn,
        Progress,
        TextColumn,
        TimeRemainingColumn,
        TransferSpeedColumn,
    )

    bar = Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        DownloadColumn(),
        TransferSpeedColumn(),
        *map(TextColumn, more),
        TimeRemainingColumn(),
        console=Console(stderr=True),
        transient=True,
    )
    bar.add_task(escape(text), total=total, **fields)
    return bar


# Errors.

FAILURE, USAGE, INTERRUPTED = 1, 2, 130
_USAGE_CODES = {"invalid", "exists", "bad_value", "bad_selector", "bad_template", "bad_question"}


class Failure(Exception):
    """A command failed; the text says what, where, and what to do."""

    exit_code = FAILURE


class WrongUsage(Failure):
    """Options or arguments are invalid."""

    exit_code = USAGE


def notify(text: str) -> None:
    typer.echo(f"aboard: {' '.join(text.split())}", err=True)


_MOST_PROBLEMS = 20  # printed; one mistake can damage the records of many runs


def notify_all(problems: Sequence[object]) -> None:
    """Print the first of many problems, and the number of the others."""
    shown = problems if len(problems) <= _MOST_PROBLEMS else problems[: _MOST_PROBLEMS - 1]
    for problem in shown:
        notify(str(problem))
    if hidden := len(problems) - len(shown):
        notify(f"{counted(hidden, 'more problem')} like these. Mend them and try again.")


def line_for(error: Exception) -> str:
    if isinstance(error, CommandError):
        return _usage_line(error)
    if isinstance(error, ModuleNotFoundError) and error.name:
        return explain(error.name)
    if isinstance(error, (Failure, StorageError)) or _is_error_of_ours(error):
        return str(error)
    if _is_of(error, "sqlite3", "Error"):
        hint = "Try again, or set ABOARD_CACHE to another directory."
        return f"the index cannot be used: {error}. {hint}"
    if isinstance(error, OSError) and error.strerror:
        where = f"{error.filename}: " if error.filename else ""
        return f"{where}{error.strerror[:1].lower()}{error.strerror[1:]}."
    return f"internal error: {type(error).__name__}: {error}. 'aboard --debug …' shows where."


def report(error: Exception, *, json: bool) -> int:
    """Write an error to standard error, with `json` also as a document; return the exit code."""
    line = line_for(error)
    notify(line)
    picture = str(getattr(error, "picture", ""))  # of an invalid question, also from a hub
    for one in picture.splitlines():
        typer.echo(f"  {one}", err=True)
    code = code_for(error)
    if json:
        kind = getattr(error, "code", None) or ("usage" if code == USAGE else "failure")
        document = {"code": kind, "message": " ".join(line.split())}
        print_json({"errors": [document | ({"picture": picture} if picture else {})]})
    return code


def confirm(question: str, *, done: str, verb: str) -> None:
    """Ask a question on standard error; end the command unless the answer is yes."""
    typer.echo(f"{printable(question)}? [y/N] ", err=True, nl=False)
    answer = sys.stdin.readline() if sys.stdin is not None else ""
    if not answer:
        typer.echo(err=True)
        raise WrongUsage(f"no answer, nothing {done}. Add --yes to {verb} without confirmation.")
    if answer.strip().lower() not in ("y", "yes"):
        raise Failure(f"nothing was {done}.")


def apply_to_each(
    names: Iterable[str],
    work: Callable[[str], tuple[str, dict[str, Any]]],
    *,
    noun: str,
    done: str,
    json: bool,
) -> None:
    """Apply `work` to each name; report failures and continue with the others.

    `work` returns a line to print and a document; `done` is the key of the documents in JSON.
    """
    finished: list[dict[str, Any]] = []
    errors: list[dict[str, str]] = []
    for name in names:
        try:
            line, document = work(name)
        except Exception as error:
            if is_debugging() or not _is_error_of_ours(error):
                raise
            code = getattr(error, "code", "failure")
            errors.append({noun: name, "code": code, "message": line_for(error)})
            notify(line_for(error))
            continue
        finished.append(document)
        if not json:
            typer.echo(line)
    if json:
        print_json({done: finished, "errors": errors})
    if errors:
        raise typer.Exit(FAILURE)


def is_debugging() -> bool:
    """Return whether the command line has `--debug`."""
    return ReportingGroup.debug


def _is_error_of_ours(error: Exception) -> bool:
    """Return whether the text of an error is for users, without importing more modules."""
    if isinstance(error, ImportError) and error.path is None:  # Python's own have a path
        return True
    for name, kind in (
        ("aboard.web", "ListenError"),
        ("aboard.web", "ServeError"),
        ("aboard.web", "TokenError"),
        ("aboard.sdk", "HubError"),
        ("aboard.runs", "RunsError"),
        ("aboard.boards.model", "BoardsError"),
        ("aboard.jobs", "JobError"),
        ("aboard.executors.base", "ExecutorError"),
        ("aboard.executors", "ConfigError"),
    ):
        if _is_of(error, name, kind):
            return True
    return False


def _is_of(error: Exception, module: str, kind: str) -> bool:
    """Return whether an error is of a class of a module that may not be imported."""
    found = sys.modules.get(module)
    return found is not None and isinstance(error, getattr(found, kind))


def code_for(error: Exception) -> int:
    if isinstance(error, (Failure, CommandError)):
        return error.exit_code
    is_usage = isinstance(error, BadUri) or getattr(error, "code", None) in _USAGE_CODES
    return USAGE if is_usage else FAILURE


_PLAIN_WORDS = {  # for the parser's messages about numbers
    re.compile(r"is not a valid int(eger)?( range)?$"): "must be a whole number",
    re.compile(r"is not a valid float( range)?$"): "must be a number",
    re.compile(r"is not in the range x>=(\S+)$"): r"must be at least \1",
}


def _usage_line(error: CommandError) -> str:
    message = error.format_message().replace("Value error, ", "").rstrip(".")
    for pattern, words in _PLAIN_WORDS.items():
        message = pattern.sub(words, message)
    context = getattr(error, "ctx", None)
    command = context.command_path if context else "aboard"
    end = "" if message.endswith("?") else "."
    return f"{message[:1].lower()}{message[1:]}{end} See '{command} --help'."


class ReportingGroup(TyperGroup):
    """The commands. Errors become one line, and a closed pipe is not an error.

    `obj` of the context is whether the command line has `--json`.
    """

    debug = False

    def invoke(self, ctx: Any) -> Any:
        ReportingGroup.debug = bool(ctx.params.get("debug"))
        try:
            result = super().invoke(ctx)
            sys.stdout.flush()
        except BrokenPipeError:
            # The reader of the output has exited. Python would flush again at exit.
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            raise typer.Exit from None
        except (typer.Exit, typer.Abort, CommandError):
            raise
        except Exception as error:
            if self.debug:
                raise
            raise typer.Exit(report(error, json=bool(ctx.obj))) from None
        return result
