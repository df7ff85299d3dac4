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
from tests.engines.forkserver import RUN_PATH, fork, program

ROOT = Path(__file__).parents[2]
SCRIPTS = Path(__file__).parent / "scripts"
UNDER_ABOARD = [sys.executable, "-m", "aboard", "run"]
_LAUNCHERS = ("SLURM_", "RANK", "WORLD_SIZE", "LOCAL_RANK", "MASTER_", "OMPI_", "PMI_", "TF_CONFIG")
_ABOARD = ("ABOARD_ROOT", "ABOARD_RUN", "ABOARD_LOGDIR", "ABOARD_ATTEMPT")
_TORCHRUN = "torch.distributed.launcher.api"
_FRAMEWORKS = {
    "ddp": (_TORCHRUN,),
    "estimator_dir": ("tensorflow",),
    "estimator_fit": ("tensorflow",),
    "keras_fit": ("keras",),
    "tensorflow_arrays": ("tensorflow",),
    "tensorpack_fit": ("tensorflow", "tensorpack"),
    "summary_writer": ("torch",),
    "trainer": (_TORCHRUN, "transformers.trainer", "transformers.models.bert"),
}


def _frameworks_of(script: str, arguments: tuple[str, ...]) -> tuple[str, ...]:
    if script == "lightning_fit":  # either package, and not the other
        return ("torch", "lightning.pytorch" if arguments[0] == "lightning" else arguments[0])
    if script == "torchrun":
        return _FRAMEWORKS[arguments[0]]
    return _FRAMEWORKS[script]


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
        adopted: bool = False,
        exit_code: int = 0,
        **variables: str,
    ) -> str:
        """Run a script to its end; return what it wrote to stderr.

        Its process is forked from one that has imported its framework, also when something else
        starts it, unless `aboard run` adopts the files that it finds open below itself.
        """
        path = str(SCRIPTS / f"{script}.py")
        env = self.variables | variables
        preload = _frameworks_of(script, arguments)
        if under_aboard or before:
            start = [python] if adopted else program(env=env, preload=preload, python=python)
            command = [*(before or UNDER_ABOARD), *start, path, *arguments]
            done = subprocess.run(
                command,
                cwd=self.directory,
                env=env,
                capture_output=True,
                text=True,
                check=False,
                timeout=300,
            )
            code, out, err = done.returncode, done.stdout, done.stderr
        else:
            process = fork(
                RUN_PATH,
                path,
                *arguments,
                cwd=self.directory,
                env=env,
                preload=preload,
                python=python,
            )
            out, err = process.communicate(timeout=300)
            code = process.wait()
        assert code == exit_code, f"{out}\n{err}"
        return err

    def launch(self, request: pytest.FixtureRequest, launcher: str, *arguments: str) -> None:
        """Run a script in two processes."""
        if launcher == "torchrun":
            self.run("torchrun", *arguments)
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
