"""The command line put together: every command, and the options that come before them."""

from __future__ import annotations

from typing import Annotated

import typer

from aboard.cli import demo, doctor, export, index, ls, view
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
    from aboard.events.scanner import core_name
    from aboard.index.place import index_place
    from aboard.index.schema import FILE_NAME

    try:
        tensorboard = version("tensorboard")
    except PackageNotFoundError:
        tensorboard = "not installed"
    typer.echo(f"aboard {__version__}")
    typer.echo(f"scanning core: {_CORES[core_name()]}")
    typer.echo(f"tensorboard: {tensorboard}")
    typer.echo(f"index: {index_place().directory / FILE_NAME}")
    raise typer.Exit


_CORES = {
    "c": "C",
    "python": "Python fallback (no C compiler was found at install time; slower)",
}


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


app.command("view", epilog=view.EPILOG)(view.view)
app.command("ls", epilog=ls.EPILOG)(ls.ls)
app.command("index", epilog=index.EPILOG)(index.index)
app.command("export", epilog=export.EPILOG)(export.export)
app.command("doctor", epilog=doctor.EPILOG)(doctor.doctor)
app.command("demo", epilog=demo.EPILOG)(demo.demo)


def run(arguments: list[str] | None = None) -> int:
    """Run the command line; return its exit code."""
    try:
        result = app(arguments, prog_name="aboard", standalone_mode=False)
    except typer.TyperException as error:
        say(line_for(error))
        return code_for(error)
    except typer.Abort:
        return 130
    return result if isinstance(result, int) else 0
