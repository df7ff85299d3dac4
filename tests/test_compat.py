"""Aboard with other versions of its dependencies, in environments of `tools/environments.py`."""

import os
import subprocess
from pathlib import Path

import pytest

from tests.engines import environments

ROOT = Path(__file__).parents[1]

TENSORBOARDS = {
    "estimator": "2.15.2",
    "tensorflow-2.16": "2.16.2",
    "tensorflow-2.18": "2.18.0",
    "tensorflow": "2.21.0",
}
PARITY = ("tests/tensorboard/test_parity.py", "tests/tensorboard/test_private_names.py")
OLDEST = (
    *PARITY,
    "tests/boards/test_registry.py",
    "tests/cli/test_console.py",
    "tests/events/test_encode.py",
    "tests/hub/test_api.py",
    "tests/hub/test_proxy.py",
    "tests/hub/test_proxy_bodies.py",
    "tests/index/test_logs.py",
    "tests/index/test_series.py",
    "tests/storage/test_object.py",
    "tests/tensorboard/test_app.py",
    "tests/web/test_gate.py",
    "tests/web/test_server.py",
)


def run(python: str, *arguments: str) -> str:
    done = subprocess.run(
        [python, *arguments],
        cwd=ROOT,
        env=os.environ | {"PYTHONPATH": str(ROOT / "src")},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def run_tests(python: str, *tests: str) -> None:
    # Old versions warn of what newer ones have removed.
    run(python, "-m", "pytest", "-W", "default", "-p", "no:cacheprovider", *tests)


@pytest.mark.slow
@pytest.mark.parametrize("environment", TENSORBOARDS)
def test_a_tensorboard_with_the_tensorflow_that_pins_it(environment):
    python = environments.python(environment)
    run(python, "-m", "pip", "check")
    version = "import tensorboard, tensorflow; print(tensorboard.__version__)"
    assert run(python, "-W", "ignore", "-c", version).strip() == TENSORBOARDS[environment]
    run_tests(python, *PARITY)


@pytest.mark.slow
def test_the_oldest_allowed_versions():
    run_tests(environments.python("oldest"), *OLDEST)
