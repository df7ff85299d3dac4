"""A test without its engine is skipped, or fails if all tests must run."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.engines.chromium import chromium
from tests.engines.requirements import MUST_RUN, cannot_set_up

ROOT = Path(__file__).parents[1]


@pytest.mark.parametrize(("told", "is_skipped"), [(None, True), ("", True), ("1", False)])
def test_what_cannot_be_set_up(
    monkeypatch: pytest.MonkeyPatch, told: str | None, is_skipped: bool
) -> None:
    monkeypatch.delenv(MUST_RUN, raising=False)
    if told is not None:
        monkeypatch.setenv(MUST_RUN, told)
    outcome = pytest.skip.Exception if is_skipped else pytest.fail.Exception
    with pytest.raises(outcome, match="no engine"):
        cannot_set_up("no engine")


def test_a_browser_that_is_missing(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv(MUST_RUN, "1")
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(pytest.fail.Exception, match="needs a browser"), chromium():
        pass


def test_an_environment_that_cannot_be_built(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    needs_it = "tests/integrations/test_estimator.py::test_an_estimator_writes_into_the_run"
    variables = os.environ | {"XDG_CACHE_HOME": str(tmp_path / "file"), MUST_RUN: "1"}
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "-m", "", needs_it],
        cwd=ROOT,
        env=variables,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 1
    assert "needs `make environments ENVIRONMENTS=estimator`" in done.stdout
