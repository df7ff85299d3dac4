"""Programs below `aboard run`, in processes of their own."""

import os
import pty
import select
import subprocess
import sys
from pathlib import Path

from tests.track.training import environment, record

RUN = [sys.executable, "-m", "aboard", "run", "--root", ".", "--name", "a", "--quiet", "--"]
PYTHON = [sys.executable, "-u", "-c"]


def started(cwd: Path, *command: str, **options: object) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        [*RUN, *command],
        cwd=cwd,
        env=environment(),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        **options,  # type: ignore[call-overload]
    )


def ended(process: subprocess.Popen[bytes], sent: bytes | None = None) -> tuple[int, bytes, bytes]:
    out, err = process.communicate(sent, timeout=180)
    return process.returncode, out, err


def ending(cwd: Path) -> tuple[str, int | None, str]:
    found = record(cwd / "default/a")
    return found["state"], found["exit_code"], found["reason"]


def ready(cwd: Path, script: str, **options: object) -> subprocess.Popen[bytes]:
    process = started(cwd, *PYTHON, script, **options)
    assert process.stdout
    assert process.stdout.readline() == b"ready\n"
    return process


def in_terminal(cwd: Path, script: str) -> tuple[int, int]:
    """Run a script below `aboard run` in the foreground of a terminal; return both."""
    child, terminal = pty.fork()
    if child == 0:
        os.chdir(cwd)
        os.execve(sys.executable, [*RUN, *PYTHON, script], environment())
    return child, terminal


def shown(terminal: int, line: bytes) -> None:
    """Wait until a terminal shows a line."""
    found = b""
    while line not in found:
        assert select.select([terminal], [], [], 60)[0], found
        found += os.read(terminal, 1000)
