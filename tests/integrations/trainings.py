"""Real trainings as processes of their own, and what they left behind."""

import json
import os
import struct
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import aboard

ROOT = Path(__file__).parents[2]
SCRIPTS = Path(__file__).parent / "scripts"
UNDER_ABOARD = [sys.executable, "-m", "aboard", "run"]
_LAUNCHERS = ("SLURM_", "RANK", "WORLD_SIZE", "LOCAL_RANK", "MASTER_", "OMPI_", "PMI_", "TF_CONFIG")
_ABOARD = ("ABOARD_ROOT", "ABOARD_RUN", "ABOARD_LOGDIR", "ABOARD_ATTEMPT")


class Trainings:
    """Runs training scripts below one root, and reads what they logged."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.root = directory / "runs"
        self.variables = {
            name: value
            for name, value in os.environ.items()
            if not name.startswith(_LAUNCHERS) and name not in _ABOARD
        }
        self.variables |= {
            "ABOARD_ROOT": str(self.root),
            "HF_HUB_OFFLINE": "1",
            "KERAS_BACKEND": "torch",
            "OMP_NUM_THREADS": "1",
            "PYTHONPATH": str(ROOT / "src"),
            "TF_CPP_MIN_LOG_LEVEL": "3",
        }

    def run(
        self,
        script: str,
        *arguments: str,
        before: list[str] | None = None,
        python: str = sys.executable,
        under_aboard: bool = False,
        exit_code: int = 0,
        **variables: str,
    ) -> str:
        """Run a script to its end; return what it wrote to stderr."""
        interpreter = [python] if python else []
        before = UNDER_ABOARD if under_aboard else before
        command = [*(before or []), *interpreter, SCRIPTS / f"{script}.py", *arguments]
        done = subprocess.run(
            command,
            cwd=self.directory,
            env=self.variables | variables,
            capture_output=True,
            text=True,
            check=False,
            timeout=300,
        )
        assert done.returncode == exit_code, f"{done.stdout}\n{done.stderr}"
        return done.stderr

    def launch(self, request: pytest.FixtureRequest, launcher: str, *arguments: str) -> None:
        """Run a script in two processes."""
        if launcher == "torchrun":
            two = ["--standalone", "--nproc-per-node", "2"]
            launch = [sys.executable, "-m", "torch.distributed.run", *two]
            self.run(*arguments, python="", before=launch)
        else:
            self.run(*arguments, before=request.getfixturevalue("slurm"))

    def told(self, name: str = "told.json") -> Any:
        """Return the numbers that a script says it saw."""
        return json.loads((self.directory / name).read_text())

    def record(self, run: str = "default/run1") -> dict[str, Any]:
        return json.loads((self.root / run / "run.json").read_text())

    def tags(self, run: str = "default/run1") -> dict[str, set[str]]:
        """Return the tags of a run's directories; the run itself is the one without a name."""
        with aboard.open(self.root / run) as logs:
            found: dict[str, set[str]] = {}
            for tag in logs.select():
                found.setdefault("" if tag.run == "." else tag.run, set()).add(tag.name)
            return found

    def points(self, stage: str, tag: str, run: str = "default/run1") -> dict[int, float]:
        """Return the values of a series by their steps; none may be there twice."""
        with aboard.open(self.root / run) as logs:
            series = logs.series(stage or ".", tag)
        steps = series.steps.tolist()
        assert len(steps) == len(set(steps))
        return dict(zip(steps, series.values.tolist(), strict=True))

    def event_files(self) -> list[str]:
        """Return the directories below the root that hold event files, once for each file."""
        paths = sorted(self.root.rglob("*tfevents*"))
        return [str(path.parent.relative_to(self.root)) for path in paths]


def f32(number: float) -> float:
    """Return a number as an event file keeps it."""
    return float(struct.unpack("f", struct.pack("f", number))[0])
