"""What tests of the training side share: a spool of their own, and a run to log to."""

import contextlib
import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

import aboard
from tests.track.readers import assert_equal, read_ours, read_stock


@pytest.fixture(autouse=True)
def spool_root(
    tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Path]:
    """Keep every test off the developer's own spools, and off those of other tests.

    A shipper whose bucket never answers would try for ever: whoever is left goes with the test.
    """
    root = tmp_path_factory.mktemp("spool")
    monkeypatch.setenv("ABOARD_SPOOL", str(root))
    monkeypatch.setenv("ABOARD_SHIP_SECS", "0.05")
    yield root
    if any(root.iterdir()):
        _end_processes_about(root)


def _end_processes_about(root: Path) -> None:
    for process in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            if f"{root}/".encode() in (process / "cmdline").read_bytes():
                os.kill(int(process.name), signal.SIGKILL)


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
