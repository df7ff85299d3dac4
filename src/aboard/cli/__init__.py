"""The `aboard` command.

One file per group of commands, put together in `app`. What goes wrong ends here: one line on
standard error, and 2 for wrong usage, 1 for a failure, 130 for Ctrl-C.
"""

import os
import sys
from io import TextIOWrapper
from pathlib import Path
from typing import NoReturn


def main() -> NoReturn:
    """Run the command line and exit with its code."""
    try:
        _prepare_streams()
        from aboard.cli.app import run

        code = run()
    except KeyboardInterrupt:
        code = 130
    _leave(code)


def _leave(code: int) -> NoReturn:
    """Exit without taking every module apart first, which takes longer than many a command."""
    import atexit

    atexit._run_exitfuncs()
    try:
        sys.stdout.flush()
        sys.stderr.flush()
    except OSError:
        pass  # whoever read it has gone
    os._exit(code)


def _prepare_streams() -> None:
    """Print any name somehow, and nothing where a stream was closed (`>&-`)."""
    for name in ("stdout", "stderr"):
        stream = getattr(sys, name)
        if stream is None:
            setattr(sys, name, Path(os.devnull).open("w"))  # noqa: SIM115 - open to the end
        elif isinstance(stream, TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")
