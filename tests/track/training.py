"""Small trainings in processes of their own, and what is left of them."""

import json
import os
import signal
from pathlib import Path
from typing import Any, NamedTuple

import aboard
from aboard.track.environment import FOREIGN_LOGDIRS
from tests.engines.forkserver import Forked, fork

_AMBIENT = ("ABOARD_R", "ABOARD_L", "ABOARD_A", "SLURM_", "TORCHELASTIC_", *FOREIGN_LOGDIRS)


class Ended(NamedTuple):
    code: int
    out: str
    err: str


def environment(**changed: str) -> dict[str, str]:
    kept = {name: one for name, one in os.environ.items() if not name.startswith(_AMBIENT)}
    return kept | changed


def start(script: str, cwd: Path, *arguments: str, **changed: str) -> Forked:
    """Start a script; `aboard`, `atexit`, `os`, `signal`, `sys` and `time` are imported for it."""
    header = "import atexit, os, signal, sys, time\nimport aboard\n"
    return fork(header + script, *arguments, cwd=cwd, env=environment(**changed))


def train(script: str, cwd: Path, *arguments: str, **changed: str) -> Ended:
    """Run a script to its end."""
    return ended(start(script, cwd, *arguments, **changed))


def run_aboard(cwd: Path, *arguments: str, **changed: str) -> Ended:
    """Run the `aboard` command to its end."""
    script = "import runpy; runpy.run_module('aboard', run_name='__main__')"
    process = fork(
        script, *arguments, cwd=cwd, env=environment(**changed), preload=("aboard.cli.run",)
    )
    return ended(process)


def ended(process: Forked) -> Ended:
    out, err = process.communicate(timeout=120)
    return Ended(process.wait(), out, err)


def said(process: Forked, line: str) -> None:
    """Wait until a process prints a line."""
    for found in process.stdout:
        if found.strip() == line:
            return
    raise AssertionError(process.stderr.read())


def kill(process: Forked, number: signal.Signals) -> Ended:
    process.send_signal(number)
    return ended(process)


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
