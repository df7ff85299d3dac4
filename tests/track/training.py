"""Small trainings in processes of their own, and what is left of them."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import aboard
from aboard.track.env import FOREIGN_LOGDIRS

_AMBIENT = ("ABOARD_R", "ABOARD_L", "ABOARD_A", "SLURM_", "TORCHELASTIC_", *FOREIGN_LOGDIRS)


class Ended(NamedTuple):
    code: int
    out: str
    err: str


def environment(**changed: str) -> dict[str, str]:
    kept = {name: one for name, one in os.environ.items() if not name.startswith(_AMBIENT)}
    return kept | changed


def start(script: str, cwd: Path, *arguments: str, **changed: str) -> subprocess.Popen[str]:
    """Start a script; `aboard`, `atexit`, `os`, `signal`, `sys` and `time` are imported for it."""
    header = "import atexit, os, signal, sys, time\nimport aboard\n"
    return subprocess.Popen(
        [sys.executable, "-W", "error", "-c", header + script, *arguments],
        cwd=cwd,
        env=environment(**changed),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def train(script: str, cwd: Path, *arguments: str, **changed: str) -> Ended:
    """Run a script to its end."""
    process = start(script, cwd, *arguments, **changed)
    out, err = process.communicate(timeout=120)
    return Ended(process.returncode, out, err)


def wait_for(condition: Callable[[], Any], seconds: float = 60) -> Any:
    deadline = time.monotonic() + seconds
    while not (found := condition()):
        assert time.monotonic() < deadline, "it did not happen in time"
        time.sleep(0.02)
    return found


def said(process: subprocess.Popen[str], line: str) -> None:
    """Wait until a process prints a line."""
    assert process.stdout
    for found in process.stdout:
        if found.strip() == line:
            return
    assert process.stderr
    raise AssertionError(process.stderr.read())


def kill(process: subprocess.Popen[str], number: signal.Signals) -> Ended:
    process.send_signal(number)
    out, err = process.communicate(timeout=60)
    return Ended(process.returncode, out, err)


def record(run: Path) -> dict[str, Any]:
    return json.loads((run / "run.json").read_bytes())


def points(root: Path | str, run: str, tag: str) -> list[tuple[int, float]]:
    """Return steps and values as a user of `aboard.open` sees them; nothing may be damaged."""
    with aboard.open(root) as logs:
        assert not logs.damage
        series = logs.series(run, tag)
        return [
            (int(step), round(float(value), 4))
            for step, value in zip(series.steps, series.values, strict=True)
        ]
