"""Progress on standard error while event files are read.

A bar appears only on a terminal, and only if reading takes a while.
"""

from __future__ import annotations

import sys
import threading
import time
import traceback
from typing import TYPE_CHECKING, Any

from aboard.cli.console import counted, skipped
from aboard.cli.errors import is_debugging, notify

if TYPE_CHECKING:
    from rich.progress import Progress

    from aboard.index import Source
    from aboard.index.index import Report
    from aboard.index.library import Library
    from aboard.tensorboard.board import Board
    from aboard.tensorboard.follower import SourceState
    from aboard.tensorboard.stock import StockState

_PATIENCE_SECONDS = 0.3


class ReadingBar:
    """Shows the progress of a refresh; pass it as `progress`."""

    def __init__(self, label: str) -> None:
        self._label = label
        self._started = time.monotonic()
        self._wanted = sys.stderr.isatty()
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
        if not self._wanted or (self._bar is None and elapsed < _PATIENCE_SECONDS):
            return
        if self._bar is None:
            self._bar = _make_bar(self._label)
            self._bar.start()
        self._bar.update(
            self._bar.task_ids[0],
            total=report.bytes_total,
            completed=report.bytes_read,
            events=f"{report.events / elapsed:,.0f} events/s",
        )


class LoadingLine:
    """Shows how a board loads; pass it to a viewer as `on_poll`."""

    def __init__(self, board: Board, library: Library) -> None:
        self._board = board
        self._library = library
        self._index = library.index
        self._debug = is_debugging()
        self._lock = threading.Lock()
        self._bars: dict[Source, ReadingBar] = {}
        self._said: dict[Source, str] = {}

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
            text = self._state(source, state)
            if text and self._said.get(source) != text:
                self._said[source] = text
                notify(text)
                if self._debug and state.error is not None and state.error.__cause__ is not None:
                    traceback.print_exception(state.error.__cause__)

    def _state(self, source: Source, state: SourceState) -> str:
        if state.error is not None:
            return str(state.error)
        if state.report.problems:
            return str(state.report.problems[0])
        if source in self._said and self._said[source].startswith("read "):
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
        self._wanted = sys.stderr.isatty()
        self._bar: Progress | None = None
        self._said: dict[Source | None, str] = {}

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
            elif state.shown and not self._said.get(source, "").startswith("read "):
                took = f"{state.seconds:.2f} s"
                count = len({run_of(name.removeprefix("."), "") for name in runs})
                self._notify(source, f"read {source.uri} in {took}: {counted(count, 'run')}.")

    def _notify(self, source: Source | None, text: str) -> None:
        if self._said.get(source) != text:
            self._said[source] = text
            notify(text)

    def _show(self, state: StockState) -> None:
        if not self._wanted or state.seconds < _PATIENCE_SECONDS:
            return
        if self._bar is None:
            self._bar = _run_bar(self._board.title)
            self._bar.start()
        self._bar.update(self._bar.task_ids[0], total=state.shown or None, completed=state.read)

    def _close(self) -> None:
        if self._bar:
            self._bar.stop()
            self._bar = None


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


def _make_bar(label: str) -> Progress:
    return transfer_bar(f"reading {label}", None, "{task.fields[events]}", events="")


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
