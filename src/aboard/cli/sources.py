"""The sources, selectors and patterns of a command, with errors collected.

A source or root that cannot be read does not affect the others. With several sources, the name of a
run begins with that of its source, so that names are unique.
"""

from __future__ import annotations

import os
import re
import stat
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from fnmatch import fnmatchcase
from functools import cached_property
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from aboard.cli.completion import (
    Completer,
    conditions_like,
    directories_like,
    fields_like,
    tags_like,
)
from aboard.cli.console import (
    FAILURE,
    Failure,
    ReadingBar,
    WrongUsage,
    code_for,
    is_debugging,
    line_for,
    notify,
    notify_all,
    skipped,
)
from aboard.events.files import EVENT_FILE
from aboard.runs import RunsError, nearest
from aboard.runs.units import counted, format_size
from aboard.storage import StorageError, is_below, is_remote, join
from aboard.storage.local import explain

if TYPE_CHECKING:
    from aboard.index import Index, Run, Source
    from aboard.index.library import GroupedRuns, Library, RunSet
    from aboard.index.logs import Logs
    from aboard.index.query import Contents
    from aboard.runs.catalog import KnownRun
    from aboard.runs.question import Field, Question, UnknownField
    from aboard.runs.selectors import Selector

SourceArgument = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="[SOURCE]...",
        help="Directories, bucket URIs (s3://bucket/path) or event files, each also as"
        " NAME=SOURCE. Or selectors of runs, such as cifar10/1-3, if there is no such path. By"
        " default the root: ABOARD_ROOT or ./runs.",
        show_default=False,
    ),
]
RootOption = Annotated[
    list[str] | None,
    typer.Option(
        metavar="ROOT",
        help="Where to look for runs: a directory or bucket URI, may be repeated; ABOARD_ROOT or"
        " ./runs by default.",
        show_default=False,
    ),
]


WhereOption = Annotated[
    str | None,
    typer.Option(
        metavar="EXPR",
        help="Only runs for which this is true, such as"
        """ 'hparams.lr < 0.1 and metrics["eval/acc"] > 0.9'.""",
    ),
    Completer(conditions_like),
]
SortOption = Annotated[
    list[str] | None,
    typer.Option(
        metavar="[-]FIELD,...",
        help="Sort runs by fields, separated by commas; a leading '-' sorts descending; may be"
        " repeated.",
    ),
    Completer(fields_like),
]
_NUMBER = re.compile(r"[0-9]+(-[0-9]+)?")
_INTERNAL_TAGS = "_hparams_/"  # added by writers of hyperparameters
LimitOption = Annotated[int | None, typer.Option(metavar="N", help="Show at most N runs.", min=1)]


# Which roots.


def sources_or_roots(
    sources: Sequence[str] | None, roots: Sequence[str] | None, missing: str
) -> Sequence[str]:
    """Return the sources that a command names, else the roots.

    Raises:
        WrongUsage: there are neither; `missing` says what to do.
    """
    if sources:
        return sources
    from aboard.runs.catalog import find_roots

    found = find_roots(roots or ())
    if not found:
        raise WrongUsage(_not_found(missing))
    return found


def _not_found(missing: str) -> str:
    return f"./runs not found. {missing}"


def search_roots(selectors: Sequence[Selector], roots: Sequence[str]) -> list[str]:
    """Return where to find what selectors select: the roots, and the paths among the selectors.

    If all are paths, only `roots` that were given are searched, not the default.
    """
    from aboard.runs.catalog import find_roots

    places = [one.place for one in selectors if one.place]
    only_places = bool(places) and len(places) == len(selectors)
    return [*([] if only_places and not roots else find_roots(roots)), *places]


def names_among(selectors: Sequence[str]) -> list[str]:
    """Return the selectors that are neither paths nor URIs."""
    from aboard.runs.selectors import is_path

    return [one for one in selectors if not is_path(one) and not exists(one)]


def check_names(selectors: Sequence[str], roots: Sequence[str]) -> None:
    """Check that each selector matches a run or a job below some roots, unless one is a bucket.

    Raises:
        NothingMatches: one matches none.
    """
    if any(map(is_remote, roots)) or not all(map(os.path.isdir, roots)):
        return
    from aboard.index import Index
    from aboard.index.library import Library

    with Index() as index:
        library = Library(index, roots)
        refresh_roots(library)
        library.resolve(library.parse(selectors))


def condition_below(roots: Sequence[str], where: str | None) -> str:
    """Return a condition that restricts another to runs below some roots."""
    import orjson

    found = " or ".join(f"root == {orjson.dumps(uri).decode()}" for uri in roots)
    return f"({found}) and ({where})" if where else found


def narrow_selectors(selectors: Sequence[str], runs: Sequence[str]) -> list[str]:
    """Return the selectors of `--runs`: `cifar10` with `1,4` becomes `cifar10/1` and `cifar10/4`.

    Runs named with their experiment do not change, and none do if no experiment is named. A number
    next to an experiment is another run, as in `cifar10 --runs 1 4`.
    """
    listed = [one.strip() for text in runs for one in text.split(",") if one.strip()]
    if not listed and not selectors:
        raise WrongUsage("--runs names no run.")
    if not listed:
        return list(selectors)
    from aboard.runs.selectors import is_path

    for one in selectors:
        if is_path(one) or set(one) & set(":,"):
            raise WrongUsage(f"--runs requires an experiment; {one!r} is not one.")
    words = [one for one in selectors if "/" not in one]
    numbers = [one for one in words if _NUMBER.fullmatch(one)]
    if len(numbers) == len(words):
        numbers = []  # an experiment can be named 7
    experiments = [one for one in words if one not in numbers]
    named = [one for one in (*selectors, *listed) if "/" in one]
    short = [one for one in (*listed, *numbers) if "/" not in one]
    if not short:
        for experiment in experiments:
            if not any(one.startswith(f"{experiment}/") for one in named):
                raise WrongUsage(f"--runs names no run of {experiment!r}.")
        return named
    return [*named, *(f"{one}/{run}" for one in experiments for run in short)] or short


class SelectedRuns:
    """The runs that a command's selectors and question select, and errors of its roots.

    `total` counts the runs, or the groups, before the limit.
    """

    def __init__(self, runs: RunSet, problems: list[str], library: Library) -> None:
        self.runs = runs
        self.problems = problems
        self.library = library
        self.total = len(runs)
        self.groups: list[GroupedRuns] = []

    @property
    def roots(self) -> list[str]:
        return self.library.uris

    def finish(self) -> None:
        if self.problems:
            raise typer.Exit(FAILURE)


def select_runs(
    index: Index,
    texts: Sequence[str],
    roots: Sequence[str],
    *,
    unambiguous: bool = False,
    question: Question | None = None,
    fields: Sequence[Field] = (),
    is_path: Callable[[str], bool] = lambda word: "/" in word and exists(word),
) -> SelectedRuns:
    """Refresh the roots and return the runs that selectors and a question select.

    The default is all runs. Event files are read if the question or `fields` need them. `is_path`
    is true for a word that is a path, not an experiment.
    """
    from aboard.index.library import Library

    selectors = Library.parse(texts, exists=is_path)
    library = Library(index, search_roots(selectors, roots))
    if not library.uris:
        missing = "Name the directory of the runs with --root or ABOARD_ROOT."
        raise Failure(_not_found(missing))
    problems = refresh_roots(library)
    runs = library.find(selectors, unambiguous=unambiguous)
    for place in () if problems else filter(None, [one.place for one in selectors]):
        if not any(is_below(run.uri, place) for run in library.runs()):
            raise Failure(f"{place}: no runs found in it or below it. Check the path.")
    found = SelectedRuns(runs, problems, library)
    if question is not None or fields:
        from aboard.runs.question import Question

        query = question or Question()
        problems += read_runs(library, library.to_read(query, runs, fields))
        answer = library.answer(query, runs)
        found.runs, found.total, found.groups = answer
        library.check(fields)
    return found


def read_runs(library: Library, runs: Sequence[KnownRun]) -> list[str]:
    """Read the event files of runs that changed; report errors and continue."""
    from aboard.index import Source

    selected = Counter(run.root for run in runs)
    whole = [uri for uri, count in selected.items() if count * 2 > library.count(uri)]
    sources = [Source(uri) for uri in whole]
    sources += [Source(run.uri) for run in runs if run.root not in whole]
    problems: list[str] = []
    with ReadingBar(counted(len(runs), "run")) as bar:
        for source in sources:
            try:
                report = library.index.refresh(source, progress=bar)
            except StorageError as error:
                problems.append(str(error))
            else:
                problems += map(str, report.problems)
    notify_all(problems)
    return problems


def refresh_roots(library: Library) -> list[str]:
    """Find runs below every root; report errors and continue with the others.

    Raises:
        StorageError: none of the roots can be listed.
    """
    errors: list[StorageError] = []
    problems: list[str] = []
    for root in library.uris:
        library.refresh(root, marks=False)
        state = library.state(root)
        if state.error is not None:
            if is_debugging():
                raise state.error
            errors.append(state.error)
        problems += [state.problem] if state.error else map(str, state.problems)
    if errors and len(errors) == len(library.uris):
        notify_all(problems[:-1])
        raise errors[-1]
    notify_all(problems)
    return problems


def exists(word: str) -> bool:
    try:
        return Path(word).expanduser().exists()
    except PermissionError:  # of a directory above it
        return True
    except (OSError, RuntimeError, ValueError):
        return False


class OpenSource:
    """A source in the index, and the prefix of its runs' names."""

    def __init__(self, logs: Logs, label: str) -> None:
        self.logs = logs
        self.label = label
        self.damage = logs.damage

    @cached_property
    def runs(self) -> list[Run]:
        return self.logs.runs

    @cached_property
    def contents(self) -> Contents:
        return self.logs.index.contents(self.logs.source)

    @property
    def uri(self) -> str:
        return place_of(self.logs.source)

    def name(self, run: str) -> str:
        return run_label(self.label, run)


class Sources:
    def __init__(self) -> None:
        self.opened: list[OpenSource] = []
        self.errors: list[tuple[str, Exception]] = []
        self.notices: list[str] = []  # about the index itself

    @property
    def exit_code(self) -> int:
        """0 without errors; the code of the error if no source could be opened; else 1."""
        if self.errors and not self.opened:
            return max(code_for(error) for _, error in self.errors)
        incomplete = any(one.logs.report.problems for one in self.opened)
        return FAILURE if self.errors or incomplete else 0

    def add_error(self, source: str, error: Exception) -> None:
        self.errors.append((source, error))
        notify(line_for(error))

    def print_notices(self, index: Index) -> None:
        self.notices = [str(problem) for problem in index.problems]
        for notice in self.notices:
            notify(notice)

    def print_damage(self) -> None:
        for one in self.opened:
            if one.damage:
                notify(f"{one.uri}: {skipped(one.uri, one.damage)}")

    def finish(self) -> None:
        if self.exit_code:
            raise typer.Exit(self.exit_code)

    def as_json(self, opened: Sequence[dict[str, Any]]) -> dict[str, Any]:
        return {
            "sources": list(opened),
            "errors": [{"source": text, "message": line_for(error)} for text, error in self.errors],
            "notices": self.notices,
        }


def open_sources(
    index: Index,
    texts: Sequence[str],
    roots: Sequence[str] | None = None,
    *,
    anew: bool = False,
    question: Question | None = None,
) -> Sources:
    """Update the index from sources and selectors; `anew` reads everything again.

    With a question, only the runs that it selects are opened, in its order.
    """
    found = Sources()
    if question is None:
        given = _given(index, texts, roots or (), found)
    else:
        given = _matching(index, texts, roots or (), question)
    labels = distinct_labels([place_of(source) for source in given])
    for (source, (text, name)), label in zip(given.items(), labels, strict=True):
        with collecting_errors(found, text):
            found.opened.append(_open(index, source, name or label, anew=anew))
    found.print_notices(index)
    return found


def parse_sources(texts: Sequence[str], roots: Sequence[str]) -> tuple[Selector, ...]:
    """Parse sources and selectors. Without roots, every text is a path or URI."""
    from aboard.index.library import Library, Member
    from aboard.runs.selectors import Selector

    if roots:
        return Library.parse(texts, exists=exists)
    members = {text: Member.parse(text) for text in texts}
    return tuple(
        Selector(text, place=place_of(one.source), name=one.name) for text, one in members.items()
    )


def _given(
    index: Index, texts: Sequence[str], roots: Sequence[str], found: Sources
) -> dict[Source, tuple[str, str]]:
    """Return the sources that texts name or select: the text, and the label if any."""
    from aboard.index import Source

    given: dict[Source, tuple[str, str]] = {}
    if not roots and all(map(exists, texts)):  # the import of selectors is slow
        for text in texts:
            given.setdefault(Source.parse(text), (text, ""))
        return given
    from aboard.index.library import Library
    from aboard.runs.catalog import find_roots

    searched = find_roots(roots)
    words: list[Selector] = []
    for text in texts:
        with collecting_errors(found, text):
            for one in parse_sources([text], searched):
                if one.place:
                    given.setdefault(Source.parse(one.place), (text, one.name))
                else:
                    words.append(one)
    if words:
        library = Library(index, searched)
        refresh_roots(library)
        for one in words:
            with collecting_errors(found, one.text):
                for run in library.find([one]):
                    given.setdefault(Source(run.uri), (one.text, run.label))
    return given


def _matching(
    index: Index, texts: Sequence[str], roots: Sequence[str], question: Question
) -> dict[Source, tuple[str, str]]:
    from aboard.index import Source

    chosen = select_runs(index, texts, roots, question=question, is_path=exists)
    if not chosen.runs:
        hint = chosen.library.hint_for_nothing(question)
        raise Failure(f"no run matches --where. {hint}".rstrip())
    return {Source(run.uri): (run.label, run.label) for run in chosen.runs}


def parse_question(
    where: str | None,
    sort: Sequence[str] | None,
    limit: int | None,
    group_by: Sequence[str] = (),
    *,
    texts: Sequence[str] = (),
    roots: Sequence[str] = (),
) -> Question | None:
    """Parse the options of a question; None if there are none.

    `texts` are the sources and selectors of the command, `roots` its roots.
    """
    if where is not None and not where.strip():
        raise WrongUsage("--where is empty. Write a condition, such as 'state == \"completed\"'.")
    if not (where or sort or limit or group_by):
        return None
    from aboard.runs.question import Question, each_field

    with suggesting_fields(texts, roots):
        return Question.parse(where, each_field(sort or ()), limit, each_field(group_by))


def nothing_matches(where: str) -> str:
    """Write that a board shows no run yet."""
    return f"no run matches --where {where!r} yet; the board shows such runs as soon as they exist."


@contextmanager
def suggesting_fields(texts: Sequence[str], roots: Sequence[str]) -> Iterator[None]:
    """Suggest names that some run has, of a source, a selector or a root, for an unknown field."""
    from aboard.runs.question import UnknownField

    try:
        yield
    except UnknownField as error:
        raise _suggestion(error, texts, roots) from None


def _suggestion(error: UnknownField, texts: Sequence[str], roots: Sequence[str]) -> UnknownField:
    from aboard.index import Index
    from aboard.index.library import Library

    with suppress(OSError, RunsError, StorageError), Index() as index:
        library = Library(index, search_roots(Library.parse(texts, exists=exists), roots))
        for root in library.uris:
            if not is_remote(root):  # of a bucket, the index knows the runs
                library.refresh(root, marks=False)
        return library.suggest(error)
    return error


@contextmanager
def collecting_errors(found: Sources, text: str) -> Iterator[None]:
    """Report the error of a source, and continue with the others."""
    try:
        yield
    except (Failure, RunsError, StorageError) as error:
        if is_debugging():
            raise
        found.add_error(text, error)


def _open(index: Index, source: Source, label: str, *, anew: bool) -> OpenSource:
    from aboard.index.logs import Logs

    place = place_of(source)
    check_readable(source)
    with ReadingBar(place) as bar:
        logs = Logs(place, index=index, anew=anew, progress=bar)
    notify_all(logs.report.problems)
    opened = OpenSource(logs, label)
    failed, is_damaged_file = logs.report.files_failed, source.only and opened.damage
    has_events = any(run.events for run in opened.runs) if failed or is_damaged_file else True
    if failed and not has_events:
        reason = "See the reason above." if failed == 1 else "See the reasons above."
        raise Failure(f"{place}: none of {counted(failed, 'event file')} can be read. {reason}")
    if not (logs.report.files_read or logs.report.files_unchanged or opened.runs):
        raise Failure(
            f"no event files below {place}; TensorBoard logs are files whose name contains"
            f" '{EVENT_FILE}'. Check the path, and that the job has written something."
        )
    if is_damaged_file and not has_events:
        raise Failure(
            f"{place}: no valid record in {format_size(opened.runs[0].bytes)}; it is not an event"
            " file, or is damaged."
        )
    return opened


def check_readable(source: Source) -> None:
    place = place_of(source)
    if is_remote(place):
        return
    try:
        status = os.stat(place)  # noqa: PTH116 (a Path would be made of it and no more)
    except OSError as error:
        raise explain(place, error) from error
    if not source.only and not stat.S_ISDIR(status.st_mode):
        raise Failure(
            f"{place}: not an event file, whose name contains '{EVENT_FILE}'."
            " Name a directory or an event file."
        )


def place_of(source: Source) -> str:
    return join(source.uri, source.only)


def distinct_labels(places: Sequence[str]) -> list[str]:
    """Return the shortest distinct ends of paths; empty for a single one.

    No label is a prefix of another path: runs of two sources would have the same name.
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


def run_label(label: str, run: str) -> str:
    """Return the name of a run of a source with a label."""
    if not label:
        return run
    return label if run == "." else f"{label}/{run}"


RunOption = Annotated[
    list[str] | None,
    typer.Option("--run", metavar="GLOB", help="Only runs of this name; may be repeated."),
    Completer(directories_like),
]
TagOption = Annotated[
    list[str] | None,
    typer.Option(
        "--tag",
        metavar="GLOB",
        help="Only tags of this name; may be repeated.",
    ),
    Completer(tags_like),
]


def matches(name: str, patterns: Sequence[str]) -> bool:
    """Return whether a name matches one of the patterns; without patterns, True."""
    return not patterns or any(fnmatchcase(name, pattern) for pattern in patterns)


def check_each(option: str, patterns: Sequence[str], names: Sequence[str]) -> None:
    distinct = list(dict.fromkeys(names))
    offered = [name for name in distinct if not name.startswith(_INTERNAL_TAGS)]
    fail_for(
        [
            f"no {option} matches --{option} '{pattern}'{_hint(pattern, offered)}"
            for pattern in patterns
            if not any(fnmatchcase(name, pattern) for name in distinct)
        ]
    )


def fail_for(problems: Sequence[str]) -> None:
    for problem in problems[:-1]:
        notify(problem)
    if problems:
        raise Failure(problems[-1])


def _hint(pattern: str, names: Sequence[str]) -> str:
    if near := nearest(pattern, names):
        return f"; did you mean '{near}'?"
    shown = ", ".join(f"'{name}'" for name in names[:5])
    more = f" and {len(names) - 5:,} more" if len(names) > 5 else ""
    return f"; there are {shown}{more}." if names else "; there are none."
