"""`aboard runs`: list, show, delete, tag and annotate runs."""

from __future__ import annotations

import shlex
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

import typer

from aboard.cli.app import ListByDefault
from aboard.cli.completion import Completer, columns_like, fields_like, selectors_like
from aboard.cli.console import (
    FAILURE,
    Failure,
    JsonOption,
    WrongUsage,
    confirm,
    examples,
    is_debugging,
    json_number,
    line_for,
    moment,
    notify,
    printable,
    strong,
    table,
)
from aboard.cli.sources import (
    LimitOption,
    RootOption,
    SelectedRuns,
    SortOption,
    WhereOption,
    parse_question,
    read_runs,
    select_runs,
    suggesting_fields,
)
from aboard.runs import nearest
from aboard.runs.manifest import BadManifest
from aboard.runs.naming import GROUPS
from aboard.runs.question import Field, UnknownField, each_field, parse_field, split_fields
from aboard.runs.units import counted, format_elapsed, format_size
from aboard.storage import StorageError, open_storage

if TYPE_CHECKING:
    from aboard.index.library import Library
    from aboard.runs.catalog import Deletion, KnownRun
    from aboard.runs.manifest import Manifest

DEFAULT = ("run", "state", "created", "duration", "host", "user", "tags")
_NOTHING = "-"


def _state(run: KnownRun, now: float) -> str | None:
    state = run.state_at(now)
    return None if state is None else state.value


VALUES: dict[str, Callable[[KnownRun, float], Any]] = {
    "run": lambda run, _now: run.label,
    "experiment": lambda run, _now: run.experiment or None,
    "name": lambda run, _now: run.name,
    "state": _state,
    "created": lambda run, _now: run.created or None,
    "started": lambda run, _now: run.started or None,
    "ended": lambda run, _now: run.ended,
    "heartbeat": lambda run, _now: run.heartbeat or None,
    "duration": lambda run, now: run.seconds_at(now),
    "host": lambda run, _now: run.host or None,
    "user": lambda run, _now: run.user or None,
    "job": lambda run, _now: run.job or None,
    "workspace": lambda run, _now: run.workspace or None,
    "git_commit": lambda run, _now: run.git_commit or None,
    "exit_code": lambda run, _now: run.exit_code,
    "reason": lambda run, _now: run.reason or run.problem or None,
    "tags": lambda run, _now: run.tags,
    "hparams": lambda run, _now: run.hparams,
    "metrics": lambda run, _now: run.metrics,
    "uri": lambda run, _now: run.uri,
    "root": lambda run, _now: run.root,
}
_TIMES = {"created", "started", "ended", "heartbeat"}
NAMES = (*VALUES, "hparams.NAME", "metrics.NAME", "tags.NAME")


class Column(NamedTuple):
    """A column: its name as given, and the field unless it is one of `VALUES`."""

    name: str
    field: Field | None = None

    @classmethod
    def parse(cls, text: str) -> Column:
        name = text.strip()
        if name in VALUES:
            return cls(name)
        try:
            return cls(name, parse_field(name))
        except UnknownField:
            near = nearest(name, [*VALUES, *(f"{one}." for one in GROUPS)])
            if not near:
                raise
        raise WrongUsage(
            f"unknown column {name!r}. Did you mean {near!r}? Known: {', '.join(NAMES)}."
        )

    def values(
        self, runs: Sequence[KnownRun], now: float, library: Library | None = None
    ) -> list[Any]:
        if (value := VALUES.get(self.name)) is not None:
            return [value(run, now) for run in runs]
        if self.field is None or library is None:
            raise ValueError(f"the column {self.name!r} needs a library")
        return library.values(self.field, runs)

    def texts(self, values: Iterable[Any]) -> list[str]:
        name = self.field.name if self.field and not self.field.group else self.name
        text: Callable[[Any], str] = format_elapsed if name == "duration" else written
        if name in _TIMES:
            text = moment
        return [
            value if type(value) is str else _NOTHING if value is None else text(value)
            for value in values
        ]


def written(value: object) -> str:
    if isinstance(value, str):
        return value
    if isinstance(value, dict):
        shown = (one if held is True else f"{one}={written(held)}" for one, held in value.items())
        return ", ".join(shown) or _NOTHING
    if isinstance(value, frozenset):
        return ", ".join(sorted(value)) or _NOTHING
    if isinstance(value, bool):
        return "true" if value else "false"
    return f"{value:.6g}" if isinstance(value, float) else str(value)


def parse_columns(text: str) -> list[Column]:
    names = split_fields(text)
    if not names:
        raise WrongUsage(f"--columns names no column. Known: {', '.join(NAMES)}.")
    return [Column.parse(name) for name in names]


_HELP = """
List, show, delete, tag and annotate runs.

Runs are found below a root: by their `run.json`, or as directories with event files. Without
one of the commands below, `aboard runs` is `aboard runs list`.
"""
EPILOG = """
Examples:

- `aboard runs` - every run below `./runs`, or `ABOARD_ROOT`
- `aboard runs cifar10 --where 'state == "running"'` - the running ones of an experiment
- `aboard runs 'hparam:lr<0.1' --columns run,hparams.lr,metrics.eval/accuracy --sort -created`
- `aboard runs cifar10 --where 'metrics["eval/acc"].max > 0.9' --sort -hparams.lr --limit 10`
- `aboard runs --group-by hparams.lr --columns 'metrics["eval/acc"].max'` - means by learning rate
- `aboard runs show cifar10/run3` - everything about one
- `aboard runs delete cifar10/run3-run7` - asks first

Selectors: `cifar10`, `cifar10/run3`, `cifar10/run3-run7`, `cifar10/run*`, `job:2300`,
`tag:baseline`, `state:running`, `hparam:lr<0.1`, any path or URI; several select the union.
"""
_EVERYTHING = (
    "run", "experiment", "name", "state", "exit_code", "reason", "created", "started", "ended",
    "heartbeat", "duration", "host", "user", "job", "workspace", "git_commit", "tags", "hparams",
    "metrics", "uri", "root",
)  # fmt: skip
_SHOWN_RUNS = 10


_COLUMNS_HELP = (
    "What to show, separated by commas: run, experiment, name, state, created, started, ended,"
    " heartbeat, duration, host, user, job, workspace, git_commit, exit_code, reason, tags,"
    " hparams, metrics, uri, root, hparams.NAME, metrics.NAME, tags.NAME, or a value of a metric"
    f""" such as 'metrics["eval/acc"].max'. [default: {",".join(DEFAULT)}]"""
)

GROUP = typer.Typer(cls=ListByDefault, help=_HELP, rich_markup_mode="markdown")

SelectorArgument = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="[SELECTOR]...",
        help="Which runs; all of them by default.",
        show_default=False,
    ),
    Completer(selectors_like),
]
RunArgument = Annotated[
    list[str],
    typer.Argument(
        metavar="RUN...",
        help="Selectors, one or more.",
        show_default=False,
    ),
    Completer(selectors_like),
]


@GROUP.command(
    "list",
    epilog=examples(
        "`aboard runs list` - every run",
        "`aboard runs list tag:baseline --json | jq -r '.runs[].uri'` - for scripts",
    ),
)
def list_runs(
    selector: SelectorArgument = None,
    root: RootOption = None,
    columns: Annotated[
        str | None,
        typer.Option(
            help=_COLUMNS_HELP,
        ),
        Completer(columns_like, tuple(VALUES)),
    ] = None,
    where: WhereOption = None,
    sort: SortOption = None,
    limit: LimitOption = None,
    group_by: Annotated[
        list[str] | None,
        typer.Option(
            "--group-by",
            metavar="FIELD,...",
            help="List groups of runs that have the same values of fields, separated by commas,"
            " with the mean of each column; may be repeated.",
        ),
        Completer(fields_like),
    ] = None,
    json: JsonOption = False,
) -> None:
    """List runs."""
    from aboard.index import Index

    now = time.time()
    try:
        with suggesting_fields(selector or [], root or []):
            given = parse_columns(columns) if columns is not None else []
    except UnknownField as error:
        raise WrongUsage(f"unknown column {error.name!r}. {error.hint}") from None
    group_by = each_field(group_by or [])
    question = parse_question(where, sort, limit, group_by, texts=selector or [], roots=root or [])
    if group_by:
        names = given
    else:
        names = given or [Column(name) for name in (_EVERYTHING if json else DEFAULT)]
    with Index() as index, _suggesting_command(selector):
        chosen = select_runs(
            index,
            selector or [],
            root or [],
            question=question,
            fields=[one.field for one in names if one.field],
        )
        values = [one.values(chosen.runs, now, chosen.library) for one in names]
    if group_by:
        _print_groups(chosen, group_by, names, values, json=json)
    elif json:
        plain = [list(map(_plain, column)) for column in values]
        runs = [
            dict(zip((one.name for one in names), row, strict=True))
            for row in zip(*plain, strict=True)
        ]
        found = {"runs": runs, "total": chosen.total}
        _print_json(found | {"roots": chosen.roots, "problems": chosen.problems})
    elif chosen.runs:
        texts = [one.texts(column) for one, column in zip(names, values, strict=True)]
        rows = list(zip(*texts, strict=True))
        typer.echo(table([one.name.upper() for one in names], rows, left=len(names)))
        if len(chosen.runs) < chosen.total:
            more = chosen.total - len(chosen.runs)
            notify(f"{counted(more, 'more run')}; raise --limit to see them.")
    elif where and chosen.library.runs():
        hint = chosen.library.hint_for_nothing(question) if question else ""
        notify(f"no run matches --where {where!r}. {hint}".rstrip())
    elif not chosen.problems:
        notify(f"no runs below {', '.join(chosen.roots)} yet.")
    chosen.finish()


@contextmanager
def _suggesting_command(selectors: Sequence[str] | None) -> Iterator[None]:
    """Suggest a command if the first selector matches no run and is similar to its name."""
    from aboard.runs.selectors import NothingMatches

    try:
        yield
    except NothingMatches as error:
        first = selectors[0] if selectors else ""
        known = [one.name for one in GROUP.registered_commands if one.name]
        near = nearest(first, known)
        if not near or repr(first) not in error.message:
            raise
        hint = f"If you meant a command: aboard runs {near}"
        raise NothingMatches(str(error), hint) from None


def _print_groups(
    chosen: SelectedRuns,
    fields: Sequence[str],
    columns: Sequence[Column],
    values: Sequence[Sequence[Any]],
    *,
    json: bool,
) -> None:
    """Print groups: their values, numbers of runs, and means of columns."""
    from aboard.runs.columns import mean

    start, means = 0, []
    for group in chosen.groups:
        end = start + len(group.runs)
        means.append([mean(column[start:end]) for column in values])
        start = end
    if json:
        names = [one.name for one in columns]
        groups = [
            {
                "values": dict(zip(fields, map(_plain, group.values), strict=True)),
                "count": len(group.runs),
                "means": dict(zip(names, held, strict=True)),
                "runs": [run.label for run in group.runs],
            }
            for group, held in zip(chosen.groups, means, strict=True)
        ]
        found = {"groups": groups, "total": chosen.total}
        _print_json(found | {"roots": chosen.roots, "problems": chosen.problems})
        return
    rows = [
        [
            *(Column(name).texts([one])[0] for name, one in zip(fields, group.values, strict=True)),
            str(len(group.runs)),
            *(one.texts([value])[0] for one, value in zip(columns, held, strict=True)),
        ]
        for group, held in zip(chosen.groups, means, strict=True)
    ]
    heads = [*fields, "runs", *(f"mean {one.name}" for one in columns)]
    typer.echo(table([one.upper() for one in heads], rows, left=len(fields)))
    if len(rows) < chosen.total:
        more = counted(chosen.total - len(rows), "more group")
        notify(f"{more}; raise --limit to see them.")


@GROUP.command(
    "show",
    epilog=examples(
        "`aboard runs show cifar10/run3` - its record, its attempts, its URI",
        "`aboard runs show s3://bucket/runs/cifar10/run3 --json` - for scripts",
    ),
)
def show_run(
    run: Annotated[
        str,
        typer.Argument(
            metavar="RUN",
            help="A selector of one run.",
            show_default=False,
        ),
        Completer(selectors_like),
    ],
    root: RootOption = None,
    json: JsonOption = False,
) -> None:
    """Show everything about one run, including its attempts."""
    from aboard.index import Index
    from aboard.runs.catalog import record_of

    with Index() as index:
        chosen = select_runs(index, [run], root or [])
        if len(chosen.runs) != 1:
            raise Failure(f"{run!r} is {_some(chosen.runs)}. Name one of them.")
        (one,) = chosen.runs
        if not one.is_recorded or not one.hparams:  # its event files may have some
            read_runs(chosen.library, [one])
            one = index.known_run(one.root, one.directory) or one
    record, problem = record_of(one)
    files = list(open_storage(one.uri).list(on_error=lambda _: None))
    total = sum(file.size for file in files)
    if json:
        (document,) = _documents([one], [Column(name) for name in _EVERYTHING], time.time())
        document |= {
            "command": record.command if record else [],
            "note": record.note if record else "",
            "attempts": _attempts(record),
            "files": len(files),
            "bytes": total,
            "problems": [problem] if problem else [],
        }
        _print_json(document)
    else:
        typer.echo(_about(one, record, f"{counted(len(files), 'file')}, {format_size(total)}"))
        if problem:
            notify(problem)
    if problem:
        raise typer.Exit(FAILURE)


@GROUP.command(
    "delete",
    epilog=examples(
        "`aboard runs delete cifar10/run3` - asks first",
        "`aboard runs delete state:failed --yes` - does not ask",
        note="In a directory without `run.json`, only event files are deleted.",
    ),
)
def delete_runs(
    run: RunArgument,
    root: RootOption = None,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Delete without confirmation.")] = False,
    force: Annotated[bool, typer.Option("--force", help="Also delete running runs.")] = False,
    json: JsonOption = False,
) -> None:
    """Delete runs: their records, logs and everything else in their directories."""
    from aboard.index import Index
    from aboard.runs.catalog import delete_run

    with Index() as index:
        chosen = select_runs(index, run, root or [], unambiguous=True)
        if not yes:
            confirm(f"Delete {_some(chosen.runs)}", done="deleted", verb="delete")

        def delete(one: KnownRun) -> dict[str, Any]:
            if not force:
                _refuse_running(one)
            gone = delete_run(one)
            if gone.problems:
                raise Failure(_left_over(gone))
            return {"files": gone.files, "bytes": gone.bytes}

        def describe(one: KnownRun, done: dict[str, Any]) -> str:
            held = f"{counted(done['files'], 'file')}, {format_size(done['bytes'])}"
            return f"deleted {one.label}: {held}"

        _each(chosen, delete, describe, "deleted", json=json)


@GROUP.command(
    "tag",
    epilog=examples(
        "`aboard runs tag cifar10/run3 --add baseline --add reviewed=yes`",
        "`aboard runs tag tag:baseline --remove baseline` - from all that have it",
    ),
)
def tag_runs(
    run: RunArgument,
    add: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME[=VALUE]", help="A tag to add; may be repeated."),
    ] = None,
    remove: Annotated[
        list[str] | None, typer.Option(metavar="NAME", help="A tag to remove; may be repeated.")
    ] = None,
    root: RootOption = None,
    json: JsonOption = False,
) -> None:
    """Add tags to runs, or remove them."""
    from aboard.index import Index
    from aboard.track.redaction import tags_to_record

    added = tags_to_record(_tags(add or []))
    changes = dict.fromkeys(remove or []) | added
    if not changes:
        raise WrongUsage("nothing to do: give --add NAME, --add NAME=VALUE or --remove NAME.")

    edited: list[str] = []
    had: set[str] = set()

    def tag(one: KnownRun) -> dict[str, Any]:
        def change(record: Manifest) -> None:
            had.update(record.tags)
            record.edit(changes)

        tags = _edit(one, change).tags
        edited.append(one.label)
        return {"tags": tags}

    def describe(one: KnownRun, done: dict[str, Any]) -> str:
        return f"{one.label}: {written(done['tags'])}"

    with Index() as index:
        chosen = select_runs(index, run, root or [], unambiguous=True)
        try:
            _each(chosen, tag, describe, "tagged", json=json)
        finally:
            for name in dict.fromkeys(remove or []):
                if edited and name not in had and name not in added:
                    _notify_no_tag(edited, name)


@GROUP.command(
    "note",
    epilog=examples(
        "`aboard runs note cifar10/run3 'the baseline of the paper'`",
        "`aboard runs note cifar10/run3 ''` - removes it",
    ),
)
def note_runs(
    run: Annotated[
        str,
        typer.Argument(
            metavar="RUN",
            help="A selector.",
            show_default=False,
        ),
        Completer(selectors_like),
    ],
    text: Annotated[
        str, typer.Argument(metavar="TEXT", help="The note; '' for none.", show_default=False)
    ],
    root: RootOption = None,
    json: JsonOption = False,
) -> None:
    """Set the note of runs, replacing any earlier note."""
    from aboard.index import Index
    from aboard.track.redaction import without_secrets

    written_note = without_secrets(text)

    def note(one: KnownRun) -> dict[str, Any]:
        return {"note": _edit(one, lambda record: record.edit({}, written_note)).note}

    def describe(one: KnownRun, done: dict[str, Any]) -> str:
        return f"{one.label}: {done['note'] or _NOTHING}"

    with Index() as index:
        chosen = select_runs(index, [run], root or [], unambiguous=True)
        _each(chosen, note, describe, "noted", json=json)


# Shared.


def _notify_no_tag(labels: Sequence[str], tag: str) -> None:
    if len(labels) == 1:
        notify(f"{labels[0]} has no tag {tag!r}.")
    else:
        notify(f"none of the {len(labels):,} runs has a tag {tag!r}.")


def _edit(run: KnownRun, change: Callable[[Manifest], None]) -> Manifest:
    from aboard.runs import manifest

    if not run.is_recorded:
        raise Failure(run.problem or f"{run.uri}: cannot store tags and notes without a run.json.")
    return manifest.update(open_storage(run.uri), change)


def _each(
    chosen: SelectedRuns,
    work: Callable[[KnownRun], dict[str, Any]],
    describe: Callable[[KnownRun, dict[str, Any]], str],
    name: str,
    *,
    json: bool,
) -> None:
    """Apply a function to each run; report failures and continue with the others."""
    done: list[dict[str, Any]] = []
    errors: list[dict[str, str]] = []
    for run in chosen.runs:
        try:
            result = work(run)
        except (Failure, StorageError, BadManifest) as error:
            if is_debugging():
                raise
            message = str(error) if isinstance(error, BadManifest) else line_for(error)
            errors.append({"run": run.label, "uri": run.uri, "message": message})
            notify(f"{run.label}: {message}")
            continue
        done.append({"run": run.label, "uri": run.uri, **result})
        if not json:
            typer.echo(printable(describe(run, result)))
    if json:
        _print_json({name: done, "errors": errors, "problems": chosen.problems})
    if errors:
        raise typer.Exit(FAILURE)
    chosen.finish()


def _documents(
    runs: Sequence[KnownRun], columns: Sequence[Column], now: float
) -> list[dict[str, Any]]:
    names = [one.name for one in columns]
    rows = zip(*(one.values(runs, now) for one in columns), strict=True)
    return [dict(zip(names, row, strict=True)) for row in rows]


def _plain(value: Any) -> Any:
    """Return a value for JSON: numbers that are not finite by name, tags as a list."""
    if isinstance(value, frozenset):
        return sorted(value)
    return json_number(value) if isinstance(value, float) else value


def _print_json(document: dict[str, Any]) -> None:
    import orjson

    try:
        text = orjson.dumps(document, option=orjson.OPT_INDENT_2)
    except TypeError:  # an integer over 64 bits, or a lone surrogate
        import json

        text = json.dumps(document, indent=2).encode()
    typer.echo(text)


def _about(run: KnownRun, record: Manifest | None, files: str) -> str:
    now = time.time()
    lines = [strong(printable(run.label))]
    state = run.state_at(now)
    if state is not None:
        code = "" if run.exit_code is None else f", exit code {run.exit_code}"
        lines.append(_line("state", f"{state}{code}"))
    else:
        lines.append(_line("state", "- (no run.json)" if not run.problem else "-"))
    facts = {
        "reason": run.reason,
        "workspace": run.workspace,
        "job": run.job,
        "host": run.host,
        "user": run.user,
        "commit": run.git_commit,
        "created": moment(run.created) if run.created else "",
        "started": moment(run.started) if run.started else "",
        "ended": moment(run.ended) if run.ended else "",
    }
    lines += [_line(name, value) for name, value in facts.items() if value]
    if (seconds := run.seconds_at(now)) is not None:
        lines.append(_line("took" if run.ended else "so far", format_elapsed(seconds)))
    if record and record.command:
        lines.append(_line("command", shlex.join(record.command)))
    if record and record.note:
        lines.append(_line("note", record.note))
    for name, held in (("tags", run.tags), ("hparams", run.hparams), ("metrics", run.metrics)):
        lines += _mapping(name, held)
    lines.append(_line("files", files))
    if record and record.attempts:
        lines.append("")
        lines.append(_attempt_table(record))
    lines += ["", f"Show it: aboard view {shlex.quote(run.uri)}"]
    return "\n".join(lines)


def _line(name: str, value: str) -> str:
    return f"  {name:<10} {printable(value)}"


def _mapping(name: str, held: dict[str, Any]) -> list[str]:
    width = max(map(len, held), default=0)
    lines = [f"{key:<{width}}  {written(value)}" for key, value in held.items()]
    return [_line(name if not place else "", line) for place, line in enumerate(lines)]


def _attempt_table(record: Manifest) -> str:
    heads = ("ATTEMPT", "STATE", "STARTED", "ENDED", "HOST", "JOB", "REASON")
    rows = [
        [
            str(one.number),
            str(one.state),
            moment(one.started or None),
            moment(one.ended),
            one.host or "-",
            one.job or "-",
            one.reason or "-",
        ]
        for one in record.attempts
    ]
    return table(heads, rows, left=len(heads))


def _attempts(record: Manifest | None) -> list[dict[str, Any]]:
    return [
        {
            "number": one.number,
            "state": str(one.state),
            "host": one.host,
            "pid": one.pid,
            "job": one.job,
            "started": one.started or None,
            "ended": one.ended,
            "exit_code": one.exit_code,
            "reason": one.reason,
        }
        for one in (record.attempts if record else [])
    ]


def _some(runs: Sequence[KnownRun]) -> str:
    """Return the number of runs and the first names, such as `2 runs: a/run1, a/run2`."""
    labels = ", ".join(run.label for run in runs[:_SHOWN_RUNS])
    more = f" and {len(runs) - _SHOWN_RUNS:,} more" if len(runs) > _SHOWN_RUNS else ""
    return f"{counted(len(runs), 'run')}: {labels}{more}"


def _refuse_running(run: KnownRun) -> None:
    """Reject a run whose current record has a recent heartbeat."""
    from aboard.runs.catalog import seconds_silent

    silent = seconds_silent(run, time.time())
    if silent is not None:
        raise Failure(
            f"not deleted: it is still running (last heartbeat {format_elapsed(silent)} ago)."
            " Stop it, or add --force."
        )


def _left_over(gone: Deletion) -> str:
    count = counted(len(gone.problems), "file")
    done = f"{counted(gone.files, 'file')} ({format_size(gone.bytes)}) deleted"
    return f"{done}, but {count} could not be: {gone.problems[0]}"


def _tags(texts: Sequence[str]) -> dict[str, Any]:
    tags: dict[str, Any] = {}
    for text in texts:
        name, equals, value = text.partition("=")
        if not name:
            raise WrongUsage(f"--add {text!r}: write NAME or NAME=VALUE.")
        tags[name] = value if equals else True
    return tags
