"""Environments and engines that trainings of other frameworks need."""

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from trainings import ROOT, Trainings

from engines import slurm as slurm_engine
from engines.absence import cannot_set_up


@pytest.fixture
def trainings(tmp_path: Path) -> Trainings:
    return Trainings(tmp_path)


@pytest.fixture(scope="session")
def estimator_python() -> str:
    """Give a Python with TensorFlow 2.15, Keras 2 and Tensorpack, built at first use."""
    build = [sys.executable, ROOT / "tools" / "environments.py", "estimator"]
    done = subprocess.run(build, capture_output=True, text=True, check=False)
    if done.returncode:
        reason = (done.stderr.strip().splitlines() or ["no reason given"])[-1]
        cannot_set_up(f"needs the environment of tools/environments.py estimator: {reason}")
    return done.stdout.strip()


@pytest.fixture(scope="session")
def slurm() -> Iterator[list[str]]:
    """Give a command that runs two tasks of a step in a Slurm of our own."""
    if missing := slurm_engine.missing():
        cannot_set_up(f"needs {', '.join(missing)} (Debian: {slurm_engine.INSTALL})")
    with slurm_engine.slurm() as variables:
        yield ["env", *(f"{name}={value}" for name, value in variables.items()), "srun", "-n", "2"]
