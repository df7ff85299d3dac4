"""Environments and engines that trainings of other frameworks need."""

from pathlib import Path

import pytest

from tests.engines import environments
from tests.engines.slurm import Cluster
from tests.integrations.trainings import Trainings


@pytest.fixture
def trainings(tmp_path: Path) -> Trainings:
    return Trainings(tmp_path)


@pytest.fixture(scope="session")
def estimator_python() -> str:
    """Give a Python with TensorFlow 2.15, Keras 2 and Tensorpack."""
    return environments.python("estimator")


@pytest.fixture(scope="session")
def slurm(slurm_cluster: Cluster) -> list[str]:
    """Give a command that runs two tasks of a step in a Slurm of our own."""
    variables = (f"{name}={value}" for name, value in slurm_cluster.variables.items())
    return ["env", *variables, "srun", "-n", "2"]
