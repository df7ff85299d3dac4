"""Processes that are killed during their work, at a moment that a seed determines."""

import os
import signal
import sqlite3
import sys
import traceback
from collections.abc import Callable
from pathlib import Path

import aboard.boards
from tests.engines.line_killer import tracer

OURS = (str(Path(aboard.boards.__file__).parent), str(Path(__file__).parent / "fake_executor.py"))


def is_killed(work: Callable[[], None], *, lines: int = 0, steps: int = 0) -> bool:
    """Do some work in a process that kills itself; say whether it came to that.

    Args:
        work: what to do.
        lines: dies after so many lines of the code that remembers and starts boards.
        steps: dies after so many instructions inside SQLite.
    """
    child = os.fork()
    if child == 0:
        try:
            if lines:
                sys.settrace(tracer([lines], lambda code: code.co_filename.startswith(OURS)))
            if steps:
                _after_steps(steps)
            work()
            os._exit(0)
        except BaseException:  # noqa: BLE001 - nothing of the parent may run in the child
            traceback.print_exc()
            os._exit(3)
    _, status = os.waitpid(child, 0)
    code = os.waitstatus_to_exitcode(status)
    assert code in (0, -signal.SIGKILL), "the process failed before it died; see its output"
    return code != 0


def _after_steps(steps: int) -> None:
    left, real = [steps], sqlite3.connect

    def die() -> None:
        left[0] -= 1
        if left[0] <= 0:
            os.kill(os.getpid(), signal.SIGKILL)

    def connect(*arguments, **options) -> sqlite3.Connection:
        connection = real(*arguments, **options)
        connection.set_progress_handler(die, 1)
        return connection

    sqlite3.connect = connect
