"""A run to log media to, and what readers find in it."""

from pathlib import Path

import pytest

import aboard
from tests.track.reading import assert_equal, read_ours, read_stock


@pytest.fixture(params=["begun", "resumed"])
def log(request, tmp_path):
    """Give a run that is at step 7, be it that an earlier attempt came that far."""
    log = aboard.init("x", "logs", tmp_path)
    log.log_metrics({"loss": 0.5}, step=7)
    if request.param == "resumed":
        log.finish()
        log = aboard.init("x", "logs", tmp_path, resume=True)
    yield log
    log.finish()


@pytest.fixture
def logged(log, index):
    """Read the tree back, by both readers: `logged(tag)` gives the points of a tag."""

    def logged(tag, run="."):
        log.finish()
        found = read_stock(Path(log.logdir))
        assert_equal(read_ours(Path(log.logdir), index), found, times=True)
        return found[run, tag].points

    return logged
