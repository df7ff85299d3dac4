"""The runs that a command was given as selectors: found below roots, with what went wrong said.

A root that cannot be read does not keep the others from being searched.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from aboard.cli.errors import FAILURE, Failure, WrongUsage, is_debugging, line_for, say
from aboard.runs.catalog import find_roots
from aboard.runs.select import (
    Ambiguous,
    BadSelector,
    NothingMatches,
    Selector,
    is_path,
    left_out,
    parse_all,
    select,
)
from aboard.storage import StorageError, canonical, is_below

if TYPE_CHECKING:
    from aboard.index import Index
    from aboard.runs.known import KnownRun

RootOption = Annotated[
    list[str] | None,
    typer.Option(
        metavar="ROOT",
        help="Where to look for runs: a directory or bucket URI, may be repeated; ABOARD_ROOT or"
        " ./runs unless told.",
        show_default=False,
    ),
]


@dataclass(slots=True)
class ChosenRuns:
    """What came of the selectors of a command."""

    runs: list[KnownRun]
    roots: list[str]
    problems: list[str] = field(default_factory=list)

    def finish(self) -> None:
        """End the command with the exit code that its roots call for."""
        if self.problems:
            raise typer.Exit(FAILURE)


def understand(texts: Sequence[str]) -> list[Selector]:
    """Read selectors; a word with a slash in it that exists as a path is one."""
    try:
        return parse_all(texts, exists=lambda word: "/" in word and _exists(word))
    except BadSelector as error:
        raise WrongUsage(str(error)) from None


def is_place(text: str) -> bool:
    """Say whether a text is a path or URI, perhaps with a name before it, and no selector."""
    name, equals, rest = text.partition("=")
    named = bool(equals and rest and not set(name) & set("/:"))
    return any(
        _exists(one) or one.startswith("file:/") or is_path(one)
        for one in ((text, rest) if named else (text,))
    )


def choose_runs(
    index: Index, texts: Sequence[str], roots: Sequence[str], *, strictly: bool = False
) -> ChosenRuns:
    """Bring the catalog up to date and return the runs that are meant; all of them by default."""
    selectors = understand(texts)
    places = [canonical(one.text) for one in selectors if one.is_place]
    asking = [one for one in selectors if not one.is_place]
    searched = find_roots(roots) if asking or not places or roots else []
    if not searched and not places:
        raise Failure(
            "there is no ./runs here, and nothing says where runs are. Give --root, or set"
            " ABOARD_ROOT."
        )
    chosen = ChosenRuns([], list(dict.fromkeys([*searched, *places])))
    refresh_roots(index, chosen)
    known = index.known_runs(chosen.roots)
    meant = set(_select(selectors, known, strictly=strictly))
    for place in places:
        below = {run for run in known if is_below(run.uri, place)}
        if not below and not chosen.problems:
            raise Failure(f"{place}: there is no run in it or below it. Check the path.")
        meant |= below
    meant -= set(left_out(selectors, known, time.time()))
    chosen.runs = [run for run in known if run in meant] if selectors else known
    return chosen


def refresh_roots(index: Index, chosen: ChosenRuns) -> None:
    """Look for runs below every root; say what is wrong with one, and go on with the others."""
    unread: list[Exception] = []
    for root in chosen.roots:
        try:
            report = index.refresh_catalog(root, marks=False)
        except StorageError as error:
            if is_debugging():
                raise
            unread.append(error)
            chosen.problems.append(line_for(error))
        else:
            chosen.problems += [str(problem) for problem in report.problems]
    if unread and len(unread) == len(chosen.roots):
        for problem in chosen.problems[:-1]:
            say(problem)
        raise unread[-1]
    for problem in chosen.problems:
        say(problem)


def _select(
    selectors: Sequence[Selector], known: Sequence[KnownRun], *, strictly: bool
) -> list[KnownRun]:
    try:
        return select(selectors, known, time.time(), strictly=strictly)
    except (NothingMatches, Ambiguous) as error:
        raise Failure(str(error)) from None


def _exists(word: str) -> bool:
    try:
        return Path(word).expanduser().exists()
    except (OSError, RuntimeError, ValueError):
        return False
