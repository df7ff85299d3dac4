"""The `aboard` command.

One module per noun, put together in `app`. An error is one line on standard error; the exit code is
2 for wrong usage, 1 for a failure, 130 for Ctrl-C.
"""

import gc
import os
import sys
from io import TextIOWrapper
from pathlib import Path
from typing import NoReturn

_COMPLETION = "_ABOARD_COMPLETE"  # set by the scripts of shells
_NEW_OBJECTS = 200_000  # until the next garbage collection, so that short commands need none


def main() -> NoReturn:
    """Run the command line and exit with its code."""
    gc.set_threshold(_NEW_OBJECTS, *gc.get_threshold()[1:])
    try:
        _prepare_streams()
        code = _run()
    except KeyboardInterrupt:
        code = 130
    _leave(code)


def _run() -> int:
    if os.environ.get(_COMPLETION, "").startswith("complete_"):
        from aboard.cli.completion import answer

        return answer(os.environ[_COMPLETION].removeprefix("complete_"))
    from aboard.system import requires

    try:
        with requires("typer"):
            from aboard.cli.app import run
    except ImportError as error:
        sys.stderr.write(f"aboard: {error}\n")
        return 1
    return run()


def _leave(code: int) -> NoReturn:
    """Exit without the interpreter's teardown, which takes longer than many commands."""
    import atexit

    # Private: checked with Python 3.11. tests/cli/test_app.py registers such a function.
    atexit._run_exitfuncs()
    try:
        sys.stdout.flush()
        sys.stderr.flush()
    except OSError:
        pass  # the reader of the output has exited
    os._exit(code)


def _prepare_streams() -> None:
    """Escape what a stream cannot encode; discard output to a closed stream (`>&-`)."""
    for name in ("stdout", "stderr"):
        stream = getattr(sys, name)
        if stream is None:
            setattr(sys, name, Path(os.devnull).open("w"))  # noqa: SIM115 - open to the end
        elif isinstance(stream, TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")
