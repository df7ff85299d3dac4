"""`aboard run`: any program, unchanged, as a run."""

from __future__ import annotations

import shlex
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from aboard.cli.errors import Failure, WrongUsage

if TYPE_CHECKING:
    from aboard.runs.values import Tags
    from aboard.track.job import CannotStart, Outcome
    from aboard.track.run import Run

EPILOG = """
Examples:

- `aboard run -- python train.py --lr=0.1` - the next run of the experiment `default`
- `aboard run --experiment cifar10 --hparams-from-args -- python train.py --lr=0.1`
- `aboard run --root s3://bucket/runs --name baseline -- torchrun --nproc-per-node 4 train.py`
- `aboard run --experiment cifar10 --name long --resume -- python train.py` - go on with a run

The program finds its log directory in `ABOARD_LOGDIR` (and in `PAI_OUTPUT_TENSORBOARD`,
`AIP_TENSORBOARD_LOG_DIR` and `XT_OUTPUT_MNT`). TensorBoard files that it writes elsewhere below
the working directory are copied into the run. The exit code is the program's own.
"""
CONTEXT_SETTINGS = {"allow_interspersed_args": False}


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
        str | None, typer.Option(help="What the run is part of; 'default' unless told.")
    ] = None,
    name: Annotated[
        str | None, typer.Option(help="The run's name; the next of run1, run2, … unless told.")
    ] = None,
    root: Annotated[
        str | None,
        typer.Option(
            help="A directory or bucket URI; ABOARD_ROOT or ./runs unless told.", show_default=False
        ),
    ] = None,
    hparam: Annotated[
        list[str] | None,
        typer.Option(metavar="KEY=VALUE", help="A hyperparameter; may be given several times."),
    ] = None,
    hparams_from_args: Annotated[
        bool,
        typer.Option(
            "--hparams-from-args",
            help="Take the program's own options (--lr=0.1, --depth 3) as hyperparameters.",
        ),
    ] = False,
    tag: Annotated[
        list[str] | None,
        typer.Option(metavar="TAG[=VALUE]", help="A tag; may be given several times."),
    ] = None,
    workspace: Annotated[str | None, typer.Option(help="Noted in the run's record.")] = None,
    job: Annotated[
        str | None, typer.Option(help="The scheduler's name for the job; found under Slurm.")
    ] = None,
    resume: Annotated[
        bool | None,
        typer.Option(
            "--resume/--no-resume",
            help="Go on with the run of that name, if there is one. Without either, a job that"
            " its scheduler started again goes on with its run.",
        ),
    ] = None,
    ranks: Annotated[
        str,
        typer.Option(
            help="Of many processes launched together, 'first' records only rank 0, and 'all'"
            " each in a directory of its own."
        ),
    ] = "first",
    quiet: Annotated[
        bool, typer.Option("--quiet", "-q", help="Do not say where the run is and how it ended.")
    ] = False,
    json: Annotated[
        bool,
        typer.Option("--json", help="Say where and how as JSON lines, on standard error."),
    ] = False,
) -> None:
    """Run any program as a run: logs, output, signals and exit code recorded."""
    from aboard.track.adopt import has_logs_of_others
    from aboard.track.arguments import hparams_of, plain_value
    from aboard.track.job import CannotStart, check_program, execute

    if ranks not in ("first", "all"):
        raise WrongUsage(f"--ranks is 'first' or 'all', not {ranks!r}.")
    hparams: dict[str, Any] = hparams_of(command) if hparams_from_args else {}
    hparams |= {key: plain_value(value) for key, value in _pairs(hparam or (), "--hparam")}
    tags = _tags(tag or ())
    try:
        check_program(command)
    except CannotStart as error:
        raise _failure(error) from None
    opened = _begin(
        command,
        (root, experiment, name),
        hparams=hparams,
        tags=tags,
        workspace=workspace,
        job=job,
        resume=resume,
        ranks=ranks,
    )
    tell = _Teller(opened, silent=quiet or not opened.active, json=json)
    tell.beginning()
    try:
        outcome = execute(opened, command, ranks=ranks)
    except CannotStart as error:
        opened.finish("failed", error.exit_code, str(error))
        raise _failure(error) from None
    logged = not opened.active or has_logs_of_others(Path(opened.logdir))
    opened.finish(*outcome.ending)
    tell.end(outcome, logged=logged)
    raise typer.Exit(outcome.exit_code)


def _failure(error: CannotStart) -> Failure:
    failure = Failure(str(error))
    failure.exit_code = error.exit_code
    return failure


def _begin(
    command: list[str],
    told: tuple[str | None, str | None, str | None],
    *,
    resume: bool | None,
    ranks: str,
    **options: Any,
) -> Run:
    from aboard.runs.layout import BadName, RunExists
    from aboard.runs.manifest import BadManifest
    from aboard.track.about import command_line
    from aboard.track.launch import NoLaunch
    from aboard.track.place import find_place
    from aboard.track.rank import find_rank
    from aboard.track.start import begin

    root, experiment, name = told
    try:
        place = find_place(root, experiment, name)._replace(fallback=False)  # we say where
        asked = experiment or place.experiment, name or place.name
        if place.joined and asked != (place.experiment, place.name):
            # Not the run that we are in, but one beside it.
            place = find_place(place.root, asked[0], name, environment={})
        if resume and place.name is None:
            raise WrongUsage("--resume: say which run, with --name.")
        # The ranks of a launcher that we start share our directory and have their own below it.
        several = ranks == "all" and find_rank().size > 1
        return begin(
            place,
            command_line(command),
            resume=resume,
            ranks="all" if several else "first",
            **options,
        )
    except RunExists as error:
        raise Failure(f"{error} With --resume the run goes on.") from None
    except (BadName, NoLaunch) as error:
        raise WrongUsage(str(error)) from None
    except (BadManifest, TimeoutError) as error:
        raise Failure(str(error)) from None


def _pairs(texts: list[str] | tuple[str, ...], option: str) -> list[tuple[str, str]]:
    pairs = []
    for text in texts:
        key, equals, value = text.partition("=")
        if not equals or not key:
            raise WrongUsage(f"{option} {text!r}: write KEY=VALUE, such as {option} lr=0.1.")
        pairs.append((key, value))
    return pairs


def _tags(texts: list[str] | tuple[str, ...]) -> Tags:
    """Read tags, each a name alone or a name with a value."""
    tags: dict[str, object] = {}
    for text in texts:
        name, equals, value = text.partition("=")
        if not name:
            raise WrongUsage(f"--tag {text!r}: write NAME or NAME=VALUE.")
        tags[name] = value if equals else True
    return tags


class _Teller:
    """Says where a run is, and how it ended."""

    def __init__(self, run: Run, *, silent: bool, json: bool) -> None:
        self._run = run
        self._silent = silent
        self._json = json
        self._began = time.monotonic()

    def beginning(self) -> None:
        run = self._run
        view = f"aboard view {shlex.quote(run.uri)}"
        self._tell(
            f"{run.experiment}/{run.name} logs to {run.uri}; look: {view}",
            {"run": run.name, "experiment": run.experiment, "uri": run.uri, "logdir": run.logdir},
        )

    def end(self, outcome: Outcome, *, logged: bool) -> None:
        from aboard.cli.wording import duration

        state, _, reason = outcome.ending
        why = f" ({reason})" if reason else ""
        seconds = time.monotonic() - self._began
        self._tell(
            f"{self._run.experiment}/{self._run.name} {state}{why} after {duration(seconds)}"
            f"{'' if logged else '; it wrote no event files that could be found'}",
            {
                "run": self._run.name,
                "experiment": self._run.experiment,
                "state": state,
                "exit_code": outcome.exit_code,
                "reason": reason,
                "seconds": round(seconds, 3),
                "logged": logged,
            },
        )

    def _tell(self, text: str, document: dict[str, Any]) -> None:
        if self._silent:
            return
        if self._json:
            import orjson

            typer.echo(orjson.dumps(document), err=True)
        else:
            typer.echo(f"aboard: {text}", err=True)
