"""`aboard run`: record any program, unchanged, as a run."""

from __future__ import annotations

import os
import shlex
import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from aboard.cli.console import Failure, WrongUsage
from aboard.runs.units import format_elapsed

if TYPE_CHECKING:
    from aboard.track.run import Run

EPILOG = """
Examples:

- `aboard run -- python train.py --lr=0.1` - the next run of the experiment `default`
- `aboard run --experiment cifar10 --hparams-from-args -- python train.py --lr=0.1`
- `aboard run --root s3://bucket/runs --name baseline -- torchrun --nproc-per-node 4 train.py`
- `aboard run --experiment cifar10 --name long --resume -- python train.py` - continue a run

The program finds its log directory in `ABOARD_LOGDIR` (and in `PAI_OUTPUT_TENSORBOARD`,
`AIP_TENSORBOARD_LOG_DIR` and `XT_OUTPUT_MNT`). Event files that it writes elsewhere below the
working directory are copied into the run. The exit code is that of the program.
"""
CONTEXT_SETTINGS = {"allow_interspersed_args": False}
WrittenRootOption = Annotated[
    str | None,
    typer.Option(
        help="A directory or bucket URI; by default ABOARD_ROOT or ./runs.", show_default=False
    ),
]


def run(
    command: Annotated[
        list[str],
        typer.Argument(
            metavar="COMMAND...",
            help="The program and its arguments, after '--'.",
            show_default=False,
        ),
    ],
    experiment: Annotated[
        str | None, typer.Option(help="The run's experiment; by default 'default'.")
    ] = None,
    name: Annotated[
        str | None,
        typer.Option(help="The run's name; by default the next of run1, run2 and so on."),
    ] = None,
    root: WrittenRootOption = None,
    hparam: Annotated[
        list[str] | None,
        typer.Option(metavar="KEY=VALUE", help="A hyperparameter; may be repeated."),
    ] = None,
    hparams_from_args: Annotated[
        bool,
        typer.Option(
            "--hparams-from-args",
            help="Record the program's own options (--lr=0.1, --depth 3) as hyperparameters.",
        ),
    ] = False,
    tag: Annotated[
        list[str] | None, typer.Option(metavar="TAG[=VALUE]", help="A tag; may be repeated.")
    ] = None,
    workspace: Annotated[
        str | None, typer.Option(help="A workspace to store in the run's record.")
    ] = None,
    job: Annotated[
        str | None,
        typer.Option(
            help="The job it belongs to; by default ABOARD_JOB, or the engine's id of the job."
        ),
    ] = None,
    resume: Annotated[
        bool | None,
        typer.Option(
            "--resume/--no-resume",
            help="Continue the run of that name, if there is one. Without either, a job that its"
            " scheduler restarted continues its run.",
        ),
    ] = None,
    ranks: Annotated[
        str,
        typer.Option(
            help="Of many processes launched together, 'first' records rank 0 only; 'all' records"
            " each in its own directory, rank-0, rank-1 and so on."
        ),
    ] = "first",
    quiet: Annotated[
        bool, typer.Option("--quiet", "-q", help="Do not print where the run is and how it ended.")
    ] = False,
    json: Annotated[
        bool, typer.Option("--json", help="Print both as JSON lines, to standard error.")
    ] = False,
) -> None:
    """Record a program as a run: its logs, its output and its exit code."""
    from aboard.track import program
    from aboard.track.adoption import has_foreign_logs

    if ranks not in ("first", "all"):
        raise WrongUsage(f"--ranks {ranks}: write 'first' or 'all'.")
    hparams: dict[str, Any] = program.command_hparams(command) if hparams_from_args else {}
    hparams |= _hparams_of_member()
    for key, value in pairs(hparam, "--hparam", "KEY=VALUE, such as --hparam lr=0.1"):
        hparams[key] = program.parse_hparam(value)
    tags = dict(pairs(tag, "--tag", "NAME or NAME=VALUE"))
    try:
        program.check_program(command)
        options = {"hparams": hparams, "tags": tags, "workspace": workspace, "job": job}
        opened = _begin(command, root, experiment, name, resume=resume, ranks=ranks, **options)
        label = f"{opened.experiment}/{opened.name}"
        document = {"run": opened.name, "experiment": opened.experiment}
        silent = quiet or not opened.active

        def report(text: str, **fields: Any) -> None:
            line = _json(document | fields) if json else f"aboard: {label} {text}"
            if not silent:
                typer.echo(line, err=True)

        view = f"aboard view {shlex.quote(opened.uri)}"
        report(f"logs to {opened.uri}; to see it: {view}", uri=opened.uri, logdir=opened.logdir)
        began = time.monotonic()
        try:
            state, code, reason = ending = program.execute(opened, command, ranks=ranks)
        except program.CannotStart as error:
            opened.finish("failed", error.exit_code, str(error))
            raise
    except program.CannotStart as error:
        failure = Failure(str(error))
        failure.exit_code = error.exit_code
        raise failure from None
    logged = not opened.active or has_foreign_logs(Path(opened.logdir))
    opened.finish(*ending)
    seconds = time.monotonic() - began
    report(
        f"{state}{f' ({reason})' if reason else ''} after {format_elapsed(seconds)}"
        f"{'' if logged else '; no event files were found'}",
        state=state,
        exit_code=code,
        reason=reason,
        seconds=round(seconds, 3),
        logged=logged,
    )
    raise typer.Exit(code or 0)


def _hparams_of_member() -> dict[str, Any]:
    """Return the hyperparameters from the job; other users can read command lines."""
    text = os.environ.pop("ABOARD_HPARAMS", "")
    from json import loads

    found: dict[str, Any] = loads(text) if text else {}
    return found


def _json(document: dict[str, Any]) -> str:
    import orjson

    return orjson.dumps(document).decode()


def pairs(texts: Iterable[str] | None, option: str, form: str) -> Iterator[tuple[str, Any]]:
    for text in texts or ():
        name, equals, value = text.partition("=")
        if not name or not (equals or form.startswith("NAME or ")):
            raise WrongUsage(f"{option} {text!r}: write {form}.")
        yield name, value if equals else True


def _begin(
    command: list[str],
    root: str | None,
    experiment: str | None,
    name: str | None,
    *,
    resume: bool | None,
    ranks: str,
    **options: Any,
) -> Run:
    from aboard.runs.catalog import BadName, RunExists
    from aboard.runs.manifest import BadManifest
    from aboard.track.environment import NoLaunch, find_place, find_rank
    from aboard.track.redaction import command_to_record
    from aboard.track.start import begin

    try:
        place = find_place(root, experiment, name)._replace(fallback=False)  # it is printed anyway
        requested = experiment or place.experiment, name or place.name
        if place.joined and requested != (place.experiment, place.name):
            # A run next to that of this process.
            place = find_place(place.root, requested[0], name, environment={})
        if resume and place.name is None:
            raise WrongUsage("--resume requires --name.")
        # Ranks that the program launches have directories below this process's.
        several = ranks == "all" and find_rank().size > 1
        return begin(
            place,
            command_to_record(command),
            resume=resume,
            ranks="all" if several else "first",
            **options,
        )
    except RunExists as error:
        raise Failure(f"{error} Add --resume to continue it.") from None
    except (BadName, NoLaunch) as error:
        raise WrongUsage(str(error)) from None
    except (BadManifest, TimeoutError) as error:
        raise Failure(str(error)) from None
