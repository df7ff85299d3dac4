"""The command line put together: its commands, and the options that come before them.

Only the command that is asked for is imported, so that none waits for the others.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable, Sequence
from importlib import import_module
from typing import Annotated

import typer

from aboard.cli.errors import ReportingGroup, code_for, line_for, say

_HELP = """
Every training run, on one board.

Reads TensorBoard logs wherever they live: directories, and `s3://`, `gs://`, `az://` and `oss://`
buckets. What was read once is remembered in a local index, so the second time is instant.
"""
_EPILOG = """
Examples:

- `aboard demo` - train something small, and look at its logs
- `aboard view runs/` - every run below a directory, in the browser
- `aboard run -- python train.py` - record any training, whatever it logs with
- `aboard start cifar10 tag:baseline` - a board that stays, on your own hub or your team's
- `aboard ls runs/` - what is there?
- `aboard export runs/ --tag 'loss*' -o loss.csv` - every point of every loss
"""

app = typer.Typer(
    name="aboard",
    cls=ReportingGroup,
    help=_HELP,
    epilog=_EPILOG,
    rich_markup_mode="markdown",
    pretty_exceptions_enable=False,
    invoke_without_command=True,
    context_settings={"help_option_names": ["--help", "-h"]},
)


def _show_version(wanted: bool) -> None:
    if not wanted:
        return
    from importlib.metadata import PackageNotFoundError, version

    from aboard import __version__
    from aboard.index.schema import FILE_NAME
    from aboard.storage.place import cache_place

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
        bool,
        typer.Option("--debug", envvar="ABOARD_DEBUG", help="Show the traceback of an error."),
    ] = False,
) -> None:
    """Take the options that come before a command."""
    if context.invoked_subcommand is None:
        typer.echo(context.get_help(), nl=False)


COMMANDS = {
    **{name: name for name in ("view", "run", "runs", "ls", "index", "export", "doctor", "demo")},
    **{name: name for name in ("ship", "start")},
    **dict.fromkeys(("list", "describe", "open", "logs", "stop", "kill", "restart"), "boards"),
    **dict.fromkeys(("delete", "share", "boards"), "boards"),
    **{name: name for name in ("hub", "login", "user", "token", "serve")},
}
"""The module of each command, in the order in which help lists them.

A module has a function of the command's name or, for one with commands below it, a `GROUP`, and
its `EPILOG`. One with several commands has `SEVERAL`, with the function and the epilog of each.
"""
_HIDDEN = {"kill"}
_added: set[str] = set()


def add_commands(names: Iterable[str] = COMMANDS) -> typer.Typer:
    """Import commands and put them on the command line; those it has already are left alone."""
    for name in names:
        if name in _added:
            continue
        _added.add(name)
        module = import_module(f"aboard.cli.{COMMANDS[name]}")
        several = getattr(module, "SEVERAL", {})
        if name in several:
            function, epilog = several[name]
            app.command(name, epilog=epilog, hidden=name in _HIDDEN)(function)
        elif (group := getattr(module, "GROUP", None)) is not None:
            app.add_typer(group, name=name, epilog=module.EPILOG)
        else:
            settings = getattr(module, "CONTEXT_SETTINGS", None)
            command = app.command(name, epilog=module.EPILOG, context_settings=settings)
            command(getattr(module, name))
    return app


def _wanted(arguments: Sequence[str]) -> Iterable[str]:
    """Return the command that is asked for, or all of them if that is not clear."""
    named = next((one for one in arguments if not one.startswith("-")), "")
    return [named] if named in COMMANDS and "_ABOARD_COMPLETE" not in os.environ else COMMANDS


def run(arguments: list[str] | None = None) -> int:
    """Run the command line; return its exit code."""
    arguments = sys.argv[1:] if arguments is None else arguments
    add_commands(_wanted(arguments))
    try:
        result = app(arguments, prog_name="aboard", standalone_mode=False)
    except typer.TyperException as error:
        say(line_for(error))
        return code_for(error)
    except typer.Abort:
        return 130
    return result if isinstance(result, int) else 0
