"""What went wrong, in one line on standard error, and the exit code that goes with it.

Commands raise; nothing but this module decides how an error looks. A traceback is shown with
`--debug` only, because what users can mend is in the line.
"""

from __future__ import annotations

import os
import sqlite3
import sys
from typing import Any

import typer
from typer.core import TyperGroup

from aboard.storage.base import BadUri, StorageError

FAILURE, USAGE, INTERRUPTED = 1, 2, 130
_USAGE_CODES = {"invalid", "bad_value", "bad_selector", "bad_template"}
"""What a hub calls a request that cannot be meant."""


class Failure(Exception):  # noqa: N818 - named by what it is to the user
    """Something a command could not do; the text says what, where, and what to do."""

    exit_code = FAILURE


class WrongUsage(Failure):
    """Options or arguments that cannot be meant."""

    exit_code = USAGE


def say(text: str) -> None:
    """Write one line to standard error, marked as ours."""
    typer.echo(f"aboard: {' '.join(text.split())}", err=True)


def line_for(error: Exception) -> str:
    """Say in one line what went wrong."""
    if isinstance(error, typer.TyperException):
        return _usage_line(error)
    if isinstance(error, (Failure, StorageError)) or _is_error_of_ours(error):
        return str(error)
    if isinstance(error, sqlite3.Error):
        hint = "Try again, or set ABOARD_CACHE to another directory."
        return f"the index cannot be used: {error}. {hint}"
    if isinstance(error, OSError) and error.strerror:
        where = f"{error.filename}: " if error.filename else ""
        return f"{where}{error.strerror[:1].lower()}{error.strerror[1:]}."
    return f"internal error: {type(error).__name__}: {error}. 'aboard --debug …' shows where."


def is_debugging() -> bool:
    """Say whether tracebacks are wanted."""
    context = typer._click.globals.get_current_context(silent=True)
    return bool(context is not None and context.find_root().params.get("debug"))


def _is_error_of_ours(error: Exception) -> bool:
    """Say whether an error says all that is needed, without importing what is not in use."""
    for name, kind in (("aboard.web.errors", "WebError"), ("aboard.sdk.errors", "HubError")):
        module = sys.modules.get(name)
        if module is not None and isinstance(error, getattr(module, kind)):
            return True
    return False


def code_for(error: Exception) -> int:
    """Return the exit code of an error."""
    if isinstance(error, (Failure, typer.TyperException)):
        return error.exit_code
    wrong = isinstance(error, BadUri) or getattr(error, "code", None) in _USAGE_CODES
    return USAGE if wrong else FAILURE


def _usage_line(error: typer.TyperException) -> str:
    message = error.format_message().replace("Value error, ", "").rstrip(".")
    context = getattr(error, "ctx", None)
    command = context.command_path if context else "aboard"
    end = "" if message.endswith("?") else "."
    return f"{message[:1].lower()}{message[1:]}{end} See '{command} --help'."


class ReportingGroup(TyperGroup):
    """The commands, with their errors in one line and a closed pipe taken as the end."""

    def invoke(self, ctx: Any) -> Any:
        """Run the command that was asked for."""
        try:
            result = super().invoke(ctx)
            sys.stdout.flush()
        except BrokenPipeError:
            # Whoever read our output has seen enough. Python would flush once more at exit.
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            raise typer.Exit from None
        except (typer.Exit, typer.Abort, typer.TyperException):
            raise
        except Exception as error:
            if ctx.params.get("debug"):
                raise
            say(line_for(error))
            raise typer.Exit(code_for(error)) from None
        return result
