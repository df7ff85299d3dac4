"""The command line put together: its commands, and the options that come before them.

Only the module of the command that runs is imported, so that none waits for the others.
"""

from __future__ import annotations

import inspect
import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from importlib import import_module
from typing import Annotated, Any, Literal, NamedTuple, get_type_hints

import typer
from typer import _completion_shared
from typer.core import TyperCommand, TyperGroup

from aboard.cli.completion import BASH_SCRIPT, Command, Completer, Parameter
from aboard.cli.console import CommandError, ReportingGroup, examples, report

_HELP = """
Every training run, on one board.

Reads TensorBoard logs wherever they live: directories, and `s3://`, `gs://`, `az://` and `oss://`
buckets. A local index remembers what was read, so the second time is instant.
"""
_EPILOG = examples(
    "`aboard demo` - train something small, and look at its logs",
    "`aboard view runs/` - every run below a directory, in the browser",
    "`aboard run -- python train.py` - record any training run, however it logs",
    "`aboard submit --on slurm --sweep lr=0.1,0.01 -- python train.py --lr {lr}` - on an engine",
    "`aboard start cifar10 tag:baseline` - a board that stays, on your own hub or your team's",
    "`aboard ls runs/` - what is there?",
    "`aboard export runs/ --tag 'loss*' -o loss.csv` - every point of every loss",
)


def _show_version(requested: bool) -> None:
    if not requested:
        return
    from importlib.metadata import PackageNotFoundError, version

    from aboard import __version__
    from aboard.index.schema import FILE_NAME
    from aboard.system import cache_place

    try:
        tensorboard = version("tensorboard")
    except PackageNotFoundError:
        tensorboard = "not installed"
    typer.echo(f"aboard {__version__}")
    typer.echo(f"scanning core: {_core()}")
    typer.echo(f"tensorboard: {tensorboard}")
    typer.echo(f"index: {cache_place().directory / FILE_NAME}")
    raise typer.Exit


def _core() -> str:
    from aboard.events.scanner import core_name

    if core_name() == "c":
        return "C"
    forced = os.environ.get("ABOARD_PURE_PYTHON")
    reason = "ABOARD_PURE_PYTHON is set" if forced else "no C compiler was found at install time"
    return f"Python fallback ({reason}; slower)"


class _Entry(NamedTuple):
    module: str
    summary: str
    panel: str


_STOP = "Stop boards; if one cannot be stopped, the others still are."
_PANELS = {
    "Logs and runs": {
        "view": ("view", "Show runs in TensorBoard, live."),
        "run": ("run", "Record a program as a run: its logs, its output and its exit code."),
        "runs": ("runs", "List, show, delete, tag and annotate runs."),
        "ls": (
            "index",
            "List directories with event files below a source; with --tags or --tag, their tags.",
        ),
        "index": ("index", "Read new data into the index, and show a summary."),
        "export": ("export", "Write the points of scalars to a file, or to standard output."),
        "compare": (
            "compare",
            "Compare two runs or two groups of runs: hyperparameters and metrics that differ.",
        ),
        "doctor": ("doctor", "Find out why a board is or would be empty or odd."),
        "demo": ("demo", "Train a small network at four learning rates, and watch it live."),
        "ship": ("ship", "Send logs that training jobs left on this machine to their bucket."),
    },
    "Jobs": {
        "submit": (
            "jobs",
            "Submit a command to an engine, once or for every combination of values.",
        ),
        "jobs": ("jobs", "List and manage jobs; without a command, list them."),
    },
    "Boards on a hub": {
        "start": ("boards", "Start a board of a selection of runs, and open it."),
        "list": ("boards", "List boards, the newest first."),
        "describe": ("boards", "Show everything about a board, including its history."),
        "open": ("boards", "Open the console, or a board, in the browser."),
        "logs": ("boards", "Print the log of a board."),
        "stop": ("boards", _STOP),
        "kill": ("boards", _STOP),
        "restart": ("boards", "Start boards again, at the same addresses."),
        "delete": ("boards", "Delete boards with their history; the runs stay."),
        "share": ("boards", "Create a link that shows one board without a login."),
        "boards": ("boards", "Change what a board shows, its name and its limits."),
    },
    "Hubs and engines": {
        "engines": (
            "engines",
            "List the engines on which boards can run: whether they answer, and what is wrong.",
        ),
        "image": ("engines", "Build the image of boards in containers."),
        "hub": ("hub", "Show the hub in use, or stop your own."),
        "login": ("hub", "Use a team's hub from now on."),
        "user": ("hub", "List and manage the users of a team's hub."),
        "token": ("hub", "List and manage the tokens with which programs use a hub."),
        "serve": ("hub", "Serve boards of a selection of runs, behind one authenticated address."),
    },
}
COMMANDS = {
    name: _Entry(*about, panel) for panel, held in _PANELS.items() for name, about in held.items()
}
"""Every command, in the order of the help: its module, and its line there.

A module with one command has a function of its name, or a `GROUP` of commands, and an `EPILOG`.
One with several has `COMMANDS`, with the function or group and the epilog of each.
"""
_HIDDEN = {"kill"}
_MARKUP: Literal["markdown"] = "markdown"  # of help texts
_HELP_OPTIONS = ["--help", "-h"]


@cache
def _command(name: str) -> Any:
    """Import the module of a command, and create the command."""
    module = import_module(f"aboard.cli.{COMMANDS[name].module}")
    own = getattr(module, "GROUP", None) or getattr(module, name, None)
    several = getattr(module, "COMMANDS", {name: (own, getattr(module, "EPILOG", None))})
    command, epilog = several[name]
    alone = typer.Typer(rich_markup_mode=_MARKUP)
    if isinstance(command, typer.Typer):
        alone.add_typer(command, name=name, epilog=epilog)
    else:
        settings = getattr(module, "CONTEXT_SETTINGS", None)
        hidden = name in _HIDDEN
        alone.command(name, epilog=epilog, hidden=hidden, context_settings=settings)(command)
    return typer.main.get_group(alone).commands[name]


class _Commands(Mapping[str, Any]):
    """All commands by name; each is created when it is looked up."""

    def __getitem__(self, name: str) -> Any:
        if name not in COMMANDS:
            raise KeyError(name)
        return _command(name)

    def __contains__(self, name: object) -> bool:
        return name in COMMANDS

    def __iter__(self) -> Iterator[str]:
        return iter(COMMANDS)

    def __len__(self) -> int:
        return len(COMMANDS)


class _AllCommands(ReportingGroup):
    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self.commands: Any = _Commands()

    def list_commands(self, ctx: Any) -> list[str]:  # noqa: ARG002 - the signature of the base
        return list(self.commands)

    def get_command(self, ctx: Any, cmd_name: str) -> Any:  # noqa: ARG002 - likewise
        """Return a stand-in for the help: a command would import its module."""
        if cmd_name not in COMMANDS:
            return None
        _, summary, panel = COMMANDS[cmd_name]
        hidden = cmd_name in _HIDDEN
        return TyperCommand(cmd_name, help=summary, hidden=hidden, rich_help_panel=panel)

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        name, _, rest = super().resolve_command(ctx, args)
        return name, self.commands[str(name)], rest


app = typer.Typer(
    name="aboard",
    cls=_AllCommands,
    help=_HELP,
    epilog=_EPILOG,
    rich_markup_mode=_MARKUP,
    pretty_exceptions_enable=False,
    invoke_without_command=True,
    context_settings={"help_option_names": _HELP_OPTIONS},
)
# Private, and the same in typer 0.19 and 0.28, which have no public way to change the script.
# tests/cli/test_completion.py completes with it in Bash.
_completion_shared._completion_scripts["bash"] = BASH_SCRIPT


@app.callback()
def before(
    context: typer.Context,
    version: Annotated[  # noqa: ARG001 - its callback answers
        bool,
        typer.Option(
            "--version",
            callback=_show_version,
            is_eager=True,
            help="Show the versions in use and where the index is, and exit.",
        ),
    ] = False,
    debug: Annotated[  # noqa: ARG001 - the group looks at it when a command fails
        bool, typer.Option("--debug", envvar="ABOARD_DEBUG", help="Show the traceback of an error.")
    ] = False,
) -> None:
    """Handle the options before a command."""
    if context.invoked_subcommand is None:
        typer.echo(context.get_help(), nl=False)


def _prints_json(arguments: Sequence[str]) -> bool:
    """Return whether standard output is one JSON document.

    That of `run` belongs to the program, and that of `export` has points.
    """
    own = list(arguments)[: arguments.index("--") if "--" in arguments else None]
    command = next((one for one in own if not one.startswith("-")), "")
    return "--json" in own and command not in {"run", "export"}


def run(arguments: list[str] | None = None) -> int:
    """Run the command line; return its exit code."""
    arguments = sys.argv[1:] if arguments is None else arguments
    json = _prints_json(arguments)
    try:
        result = app(arguments, prog_name="aboard", standalone_mode=False, obj=json)
    except (CommandError, ImportError) as error:
        return report(error, json=json)
    except typer.Abort:
        return 130
    return result if isinstance(result, int) else 0


class HelpByDefault(TyperGroup):
    """The commands of a group; without one, the help."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        if not args:
            typer.echo(ctx.get_help(), nl=False)
            ctx.exit()
        return super().parse_args(ctx, args)


class ListByDefault(TyperGroup):
    """The commands of a group; without one, its `list`, or another that is the `default`.

    If the default takes arguments, any word that is not a command is one of them.
    """

    default = "list"

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Put the command first: the one behind the options, or the default."""
        if not args or args[0] not in ctx.help_option_names:
            at = self._first_word(args)
            if at < len(args) and args[at] in self.commands:
                args = [args[at], *args[:at], *args[at + 1 :]]
            elif at == len(args) or self._arguments():
                args = [self.default, *args]
        return super().parse_args(ctx, args)

    def _arguments(self) -> list[Any]:
        """Return the arguments of the default command."""
        params = self.commands[self.default].params
        return [one for one in params if one.param_type_name == "argument"]

    def _first_word(self, args: list[str]) -> int:
        """Return the position of the first argument that is neither an option nor its value."""
        params = [param for command in self.commands.values() for param in command.params]
        with_value = {name for one in params if not getattr(one, "is_flag", 0) for name in one.opts}
        at = 0
        while at < len(args) and args[at].startswith("-"):
            at += 2 if args[at] in with_value else 1
        return at


class StatusByDefault(ListByDefault):
    default = "status"


def describe(name: str) -> Command:
    """Return what completion needs of a command; with an empty name, of the command line."""
    if name:
        return _described(name, _command(name))
    return _described("", typer.main.get_command(app))


def _described(name: str, command: Any) -> Command:
    """Describe a command; those of the command line itself are described when they are used."""
    settings = {"help_option_names": _HELP_OPTIONS} | command.context_settings
    context = typer.Context(command, info_name=name, **settings)
    function = inspect.unwrap(command.callback) if command.callback else None
    completers = _completers(function) if function else {}
    below = command.commands if isinstance(command, TyperGroup) else {}
    return Command(
        name,
        command.help or command.short_help or "",
        command.hidden,
        context.allow_interspersed_args,
        [
            _parameter(one, completers.get(str(one.name)))
            for one in command.get_params(context)
            if not getattr(one, "hidden", False)
        ],
        {
            one: _described(one, below[one] if name else command.get_command(context, one))
            for one in below
        },
        getattr(command, "default", ""),
    )


def _completers(function: Any) -> dict[str, Completer]:
    hints = get_type_hints(function, include_extras=True)
    return {
        name: one
        for name, hint in hints.items()
        for one in getattr(hint, "__metadata__", ())
        if isinstance(one, Completer)
    }


def _parameter(of: Any, completer: Completer | None) -> Parameter:
    is_option = of.param_type_name == "option"
    return Parameter(
        of.name,
        [*of.opts, *of.secondary_opts] if is_option else [],
        is_option and not of.is_flag and not of.count,
        of.multiple if is_option else of.nargs == -1,
        list(completer.choices if completer else map(str, getattr(of.type, "choices", ()))),
        completer.offers.__name__ if completer else "",
        getattr(of, "help", None) or "",
    )
