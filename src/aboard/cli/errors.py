"""The errors of commands: one line on standard error, a document with `--json`, an exit code.

Commands raise exceptions; this module formats them. A traceback is shown only with `--debug`.
"""

from __future__ import annotations

import os
import re
import sqlite3
import sys
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

import typer
from typer.core import TyperGroup

from aboard.storage.base import BadUri, StorageError
from aboard.system import explain

if TYPE_CHECKING:
    CommandError = typer.TyperException
else:
    # Before typer 0.28 this class has no public name, only its subclass.
    CommandError = typer.BadParameter.__mro__[2]

FAILURE, USAGE, INTERRUPTED = 1, 2, 130
_USAGE_CODES = {"invalid", "exists", "bad_value", "bad_selector", "bad_template", "bad_question"}


class Failure(Exception):  # noqa: N818 - for the user, not an error of the program
    """A command failed; the text says what, where, and what to do."""

    exit_code = FAILURE


class WrongUsage(Failure):
    """Options or arguments are invalid."""

    exit_code = USAGE


def notify(text: str) -> None:
    typer.echo(f"aboard: {' '.join(text.split())}", err=True)


def line_for(error: Exception) -> str:
    if isinstance(error, CommandError):
        return _usage_line(error)
    if isinstance(error, ModuleNotFoundError) and error.name:
        return explain(error.name)
    if isinstance(error, (Failure, StorageError)) or _is_error_of_ours(error):
        return str(error)
    if isinstance(error, sqlite3.Error):
        hint = "Try again, or set ABOARD_CACHE to another directory."
        return f"the index cannot be used: {error}. {hint}"
    if isinstance(error, OSError) and error.strerror:
        where = f"{error.filename}: " if error.filename else ""
        return f"{where}{error.strerror[:1].lower()}{error.strerror[1:]}."
    return f"internal error: {type(error).__name__}: {error}. 'aboard --debug …' shows where."


def report(error: Exception, *, json: bool) -> int:
    """Write an error to standard error, with `json` also as a document; return the exit code."""
    line = line_for(error)
    notify(line)
    picture = str(getattr(error, "picture", ""))  # of an invalid question, also from a hub
    for one in picture.splitlines():
        typer.echo(f"  {one}", err=True)
    code = code_for(error)
    if json:
        from aboard.cli.console import print_json

        kind = getattr(error, "code", None) or ("usage" if code == USAGE else "failure")
        document = {"code": kind, "message": " ".join(line.split())}
        print_json({"errors": [document | ({"picture": picture} if picture else {})]})
    return code


def apply_to_each(
    names: Iterable[str],
    work: Callable[[str], tuple[str, dict[str, Any]]],
    *,
    noun: str,
    done: str,
    json: bool,
) -> None:
    """Apply `work` to each name; report failures and continue with the others.

    `work` returns a line to print and a document; `done` is the key of the documents in JSON.
    """
    from aboard.cli.console import print_json

    finished: list[dict[str, Any]] = []
    errors: list[dict[str, str]] = []
    for name in names:
        try:
            line, document = work(name)
        except Exception as error:
            if is_debugging() or not _is_error_of_ours(error):
                raise
            code = getattr(error, "code", "failure")
            errors.append({noun: name, "code": code, "message": line_for(error)})
            notify(line_for(error))
            continue
        finished.append(document)
        if not json:
            typer.echo(line)
    if json:
        print_json({done: finished, "errors": errors})
    if errors:
        raise typer.Exit(FAILURE)


def is_debugging() -> bool:
    """Return whether the command line has `--debug`."""
    return ReportingGroup.debug


def _is_error_of_ours(error: Exception) -> bool:
    """Return whether the text of an error is for users, without importing more modules."""
    if isinstance(error, ImportError) and error.path is None:  # Python's own have a path
        return True
    for name, kind in (
        ("aboard.web", "ListenError"),
        ("aboard.web", "ServeError"),
        ("aboard.web", "TokenError"),
        ("aboard.sdk", "HubError"),
        ("aboard.runs", "RunsError"),
        ("aboard.boards.errors", "BoardsError"),
        ("aboard.jobs", "JobError"),
        ("aboard.executors.base", "ExecutorError"),
        ("aboard.executors.settings", "ConfigError"),
    ):
        module = sys.modules.get(name)
        if module is not None and isinstance(error, getattr(module, kind)):
            return True
    return False


def code_for(error: Exception) -> int:
    if isinstance(error, (Failure, CommandError)):
        return error.exit_code
    is_usage = isinstance(error, BadUri) or getattr(error, "code", None) in _USAGE_CODES
    return USAGE if is_usage else FAILURE


_PLAIN_WORDS = {  # for the parser's messages about numbers
    re.compile(r"is not a valid int(eger)?( range)?$"): "must be a whole number",
    re.compile(r"is not a valid float( range)?$"): "must be a number",
    re.compile(r"is not in the range x>=(\S+)$"): r"must be at least \1",
}


def _usage_line(error: CommandError) -> str:
    message = error.format_message().replace("Value error, ", "").rstrip(".")
    for pattern, words in _PLAIN_WORDS.items():
        message = pattern.sub(words, message)
    context = getattr(error, "ctx", None)
    command = context.command_path if context else "aboard"
    end = "" if message.endswith("?") else "."
    return f"{message[:1].lower()}{message[1:]}{end} See '{command} --help'."


class ReportingGroup(TyperGroup):
    """The commands. Errors become one line, and a closed pipe is not an error.

    `obj` of the context is whether the command line has `--json`.
    """

    debug = False

    def invoke(self, ctx: Any) -> Any:
        ReportingGroup.debug = bool(ctx.params.get("debug"))
        try:
            result = super().invoke(ctx)
            sys.stdout.flush()
        except BrokenPipeError:
            # The reader of the output has exited. Python would flush again at exit.
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            raise typer.Exit from None
        except (typer.Exit, typer.Abort, CommandError):
            raise
        except Exception as error:
            if self.debug:
                raise
            raise typer.Exit(report(error, json=bool(ctx.obj))) from None
        return result
