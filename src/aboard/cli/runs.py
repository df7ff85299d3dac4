"""`aboard runs`: which runs there are, what is known of each; deleting and tagging them."""

from __future__ import annotations

import shlex
import sys
import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer.core import TyperGroup

from aboard.cli.choosing import ChosenRuns, RootOption, choose_runs
from aboard.cli.columns import DEFAULT, Column, in_order, parse_columns, written
from aboard.cli.completing import columns_like, selectors_like
from aboard.cli.errors import FAILURE, Failure, WrongUsage, is_debugging, line_for, say
from aboard.cli.sources import JsonOption
from aboard.cli.wording import counted, duration, moment, printable, size, strong, table
from aboard.runs.manifest import BadManifest, State
from aboard.storage import StorageError, open_storage

if TYPE_CHECKING:
    from aboard.runs.deletion import Deleted
    from aboard.runs.known import KnownRun
    from aboard.runs.manifest import Manifest

_HELP = """
List runs, look at one, delete or tag some.

Runs are found below a root: by their `run.json`, or as directories with event files. Without
one of the commands below, `aboard runs` is `aboard runs list`.
"""
EPILOG = """
Examples:

- `aboard runs` - every run below `./runs`, or `ABOARD_ROOT`
- `aboard runs cifar10 state:running` - those of an experiment, and all that run
- `aboard runs 'hparam:lr<0.1' --columns run,hparams.lr,metrics.eval/accuracy --sort -created`
- `aboard runs show cifar10/run3` - everything about one
- `aboard runs delete cifar10/run3-run7` - asks first

Selectors: `cifar10`, `cifar10/run3`, `cifar10/run3-run7`, `cifar10/run*`, `job:2300`,
`tag:baseline`, `state:running`, `hparam:lr<0.1`, any path or URI; several make a union.
"""
_EVERYTHING = (
    "run", "experiment", "name", "state", "exit_code", "reason", "created", "started", "ended",
    "heartbeat", "duration", "host", "user", "job", "workspace", "git_commit", "tags", "hparams",
    "metrics", "uri", "root",
)  # fmt: skip
_SHOWN_RUNS = 10


class _ListByDefault(TyperGroup):
    """The commands about runs; words that are none of them are selectors to list."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Put `list` in front of what is no command."""
        if not args and ctx.resilient_parsing:
            return super().parse_args(ctx, args)  # Tab: what comes may still be a command
        if not args or (args[0] not in self.commands and args[0] not in ctx.help_option_names):
            args = ["list", *args]
        return super().parse_args(ctx, args)

    def shell_complete(self, ctx: Any, incomplete: str) -> Any:
        """Offer the commands, and what can be listed."""
        listing = self.commands["list"]
        below = typer.Context(listing, info_name="list", parent=ctx, resilient_parsing=True)
        below.params["root"] = None
        (selector,) = (one for one in listing.params if one.name == "selector")
        listed = selector.shell_complete(below, incomplete)
        return [*super().shell_complete(ctx, incomplete), *listed]


GROUP = typer.Typer(cls=_ListByDefault, help=_HELP, rich_markup_mode="markdown")

SelectorArgument = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="[SELECTOR]...",
        help="Which runs; all of them unless told.",
        show_default=False,
        autocompletion=selectors_like,
    ),
]
RunArgument = Annotated[
    list[str],
    typer.Argument(
        metavar="RUN...",
        help="Selectors, one or more.",
        show_default=False,
        autocompletion=selectors_like,
    ),
]


@GROUP.command(
    "list",
    epilog="""
Examples:

- `aboard runs list` - every run
- `aboard runs list tag:baseline --json | jq -r '.runs[].uri'` - for scripts
""",
)
def list_runs(
    selector: SelectorArgument = None,
    root: RootOption = None,
    columns: Annotated[
        str | None,
        typer.Option(
            help="What to show, separated by commas: run, experiment, name, state, created,"
            " started, ended, heartbeat, duration, host, user, job, workspace, git_commit,"
            " exit_code, reason, tags, hparams, metrics, uri, root, hparams.NAME, metrics.NAME,"
            f" tags.NAME. [default: {','.join(DEFAULT)}]",
            autocompletion=columns_like,
        ),
    ] = None,
    sort: Annotated[
        str | None,
        typer.Option(metavar="COLUMN", help="Sort by a column; downwards with '-' before it."),
    ] = None,
    limit: Annotated[int | None, typer.Option(help="Show so many at most.", min=1)] = None,
    json: JsonOption = False,
) -> None:
    """List runs."""
    from aboard.index import Index

    now = time.time()
    chosen_columns = parse_columns(columns) if columns is not None else None
    if sort:
        in_order([], sort, now)  # a column that does not exist is said before anything is read
    with Index() as index:
        chosen = choose_runs(index, selector or [], root or [])
    runs = in_order(chosen.runs, sort, now) if sort else chosen.runs
    shown = runs[:limit]
    if json:
        names = chosen_columns or [Column(name) for name in _EVERYTHING]
        _print_json(
            {
                "runs": _documents(shown, names, now),
                "roots": chosen.roots,
                "problems": chosen.problems,
            }
        )
    elif shown:
        names = chosen_columns or [Column(name) for name in DEFAULT]
        rows = zip(*(one.texts(shown, now) for one in names), strict=True)
        typer.echo(table([one.name.upper() for one in names], list(rows), left=len(names)))
        if len(shown) < len(runs):
            say(f"{counted(len(runs) - len(shown), 'more run')}; --limit shows them.")
    elif not chosen.problems:
        say(f"there are no runs below {', '.join(chosen.roots)} yet.")
    chosen.finish()


@GROUP.command(
    "show",
    epilog="""
Examples:

- `aboard runs show cifar10/run3` - its record, its attempts, where it is
- `aboard runs show s3://bucket/runs/cifar10/run3 --json` - for scripts
""",
)
def show_run(
    run: Annotated[
        str,
        typer.Argument(
            metavar="RUN",
            help="A selector of one run.",
            show_default=False,
            autocompletion=selectors_like,
        ),
    ],
    root: RootOption = None,
    json: JsonOption = False,
) -> None:
    """Show everything about one run, its attempts too."""
    from aboard.index import Index

    with Index() as index:
        found = choose_runs(index, [run], root or []).runs
    if len(found) != 1:
        labels = ", ".join(one.label for one in found[:_SHOWN_RUNS])
        raise Failure(f"{run!r} is {counted(len(found), 'run')}: {labels}. Name one of them.")
    (one,) = found
    record, problem = _record_of(one)
    files = list(open_storage(one.uri).list(on_error=lambda _: None))
    total = sum(file.size for file in files)
    if json:
        (document,) = _documents([one], [Column(name) for name in _EVERYTHING], time.time())
        document |= {
            "command": record.command if record else [],
            "attempts": _attempts(record),
            "files": len(files),
            "bytes": total,
            "problems": [problem] if problem else [],
        }
        _print_json(document)
    else:
        typer.echo(_about(one, record, f"{counted(len(files), 'file')}, {size(total)}"))
        if problem:
            say(problem)
    if problem:
        raise typer.Exit(FAILURE)


@GROUP.command(
    "delete",
    epilog="""
Examples:

- `aboard runs delete cifar10/run3` - asks first
- `aboard runs delete state:failed --yes` - does not ask

Of a directory that has no `run.json`, the event files alone are deleted.
""",
)
def delete_runs(
    run: RunArgument,
    root: RootOption = None,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")] = False,
    force: Annotated[
        bool, typer.Option("--force", help="Delete also what is still running.")
    ] = False,
    json: JsonOption = False,
) -> None:
    """Delete runs: their records, logs and everything else in their directories."""
    from aboard.index import Index
    from aboard.runs.deletion import delete_run

    with Index() as index:
        chosen = choose_runs(index, run, root or [], strictly=True)
        if not yes:
            _ask_to_delete(chosen.runs)

        def delete(one: KnownRun) -> dict[str, Any]:
            if not force:
                _refuse_running(one)
            gone = delete_run(one)
            if gone.problems:
                raise Failure(_left_over(gone))
            return {"files": gone.files, "bytes": gone.bytes}

        def tell(one: KnownRun, done: dict[str, Any]) -> str:
            return f"deleted {one.label}: {counted(done['files'], 'file')}, {size(done['bytes'])}"

        _each(chosen, delete, tell, "deleted", json=json)


@GROUP.command(
    "tag",
    epilog="""
Examples:

- `aboard runs tag cifar10/run3 --add baseline --add reviewed=yes`
- `aboard runs tag tag:baseline --remove baseline` - from all that have it
""",
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
    from aboard.runs import manifest

    added = _tags(add or [])
    removed = remove or []
    if not added and not removed:
        raise WrongUsage("nothing to do: give --add NAME, --add NAME=VALUE or --remove NAME.")

    def change(record: Manifest) -> None:
        kept = {name: value for name, value in record.tags.items() if name not in removed}
        record.tags = kept | added

    def tag(one: KnownRun) -> dict[str, Any]:
        if not one.is_recorded:
            raise Failure(one.problem or f"{one.uri}: there is no run.json to hold tags.")
        return {"tags": manifest.update(open_storage(one.uri), change).tags}

    def tell(one: KnownRun, done: dict[str, Any]) -> str:
        return f"{one.label}: {written(done['tags'])}"

    with Index() as index:
        chosen = choose_runs(index, run, root or [], strictly=True)
        _each(chosen, tag, tell, "tagged", json=json)


# What the commands have in common.


def _each(
    chosen: ChosenRuns,
    work: Callable[[KnownRun], dict[str, Any]],
    tell: Callable[[KnownRun, dict[str, Any]], str],
    name: str,
    *,
    json: bool,
) -> None:
    """Do something with each run; one that fails is told and does not spare the others."""
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
            say(f"{run.label}: {message}")
            continue
        done.append({"run": run.label, "uri": run.uri, **result})
        if not json:
            typer.echo(printable(tell(run, result)))
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


def _print_json(document: dict[str, Any]) -> None:
    import orjson

    try:
        text = orjson.dumps(document, option=orjson.OPT_INDENT_2)
    except TypeError:  # a number of more than 64 bits, or half a surrogate pair
        import json

        text = json.dumps(document, indent=2).encode()
    typer.echo(text)


def _record_of(run: KnownRun) -> tuple[Manifest | None, str]:
    """Read a run's record as it is now; else say why there is none."""
    from aboard.runs import manifest
    from aboard.storage import NotFound

    try:
        return manifest.read(open_storage(run.uri)), ""
    except NotFound:
        return None, ""
    except (BadManifest, StorageError) as error:
        return None, str(error)


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
        lines.append(_line("took" if run.ended else "so far", duration(seconds)))
    if record and record.command:
        lines.append(_line("command", shlex.join(record.command)))
    for name, held in (("tags", run.tags), ("hparams", run.hparams), ("metrics", run.metrics)):
        lines += _mapping(name, held)
    lines.append(_line("files", files))
    if record and record.attempts:
        lines.append("")
        lines.append(_attempt_table(record))
    lines += ["", f"Look: aboard view {shlex.quote(run.uri)}"]
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


def _ask_to_delete(runs: Sequence[KnownRun]) -> None:
    labels = ", ".join(run.label for run in runs[:_SHOWN_RUNS])
    more = f" and {len(runs) - _SHOWN_RUNS:,} more" if len(runs) > _SHOWN_RUNS else ""
    question = f"Delete {counted(len(runs), 'run')}: {printable(labels)}{more}? [y/N] "
    typer.echo(question, err=True, nl=False)
    answer = sys.stdin.readline() if sys.stdin is not None else ""
    if not answer:
        typer.echo(err=True)
        raise WrongUsage("nobody answered, so nothing was deleted. Add --yes to delete unasked.")
    if answer.strip().lower() not in ("y", "yes"):
        raise Failure("nothing was deleted.")


def _refuse_running(run: KnownRun) -> None:
    """Refuse a run whose heart beats, as its record says at this moment."""
    record, _ = _record_of(run)
    if record is not None and record.state_at(time.time()) is State.RUNNING:
        beat = duration(max(0.0, time.time() - record.heartbeat))
        raise Failure(
            f"it is still running (last sign of life {beat} ago), so it was not deleted."
            " Stop it, or add --force."
        )


def _left_over(gone: Deleted) -> str:
    count = counted(len(gone.problems), "file")
    done = f"{counted(gone.files, 'file')} ({size(gone.bytes)}) deleted"
    return f"{done}, but {count} could not be: {gone.problems[0]}"


def _tags(texts: Sequence[str]) -> dict[str, Any]:
    tags: dict[str, Any] = {}
    for text in texts:
        name, equals, value = text.partition("=")
        if not name:
            raise WrongUsage(f"--add {text!r}: write NAME or NAME=VALUE.")
        tags[name] = value if equals else True
    return tags
